"""Instances of one task stacked along the nodes, so that the gradients of several runs are taken in one call.

In: `TaskInstance`s of one task with the same period, each of n nodes. Out: one instance of R n nodes, run after run.
Nodes never act on each other there, so each row is what it is alone, up to rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ... import metrics
from .instance import Evaluation, TaskInstance

BY_NODE = "features", "targets", "mask", "record_index"


def fit_together(instance: TaskInstance, base: TaskInstance) -> bool:
    """Whether their modules are the same function of the trained parameters: no frozen number depends on the seed."""

    def frozen(task: TaskInstance) -> dict[str, torch.Tensor]:
        module = task.model.module
        constants = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        return constants | dict(module.named_buffers())

    first, second = frozen(instance), frozen(base)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def stacked(instances: Sequence[TaskInstance]) -> TaskInstance:
    """One instance of all nodes, with as many slots as the largest batch has.

    Cost: a copy of all records.
    """
    first, slots = instances[0], max(instance.mask.shape[2] for instance in instances)
    together: dict[str, Any] = {name: _joined([getattr(x, name) for x in instances], slots) for name in BY_NODE}
    together["record_index"] = torch.where(together["mask"], together["record_index"], -1)
    for name in ("public_batch_sizes", "initial_parameters"):
        together[name] = torch.cat([getattr(instance, name) for instance in instances])
    periods = [instance.node_periods for instance in instances if instance.node_periods is not None]
    return first.with_records(**together, node_periods=sum(periods, ()) or None)


def _joined(parts: Sequence[torch.Tensor], slots: int) -> torch.Tensor:
    """Parts (n, b, B, ...) along the nodes, padded with zeros to B = slots."""
    n, b, _, *shape = parts[0].shape
    joined = parts[0].new_zeros((len(parts) * n, b, slots, *shape))
    for run, part in enumerate(parts):
        joined[run * n : (run + 1) * n, :, : part.shape[2]] = part
    return joined


def without_copies(instances: Sequence[TaskInstance], stack: TaskInstance) -> list[TaskInstance]:
    """The same instances, whose tensors are views of the stack and of the first one's test records."""
    n, first, views = len(instances[0].mask), instances[0], []
    for run, instance in enumerate(instances):
        at = slice(run * n, (run + 1) * n), slice(None), slice(instance.mask.shape[2])
        records: dict[str, Any] = {name: getattr(stack, name)[at] for name in BY_NODE}
        records |= {"test_features": first.test_features, "test_targets": first.test_targets}
        views.append(instance.with_records(**records))
    return views


@torch.no_grad()
def evaluate(instances: Sequence[TaskInstance], models: torch.Tensor, measured: Iterable[str] = ()) -> Evaluation:
    """Metrics of the models of all runs, as `TaskInstance.evaluate` gives them run by run.

    Args: models: (R n, d), run after run.
    Returns: metrics of shape (R n,), or (R,) for those of average models.
    Cost: test metrics of all runs in one call; metrics on train records run by run.
    """
    first, of_runs = instances[0], models.unflatten(0, (len(instances), -1))
    wanted, more = metrics.requested(measured), dict[str, torch.Tensor]()
    evaluation = first.test(models)
    averages = of_runs.mean(1, dtype=torch.float64).to(models.dtype)
    if "train_loss" in wanted:
        more["train_loss"] = torch.cat([x.train_losses(rows) for x, rows in zip(instances, of_runs, strict=True)])
    if {"average_loss", "average_accuracy"} & set(wanted):
        of_averages = first.test(averages)
        more["average_loss"] = of_averages.loss
        if of_averages.accuracy is not None:
            more["average_accuracy"] = of_averages.accuracy
    if "average_train_loss" in wanted:
        rows_of = zip(instances, averages.split(1), strict=True)
        more["average_train_loss"] = torch.cat([x.train_losses(row) for x, row in rows_of])
    return dataclasses.replace(evaluation, metrics={name: more[name] for name in wanted})
