"""Gradients of a node's mean loss, recorded once as plain tensor operations and played back.

In: a `PerRecordModel`. Out: the gradients of `vmap(grad(...))`, bit for bit. torch.func walks through Python in every
call, which for small models takes longer than the arithmetic; the operations are the same in every call, as modules
whose forward pass changes with the data or the call were refused (`modules.checked_model`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch.func import grad, vmap

from .modules import Parameters, PerRecordModel, output_of

CALLS_BEFORE = 100
"""Calls of one shape before it is recorded, which costs about as much as so many calls."""

Gradients = Callable[..., tuple[torch.Tensor, ...]]


class NodeGradients:
    """Gradients of sum_j w_j loss_j at each node's model, one tensor (nodes, *shape) per parameter.

    Guarantees: the bits of torch.func. What is recorded is compared with it on the call that records it, and not used
        where it differs or cannot be recorded.
    """

    __slots__ = ("_calls", "_eager", "_recorded")

    def __init__(self, model: PerRecordModel) -> None:
        self._eager = _of_nodes(model)
        self._calls: dict[tuple[object, ...], int] = {}
        self._recorded: dict[tuple[object, ...], Gradients] = {}

    def __call__(self, rows: torch.Tensor, *batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """At models (nodes, d), of records (nodes, B, ...), targets (nodes, B) and weights (nodes, B)."""
        key = tuple((x.shape, x.stride(), x.dtype, x.device) for x in (rows, *batch))
        if (recorded := self._recorded.get(key)) is not None:
            return recorded(rows, *batch)
        self._calls[key] = self._calls.get(key, 0) + 1
        gradients = self._eager(rows, *batch)
        if self._calls[key] == CALLS_BEFORE:
            self._recorded[key] = self._trusted(gradients, rows, *batch)
        return gradients

    def _trusted(self, gradients: tuple[torch.Tensor, ...], *arguments: torch.Tensor) -> Gradients:
        from torch.fx.experimental.proxy_tensor import make_fx  # takes a second to import

        try:
            recorded: Gradients = make_fx(self._eager)(*arguments)
            again = recorded(*arguments)
        except Exception:  # whatever a module does that cannot be recorded
            return self._eager
        same = all(torch.allclose(a, b, 0.0, 0.0, equal_nan=True) for a, b in zip(gradients, again, strict=True))
        return recorded if same else self._eager


def node_batch(
    features: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype, slots: slice = slice(None)
) -> tuple[torch.Tensor, ...]:
    """Records, targets and weights (nodes, B) of the mean over the present records, and which nodes have any.

    An absent slot repeats a record that is there, at weight 0: its own padding could give 0 * inf = nan.
    """
    weights = mask.to(dtype) / mask.sum(1, keepdim=True).clamp(min=1)
    places = torch.arange(mask.shape[1], device=mask.device)
    chosen = torch.where(mask, places, mask.int().argmax(1, keepdim=True))[:, slots]
    rows = torch.arange(len(mask), device=mask.device).unsqueeze(1)
    return features[rows, chosen], targets[rows, chosen], weights[:, slots], mask.any(1)


_OF_MODEL: weakref.WeakKeyDictionary[PerRecordModel, NodeGradients] = weakref.WeakKeyDictionary()


def node_gradients(model: PerRecordModel) -> NodeGradients:
    """The `NodeGradients` of a model, which remembers what was recorded as long as the model lives."""
    if model not in _OF_MODEL:
        _OF_MODEL[model] = NodeGradients(PerRecordModel(model.module, model.loss))  # a weak key is not in its value
    return _OF_MODEL[model]


def _of_nodes(model: PerRecordModel) -> Gradients:
    module, loss, unflatten = model.module, model.loss, model.unflatten

    def total(row: Parameters, records: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        outputs = output_of(module, row, records)
        return (vmap(loss)(outputs, wanted) * weights).sum()

    def gradients(rows: torch.Tensor, *batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(vmap(grad(total))(unflatten(rows), *batch).values())

    return gradients
