"""Curves of several mechanisms over steps on the left, final values on the right; every line carries its name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..errors import require_known
from ..metrics import WORDS, is_accuracy, is_of_nodes
from . import style
from .line_charts import DOTTED, Level, Line, LineChart

FINAL_LOG_RATIO = 50.0  # `style.LOG_RATIO` of the final losses, whose lengths from zero say more while they are visible
WIDTH, ROW, HEAD = 11.0, 0.42, 0.95  # inches
CAPTION_WIDTH = 166  # characters per line at the font and figure size
TITLE_WIDTH = 84  # characters that fit at the full size of a title


@dataclasses.dataclass(frozen=True, eq=False)
class Curves:
    """One mechanism: per seed, the loss (mean over nodes) at every evaluated step, and the final loss or None.

    Attributes: accuracy: the final one, mean over seeds, written beside the loss.
    """

    label: str
    look: style.Look
    steps: Sequence[NDArray[np.int64]]
    losses: Sequence[NDArray[np.float64]]
    finals: Sequence[float | None]
    accuracy: float | None = None

    @property
    def diverged(self) -> int:
        return sum(final is None for final in self.finals)

    @property
    def reached(self) -> list[float]:
        return [final for final in self.finals if final is not None]

    @property
    def mean(self) -> float | None:
        return None if self.diverged or not self.finals else float(np.mean(self.reached))

    @property
    def short(self) -> str:
        """The label; of a file the beginning and the end, which tells files apart."""
        return style.short_name(self.label, 20) if self.label.startswith("file:") else self.label

    @property
    def evaluated(self) -> bool:
        return bool(self.losses) and self.steps[0].size > 0

    def line(self) -> Line:
        """Mean and range over the seeds that were evaluated at the steps of the first."""
        pairs = zip(self.steps, self.losses, strict=True)
        values = np.array([loss for step, loss in pairs if np.array_equal(step, self.steps[0])])
        words = ", ".join(part for part in (self.look.note, "diverged" if self.diverged else "") if part)
        return Line.from_repetitions(dataclasses.replace(self.look, name=self.short), self.steps[0], values, words)


def draw_curves(
    curves: Sequence[Curves],
    title: str,
    caption: str,
    num_seeds: int,
    last_steps: int,
    *,
    levels: Mapping[str, float] | None = None,
    metric: str = "loss",
) -> Figure:
    """The figure; of a single mechanism its final loss stands below its name, without bars.

    Args: last_steps: the steps that final losses average; levels: losses by name that are drawn as dotted lines.
    """
    alone = len(curves) == 1
    final = f"The final {WORDS[metric]} is the {_over(metric, last_steps)}. " * alone
    lines = style.caption_lines(final + caption, CAPTION_WIDTH)
    body, foot = max(3.9, 1.4 + ROW * len(curves)), 0.30 + style.LINE_INCHES * len(lines)
    height = HEAD + body + 0.55 + foot
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    bottom, top = (foot + 0.55) / height, 1 - HEAD / height
    left = figure.add_axes((0.055, bottom, 0.7 if alone else 0.445, top - bottom))
    size = 14.5 * min(1.0, TITLE_WIDTH / max(len(title), 1))
    figure.text(0.055, 1 - 0.34 / height, title, fontsize=size, fontweight="bold", color=style.INK, va="center")
    drawn = [_with_final(curves[0])] if alone else curves
    draw_over_steps(left, drawn, num_seeds, levels=levels, metric=metric)
    if not alone:
        right = figure.add_axes((0.735, bottom, 0.165, top - bottom))
        _final_test_losses(right, curves, num_seeds, last_steps, levels or {}, metric)
    style.write_caption(figure, lines, left=0.055, top=(foot - 0.08) / height)
    return figure


def calm_range(curves: Sequence[Curves], levels: Iterable[float] = ()) -> tuple[float, float]:
    """Smallest and largest loss worth drawing: a diverging run may not squeeze the others flat."""
    everything = [np.concatenate([loss[np.isfinite(loss)] for loss in c.losses] or [np.empty(0)]) for c in curves]
    calm = [values for c, values in zip(curves, everything, strict=True) if values.size and not c.diverged]
    drawn = np.concatenate(calm or [values for values in everything if values.size] or [np.array([0.0, 1.0])])
    low, high = min([float(drawn.min()), *levels]), max([float(drawn.max()), *levels])
    if not calm:  # only diverging runs: their first decades say enough
        high = min(high, max(low, 1e-300) * 1e3)
    return low, high


def draw_over_steps(
    axes: Axes,
    curves: Sequence[Curves],
    num_seeds: int,
    *,
    levels: Mapping[str, float] | None = None,
    metric: str = "loss",
    named: bool = True,
) -> Axes:
    """Means over nodes and seeds over steps, in given axes, which it returns; named: at their ends, else a legend."""
    require_known("metric", metric, WORDS)
    levels = levels or {}
    remarks = ["mean over nodes"] * is_of_nodes(metric) + [f"band: range over {num_seeds} seeds"] * (num_seeds > 1)
    words = WORDS[metric][0].upper() + WORDS[metric][1:]
    title = f"{words} while training" + f" ({'; '.join(remarks)})" * bool(remarks)
    axes.set_title(title, loc="left", fontsize=9.5, color=style.INK, pad=10)
    low, high = calm_range(curves, levels.values())
    lines = [curve.line() for curve in curves if curve.evaluated]
    last, before = max([1.0, *(line.x[-1] for line in lines)]), None if named else axes.get_legend()
    handles: dict[str, Any] = {}
    if before is not None:  # runs drawn here earlier stay in view
        low, high = min(low, axes.get_ylim()[0]), max(high, axes.get_ylim()[1])
        last = max(last, axes.get_xlim()[1])
        handles = dict(zip((text.get_text() for text in before.get_texts()), before.legend_handles, strict=True))
    dotted = [Level(name, value) for name, value in levels.items()]
    logarithmic = False if is_accuracy(metric) else None
    ends = LineChart("step", "", lines, dotted, y_log=logarithmic, y_range=(low, high)).draw(axes)
    axes.set_xlim(0, last)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if named:
        edge = [dataclasses.replace(end, height=min(end.height, high), stop=math.inf) for end in ends]
        style.name_ends(axes, edge, apart=0.105)
    else:
        handles |= {line.look.name: line.look.handle(linewidth=2.0) for line in lines}
        handles |= {level.name: Line2D([], [], **DOTTED) for level in dotted}
        axes.legend(list(handles.values()), list(handles), fontsize=8.5, frameon=False)
    return axes


def _with_final(curve: Curves) -> Curves:
    accuracy = "" if curve.accuracy is None else f", accuracy {curve.accuracy:.0%}"
    final = "" if curve.mean is None else f"final {_in_digits(curve.mean)}{accuracy}"
    note = "\n".join(filter(None, (curve.look.note, final)))
    return dataclasses.replace(curve, look=dataclasses.replace(curve.look, note=note))


def _over(metric: str, last_steps: int) -> str:
    return f"mean over {'nodes and ' * is_of_nodes(metric)}the last {last_steps} steps"


def _in_digits(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= abs(value) < 1000 else f"{value:.3g}"


def _final_test_losses(
    axes: Axes, curves: Sequence[Curves], num_seeds: int, last_steps: int, levels: Mapping[str, float], metric: str
) -> None:
    remark = "" if num_seeds == 1 else " (bar: mean; dot: one seed)"
    axes.set_title(f"Final {WORDS[metric]}{remark}", loc="left", fontsize=9.5, color=style.INK, pad=10)
    rows = list(range(len(curves)))[::-1]  # the first mechanism on top
    reached = [value for curve in curves if not curve.diverged for value in curve.reached] + list(levels.values())
    lowest, highest = min(reached, default=0.0), max(reached, default=1.0)
    logarithmic = not is_accuracy(metric) and lowest > 0 and highest / lowest >= FINAL_LOG_RATIO
    start = lowest / 1.4 if logarithmic else min(0.0, lowest)
    for row, curve in zip(rows, curves, strict=True):
        _one_final_test_loss(axes, row, curve, start)
    for loss in levels.values():
        axes.axvline(loss, **DOTTED)
    axes.set_yticks(rows, [curve.short for curve in curves])
    for tick, curve in zip(axes.get_yticklabels(), curves, strict=True):
        tick.set(color=curve.look.colour, fontweight="bold", fontsize=9.5)
    axes.set_ylim(-0.6, len(curves) - 0.4)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(start, highest * 1.15)
        style.plain_decades(axes.xaxis, axes.get_xlim())
    else:
        axes.set_xlim(start, highest * 1.06 if math.isfinite(highest) and highest > 0 else 1.0)
        style.plain_steps(axes.xaxis, 4)
    axes.set_xlabel(_over(metric, last_steps), fontsize=9, color=style.QUIET)
    style.quiet(axes, grid="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _one_final_test_loss(axes: Axes, row: int, curve: Curves, start: float) -> None:
    """A bar from `start` with its dots and its number, or the word that it diverged."""
    colour = curve.look.colour
    text: dict[str, Any] = {"color": colour, "va": "center"}
    if curve.diverged:
        seeds = f" in {curve.diverged} of {len(curve.finals)} seeds" if len(curve.finals) > 1 else ""
        where: Any = ("axes fraction", "data")
        axes.annotate(f"diverged{seeds}", (0.02, row), xycoords=where, fontsize=8.5, style="italic", **text)
    elif curve.mean is not None:
        axes.barh(row, curve.mean - start, left=start, height=0.46, color=colour, alpha=0.3, linewidth=0)
        axes.plot([curve.mean] * 2, [row - 0.23, row + 0.23], color=colour, linewidth=2.4, zorder=3)
        if len(curve.reached) > 1:
            heights = row + np.linspace(0.12, -0.12, len(curve.reached))
            axes.scatter(curve.reached, heights, s=18, color=colour, linewidths=0, zorder=4, clip_on=False)
        two = curve.accuracy is not None  # rows of words, right of all bars and levels
        beside: dict[str, Any] = {"annotation_clip": False, "textcoords": "offset points"}
        beside["xycoords"] = ("axes fraction", "data")
        bold = {**beside, **text, "fontsize": 10, "fontweight": "bold", "va": "bottom" if two else "center"}
        axes.annotate(_in_digits(curve.mean), (1, row), xytext=(7, -1 if two else 0), **bold)
        if two:
            small = {**beside, "fontsize": 8, "color": style.QUIET, "va": "top"}
            axes.annotate(f"accuracy {curve.accuracy:.0%}", (1, row), xytext=(7, -2), **small)
