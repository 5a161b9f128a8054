"""Training runs of a figure: every case once per seed, on worker processes, the mean loss over the last steps kept.

`models_after` trains as `mfdl.replay` does and hands out the models of chosen steps, for losses that it does not know.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from joblib import Parallel, delayed
from rich.progress import track
from torch.func import vmap

import mfdl
from mfdl.mechanism import Mechanism
from mfdl.training.executor import Executor
from mfdl.training.keys import NoiseKey
from mfdl.training.streams import noise_stream
from mfdl.training.tasks import Task, TaskInstance

EVALUATED_NODES = 16  # at a time: the activations of more leave the cache


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


def models_after(
    mechanism: Mechanism,
    task: Task,
    seed: int,
    steps: Sequence[int],
    *,
    period: int,
    dtype: torch.dtype = torch.float32,
) -> Iterator[tuple[TaskInstance, torch.Tensor]]:
    """The instance and the models (n, d) after each of the steps, in increasing order.

    The models of `mfdl.replay` at record level on the CPU, by its keys and its loop, without its evaluations: where few
    steps count, evaluating takes more time than training.
    """
    # all that it refuses
    mfdl.replay(mechanism, task, seeds=[seed], period=period, stop_after=0, eval_every=max(steps))
    instance = task.instance(seed, period, dtype=dtype)
    executor = Executor(mechanism.algorithm.with_divisors(task.public_batch_sizes(period, seed)), dtype=dtype)
    key = NoiseKey.from_seed(seed).derive("replay", mechanism.content_hash, task.content_hash, seed, str(dtype))
    stream = noise_stream(mechanism.algorithm.noise, mechanism.noise_std, key, instance.dimension)
    state = executor.initial_state(instance.initial_parameters)
    for t in range(max(steps)):
        gradients = instance.clipped_gradients(executor.models(state), t, mechanism.clip_norm, mechanism.unit)
        _, state = executor.step(t, state, gradients, torch.tensor(stream.step(t), dtype=dtype))
        if t + 1 in steps:
            yield instance, executor.models(state)


@torch.no_grad()
def record_losses(instance: TaskInstance, models: torch.Tensor) -> np.ndarray:
    """Test loss of every node's model on every test record, shape (n, records), float64."""
    of_records = vmap(vmap(instance.model.loss), in_dims=(0, None))
    found = []
    for some in models.split(EVALUATED_NODES):
        outputs = instance.model.outputs(some, instance.test_features)
        found.append(of_records(outputs, instance.test_targets).double().numpy())
    return np.concatenate(found)
