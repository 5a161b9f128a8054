"""A graph in axes: its edges, and the names of its nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.patheffects import withStroke

from .style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

MAX_LABELLED = 40  # nodes up to which every node carries its name
LAYOUT_SEED = 1
FONT, WIDE, HIGH = 8.0, 0.58, 1.2  # points of a name; width and height of a character in these
FEW, EDGE_POINTS = 4, 60  # neighbours that make a crowd; points by which an edge is felt
PLACES = [np.array(step) for step in ((0, -1), (0, 1), (1, 0), (-1, 0), (1, -1), (-1, -1), (1, 1), (-1, 1))]

Box = tuple[float, ...]  # left, low, right, high


def draw_edges(axes: Axes, graph: nx.Graph) -> tuple[dict[Any, Any], float]:
    """Grey lines between the nodes; returns the spots of the nodes and the size of their markers."""
    few, layout = len(graph) <= MAX_LABELLED, nx.spring_layout(graph, seed=LAYOUT_SEED)
    lines = [[tuple(layout[i]), tuple(layout[j])] for i, j in graph.edges]
    axes.add_collection(LineCollection(lines, colors="#b5b5b5", linewidths=1.1 if few else 0.4, zorder=1))
    axes.set_axis_off()
    axes.margins(0.1)
    return layout, 260.0 if few else max(28.0, 9000 / len(graph))


def name_nodes(axes: Axes, graph: nx.Graph, layout: Mapping[Any, Any], names: Mapping[Any, str], size: float) -> None:
    """Names beside their nodes, readable over edges: of eight places each takes the one that covers least.

    Covered are nodes, names placed before it and edges, in this order of weight; nodes in the thick of it come first.

    Args: layout: spots of all nodes; names: of those to name; size: of the markers, in points^2.
    """
    labels = list(layout)
    axes.autoscale_view()
    # in points: sizes of text are known there
    scale = 72.0 / axes.figure.get_dpi()
    spots = axes.transData.transform(np.array([layout[label] for label in labels])) * scale
    where = dict(zip(labels, spots, strict=True))
    radius = math.sqrt(size) / 2 + 1
    edges = np.array([np.linspace(where[i], where[j], EDGE_POINTS) for i, j in graph.edges if i != j]).reshape(-1, 2)
    taken = [(*(spot - radius), *(spot + radius)) for spot in spots]
    crowd = {label: float(np.sort(np.hypot(*(spots - where[label]).T))[: FEW + 1].sum()) for label in names}
    around = [withStroke(linewidth=2.2, foreground="white")]
    for label in sorted(names, key=lambda label: crowd[label]):
        lines = names[label].split("\n")
        half = np.array([WIDE * max(map(len, lines)), HIGH * len(lines)]) * FONT / 2
        # beside the marker, the box of the text touching it
        places = [where[label] + step * (half + radius * (0.75 if step.all() else 1.05)) for step in PLACES]
        boxes = [(*(place - half), *(place + half)) for place in places]
        costs = [_covered(box, taken, edges) + 0.5 * k for k, box in enumerate(boxes)]
        best = int(np.argmin(costs))
        taken.append(boxes[best])
        across, up = (float(v) for v in places[best] - where[label])
        how: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": FONT, "color": INK, "zorder": 5}
        how |= {"linespacing": 1.05, "path_effects": around, "textcoords": "offset points"}
        axes.annotate(names[label], tuple(layout[label]), xytext=(across, up), **how)


def _covered(box: Box, taken: Sequence[Box], edges: NDArray[np.float64]) -> float:
    """How bad a place is: square points over nodes and names, and a little for each point of an edge below it."""
    left, low, right, high = box
    area = sum(max(0.0, min(right, r) - max(left, x)) * max(0.0, min(high, t) - max(low, y)) for x, y, r, t in taken)
    inside = (edges > (left, low)).all(axis=1) & (edges < (right, high)).all(axis=1)
    return area + 1.5 * float(inside.sum())
