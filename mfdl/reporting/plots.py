"""Pictures of runs: test loss over steps on the left, where each mechanism ended on the right.

In: runs, or the result and the steps of a comparison. Out: a matplotlib Figure of its own (no global state); what
is written where is for the caller to say. Colours are fixed per mechanism and safe for colour-blind readers
(Okabe and Ito's palette), and every line carries its name.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from ..training.run import LAST_STEPS, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

COLOURS = {
    "none": "#6e6e6e",
    "dp-dsgd": "#d55e00",
    "anti-pgd": "#cc79a7",
    "bsr": "#e69f00",
    "d-mf": "#0072b2",
    "mafalda": "#009e73",
    "mafalda-l": "#56b4e9",
    "mafalda-classes": "#17becf",
    "decor": "#bcbd22",
    "corn": "#a6761d",
    "time-space": "#7b3294",
    "adapted": "#d01c8b",
    "space-time": "#4d004b",
}
MORE_COLOURS = ("#000000", "#8c510a", "#3b6e8f", "#7f7f00", "#e377c2", "#1f3b73")  # for other names, in order

WORDS = {
    "none": "no noise, no privacy",
    "dp-dsgd": "independent noise",
    "anti-pgd": "noise of differences",
    "bsr": "banded square root",
    "d-mf": "optimal for one server",
    "mafalda": "optimal for this graph",
    "mafalda-l": "one encoder per node",
    "mafalda-classes": "one encoder per degree",
    "decor": "pairwise noise on edges",
    "corn": "optimal over nodes",
    "time-space": "time and nodes, a product",
    "adapted": "time and nodes, by direction",
    "space-time": "time and nodes, any form",
}

LOG_RATIO = 8.0  # largest over smallest drawn loss beyond which the left axis is logarithmic
FINAL_LOG_RATIO = 50.0  # the same for the final losses, whose lengths from zero say more while they can be seen
INK, QUIET, GRID = "#222222", "#6b6b6b", "#e3e3e3"
CAPTION_WIDTH = 166  # characters per line at the font and figure size below
MAX_CAPTION_LINES = 5


@dataclasses.dataclass(frozen=True, eq=False)
class _Curves:
    """One mechanism: per seed, the loss (mean over nodes) at every evaluated step, and the final loss or None."""

    name: str
    colour: str
    dashed: bool
    steps: list[NDArray[np.int64]]
    losses: list[NDArray[np.float64]]
    finals: list[float | None]

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


def plot_runs(runs: Sequence[Run]) -> Figure:
    """Test loss over steps and final losses of runs on one task.

    Args: runs: one per mechanism, at least one.
    """
    colours = _colours([run.mechanism.algorithm.name for run in runs])
    curves = [
        _Curves(
            name=run.mechanism.algorithm.name,
            colour=colour,
            dashed=dashed,
            steps=[one.steps for one in run.seeds],
            losses=[one.loss.mean(axis=1) for one in run.seeds],
            finals=[one.final_loss for one in run.seeds],
        )
        for run, (colour, dashed) in zip(runs, colours, strict=True)
    ]
    first = runs[0]
    sentences = dict.fromkeys(run.mechanism.guarantee.sentence() for run in runs)
    if len(sentences) == 1:
        guarantee = next(iter(sentences))
    else:
        guarantee = " ".join(f"{run.mechanism.algorithm.name}: {run.mechanism.guarantee.sentence()}" for run in runs)
    seeds = ", ".join("not seeded" if one.seed is None else str(one.seed) for one in first.seeds)
    gossip = first.mechanism.algorithm.dynamics.gossip
    caption = f"Task {first.task_name} on {gossip.num_nodes} nodes, gossip {gossip.name}, seeds {seeds}. {guarantee}"
    title = f"Test loss on {first.task_name}, {gossip.num_nodes} nodes"
    return _draw(curves, title, caption, len(first.seeds))


def plot_comparison(result: dict[str, Any], table: Any) -> Figure:
    """The picture of a comparison.

    Args:
        result: as `compare.run_comparison` returns it.
        table: pyarrow table with the columns mechanism, seed, step, node, loss.
    """
    names = [one["mechanism"] for one in result["mechanisms"]]
    labels = {one["mechanism"]: one.get("label", one["mechanism"]) for one in result["mechanisms"]}
    finals = {(one["mechanism"], one["seed"]): one["final_loss"] for one in result["runs"]}
    columns = {name: np.asarray(table[name]) for name in ("mechanism", "seed", "step", "loss")}
    curves = []
    for name, (colour, dashed) in zip(names, _colours(names), strict=True):
        seeds = [seed for mechanism, seed in finals if mechanism == name]
        pairs = [_mean_over_nodes(columns, name, seed) for seed in seeds]
        curves.append(
            _Curves(
                labels[name],
                colour,
                dashed,
                [steps for steps, _ in pairs],
                [losses for _, losses in pairs],
                [finals[name, seed] for seed in seeds],
            )
        )
    participation = result["participation"]
    caption = (
        f"Task {result['task']}; graph {result['graph']}, {result['nodes']} nodes, gossip {result['gossip']}; "
        f"{participation['epochs']} epochs of {participation['period']} steps, learning rate "
        f"{result['learning_rate']:g}; seeds {_span(result['seeds'])}, noise {result['noise']}. {result['guarantee']}"
    )
    if "none" in names and len(names) > 1:
        caption += " The guarantee is that of each mechanism but none, which adds no noise and has no guarantee."
    return _draw(curves, _finding(result, curves), caption, len(result["seeds"]))


def _mean_over_nodes(
    columns: dict[str, NDArray[Any]], name: str, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    rows = (columns["mechanism"] == name) & (columns["seed"] == seed)
    steps, where = np.unique(columns["step"][rows], return_inverse=True)
    totals = np.bincount(where, weights=columns["loss"][rows], minlength=steps.size)
    return steps.astype(np.int64), totals / np.maximum(np.bincount(where, minlength=steps.size), 1)


def _span(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _colours(names: Iterable[str]) -> list[tuple[str, bool]]:
    """Colour and whether dashed, per name."""
    chosen, others = [], 0
    for name in names:
        if name in COLOURS:
            chosen.append((COLOURS[name], False))
        else:
            chosen.append((MORE_COLOURS[others % len(MORE_COLOURS)], True))
            others += 1
    return chosen


def _finding(result: dict[str, Any], curves: Sequence[_Curves]) -> str:
    """What the picture shows, claimed only as far as every seed agrees."""
    target = f"μ = {result['mu']:.3g}" if isinstance(result["mu"], float) else "the same target"
    private = [one for one in curves if one.name != "none" and one.mean is not None]
    if result.get("across_trust_models"):
        return f"Test loss on {result['task']} under {target}, each mechanism under its own trust model: no ranking"
    if len(private) < 2:
        return f"Test loss on {result['task']} under {target}"
    best = min(private, key=lambda one: one.mean or 0.0)
    ties = [one for one in private if one is not best and not _always_above(one, best)]
    # in the order of their losses
    leaders = sorted([best, *ties], key=lambda one: one.mean or 0.0)
    if len(leaders) == len(private):
        return f"At equal privacy ({target}) no mechanism is ahead in every seed"
    names = " and ".join(_short(one.name) for one in leaders)
    verb = "ends" if len(leaders) == 1 else "end"
    return f"At equal privacy ({target}), {names} {verb} with the lowest test loss"


def _always_above(one: _Curves, other: _Curves) -> bool:
    return all(a > b for a, b in zip(one.reached, other.reached, strict=True))


def _draw(curves: Sequence[_Curves], title: str, caption: str, num_seeds: int) -> Figure:
    lines = _wrapped(caption)
    row_inches = 0.42
    body = max(3.9, 1.4 + row_inches * len(curves))
    foot = 0.30 + 0.165 * len(lines)
    height = 0.95 + body + 0.55 + foot
    figure = Figure(figsize=(11.0, height), facecolor="white")
    bottom, top = (foot + 0.55) / height, 1 - 0.95 / height
    left: Axes = figure.add_axes((0.055, bottom, 0.445, top - bottom))
    right: Axes = figure.add_axes((0.735, bottom, 0.225, top - bottom))
    figure.text(0.055, 1 - 0.34 / height, title, fontsize=14.5, fontweight="bold", color=INK, va="center")
    low, high = _range(curves)
    logarithmic = low > 0 and high / low >= LOG_RATIO
    _loss_over_steps(left, curves, num_seeds, logarithmic, (low, high))
    _final_losses(right, curves, num_seeds)
    figure.text(0.055, (foot - 0.08) / height, "\n".join(lines), fontsize=7.6, color=QUIET, va="top", linespacing=1.35)
    return figure


def _wrapped(caption: str) -> list[str]:
    lines = textwrap.wrap(caption, CAPTION_WIDTH, break_on_hyphens=False)
    if len(lines) > MAX_CAPTION_LINES:
        lines = [*lines[: MAX_CAPTION_LINES - 1], lines[MAX_CAPTION_LINES - 1][: CAPTION_WIDTH - 4] + " ..."]
    return lines


def _range(curves: Sequence[_Curves]) -> tuple[float, float]:
    """Smallest and largest loss worth drawing: a diverging run may not squeeze the others flat."""
    everything = [np.concatenate([loss[np.isfinite(loss)] for loss in one.losses] or [np.empty(0)]) for one in curves]
    calm = [values for one, values in zip(curves, everything, strict=True) if values.size and not one.diverged]
    drawn = np.concatenate(calm or [values for values in everything if values.size] or [np.array([0.0, 1.0])])
    low, high = float(drawn.min()), float(drawn.max())
    if not calm:  # only diverging runs: their first decades say enough
        high = min(high, max(low, 1e-300) * 1e3)
    return low, high


def _loss_over_steps(
    axes: Axes, curves: Sequence[_Curves], num_seeds: int, logarithmic: bool, limits: tuple[float, float]
) -> None:
    band = "" if num_seeds == 1 else f"; band: range over {num_seeds} seeds"
    axes.set_title(f"Test loss while training (mean over nodes{band})", loc="left", fontsize=9.5, color=INK, pad=10)
    low, high = limits
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.18, high * 1.18)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        margin = 0.06 * (high - low) or 0.06 * max(abs(high), 1.0)
        axes.set_ylim(low - margin, high + margin)
    last = 1
    ends: list[tuple[float, _Curves, str]] = []
    for one in curves:
        if not one.losses:
            continue
        steps = one.steps[0]
        shared = [loss for step, loss in zip(one.steps, one.losses, strict=True) if np.array_equal(step, steps)]
        stack = np.array(shared)
        if not steps.size:
            continue
        finite = np.where(np.isfinite(stack), stack, np.nan)
        there = np.isfinite(finite).all(axis=0)
        mean = np.where(there, stack.mean(axis=0), np.nan) if there.any() else np.full(steps.size, np.nan)
        style = (0, (4, 1.5)) if one.dashed else "-"
        front = 4 if one.name.startswith("mafalda") else 3
        axes.plot(
            steps,
            mean,
            color=one.colour,
            linewidth=2.1,
            linestyle=style,
            zorder=front,
            marker="o" if steps.size == 1 else None,
            solid_capstyle="round",
        )
        if len(stack) > 1 and there.any():
            axes.fill_between(
                steps[there],
                finite[:, there].min(axis=0),
                finite[:, there].max(axis=0),
                color=one.colour,
                alpha=0.16,
                linewidth=0,
                zorder=front - 1,
            )
        last = max(last, int(steps[-1]))
        shown = mean[there & (mean <= axes.get_ylim()[1])]
        if one.diverged:
            ends.append((high, one, "diverged"))
        elif shown.size:
            ends.append((float(shown[-1]), one, ""))
    axes.set_xlim(0, last)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("step", fontsize=9, color=QUIET)
    _quiet(axes, grid="y")
    _label_ends(axes, ends)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, _Curves, str]]) -> None:
    """Names beside the ends of the lines, pushed apart until none covers another."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((0, value))[1]) for value, _, _ in ends]
    order = sorted(range(len(ends)), key=lambda i: heights[i])
    apart = min(0.105, 1.0 / max(len(ends), 1))
    placed = _spread([heights[i] for i in order], apart)
    for i, y in zip(order, placed, strict=True):
        _, one, remark = ends[i]
        axes.plot(
            [1.004, 1.028], [heights[i], y], transform=axes.transAxes, color=one.colour, linewidth=0.9, clip_on=False
        )
        axes.annotate(
            _short(one.name),
            (1.036, y),
            xycoords="axes fraction",
            fontsize=10,
            fontweight="bold",
            color=one.colour,
            va="bottom" if _words(one.name, remark) else "center",
            annotation_clip=False,
        )
        if words := _words(one.name, remark):
            axes.annotate(
                words,
                (1.036, y - 0.006),
                xycoords="axes fraction",
                fontsize=8,
                color=QUIET,
                va="top",
                annotation_clip=False,
            )


def _words(name: str, remark: str) -> str:
    base, at, _ = name.partition("@")
    words = "given noise" if name.startswith("file:") else WORDS.get(base, "")
    return ", ".join(part for part in (words, "weighted" if at and words else "", remark) if part)


def _short(name: str) -> str:
    """File mechanisms by the end of their name, which tells them apart."""
    return name if len(name) <= 20 or not name.startswith("file:") else f"file:...{name[-12:]}"


def _spread(wanted: Sequence[float], apart: float) -> list[float]:
    """Increasing positions near `wanted` (increasing), at least `apart` from each other, within [0, 1] if they fit.

    Neighbours that are too close are merged into blocks, each centred on what its members want.
    """
    blocks: list[tuple[float, list[float]]] = []  # start, wanted values
    for value in wanted:
        members = [value]
        while True:
            middle = sum(members) / len(members)
            length = apart * (len(members) - 1)
            start = min(max(middle - length / 2, 0.04), max(0.97 - length, 0.0))
            if not blocks or blocks[-1][0] + apart * len(blocks[-1][1]) <= start + 1e-12:
                break
            members = blocks.pop()[1] + members
        blocks.append((start, members))
    return [start + apart * i for start, members in blocks for i in range(len(members))]


def _final_losses(axes: Axes, curves: Sequence[_Curves], num_seeds: int) -> None:
    what = "" if num_seeds == 1 else " (bar: mean; dot: one seed)"
    axes.set_title(f"Final test loss{what}", loc="left", fontsize=9.5, color=INK, pad=10)
    rows = list(range(len(curves)))[::-1]  # the first mechanism on top
    reached = [value for one in curves if not one.diverged for value in one.reached]
    highest = max(reached, default=1.0)
    lowest = min(reached, default=0.0)
    logarithmic = lowest > 0 and highest / lowest >= FINAL_LOG_RATIO
    for row, one in zip(rows, curves, strict=True):
        if one.diverged:
            text = f"diverged in {one.diverged} of {len(one.finals)} seeds" if len(one.finals) > 1 else "diverged"
            axes.annotate(
                text,
                (0.02, row),
                xycoords=("axes fraction", "data"),
                fontsize=8.5,
                color=one.colour,
                va="center",
                style="italic",
            )
            continue
        if one.mean is None:
            continue
        start = min(lowest / 1.4, lowest) if logarithmic else min(0.0, lowest)
        axes.barh(row, one.mean - start, left=start, height=0.46, color=one.colour, alpha=0.3, linewidth=0)
        axes.plot([one.mean, one.mean], [row - 0.23, row + 0.23], color=one.colour, linewidth=2.4, zorder=3)
        if len(one.reached) > 1:
            offsets = np.linspace(0.12, -0.12, len(one.reached))
            axes.scatter(one.reached, row + offsets, s=18, color=one.colour, linewidths=0, zorder=4, clip_on=False)
        axes.annotate(
            _value(one.mean),
            (max([one.mean, *one.reached]), row),
            xytext=(7, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            fontsize=10,
            fontweight="bold",
            color=one.colour,
            annotation_clip=False,
        )
    axes.set_yticks(rows, [_short(one.name) for one in curves])
    for tick, one in zip(axes.get_yticklabels(), curves, strict=True):
        tick.set_color(one.colour)
        tick.set_fontweight("bold")
        tick.set_fontsize(9.5)
    axes.set_ylim(-0.6, len(curves) - 0.4)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(lowest / 1.4, highest * 1.8)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(min(0.0, lowest), highest * 1.16 if math.isfinite(highest) and highest > 0 else 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.set_xlabel(f"mean over nodes and the last {LAST_STEPS} steps", fontsize=9, color=QUIET)
    _quiet(axes, grid="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _value(loss: float) -> str:
    return f"{loss:.2f}" if 0.1 <= abs(loss) < 1000 else f"{loss:.3g}"


def _quiet(axes: Axes, *, grid: str) -> None:
    """Only the lines that help reading."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bdbdbd")
    axes.tick_params(axis="x", colors=QUIET, labelsize=8.5)
    if grid == "y":
        axes.tick_params(axis="y", colors=QUIET, labelsize=8.5)
    axes.grid(axis="y" if grid == "y" else "x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
