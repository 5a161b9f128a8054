"""Gossip matrices: how much weight each node gives to each message when it averages.

In: a graph (or a given matrix). Out: `GossipMatrix`, one averaging round new = W @ old, or `GossipSequence`,
a round for each step; both are a `Gossip`. W[i, j] is the weight node i gives node j, so rows sum to 1. Which
of the further properties hold (symmetric, doubly stochastic, connected, reversible) is computed, never
declared. All of it is sparse; only `dense` and `spectrum` form an n x n array.
"""

from __future__ import annotations

import abc
import hashlib
import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, issparse
from scipy.sparse.csgraph import breadth_first_order, connected_components

from . import check, graphs
from .check import FloatArray
from .errors import InvalidInput, unknown_name

SUM_TOLERANCE = 1e-9  # a matrix written with 10 decimals passes, a forgotten self weight never does
SYMMETRY_TOLERANCE = 1e-12  # weights are at most 1; differences of rounding only
BALANCE_TOLERANCE = 1e-12  # relative, in d_i W_ij = d_j W_ji
MAX_DENSE_NODES = 20_000  # 3.2 GB


class Gossip(abc.ABC):
    """Averaging rounds over the steps of a run, from `at(step)`.

    Attributes:
        labels: node labels in index order, shared by every round.
        name: where the weights come from, for reports; it plays no part in `content_hash`.
    """

    labels: tuple[Hashable, ...]
    name: str

    @abc.abstractmethod
    def at(self, step: int) -> GossipMatrix:
        """The round of this step, counted from 0."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes n."""
        return len(self.labels)

    @property
    @abc.abstractmethod
    def is_constant(self) -> bool:
        """Whether every step, however late, uses the same matrix."""

    @property
    @abc.abstractmethod
    def is_symmetric(self) -> bool:
        """Whether every round has W = W.T (within 1e-12)."""

    @property
    @abc.abstractmethod
    def is_doubly_stochastic(self) -> bool:
        """Whether the columns of every round also sum to 1 (within 1e-9): the average is preserved."""

    @property
    @abc.abstractmethod
    def is_connected(self) -> bool:
        """Whether weight can travel from every node to every other one, over all rounds together."""

    @property
    @abc.abstractmethod
    def content_hash(self) -> str:
        """16 hex digits of the SHA-256 of labels and weights: what a cache must be keyed by."""

    @abc.abstractmethod
    def describe(self) -> str:
        """One sentence with the properties that hold and those that do not."""


@dataclass(frozen=True, eq=False)
class GossipMatrix(Gossip):
    """One averaging round, new = W @ old; W[i, j] is the weight node i gives node j.

    Attributes:
        weights: W, shape (n, n), float64 csr_array with read-only data, an own copy without stored zeros;
            finite, entries >= 0, rows sum to 1 within 1e-9. A dense array or any scipy sparse matrix is
            accepted.
        labels: the n distinct node labels, in index order.
        name: where the weights come from.

    Raises:
        InvalidInput: one of these conditions fails; the message names the entry or row by its labels.
    Cost: O(stored entries); nothing n x n for sparse weights.
    """

    weights: csr_array
    labels: tuple[Hashable, ...]
    name: str = "given"

    def __post_init__(self) -> None:
        W = _own_csr(self.weights)
        n = W.shape[0]
        names = tuple(self.labels)
        if len(names) != n:
            raise InvalidInput(f"labels must name every row of weights, got {len(names)} labels for {n} rows.")
        if len(set(names)) != n:
            twice = next(label for i, label in enumerate(names) if label in names[:i])
            raise InvalidInput(f"labels must be distinct, got {twice!r} twice.")
        if n == 0:
            raise InvalidInput("weights must have at least one row, got shape (0, 0).")
        bad = np.flatnonzero(~(np.isfinite(W.data) & (W.data >= 0)))
        if bad.size:
            i, j = _position(W, int(bad[0]))
            raise InvalidInput(
                f"weights must be finite and >= 0, got {W.data[bad[0]]} in the row of node {names[i]!r} for "
                f"node {names[j]!r}."
            )
        sums = np.asarray(W.sum(axis=1)).ravel()
        row = int(np.abs(sums - 1).argmax())
        if abs(sums[row] - 1) > SUM_TOLERANCE:
            columns = np.asarray(W.sum(axis=0)).ravel()
            way_out = (
                "the columns do, so give the transpose"
                if np.abs(columns - 1).max() <= SUM_TOLERANCE
                else "give the missing weight to the diagonal, or divide each row by its sum"
            )
            raise InvalidInput(
                f"weights: each row must sum to 1 within {SUM_TOLERANCE:g}, the row of node {names[row]!r} "
                f"sums to {sums[row]:.10g}; {way_out}."
            )
        for part in (W.data, W.indices, W.indptr):
            part.setflags(write=False)
        object.__setattr__(self, "weights", W)
        object.__setattr__(self, "labels", names)

    def at(self, step: int) -> GossipMatrix:
        """This matrix, at every step >= 0."""
        check.integer_at_least(0, step=step)
        return self

    @property
    def is_constant(self) -> bool:
        """True: one matrix for every step."""
        return True

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether W = W.T within 1e-12."""
        difference = abs(self.weights - self.weights.T)
        return bool(difference.nnz == 0 or difference.max() <= SYMMETRY_TOLERANCE)

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        """Whether the columns also sum to 1 within 1e-9, so that averaging keeps the mean."""
        return bool(np.abs(np.asarray(self.weights.sum(axis=0)) - 1).max() <= SUM_TOLERANCE)

    @cached_property
    def is_connected(self) -> bool:
        """Whether the directed graph of positive weights is strongly connected."""
        return _strongly_connected(self.weights)

    @property
    def is_reversible(self) -> bool:
        """Whether some positive d has d_i W_ij = d_j W_ji: then W is similar to a symmetric matrix."""
        return self.reversible_measure is not None

    @cached_property
    def reversible_measure(self) -> FloatArray | None:
        """The d of `is_reversible`, shape (n,), read-only, mean 1 on each connected component; else None.

        Along the edges of a spanning tree d is forced, d_j = d_i W_ij / W_ji; the equation is then verified
        for every entry, within 1e-12 relative. None also if d exceeds the range of float64.
        Cost: O(n + stored entries).
        """
        if self.is_symmetric:
            measure = np.ones(self.num_nodes)
        else:
            found = _measure_from_spanning_forest(self.weights)
            if found is None:
                return None
            measure = found
        measure.setflags(write=False)
        return measure

    @cached_property
    def spectrum(self) -> NDArray[Any]:
        """All n eigenvalues, read-only: real decreasing if W is reversible, else by decreasing modulus.

        A reversible W is first made symmetric, D^1/2 W D^-1/2, which has the same eigenvalues.

        Raises:
            InvalidInput: more than 20,000 nodes.
        Cost: O(n^3) time, O(n^2) memory.
        """
        W = self.dense()
        if self.reversible_measure is not None:
            root = np.sqrt(self.reversible_measure)
            S = root[:, None] * W / root
            values: NDArray[Any] = np.linalg.eigvalsh((S + S.T) / 2)[::-1].copy()
        else:
            values = np.linalg.eigvals(W).astype(np.complex128)
            # equal moduli differ by rounding: rounded, then by real part, so that 1 comes first
            values = values[np.lexsort((-values.imag, -values.real, -np.abs(values).round(12)))]
        values.setflags(write=False)
        return values

    @cached_property
    def spectral_gap(self) -> float:
        """1 - the second largest modulus of an eigenvalue; 1 for a single node, 0 if a mode never decays."""
        if self.num_nodes == 1:
            return 1.0
        second = np.sort(np.abs(self.spectrum))[-2]
        return max(0.0, float(1 - second))

    def dense(self) -> FloatArray:
        """W as an own writable array, shape (n, n); refused above 20,000 nodes."""
        if self.num_nodes > MAX_DENSE_NODES:
            raise InvalidInput(
                f"a dense gossip matrix is limited to {MAX_DENSE_NODES} nodes, got {self.num_nodes}; use the "
                f"sparse `weights`."
            )
        array: FloatArray = self.weights.toarray()
        return array

    @cached_property
    def content_hash(self) -> str:
        """16 hex digits of the SHA-256 of labels and weights; the name does not count."""
        digest = hashlib.sha256(repr(self.labels).encode())
        digest.update(np.ascontiguousarray(self.weights.indptr, dtype="<i8").tobytes())
        digest.update(np.ascontiguousarray(self.weights.indices, dtype="<i8").tobytes())
        digest.update(np.ascontiguousarray(self.weights.data, dtype="<f8").tobytes())
        return digest.hexdigest()[:16]

    def describe(self) -> str:
        """One sentence with the properties that hold and those that do not.

        >>> metropolis_hastings("path:n=3").describe()
        "gossip matrix 'metropolis-hastings' on 3 nodes with 7 weights: symmetric, doubly..., connected"
        """
        if self.is_symmetric:
            facts = ["symmetric", "doubly stochastic"]
        else:
            kept = self.is_doubly_stochastic
            facts = ["not symmetric"]
            facts.append("doubly stochastic" if kept else "not doubly stochastic (the average of the nodes moves)")
        facts.append("connected" if self.is_connected else "not connected (some nodes never hear of others)")
        if not self.is_symmetric:
            facts.append("reversible" if self.is_reversible else "not reversible")
        return (
            f"gossip matrix {self.name!r} on {_count(self.num_nodes, 'node')} with "
            f"{_count(self.weights.nnz, 'weight')}: {', '.join(facts)}"
        )


@dataclass(frozen=True, eq=False)
class GossipSequence(Gossip):
    """Time-varying gossip: `matrices[step]`, from the start again after the last one if `repeat`.

    Attributes:
        matrices: the rounds in order, at least one, all with the same labels.
        repeat: whether the sequence starts again; if not, a step past the end is an error.
        name: for reports.

    Raises:
        InvalidInput: no matrix, something else than a GossipMatrix, or differing labels.
    """

    matrices: tuple[GossipMatrix, ...]
    repeat: bool = True
    name: str = "sequence"

    def __post_init__(self) -> None:
        matrices = tuple(self.matrices)
        if not matrices:
            raise InvalidInput("matrices must hold at least one gossip matrix, got none.")
        for position, matrix in enumerate(matrices):
            if not isinstance(matrix, GossipMatrix):
                raise InvalidInput(
                    f"matrices[{position}] must be a GossipMatrix, got {type(matrix).__name__}; wrap an "
                    f"array with gossip.from_array."
                )
            if matrix.labels != matrices[0].labels:
                raise InvalidInput(
                    f"matrices must share one list of node labels, but matrices[{position}] has "
                    f"{_brief(matrix.labels)} and matrices[0] has {_brief(matrices[0].labels)}."
                )
        object.__setattr__(self, "matrices", matrices)

    @property
    def labels(self) -> tuple[Hashable, ...]:  # type: ignore[override]
        """Node labels in index order, those of every matrix."""
        return self.matrices[0].labels

    @property
    def num_steps(self) -> int | None:
        """Number of steps there are, None if the sequence repeats for ever."""
        return None if self.repeat else len(self.matrices)

    def at(self, step: int) -> GossipMatrix:
        """The round of this step.

        Raises:
            InvalidInput: a negative step, or one past the end of a sequence that does not repeat.
        """
        step = check.integer_at_least(0, step=step)
        if step >= len(self.matrices) and not self.repeat:
            raise InvalidInput(
                f"step must be below {len(self.matrices)}, the length of this gossip sequence, got {step}; "
                f"give more matrices or use repeat=True."
            )
        return self.matrices[step % len(self.matrices)]

    @cached_property
    def is_constant(self) -> bool:
        """Whether the sequence repeats for ever and all its matrices are equal."""
        return self.repeat and len({matrix.content_hash for matrix in self.matrices}) == 1

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every matrix is symmetric."""
        return all(matrix.is_symmetric for matrix in self.matrices)

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        """Whether every matrix is doubly stochastic."""
        return all(matrix.is_doubly_stochastic for matrix in self.matrices)

    @cached_property
    def is_connected(self) -> bool:
        """Whether the positive weights of all matrices together are strongly connected."""
        total = self.matrices[0].weights
        for matrix in self.matrices[1:]:
            total = total + matrix.weights
        return _strongly_connected(total)

    @cached_property
    def content_hash(self) -> str:
        """16 hex digits of the SHA-256 of the matrices in order and of `repeat`."""
        text = f"{self.repeat} " + " ".join(matrix.content_hash for matrix in self.matrices)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def describe(self) -> str:
        """One sentence with the properties that hold and those that do not."""
        facts = [
            "all symmetric" if self.is_symmetric else "not all symmetric",
            "all doubly stochastic" if self.is_doubly_stochastic else "not all doubly stochastic",
            "connected together" if self.is_connected else "not connected even together",
        ]
        end = "repeated" if self.repeat else "not repeated"
        return (
            f"sequence of {len(self.matrices)} gossip {'matrix' if len(self.matrices) == 1 else 'matrices'}, "
            f"{end}, on {_count(self.num_nodes, 'node')}: {', '.join(facts)}"
        )


def metropolis_hastings(graph: graphs.Source) -> GossipMatrix:
    """W_ij = 1 / (1 + max(degree_i, degree_j)) on edges, the rest of each row on the diagonal.

    Symmetric and doubly stochastic on every graph, with positive diagonal: the usual choice.

    >>> metropolis_hastings("path:n=3").dense().round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])

    Args:
        graph: anything `graphs.load` reads; must be connected.

    Raises:
        InvalidInput: the graph is not connected.
    Cost: O(nodes + edges).
    """
    G = _connected(graph)
    A = graphs.adjacency(G)
    degrees = np.diff(A.indptr)
    rows = np.repeat(np.arange(len(degrees)), degrees)
    A.data = 1.0 / (1 + np.maximum(degrees[rows], degrees[A.indices]))
    return _with_diagonal(A, graphs.labels(G), "metropolis-hastings")


def uniform(graph: graphs.Source) -> GossipMatrix:
    """W_ij = 1 / (degree_i + 1) for the neighbours j of i and for i itself.

    Row-stochastic only: symmetric, and keeping the average, exactly when the graph is regular. On an
    irregular graph it drifts to the average weighted by degree + 1, its reversible measure.

    >>> uniform("path:n=3").dense().round(3)
    array([[0.5  , 0.5  , 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.5  , 0.5  ]])

    Args:
        graph: anything `graphs.load` reads; must be connected.

    Raises:
        InvalidInput: the graph is not connected.
    Cost: O(nodes + edges).
    """
    G = _connected(graph)
    A = graphs.adjacency(G)
    weights = 1.0 / (np.diff(A.indptr) + 1)
    return GossipMatrix(diags_array(weights) @ A + diags_array(weights), graphs.labels(G), "uniform")


def from_array(
    weights: Any,
    graph: graphs.Source | None = None,
    labels: Sequence[Hashable] | None = None,
    *,
    name: str = "given",
) -> GossipMatrix:
    """A given W, dense or scipy sparse, checked against the graph it is meant for.

    >>> from_array([[0.5, 0.5], [0.25, 0.75]], labels=["a", "b"]).reversible_measure.round(3)
    array([0.667, 1.333])

    Args:
        weights: shape (n, n), rows in label order; W[i, j] is the weight node i gives node j.
        graph: if given, weights between different nodes must lie on its edges, and its labels are used.
        labels: node labels without a graph; default 0 .. n - 1.
        name: for reports.

    Raises:
        InvalidInput: `weights` is no gossip matrix (see `GossipMatrix`), has another size than the graph,
            puts weight where the graph has no edge, or the graph is not connected; both `graph` and `labels`
            given.
    """
    if graph is None:
        W = _own_csr(weights)
        return GossipMatrix(W, tuple(range(W.shape[0])) if labels is None else tuple(labels), name)
    if labels is not None:
        raise InvalidInput("give either graph or labels, not both: a graph brings its own labels.")
    G = _connected(graph)
    matrix_labels = graphs.labels(G)
    W = _own_csr(weights)
    if W.shape[0] != len(matrix_labels):
        raise InvalidInput(
            f"weights must have one row per node of the graph, got {W.shape[0]} rows for {len(matrix_labels)} nodes."
        )
    matrix = GossipMatrix(W, matrix_labels, name)
    entries = matrix.weights.tocoo()
    A = graphs.adjacency(G)
    n = len(matrix_labels)
    edges = A.tocoo()
    off_edge = (entries.row != entries.col) & ~np.isin(
        entries.row.astype(np.int64) * n + entries.col, edges.row.astype(np.int64) * n + edges.col
    )
    if off_edge.any():
        k = int(np.flatnonzero(off_edge)[0])
        i, j = matrix_labels[entries.row[k]], matrix_labels[entries.col[k]]
        raise InvalidInput(
            f"weights: node {i!r} gives weight {entries.data[k]:.6g} to node {j!r}, but the graph has no "
            "edge between them; add that edge to the graph, or set this weight to 0 and give it to the "
            "diagonal."
        )
    return matrix


def from_file(path: str | os.PathLike[str], graph: graphs.Source) -> GossipMatrix:
    """A dense W from a file, rows in label order of the graph.

    Args:
        path: a `.npy` file of numbers (pickled objects are refused) or a `.csv` file of plain numbers, one
            row per line.
        graph: the graph whose edges may carry weight.

    Raises:
        InvalidInput: missing, unreadable or malformed file (with its line number), and all of `from_array`.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix not in (".npy", ".csv"):
        raise InvalidInput(f"gossip matrix file {str(file)!r} must end in .npy or .csv.")
    try:
        array = _read_npy(file) if suffix == ".npy" else _read_csv(file)
    except FileNotFoundError:
        raise InvalidInput(f"gossip matrix file {str(file)!r} does not exist; check the path.") from None
    except OSError as error:
        raise InvalidInput(f"gossip matrix file {str(file)!r} cannot be read ({type(error).__name__}).") from None
    return from_array(array, graph, name=file.name)


def load(spec: str | os.PathLike[str], graph: graphs.Source) -> GossipMatrix:
    """The gossip matrix of a configuration: `metropolis-hastings`, `uniform`, or a `.npy` or `.csv` file.

    >>> load("uniform", "ring:n=4").is_symmetric
    True

    Raises:
        InvalidInput: unknown name, and all of the builder it stands for.
    """
    if isinstance(spec, str) and spec in _BUILDERS:
        return _BUILDERS[spec](graph)
    if not isinstance(spec, str | os.PathLike):
        raise InvalidInput(
            f"gossip must be one of {', '.join(_BUILDERS)} or the path of a .npy or .csv file, got "
            f"{type(spec).__name__}."
        )
    text = os.fspath(spec)
    if "/" in text or os.sep in text or text.lower().endswith((".npy", ".csv")) or isinstance(spec, os.PathLike):
        return from_file(spec, graph)
    raise unknown_name("gossip matrix", text, _BUILDERS)


def sequence(matrices: Iterable[GossipMatrix], repeat: bool = True) -> GossipSequence:
    """Time-varying gossip from a list of rounds, repeated for ever or not.

    >>> two = sequence([metropolis_hastings("ring:n=4"), metropolis_hastings("star:n=4")])
    >>> two.at(3).dense()[0].round(2)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return GossipSequence(tuple(matrices), repeat)


_BUILDERS = {"metropolis-hastings": metropolis_hastings, "uniform": uniform}


def _connected(graph: graphs.Source) -> nx.Graph:
    G = graphs.load(graph)
    graphs.require_connected(G)
    return G


def _with_diagonal(off_diagonal: csr_array, labels: tuple[Hashable, ...], name: str) -> GossipMatrix:
    rest = 1.0 - np.asarray(off_diagonal.sum(axis=1)).ravel()
    return GossipMatrix(off_diagonal + diags_array(rest), labels, name)


def _own_csr(weights: Any) -> csr_array:
    """An own float64 csr_array copy of a square matrix, with sorted indices and no stored zeros."""
    if issparse(weights):
        if weights.dtype.kind not in "fiu":
            raise InvalidInput(f"weights must be real numbers, got dtype {weights.dtype}.")
        W = csr_array(weights, dtype=np.float64, copy=True)
    else:
        if np.iscomplexobj(weights):
            raise InvalidInput("weights must be real numbers, got complex ones.")
        W = csr_array(check.square_array(weights=weights))
    if W.ndim != 2 or W.shape[0] != W.shape[1]:
        raise InvalidInput(f"weights must be square, got shape {W.shape}.")
    W.sum_duplicates()
    W.eliminate_zeros()
    W.sort_indices()
    return W


def _position(W: csr_array, k: int) -> tuple[int, int]:
    """Row and column of the k-th stored entry."""
    return int(np.searchsorted(W.indptr, k, side="right")) - 1, int(W.indices[k])


def _strongly_connected(W: csr_array) -> bool:
    number: int = connected_components(W, directed=True, connection="strong", return_labels=False)
    return number == 1


def _measure_from_spanning_forest(W: csr_array) -> FloatArray | None:
    """d with d_i W_ij = d_j W_ji, mean 1 on each component, or None; W has sorted, non-zero entries."""
    n = W.shape[0]
    reverse = W.T.tocsr()
    reverse.sort_indices()
    if not (np.array_equal(W.indptr, reverse.indptr) and np.array_equal(W.indices, reverse.indices)):
        return None
    # One more node above the first node of each component: a single search then visits the whole forest.
    _, component = connected_components(W, directed=False)
    _, roots = np.unique(component, return_index=True)
    indptr = np.append(W.indptr, W.indptr[-1] + len(roots))
    indices = np.append(W.indices, roots)
    search = csr_array((np.ones(len(indices)), indices, indptr), shape=(n + 1, n + 1))
    order, parent = breadth_first_order(search, n, directed=True)
    tree = order[1:][parent[order[1:]] < n]
    ratio = np.ones(n)
    measure = np.ones(n)
    with np.errstate(over="ignore", invalid="ignore"):  # out of range is found below
        ratio[tree] = W[parent[tree], tree] / W[tree, parent[tree]]
        for node in tree:  # parents come first
            measure[node] = measure[parent[node]] * ratio[node]
        measure *= np.bincount(component)[component] / np.bincount(component, weights=measure)[component]
    if not (np.isfinite(measure).all() and (measure > 0).all()):
        return None
    rows = np.repeat(np.arange(n), np.diff(W.indptr))
    flow = measure[rows] * W.data
    backward = measure[W.indices] * reverse.data
    balanced = np.abs(flow - backward) <= BALANCE_TOLERANCE * np.maximum(flow, backward)
    return measure if balanced.all() else None


def _read_npy(file: Path) -> NDArray[Any]:
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(f"gossip matrix file {str(file)!r} is not a .npy file of numbers: {reason}.") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        kind = array.dtype if isinstance(array, np.ndarray) else "an archive"
        raise InvalidInput(f"gossip matrix file {str(file)!r} must hold one array of real numbers, got {kind}.")
    return array


def _read_csv(file: Path) -> NDArray[Any]:
    rows: list[list[float]] = []
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"gossip matrix file {str(file)!r} is not UTF-8 text; save it as plain numbers.") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row: list[float] = []
        for field in line.split(","):
            try:
                row.append(float(field))
            except ValueError:
                raise InvalidInput(
                    f"gossip matrix file {str(file)!r}, line {number}: {field.strip()!r} is not a number; "
                    f"write plain numbers separated by commas, without a header."
                ) from None
        if rows and len(row) != len(rows[0]):
            raise InvalidInput(
                f"gossip matrix file {str(file)!r}, line {number}: {len(row)} numbers where the first row "
                f"has {len(rows[0])}."
            )
        rows.append(row)
    if not rows:
        raise InvalidInput(f"gossip matrix file {str(file)!r} holds no numbers.")
    return np.array(rows)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _brief(labels: tuple[Hashable, ...]) -> str:
    return f"{len(labels)} labels from {labels[0]!r}"
