"""A matrix as colours with numbers in its cells if there is room, and a graph with the names of its nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from functools import partial
from typing import Any

import matplotlib
import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import FuncNorm, LogNorm, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike, NDArray

from mfdl_solvers.ties import first_smallest, ranked

from ..display import less_rounding
from . import style

MAX_LABELLED = 40  # nodes up to which every node carries its name
WHOLE_RANGE = 1e-12  # what is below this fraction of the largest value is zero in all but rounding
MAP = "viridis"
IN_CELLS = ("#fefefe", "#010101")  # text on dark and on bright cells, which are the same in every theme of a page
MAX_NUMBERED = 20  # rows and columns up to which every cell carries its number
MAP_SIDE, TICK, LABEL, BAR = 225.0, 7.5, 9.0, 9.0  # points: of a page's map, its fonts, the height of its colour bar
MOST_PIXELS = 400  # rows and columns of a page's map: of more, every second or third is drawn


def draw_matrix(
    axes: Axes,
    matrix: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    numbers: bool | None = None,
    norm: Normalize | None = None,
    text: Callable[[float], str] | None = None,
) -> tuple[ScalarMappable, str]:
    """Draws values and returns the input of a colour bar, and words on its scale; grey: infinite or not known.

    Args: rows, columns: their names; drawn up to MAX_LABELLED. numbers: in the cells, default up to MAX_NUMBERED rows
        and columns; text: their format. norm: from values to colours; default `scale`, which is for values >= 0.
    """
    values = np.asarray(matrix, dtype=np.float64)
    fitting, words = scale(values)
    norm = norm or fitting
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colour_map(), norm=norm, interpolation="none", aspect="auto")
    for names, along in ((columns, axes.xaxis), (rows, axes.yaxis)):
        if len(names) <= MAX_LABELLED:
            along.set_ticks(range(len(names)), labels=names)
            along.set_tick_params(length=0, rotation=90 if along is axes.xaxis else 0)
    axes.tick_params(labelsize=8 if max(values.shape) <= MAX_NUMBERED or max(values.shape) > MAX_LABELLED else 6.5)
    axes.tick_params(colors=style.QUIET)
    axes.spines[:].set_visible(False)
    if max(values.shape) <= MAX_NUMBERED if numbers is None else numbers:
        _write_numbers(axes, values, norm, text or cell_text)
    return image, words


def heat_map(
    matrix: ArrayLike, rows: Sequence[str], columns: Sequence[str], words: str, *, title: str, ax: Axes | None = None
) -> Axes:
    """Heat map of victims down and attackers across, with a colour bar named by `words`; ax: default a new one."""
    if ax is None:
        size = (max(5.0, 2.6 + 0.5 * min(len(columns), 24)), 1.8 + 0.40 * min(len(rows), 24))
        ax = Figure(figsize=size, layout="constrained", facecolor="white").add_subplot()
    image, scaling = draw_matrix(ax, matrix, rows, columns)
    ax.set_xlabel("attacker", fontsize=9.5, color=style.QUIET)
    ax.set_ylabel("victim", fontsize=9.5, color=style.QUIET)
    ax.set_title(title, fontsize=11, color=style.INK, loc="left")
    name_bar(ax.figure.colorbar(image, ax=ax), f"{words}{scaling}")
    return ax


def square_map(
    matrix: NDArray[np.float64],
    names: Sequence[str],
    labels: tuple[str, str],
    *,
    norm: Normalize | None = None,
    text: Callable[[float], str] | None = None,
) -> Figure:
    """For a page: a matrix with its colour bar below; infinite and unknown cells are empty.

    Args: names: of rows and columns, drawn up to MAX_LABELLED; empty: steps from 1, without numbers in their cells.
        labels: of the axes, across and down; norm, text: as in `draw_matrix`.
    """
    n, named = len(matrix), 0 < len(names) <= MAX_LABELLED
    longest = max((len(style.short_name(name)) for name in names), default=0) if named else 2
    left, gap = 22 + style.CHARACTER * TICK * longest, 5.0
    under = style.CHARACTER * TICK * longest + 2.2 * LABEL
    width, height = left + MAP_SIDE + 6, gap + MAP_SIDE + under + BAR + 2 * TICK
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    axes = figure.add_axes((left / width, 1 - (gap + MAP_SIDE) / height, MAP_SIDE / width, MAP_SIDE / height))
    step = -(-n // MOST_PIXELS)
    drawn = matrix[::step, ::step]
    norm = norm or scale(matrix)[0]
    image, _ = draw_matrix(axes, drawn, [], [], norm=norm, text=text, numbers=None if names else False)
    image.set_cmap(matplotlib.colormaps[MAP])  # no colour where there is no number
    places = range(n) if named else sorted({0, n // 4, n // 2, 3 * n // 4, n - 1})
    words = [style.short_name(names[i]) if named else str(i + 1) for i in places]
    upright: dict[str, Any] = {"rotation": 90, "ha": "right", "va": "center", "rotation_mode": "anchor"}
    axes.set_xticks([i / step for i in places], words, **(upright if named else {"rotation": 0}))
    axes.set_yticks([i / step for i in places], words)
    axes.tick_params(length=0, labelsize=TICK, colors=style.QUIET, pad=3)
    axes.spines[:].set(visible=True, color=style.GRID)
    label: dict[str, Any] = {"ha": "center", "fontsize": LABEL, "color": style.QUIET}
    figure.text((left + MAP_SIDE / 2) / width, (BAR + 2 * TICK + 4) / height, labels[0], **label)
    up: dict[str, Any] = {"rotation": 90, "rotation_mode": "anchor", **label}
    figure.text(LABEL / width, 1 - (gap + MAP_SIDE / 2) / height, labels[1], **up)
    bar = figure.add_axes((left / width, 1.5 * TICK / height, MAP_SIDE / width, BAR / height))
    colours = np.array([[float(norm.inverse(share)) for share in np.linspace(0, 1, 64)]])
    bar.imshow(colours, cmap=MAP, norm=norm, interpolation="none", aspect="auto")
    bar.set_axis_off()
    for share, side in ((0.0, "left"), (0.25, "center"), (0.5, "center"), (0.75, "center"), (1.0, "right")):
        word = style.plain(float(f"{float(norm.inverse(share)):.2g}"))
        bar.text(share, -0.3, word, transform=bar.transAxes, ha=side, va="top", fontsize=TICK, color=style.QUIET)
    return figure


def _write_numbers(axes: Axes, values: NDArray[np.float64], norm: Normalize, text: Callable[[float], str]) -> None:
    box, colours = axes.get_window_extent(), colour_map()
    cell = min(box.width / values.shape[1], box.height / values.shape[0]) * 72 / axes.figure.get_dpi()
    for (i, j), value in np.ndenumerate(values):
        if math.isnan(value):
            continue
        if math.isinf(value):
            word, colour = "∞", style.INK
        else:
            word, ground = text(value), to_hex(colours(float(norm(max(value, norm.vmin or 0.0)))))
            colour = max(IN_CELLS, key=partial(style.contrast, ground))  # exact: colours of 8 bits
        size = min(9.0, 0.46 * cell, 1.5 * cell / len(word))
        axes.text(j, i, word, color=colour, fontsize=size, ha="center", va="center")


def cell_text(value: float) -> str:
    """Two digits, more where a whole number has them; never below the value by more than rounding.

    >>> [cell_text(value) for value in (0.0, 0.0123, 0.5, 1.234, 12.34, 123.4, 12345.0, 1e-9)]
    ['0', '0.013', '0.50', '1.3', '13', '124', '2e4', '1e-9']
    """
    if value == 0:
        return "0"
    decimal = less_rounding(float(value))
    place = decimal.adjusted()
    if not -3 <= place < 4:
        return style.plain(float(Context(prec=1, rounding=ROUND_CEILING).create_decimal(decimal)))
    return str(decimal.quantize(Decimal(1).scaleb(min(place - 1, 0)), rounding=ROUND_CEILING))


def signed_text(value: float) -> str:
    """Two digits behind the point, and nothing before it where that is zero.

    >>> [signed_text(value) for value in (-0.123, 0.5, 0.001, 1.0)]
    ['-.12', '.50', '0', '1.00']
    """
    text = f"{value:.2f}"
    return "0" if float(text) == 0 else text.replace("0.", ".", 1)


def scale(values: NDArray[np.float64]) -> tuple[Normalize, str]:
    """Logarithmic if the values span more than `LOG_RATIO`, as the words say."""
    finite = values[np.isfinite(values)]
    positive = finite[finite > WHOLE_RANGE * finite.max()] if finite.size else finite
    if not positive.size:
        return Normalize(0.0, 1.0), ""
    low, high = float(positive.min()), float(positive.max())
    if high / low > style.LOG_RATIO:
        return LogNorm(low, high, clip=True), " (logarithmic)"
    return Normalize(0.0, high), ""


def signed_scale(values: NDArray[np.float64]) -> Normalize:
    """From minus the largest size to it, by the square root of the size, which makes small values visible."""
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    return FuncNorm((lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda y: np.sign(y) * np.square(y)), -largest, largest)


def colour_map() -> Any:
    """The colours of all losses; grey where there is no number."""
    return matplotlib.colormaps[MAP].with_extremes(bad="#d9d9d9")


def name_bar(bar: Any, words: str) -> None:
    bar.set_label(words, fontsize=9, color=style.QUIET)
    if isinstance(bar.mappable.norm, LogNorm):
        style.plain_decades(bar.ax.yaxis, bar.mappable.get_clim())
    bar.ax.tick_params(labelsize=8, colors=style.QUIET)
    bar.outline.set_visible(False)


LAYOUT_SEED = 1
FONT, WIDE, HIGH = 8.0, 0.58, 1.2  # points of a name; width and height of a character in these
FEW, EDGE_POINTS = 4, 60  # neighbours that make a crowd; points by which an edge is felt
PLACES = [np.array(step) for step in ((0, -1), (0, 1), (1, 0), (-1, 0), (1, -1), (-1, -1), (1, 1), (-1, 1))]
STRONGEST = 2  # pairs for each node that are drawn on a graph too large for names
GRAPH_SIDE = 285.0  # points: of a page's graph

Box = tuple[float, ...]  # left, low, right, high


def draw_edges(axes: Axes, graph: nx.Graph) -> tuple[dict[Any, Any], float]:
    """Grey lines between the nodes; returns the spots of the nodes and the size of their markers."""
    few, layout = len(graph) <= MAX_LABELLED, nx.spring_layout(graph, seed=LAYOUT_SEED)
    lines = [[tuple(layout[i]), tuple(layout[j])] for i, j in graph.edges]
    axes.add_collection(LineCollection(lines, colors=style.EDGE, linewidths=1.1 if few else 0.4, zorder=1))
    axes.set_axis_off()
    axes.margins(0.1)
    return layout, 260.0 if few else max(28.0, 9000 / len(graph))


def name_nodes(axes: Axes, graph: nx.Graph, layout: Mapping[Any, Any], names: Mapping[Any, str], size: float) -> None:
    """Names beside their nodes: of eight places the one that covers least, crowds first; size: of markers, points^2."""
    labels = list(layout)
    axes.autoscale_view()
    # in points: sizes of text are known there
    scale = 72.0 / axes.figure.get_dpi()
    spots = axes.transData.transform(np.array([layout[label] for label in labels])) * scale
    where = dict(zip(labels, spots, strict=True))
    radius, room = math.sqrt(size) / 2 + 1, np.array(axes.figure.bbox.size) * scale
    edges = np.array([np.linspace(where[i], where[j], EDGE_POINTS) for i, j in graph.edges if i != j]).reshape(-1, 2)
    taken = [(*(spot - radius), *(spot + radius)) for spot in spots]
    crowd = {label: float(np.sort(np.hypot(*(spots - where[label]).T))[: FEW + 1].sum()) for label in names}
    written: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": FONT, "color": style.INK, "zorder": 5}
    written |= {"linespacing": 1.05, "path_effects": [withStroke(linewidth=2.2, foreground="white")]}
    for label in ranked(list(names), lambda label: crowd[label]):
        lines = names[label].split("\n")
        half = np.array([WIDE * max(map(len, lines)), HIGH * len(lines)]) * FONT / 2
        # beside the marker, the box of the text touching it
        places = [where[label] + step * (half + radius * (0.75 if step.all() else 1.05)) for step in PLACES]
        boxes = [(*(place - half), *(place + half)) for place in places]
        costs = [_covered(box, taken, edges) + _outside(box, room) + 0.5 * k for k, box in enumerate(boxes)]
        best = first_smallest(costs)
        taken.append(boxes[best])
        across, up = (float(v) for v in places[best] - where[label])
        axes.annotate(names[label], tuple(layout[label]), xytext=(across, up), textcoords="offset points", **written)


def _covered(box: Box, taken: Sequence[Box], edges: NDArray[np.float64]) -> float:
    """Cost of a place: square points over nodes and names, and a little for each point of an edge below it."""
    left, low, right, high = box
    area = sum(max(0.0, min(right, r) - max(left, x)) * max(0.0, min(high, t) - max(low, y)) for x, y, r, t in taken)
    inside = (edges > (left, low)).all(axis=1) & (edges < (right, high)).all(axis=1)
    return area + 1.5 * float(inside.sum())


def _outside(box: Box, room: NDArray[np.float64]) -> float:
    """Ten times the square points outside of the figure, whose width and height are `room`."""
    left, low, right, high = box
    inside = max(0.0, min(right, room[0]) - max(left, 0.0)) * max(0.0, min(high, room[1]) - max(low, 0.0))
    return 10 * ((right - left) * (high - low) - inside)


def drawn_pairs(correlation: NDArray[np.float64]) -> tuple[list[tuple[int, int]], int]:
    """The correlated pairs that a graph shows, the strongest first, and the number of all."""
    n = len(correlation)
    pairs = [(i, j) for i in range(n) for j in range(i) if abs(correlation[i, j]) > WHOLE_RANGE]
    pairs = ranked(pairs, lambda pair: abs(float(correlation[pair])), descending=True)
    return pairs if n <= MAX_LABELLED else pairs[: STRONGEST * n], len(pairs)


def correlated_graph(
    graph: nx.Graph, labels: Sequence[Any], correlation: NDArray[np.float64], std: NDArray[np.float64]
) -> Figure:
    """For a page: nodes as large as their noise, lines as wide as its correlation, dashed where negative."""
    figure = Figure(figsize=(GRAPH_SIDE / 72, GRAPH_SIDE / 72), dpi=72)
    axes = figure.add_axes((0, 0, 1, 1))
    layout, _ = draw_edges(axes, graph)
    few, spots = len(labels) <= MAX_LABELLED, np.array([layout[label] for label in labels])
    pairs = drawn_pairs(correlation)[0][::-1]  # the strongest last, over the others
    values = [float(correlation[pair]) for pair in pairs]
    widths = [0.3 + (3.4 if few else 1.6) * abs(value) / abs(values[-1]) for value in values]
    drawn = list(zip(pairs, values, widths, strict=True))
    marks: dict[str, Any] = {"linewidths": widths}
    marks["colors"] = [style.NEGATIVE if value < 0 else style.POSITIVE for value in values]
    marks["linestyles"] = [(0, (5 / width, 3.5 / width)) if value < 0 else "-" for _, value, width in drawn]
    marks["urls"] = [f"{labels[i]} and {labels[j]}: correlation {style.plain(value)}" for (i, j), value, _ in drawn]
    ends = [[tuple(spots[i]), tuple(spots[j])] for i, j in pairs]
    axes.add_collection(LineCollection(ends, gid=style.css("pair"), zorder=2, **marks))
    radii = 2.3 + 3.7 * std / (std.max() or 1.0) if few else np.full(len(labels), 2.3)
    tips = [f"{label}: std {style.plain(float(value))}" for label, value in zip(labels, std, strict=True)]
    dots: dict[str, Any] = {"color": style.INK, "edgecolors": style.GROUND, "linewidths": 1.1, "clip_on": False}
    axes.scatter(spots[:, 0], spots[:, 1], (2 * radii) ** 2, urls=tips, gid=style.css("node"), zorder=3, **dots)
    if few:
        names = {label: style.short_name(str(label)) for label in labels}
        name_nodes(axes, graph, layout, names, float(radii.max() * 2) ** 2)
    return figure
