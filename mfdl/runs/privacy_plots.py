"""Pictures of privacy accounting: loss by distance, by pairs of nodes, and on the graph.

Figures of their own, or the given axes. Infinite values have no place on a logarithmic axis: they are counted in words.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from .. import graphs
from ..pictures import drawings, style

TITLE_PER_INCH = 7.4  # characters of a title that fit at its full size
SQUARED_MU = "μ²  (Rényi loss of order 2)"
NON_ADAPTIVE, ADAPTIVE, SQUARED, CODED, LOCAL = "non-adaptive", "adaptive", "squared", "coded", "local"
COLOURS = {NON_ADAPTIVE: "#009e73", ADAPTIVE: "#0072b2", SQUARED: "#e69f00", CODED: "#d55e00", LOCAL: "#4d4d4d"}
MARKERS = {NON_ADAPTIVE: "o", ADAPTIVE: "s", SQUARED: "^", CODED: "D"}


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """One line of a loss-by-distance picture.

    Attributes: kind: decides colour and marker; name, words: printed beside the line and below the name; distances:
        hops from the attacker, and losses, perhaps inf, of each victim.
    """

    kind: str
    name: str
    words: str
    distances: NDArray[np.intp]
    losses: NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class AtDistance:
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
    groups = {int(distance): values[hops == distance] for distance in np.unique(hops)}
    return [AtDistance(d, at.size, float(at.min()), float(at.mean()), float(at.max())) for d, at in groups.items()]


def plot_by_distance(
    curves: Sequence[Curve],
    *,
    title: str,
    caption: str = "",
    local: float | None = None,
    measure: str = SQUARED_MU,
    ax: Axes | None = None,
) -> Any:
    """Loss over distance from the attacker, logarithmic: mean as a line, minimum and maximum as a bar.

    Args: local: the loss under LDP, a horizontal line; None or inf: none. measure: name of the losses. ax: axes to
        draw in and to return, here and in all pictures of this file; default a Figure with the caption.
    """
    figure, axes = _page(title, caption, ax, width=9.6, body=4.7, plot=(0.085, 0.60))
    draw_by_distance(axes, curves, local=local, measure=measure)
    return figure or axes


def plot_by_victim(
    losses: Sequence[Curve],
    *,
    title: str,
    caption: str = "",
    local: float | None = None,
    measure: str = SQUARED_MU,
    ax: Axes | None = None,
) -> Any:
    """Losses of all victims, largest first, for attackers without a place in the graph (`distances` are ignored)."""
    ranked = [
        dataclasses.replace(curve, distances=np.arange(1, curve.losses.size + 1), losses=-np.sort(-curve.losses))
        for curve in losses
    ]
    drawn = plot_by_distance(ranked, title=title, caption=caption, local=local, measure=measure, ax=ax)
    axes = drawn.axes[0] if ax is None else ax
    axes.set_xlabel("victims, largest privacy loss first", fontsize=9, color=style.QUIET)
    return drawn


def draw_by_distance(
    axes: Axes, curves: Sequence[Curve], *, local: float | None = None, named: bool = True, measure: str = SQUARED_MU
) -> Axes:
    """The picture of `plot_by_distance` in given axes; named: names beside the lines."""
    level = local if local is not None and math.isfinite(local) and local > 0 else None
    top = max([0.0, level or 0.0, *(float(loss) for curve in curves for loss in curve.losses if loss < math.inf)])
    axes.set_yscale("log")
    ends: list[style.End] = []
    lowest, furthest, floor = top, 1, drawings.WHOLE_RANGE * top
    for place, curve in enumerate(curves):
        groups = [g for g in by_distance(curve.distances, curve.losses) if floor < g.mean < math.inf]
        if not groups:
            continue
        lowest = min(lowest, *(max(g.lowest, floor) for g in groups))
        furthest = max(furthest, groups[-1].distance)
        apart = 0.07 * (place - (len(curves) - 1) / 2) if groups[-1].distance <= 12 else 0.0
        ends.append(_one_curve(axes, curve, groups, apart, floor))
    if level is not None:
        axes.axhline(level, color=COLOURS[LOCAL], linewidth=1.3, linestyle=(0, (5, 2.5)), zorder=1)
        lowest = min(lowest, level)
        ends.append(style.End(level, "LDP", "all messages public", COLOURS[LOCAL]))
    if ends:
        axes.set_ylim(lowest / 1.8, top * 2.2)
    else:
        axes.set_ylim(0.1, 10)
        middle: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "color": style.INK}
        axes.text(0.5, 0.5, "every loss is infinite", fontsize=12, **middle)
    axes.set_xlim(0.6, furthest + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9, min_n_ticks=1))
    axes.set_xlabel("distance from the attacker (hops)", fontsize=9, color=style.QUIET)
    axes.set_ylabel(measure, fontsize=9, color=style.QUIET)
    style.quiet(axes, grid="y")
    style.plain_decades(axes.yaxis, axes.get_ylim())
    unseen = sum(int((~np.isfinite(curve.losses)).sum()) for curve in curves if curve.kind == NON_ADAPTIVE)
    if unseen and ends:
        words = f"{unseen} infinite losses are not drawn"
        axes.text(0.015, 0.02, words, transform=axes.transAxes, fontsize=8, color=style.INK)
    if named:
        style.name_ends(axes, ends, apart=0.15)
    return axes


def _one_curve(axes: Axes, curve: Curve, groups: Sequence[AtDistance], apart: float, floor: float) -> style.End:
    """Means as a line, moved sideways by `apart`, and the range at each distance as a bar from `floor` on."""
    colour, x = COLOURS[curve.kind], np.array([g.distance for g in groups]) + apart
    low, high = [max(g.lowest, floor) for g in groups], [g.highest for g in groups]
    axes.vlines(x, low, high, color=colour, linewidth=4.5, alpha=0.32, zorder=2)
    marker: dict[str, Any] = {"markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.8}
    marker["marker"] = None if len(groups) > 25 else MARKERS[curve.kind]
    mean, front = [g.mean for g in groups], 4 if curve.kind == NON_ADAPTIVE else 3
    axes.plot(x, mean, color=colour, linewidth=1.9, zorder=front, **marker)
    return style.End(mean[-1], curve.name, curve.words, colour, float(x[-1]))


def plot_pairwise(
    matrix: ArrayLike, labels: Sequence[Any], *, title: str, caption: str = "", ax: Axes | None = None
) -> Any:
    """Heat map of matrix[u, v], of victim u against attacker v; grey where infinite or nan."""
    values = np.asarray(matrix, dtype=np.float64)
    few = len(labels) <= drawings.MAX_LABELLED
    longest = max((len(str(label)) for label in labels), default=1) if few else 3
    figure, axes = _page(title, caption, ax, width=8.6, body=6.2, plot=(0.135, 0.72), below=0.3 + 0.075 * longest)
    names = [str(label) for label in labels]
    image, over = drawings.draw_matrix(axes, values, names, names)
    axes.set_aspect("equal")
    axes.set_xlabel(f"attacker v{'' if few else ' (position in label order)'}", fontsize=9.5, color=style.QUIET)
    axes.set_ylabel("victim u", fontsize=9.5, color=style.QUIET)
    _colour_bar(figure, axes, image, f"μ of u against v{over}")
    return figure or axes


def plot_graph(
    graph: nx.Graph,
    losses: ArrayLike,
    attackers: Sequence[int],
    *,
    title: str,
    caption: str = "",
    measure: str = "μ",
    ax: Axes | None = None,
) -> Any:
    """The graph, each node in the colour of its loss; attackers are red stars.

    Args: losses: one per node; inf: dark with a cross (known fully); nan: grey; measure: name of the losses.
    """
    values = np.asarray(losses, dtype=np.float64).copy()
    outside = np.ones(values.size, dtype=bool)
    outside[list(attackers)] = False
    figure, axes = _page(title, caption, ax, width=8.6, body=6.2, plot=(0.03, 0.82), below=0.1)
    layout, size = drawings.draw_edges(axes, graph)
    labels = graphs.labels(graph)
    spots = np.array([layout[label] for label in labels])
    norm, over = drawings.scale(values[outside])
    finite = outside & np.isfinite(values)
    white: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.8}
    colours: dict[str, Any] = {"c": values[finite], "cmap": drawings.colour_map(), "norm": norm}
    dots = axes.scatter(spots[finite, 0], spots[finite, 1], s=size, zorder=3, **colours, **white)
    full, unknown = np.isposinf(values) & outside, np.isnan(values) & outside
    for where, colour, marker in ((full, style.INK, "X"), (unknown, style.GRID, "o")):
        axes.scatter(spots[where, 0], spots[where, 1], color=colour, marker=marker, s=size, zorder=3)
    stars = list(attackers)
    axes.scatter(spots[stars, 0], spots[stars, 1], marker="*", s=2.1 * size + 60, color="#d5002f", zorder=4, **white)
    named = {i for i in range(values.size) if i in stars or values.size <= drawings.MAX_LABELLED}
    names = {labels[i]: f"{labels[i]} (attacker)" if i in stars else str(labels[i]) for i in sorted(named)}
    drawings.name_nodes(axes, graph, layout, names, size)
    if finite.any():
        _colour_bar(figure, axes, dots, f"{measure} of the node{over}")
    return figure or axes


def _page(
    title: str, caption: str, ax: Axes | None, *, width: float, body: float, plot: tuple[float, ...], below: float = 0.5
) -> tuple[Figure | None, Axes]:
    """A figure with title above and caption below one picture; given axes get the title, and no figure is made.

    Args: plot: left edge and width as fractions; below: inches for the names of the axis.
    """
    if ax is not None:
        ax.set_title(title, fontsize=11, color=style.INK, loc="left")
        return None, ax
    lines = style.caption_lines(caption, int(17.0 * width))
    foot, head = below + 0.2 + style.LINE_INCHES * len(lines), 0.62
    height = head + body + foot
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((plot[0], foot / height, plot[1], body / height))
    left = min(plot[0], 0.06)
    size = 13.5 * min(1.0, TITLE_PER_INCH * width / max(len(title), 1))
    figure.text(left, 1 - 0.32 / height, title, fontsize=size, fontweight="bold", color=style.INK, va="center")
    style.write_caption(figure, lines, left=left, top=(foot - below - 0.06) / height)
    return figure, axes


def _colour_bar(figure: Figure | None, axes: Axes, mappable: Any, words: str) -> None:
    if figure is None:
        drawings.name_bar(axes.figure.colorbar(mappable, ax=axes), words)
        return
    box = axes.get_position()
    beside = figure.add_axes((box.x1 + 0.025, box.y0 + 0.12 * box.height, 0.018, 0.76 * box.height))
    drawings.name_bar(figure.colorbar(mappable, cax=beside), words)
