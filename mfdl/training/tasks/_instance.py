"""One seed of a task: who holds which record, when it takes part, and clipped gradients of all nodes at once.

In: a `Task`, a seed and a period. Out: padded tensors over (node, step class, slot) and the functions that
the executor calls: per-record clipping for record-level privacy, clipped means for user level. Noise, gossip and step
sizes are in the executor.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from ... import check
from ...errors import InvalidInput, unknown_name
from ...privacy.guarantee import UNITS
from .. import clipping
from ..not_private import NotPrivate
from . import _modules, _seeds, partition

if TYPE_CHECKING:
    from ._task import Task

CHUNK_BYTES = 256 * 2**20
"""About the most memory that per-record gradients or activations take at one time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Test metrics of every node's model. NOT private: no noise was added for them (see `evaluate`).

    Attributes:
        loss: mean test loss, float64 (n,).
        accuracy: share of test records classified rightly, float64 (n,); None for regression.
    """

    loss: NotPrivate[torch.Tensor]
    accuracy: NotPrivate[torch.Tensor | None]


@dataclasses.dataclass(frozen=True, eq=False)
class TaskInstance:
    """A task with its records on nodes and in steps; n nodes, b = period, B slots, d parameters.

    The map from records to steps is public, drawn once and the same in all epochs: node u's record at
    position j of its order takes part in the steps t with t mod b == j mod b, in slot j // b. So a record is
    seen once per epoch, in the same step of it, whichever other records are there. Nodes may have periods b_u of
    their own; then b_u takes the place of b in all of this, and b is the largest of them in the shapes.

    Attributes:
        task, seed: what it was made of.
        period: steps after which every node feeds the same records again: b, or the least common multiple of b_u.
        features: (n, b, B, ...) padded with zeros where `mask` is False.
        targets: (n, b, B), padded with zeros.
        mask: bool (n, b, B). A record set to False here by `dataclasses.replace` takes no part (zero-out
            adjacency).
        record_index: int64 (n, b, B), rows of `task.features`; -1 in padding.
        public_batch_sizes: float64 (n,), ceil(records of u / b). The divisors: constants that do not follow
            the mask, so that they tell nothing of a record; the number of records of a node counts as public.
        initial_parameters: (n, d), all rows equal: public, drawn before any data are seen.
        test_features, test_targets: as in the task, on the device.
        model: the per-record functions of the module.
        node_periods: b_u of each node; None: b at every node.
    """

    task: Task
    seed: int
    period: int
    features: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor
    record_index: torch.Tensor
    public_batch_sizes: torch.Tensor
    initial_parameters: torch.Tensor
    test_features: torch.Tensor
    test_targets: torch.Tensor
    model: _modules.PerRecordModel
    _activations: int
    node_periods: tuple[int, ...] | None = None

    @property
    def dimension(self) -> int:
        """d, the number of trainable parameters."""
        return int(self.initial_parameters.shape[1])

    def clipped_gradients(self, models: torch.Tensor, step: int, clip_norm: float, unit: str) -> torch.Tensor:
        """What the noise of a mechanism of this unit of privacy is added to, (n, d).

        Args:
            models, step: as for `clipped_gradient_sums`.
            clip_norm: bound on the norm of one record's gradient, or with unit "user" of a node's mean gradient.
            unit: "record": `clipped_gradient_sums`; "user": `clipped_gradient_means`.

        Raises:
            InvalidInput: an unknown unit; models of another shape, dtype or device; a bad step or clip_norm.
        """
        if unit not in UNITS:
            raise unknown_name("unit", str(unit), UNITS)
        if unit == "user":
            return self.clipped_gradient_means(models, step, clip_norm)
        return self.clipped_gradient_sums(models, step, clip_norm)

    @torch.no_grad()
    def clipped_gradient_means(self, models: torch.Tensor, step: int, clip_norm: float) -> torch.Tensor:
        """Mean gradients of all nodes at one step, each clipped as a whole: user level.

        Args:
            models, step: as for `clipped_gradient_sums`.
            clip_norm: bound on the norm of a node's mean gradient; its records are not clipped one by one.

        Returns:
            (n, d). The mean is over the records that are present. Their number is no constant, but needs to be none:
            it acts inside the clip, as do the records. Nothing is left to divide by afterwards: the divisors are 1.

        Guarantees:
            Each row has norm <= clip_norm whatever the node's data are, and is zero where the mean is not finite or
            the batch is empty (`clipping.clipped_rows`). A node's row depends on its own model and records only.
        Raises:
            InvalidInput: models of another shape, dtype or device; a bad step or clip_norm.
        Cost: one gradient per node, not per record; about `CHUNK_BYTES` of memory beyond the result.
        """
        self._check_models(models)
        step_class = check.integer_at_least(0, step=step) % self.period
        features, targets, mask = self._batches(step_class)
        num_nodes, num_slots = mask.shape
        weights = mask.to(models.dtype) / mask.sum(1, keepdim=True).clamp(min=1)
        # An absent slot repeats a record that is there, at weight 0: its own padding could give 0 * inf = nan.
        filled = torch.where(mask, torch.arange(num_slots, device=mask.device), mask.int().argmax(1, keepdim=True))
        # Activations forward and backward of each record; the gradient of each node and its parts.
        slot_bytes = (4 * self._activations + -(-3 * self.dimension // num_slots)) * models.element_size()
        nodes, slots = _chunk(num_nodes, num_slots, slot_bytes)
        means = torch.zeros_like(models)
        for u in range(0, num_nodes, nodes):
            for s in range(0, num_slots, slots):
                chosen = filled[u : u + nodes, s : s + slots]
                rows = torch.arange(u, u + len(chosen), device=mask.device).unsqueeze(1)
                part = (slice(u, u + nodes), slice(s, s + slots))
                means[u : u + nodes] += self._weighted_gradients(
                    models[u : u + nodes], features[rows, chosen], targets[rows, chosen], weights[part]
                )
        return clipping.clipped_rows(means, mask.any(1), clip_norm)

    @torch.no_grad()
    def clipped_gradient_sums(self, models: torch.Tensor, step: int, clip_norm: float) -> torch.Tensor:
        """Sums of clipped per-record gradients of all nodes at one step.

        Args:
            models: (n, d), the model at which each node takes its gradients.
            step: t >= 0; the records of class t mod period take part.
            clip_norm: bound on the norm of one record's gradient.

        Returns:
            (n, d), a sum and not a mean: divide by `public_batch_sizes`, never by the number of present
            records.

        Guarantees:
            Each summand has norm <= clip_norm and is zero for masked records and non-finite gradients
            (`clipping.clipped_sums`). A node's row depends on its own model and records only.
        Raises:
            InvalidInput: models of another shape, dtype or device; a bad step or clip_norm.
        Cost: about `CHUNK_BYTES` of memory beyond the result, however large n, B and d are.
        """
        self._check_models(models)
        step_class = check.integer_at_least(0, step=step) % self.period
        features, targets, mask = self._batches(step_class)
        num_nodes, num_slots = mask.shape
        # Gradients, their finite copy and their products; activations forward and backward.
        record_bytes = (3 * self.dimension + 4 * self._activations) * models.element_size()
        nodes, slots = _chunk(num_nodes, num_slots, record_bytes)
        if (nodes, slots) == (num_nodes, num_slots):
            return self._chunk_sums(models, features, targets, mask, clip_norm)
        sums = torch.zeros_like(models)
        for u in range(0, num_nodes, nodes):
            for s in range(0, num_slots, slots):
                part = (slice(u, u + nodes), slice(s, s + slots))
                sums[u : u + nodes] += self._chunk_sums(
                    models[u : u + nodes], features[part], targets[part], mask[part], clip_norm
                )
        return sums

    @torch.no_grad()
    def evaluate(self, models: torch.Tensor) -> Evaluation:
        """Loss and accuracy of every node's model on the whole test set.

        Not private: the numbers are exact functions of the test records and of models that may not be
        released. They are for research; publishing them, or choosing parameters by them, is outside every
        guarantee.

        Args:
            models: (n, d).

        Raises:
            InvalidInput: models of another shape, dtype or device.
        Cost: n forward passes over the test set, in chunks of about `CHUNK_BYTES`.
        """
        self._check_models(models)
        record_bytes = 2 * self._activations * models.element_size()
        nodes, records = _chunk(len(models), len(self.test_targets), record_bytes)
        losses = torch.zeros(len(models), dtype=torch.float64, device=models.device)
        hits = torch.zeros_like(losses)
        record_losses = vmap(vmap(self.model.loss), in_dims=(0, None))
        for u in range(0, len(models), nodes):
            for s in range(0, len(self.test_targets), records):
                targets = self.test_targets[s : s + records]
                outputs = self.model.outputs(models[u : u + nodes], self.test_features[s : s + records])
                losses[u : u + nodes] += record_losses(outputs, targets).sum(1, dtype=torch.float64)
                if self.task.kind == "classification":
                    hits[u : u + nodes] += (outputs.argmax(-1) == targets).sum(1)
        size = len(self.test_targets)
        return Evaluation(losses / size, hits / size if self.task.kind == "classification" else None)

    def _batches(self, step_class: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Features, targets and mask of the batch that each node feeds in the steps of a class."""
        if self.node_periods is None:
            return self.features[:, step_class], self.targets[:, step_class], self.mask[:, step_class]
        nodes = torch.arange(len(self.mask), device=self.mask.device)
        own = torch.tensor([step_class % b for b in self.node_periods], device=self.mask.device)
        return self.features[nodes, own], self.targets[nodes, own], self.mask[nodes, own]

    def _chunk_sums(
        self,
        models: torch.Tensor,
        features: torch.Tensor,
        targets: torch.Tensor,
        mask: torch.Tensor,
        clip_norm: float,
    ) -> torch.Tensor:
        gradients = self.model.per_record_gradients(models, features, targets)
        sums = clipping.clipped_sums(list(gradients.values()), mask, clip_norm)
        return torch.cat([piece.flatten(1) for piece in (s.unsqueeze(-1) for s in sums)], dim=1)

    def _weighted_gradients(
        self, models: torch.Tensor, features: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Gradients (n, d) of each node's weighted sum of losses, weights (n, B); nothing is clipped."""

        def total(
            row: _modules.Parameters, records: torch.Tensor, wanted: torch.Tensor, weight: torch.Tensor
        ) -> torch.Tensor:
            outputs = functional_call(self.model.module, row, (records,))
            return (vmap(self.model.loss)(outputs, wanted) * weight).sum()

        gradients = vmap(grad(total))(self.model.unflatten(models), features, targets, weights)
        return torch.cat([gradient.reshape(len(models), -1) for gradient in gradients.values()], dim=1)

    def _check_models(self, models: torch.Tensor) -> None:
        wanted = self.initial_parameters
        facts = (tuple(wanted.shape), wanted.dtype, wanted.device)
        got: Any = type(models).__name__
        if isinstance(models, torch.Tensor):
            got = (tuple(models.shape), models.dtype, models.device)
        if got != facts:
            raise InvalidInput(f"models must be a tensor of shape, dtype and device {facts}, got {got}.")


Period = int | Sequence[int]
"""Steps per epoch: one number for all nodes, or one per node."""


def periods_of_nodes(period: Period, num_nodes: int) -> tuple[int, ...]:
    """b_u of each node.

    Raises: InvalidInput: no integers >= 1, or another number of them than nodes.
    """
    if not isinstance(period, Sequence) or isinstance(period, str):
        return (check.integer_at_least(1, period=period),) * num_nodes
    if len(period) != num_nodes:
        raise InvalidInput(f"period must be one number or one for each of {num_nodes} nodes, got {len(period)}.")
    return tuple(check.integer_at_least(1, period=own) for own in period)


def build_instance(task: Task, *, seed: int, period: Period, dtype: torch.dtype, device: Any) -> TaskInstance:
    """Splits and orders the records, pads them, and draws the first model; see `Task.instance`."""
    seed = check.integer_at_least(0, seed=seed)
    periods = periods_of_nodes(period, task.num_nodes)
    alike = len(set(periods)) == 1
    if alike:
        period = periods[0]
    if dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
    held = partition.dealt(task.partition, task.targets, task.num_nodes, seed)
    index = _record_index(held, seed=seed, period=period)
    mask = index >= 0
    features = task.features[np.maximum(index, 0)]
    features[~mask] = 0
    targets = task.targets[np.maximum(index, 0)]
    targets[~mask] = 0

    def tensor(array: Any) -> torch.Tensor:
        copy = torch.tensor(array, device=device)
        return copy.to(dtype) if copy.is_floating_point() else copy

    module = _modules.build(task.build_module, _seeds.torch_seed(seed, _seeds.INITIAL_MODEL))
    model = _modules.PerRecordModel(module.to(device=device, dtype=dtype), task.loss)
    test_features = tensor(task.test_features)
    return TaskInstance(
        task=task,
        seed=seed,
        period=math.lcm(*periods),
        features=tensor(features),
        targets=tensor(targets),
        mask=tensor(mask),
        record_index=tensor(index),
        public_batch_sizes=torch.tensor(task.public_batch_sizes(period, seed), dtype=torch.float64, device=device),
        initial_parameters=model.initial_row().repeat(task.num_nodes, 1),
        test_features=test_features,
        test_targets=tensor(task.test_targets),
        model=model,
        _activations=model.activation_size(test_features),
        node_periods=None if alike else periods,
    )


def _record_index(held: list[partition.Rows], *, seed: int, period: Period) -> partition.Rows:
    """Rows of the records at (node, step class, slot), -1 where there is none; held are the rows of each node."""
    num_records, num_nodes = sum(map(len, held)), len(held)
    periods = periods_of_nodes(period, num_nodes)
    smallest = min(range(num_nodes), key=lambda u: len(held[u]) - periods[u])
    if len(held[smallest]) < periods[smallest]:
        raise InvalidInput(
            f"each node needs at least period={periods[smallest]} records for non-empty batches, got "
            f"{len(held[smallest])} at node "
            f"{smallest} ({num_records} records over {num_nodes} nodes); use period <= "
            f"{len(held[smallest])}, a smaller "
            "graph, more records, or a partition that gives each node more (min_records=... of Dirichlet)."
        )
    slots = max(-(-len(records) // b) for records, b in zip(held, periods, strict=True))
    index = np.full((num_nodes, max(periods), slots), -1, dtype=np.int64)
    order = _seeds.permutation(seed, _seeds.BATCH_ORDER, num_records)  # one rank per record, so an order at each node
    for u, (records, b) in enumerate(zip(held, periods, strict=True)):
        position = np.arange(len(records))
        index[u, position % b, position // b] = records[np.argsort(order[records], kind="stable")]
    return index


def _chunk(num_nodes: int, num_slots: int, bytes_per_slot: int) -> tuple[int, int]:
    """Nodes and slots per chunk within CHUNK_BYTES: whole nodes if one fits, else some of a node's slots."""
    slots = max(1, CHUNK_BYTES // max(1, operator.index(bytes_per_slot)))
    return (min(num_nodes, slots // num_slots), num_slots) if slots >= num_slots else (1, slots)
