"""Loss against cost on logarithmic axes: every point of a series, and as a line those that none beats.

In: numbers by name. Out: a matplotlib Figure of its own, one panel for each cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..check import FloatArray
from .line_charts import Line, LineChart
from .looks import Look, series_looks
from .style import INK, caption_lines, write_caption

PANEL_INCHES, HEIGHT_INCHES = 4.6, 3.6
FAINT: dict[str, Any] = {"s": 12, "alpha": 0.35, "linewidths": 0, "zorder": 2}


@dataclasses.dataclass(frozen=True, eq=False)
class Front:
    """One panel.

    Attributes: points: by name, shape (points, 2): cost and loss.
    """

    x_label: str
    y_label: str
    points: Mapping[str, FloatArray]


def draw_fronts(panels: Sequence[Front], title: str, caption: str) -> Figure:
    """One panel beside the other, names above, the caption below."""
    width = PANEL_INCHES * len(panels)
    lines = caption_lines(caption, int(width * 17))
    looks = _looks(panels)
    below = 0.75 + 0.16 * len(lines)
    height = HEIGHT_INCHES + below
    figure = Figure(figsize=(width, height), facecolor="white")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    figure.subplots_adjust(0.75 / width, below / height, 1 - 0.15 / width, 1 - 0.95 / height, wspace=0.28)
    for axes, panel in zip(grid, panels, strict=True):
        fronts = [_line(looks[name], front(points)) for name, points in panel.points.items()]
        every = np.concatenate(list(panel.points.values()))
        span = (float(every[:, 1].min()), float(every[:, 1].max()))
        chart = LineChart(panel.x_label, panel.y_label, fronts, x_log=True, y_log=True, y_range=span)
        chart.draw(axes, width=1.5)
        for name, points in panel.points.items():
            axes.scatter(*points.T, color=looks[name].colour, marker=looks[name].marker, **FAINT)
        low, high = every[:, 0].min(), every[:, 0].max()
        axes.set_xlim(low / 1.15, high * 1.15)
    bold: dict[str, Any] = {"fontsize": 12.5, "fontweight": "bold", "color": INK, "va": "top"}
    figure.text(0.3 / width, 1 - 0.16 / height, title, **bold)
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.2 / width, 1 - 0.42 / height)}
    handles = [look.handle(linewidth=1.5, markersize=5) for look in looks.values()]
    figure.legend(handles, [*looks], ncols=max(1, int(width / 1.8)), frameon=False, fontsize=9, **place)
    write_caption(figure, lines, left=0.3 / width, top=(0.15 + 0.16 * len(lines)) / height)
    return figure


def front(points: FloatArray) -> FloatArray:
    """The points of which no other one has at most as much of both, by the first number.

    >>> front(np.array([[1.0, 5.0], [2.0, 6.0], [3.0, 4.0], [3.0, 4.5]]))
    array([[1., 5.],
           [3., 4.]])
    """
    ordered = points[np.lexsort((points[:, 1], points[:, 0]))]  # bound
    best = np.minimum.accumulate(ordered[:, 1])
    return ordered[np.append(True, ordered[1:, 1] < best[:-1])]


def _looks(panels: Sequence[Front]) -> dict[str, Look]:
    """By name; names that differ behind a comma share a colour."""
    looks = series_looks(name for panel in panels for name in panel.points)
    colours = series_looks(name.partition(",")[0] for name in looks)
    return {
        name: dataclasses.replace(look, colour=colours[name.partition(",")[0]].colour) for name, look in looks.items()
    }


def _line(look: Look, points: FloatArray) -> Line:
    cost, loss = points.T
    return Line(look, cost, loss, loss, loss)
