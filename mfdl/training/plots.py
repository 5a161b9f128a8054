"""The picture of runs: test loss over steps, and where each of them ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ..pictures.curves import Curves, colours_of, draw_curves

if TYPE_CHECKING:
    from .run import Run


def plot_runs(runs: Sequence[Run]) -> Figure:
    """Test loss over steps and final losses of runs on one task.

    Args: runs: one per mechanism, at least one.
    """
    names = [run.mechanism.algorithm.name for run in runs]
    curves = [
        Curves(
            name,
            colour,
            dashed,
            [seed.steps for seed in run.seeds],
            [seed.loss.mean(axis=1) for seed in run.seeds],
            [seed.final_loss for seed in run.seeds],
        )
        for name, run, (colour, dashed) in zip(names, runs, colours_of(names), strict=True)
    ]
    sentences = [run.mechanism.guarantee.sentence() for run in runs]
    guarantee = sentences[0]
    if len(set(sentences)) > 1:
        guarantee = " ".join(f"{name}: {sentence}" for name, sentence in zip(names, sentences, strict=True))
    task, gossip = runs[0].task_name, runs[0].mechanism.algorithm.dynamics.gossip
    seeds = ", ".join("not seeded" if seed.seed is None else str(seed.seed) for seed in runs[0].seeds)
    caption = f"Task {task} on {gossip.num_nodes} nodes, gossip {gossip.name}, seeds {seeds}. {guarantee}"
    title = f"Test loss on {task}, {gossip.num_nodes} nodes"
    return draw_curves(curves, title, caption, len(runs[0].seeds), runs[0].last_steps)
