"""What no training gives: the untrained model of a seed, and a guess that looks at no record.

In: a task. Out: test loss and accuracy, which trained models are held against. As every test metric they are covered by
no guarantee.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.func import vmap

from ..not_private import NotPrivate
from . import modules, seeds
from .instance import tested

if TYPE_CHECKING:
    from ._task import Task


@dataclasses.dataclass(frozen=True)
class Baseline:
    """Mean test loss, and for classification the share of test records classified rightly (else None)."""

    loss: NotPrivate[float]
    accuracy: NotPrivate[float | None] = None


def untrained(task: Task, seed: int) -> Baseline:
    """The first model of the runs of a seed, which all nodes and mechanisms share.

    Cost: one forward pass over the test records.
    """
    module = modules.build(task.build_module, seeds.torch_seed(seed, seeds.INITIAL_MODEL))
    model = modules.PerRecordModel(module, task.loss)
    features, targets = torch.tensor(task.test_features), torch.tensor(task.test_targets)
    classes = task.kind == "classification"
    found = tested(model, model.initial_row()[None], features, targets, classes, model.activation_size(features))
    return Baseline(float(found.loss[0]), None if found.accuracy is None else float(found.accuracy[0]))


def chance(task: Task) -> Baseline | None:
    """Classification: the loss of equal scores, the accuracy of the commonest class of the train records.

    Regression: the loss of the mean target of the train records. None where that means nothing: targets that are all
    the same, an output of more than one number, or a loss that refuses it.
    """
    module = modules.build(task.build_module, seed=0)
    try:
        with torch.no_grad():
            output = module(torch.tensor(task.test_features[:1]))[0]
            guess = torch.zeros_like(output)
            if task.kind == "regression":
                if output.numel() != 1 or np.ptp(task.targets) == 0:
                    return None
                guess += float(task.targets.mean(dtype=np.float64))
            targets = torch.tensor(task.test_targets)
            loss = float(vmap(task.loss, in_dims=(None, 0))(guess, targets).double().mean())
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    if not np.isfinite(loss):
        return None
    if task.kind == "regression":
        return Baseline(loss)
    commonest = int(np.bincount(task.targets).argmax())
    return Baseline(loss, float((task.test_targets == commonest).mean()))
