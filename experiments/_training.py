"""`models_after` trains as `mfdl.replay` does and hands out the models of chosen steps, for other losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.func import vmap

import mfdl
from mfdl.mechanism import Mechanism
from mfdl.training.executor import Executor
from mfdl.training.keys import NoiseKey
from mfdl.training.streams import noise_stream
from mfdl.training.tasks import Task, TaskInstance

EVALUATED_NODES = 16  # at a time: the activations of more leave the cache


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
