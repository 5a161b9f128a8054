"""The trade-off picture: final loss against epsilon, a line per mechanism, a panel per trust model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from _ranking import Interval
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullLocator

COLOURS = {
    "none": "#000000",
    "dp-dsgd": "#d55e00",
    "bsr": "#8c6d31",
    "d-mf": "#e69f00",
    "mafalda": "#0072b2",
    "mafalda-l": "#56b4e9",
    "mafalda-classes": "#332288",
    "corn": "#009e73",
    "time-space": "#cc79a7",
    "adapted": "#882255",
}
OTHER = "#6e6e6e"
APART = 0.012  # on the logarithmic axis, so that intervals do not hide each other


@dataclass(frozen=True)
class Point:
    """A mechanism's mean loss with its interval at one epsilon."""

    label: str
    epsilon: float
    loss: Interval


def draw(panels: Mapping[str, Sequence[Point]], scene: str, delta: float) -> Figure:
    """One panel per trust model; plain mechanisms are dashed, weighted ones solid; bars are 95 % intervals."""
    shown = {title: points for title, points in panels.items() if points}
    figure = Figure(figsize=(5.4 * len(shown) + 0.4, 5.2), facecolor="white", layout="constrained")
    grid = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    for axes, (title, points) in zip(grid, shown.items(), strict=True):
        labels = list(dict.fromkeys(point.label for point in points))
        for place, label in enumerate(labels):
            own = sorted((point for point in points if point.label == label), key=lambda point: point.epsilon)
            base, _, weighted = label.partition(", ")
            shift = 10 ** (APART * (place - len(labels) / 2))
            axes.errorbar(
                [point.epsilon * shift for point in own],
                [point.loss.middle for point in own],
                yerr=[point.loss.half for point in own],
                label=label,
                color=COLOURS.get(base, OTHER),
                linestyle="-" if weighted else (0, (4, 2)),
                marker="o" if weighted else "s",
                markersize=4,
                linewidth=1.5,
                capsize=2,
            )
        axes.set_title(title, loc="left", fontsize=10, color="#222222")
        axes.set_xlabel(f"epsilon at delta = {delta:g}")
        ticks = sorted({point.epsilon for point in points})
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(ticks, [f"{one:.3g}" for one in ticks])
        axes.set_xlim(ticks[0] / 1.4, ticks[-1] * 1.4)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.7)))
        axes.grid(True, axis="y", which="both", color="#e3e3e3", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    grid[0].set_ylabel("final test loss, mean and 95 % interval")
    figure.suptitle(f"{scene}: loss at equal privacy", x=0.01, ha="left", fontsize=12.5, fontweight="bold")
    return figure
