"""A graph in axes: its edges, and the names of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import networkx as nx
from matplotlib.collections import LineCollection
from matplotlib.patheffects import withStroke

from .style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LABELLED = 40  # nodes up to which every node carries its name
LAYOUT_SEED = 1


def draw_edges(axes: Axes, graph: nx.Graph) -> tuple[dict[Any, Any], float]:
    """Grey lines between the nodes; returns the spots of the nodes and the size of their markers."""
    few, layout = len(graph) <= MAX_LABELLED, nx.spring_layout(graph, seed=LAYOUT_SEED)
    lines = [[tuple(layout[i]), tuple(layout[j])] for i, j in graph.edges]
    axes.add_collection(LineCollection(lines, colors="#b5b5b5", linewidths=1.1 if few else 0.4, zorder=1))
    axes.set_axis_off()
    axes.margins(0.1)
    return layout, 260.0 if few else max(28.0, 9000 / len(graph))


def name_node(axes: Axes, spot: Sequence[float], name: str) -> None:
    """A name below a node, readable over edges."""
    around = [withStroke(linewidth=2.2, foreground="white")]
    how: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8, "color": INK, "zorder": 5}
    axes.annotate(name, (spot[0], spot[1]), xytext=(0, -11), textcoords="offset points", path_effects=around, **how)
