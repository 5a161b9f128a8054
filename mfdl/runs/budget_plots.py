"""The picture of a comparison at several budgets: final test loss over the budget, with an interval over the seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from scipy import stats

from ..errors import InvalidInput, require_known
from ..metrics import WORDS, result_key
from ..pictures.looks import Look, looks_of
from ..pictures.style import LINE_INCHES, caption_lines, quiet, write_caption
from .rendering import caption_of, plot_comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .run_steps import RunSteps

LEVEL = 0.95
CAPTION_WIDTH = 104
COLUMN_INCHES = 3.3  # width of one column of a paper
SMALL = 8  # points, of words in such a column
Point = tuple[float, float, float]  # budget, mean, half of the interval


def points(result: Mapping[str, Any], metric: str) -> dict[str, list[Point]]:
    """Mean over seeds and half of its 95 % interval (Student's t), by mechanism; budgets as mu, or as epsilon.

    A mechanism without noise is at budget inf. With several learning rates the least loss over the rates counts. A
    budget at which a seed diverged is left out.
    """
    key = result_key("final", metric)
    values: dict[tuple[str, float, Any], list[float | None]] = {}
    for run in result["runs"]:
        at = math.inf if run["mechanism"] == "none" else float(run["budget"])
        values.setdefault((run["mechanism"], at, run["lr"]), []).append(run[key])
    curves: dict[str, list[Point]] = {}
    for (name, budget, _), finals in values.items():
        reached = [final for final in finals if final is not None]
        if len(reached) < len(finals):
            continue
        half = 0.0
        if len(reached) > 1:
            quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(reached) - 1))
            half = quantile * statistics.stdev(reached) / math.sqrt(len(reached))
        curves.setdefault(name, []).append((budget, statistics.fmean(reached), half))
    best = max if metric.endswith("accuracy") else min
    return {
        name: [
            best((point for point in of_name if point[0] == budget), key=lambda point: point[1])  # exact: over rates
            for budget in sorted({point[0] for point in of_name})
        ]
        for name, of_name in curves.items()
    }


def plot_budgets(
    result: Mapping[str, Any],
    ax: Axes | None = None,
    *,
    metric: str = "loss",
    title: bool = True,
    caption: bool = True,
    width: float = 7.0,
) -> Figure | Axes:
    """The figure, or the axes given with the curves in them.

    Args: result: of a comparison at several budgets; title, caption: whether the figure has them; width: in inches.
    Raises: InvalidInput: a metric that was not measured.
    """
    require_known("metric", metric, WORDS)
    if any(result_key("final", metric) not in run for run in result["runs"]):
        raise InvalidInput(f"this comparison did not measure {metric!r}; compare with metrics={metric} (--metrics).")
    labels = {row["mechanism"]: row["label"] for row in result["mechanisms"]}
    curves = points(result, metric)
    if ax is not None:
        _draw(ax, curves, labels, result, metric)
        return ax
    lines = caption_lines(caption_of(result), CAPTION_WIDTH) if caption else []
    foot = LINE_INCHES * len(lines)
    height = width * 0.62 + foot
    layout = ConstrainedLayoutEngine(rect=(0, foot / height, 1, 1 - foot / height))
    figure = Figure(figsize=(width, height), facecolor="white", layout=layout)
    axes = figure.add_subplot()
    _draw(axes, curves, labels, result, metric)
    if title:
        axes.set_title(f"{WORDS[metric].capitalize()} on {result['task']} over the privacy budget", loc="left")
    if lines:
        write_caption(figure, lines, left=0.02, top=foot / height)
    return figure


def _draw(
    axes: Axes, curves: Mapping[str, Sequence[Point]], labels: Mapping[str, str], result: Mapping[str, Any], metric: str
) -> None:
    quiet(axes, grid="y")
    by_mu = result["config"].get("epsilon") is None
    for name, look in zip(curves, looks_of(labels[name] for name in curves), strict=True):
        of_name = curves[name]
        if all(math.isinf(budget) for budget, _, _ in of_name):
            level, words = of_name[0][1], f"{labels[name]} (no noise)"
            axes.axhline(level, color=look.colour, linestyle="--", linewidth=1.2, label=words)
            continue
        budgets, means, halves = zip(*of_name, strict=True)
        _curve(axes, look, labels[name], budgets, means, halves)
    axes.set_xscale("log")
    axes.set_xticks(ticks := sorted({p[0] for of_name in curves.values() for p in of_name if math.isfinite(p[0])}))
    axes.set_xticklabels([f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("privacy budget μ (Gaussian DP)" if by_mu else f"privacy budget ε at δ = {result['delta']:g}")
    seeds = len(result["seeds"])
    axes.set_ylabel(f"{WORDS[metric]}" + (", mean and 95 % interval" if seeds > 1 else ", one seed"))
    axes.legend(frameon=False, fontsize="small")


def _curve(
    axes: Axes, look: Look, label: str, budgets: Sequence[float], means: Sequence[float], halves: Sequence[float]
) -> None:
    axes.errorbar(budgets, means, yerr=halves, color=look.colour, marker="o", markersize=4, capsize=3, label=label)


def column_figure(result: dict[str, Any], steps: Sequence[RunSteps]) -> Figure:
    """The picture at the width of a paper's column, without title and caption."""
    figure = Figure(figsize=(COLUMN_INCHES, COLUMN_INCHES * 0.72), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    if isinstance(result["mu"], list):
        plot_budgets(result, axes)
    else:
        plot_comparison(result, steps, axes)
    axes.set_title("", loc="left")
    axes.set_ylabel(axes.get_ylabel().partition(",")[0] or WORDS["loss"])  # the caption has the rest
    if (legend := axes.get_legend()) is not None:  # above the curves, which it may not cover
        names = [text.get_text() for text in legend.get_texts()]
        handles = [handle for handle in legend.legend_handles if handle is not None]
        figure.legend(handles, names, loc="outside upper left", ncols=3, frameon=False, fontsize=SMALL)
        legend.remove()
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_fontsize(SMALL)
    axes.tick_params(labelsize=SMALL - 1)
    return figure
