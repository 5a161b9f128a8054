"""Owners of the records, and the steps in which a record takes part.

No guarantee covers the act of dealing records out: neighbouring data sets are the same owners with a record changed.
Where the draw reads the targets (`Dirichlet`), build the neighbour with `Fixed(task.owners(seed))`. The map from
records to steps is public and the same in all epochs (`record_index`).

Random orders come from the raw words of a bit generator and the hash of `SeedSequence`, which every version of numpy
repeats. Nothing here is secret.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaincinv

from ... import check
from ...display import short_repr
from ...errors import InvalidInput
from ...matrices import read_only
from ...spec import Entry, Registry

Rows = NDArray[np.int64]
Period = int | Sequence[int]  # steps per epoch: one number for all nodes, or one per node
__all__ = ["Dirichlet", "Fixed", "Partition", "Uniform", "dealt", "parse"]


def __dir__() -> list[str]:
    return sorted(__all__)


MAX_DRAWS = 100  # draws of `Dirichlet` before records are moved
ALPHA_RANGE = (1e-6, 1e6)
PARTITIONS: Registry[Entry] = Registry("partition")


class Partition(abc.ABC):
    """A rule that gives every record to exactly one node, and every node at least one record."""

    sizes_depend_on_seed: bool = False

    @property
    @abc.abstractmethod
    def text(self) -> str:
        """The parameters of the partition in one line."""

    @abc.abstractmethod
    def rows_of_nodes(self, targets: NDArray[Any], num_nodes: int, seed: int) -> list[Rows]:
        """Rows of the records of each node, n arrays: disjoint, together 0, ..., N - 1, none empty, in any order."""

    def require_fits(self, kind: str, num_records: int, num_nodes: int) -> None:
        """Refuses records that the partition cannot deal out."""
        if num_records < num_nodes:
            raise InvalidInput(
                f"each node needs a record, got {num_records} train records for {num_nodes} nodes; use a smaller graph."
            )


def dealt(partition: Partition, targets: NDArray[Any], num_nodes: int, seed: int) -> list[Rows]:
    """`partition.rows_of_nodes`, checked in O(N): a guarantee for one record assumes that it is at one node.

    Raises: InvalidInput: not one array of rows per node, an empty one, or a record at no node or in several places.
    Cost: O(N).
    """
    check.instance(Partition, partition=partition)
    num_nodes, seed = check.integer_at_least(1, num_nodes=num_nodes), check.integer_at_least(0, seed=seed)
    targets = check.as_array(targets=targets)
    if targets.ndim == 0:
        raise InvalidInput(f"targets must hold one target per record, got {check.brief(targets[()])}.")
    name, num_records = f"partition {partition.text!r}", len(targets)
    rows_of_nodes = [np.asarray(rows) for rows in partition.rows_of_nodes(targets, num_nodes, seed)]
    if len(rows_of_nodes) != num_nodes:
        raise InvalidInput(
            f"{name} must give one array of rows for each of {num_nodes} nodes, got {len(rows_of_nodes)}."
        )
    for node, rows in enumerate(rows_of_nodes):
        if rows.size == 0:
            raise InvalidInput(f"{name} must give every node a record, got none at node {node} of {num_nodes}.")
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise InvalidInput(
                f"{name} must give row indices of train records, got shape {rows.shape} of {rows.dtype} at node {node}."
            )
    flat = np.concatenate(rows_of_nodes)
    outside = np.flatnonzero((flat < 0) | (flat >= num_records))
    if outside.size:
        node = int(np.searchsorted(np.cumsum([rows.size for rows in rows_of_nodes]), outside[0], side="right"))
        raise InvalidInput(f"{name} must give rows 0 to {num_records - 1}, got row {flat[outside[0]]} at node {node}.")
    times = np.bincount(flat.astype(np.int64), minlength=num_records)
    if (times != 1).any():
        row = int(np.argmax(times != 1))  # exact: booleans
        where = [node for node, rows in enumerate(rows_of_nodes) if row in rows]
        places = "is at no node" if not where else f"has {times[row]} places, at node {', '.join(map(str, where[:5]))}"
        raise InvalidInput(
            f"{name} must give every record to exactly one node, in one place, and record {row} {places}; a guarantee "
            "for one record holds no more where it has several. Make `rows_of_nodes` disjoint, or give Fixed(owners)."
        )
    return [rows.astype(np.int64, copy=False) for rows in rows_of_nodes]


@PARTITIONS.register()
@dataclasses.dataclass(frozen=True)
class Uniform(Partition):
    """A uniform random split into equal sizes; the first nodes hold one more where n does not divide N."""

    text = "uniform"

    def rows_of_nodes(self, targets: NDArray[Any], num_nodes: int, seed: int) -> list[Rows]:
        return np.array_split(permutation(seed, NODE_SPLIT, len(targets)), num_nodes)


@PARTITIONS.register(example="dirichlet:alpha=10")
@dataclasses.dataclass(frozen=True)
class Dirichlet(Partition):
    """Label-skewed split: of each class the nodes get shares drawn from a symmetric Dirichlet distribution.

    A class of m records in random order is cut at the running sums of its shares times m, rounded: no record is lost
    or held twice. Splits that leave a node with fewer than `min_records` records are redrawn, up to `MAX_DRAWS` times;
    then the last draw is repaired: while a node has too few, a random record of the largest node moves to the smallest.
    Another version of scipy's inverse incomplete gamma function may move a cut by one record at a rounding edge.

    Attributes:
        alpha: concentration, in `ALPHA_RANGE`: below 1 most of a class sits at few nodes; large is nearly uniform.
        min_records: records of every node at least; a period up to it fits every seed.
    Source: the experiments of arXiv:2405.01031 and arXiv:2501.14644v2, with alpha = 10; the public code of the first
        started every cut anew, so that nodes shared records and lost others.
    """

    alpha: float
    min_records: int = 1
    sizes_depend_on_seed = True

    def __post_init__(self) -> None:
        alpha = check.positive(alpha=self.alpha)
        if not ALPHA_RANGE[0] <= alpha <= ALPHA_RANGE[1]:
            raise InvalidInput(
                f"alpha must lie between {ALPHA_RANGE[0]:g} and {ALPHA_RANGE[1]:g}, got {self.alpha!r}; "
                "a larger one is nearly uniform, a smaller one gives each class to one node."
            )
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "min_records", check.integer_at_least(1, min_records=self.min_records))

    @property
    def text(self) -> str:
        return f"dirichlet:alpha={self.alpha:.17g},min_records={self.min_records}"

    def require_fits(self, kind: str, num_records: int, num_nodes: int) -> None:
        super().require_fits(kind, num_records, num_nodes)
        if kind != "classification":
            raise InvalidInput(
                f"a Dirichlet partition skews classes, and the targets of a {kind} task are none; use Uniform(), or "
                "Fixed(owners) with owners of your own."
            )
        if num_records < num_nodes * self.min_records:
            raise InvalidInput(
                f"min_records={self.min_records} at each of {num_nodes} nodes needs {num_nodes * self.min_records} "
                f"train records, got {num_records}; use min_records <= {num_records // num_nodes} or a smaller graph."
            )

    def rows_of_nodes(self, targets: NDArray[Any], num_nodes: int, seed: int) -> list[Rows]:
        order = permutation(seed, NODE_SPLIT, len(targets))
        classes, counts = np.unique(targets, return_counts=True)
        draws = Uniforms(seed, NODE_SHARES)
        for _ in range(MAX_DRAWS):
            shares = dirichlet_shares(draws, self.alpha, (len(classes), num_nodes))
            cuts = np.rint(np.cumsum(shares, axis=1) * counts[:, None]).astype(np.int64)
            cuts[:, -1] = counts  # a running sum may end at 1 - 1e-16
            sizes = np.diff(cuts, axis=1, prepend=0).sum(axis=0)
            if sizes.min() >= self.min_records:
                break
        owners = np.empty(len(targets), dtype=np.int64)
        for label, cut in zip(classes, cuts, strict=True):
            rows = order[targets[order] == label]
            owners[rows] = np.searchsorted(cut, np.arange(len(rows)), side="right")
        while sizes.min() < self.min_records:
            donor, poorest = int(sizes.argmax()), int(sizes.argmin())  # exact: integers
            rows = np.flatnonzero(owners == donor)
            owners[rows[int(draws((1,))[0] * len(rows))]] = poorest
            sizes[donor] -= 1
            sizes[poorest] += 1
        return _owner_rows(owners, num_nodes)


@dataclasses.dataclass(frozen=True, eq=False)
class Fixed(Partition):
    """Owners given by the caller, shape (N,), integers 0, ..., n - 1, each at least once; the same for every seed."""

    __repr__ = short_repr

    owners: ArrayLike

    def __post_init__(self) -> None:
        owners = check.as_array(owners=self.owners)
        if owners.ndim != 1 or owners.size == 0 or owners.dtype.kind not in "iu":
            raise InvalidInput(
                f"owners must be one node index per train record, got shape {owners.shape} of {owners.dtype}."
            )
        if owners.min() < 0:
            row = int(owners.argmin())  # exact: integers
            raise InvalidInput(f"owners must be node indices >= 0, got {owners.min()} in row {row}.")
        object.__setattr__(self, "owners", read_only(owners.astype(np.int64)))

    @property
    def text(self) -> str:
        return f"fixed:{hashlib.sha256(np.asarray(self.owners, dtype='<i8').tobytes()).hexdigest()}"

    def require_fits(self, kind: str, num_records: int, num_nodes: int) -> None:
        super().require_fits(kind, num_records, num_nodes)
        owners = np.asarray(self.owners)
        if len(owners) != num_records:
            raise InvalidInput(
                f"owners must name a node for each of the {num_records} train records, got {len(owners)}."
            )
        if owners.max() >= num_nodes:
            row = int(owners.argmax())  # exact: integers
            raise InvalidInput(f"owners must be node indices below {num_nodes}, got {owners.max()} in row {row}.")
        counts = np.bincount(owners, minlength=num_nodes)
        if counts.min() == 0:
            node = int(counts.argmin())  # exact: integers
            raise InvalidInput(
                f"each node needs a record, and owners give none to node {node} of {num_nodes}; give it one or use a "
                "smaller graph."
            )

    def rows_of_nodes(self, targets: NDArray[Any], num_nodes: int, seed: int) -> list[Rows]:
        return _owner_rows(np.asarray(self.owners), num_nodes)


def parse(spec: Partition | str) -> Partition:
    """The partition of a text, "uniform" or "dirichlet:alpha=A,min_records=M"; a partition is returned as it is.

    Raises: InvalidInput: another text, a parameter that is unknown, missing, given twice or out of range.

    >>> parse("dirichlet:alpha=10")
    Dirichlet(alpha=10.0, min_records=1)
    """
    if isinstance(spec, Partition):
        return spec
    if not isinstance(spec, str):
        raise InvalidInput(
            f"partition must be a text such as {PARTITIONS['dirichlet'].form!r} or a Partition, got "
            f"{type(spec).__name__}; owners of your own are Fixed(owners)."
        )
    partition: Partition = PARTITIONS.make(spec)
    return partition


def dirichlet_shares(draws: Uniforms, alpha: float, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Rows from the symmetric Dirichlet distribution: Gamma(alpha) variables over their sum.

    Gamma(alpha) is Gamma(alpha + 1) times U^(1 / alpha), whose logarithm stays finite for small alpha.
    """
    log_gamma = np.log(gammaincinv(alpha + 1, draws(shape))) + np.log(draws(shape)) / alpha
    weights = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _owner_rows(owners: NDArray[np.int64], num_nodes: int) -> list[Rows]:
    ends = np.cumsum(np.bincount(owners, minlength=num_nodes))
    return np.split(np.argsort(owners, kind="stable").astype(np.int64), ends[:-1])  # exact: integers


def periods_of_nodes(period: Period, num_nodes: int) -> tuple[int, ...]:
    """b_u of each node. Raises: InvalidInput: no integers >= 1, or another number of them than nodes."""
    if not isinstance(period, Sequence) or isinstance(period, str):
        return (check.integer_at_least(1, period=period),) * num_nodes
    if len(period) != num_nodes:
        raise InvalidInput(f"period must be one number or one for each of {num_nodes} nodes, got {len(period)}.")
    return tuple(check.integer_at_least(1, period=b) for b in period)


def record_index(rows_of_nodes: Sequence[Rows], *, seed: int, periods: Sequence[int]) -> Rows:
    """Rows of the records at (node, step class, slot), -1 where there is none.

    Raises: InvalidInput: a node holds fewer records than its period has steps.
    """
    sizes, period_of = np.array([*map(len, rows_of_nodes)]), np.asarray(periods)
    num_records, num_nodes = int(sizes.sum()), len(rows_of_nodes)
    missing = period_of - sizes
    if missing.max() > 0:
        u = int(missing.argmax())  # exact: integers
        raise InvalidInput(
            f"each node needs at least period={periods[u]} records for non-empty batches, got {sizes[u]} at node "
            f"{u} ({num_records} records over {num_nodes} nodes); use period <= {sizes[u]}, a smaller graph, more "
            "records, or a partition that gives each node more (min_records=... of Dirichlet)."
        )
    index = np.full((num_nodes, max(periods), int((-(-sizes // period_of)).max())), -1, dtype=np.int64)
    order = permutation(seed, BATCH_ORDER, num_records)  # one rank per record, so an order at each node
    rows, node = np.concatenate(rows_of_nodes), np.repeat(np.arange(num_nodes), sizes)
    position = np.arange(num_records) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    b = period_of[node]
    index[node, position % b, position // b] = rows[np.lexsort((order[rows], node))]  # exact: integers
    return index


# purposes with streams of their own, so that changing one leaves the others alone
DATA_SPLIT, NODE_SPLIT, BATCH_ORDER, INITIAL_MODEL, NODE_SHARES, SYNTHETIC_DATA = range(6)
DATA_SPLIT_SEED = 0  # of every train and test split: the seeds of a run never move a record across it


def permutation(seed: int, purpose: int, size: int) -> NDArray[np.int64]:
    """A uniform random order of 0, ..., size - 1, up to ties of 64-bit words (below size^2 2^-65)."""
    words = np.random.Philox(_sequence(seed, purpose)).random_raw(size)
    return np.argsort(words, kind="stable").astype(np.int64)  # exact: integers


def split_rows(size: int, test_fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows held back, at least one, by the split with the fixed seed `DATA_SPLIT_SEED`."""
    order = permutation(DATA_SPLIT_SEED, DATA_SPLIT, size)
    num_test = max(1, round(test_fraction * size))
    return order[num_test:], order[:num_test]


class Uniforms:
    """A stream of independent uniform numbers in (0, 1): midpoints of 2^52 equal steps."""

    def __init__(self, seed: int, purpose: int) -> None:
        self._words = np.random.Philox(_sequence(seed, purpose))

    def __call__(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        words = self._words.random_raw(math.prod(shape)) >> np.uint64(12)
        return np.asarray((words.astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)


def torch_seed(seed: int, purpose: int) -> int:
    """A seed below 2^63 for a torch generator."""
    return int(_sequence(seed, purpose).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, purpose: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(purpose,))
