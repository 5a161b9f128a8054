"""The picture of runs: test loss over steps, and where each of them ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ..pictures.curves import Curves, colours_of, draw_curves
from .learned import AT_BEST, Judged
from .run import judged

if TYPE_CHECKING:
    from .run import Run


def plot_runs(runs: Sequence[Run]) -> Figure:
    """Test loss over steps and final losses of runs on one task.

    Args: runs: one per mechanism, at least one.
    """
    names = [run.mechanism.algorithm.name for run in runs]
    verdict = judged(runs)
    curves = [
        Curves(
            name,
            colour,
            dashed,
            [seed.steps for seed in run.seeds],
            [seed.loss.mean(axis=1) for seed in run.seeds],
            [seed.final_loss for seed in run.seeds],
            ended.accuracy,
        )
        for name, run, ended, (colour, dashed) in zip(names, runs, verdict.ended, colours_of(names), strict=True)
    ]
    sentences = [run.mechanism.guarantee.sentence() for run in runs]
    guarantee = sentences[0]
    if len(set(sentences)) > 1:
        guarantee = " ".join(f"{name}: {sentence}" for name, sentence in zip(names, sentences, strict=True))
    task, gossip = runs[0].task_name, runs[0].mechanism.algorithm.dynamics.gossip
    seeds = ", ".join("not seeded" if seed.seed is None else str(seed.seed) for seed in runs[0].seeds)
    setting = f"Task {task} on {gossip.num_nodes} nodes, gossip {gossip.name}, seeds {seeds}."
    title = f"Test loss on {task}, {gossip.num_nodes} nodes{_privacy(runs)}"
    if verdict.finding:
        title = f"{verdict.finding}: {task}{_privacy(runs)}"
    caption = " ".join([setting, *verdict.advice, guarantee])
    return draw_curves(curves, title, caption, len(runs[0].seeds), runs[0].last_steps, levels=levels_of(verdict))


def levels_of(verdict: Judged) -> dict[str, float]:
    """The loss of the untrained model, as a line to draw."""
    start = verdict.untrained
    return {} if start is None or start.loss <= AT_BEST else {"untrained": start.loss}


def _privacy(runs: Sequence[Run]) -> str:
    """mu and epsilon of the runs, where they have one."""
    stated = {(run.mechanism.guarantee.mu, run.mechanism.guarantee.epsilon_in_words) for run in runs}
    (mu, epsilon), *others = sorted(stated)
    return "" if others or mu == math.inf else f" (mu = {mu:.4g}, {epsilon})"
