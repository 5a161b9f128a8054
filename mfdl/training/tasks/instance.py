"""One seed of a task: records on nodes and in steps, and clipped gradients of all nodes at once.

Instances with the same period can be stacked along the nodes, so that one call takes the gradients of several runs;
each row is that of the run alone, up to rounding.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ... import check, metrics
from ...display import short_repr
from ...errors import InvalidInput, require_known
from ...metrics import NotPrivate
from ...privacy.questions import UNITS
from ..clipping import ClipRule
from . import modules
from .modules import node_batch
from .record_clipping import RecordClipping, clipped_rows

CHUNK_BYTES = 256 * 2**20  # about the most memory of per-record gradients or activations at one time
WORTH_SORTING = 0.75  # nodes are grouped by size where that leaves at most this share of the slots of all batches,
WORTH_A_CALL = 2**23  # and saves more numbers than these: a call for each size costs as much as some million of them
KEPT_BYTES = 128 * 2**20  # largest size of records at which the batches of whole nodes are kept


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Test metrics of every node's model. NOT private: no noise was added for them (see `TaskInstance.evaluate`).

    Float64 (n,), or () for metrics (`mfdl.metrics`) of the average model; accuracy is None for regression.
    """

    __repr__ = short_repr

    loss: NotPrivate[torch.Tensor]
    accuracy: NotPrivate[torch.Tensor | None]
    metrics: NotPrivate[Mapping[str, torch.Tensor]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class TaskInstance:
    """A task with its records on nodes and in steps; n nodes, b = period, B slots, d parameters.

    The map from records to steps is public, drawn once and the same in all epochs: node u's record at position j of its
    order takes part in the steps t with t mod b == j mod b, in slot j // b, whichever other records there are. Nodes
    may have periods b_u of their own in place of b, which then is the largest of them in the shapes.

    Attributes:
        period: steps after which every node feeds the same records again: b, or the least common multiple of b_u.
        features, targets: (n, b, B, ...) and (n, b, B), padded with zeros where `mask` is False.
        mask: bool (n, b, B). A record set to False here by `dataclasses.replace` takes no part (zero-out adjacency).
        record_index: int64 (n, b, B), rows of `task.features`; -1 in padding.
        public_batch_sizes: float64 (n,), ceil(records of u / b): the divisors, which do not follow the mask; the number
            of records of a node counts as public.
        initial_parameters: (n, d), all rows equal: public, drawn before any data are used.
        activations: numbers that the module puts out for one record. node_periods: b_u; None: b at every node.
        whole, nodes: the instance of all nodes, and the indices of these; None: all. n then counts these.
    """

    __repr__ = short_repr

    task: Any  # the Task, which imports this module
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
    model: modules.PerRecordModel
    activations: int
    node_periods: tuple[int, ...] | None = None
    whole: TaskInstance | None = None
    nodes: NDArray[np.intp] | None = None

    def node_part(self, nodes: NDArray[np.intp] | None) -> TaskInstance:
        """The instance of some of its nodes, in increasing order."""
        if nodes is None:
            return self
        at = torch.as_tensor(nodes, device=self.mask.device)
        names = "features", "targets", "mask", "record_index", "public_batch_sizes", "initial_parameters"
        periods = None if self.node_periods is None else tuple(self.node_periods[node] for node in nodes)
        parts: dict[str, Any] = {name: getattr(self, name)[at] for name in names}
        return dataclasses.replace(self, **parts, node_periods=periods, whole=self, nodes=nodes)

    def with_records(self, **parts: Any) -> TaskInstance:  # keeps the inspected way of clipping
        other = dataclasses.replace(self, **parts)
        vars(other)["_record_clipping"] = self._record_clipping
        return other

    @property
    def dimension(self) -> int:
        return int(self.initial_parameters.shape[1])

    @functools.cached_property
    def _record_clipping(self) -> RecordClipping:
        return RecordClipping.from_model(self.model, self.test_features[0], self.test_targets[0])

    def clipped_gradients(
        self,
        models: torch.Tensor,
        step: int,
        clip_norm: float | ClipRule,
        unit: str,
        scales: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The gradients that a mechanism adds noise to, by its unit of privacy, (n, d).

        Args: scales: public factors of every coordinate of a gradient before it is clipped, shape (n, d); default 1.
        Raises: InvalidInput: an unknown unit; models of another shape, dtype or device; a bad step or clip_norm.
        """
        require_known("unit", str(unit), UNITS)
        scales = None if scales is None else scales.to(models)
        if unit == "user":
            return self.clipped_gradient_means(models, step, clip_norm, scales)
        return self.clipped_gradient_sums(models, step, clip_norm, scales)

    @torch.no_grad()
    def clipped_gradient_means(
        self, models: torch.Tensor, step: int, clip_norm: float | ClipRule, scales: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Mean gradients (n, d) of all nodes at one step, each clipped as a whole: user level.

        The mean is over the present records. Their number acts inside the clip, so the divisors are 1.

        Guarantees:
            Each row has norm <= clip_norm whatever the node's data are, and is zero where the mean is not finite or
            the batch is empty (`clipped_rows`). A node's row depends on its own model and records only.
        Raises: as `clipped_gradients`.
        Cost: one gradient per node, not per record; about `CHUNK_BYTES` of memory beyond the result.
        """
        features, targets, mask = self._batches(models, step)
        num_slots = mask.shape[1]
        # Activations forward and backward of each record; the gradient of each node and its parts.
        slot_bytes = (4 * self.activations + -(-3 * self.dimension // num_slots)) * models.element_size()
        gradients = self.model.node_gradients
        if mask.numel() * slot_bytes <= CHUNK_BYTES and self.features.nbytes <= KEPT_BYTES:
            batch = self._batches_of_class.get(step % self.period)
            if batch is None:
                batch = self._batches_of_class[step % self.period] = node_batch(features, targets, mask, models.dtype)
            means = gradients(models, *batch[:-1])
            return clipped_rows(self.model, models, means if scales is None else scales * means, batch[-1], clip_norm)

        def part_gradients(nodes: slice, slots: slice) -> torch.Tensor:
            *batch, _ = node_batch(features[nodes], targets[nodes], mask[nodes], models.dtype, slots)
            return gradients(models[nodes], *batch)

        means = _summed(part_gradients, models, num_slots, slot_bytes)
        return clipped_rows(self.model, models, means if scales is None else scales * means, mask.any(1), clip_norm)

    @functools.cached_property
    def _batches_of_class(self) -> dict[int, tuple[torch.Tensor, ...]]:
        return {}

    @torch.no_grad()
    def clipped_gradient_sums(
        self, models: torch.Tensor, step: int, clip_norm: float | ClipRule, scales: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sums (n, d) of clipped gradients at step t, of records of class t mod period; divisors: `public_batch_sizes`.

        Guarantees:
            Each summand has norm <= clip_norm and is zero for masked records and non-finite gradients
            (`RecordClipping.sums`). A node's row depends on its own model and records only.
        Raises: as `clipped_gradients`.
        Cost: about `CHUNK_BYTES` of memory beyond the result, however large n, B and d are; of large layers the inputs
            and backprops of a record, not its gradient (`RecordClipping`).
        """
        batch = self._batches(models, step)
        if len(self._alike) == 1:
            return self._record_sums(models, *batch, clip_norm, scales)
        out = torch.empty_like(models)
        for nodes, width in self._alike:
            features, targets, mask = (part[nodes, :width] for part in batch)
            of_these = None if scales is None else scales[nodes]
            out[nodes] = self._record_sums(models[nodes], features, targets, mask, clip_norm, of_these)
        return out

    def _record_sums(
        self,
        models: torch.Tensor,
        features: torch.Tensor,
        targets: torch.Tensor,
        mask: torch.Tensor,
        clip_norm: float | ClipRule,
        scales: torch.Tensor | None,
    ) -> torch.Tensor:
        way = self._record_clipping if scales is None else dataclasses.replace(self._record_clipping, layers={})
        record_bytes = way.record_size(self.activations, mask.shape[1]) * models.element_size()

        def part_gradients(nodes: slice, slots: slice) -> torch.Tensor:
            part, of_nodes = (nodes, slots), None if scales is None else scales[nodes]
            return way.sums(models[nodes], features[part], targets[part], mask[part], clip_norm, of_nodes)

        return _summed(part_gradients, models, mask.shape[1], record_bytes)

    @functools.cached_property
    def _alike(self) -> list[tuple[torch.Tensor, int]]:
        """Nodes with batches of similar public size and their slots, where that saves much of the padding."""
        num_slots = self.mask.shape[2]
        sizes = self.public_batch_sizes.clamp(1, num_slots).to(torch.int64)
        classes = torch.log2(sizes.double()).ceil().to(torch.int64)
        nodes = [torch.nonzero(classes == c).ravel() for c in classes.unique()]
        alike = [(part, int(sizes[part].max())) for part in nodes]
        padded = sum(len(part) * width for part, width in alike)
        saved = len(sizes) * num_slots - padded
        large = saved * self._record_clipping.record_size(self.activations, num_slots) > WORTH_A_CALL
        worth = large and padded <= WORTH_SORTING * len(sizes) * num_slots
        return alike if worth else [(torch.arange(len(sizes), device=sizes.device), num_slots)]

    @torch.no_grad()
    def evaluate(
        self, models: torch.Tensor, measured: Iterable[str] = (), average: torch.Tensor | None = None
    ) -> Evaluation:
        """Loss and accuracy of every node's model on the whole test set.

        Not private: the numbers are exact functions of the test records and of models that may not be released. They
        are for research; publishing them, or choosing parameters by them, is outside every guarantee.

        Args: measured: further metrics (`mfdl.metrics.METRICS`), which change no bit of loss and accuracy; average: the
            mean model of all nodes, (1, d), default that of `models`.
        Raises: InvalidInput: models of another shape, dtype or device; an unknown metric, the accuracy of a regression.
        Cost: n forward passes over the test set, in chunks of about `CHUNK_BYTES`; "train_loss" n over the train set,
            "average_train_loss" one, the other two together one over the test set.
        """
        self._check_models(models)
        metrics.require_measured(metrics.requested(measured), self.task.kind, self.task.name)
        result = evaluate([self], models, measured, average)
        scalars = {name: x if metrics.is_of_nodes(name) else x[0] for name, x in result.metrics.items()}
        return dataclasses.replace(result, metrics=scalars)

    def test(self, rows: torch.Tensor) -> Evaluation:
        classes = self.task.kind == "classification"
        return tested(self.model, rows, self.test_features, self.test_targets, classes, self.activations)

    def train_losses(self, rows: torch.Tensor) -> torch.Tensor:
        """Mean loss of models (rows, d) over all train records that take part, of all nodes."""
        total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        whole = self if self.whole is None else self.whole
        for features, targets, mask in zip(whole.features, whole.targets, whole.mask, strict=True):
            count = int(mask.sum())
            if count:
                records = features[mask], targets[mask]
                total += count * tested(self.model, rows, *records, False, self.activations).loss
        return total / whole.mask.sum()

    def _batches(self, models: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self._check_models(models)
        step_class = check.integer_at_least(0, step=step) % self.period
        at: Any = (slice(None), step_class)
        if self.node_periods is not None:
            nodes = torch.arange(len(self.mask), device=self.mask.device)
            at = nodes, torch.tensor([step_class % b for b in self.node_periods], device=self.mask.device)
        return self.features[at], self.targets[at], self.mask[at]

    def _check_models(self, models: torch.Tensor) -> None:
        wanted, got = (
            (tuple(x.shape), x.dtype, x.device) if isinstance(x, torch.Tensor) else type(x).__name__
            for x in (self.initial_parameters, models)
        )
        if got != wanted:
            raise InvalidInput(f"models must be a tensor of shape, dtype and device {wanted}, got {got}.")


@torch.no_grad()
def tested(
    model: modules.PerRecordModel,
    rows: torch.Tensor,
    features: torch.Tensor,
    targets: torch.Tensor,
    classes: bool,
    activations: int,
) -> Evaluation:
    """Mean loss, and accuracy of `classes`, of models (rows, d) on the same records, in chunks of `CHUNK_BYTES`."""
    losses = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    hits, size = torch.zeros_like(losses), len(targets)
    # a quarter of CHUNK_BYTES at a time: tensors that malloc keeps, where fresh pages take three times as long
    for nodes, records in _parts(len(rows), size, 4 * 2 * activations * rows.element_size()):
        wanted = targets[records]
        outputs = model.outputs(rows[nodes], features[records])
        losses[nodes] += model.losses(outputs, wanted.expand(len(outputs), -1)).sum(1, dtype=torch.float64)
        if classes:
            hits[nodes] += (outputs.argmax(-1) == wanted).sum(1)  # exact: scores that are the same number
    return Evaluation(losses / size, hits / size if classes else None)


def _summed(
    part_gradients: Callable[[slice, slice], torch.Tensor], models: torch.Tensor, num_slots: int, bytes_per_slot: int
) -> torch.Tensor:
    parts = [*_parts(len(models), num_slots, bytes_per_slot)]
    if len(parts) == 1:
        return part_gradients(*parts[0])
    out = torch.zeros_like(models)
    for nodes, slots in parts:
        out[nodes] += part_gradients(nodes, slots)
    return out


def _parts(num_nodes: int, num_slots: int, bytes_per_slot: int) -> Iterator[tuple[slice, slice]]:
    """Nodes x slots in parts within CHUNK_BYTES: whole nodes if one fits, else some of a node's slots."""
    fit = max(1, CHUNK_BYTES // max(1, operator.index(bytes_per_slot)))
    nodes, slots = (min(num_nodes, fit // num_slots), num_slots) if fit >= num_slots else (1, fit)
    for u in range(0, num_nodes, nodes):
        for s in range(0, num_slots, slots):
            yield slice(u, u + nodes), slice(s, s + slots)


BY_NODE = "features", "targets", "mask", "record_index"


def fit_together(instance: TaskInstance, base: TaskInstance) -> bool:
    """Whether their modules are the same function of the trained parameters: frozen numbers are equal."""

    def frozen(task: TaskInstance) -> dict[str, torch.Tensor]:
        module = task.model.module
        constants = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        return constants | dict(module.named_buffers())

    first, second = frozen(instance), frozen(base)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def stacked(instances: Sequence[TaskInstance]) -> TaskInstance:
    """One instance of all nodes, with the slots of the largest batch; a copy of all records."""
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
    """The same instances as views of the stack and of the first one's test records."""
    n, first, views = len(instances[0].mask), instances[0], []
    for run, instance in enumerate(instances):
        at = slice(run * n, (run + 1) * n), slice(None), slice(instance.mask.shape[2])
        records: dict[str, Any] = {name: getattr(stack, name)[at] for name in BY_NODE}
        records |= {"test_features": first.test_features, "test_targets": first.test_targets}
        views.append(instance.with_records(**records))
    return views


@torch.no_grad()
def evaluate(
    instances: Sequence[TaskInstance],
    models: torch.Tensor,
    measured: Iterable[str] = (),
    averages: torch.Tensor | None = None,
) -> Evaluation:
    """Metrics of the models (R n, d) of all runs in one call, shape (R n,), or (R,) for those of `averages`, (R, d)."""
    first, of_runs = instances[0], models.unflatten(0, (len(instances), -1))
    wanted, more = metrics.requested(measured), dict[str, torch.Tensor]()
    evaluation = first.test(models)
    if averages is None:
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
