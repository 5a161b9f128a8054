"""The picture of `mfdl attack`: the graph once per panel, each node in the colour of what the attacker solves for."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import networkx as nx
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from .. import graphs

LAYOUT_SEED = 1
GUESSED = math.sqrt(0.5)  # posterior ratio of an estimate with an error of one clipping norm
MAX_LABELLED = 40
INK, QUIET, EDGE = "#222222", "#6b6b6b", "#b5b5b5"
COLOURS = {"attacker": "#000000", "exposed": "#d5002f", "partly": "#e69f00", "hidden": "#009e73"}
MEANINGS = {
    "attacker": "attacker",
    "exposed": "exposed: every gradient solved for",
    "partly": "in part: some gradients, a combination, or a guess within a clipping norm",
    "hidden": "safe: no guess from messages within a clipping norm",
}


def colour_class(node: dict[str, Any]) -> str:
    """One of four colours for a node; undecided counts as in part."""
    if node["status"] == "hidden":
        return "partly" if float(node["posterior_ratio"]) < GUESSED else "hidden"
    return str(node["status"]) if node["status"] in COLOURS else "partly"


def draw(graph: nx.Graph, panels: Sequence[dict[str, Any]], *, caption: str) -> Figure:
    """One panel per answer side by side.

    Args: panels: dicts with `title` and `nodes`; a node has `status`, `error_std` (a number, or "inf") and
        `posterior_ratio`.
    """
    labels = graphs.labels(graph)
    layout = nx.spring_layout(graph, seed=LAYOUT_SEED)
    small = len(labels) <= MAX_LABELLED
    size = 260.0 if small else max(24.0, 9000 / len(labels))
    width = 7.4 * len(panels)
    lines = textwrap.wrap(caption, int(16 * width), break_on_hyphens=False)
    foot = 0.55 + 0.17 * len(lines)
    figure = Figure(figsize=(width, 5.6 + foot), facecolor="white")
    for k, panel in enumerate(panels):
        axes = figure.add_axes(
            (k / len(panels) + 0.01, foot / (5.6 + foot), 1 / len(panels) - 0.02, 5.1 / (5.6 + foot))
        )
        axes.set_title(panel["title"], fontsize=12, fontweight="bold", color=INK)
        for a, b in graph.edges:
            (x, y), (v, w) = layout[a], layout[b]
            axes.plot([x, v], [y, w], color=EDGE, linewidth=1.1 if small else 0.4, zorder=1)
        for label, node in zip(labels, panel["nodes"], strict=True):
            x, y = layout[label]
            axes.scatter([x], [y], s=size, color=COLOURS[colour_class(node)], edgecolors="white", zorder=3)
            if small:
                axes.annotate(
                    f"{label}{_error(node)}", (x, y), xytext=(0, -11), textcoords="offset points", ha="center",
                    va="top", fontsize=7.5, color=INK, zorder=5,
                    path_effects=[withStroke(linewidth=2.2, foreground="white")],
                )  # fmt: skip
        axes.set_axis_off()
        axes.margins(0.1)
    marks = [Line2D([], [], marker="o", linestyle="", markersize=9, color=COLOURS[key]) for key in COLOURS]
    figure.legend(
        marks, list(MEANINGS.values()), loc="lower center", ncols=len(marks) if len(panels) > 1 else 2, fontsize=8,
        frameon=False, bbox_to_anchor=(0.5, (foot - 0.5) / (5.6 + foot)),
    )  # fmt: skip
    figure.text(0.02, (foot - 0.5) / (5.6 + foot), "\n".join(lines), fontsize=7.6, color=QUIET, va="top")
    return figure


def _error(node: dict[str, Any]) -> str:
    """The error under a name: nothing where it is zero or the node attacks."""
    if node["status"] == "attacker":
        return ""
    error = float(node["error_std"])
    if error == 0:
        return ""
    return "\nno estimate" if math.isinf(error) else f"\n± {error:.3g}"
