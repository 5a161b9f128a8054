"""A row of panels: lines over x with the range of their repetitions, one legend, a title that states what is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .line_charts import Line, LineChart
from .looks import DASHED, Look
from .style import INK, caption_lines, write_caption

COLOURS = {"LDP": "#d55e00", "CDP": "#6e6e6e", "DECOR": "#0072b2", "pairwise": "#0072b2", "CorN": "#009e73"}
MARKERS = {"LDP": "s", "CDP": "D", "DECOR": "^", "pairwise": "^", "CorN": "o"}
MORE_COLOURS = ("#009e73", "#cc79a7", "#0072b2", "#e69f00", "#56b4e9")  # for names not listed, in order
MORE_MARKERS = ("o", "v", "^", "P", "X")
PANEL_INCHES, HEIGHT_INCHES = 4.3, 4.7
MOST_TICKS = 10  # of given x; more are written at decades


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        x: of the points. lines: by name, values of shape (points, repetitions); nan where there is none.
        dashed: names drawn without markers in dashes, as references and bounds are.
        y_range: what is shown of y; None: all.
        colours: names that are drawn in the colour of another one, or in a given one.
    """

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    lines: Mapping[str, np.ndarray]
    log_x: bool = False
    log_y: bool = True
    dashed: Sequence[str] = ()
    colours: Mapping[str, str] | None = None
    y_range: tuple[float, float] | None = None


def draw(panels: Sequence[Panel], title: str, caption: str) -> Figure:
    """Lines are means, bands reach from the smallest to the largest repetition; names stand once, above."""
    width = max(PANEL_INCHES * len(panels) + 0.6, 8.6)
    lines = caption_lines(caption, int(width * 17))
    heading = caption_lines(title, int(width * 9))
    looks = _looks(panels)
    columns = max(1, int(width / (0.5 + 0.085 * max(map(len, looks)))))
    above = 0.3 + 0.24 * len(heading) + 0.24 * math.ceil(len(looks) / columns)
    height = HEIGHT_INCHES - 1.0 + above + 0.16 * len(lines)
    figure = Figure(figsize=(width, height), facecolor="white")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    figure.subplots_adjust(
        left=0.85 / width,
        right=1 - 0.2 / width,
        top=1 - (above + 0.35) / height,
        bottom=(0.85 + 0.16 * len(lines)) / height,
        wspace=0.28,
    )
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, looks)
    bold: dict[str, Any] = {"fontsize": 12.5, "fontweight": "bold", "color": INK, "va": "top", "linespacing": 1.25}
    figure.text(0.3 / width, 1 - 0.16 / height, "\n".join(heading), **bold)
    place: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (0.2 / width, 1 - (0.2 + 0.24 * len(heading)) / height),
    }
    handles = [look.handle(linewidth=1.7, markersize=5) for look in looks.values()]
    figure.legend(handles, [*looks], ncols=columns, frameon=False, fontsize=9, **place)
    write_caption(figure, lines, left=0.3 / width, top=(0.2 + 0.16 * len(lines)) / height)
    return figure


def _looks(panels: Sequence[Panel]) -> dict[str, Look]:
    """Of every name of all panels: the same in each."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    dashed = {name for panel in panels for name in panel.dashed}
    given = {name: colour for panel in panels for name, colour in (panel.colours or {}).items()}
    others = [name for name in names if name not in COLOURS and name not in given]
    looks = {}
    for name in names:
        place = others.index(name) if name in others else names.index(name)
        colour = given.get(name) or COLOURS.get(name) or MORE_COLOURS[place % len(MORE_COLOURS)]
        marker = MARKERS.get(name) or MORE_MARKERS[place % len(MORE_MARKERS)]
        style: dict[str, Any] = {"dashes": DASHED} if name in dashed else {"marker": marker}
        looks[name] = Look(name, COLOURS.get(colour, colour), **style)
    return looks


def _draw_panel(axes: Axes, panel: Panel, looks: Mapping[str, Look]) -> None:
    x = np.asarray(panel.x, dtype=np.float64)
    lines = [
        Line(looks[name], x, *(over(values, axis=1) for over in (np.nanmean, np.nanmin, np.nanmax)))
        for name, values in panel.lines.items()
    ]
    ticks = [(value, f"{value:g}", "") for value in panel.x] if panel.log_x and x.size <= MOST_TICKS else []
    chart = LineChart(panel.x_label, panel.y_label, lines, (), ticks, panel.log_x, panel.log_y, panel.y_range)
    chart.draw(axes, width=1.7)
    axes.set_title(panel.title, loc="left", fontsize=10.5, color=INK)
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    elif not panel.log_y:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
