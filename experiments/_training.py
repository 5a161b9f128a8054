"""Training runs of a figure: every case once per seed, on worker processes, the mean loss over the last steps kept."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from joblib import Parallel, delayed
from rich.progress import track

import mfdl
from mfdl.mechanism import Mechanism
from mfdl.training.tasks import Task


@dataclass(frozen=True, eq=False)
class Case:
    """One point of a figure: a calibrated mechanism on a task."""

    key: tuple[object, ...]
    mechanism: Mechanism
    task: Task
    period: int = 1
    eval_every: int = 5
    last_steps: int = 199
    dtype: torch.dtype = torch.float64


def losses(cases: Sequence[Case], seeds: Sequence[int], jobs: int) -> dict[tuple[object, ...], np.ndarray]:
    """Per key the loss of each seed: mean over nodes and the evaluations of the last steps; nan if the run diverged."""
    pairs = list(itertools.product(cases, seeds))
    pool = Parallel(n_jobs=jobs, return_as="generator")
    results = pool(delayed(_loss)(case, seed) for case, seed in pairs)
    found = list(track(results, total=len(pairs), description="training runs"))
    values = np.array(found).reshape(len(cases), len(seeds))
    return {case.key: row for case, row in zip(cases, values, strict=True)}


def _loss(case: Case, seed: int) -> float:
    torch.set_num_threads(1)
    run = mfdl.replay(
        case.mechanism, case.task, seeds=[seed], period=case.period, eval_every=case.eval_every, dtype=case.dtype
    )
    (one,) = run.seeds
    late = one.steps > one.finished_steps - case.last_steps
    return float("nan") if one.diverged else float(one.loss[late].mean())


def best_of(found: dict[tuple[object, ...], np.ndarray], keys: Sequence[tuple[object, ...]]) -> tuple[object, ...]:
    """The key with the smallest mean over seeds; a diverged seed counts as infinitely bad."""
    return min(keys, key=lambda key: float(np.where(np.isnan(found[key]), np.inf, found[key]).mean()))


def always_below(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether a is below b at every seed."""
    return bool((a < b).all())
