"""The picture of `mfdl attack`: the graph once per panel, each node in the colour of what the attacker solves for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .. import graphs
from ..pictures.drawings import MAX_LABELLED, draw_edges, name_nodes
from ..pictures.style import INK, LINE_INCHES, caption_lines, write_caption

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes


GUESSED = math.sqrt(0.5)  # posterior ratio of an estimate with an error of one clipping norm
WIDTH, HEAD = 7.4, 5.6  # inches of a panel
COLOURS = {"attacker": "#000000", "exposed": "#d5002f", "partly": "#e69f00", "hidden": "#009e73"}
MEANINGS = {
    "attacker": "attacker",
    "exposed": "exposed: every gradient is reconstructed",
    "partly": "in part: some gradients or a combination, or an estimate within a clipping norm",
    "hidden": "safe: no estimate from messages within a clipping norm",
}


def colour_class(node: dict[str, Any]) -> str:
    """One of four colours for a node; undecided counts as in part."""
    if node["status"] == "hidden":
        return "partly" if float(node["posterior_ratio"]) < GUESSED else "hidden"
    return str(node["status"]) if node["status"] in COLOURS else "partly"


def draw(graph: nx.Graph, panels: Sequence[dict[str, Any]], *, caption: str) -> Figure:
    """One panel per answer side by side, each as `draw_panel` draws it.

    Args: panels: dicts with `title` and `nodes`; a node has `status`, `error_std` (a number, or "inf") and
        `posterior_ratio`.
    """
    width = WIDTH * len(panels)
    lines = caption_lines(caption, int(16 * width))
    foot = 0.55 + LINE_INCHES * len(lines)
    height = HEAD + foot
    figure = Figure(figsize=(width, height), facecolor="white")
    for k, panel in enumerate(panels):
        axes = figure.add_axes((k / len(panels) + 0.01, foot / height, 1 / len(panels) - 0.02, 5.1 / height))
        draw_panel(axes, graph, panel)
    marks = [Line2D([], [], marker="o", linestyle="", markersize=9, color=COLOURS[key]) for key in MEANINGS]
    below, columns = (foot - 0.5) / height, len(marks) if len(panels) > 1 else 2
    place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, below), "frameon": False, "fontsize": 8}
    figure.legend(marks, list(MEANINGS.values()), ncols=columns, **place)
    write_caption(figure, lines, left=0.02, top=below)
    return figure


def draw_panel(ax: Axes, graph: nx.Graph, panel: dict[str, Any]) -> Axes:
    """The graph in axes of the caller's, which it returns: each node in the colour of its status."""
    ax.set_title(panel["title"], fontsize=12, fontweight="bold", color=INK)
    spots, size = draw_edges(ax, graph)
    for label, node in zip(graphs.labels(graph), panel["nodes"], strict=True):
        x, y = spots[label]
        ax.scatter([x], [y], s=size, color=COLOURS[colour_class(node)], edgecolors="white", zorder=3)
    if len(graph) <= MAX_LABELLED:
        names = {
            label: f"{label}{_error(node)}" for label, node in zip(graphs.labels(graph), panel["nodes"], strict=True)
        }
        name_nodes(ax, graph, spots, names, size)
    return ax


def _error(node: dict[str, Any]) -> str:
    """The error under a name: nothing where it is zero or the node attacks."""
    error = 0.0 if node["status"] == "attacker" else float(node["error_std"])
    return "" if error == 0 else "\nno estimate" if math.isinf(error) else f"\n± {_short(error)}"


def _short(error: float) -> str:
    """Two digits without the filling of an exponent, never more than the error."""
    digits = f"{Decimal(error).normalize(Context(prec=2, rounding=ROUND_FLOOR)):.2g}"
    return digits.replace("e+", "e")
