"""Pictures of the comparison: test loss against cost, and trust models beside their limits; a panel for each scene.

In: the answers of `_protocol.compared`. Out: one figure. A row stands at its exchanges with all neighbours, coloured by
its gradient evaluations a record, marked by what it needs: nothing, secret batches, or a public preconditioner. Rows
that clip at another norm than 1 are in the tables alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _comparison_tables import (
    RANKINGS,
    Answer,
    Place,
    best_beside,
    excess,
    losses_of,
    titled,
    trust_name,
    without_noise,
)
from _limits import limit
from _paired_statistics import over_scenes
from _scenes import NO_NOISE, REFERENCE, SECRET
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from mfdl.pictures.style import INK, QUIET, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKING = "ldp"
COLOURS: Mapping[int, str] = {10: "#0072b2", 160: "#d55e00", 640: "#009e73"}
"""By gradient evaluations a record."""
OTHER = "#8c8c8c"
MARKERS = {"": "o", SECRET: "s", "preconditioned": "^"}
NAMES = {"": "public batches", SECRET: "balls-in-bins", "preconditioned": "public batches, preconditioned"}
SMALLEST = 1e-6
COLUMNS, WIDTH, HEIGHT, ABOVE = 3, 4.2, 2.9, 0.8


def draw(results: Sequence[Answer]) -> Figure:
    """Of the scenes that count."""
    counting = [answer for answer in results if answer["counts"] and losses_of(answer, (REFERENCE, "last")) is not None]
    if not counting:
        raise ValueError("no scene counts, so there is nothing to draw.")
    lines = math.ceil(len(counting) / COLUMNS)
    height = HEIGHT * lines + ABOVE
    figure = Figure(figsize=(WIDTH * min(COLUMNS, len(counting)), height), facecolor="white", layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - ABOVE / height))  # type: ignore[union-attr]
    panels = figure.subplots(lines, min(COLUMNS, len(counting)), squeeze=False).ravel()
    for axes, answer in zip(panels, counting, strict=False):
        _panel(axes, answer)
    for axes in panels[len(counting) :]:
        axes.remove()
    _legend(figure, panels[0])
    return figure


def _panel(axes: Axes, answer: Answer) -> None:
    for row in answer["rows"]:
        place: Place = (row["label"], row["measure"])
        losses = losses_of(answer, place)
        if row["label"].startswith(NO_NOISE) or RANKING not in row["rankings"] or losses is None:
            continue
        if row["clip_norm"] != 1:
            continue
        mean = over_scenes(lambda each: each["loss"].mean(axis=-1), [{"loss": losses}])
        error = [[mean.middle - mean.low], [mean.high - mean.middle]]
        colour, last = COLOURS.get(row["gradient_evaluations"], OTHER), row["measure"] == "last"
        filled = "white" if last else colour
        axes.errorbar(
            [row["exchanges"]], [mean.middle], error, fmt=MARKERS[_needs(row)], color=colour, markerfacecolor=filled
        )
    reference = losses_of(answer, (REFERENCE, "last"))
    assert reference is not None
    top, floor = float(reference.mean()), float(without_noise(answer).mean())
    axes.axhline(floor, color=INK, linewidth=0.9)
    axes.axhline(top, color=QUIET, linewidth=0.9, linestyle="--")
    axes.set_ylim(floor - 0.25 * (top - floor), top + 0.4 * (top - floor))
    axes.set_xscale("log")
    ticks = sorted({row["exchanges"] for row in answer["rows"]})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(ticks[0] / 1.4, ticks[-1] * 1.4)
    quiet(axes, grid="y")
    axes.set_title(titled(answer, "ε"), loc="left", fontsize=9.5, color=INK)
    axes.set_xlabel("exchanges with all neighbours", fontsize=8.5, color=INK)
    axes.set_ylabel("test loss", fontsize=8.5, color=INK)


def _needs(row: Mapping[str, Any]) -> str:
    if row["batches"] == SECRET:
        return SECRET
    return "preconditioned" if row["preconditioned"] else ""


def _legend(figure: Figure, axes: Axes) -> None:
    colours = [
        axes.plot([], [], "o", color=colour, label=f"{count} evaluations a record")[0]
        for count, colour in COLOURS.items()
    ]
    markers = [axes.plot([], [], marker, color=OTHER, label=NAMES[need])[0] for need, marker in MARKERS.items()]
    hollow = axes.plot([], [], "o", color=OTHER, markerfacecolor="white", label="last model")[0]
    levels = [
        axes.plot([], [], color=INK, label="no noise")[0],
        axes.plot([], [], "--", color=QUIET, label="MAFALDA, last model")[0],
    ]
    handles = [*colours, *markers, hollow, *levels]
    figure.legend(handles=handles, loc="upper left", ncol=3, fontsize=8.5, frameon=False, bbox_to_anchor=(0.01, 1.0))


def draw_limits(results: Sequence[Answer]) -> Figure:
    """The best row of each trust model: its excess loss with its interval, and the limit below it.

    Args: results: scenes that count. Losses below `SMALLEST` of the axis are drawn at its lower end.
    """
    lines, columns = math.ceil(len(results) / COLUMNS), min(COLUMNS, len(results))
    size = (WIDTH * columns, (HEIGHT + 0.4) * lines)
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[len(results) :]:
        axes.remove()
    for axes, answer in zip(panels, results, strict=False):
        names = []
        for ranking in RANKINGS:
            best, bound = best_beside(answer, ranking), limit(answer, ranking)
            if best is None or bound is None:
                continue
            left, x = over_scenes(excess, [best[1]]), len(names)
            ends = [max(value, SMALLEST) for value in (left.low, left.middle, left.high)]
            axes.errorbar([x], [ends[1]], [[ends[1] - ends[0]], [ends[2] - ends[1]]], fmt="o", color=COLOURS[160])
            axes.plot([x - 0.3, x + 0.3], [max(bound, SMALLEST)] * 2, color=INK, linewidth=1.4)
            names.append(trust_name(ranking).replace(" of", "\nof"))
        axes.set_yscale("log")
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
        axes.set_title(titled(answer, "\N{GREEK SMALL LETTER EPSILON}"), loc="left", fontsize=9, color=INK)
        quiet(axes, grid="y")
    first = figure.axes[0]
    first.set_ylabel("excess loss over no noise", fontsize=8.5, color=INK)
    handles = [first.errorbar([], [], [], fmt="o", color=COLOURS[160]), first.plot([], [], color=INK)[0]]
    first.legend(handles, ["best row, 95 %", "limit"], fontsize=8, frameon=False, loc="upper right")
    return figure
