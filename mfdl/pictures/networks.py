"""A graph in axes: its edges, the names of its nodes, and correlations between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from .style import EDGE, GROUND, INK, MAX_LABELLED, NEGATIVE, POSITIVE, WHOLE_RANGE, css, plain, short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

LAYOUT_SEED = 1
FONT, WIDE, HIGH = 8.0, 0.58, 1.2  # points of a name; width and height of a character in these
FEW, EDGE_POINTS = 4, 60  # neighbours that make a crowd; points by which an edge is felt
PLACES = [np.array(step) for step in ((0, -1), (0, 1), (1, 0), (-1, 0), (1, -1), (-1, -1), (1, 1), (-1, 1))]
STRONGEST = 2  # pairs for each node that are drawn on a graph too large for names
SIDE = 285.0  # points: of a page's graph

Box = tuple[float, ...]  # left, low, right, high


def draw_edges(axes: Axes, graph: nx.Graph) -> tuple[dict[Any, Any], float]:
    """Grey lines between the nodes; returns the spots of the nodes and the size of their markers."""
    few, layout = len(graph) <= MAX_LABELLED, nx.spring_layout(graph, seed=LAYOUT_SEED)
    lines = [[tuple(layout[i]), tuple(layout[j])] for i, j in graph.edges]
    axes.add_collection(LineCollection(lines, colors=EDGE, linewidths=1.1 if few else 0.4, zorder=1))
    axes.set_axis_off()
    axes.margins(0.1)
    return layout, 260.0 if few else max(28.0, 9000 / len(graph))


def name_nodes(axes: Axes, graph: nx.Graph, layout: Mapping[Any, Any], names: Mapping[Any, str], size: float) -> None:
    """Names beside their nodes, readable over edges: of eight places each takes the one that covers least.

    Covered are the outside of the figure, nodes, names placed before it and edges, in this order of weight; nodes in a
    crowd come first.

    Args: layout: spots of all nodes; names: of those to name; size: of the markers, in points^2.
    """
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
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": FONT, "color": INK, "zorder": 5}
    style |= {"linespacing": 1.05, "path_effects": [withStroke(linewidth=2.2, foreground="white")]}
    for label in sorted(names, key=lambda label: crowd[label]):
        lines = names[label].split("\n")
        half = np.array([WIDE * max(map(len, lines)), HIGH * len(lines)]) * FONT / 2
        # beside the marker, the box of the text touching it
        places = [where[label] + step * (half + radius * (0.75 if step.all() else 1.05)) for step in PLACES]
        boxes = [(*(place - half), *(place + half)) for place in places]
        costs = [_covered(box, taken, edges) + _outside(box, room) + 0.5 * k for k, box in enumerate(boxes)]
        best = int(np.argmin(costs))
        taken.append(boxes[best])
        across, up = (float(v) for v in places[best] - where[label])
        axes.annotate(names[label], tuple(layout[label]), xytext=(across, up), textcoords="offset points", **style)


def _covered(box: Box, taken: Sequence[Box], edges: NDArray[np.float64]) -> float:
    """How bad a place is: square points over nodes and names, and a little for each point of an edge below it."""
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
    """The correlated pairs that a graph shows, the strongest first, and how many there are."""
    n = len(correlation)
    pairs = [(i, j) for i in range(n) for j in range(i) if abs(correlation[i, j]) > WHOLE_RANGE]
    pairs.sort(key=lambda pair: -abs(correlation[pair]))
    return pairs if n <= MAX_LABELLED else pairs[: STRONGEST * n], len(pairs)


def correlated_graph(
    graph: nx.Graph, labels: Sequence[Any], correlation: NDArray[np.float64], std: NDArray[np.float64]
) -> Figure:
    """For a page: nodes as large as the noise they inject, lines as wide as it is correlated, dashed where negative.

    Args: labels: of the nodes, in the order of correlation, shape (nodes, nodes), and std, shape (nodes,).
    """
    figure = Figure(figsize=(SIDE / 72, SIDE / 72), dpi=72)
    axes = figure.add_axes((0, 0, 1, 1))
    layout, _ = draw_edges(axes, graph)
    few, spots = len(labels) <= MAX_LABELLED, np.array([layout[label] for label in labels])
    pairs = drawn_pairs(correlation)[0][::-1]  # the strongest last, over the others
    values = [float(correlation[pair]) for pair in pairs]
    widths = [0.3 + (3.4 if few else 1.6) * abs(value) / abs(values[-1]) for value in values]
    lines = LineCollection(
        [[tuple(spots[i]), tuple(spots[j])] for i, j in pairs],
        colors=[NEGATIVE if value < 0 else POSITIVE for value in values],
        linewidths=widths,
        linestyles=[
            (0, (5 / width, 3.5 / width)) if value < 0 else "-" for value, width in zip(values, widths, strict=True)
        ],
        urls=[
            f"{labels[i]} and {labels[j]}: correlation {plain(value)}"
            for (i, j), value in zip(pairs, values, strict=True)
        ],
        gid=css("pair"),
        zorder=2,
    )
    axes.add_collection(lines)
    radii = 2.3 + 3.7 * std / (std.max() or 1.0) if few else np.full(len(labels), 2.3)
    tips = [f"{label}: std {plain(float(value))}" for label, value in zip(labels, std, strict=True)]
    dots: dict[str, Any] = {"color": INK, "edgecolors": GROUND, "linewidths": 1.1, "zorder": 3, "clip_on": False}
    axes.scatter(spots[:, 0], spots[:, 1], (2 * radii) ** 2, urls=tips, gid=css("node"), **dots)
    if few:
        name_nodes(
            axes, graph, layout, {label: short_name(str(label)) for label in labels}, float(radii.max() * 2) ** 2
        )
    return figure
