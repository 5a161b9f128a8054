"""The picture of the comparison: share of the gap closed in every scene, loss against epsilon, loss against rate.

In: the answers of `_protocol.compared`. Out: one figure; few rows are drawn, in one colour each, named once.
"""

from __future__ import annotations

import math
from _statistics import over_scenes, share
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from _comparison_tables import Answer, Place, losses_of, paired, titled, without_noise
from _scenes import INDEPENDENT, NO_NOISE, REFERENCE, SECRET_AVERAGE, SECRET_BINS, SECRET_INDEPENDENT
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from mfdl.pictures.style import INK, QUIET, plain_decades, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Mapping[Place, str] = {
    (INDEPENDENT, "released"): "#d55e00",
    (REFERENCE, "released"): "#0072b2",
    (SECRET_INDEPENDENT, "released"): "#e69f00",
    (SECRET_BINS, "last"): "#56b4e9",
    (SECRET_BINS, "released"): "#009e73",
    (SECRET_AVERAGE, "released"): "#cc79a7",
}
LOSSES: Mapping[Place, str] = {(NO_NOISE, "released"): "#000000", (REFERENCE, "last"): "#8c8c8c"} | COLOURS
LEFTMOST = -1.0  # shares below are drawn here: a row that loses more than the whole gap
WIDTH, ROW_INCHES, HEIGHT = 12.6, 0.34, 3.9


def draw(results: Sequence[Answer]) -> Figure:
    """Of the scenes that count; loss by rate, and by epsilon where it has several, of the one with most budgets."""
    counting = [answer for answer in results if answer["counts"]]
    if not counting:
        raise ValueError("no scene counts, so there is nothing to draw.")
    places = {(answer["task"], answer["graph"], answer["partition"]) for answer in counting}
    budgets = {place: [a for a in counting if (a["task"], a["graph"], a["partition"]) == place] for place in places}
    most = max(sorted(budgets), key=lambda place: len(budgets[place]))
    several = sorted(budgets[most], key=lambda answer: float(answer["epsilon"]))
    height = max(HEIGHT, 1.6 + ROW_INCHES * len(counting))
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    below, tall = 0.55 / height, 1 - 1.35 / height
    alone = len(several) == 1  # one budget is no curve
    shares, rates = (
        figure.add_axes((left, below, width, tall))
        for left, width in ((0.155, 0.4 if alone else 0.29), (0.62 if alone else 0.75, 0.35 if alone else 0.235))
    )
    _shares(shares, counting)
    _by_rate(rates, several[0])
    if not alone:
        _by_epsilon(figure.add_axes((0.51, below, 0.17, tall)), several)
    handles = [
        shares.plot([], [], "o-", color=colour, label=f"{label}, {measure}")[0]
        for (label, measure), colour in LOSSES.items()
        if any(losses_of(answer, (label, measure)) is not None for answer in counting)
    ]
    figure.legend(handles=handles, loc="upper left", ncol=4, fontsize=8.5, frameon=False, bbox_to_anchor=(0.01, 1.0))
    return figure


def _shares(axes: Axes, counting: Sequence[Answer]) -> None:
    for height, answer in enumerate(reversed(counting)):
        for place, colour in COLOURS.items():
            if (losses := paired(answer, place)) is not None:
                shares = over_scenes(share, [losses])
                middle, low, high = (max(value, LEFTMOST) for value in (shares.middle, shares.low, shares.high))
                axes.plot([low, high], [height, height], color=colour, linewidth=1.2, alpha=0.6)
                axes.plot([middle], [height], "<" if shares.middle < LEFTMOST else "o", color=colour, markersize=5)
    names = [titled(answer, "ε") for answer in reversed(counting)]
    axes.set_yticks(range(len(names)), names, fontsize=8.5, color=INK)
    axes.set_xlim(LEFTMOST * 1.05, 1.1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    for edge in (0.0, 1.0):
        axes.axvline(edge, color=QUIET, linewidth=0.8)
    quiet(axes, grid="x")
    axes.set_title("share of the gap from MAFALDA to no noise", loc="left", fontsize=9.5, color=INK)


def _by_epsilon(axes: Axes, several: Sequence[Answer]) -> None:
    epsilons = [answer["epsilon"] for answer in several]
    for place, colour in LOSSES.items():
        every = [losses_of(answer, place) for answer in several]
        points = [(e, float(losses.mean())) for e, losses in zip(epsilons, every, strict=True) if losses is not None]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, linewidth=1.6)
    _logarithmic(axes, f"{several[0]['name'].split('/epsilon')[0]}: loss by ε")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])


def _by_rate(axes: Axes, answer: Answer) -> None:
    points: dict[Place, list[tuple[float, float]]] = {}
    for row in answer["rates"]:
        if row["loss"] is not None:
            points.setdefault((row["label"], row["measure"]), []).append((row["lr"], row["loss"]))
    for place, colour in LOSSES.items():
        if place in points:
            axes.plot(*zip(*sorted(points[place]), strict=True), ".-", color=colour, linewidth=1.4)
    _logarithmic(axes, f"{titled(answer, 'ε')}: loss by rate")
    floor = float(without_noise(answer).mean())
    axes.set_ylim(floor / 1.15, min(axes.get_ylim()[1], 12 * floor))


def _logarithmic(axes: Axes, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    quiet(axes, grid="y")
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    if math.isfinite(low) and math.isfinite(high):
        plain_decades(axes.yaxis, (low, high))
