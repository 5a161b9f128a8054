"""Pictures of privacy accounting: loss by distance, who learns what of whom, the graph as an attacker sees it.

In: numbers, with their names. Out: matplotlib Figures of their own; nothing is computed here but minima, means and
maxima. Infinite values have no place on a logarithmic axis: they are counted in words.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

from .. import files
from .plots import GRID, INK, QUIET, _quiet, _spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIXED, ADAPTIVE, SQUARED, CODED, LOCAL = "fixed", "adaptive", "squared", "coded", "local"
COLOURS = {FIXED: "#009e73", ADAPTIVE: "#0072b2", SQUARED: "#e69f00", CODED: "#d55e00", LOCAL: "#4d4d4d"}
MARKERS = {FIXED: "o", ADAPTIVE: "s", SQUARED: "^", CODED: "D"}
MAX_LABELLED = 40  # nodes up to which every node carries its name
MAP = "viridis"
WHOLE_RANGE = 1e-12  # what is below this fraction of the largest value is not drawn: it is zero in all but rounding


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """One line of a loss-by-distance picture.

    Attributes:
        kind: decides colour and marker: "fixed", "adaptive", "squared" or "coded".
        name: printed beside the line; words: printed below the name, what it holds for.
        distances: hops from the attacker, one per victim; losses: one per victim, may be inf.
    """

    kind: str
    name: str
    words: str
    distances: NDArray[np.intp]
    losses: NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class AtDistance:
    """The victims at one distance: how many, and the range of their losses."""

    distance: int
    victims: int
    lowest: float
    mean: float
    highest: float


def by_distance(distances: ArrayLike, losses: ArrayLike) -> list[AtDistance]:
    """Minimum, mean and maximum of the losses at each distance, nearest first.

    >>> by_distance([1, 2, 1], [1.0, 5.0, 3.0])[0]
    AtDistance(distance=1, victims=2, lowest=1.0, mean=2.0, highest=3.0)
    """
    hops, values = np.asarray(distances), np.asarray(losses, dtype=np.float64)
    out = []
    for distance in np.unique(hops):
        here = values[hops == distance]
        out.append(AtDistance(int(distance), here.size, float(here.min()), float(here.mean()), float(here.max())))
    return out


def write_figure(folder: str | os.PathLike[str], name: str, figure: Figure) -> list[Path]:
    """NAME.png and NAME.svg in the folder, each written whole or not at all."""
    written = []
    for kind, how in (("png", {"dpi": 150}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, **how)
        written.append(files.atomic_write_bytes(Path(folder) / f"{name}.{kind}", buffer.getvalue()))
    return written


def plot_by_distance(curves: Sequence[Curve], *, title: str, caption: str, local: float | None = None) -> Figure:
    """Loss over distance from the attacker, logarithmic: mean as a line, minimum and maximum as a bar.

    Args: local: the loss under LDP, drawn as a horizontal line; None or inf: no line.
    """
    figure, axes = _page(title, caption, width=9.6, body=4.7, plot=(0.085, 0.60))
    draw_by_distance(axes, curves, local=local)
    return figure


def plot_by_victim(losses: Sequence[Curve], *, title: str, caption: str, local: float | None = None) -> Figure:
    """Losses of all victims, largest first, where the attacker has no place in the graph (`distances` are ignored)."""
    ranked = [
        dataclasses.replace(one, distances=np.arange(1, one.losses.size + 1), losses=-np.sort(-one.losses))
        for one in losses
    ]
    figure, axes = _page(title, caption, width=9.6, body=4.7, plot=(0.085, 0.60))
    draw_by_distance(axes, ranked, local=local)
    axes.set_xlabel("victims, the one that loses most first", fontsize=9, color=QUIET)
    return figure


def draw_by_distance(axes: Axes, curves: Sequence[Curve], *, local: float | None = None, named: bool = True) -> None:
    """The picture of `plot_by_distance` into axes of the caller's. named: names beside the lines, else none."""
    top = max([0.0, *(_top(one.losses) for one in curves), local if local and math.isfinite(local) else 0.0])
    axes.set_yscale("log")
    ends: list[tuple[float, float, str, str, str]] = []  # height, where the line ends, name, words, colour
    lowest, furthest, unseen = top, 1, 0
    for place, one in enumerate(curves):
        colour = COLOURS[one.kind]
        groups = [g for g in by_distance(one.distances, one.losses) if WHOLE_RANGE * top < g.mean < math.inf]
        unseen += int((~np.isfinite(one.losses)).sum()) if one.kind == FIXED else 0
        if not groups:
            continue
        apart = 0.07 * (place - (len(curves) - 1) / 2) if groups[-1].distance <= 12 else 0.0
        x = np.array([g.distance for g in groups]) + apart
        mean = np.array([g.mean for g in groups])
        low = np.array([max(g.lowest, WHOLE_RANGE * top) for g in groups])
        high = np.array([g.highest for g in groups])
        lowest, furthest = min(lowest, float(low.min())), max(furthest, groups[-1].distance)
        axes.vlines(x, low, high, color=colour, linewidth=4.5, alpha=0.32, zorder=2)
        crowded = len(groups) > 25
        axes.plot(
            x,
            mean,
            color=colour,
            linewidth=1.9,
            marker=None if crowded else MARKERS[one.kind],
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.8,
            zorder=4 if one.kind == FIXED else 3,
        )
        ends.append((float(mean[-1]), float(x[-1]), one.name, one.words, colour))
    if local is not None and math.isfinite(local) and local > 0:
        axes.axhline(local, color=COLOURS[LOCAL], linewidth=1.3, linestyle=(0, (5, 2.5)), zorder=1)
        lowest = min(lowest, local)
        ends.append((local, math.inf, "LDP", "all messages public", COLOURS[LOCAL]))
    if not ends:
        axes.set_ylim(0.1, 10)
        axes.text(0.5, 0.5, "every loss is infinite", transform=axes.transAxes, ha="center", color=INK, fontsize=12)
    else:
        axes.set_ylim(lowest / 1.8, top * 2.2)
    axes.set_xlim(0.6, furthest + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9, min_n_ticks=1))
    axes.set_xlabel("distance from the attacker (hops)", fontsize=9, color=QUIET)
    axes.set_ylabel("μ²  (Rényi loss of order 2)", fontsize=9, color=QUIET)
    _quiet(axes, grid="y")
    _plain_decades(axes.yaxis, axes.get_ylim())
    if unseen and ends:
        axes.text(
            0.015, 0.02, f"{unseen} infinite losses are not drawn", transform=axes.transAxes, fontsize=8, color=INK
        )
    if named:
        _name_ends(axes, ends)


def _name_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str, str]]) -> None:
    """Names right of the picture, joined to the ends of their lines, none over another."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((1.0, end[0]))[1]) for end in ends]
    order = sorted(range(len(ends)), key=lambda i: heights[i])
    for i, y in zip(order, _spread([heights[i] for i in order], min(0.15, 1 / max(len(ends), 1))), strict=True):
        _, stop, name, words, colour = ends[i]
        start = 1.0 if math.isinf(stop) else float(to_axes.transform((stop, 1.0))[0]) + 0.012
        axes.plot(
            [start, 1.0, 1.035],
            [heights[i], heights[i], y],
            transform=axes.transAxes,
            color=colour,
            linewidth=0.8,
            alpha=0.8,
            linestyle=":" if start < 1 else "-",
            clip_on=False,
        )
        axes.annotate(
            name, (1.045, y), xycoords="axes fraction", fontsize=10, fontweight="bold", color=colour,
            va="bottom" if words else "center", annotation_clip=False,
        )  # fmt: skip
        if words:
            axes.annotate(
                words, (1.045, y - 0.006), xycoords="axes fraction", fontsize=8, color=QUIET, va="top",
                annotation_clip=False,
            )  # fmt: skip


def plot_pairwise(matrix: ArrayLike, labels: Sequence[Any], *, title: str, caption: str, unit: str = "μ") -> Figure:
    """Heat map of matrix[u, v], what attacker v learns of victim u; grey where infinite or not asked for."""
    values = np.asarray(matrix, dtype=np.float64)
    longest = max((len(str(label)) for label in labels), default=1) if len(labels) <= MAX_LABELLED else 3
    figure, axes = _page(title, caption, width=8.6, body=6.2, plot=(0.135, 0.72), below=0.3 + 0.075 * longest)
    colours = _colour_map()
    norm, over = _scale(values)
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, norm=norm, interpolation="nearest")
    axes.set_xlabel("attacker v", fontsize=9.5, color=QUIET)
    axes.set_ylabel("victim u", fontsize=9.5, color=QUIET)
    if len(labels) <= MAX_LABELLED:
        names = [str(label) for label in labels]
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(labelsize=8 if len(names) <= 20 else 6.5, colors=QUIET, length=0)
    else:
        axes.set_xlabel("attacker v (position in label order)", fontsize=9.5, color=QUIET)
        axes.tick_params(labelsize=8, colors=QUIET)
    for side in axes.spines.values():
        side.set_visible(False)
    _colour_bar(figure, axes, image, f"{unit} of u against v{over}")
    return figure


def plot_graph(
    edges: Sequence[tuple[int, int]],
    positions: Mapping[int, Sequence[float]],
    losses: ArrayLike,
    attackers: Sequence[int],
    labels: Sequence[Any],
    *,
    title: str,
    caption: str,
    unit: str = "μ",
) -> Figure:
    """The graph, each node in the colour of what the attacker learns of it; attackers are red stars.

    Args:
        edges: pairs of node indices; positions: node index -> (x, y).
        losses: one per node; inf: dark with a cross (known fully); nan: not asked for, grey.
    """
    from matplotlib.collections import LineCollection

    values = np.asarray(losses, dtype=np.float64).copy()
    outside = np.ones(values.size, dtype=bool)
    outside[list(attackers)] = False
    figure, axes = _page(title, caption, width=8.6, body=6.2, plot=(0.03, 0.82), below=0.1)
    spots = np.array([positions[i] for i in range(values.size)], dtype=np.float64)
    light = 1.1 if len(edges) <= 200 else 0.4
    axes.add_collection(
        LineCollection([[spots[i], spots[j]] for i, j in edges], colors="#b5b5b5", linewidths=light, zorder=1)
    )
    size = 260 if values.size <= MAX_LABELLED else max(28.0, 9000 / values.size)
    norm, over = _scale(values[outside])
    finite = outside & np.isfinite(values)
    dots = axes.scatter(
        spots[finite, 0], spots[finite, 1], c=values[finite], cmap=_colour_map(), norm=norm, s=size, zorder=3,
        edgecolors="white", linewidths=0.8,
    )  # fmt: skip
    for where, colour, marker in ((np.isposinf(values) & outside, INK, "X"), (np.isnan(values) & outside, GRID, "o")):
        axes.scatter(spots[where, 0], spots[where, 1], color=colour, marker=marker, s=size, zorder=3)
    stars = list(attackers)
    axes.scatter(
        spots[stars, 0], spots[stars, 1], marker="*", s=2.1 * size + 60, color="#d5002f", edgecolors="white",
        linewidths=0.8, zorder=4,
    )  # fmt: skip
    named = range(values.size) if values.size <= MAX_LABELLED else stars
    for i in named:
        axes.annotate(
            f"{labels[i]} (attacker)" if i in stars else str(labels[i]), (spots[i, 0], spots[i, 1]), xytext=(0, -12),
            textcoords="offset points", ha="center", va="top", fontsize=8, color=INK, zorder=5,
            path_effects=[withStroke(linewidth=2.2, foreground="white")],
        )  # fmt: skip
    axes.set_axis_off()
    axes.margins(0.09)
    if finite.any():
        _colour_bar(figure, axes, dots, f"{unit} of the node{over}")
    return figure


def _page(
    title: str, caption: str, *, width: float, body: float, plot: tuple[float, float], below: float = 0.5
) -> tuple[Figure, Axes]:
    """A figure with title above and caption below one picture.

    Args: plot: left edge and width as fractions; below: inches for the names of the axis.
    """
    lines = textwrap.wrap(caption, int(17.0 * width), break_on_hyphens=False)
    foot = below + 0.2 + 0.165 * len(lines)
    head = 0.62
    height = head + body + foot
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((plot[0], foot / height, plot[1], body / height))
    left = min(plot[0], 0.06)
    figure.text(left, 1 - 0.32 / height, title, fontsize=13.5, fontweight="bold", color=INK, va="center")
    figure.text(
        left, (foot - below - 0.06) / height, "\n".join(lines), fontsize=7.6, color=QUIET, va="top", linespacing=1.35
    )  # fmt: skip
    return figure, axes


def _plain_decades(axis: Any, limits: tuple[float, float]) -> None:
    """Ticks at 1, 2, 5 where few decades are shown, at powers of ten where many are; written as plain numbers."""
    decades = math.log10(limits[1] / limits[0])
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.2 else (1.0,), numticks=12))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_locator(NullLocator())


def _plain(value: float, _: object) -> str:
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    power = round(math.log10(value))
    return f"$10^{{{power}}}$" if math.isclose(value, 10.0**power) else f"{value:.0e}"


def _top(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 0.0


def _scale(values: NDArray[np.float64]) -> tuple[Normalize, str]:
    """Logarithmic when the values span more than a factor of 8; the words say so."""
    finite = values[np.isfinite(values)]
    positive = finite[finite > WHOLE_RANGE * _top(finite)] if finite.size else finite
    if not positive.size:
        return Normalize(0.0, 1.0), ""
    low, high = float(positive.min()), float(positive.max())
    if high / low > 8:
        return LogNorm(low, high, clip=True), " (logarithmic)"
    return Normalize(0.0, high), ""


def _colour_map() -> Any:
    import matplotlib

    return matplotlib.colormaps[MAP].with_extremes(bad="#d9d9d9")


def _colour_bar(figure: Figure, axes: Axes, mappable: Any, words: str) -> None:
    box = axes.get_position()
    beside = figure.add_axes((box.x1 + 0.025, box.y0 + 0.12 * box.height, 0.018, 0.76 * box.height))
    bar = figure.colorbar(mappable, cax=beside)
    bar.set_label(words, fontsize=9, color=QUIET)
    if isinstance(mappable.norm, LogNorm):
        _plain_decades(bar.ax.yaxis, mappable.get_clim())
    bar.ax.tick_params(labelsize=8, colors=QUIET)
    bar.outline.set_visible(False)
