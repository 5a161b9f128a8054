"""Lines with the range of their repetitions, dotted levels, and a small chart of both for a page.

In: numbers with their looks. Out: artists in axes of the caller's, or a Figure that `themed_svg` puts into a page.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import ArrayLike, NDArray

from .looks import Look
from .style import (
    CHARACTER,
    GROUND,
    QUIET,
    TICK,
    End,
    css,
    fit_y,
    name_ends,
    plain,
    plain_decades,
    plain_steps,
    quiet,
    short_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOTTED: dict[str, Any] = {"linewidth": 1.1, "linestyle": (0, (1, 2)), "zorder": 1}  # of a level
WIDTH, HEIGHT, TOP, LEFT, BOTTOM = 285.0, 190.0, 20.0, 32.0, 41.0  # points: of a page's chart, and around its axes
LABEL, NAME, NAME_ROW = 9.0, 9.0, 11.5  # points: sizes of fonts, height of a name
MARKED = 6  # points of a line that carry its marker where not all do, about


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """One series.

    Attributes:
        x: shape (points,). middle, low, high: its value and range at each x; nan: no point there.
        tips: what a page says at each point; empty: nothing.
    """

    look: Look
    x: NDArray[np.float64]
    middle: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    tips: Sequence[str] = ()

    @classmethod
    def of_repetitions(cls, look: Look, x: ArrayLike, values: NDArray[np.float64], tips: Sequence[str] = ()) -> Line:
        """Mean and range of values, shape (repetitions, points); no point where one of them is not finite."""
        finite = np.where(np.isfinite(values).all(axis=0), values, np.nan)
        return cls(look, np.asarray(x, np.float64), finite.mean(axis=0), finite.min(axis=0), finite.max(axis=0), tips)

    @property
    def ends(self) -> list[End]:
        """Where its name stands: at its last point, nowhere if it has none."""
        known = np.flatnonzero(np.isfinite(self.middle))[-1:]
        look, classes = self.look, f"{self.look.classes} name"
        return [
            End(float(self.middle[i]), look.name, "", look.colour, float(self.x[i]), look.marker, classes)
            for i in known
        ]

    def draw(self, axes: Axes, *, width: float = 2.1, front: int = 3, every: int = 1, size: float = 4.5) -> None:
        """The range as a band, or at a single point as a bar; the middle as a line, with the markers of its look.

        Args: front: z-order; every: which points have a marker; size: of markers in points.
        """
        known = np.isfinite(self.low) & np.isfinite(self.high)
        x, low, high = self.x[known], self.low[known], self.high[known]
        behind: dict[str, Any] = {"color": self.look.colour, "zorder": front - 1, "gid": self._gid("band")}
        if x.size > 1 and (low < high).any():
            axes.fill_between(x, low, high, alpha=0.16, linewidth=0, **behind)
        elif (low < high).any():
            axes.plot([x[0], x[0]], [low[0], high[0]], marker="_", markersize=6, linewidth=1, **behind)
        style: dict[str, Any] = {"solid_capstyle": "round", "zorder": front, "gid": self._gid("line")}
        points = np.flatnonzero(np.isfinite(self.middle))
        style["marker"] = "o" if points.size == 1 and not self.look.marker else ""
        axes.plot(self.x, self.middle, linewidth=width, **self.look.line, **style)
        if self.look.marker:
            shift = (self.look.index or 0) % every  # so that markers of two series do not lie on each other
            marked = points[(points % every == shift) | (self.x.size == 1)]
            dots: dict[str, Any] = {"color": self.look.colour, "marker": self.look.marker, "zorder": front + 1}
            dots |= {"edgecolors": GROUND, "linewidths": 0.6, "clip_on": False, "gid": self._gid("mark")}
            dots["urls"] = [self.tips[i] for i in marked] if self.tips else None
            axes.scatter(self.x[marked], self.middle[marked], size**2, **dots)

    def _gid(self, kind: str) -> str | None:
        return css(f"{self.look.classes} {kind}") if self.look.classes else None


@dataclasses.dataclass(frozen=True)
class Level:
    """A dotted horizontal line with its name; look: of the series that it belongs to, None: of none."""

    name: str
    value: float
    look: Look | None = None

    def draw(self, axes: Axes, *, tip: str | None = None) -> End:
        """The line; returns what `name_ends` writes beside it. tip: what a page says at the line."""
        colour, series = (self.look.colour, self.look.classes) if self.look else (QUIET, "")
        axes.axhline(self.value, color=colour, url=tip, gid=css(series) if series else None, **DOTTED)
        return End(self.value, self.name, "", QUIET, classes=f"{series} level-name".strip())


@dataclasses.dataclass(frozen=True)
class Tick:
    """A place on the x axis, and one or two rows of text below it."""

    value: float
    text: str
    below: str = ""

    @property
    def width(self) -> float:
        """Points that it needs."""
        return CHARACTER * TICK * max(len(self.text), len(self.below)) + 4


@dataclasses.dataclass(frozen=True, eq=False)
class LineChart:
    """A small chart of lines and levels.

    Attributes: x_ticks: empty: round values; y_log: None: where values span `LOG_RATIO`; every: markers at all points.
    """

    x_label: str
    y_label: str
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    x_ticks: Sequence[Tick] = ()
    x_log: bool = False
    y_log: bool | None = None
    every: bool = True

    def figure(self) -> Figure:
        """The chart as high as its names need, with room for the longest of them on the right."""
        names = [
            short_name(name) for name in (*(line.look.name for line in self.lines), *(v.name for v in self.levels))
        ]
        right = 20 + CHARACTER * NAME * max(map(len, names), default=0)
        height = max(HEIGHT, TOP + BOTTOM + NAME_ROW * (len(names) + 1))
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        across, up = WIDTH - LEFT - right, height - TOP - BOTTOM
        axes = figure.add_axes((LEFT / WIDTH, BOTTOM / height, across / WIDTH, up / height))
        drawn = [values for line in self.lines for values in (line.middle, line.low, line.high)]
        fit_y(axes, np.concatenate([*drawn, [level.value for level in self.levels]]), logarithmic=self.y_log)
        ends = [level.draw(axes, tip=f"{level.name}: {plain(level.value)}") for level in self.levels]
        for line in self._fit_x(axes):
            line.draw(axes, width=1.5, size=5.5, every=1 if self.every else max(1, line.x.size // MARKED))
            ends += line.ends
        quiet(axes, grid="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        words: dict[str, Any] = {"fontsize": LABEL, "color": QUIET, "annotation_clip": False, "parse_math": False}
        axes.annotate(self.y_label, (0, height - LABEL), xycoords="figure points", **words)
        words |= {"textcoords": "offset points", "ha": "center"}
        rows = self._write_ticks(axes, words)
        axes.annotate(self.x_label, (0.5, 0), (0, -14 - 11.5 * rows), xycoords="axes fraction", **words)
        name_ends(axes, [end.shortened for end in ends], apart=NAME_ROW / up, size=NAME)
        return figure

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
            axes.set_xlim(low / (high / low) ** 0.04, high * (high / low) ** 0.03)
            plain_decades(axes.xaxis, (low, high))
        else:
            axes.set_xlim(low - 0.04 * (high - low), high + 0.03 * (high - low))
            plain_steps(axes.xaxis, 4)
        return self.lines

    def _write_ticks(self, axes: Axes, words: dict[str, Any]) -> int:
        """The given ticks but those that would lie on the one before; returns the rows of text below the axis."""
        last, free = -math.inf, []
        for tick in self.x_ticks:
            place = float(axes.transData.transform((tick.value, 1.0))[0])
            if place - last >= tick.width:
                free.append(tick)
                last = place
        if free:
            axes.set_xticks([tick.value for tick in free], [tick.text for tick in free])
            axes.xaxis.set_minor_locator(NullLocator())
        for tick in free:
            axes.annotate(tick.below, (tick.value, 0), (0, -25), xycoords=("data", "axes fraction"), **words)
        return 2 if any(tick.below for tick in free) else 1


def swatch(look: Look) -> Figure:
    """A short piece of a line with its marker, for a legend in a page."""
    figure = Figure(figsize=(25.5 / 72, 10.5 / 72), dpi=72)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 1), ylim=(-1, 1))
    axes.set_axis_off()
    axes.plot([0, 1], [0, 0], linewidth=1.5, **look.line)
    axes.plot([0.5], [0], color=look.colour, linestyle="", marker=look.marker, markersize=5.5, markeredgewidth=0)
    return figure
