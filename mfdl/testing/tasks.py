"""Tasks whose gradients are known in advance, for tests of what a run sends.

Not imported with `mfdl.testing`, since it brings torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..check import FloatArray
from ..training import tasks
from ..training.tasks import Task

__all__ = ["linear_task", "still_task"]


class _Dot(torch.nn.Module):
    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(dimension))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weights).sum(dim=1)


class _Still(_Dot):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (0 * self.weights).sum() + 0 * x.sum(dim=1)


def _output_itself(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output + 0 * target


def linear_task(num_nodes: int, features: ArrayLike) -> Task:
    """A task in which the gradient of a record is its features, whatever the model.

    Args: features: shape (num_records, d); the model has d weights, each node num_records / n records, some one more.

    >>> instance = linear_task(2, [[1.0, 2.0], [3.0, 4.0]]).instance(0, 1)
    >>> instance.clipped_gradients(instance.initial_parameters, 0, clip_norm=10.0, unit="record").sum(dim=0)
    tensor([4., 6.])
    """
    x = np.asarray(features, dtype=np.float64)
    return _task("linear", num_nodes, partial(_Dot, x.shape[1]), x)


def still_task(num_nodes: int, features: ArrayLike, dimension: int) -> Task:
    """A task whose gradients are all zero, so that models hold the noise alone.

    Args: features: shape (num_records, any); they change nothing but the fingerprint. dimension: weights of the model.
    """
    return _task("still", num_nodes, partial(_Still, dimension), np.asarray(features, dtype=np.float64))


def _task(name: str, num_nodes: int, build: Callable[[], torch.nn.Module], features: FloatArray) -> Task:
    return tasks.from_module(
        name,
        num_nodes,
        kind="regression",
        build_module=build,
        loss=_output_itself,
        features=features,
        targets=np.zeros(len(features)),
        test_features=features[:1],
        test_targets=np.zeros(1),
        public_constants="none",
    )
