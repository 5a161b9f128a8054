"""The trade-off picture: final loss against epsilon, a panel per trust model, few lines with their names beside them.

Named and coloured are no noise, independent noise, the reference, and the best mechanism of the panel; all others are
grey and listed below. The best has the lowest geometric mean loss over the budgets, of those trained at all of them.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from _ranking import Interval
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from mfdl.pictures.style import INK, QUIET, End, name_ends, plain_decades, quiet
from mfdl.privacy import gaussian

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"none": "#000000", "dp-dsgd": "#d55e00", "mafalda": "#0072b2"}  # always named, where they were trained
BEST, OTHER = "#009e73", "#c9c9c9"
WORDS = {"none": "no noise, no privacy", "dp-dsgd": "independent noise", "mafalda": "the reference"}
WIDTH, HEIGHT = 6.6, 5.0  # inches of a panel, names beside it included
APART = 0.03  # on the logarithmic axis, so that intervals do not hide each other


@dataclass(frozen=True)
class Point:
    """A mechanism's mean loss with its interval at one epsilon."""

    label: str
    epsilon: float
    loss: Interval


def best_of(points: Sequence[Point]) -> str | None:
    """The label with the lowest geometric mean loss, of those at every epsilon; without noise does not count."""
    budgets = {point.epsilon for point in points}
    means = {}
    for label in dict.fromkeys(point.label for point in points):
        losses = [point.loss.middle for point in points if point.label == label]
        if label != "none" and len(losses) == len(budgets) and min(losses) > 0:
            means[label] = sum(math.log(loss) for loss in losses)
    return min(means, key=lambda label: means[label], default=None)


def draw(panels: Mapping[str, Sequence[Point]], scene: str, delta: float) -> Figure:
    """The figure: bars are 95 % intervals."""
    shown = {title: points for title, points in panels.items() if points}
    figure = Figure(figsize=(WIDTH * len(shown), HEIGHT), facecolor="white")
    everything = [edge for points in shown.values() for point in points for edge in _edges(point)]
    for k, (title, points) in enumerate(shown.items()):
        axes = figure.add_axes(((k + 0.11) / len(shown), 0.21, 0.57 / len(shown), 0.64))
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = sorted({point.epsilon for point in points})
        axes.set_xlim(ticks[0] / 1.15, ticks[-1] * 1.15)
        axes.set_ylim(min(everything) / 1.1, max(everything) * 1.1)
        _panel(axes, points)
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.set_xlabel(f"epsilon at delta = {delta:g}", fontsize=9, color=QUIET)
        quiet(axes, grid="y")
        axes.set_xticks(ticks, [f"{one:.3g}\nμ = {gaussian.mu_from_epsilon(one, delta):.3g}" for one in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        plain_decades(axes.yaxis, axes.get_ylim())
        if k == 0:
            axes.set_ylabel("final test loss, mean and 95 % interval", fontsize=9, color=QUIET)
    figure.suptitle(f"{scene}: loss at equal privacy", x=0.012, ha="left", fontsize=12.5, fontweight="bold", color=INK)
    return figure


def _edges(point: Point) -> tuple[float, float]:
    half = 0.0 if math.isnan(point.loss.half) else point.loss.half
    low = point.loss.middle - half
    return (low if low > 0 else point.loss.middle), point.loss.middle + half


def _panel(axes: Axes, points: Sequence[Point]) -> None:
    labels, best = list(dict.fromkeys(point.label for point in points)), best_of(points)
    named = [label for label in labels if label in COLOURS or label == best]
    for label in (label for label in labels if label not in named):
        own = _line(points, label)
        x, y, alone = [point.epsilon for point in own], [point.loss.middle for point in own], len(own) == 1
        axes.plot(x, y, color=OTHER, linewidth=1.1, marker="." if alone else None, zorder=1)
    ends = []
    for place, label in enumerate(named):
        own, shift = _line(points, label), math.exp(APART * (place - (len(named) - 1) / 2))
        colour = COLOURS.get(label, BEST)
        x, y = [point.epsilon * shift for point in own], [point.loss.middle for point in own]
        below = [point.loss.middle - _edges(point)[0] for point in own]
        above = [_edges(point)[1] - point.loss.middle for point in own]
        how = {"color": colour, "linewidth": 2.0, "elinewidth": 1.1, "capsize": 2, "marker": "o", "markersize": 4.5}
        axes.errorbar(x, y, yerr=[below, above], zorder=3, **how)
        words = ", ".join(part for part in (WORDS.get(label, ""), "best here" if label == best else "") if part)
        ends.append(End(y[-1], label, words, colour))
    name_ends(axes, ends, apart=0.12)
    if grey := [label for label in labels if label not in named]:
        text = "\n".join(textwrap.wrap(f"grey: {'; '.join(grey)}", 74))
        axes.text(0.0, -0.21, text, transform=axes.transAxes, fontsize=7.6, color=QUIET, va="top", linespacing=1.35)


def _line(points: Sequence[Point], label: str) -> list[Point]:
    return sorted((point for point in points if point.label == label), key=lambda point: point.epsilon)
