"""Lines over x with the range of their repetitions, and dotted levels: every chart of lines, and rows of panels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from numpy.typing import ArrayLike, NDArray

from ..check import FloatArray
from . import style

DOTTED: dict[str, Any] = {"color": style.QUIET, "linewidth": 1.1, "linestyle": (0, (1, 2)), "zorder": 1}  # of a level
WIDTH, HEIGHT, TOP, LEFT, BOTTOM = 285.0, 190.0, 20.0, 32.0, 41.0  # points: of a page's chart, and around its axes
FONT, NAME_ROW = 9.0, 11.5  # points: of labels and names, height of a name


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """One series; middle, low, high: value and range at each x, nan: no point there; tips: of points in a page."""

    look: style.Look
    x: NDArray[np.float64]
    middle: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    words: str = ""
    tips: Sequence[str] = ()

    @classmethod
    def from_repetitions(cls, look: style.Look, x: ArrayLike, values: NDArray[np.float64], words: str = "") -> Line:
        """Mean and range of values, shape (repetitions, points); no point where one of them is not finite."""
        finite = np.where(np.isfinite(values).all(axis=0), values, np.nan)
        return cls(look, np.asarray(x, np.float64), finite.mean(axis=0), finite.min(axis=0), finite.max(axis=0), words)

    def draw(self, axes: Axes, *, width: float, every: int = 1, clip: bool = False) -> list[style.End]:
        """The range as a band, or at a single point as a bar; the middle as a line, with the markers of its look.

        Args: every: which points have a marker; clip: whether markers end at the axes, as the line does.
        Returns: the place of its name, at its last point; empty without points.
        """
        look, known = self.look, np.isfinite(self.low) & np.isfinite(self.high)
        x, low, high = self.x[known], self.low[known], self.high[known]
        behind: dict[str, Any] = {"color": look.colour, "zorder": look.front - 1}
        behind["gid"] = style.css(look.classes, "band")
        if x.size > 1 and (low < high).any():
            axes.fill_between(x, low, high, alpha=0.16, linewidth=0, **behind)
        elif (low < high).any():
            axes.plot([x[0], x[0]], [low[0], high[0]], marker="_", markersize=6, linewidth=1, **behind)
        points = np.flatnonzero(np.isfinite(self.middle))
        marker, gid = "o" if points.size == 1 and not look.marker else "", style.css(look.classes, "line")
        drawn: dict[str, Any] = {**look.line, "solid_capstyle": "round", "zorder": look.front, "marker": marker}
        axes.plot(self.x, self.middle, linewidth=width, gid=gid, **drawn)
        if look.marker:
            shift = (look.index or 0) % every  # so that markers of two series do not lie on each other
            marked = points[(points % every == shift) | (self.x.size == 1)]
            dots: dict[str, Any] = {"color": look.colour, "marker": look.marker, "zorder": look.front + 1, "s": 5.5**2}
            dots |= {"edgecolors": style.GROUND, "linewidths": 0.6, "clip_on": clip}
            dots["gid"] = style.css(look.classes, "mark")
            axes.scatter(self.x[marked], self.middle[marked], urls=[self.tips[i] for i in marked if self.tips], **dots)
        gid = style.css(look.classes, "name")
        return [
            style.End(float(self.middle[i]), look.name, self.words, look.colour, float(self.x[i]), look.marker, gid)
            for i in points[-1:]
        ]


@dataclasses.dataclass(frozen=True)
class Level:
    """A dotted horizontal line with its name; look: of its series, or None."""

    name: str
    value: float
    look: style.Look | None = None

    def draw(self, axes: Axes, *, tip: str | None = None) -> style.End:
        """Draws the line; returns its name for `name_ends`; tip: text of a page."""
        series = self.look.classes if self.look else ""
        marks = DOTTED | ({"color": self.look.colour} if self.look else {})
        axes.axhline(self.value, url=tip, gid=style.css(series), **marks)
        return style.End(self.value, self.name, "", style.QUIET, gid=style.css(series or "level", "level-name"))


@dataclasses.dataclass(frozen=True, eq=False)
class LineChart:
    """Lines and levels in one pair of axes.

    Attributes: x_ticks: values with one or two rows of text; empty: round values. y_log: None: if values span
        `LOG_RATIO`.
        y_range: smallest and largest value that must be visible; None: all of them.
    """

    x_label: str
    y_label: str
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    x_ticks: Sequence[tuple[float, str, str]] = ()
    x_log: bool = False
    y_log: bool | None = None
    y_range: tuple[float, float] | None = None

    def draw(self, axes: Axes, *, width: float = 2.0, marked: int | None = None, tips: bool = False) -> list[style.End]:
        """Draws into given axes and returns the names for `name_ends`.

        Args: marked: about how many points of a line carry its marker, None: all; tips: of levels, see `themed_svg`.
        """
        drawn = [values for line in self.lines for values in (line.middle, line.low, line.high)]
        values = np.concatenate([*drawn, [level.value for level in self.levels]])
        style.fit_y(axes, values if self.y_range is None else self.y_range, logarithmic=self.y_log)
        ends = []
        for line in self._fit_x(axes):
            every = max(1, line.x.size // marked) if marked else 1
            ends += line.draw(axes, width=width, every=every, clip=self.y_range is not None)
        for level in self.levels:
            ends.append(level.draw(axes, tip=f"{level.name}: {style.plain(level.value)}" if tips else None))
        axes.set_xlabel(self.x_label, fontsize=FONT, color=style.QUIET)
        axes.set_ylabel(self.y_label, fontsize=FONT, color=style.QUIET, parse_math=False)
        style.quiet(axes, grid="y")
        self._write_ticks(axes)
        return ends

    def _fit_x(self, axes: Axes) -> Sequence[Line]:
        """Sets the range; lines that have a single point at the same x are moved side by side."""
        places = np.concatenate([line.x for line in self.lines]) if self.lines else np.array([0.0, 1.0])
        low, high = float(places.min()), float(places.max())
        if low == high:
            shifts = np.linspace(-1, 1, len(self.lines) + 2)[1:-1]
            axes.set_xlim(low - 1, high + 1)
            return [dataclasses.replace(line, x=line.x + by) for line, by in zip(self.lines, shifts, strict=True)]
        if self.x_log and low > 0:
            axes.set_xscale("log")
            axes.set_xlim(low / (high / low) ** 0.04, high * (high / low) ** 0.04)
            style.plain_decades(axes.xaxis, (low, high))
        else:
            axes.set_xlim(low - 0.04 * (high - low), high + 0.04 * (high - low))
            style.plain_steps(axes.xaxis, 5)
        return self.lines

    def _write_ticks(self, axes: Axes) -> None:
        """The given ticks without those that would overlap the one before."""
        last, free = -math.inf, []
        for value, text, below in self.x_ticks:
            place = float(axes.transData.transform((value, 1.0))[0]) * 72 / axes.figure.get_dpi()
            if place - last >= style.CHARACTER * style.TICK * max(len(text), len(below)) + 4:
                free.append((value, text, below))
                last = place
        if free:
            axes.set_xticks([value for value, *_ in free], [text for _, text, _ in free])
            axes.xaxis.set_minor_locator(NullLocator())
        written: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "center"}
        written |= {"fontsize": style.TICK, "color": style.QUIET, "annotation_clip": False}
        for value, _, below in free:
            axes.annotate(below, (value, 0), (0, -25), **written)

    def figure(self, *, marked: int | None = None) -> Figure:
        """A small chart for a page, as high as its names need, with room for the longest of them on the right."""
        names = [line.look.name for line in self.lines] + [level.name for level in self.levels]
        right = 20 + style.CHARACTER * FONT * max((len(style.short_name(name)) for name in names), default=0)
        height = max(HEIGHT, TOP + BOTTOM + NAME_ROW * (len(names) + 1))
        across, up = WIDTH - LEFT - right, height - TOP - BOTTOM
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        axes = figure.add_axes((LEFT / WIDTH, BOTTOM / height, across / WIDTH, up / height))
        ends = self.draw(axes, width=1.5, marked=marked, tips=True)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.labelpad = 15 if any(below for *_, below in self.x_ticks) else 4
        axes.yaxis.label.set(rotation=0, ha="left", va="bottom")
        axes.yaxis.set_label_coords(-LEFT / across, 1 + (TOP - FONT - 2) / up)
        style.name_ends(axes, [end.shortened for end in ends], apart=NAME_ROW / up, size=FONT)
        return figure


def swatch(look: style.Look) -> Figure:
    """A short piece of a line with its marker, for a legend in a page."""
    figure = Figure(figsize=(25.5 / 72, 10.5 / 72), dpi=72)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 1), ylim=(-1, 1))
    axes.set_axis_off()
    axes.plot([0, 1], [0, 0], linewidth=1.5, **look.line)
    axes.plot([0.5], [0], color=look.colour, linestyle="", marker=look.marker, markersize=5.5, markeredgewidth=0)
    return figure


COLOURS = {"LDP": "#d55e00", "CDP": "#6e6e6e", "DECOR": "#0072b2", "pairwise": "#0072b2", "CorN": "#009e73"}
MARKERS = {"LDP": "s", "CDP": "D", "DECOR": "^", "pairwise": "^", "CorN": "o"}
MORE_COLOURS = ("#009e73", "#cc79a7", "#0072b2", "#e69f00", "#56b4e9")  # for names not listed, in order
MORE_MARKERS = ("o", "v", "^", "P", "X")
PANEL_INCHES, HEIGHT_INCHES = 4.3, 4.7
MOST_TICKS = 10  # of given x; more are written at decades


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes: lines: by name, values of shape (points, repetitions), nan: no value; dashed: names drawn without
        markers; y_range: visible range of y; colours: of some names, a colour or the name whose colour they share.
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
    lines = style.wrapped(caption, int(width * 17))
    heading = style.wrapped(title, int(width * 9))
    looks = _looks(panels)
    columns = max(1, int(width / (0.5 + 0.085 * max(map(len, looks)))))
    above = 0.3 + 0.24 * len(heading) + 0.24 * math.ceil(len(looks) / columns)
    height = HEIGHT_INCHES - 1.0 + above + 0.16 * len(lines)
    figure = Figure(figsize=(width, height), facecolor="white")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    top, bottom = 1 - (above + 0.35) / height, (0.85 + 0.16 * len(lines)) / height
    figure.subplots_adjust(0.85 / width, bottom, 1 - 0.2 / width, top, wspace=0.28)
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, looks)
    _head(figure, heading, looks, columns, 0.2 + 0.24 * len(heading), 1.7)
    style.write_caption(figure, lines, left=0.3 / width, top=(0.2 + 0.16 * len(lines)) / height)
    return figure


def _head(
    figure: Figure,
    heading: Sequence[str],
    looks: Mapping[str, style.Look],
    columns: int,
    below: float,
    width: float,
    more: Mapping[str, Line2D] | None = None,
) -> None:
    """Title, and a legend `below` inches from the top, with further lines by name."""
    across, up = figure.get_size_inches()
    bold: dict[str, Any] = {"fontsize": 12.5, "fontweight": "bold", "va": "top", "linespacing": 1.25}
    figure.text(0.3 / across, 1 - 0.16 / up, "\n".join(heading), color=style.INK, **bold)
    handles = {name: look.handle(linewidth=width, markersize=5) for name, look in looks.items()} | {**(more or {})}
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.2 / across, 1 - below / up)}
    figure.legend([*handles.values()], [*handles], ncols=columns, frameon=False, fontsize=9, **place)


def _looks(panels: Sequence[Panel]) -> dict[str, style.Look]:
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    dashed = {name for panel in panels for name in panel.dashed}
    given = {name: colour for panel in panels for name, colour in (panel.colours or {}).items()}
    others = [name for name in names if name not in COLOURS and name not in given]
    looks = {}
    for name in names:
        place = others.index(name) if name in others else names.index(name)
        colour = given.get(name) or COLOURS.get(name) or MORE_COLOURS[place % len(MORE_COLOURS)]
        marker = MARKERS.get(name) or MORE_MARKERS[place % len(MORE_MARKERS)]
        marks: dict[str, Any] = {"dashes": style.DASHED} if name in dashed else {"marker": marker}
        looks[name] = style.Look(name, COLOURS.get(colour, colour), **marks)
    return looks


def _draw_panel(axes: Axes, panel: Panel, looks: Mapping[str, style.Look]) -> None:
    x = np.asarray(panel.x, dtype=np.float64)
    lines = [
        Line(looks[name], x, *(over(values, axis=1) for over in (np.nanmean, np.nanmin, np.nanmax)))
        for name, values in panel.lines.items()
    ]
    ticks = [(value, f"{value:g}", "") for value in panel.x] if panel.log_x and x.size <= MOST_TICKS else []
    chart = LineChart(panel.x_label, panel.y_label, lines, (), ticks, panel.log_x, panel.log_y, panel.y_range)
    chart.draw(axes, width=1.7)
    axes.set_title(panel.title, loc="left", fontsize=10.5, color=style.INK)
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    elif not panel.log_y:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


FRONT_INCHES, FRONT_HEIGHT = 4.6, 3.6
FAINT: dict[str, Any] = {"s": 12, "alpha": 0.35, "linewidths": 0, "zorder": 2}


@dataclasses.dataclass(frozen=True, eq=False)
class Front:
    """One panel; points: by name, shape (points, 2): cost and loss; limit: a loss, drawn as a dotted line, or None."""

    x_label: str
    y_label: str
    points: Mapping[str, FloatArray]
    limit: float | None = None


def draw_fronts(panels: Sequence[Front], title: str, caption: str) -> Figure:
    width = FRONT_INCHES * len(panels)
    lines = style.caption_lines(caption, int(width * 17))
    series = style.series_looks(name for panel in panels for name in panel.points)
    colours = style.series_looks(name.partition(",")[0] for name in series)  # of names that differ behind a comma: one
    colour = {name: colours[name.partition(",")[0]].colour for name in series}
    looks = {name: dataclasses.replace(look, colour=colour[name]) for name, look in series.items()}
    below = 0.75 + 0.16 * len(lines)
    height = FRONT_HEIGHT + below
    figure = Figure(figsize=(width, height), facecolor="white")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    figure.subplots_adjust(0.75 / width, below / height, 1 - 0.15 / width, 1 - 0.95 / height, wspace=0.28)
    for axes, panel in zip(grid, panels, strict=True):
        fronts = [Line(looks[name], *front(points).T[[0, 1, 1, 1]]) for name, points in panel.points.items()]
        every = np.concatenate(list(panel.points.values()))
        levels = [Level("limit", panel.limit)] if panel.limit else []
        drawn = np.append(every[:, 1], [level.value for level in levels])
        span = (float(drawn.min()), float(drawn.max()))
        chart = LineChart(panel.x_label, panel.y_label, fronts, levels, x_log=True, y_log=True, y_range=span)
        chart.draw(axes, width=1.5)
        for name, points in panel.points.items():
            axes.scatter(*points.T, color=looks[name].colour, marker=looks[name].marker, **FAINT)
        low, high = every[:, 0].min(), every[:, 0].max()
        axes.set_xlim(low / 1.15, high * 1.15)
    lines_below = {"limit of one release": Line2D([], [], **DOTTED)} if any(panel.limit for panel in panels) else {}
    _head(figure, [title], looks, max(1, int(width / 1.8)), 0.42, 1.5, lines_below)
    style.write_caption(figure, lines, left=0.3 / width, top=(0.15 + 0.16 * len(lines)) / height)
    return figure


def front(points: FloatArray) -> FloatArray:
    """Undominated points, by the first number.

    >>> front(np.array([[1.0, 5.0], [2.0, 6.0], [3.0, 4.0], [3.0, 4.5]])).tolist()
    [[1.0, 5.0], [3.0, 4.0]]
    """
    ordered = points[np.lexsort((points[:, 1], points[:, 0]))]  # bound
    best = np.minimum.accumulate(ordered[:, 1])
    return ordered[np.append(True, ordered[1:, 1] < best[:-1])]
