"""What a run tells while it trains, once an evaluation is on the disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..shown import short_repr
from .not_private import NotPrivate


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluatedStep:
    """What `replay(on_evaluation=...)` is told; what is marked `NotPrivate` is covered by no guarantee.

    Attributes:
        step: number of finished steps.
        seed: of the run; None when drawn by the operating system.
        loss: test loss of each node, shape (n,).
        accuracy: test accuracy of each node, shape (n,), or None for regression.
        models: a copy of all models, shape (n, d), float64; a guarantee may speak of the final ones only.
        diverged: a model or a test loss was not finite at this evaluation or before.
        metrics: those asked for by name (`mfdl.metrics`), shape (n,), or () for the average model.
    """

    __repr__ = short_repr

    step: int
    seed: int | None
    loss: NotPrivate[NDArray[np.float64]]
    accuracy: NotPrivate[NDArray[np.float64] | None]
    models: NotPrivate[NDArray[np.float64]]
    diverged: NotPrivate[bool]
    metrics: NotPrivate[Mapping[str, NDArray[np.float64]]] = dataclasses.field(default_factory=dict)
