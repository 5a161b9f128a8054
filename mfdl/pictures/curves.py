"""Curves of several mechanisms over steps on the left, where each of them ended on the right.

Colours are fixed per mechanism and safe for colour-blind readers (Okabe and Ito's palette), and every line carries its
name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from ..errors import require_known
from ..metrics import WORDS, is_accuracy, is_of_nodes
from .style import INK, LINE_INCHES, QUIET, End, caption_lines, name_ends, plain_decades, quiet, write_caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

LOOKS = {  # colour, and words below the name
    "none": ("#6e6e6e", "no noise, no privacy"),
    "dp-dsgd": ("#d55e00", "independent noise"),
    "anti-pgd": ("#cc79a7", "noise of differences"),
    "bsr": ("#e69f00", "banded square root"),
    "bisr": ("#b15928", "banded inverse square root"),
    "lambda-cgd": ("#fb9a99", "a share of the last noise taken back"),
    "d-mf": ("#0072b2", "optimal for one server"),
    "mafalda": ("#009e73", "optimal for this graph"),
    "mafalda-l": ("#56b4e9", "one encoder per node"),
    "mafalda-classes": ("#17becf", "one encoder per degree"),
    "banded": ("#1b5e20", "few diagonals, for this graph"),
    "toeplitz": ("#8bc34a", "alike over time, for this graph"),
    "blt": ("#f48fb1", "few exponentials, for this graph"),
    "band-inv": ("#795548", "banded inverse, for this graph"),
    "decor": ("#bcbd22", "pairwise noise on edges"),
    "corn": ("#a6761d", "optimal over nodes"),
    "time-space": ("#7b3294", "time and nodes, a product"),
    "adapted": ("#d01c8b", "time and nodes, by direction"),
    "space-time": ("#4d004b", "time and nodes, any form"),
}
MORE_COLOURS = ("#000000", "#8c510a", "#3b6e8f", "#7f7f00", "#e377c2", "#1f3b73")  # for other names, in order

DOTTED: dict[str, Any] = {"color": QUIET, "linewidth": 1.1, "linestyle": (0, (1, 2)), "zorder": 1}  # of a level
HALO = [withStroke(linewidth=2.2, foreground="white")]  # words stay readable over lines
LOG_RATIO = 8.0  # largest over smallest drawn loss beyond which the left axis is logarithmic
FINAL_LOG_RATIO = 50.0  # the same for the final losses, whose lengths from zero say more while they can be seen
WIDTH, ROW, HEAD = 11.0, 0.42, 0.95  # inches
CAPTION_WIDTH, MAX_CAPTION_LINES = 166, 8  # characters per line at the font and figure size
TITLE_WIDTH = 84  # characters that fit at the full size of a title


@dataclasses.dataclass(frozen=True, eq=False)
class Curves:
    """One mechanism: per seed, the loss (mean over nodes) at every evaluated step, and the final loss or None.

    Attributes: label: its name in the picture; accuracy: the final one, mean over seeds, written beside the loss.

    Of accuracies likewise: `draw_curves` and `draw_over_steps` are told which of the two it is.
    """

    label: str
    colour: str
    dashed: bool
    steps: list[NDArray[np.int64]]
    losses: list[NDArray[np.float64]]
    finals: list[float | None]
    accuracy: float | None = None

    @property
    def diverged(self) -> int:
        """Number of seeds without a final loss."""
        return sum(final is None for final in self.finals)

    @property
    def reached(self) -> list[float]:
        """The final losses that are there."""
        return [final for final in self.finals if final is not None]

    @property
    def mean(self) -> float | None:
        """Mean final loss; None when a seed diverged."""
        return None if self.diverged or not self.finals else float(np.mean(self.reached))

    @property
    def short(self) -> str:
        """The label; of a file the end of its name, which tells files apart."""
        cut = len(self.label) > 20 and self.label.startswith("file:")
        return f"file:...{self.label[-12:]}" if cut else self.label

    def words(self, remark: str) -> str:
        """What stands below the name."""
        base, at, _ = self.label.partition("@")
        words = "given noise" if base.startswith("file:") else LOOKS.get(base, ("", ""))[1]
        return ", ".join(part for part in (words, "weighted" if at and words else "", remark) if part)


def colours_of(names: Iterable[str]) -> list[tuple[str, bool]]:
    """Colour and whether dashed, per name."""
    chosen, others = [], 0
    for name in names:
        if name in LOOKS:
            chosen.append((LOOKS[name][0], False))
        else:
            chosen.append((MORE_COLOURS[others % len(MORE_COLOURS)], True))
            others += 1
    return chosen


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
    """The figure.

    Args:
        last_steps: the steps that final losses average.
        metric: a name of `mfdl.metrics`.
        levels: losses by name that are drawn as dotted lines, such as that of the untrained model.
    """
    lines = caption_lines(caption, CAPTION_WIDTH)
    if len(lines) > MAX_CAPTION_LINES:
        lines = [*lines[: MAX_CAPTION_LINES - 1], lines[MAX_CAPTION_LINES - 1][: CAPTION_WIDTH - 4] + " ..."]
    body, foot = max(3.9, 1.4 + ROW * len(curves)), 0.30 + LINE_INCHES * len(lines)
    height = HEAD + body + 0.55 + foot
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    bottom, top = (foot + 0.55) / height, 1 - HEAD / height
    left = figure.add_axes((0.055, bottom, 0.445, top - bottom))
    right = figure.add_axes((0.735, bottom, 0.22, top - bottom))
    size = 14.5 * min(1.0, TITLE_WIDTH / max(len(title), 1))
    figure.text(0.055, 1 - 0.34 / height, title, fontsize=size, fontweight="bold", color=INK, va="center")
    draw_over_steps(left, curves, num_seeds, levels=levels, metric=metric)
    _final_losses(right, curves, num_seeds, last_steps, levels or {}, metric)
    write_caption(figure, lines, left=0.055, top=(foot - 0.08) / height)
    return figure


def _range(curves: Sequence[Curves], levels: Iterable[float] = ()) -> tuple[float, float]:
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
    """Means over nodes and seeds over steps, into axes of the caller's, which it returns.

    Args: levels, metric: as for `draw_curves`; named: names beside the ends of curves, else a legend.
    """
    require_known("metric", metric, WORDS)
    levels = levels or {}
    how = ["mean over nodes"] * is_of_nodes(metric) + [f"band: range over {num_seeds} seeds"] * (num_seeds > 1)
    title = f"{_words(metric)} while training" + f" ({'; '.join(how)})" * bool(how)
    axes.set_title(title, loc="left", fontsize=9.5, color=INK, pad=10)
    low, high = _range(curves, levels.values())
    before = None if named else axes.get_legend()
    if before is not None:  # runs drawn here earlier stay in view
        old = axes.get_ylim()
        low, high = min(low, *old), max(high, *old)
    if not is_accuracy(metric) and low > 0 and high / low >= LOG_RATIO:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.18, high * 1.18)
        plain_decades(axes.yaxis, axes.get_ylim())
    else:
        axes.set_yscale("linear")
        margin = 0.06 * (high - low) or 0.06 * max(abs(high), 1.0)
        axes.set_ylim(low - margin, high + margin)
    last, ends = 1 if before is None else max(1, int(axes.get_xlim()[1])), []
    for curve in curves:
        if not curve.losses or not curve.steps[0].size:
            continue
        mean = _one_curve(axes, curve)
        last = max(last, int(curve.steps[0][-1]))
        shown = mean[mean <= axes.get_ylim()[1]]
        remark = "diverged" if curve.diverged else ""
        if curve.diverged or shown.size:
            height = high if curve.diverged else float(shown[-1])
            ends.append(End(height, curve.short, curve.words(remark), curve.colour))
    for name, level in levels.items():
        axes.axhline(level, **DOTTED)
        ends.append(End(level, name, "", QUIET))
    axes.set_xlim(0, last)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("step", fontsize=9, color=QUIET)
    quiet(axes, grid="y")
    if named:
        name_ends(axes, ends, apart=0.105)
    else:
        style = [DOTTED if end.name in levels else {"color": end.colour, "linewidth": 2.1} for end in ends]
        entries: dict[str, Any] = {}
        if before is not None:
            entries = dict(zip((text.get_text() for text in before.get_texts()), before.legend_handles, strict=True))
        entries |= {end.name: Line2D([], [], **how) for end, how in zip(ends, style, strict=True)}
        axes.legend(list(entries.values()), list(entries), fontsize=8.5, frameon=False)
    return axes


def _words(metric: str) -> str:
    return WORDS[metric][0].upper() + WORDS[metric][1:]


def _one_curve(axes: Axes, curve: Curves) -> NDArray[np.float64]:
    """Draws the mean over seeds, which it returns (nan where a seed is not finite), and their range."""
    steps = curve.steps[0]
    pairs = zip(curve.steps, curve.losses, strict=True)
    stack = np.array([loss for step, loss in pairs if np.array_equal(step, steps)])
    there = np.isfinite(stack).all(axis=0)
    finite = np.where(there, stack, np.nan)
    mean = finite.mean(axis=0)
    front = 4 if curve.label.startswith("mafalda") else 3
    style: dict[str, Any] = {"linestyle": (0, (4, 1.5)) if curve.dashed else "-", "solid_capstyle": "round"}
    marker = "o" if steps.size == 1 else None
    axes.plot(steps, mean, color=curve.colour, linewidth=2.1, marker=marker, zorder=front, **style)
    if len(stack) > 1:
        low, high = finite.min(axis=0), finite.max(axis=0)
        band: dict[str, Any] = {"alpha": 0.16, "linewidth": 0, "zorder": front - 1}
        axes.fill_between(steps[there], low[there], high[there], color=curve.colour, **band)
    return mean


def _final_losses(
    axes: Axes, curves: Sequence[Curves], num_seeds: int, last_steps: int, levels: Mapping[str, float], metric: str
) -> None:
    what = "" if num_seeds == 1 else " (bar: mean; dot: one seed)"
    axes.set_title(f"Final {WORDS[metric]}{what}", loc="left", fontsize=9.5, color=INK, pad=10)
    rows = list(range(len(curves)))[::-1]  # the first mechanism on top
    reached = [value for curve in curves if not curve.diverged for value in curve.reached] + list(levels.values())
    lowest, highest = min(reached, default=0.0), max(reached, default=1.0)
    logarithmic = not is_accuracy(metric) and lowest > 0 and highest / lowest >= FINAL_LOG_RATIO
    start = lowest / 1.4 if logarithmic else min(0.0, lowest)
    for row, curve in zip(rows, curves, strict=True):
        _one_final_loss(axes, row, curve, start)
    for loss in levels.values():
        axes.axvline(loss, **DOTTED)
    axes.set_yticks(rows, [curve.short for curve in curves])
    for tick, curve in zip(axes.get_yticklabels(), curves, strict=True):
        tick.set(color=curve.colour, fontweight="bold", fontsize=9.5)
    axes.set_ylim(-0.6, len(curves) - 0.4)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(start, highest * max(1.8, (highest / start) ** 0.35))  # room for the words beside a bar
        plain_decades(axes.xaxis, axes.get_xlim())
    else:
        axes.set_xlim(start, highest * 1.3 if math.isfinite(highest) and highest > 0 else 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    over = "nodes and " * is_of_nodes(metric)
    axes.set_xlabel(f"mean over {over}the last {last_steps} steps", fontsize=9, color=QUIET)
    quiet(axes, grid="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _one_final_loss(axes: Axes, row: int, curve: Curves, start: float) -> None:
    """A bar from `start` with its dots and its number, or the word that it diverged."""
    text: dict[str, Any] = {"color": curve.colour, "va": "center"}
    if curve.diverged:
        seeds = f" in {curve.diverged} of {len(curve.finals)} seeds" if len(curve.finals) > 1 else ""
        where: Any = ("axes fraction", "data")
        axes.annotate(f"diverged{seeds}", (0.02, row), xycoords=where, fontsize=8.5, style="italic", **text)
    elif curve.mean is not None:
        axes.barh(row, curve.mean - start, left=start, height=0.46, color=curve.colour, alpha=0.3, linewidth=0)
        axes.plot([curve.mean] * 2, [row - 0.23, row + 0.23], color=curve.colour, linewidth=2.4, zorder=3)
        if len(curve.reached) > 1:
            heights = row + np.linspace(0.12, -0.12, len(curve.reached))
            axes.scatter(curve.reached, heights, s=18, color=curve.colour, linewidths=0, zorder=4, clip_on=False)
        value = f"{curve.mean:.2f}" if 0.1 <= abs(curve.mean) < 1000 else f"{curve.mean:.3g}"
        end = (max([curve.mean, *curve.reached]), row)
        told = curve.accuracy is not None
        how: dict[str, Any] = {"annotation_clip": False, "textcoords": "offset points", "path_effects": HALO}
        bold = {**how, **text, "fontsize": 10, "fontweight": "bold", "va": "bottom" if told else "center"}
        axes.annotate(value, end, xytext=(7, -1 if told else 0), **bold)
        if told:
            small = {**how, "fontsize": 8, "color": QUIET, "va": "top"}
            axes.annotate(f"accuracy {curve.accuracy:.0%}", end, xytext=(7, -2), **small)
