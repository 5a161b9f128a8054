"""A learning task: records, a module and a per-record loss, the same for every mechanism and seed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ... import check
from ...errors import InvalidInput
from ...graphs import SparseGraph, labels, resolved_name
from ...matrices import read_only
from ...privacy.owners import Owners
from ...spec import Entry, Registry
from . import modules, records
from . import partition as partitions
from . import preconditioner as preconditioners
from .instance import TaskInstance
from .partition import Period, periods_of_nodes, record_index
from .preconditioner import Preconditioner

Kind = Literal["classification", "regression"]
TASKS: Registry[Entry] = Registry("task", supplied=("graph_or_num_nodes", "data_home"))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Task:
    """Records on nodes, a model and a loss.

    Attributes:
        features: train records, shape (N, ...), as float32 or int64. targets: shape (N,); int64 classes
            ("classification") or float32 values ("regression").
        build_module: returns a new module for batches (records, ...); its random initial values come from torch's
            global generator, which is seeded around the call. For worker processes it must be picklable.
        loss: (output of one record, target of one record) -> scalar.
        num_nodes: n, over which the train records are split by `partition`; default a uniform random split.
        lipschitz: L such that every local map x -> x - eta g(x) is L-Lipschitz at the step sizes of the training, for
            every possible record; your claim (docs/shift_reduction.md). None: guarantees that rest on one are refused.
        public_constants: features, targets or parts of the first model that were computed from the records and are
            declared public, in words, or "none"; no guarantee covers them. None: runs with secret sampling are refused.
        from_records: other quantities computed from the private records and declared public, in words, as by
            `preconditioned`; every guarantee of a run says that it does not cover them.
        earlier_records: digests of the train records before they were preconditioned.
        record_owners: nodes that may hold one record, as a number, groups of nodes or `mfdl.privacy.Owners`: your
            claim. Default 1: no record, nor a copy of one, is held by two nodes. A guarantee for fewer is refused.
        node_labels: of the graph that the task is for, in index order. None: any graph with as many nodes.
    Raises: UnsupportedMechanism: a module whose per-record gradients cannot be clipped safely (see `modules`).
    """

    name: str
    kind: Kind
    features: NDArray[Any]
    targets: NDArray[Any]
    test_features: NDArray[Any]
    test_targets: NDArray[Any]
    build_module: Callable[[], torch.nn.Module]
    loss: modules.Loss
    num_nodes: int
    lipschitz: float | None = None
    partition: partitions.Partition = dataclasses.field(default_factory=partitions.Uniform)
    public_constants: str | None = None
    from_records: str = ""
    earlier_records: frozenset[bytes] = frozenset()
    record_owners: Owners = dataclasses.field(default_factory=Owners)
    node_labels: tuple[Hashable, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in ("classification", "regression"):
            raise InvalidInput(f"kind must be 'classification' or 'regression', got {self.kind!r}.")
        if not isinstance(self.name, str):
            raise InvalidInput(f"name must be a text, got {check.brief(self.name)}.")
        if self.lipschitz is not None:
            check.non_negative(lipschitz=self.lipschitz)
        constants = self.public_constants
        if constants is not None and not (isinstance(constants, str) and constants.strip()):
            raise InvalidInput(
                "public_constants must say in words what was computed from the records and counts as public, or "
                f"'none', got {constants!r}."
            )
        num_nodes = check.integer_at_least(1, num_nodes=self.num_nodes)
        object.__setattr__(self, "num_nodes", num_nodes)
        object.__setattr__(self, "record_owners", _owners(self.record_owners, num_nodes))
        arrays = {
            "features": records.features(features=self.features),
            "test_features": records.features(test_features=records.by_name(self.features, self.test_features)),
            "targets": records.targets(self.kind, targets=self.targets),
            "test_targets": records.targets(self.kind, test_targets=self.test_targets),
        }
        for part in ("", "test_"):
            records.require_same_order(part, getattr(self, f"{part}features"), getattr(self, f"{part}targets"))
            rows, values = (len(arrays[part + name]) for name in ("features", "targets"))
            if rows != values:
                raise InvalidInput(
                    f"{part}features and {part}targets must have one row per record, got {rows} and {values} rows."
                )
        train, test = arrays["features"], arrays["test_features"]
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            raise InvalidInput(
                f"features and test_features must hold the same kind of record, got shape {train.shape[1:]} of "
                f"{train.dtype} and shape {test.shape[1:]} of {test.dtype}."
            )
        if not isinstance(self.partition, partitions.Partition):
            raise InvalidInput(
                "partition must be Uniform(), Dirichlet(alpha) or Fixed(owners), got "
                f"{type(self.partition).__name__}; partition.parse makes one of a text."
            )
        self.partition.require_fits(self.kind, len(train), num_nodes)
        for name, array in arrays.items():
            object.__setattr__(self, name, read_only(array))
        self._check_model()

    def __repr__(self) -> str:
        both = f"{len(self.targets)} train and {len(self.test_targets)} test records of shape {self.features.shape[1:]}"
        return f"Task {self.name} ({self.kind}) on {self.num_nodes} nodes: {both}, partition {self.partition.text}"

    def _check_model(self) -> None:
        module = modules.build(self.build_module, seed=0)
        some = np.linspace(0, len(self.features) - 1, modules.PROBE_RECORDS).astype(int)
        features, targets = modules.inputs(module, self.features[some]), torch.tensor(self.targets[some])
        if self.kind == "classification":
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                scores = _scores(module, features)
            if scores is not None:
                records.require_scores(scores, targets=self.targets)
                records.require_scores(scores, test_targets=self.test_targets)
        modules.checked_model(module, self.loss, features, targets)

    @functools.cached_property
    def content_hash(self) -> str:
        """SHA-256 of the data, the partition, the model's and the loss's code and settings, and the number of nodes.

        It confirms a guess of all data.
        """
        module = modules.build(self.build_module, seed=0)
        digest = hashlib.sha256(repr((self.name, self.kind, self.num_nodes, self.partition.text)).encode())
        digest.update(records.module_digest(module) + records.callable_digest(self.loss))
        for array in (self.features, self.targets, self.test_features, self.test_targets):
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def preconditioned(self, preconditioner: Preconditioner | str, *, from_records: str = "") -> Task:
        """The same task on features M (x - c): a change of variables before clipping, which costs no privacy.

        Args:
            preconditioner: from public numbers, or its text, "power:0.5", "file:FILE", "public-features:0.5:FILE".
            from_records: why a preconditioner that was computed from train records of this task is public; it stands
                beside every guarantee as not covered. Without it such a preconditioner is refused, if these records
                are recognised: unchanged ones are, rounded or rescaled ones are yours to declare.
        Returns: a task of another name and content hash, without a Lipschitz claim (`Preconditioner.weights` converts
            back).
        """
        if self.features.ndim != 2 or not np.issubdtype(self.features.dtype, np.floating):
            raise InvalidInput(
                f"a preconditioner maps real feature vectors, and the records of task {self.name!r} have shape "
                f"{self.features.shape[1:]} and type {self.features.dtype}; give it the features as rows of numbers."
            )
        chosen = preconditioners.parse(preconditioner, self.features.shape[1])
        train = self.earlier_records | preconditioners.record_digests(self.features)
        private = chosen.records & train
        if private and not from_records.strip():
            raise InvalidInput(
                f"{len(private)} of the {len(chosen.records)} records behind this preconditioner are train records of "
                f"task {self.name!r}, which are private: training would publish a function of them without noise. Take "
                "public or unlabelled records, or a declared spectrum, or say in from_records why these are public."
            )
        words = f"preconditioner of train records ({from_records.strip()})" if from_records.strip() else ""
        return dataclasses.replace(
            self, name=f"{self.name}, preconditioned by {chosen.source}", features=chosen(self.features),
            test_features=chosen(self.test_features), lipschitz=None, earlier_records=train,
            from_records="; ".join(filter(None, [self.from_records, words])),
        )  # fmt: skip

    def module_with(self, parameters: Any, seed: int | None = None) -> torch.nn.Module:
        """The module of the task with trained parameters, in evaluation mode, on the CPU; a wide type is float32.

        Args: parameters: those of a node, shape (d,); seed: of the run, which decides the frozen ones.
        Raises: InvalidInput: another number of parameters.
        """
        module = modules.build(self.build_module, partitions.torch_seed(seed or 0, partitions.INITIAL_MODEL))
        modules.in_types(module, torch.float32)
        model = modules.PerRecordModel(module, self.loss)
        row = torch.tensor(np.asarray(parameters, dtype=np.float32))
        if row.shape != (model.dimension,):
            raise InvalidInput(
                f"parameters must have shape ({model.dimension},), those of task {self.name!r}, got {tuple(row.shape)}."
            )
        with torch.no_grad():
            values = model.unflatten(row)
            for name, parameter in module.named_parameters():
                if name in values:
                    parameter.copy_(values[name])
        return module.eval()

    def require_nodes(self, nodes: Sequence[Hashable]) -> None:
        """Refuses other nodes than those of the task, and another order of them."""
        if self.num_nodes != len(nodes):
            raise InvalidInput(
                f"task has {self.num_nodes} nodes but the mechanism has {len(nodes)}; build the task for the "
                "mechanism's graph."
            )
        if self.node_labels is not None and self.node_labels != tuple(nodes):
            place, (theirs, ours) = next(
                (i, pair) for i, pair in enumerate(zip(self.node_labels, nodes, strict=True)) if pair[0] != pair[1]
            )
            raise InvalidInput(
                f"task {self.name!r} holds the records of other nodes: its node {place} is {theirs!r}, and that of the "
                f"mechanism is {ours!r}; build the task for the mechanism's graph."
            )

    @property
    def batch_sizes_depend_on_seed(self) -> bool:
        return self.partition.sizes_depend_on_seed

    def public_batch_sizes(self, period: Period, seed: int | None = None) -> NDArray[np.float64]:
        """ceil(records of u / its period) of each node, shape (n,): the constants that sums are divided by.

        Where messages are hidden they change the privacy loss: calibrate
        `algorithm.with_divisors(task.public_batch_sizes(period))` there, with the seed of the run where
        `batch_sizes_depend_on_seed`.

        Raises: InvalidInput: no seed, and the sizes depend on it.
        """
        periods = np.array(periods_of_nodes(period, self.num_nodes))
        if seed is None:
            if self.batch_sizes_depend_on_seed:
                raise InvalidInput(
                    f"the batch sizes of partition {self.partition.text!r} depend on the seed of the run; give it: "
                    "public_batch_sizes(period, seed)."
                )
            seed = 0  # any: the sizes are the same
        return np.ceil(np.bincount(self.owners(seed), minlength=self.num_nodes) / periods)

    def owners(self, seed: int) -> NDArray[np.int64]:
        """The node that holds each train record in the runs of a seed, shape (N,).

        `dataclasses.replace(task, partition=partition.Fixed(task.owners(seed)))` keeps these owners if records change,
        as neighbouring data sets must.

        Raises: InvalidInput: a partition that does not give every record to exactly one node.
        """
        owners = np.empty(len(self.targets), dtype=np.int64)
        seed = check.integer_at_least(0, seed=seed)
        rows_of_nodes = partitions.dealt(self.partition, self.targets, self.num_nodes, seed)
        owners[np.concatenate(rows_of_nodes)] = np.repeat(np.arange(self.num_nodes), [*map(len, rows_of_nodes)])
        return owners

    def instance(
        self, seed: int, period: Period, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
    ) -> TaskInstance:
        """Split, record-to-step map and first model, which all mechanisms of one seed share.

        Args:
            period: steps per epoch, b, or one b_u per node; a record takes part in the steps t with t mod b fixed.
            dtype: float32 or float64, of features, models and gradients. Modules in half precision, or of several
                types, compute in theirs, the former on features of their type.
        Raises: InvalidInput: a node has fewer records than its period, so that one of its batches would be empty.
        """
        seed = check.integer_at_least(0, seed=seed)
        periods = periods_of_nodes(period, self.num_nodes)
        check.trained_in(dtype=dtype)
        rows_of_nodes = partitions.dealt(self.partition, self.targets, self.num_nodes, seed)
        index = record_index(rows_of_nodes, seed=seed, periods=periods)
        mask = index >= 0

        def tensor(array: Any) -> torch.Tensor:
            copy = torch.tensor(array, device=device)
            return copy.to(dtype) if copy.is_floating_point() else copy

        def padded(array: NDArray[Any]) -> NDArray[Any]:
            rows = array[np.maximum(index, 0)]
            rows[~mask] = 0
            return rows

        module = modules.build(self.build_module, partitions.torch_seed(seed, partitions.INITIAL_MODEL))
        features, test_features = (
            modules.inputs(module, array, dtype).to(device) for array in (padded(self.features), self.test_features)
        )
        model = modules.PerRecordModel(module.to(device=device), self.loss)
        return TaskInstance(
            task=self, seed=seed, period=math.lcm(*periods), features=features,
            targets=tensor(padded(self.targets)), mask=tensor(mask), record_index=tensor(index),
            public_batch_sizes=torch.tensor(self.public_batch_sizes(periods, seed), device=device),
            initial_parameters=model.initial_row().to(dtype).repeat(self.num_nodes, 1), test_features=test_features,
            test_targets=tensor(self.test_targets), model=model, activations=model.activation_size(test_features),
            node_periods=None if len(set(periods)) == 1 else periods,
        )  # fmt: skip


def from_module(
    name: str,
    graph_or_num_nodes: Any,
    *,
    kind: Kind,
    build_module: Callable[[], torch.nn.Module],
    loss: modules.Loss,
    train: Any = None,
    test: Any = None,
    features: Any = None,
    targets: Any = None,
    test_features: Any = None,
    test_targets: Any = None,
    partition: partitions.Partition | str = "uniform",
    lipschitz: float | None = None,
    public_constants: str | None = None,
    record_owners: Any = 1,
) -> Task:
    """The task of a user's own module, per-record loss and records.

    Raises: as `Task`; InvalidInput: records given twice, or a Dataset that cannot be stacked (`records`).

    >>> x, y = torch.randn(40, 3), torch.arange(40) % 2
    >>> records = torch.utils.data.TensorDataset(x, y)
    >>> def model():
    ...     return torch.nn.Linear(3, 2)
    >>> def loss(output, target):
    ...     return torch.nn.functional.cross_entropy(output, target)
    >>> from_module("mine", 4, kind="classification", build_module=model, loss=loss, train=records, test=records)
    Task mine (classification) on 4 nodes: 40 train and 40 test records of shape (3,), partition uniform

    Args:
        graph_or_num_nodes: a networkx graph, the name of one, or the number of nodes.
        kind, build_module, loss, lipschitz, public_constants, record_owners: as in `Task`. For a module that exists,
            whose parameters are the public first model, build_module is `functools.partial(copy.deepcopy, module)`.
        train, test: Datasets of (features, target), read once, item by item. Alternatively give the next four.
        features, targets, test_features, test_targets: arrays, tensors or tables of pandas, one row per record.
        partition: of the train records, or its text such as "dirichlet:alpha=10", see `partition.parse`.
    """
    arrays = {"features": features, "targets": targets, "test_features": test_features, "test_targets": test_targets}
    more: dict[str, Any] = records.caller_arrays(train, test, arrays)
    more |= {"build_module": build_module, "loss": loss, "num_nodes": node_count(graph_or_num_nodes)}
    nodes = None if isinstance(graph_or_num_nodes, int | np.integer) else labels(graph_or_num_nodes)
    more |= {"lipschitz": lipschitz, "partition": partitions.parse(partition), "public_constants": public_constants}
    return Task(name, kind, record_owners=record_owners, node_labels=nodes, **more)


def _owners(given: Any, num_nodes: int) -> Owners:
    owners = Owners.from_value(given)
    if owners.same_steps:
        raise InvalidInput("record_owners must be without same_steps: each node orders its records by itself.")
    if owners.most > num_nodes or any(group[-1] >= num_nodes for group in owners.groups):
        raise InvalidInput(f"record_owners must be of the {num_nodes} nodes of the task, got {owners.describe()}.")
    return owners


def node_count(graph_or_num_nodes: Any) -> int:
    graph = resolved_name(graph_or_num_nodes)
    if isinstance(graph, SparseGraph):
        return graph.num_nodes
    count = getattr(graph, "number_of_nodes", None)
    given = count() if callable(count) else graph
    if hasattr(given, "num_nodes"):
        raise InvalidInput(
            "graph_or_num_nodes must be a networkx graph or the name of one, e.g. 'ring:n=16', or as the number of "
            f"nodes must be an integer >= 1, got {check.brief(given)}; give its num_nodes."
        )
    return check.integer_at_least(1, graph_or_num_nodes=given)


def _scores(module: torch.nn.Module, features: torch.Tensor) -> int | None:
    """The number of class scores per record, or None where the output is not (records, scores)."""
    try:
        output = module(features)
    except Exception:
        return None  # reported by the check of the model
    return int(output.shape[1]) if isinstance(output, torch.Tensor) and output.ndim == 2 else None
