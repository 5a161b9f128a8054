"""The picture of runs: test loss over steps, and where each of them ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..display import rounded_up
from ..errors import InvalidInput, require_known
from ..mechanism import Mechanism
from ..metrics import WORDS, is_accuracy
from ..pictures.curves import Curves, draw_curves, draw_over_steps
from ..pictures.looks import looks_of
from .learned import AT_BEST, Judged
from .run import judged

if TYPE_CHECKING:
    from .run import Run, SeedRun


@overload
def plot_runs(runs: Sequence[Run], ax: None = None, *, metric: str = "loss") -> Figure: ...


@overload
def plot_runs(runs: Sequence[Run], ax: Axes | None, *, metric: str = "loss") -> Figure | Axes: ...


def plot_runs(runs: Sequence[Run], ax: Axes | None = None, *, metric: str = "loss") -> Figure | Axes:
    """Test loss over steps and final losses of runs on one task.

    Args:
        runs: one per mechanism, at least one.
        ax: axes to draw the curves over steps in, which are then returned; default a Figure of its own, with final
            losses beside and the guarantees below.
        metric: "loss", "accuracy" of a classifier, or one of the requested metrics.

    Raises: InvalidInput: no run, another metric, or one that a run has not.
    """
    require_known("metric", metric, WORDS)
    if not runs:
        raise InvalidInput("runs must hold at least one run.")
    names = [run.mechanism.algorithm.name for run in runs]
    verdict = judged(runs)
    curves = [
        Curves(
            name,
            look,
            [seed.steps for seed in run.seeds],
            [_values(seed, metric, run.task_name) for seed in run.seeds],
            [seed.final(metric) for seed in run.seeds],
            ended.accuracy if metric == "loss" else None,
        )
        for name, run, ended, look in zip(names, runs, verdict.ended, looks_of(names), strict=True)
    ]
    levels = levels_of(verdict, metric)
    if ax is not None:
        return draw_over_steps(ax, curves, len(runs[0].seeds), levels=levels, metric=metric, named=False)
    task, gossip = runs[0].task_name, runs[0].mechanism.algorithm.dynamics.gossip
    seeds = ", ".join("not seeded" if seed.seed is None else str(seed.seed) for seed in runs[0].seeds)
    setting = f"Task {task} on {gossip.num_nodes} nodes with gossip {gossip.name}, seeds {seeds}."
    title = f"{WORDS[metric].capitalize()} on {task}, {gossip.num_nodes} nodes{_privacy(runs)}"
    if verdict.finding:
        title = f"{verdict.finding}: {task}{_privacy(runs)}"
    caption = " ".join([setting, *_guarantees(runs), *verdict.advice])
    first = runs[0]
    return draw_curves(curves, title, caption, len(first.seeds), first.last_steps, levels=levels, metric=metric)


def levels_of(verdict: Judged, metric: str = "loss") -> dict[str, float]:
    """The test loss, or test accuracy, of the untrained model, as a line to draw."""
    start = verdict.untrained if "train" not in metric else None
    if is_accuracy(metric):
        return {} if start is None or start.accuracy is None else {"untrained": start.accuracy}
    return {} if start is None or start.loss <= AT_BEST else {"untrained": start.loss}


def _guarantees(runs: Sequence[Run]) -> list[str]:
    """A sentence for runs whose guarantees differ in the base noise alone, else one for each."""
    of_runs = {run.mechanism.algorithm.name: run.mechanism.guarantee.sentence().split(", ") for run in runs}
    first, *others = of_runs.values()
    alike = [part for part in first if all(part in parts for parts in others)]
    if all(part.startswith("base noise std") for parts in of_runs.values() for part in parts if part not in alike):
        return [f"The guarantee is {', '.join(alike)}."]
    return [f"The guarantee of {name} is {', '.join(parts)}." for name, parts in of_runs.items()]


def _values(seed: SeedRun, metric: str, task: str) -> NDArray[np.float64]:
    """At every evaluation, mean over nodes."""
    if metric == "accuracy" and seed.accuracy is None:
        raise InvalidInput(f"metric 'accuracy' needs a classifier, and task {task!r} is a regression; use 'loss'.")
    if metric not in seed.measured:
        raise InvalidInput(f"this run did not measure {metric!r}; ask for it: replay(..., metrics=[{metric!r}]).")
    values = seed.measured[metric]
    return values if values.ndim == 1 else values.mean(axis=1)


def _privacy(runs: Sequence[Run]) -> str:
    """What the runs are guaranteed in common, where that is finite."""
    statements = {_in_words(run.mechanism) for run in runs}
    return "" if len(statements) > 1 else statements.pop()


def _in_words(mechanism: Mechanism) -> str:
    """mu, if there is one, and epsilon; empty where nothing is guaranteed."""
    guarantee = mechanism.guarantee
    mu = "" if guarantee.mu is None else f"mu = {rounded_up(guarantee.mu, 6)}, "
    return f" ({mu}{guarantee.epsilon_in_words})" if guarantee.finite else ""
