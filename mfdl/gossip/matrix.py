"""`Gossip`, what every kind of gossip answers, and `GossipMatrix`, one checked averaging round with its numerics.

Convolutions over a product of cycles (ring, torus, hypercube, complete graph) have their spectrum by FFT. They are seen
from the weights themselves, never from a name: node i gives i + c the weight that node 0 gives c.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, issparse
from scipy.sparse.csgraph import breadth_first_order, connected_components

from mfdl_solvers.ties import first_largest

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..floats import EPS
from ..graphs import SparseGraph
from ..matrices import content_hash, position, read_only
from ..spec import storable

if TYPE_CHECKING:
    import networkx as nx

SUM_TOLERANCE = 1e-9  # a matrix written with 10 decimals passes, a forgotten self weight never does
SYMMETRY_TOLERANCE = 1e-12  # weights are at most 1; differences of rounding only
BALANCE_TOLERANCE = 1e-12  # relative, in d_i W_ij = d_j W_ji
MAX_DENSE_NODES = 20_000  # 3.2 GB
MAX_EIGENVALUES = 5000  # nodes up to which the ends of the spectrum come from all of it: a minute


class Gossip(abc.ABC):
    """Averaging rounds over the steps of a run, from `at(step)`; labels in index order, and a name for reports."""

    labels: tuple[Hashable, ...]
    name: str

    @abc.abstractmethod
    def at(self, step: int) -> GossipMatrix:
        """The round of this step, counted from 0."""

    @property
    def num_nodes(self) -> int:
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
    def is_identity(self) -> bool:
        """Whether it is known that no node ever gives weight to another one."""
        return False

    @property
    @abc.abstractmethod
    def content_hash(self) -> str:
        """16 hex digits of the SHA-256 of labels and weights: what a cache must be keyed by."""

    @abc.abstractmethod
    def describe(self) -> str:
        """One sentence with the properties that hold and those that do not."""

    def __repr__(self) -> str:
        return f"<{self.describe()}>"


@storable
@dataclass(frozen=True)
class MixingCertificate:
    """How far optimised weights are from the best symmetric ones of their graph, by a certified lower bound."""

    objective: str
    value: float
    lower_bound: float

    def __str__(self) -> str:
        return f"{self.objective} {self.value:.6g}, at least {self.lower_bound:.6g} for any weights"


@storable
@dataclass(frozen=True, eq=False, repr=False)
class GossipMatrix(Gossip):
    """One averaging round, new = W @ old; W[i, j] is the weight node i gives node j.

    Attributes:
        weights: W, shape (n, n), float64 csr_array with read-only data, an own copy without stored zeros;
            finite, entries >= 0, rows sum to 1 within 1e-9. A dense array or any scipy sparse matrix is
            accepted. Entries of the diagonal that are as small as the rounding of 1 minus the others are 0.
        graph_name: what the communication graph is called, for reports; "" if it has no name.

    Raises: InvalidInput: one of these conditions fails; the message names the entry or row by its labels.
    Cost: O(stored entries); nothing n x n for sparse weights.
    """

    weights: csr_array
    labels: tuple[Hashable, ...]
    name: str = "given"
    graph_name: str = ""
    certificate: MixingCertificate | None = None

    def __post_init__(self) -> None:
        W = own_csr(self.weights)
        n, names = W.shape[0], tuple(self.labels)
        if len(names) != n:
            raise InvalidInput(f"labels must name every row of weights, got {len(names)} labels for {n} rows.")
        if len(set(names)) != n:
            twice = next(label for i, label in enumerate(names) if label in names[:i])
            raise InvalidInput(f"labels must be distinct, got {twice!r} twice.")
        if n == 0:
            raise InvalidInput("weights must have at least one row, got shape (0, 0).")
        rows = np.repeat(np.arange(n), np.diff(W.indptr))
        residue = (rows == W.indices) & (np.abs(W.data) <= EPS * np.diff(W.indptr)[rows])
        if residue.any():
            W.data[residue] = 0.0
            W.eliminate_zeros()
        bad = np.flatnonzero(~(np.isfinite(W.data) & (W.data >= 0)))
        if bad.size:
            i, j = position(W, bad[0])
            raise InvalidInput(
                f"weights must be finite and >= 0, got {W.data[bad[0]]} in the row of node {names[i]!r} for "
                f"node {names[j]!r}."
            )
        sums = np.asarray(W.sum(axis=1)).ravel()
        row = first_largest(np.abs(sums - 1))
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
        object.__setattr__(self, "weights", read_only(W))
        object.__setattr__(self, "labels", names)

    def at(self, step: int) -> GossipMatrix:
        check.integer_at_least(0, step=step)
        return self

    @property
    def is_constant(self) -> bool:
        return True

    def links(self) -> SparseGraph:
        """The communication graph as arrays, nodes 0..n-1 in index order: see `graph`."""
        n, ends = self.num_nodes, np.stack(coo_array(self.weights).coords, axis=1).astype(np.int64)
        return SparseGraph.from_edges(tuple(range(n)), ends, self.graph_name)

    def graph(self) -> nx.Graph:
        """The communication graph: an edge where either node gives the other weight, nodes 0..n-1 in index order."""
        pairs = zip(*(axis.tolist() for axis in coo_array(self.weights).coords), strict=True)
        import networkx as nx

        graph = nx.empty_graph(self.num_nodes)
        graph.add_edges_from((min(i, j), max(i, j)) for i, j in pairs if i != j)
        return graph

    @cached_property
    def is_symmetric(self) -> bool:
        difference = abs(self.weights - self.weights.T)
        return bool(difference.nnz == 0 or difference.max() <= SYMMETRY_TOLERANCE)

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        return bool(np.abs(np.asarray(self.weights.sum(axis=0)) - 1).max() <= SUM_TOLERANCE)

    @cached_property
    def is_identity(self) -> bool:
        rows, columns = coo_array(self.weights).coords
        return bool((rows == columns).all())

    @cached_property
    def is_connected(self) -> bool:
        return strongly_connected(self.weights)

    @property
    def is_reversible(self) -> bool:
        """Whether some positive d has d_i W_ij = d_j W_ji: then W is similar to a symmetric matrix."""
        return self.reversible_measure is not None

    @cached_property
    def reversible_measure(self) -> FloatArray | None:
        """The d of `is_reversible`, shape (n,), read-only, mean 1 on each connected component; else None.

        Forced along the edges of a spanning tree, then verified for every entry, within 1e-12 relative; None also if d
        exceeds the range of float64.

        Cost: O(n + stored entries).
        """
        measure = np.ones(self.num_nodes) if self.is_symmetric else _measure_from_spanning_forest(self.weights)
        return None if measure is None else read_only(measure)

    @cached_property
    def closed_spectrum(self) -> FloatArray | None:
        """All n eigenvalues, decreasing, read-only, of symmetric W that is a convolution over a product of cycles.

        Rings, tori, hypercubes, complete graphs, nodes numbered row by row; else None.

        Cost: O(stored entries + n log n).
        """
        eigenvalues = convolution_spectrum(self.weights) if self.is_symmetric else None
        return None if eigenvalues is None else read_only(np.sort(eigenvalues)[::-1].copy())

    @cached_property
    def spectrum(self) -> NDArray[Any]:
        """All n eigenvalues, read-only: real decreasing if W is reversible (D^1/2 W D^-1/2), else by modulus.

        Raises: InvalidInput: more than 20,000 nodes, unless in closed form. Cost: then O(n log n), else O(n^3).
        """
        if self.closed_spectrum is not None:
            return self.closed_spectrum
        W = self.dense()
        if self.reversible_measure is not None:
            root = np.sqrt(self.reversible_measure)
            S = root[:, None] * W / root
            values: NDArray[Any] = np.linalg.eigvalsh((S + S.T) / 2)[::-1].copy()
        else:
            values = np.linalg.eigvals(W).astype(np.complex128)
            # equal moduli differ by rounding: rounded, then by real part, so that 1 comes first
            values = values[np.lexsort((-values.imag, -values.real, -np.abs(values).round(12)))]  # exact: rounded
        return read_only(values)

    @cached_property
    def spectral_interval(self) -> tuple[float, float]:
        """Smallest and largest eigenvalue of symmetric W but the first 1; (0, 0) for a single node.

        Cost: that of `spectrum` up to MAX_EIGENVALUES nodes or in closed form, else of Lanczos: products with W.
        """
        if self.num_nodes == 1:
            return 0.0, 0.0
        if self.closed_spectrum is None and self.num_nodes > MAX_EIGENVALUES:
            from scipy.sparse.linalg import LinearOperator, eigsh

            n = self.num_nodes
            others = LinearOperator((n, n), lambda x: self.weights @ (x - x.mean(axis=0)), dtype=np.float64)
            start = np.random.default_rng(0).standard_normal(n)
            ends = eigsh(others, 2, which="BE", v0=start, tol=1e-9, return_eigenvectors=False)
        else:
            ends = self.spectrum[[-1, 1]]
        return float(ends[0]), float(ends[1])

    @cached_property
    def spectral_gap(self) -> float:
        """1 - the second largest modulus of an eigenvalue; 1 for a single node, 0 if a mode never decays."""
        if self.num_nodes == 1:
            return 1.0
        return max(0.0, float(1 - np.sort(np.abs(self.spectrum))[-2]))

    @cached_property
    def mixing_parameter(self) -> float:
        """p = 1 - lambda_2(W^T W): one averaging shrinks the squared distance to the average to at most 1 - p of it.

        >>> from mfdl.gossip import metropolis_hastings
        >>> round(metropolis_hastings("torus:n=16").mixing_parameter, 4)
        0.64

        0 <= p <= 1; 0 if some nodes never hear of others or a difference never decays, 1 for one node.
        Raises: InvalidInput: W is not doubly stochastic, so that the average itself moves.
        Cost: O(n^3) time, O(n^2) memory.
        """
        if not self.is_doubly_stochastic:
            raise InvalidInput(
                "gossip must be doubly stochastic: otherwise the average moves, and noise that sums to zero over the "
                "nodes does not cancel in it; use metropolis-hastings."
            )
        n = self.num_nodes
        p = min(1.0, 1.0 - float(np.linalg.norm(self.dense() - 1.0 / n, 2)) ** 2)
        return p if p > 8 * n * EPS else 0.0  # rounding of a norm of one is not mixing

    def dense(self) -> FloatArray:
        """W as an own writable array, shape (n, n); refused above 20,000 nodes."""
        if self.num_nodes > MAX_DENSE_NODES:
            raise InvalidInput(
                f"a dense gossip matrix is limited to {MAX_DENSE_NODES} nodes, got {self.num_nodes}; use the "
                f"sparse `weights`."
            )
        return np.asarray(self.weights.toarray())

    @cached_property
    def content_hash(self) -> str:
        return content_hash(repr(self.labels), self.weights.indptr, self.weights.indices, self.weights.data)

    def describe(self) -> str:
        """One sentence with the properties that hold and those that do not.

        >>> from mfdl.gossip import metropolis_hastings
        >>> metropolis_hastings("path:n=3").describe()
        "gossip matrix 'metropolis-hastings' on 3 nodes with 7 weights: symmetric, doubly..., connected"
        """
        facts = [
            "symmetric" if self.is_symmetric else "not symmetric",
            "doubly stochastic"
            if self.is_doubly_stochastic
            else "not doubly stochastic (the average of the nodes moves)",
            "connected" if self.is_connected else "not connected (some nodes never hear of others)",
        ]
        if not self.is_symmetric:
            facts.append("reversible" if self.is_reversible else "not reversible")
        if self.certificate is not None:
            facts.append(str(self.certificate))
        return (
            f"gossip matrix {self.name!r} on {count(self.num_nodes, 'node')} with "
            f"{count(self.weights.nnz, 'weight')}: {', '.join(facts)}"
        )


def own_csr(weights: Any) -> csr_array:
    """An own float64 csr_array copy of a square matrix, with sorted indices and no stored zeros."""
    if issparse(weights):
        if weights.dtype.kind not in "fiu":
            raise InvalidInput(f"weights must be real numbers, got dtype {weights.dtype}.")
        W = csr_array(weights, dtype=np.float64, copy=True)
    else:
        W = csr_array(check.square_array(weights=weights))
    if W.ndim != 2 or W.shape[0] != W.shape[1]:
        raise InvalidInput(f"weights must be square, got shape {W.shape}.")
    W.sum_duplicates()
    W.eliminate_zeros()
    W.sort_indices()
    return W


def strongly_connected(W: csr_array) -> bool:
    return bool(connected_components(W, directed=True, connection="strong", return_labels=False) == 1)


def _measure_from_spanning_forest(W: csr_array) -> FloatArray | None:
    """d with d_i W_ij = d_j W_ji, mean 1 on each component, or None; W has sorted, non-zero entries."""
    n, reverse = W.shape[0], W.T.tocsr()
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
    ratio, measure = np.ones(n), np.ones(n)
    with np.errstate(over="ignore", invalid="ignore"):  # out of range is found below
        ratio[tree] = W[parent[tree], tree] / W[tree, parent[tree]]
        for node in tree:  # parents come first
            measure[node] = measure[parent[node]] * ratio[node]
        measure *= np.bincount(component)[component] / np.bincount(component, weights=measure)[component]
    if not (np.isfinite(measure).all() and (measure > 0).all()):
        return None
    flow, backward = measure[np.repeat(np.arange(n), np.diff(W.indptr))] * W.data, measure[W.indices] * reverse.data
    balanced = np.abs(flow - backward) <= BALANCE_TOLERANCE * np.maximum(flow, backward)
    return measure if balanced.all() else None


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


BLOCK_ENTRIES = 2**21
MAX_SHAPES = 32


def convolution_spectrum(W: csr_array) -> FloatArray | None:
    """All n eigenvalues of a symmetric W, in no order, where it is such a convolution; else None.

    Cost: O(stored entries) for each shape tried, O(n log n) where one fits; memory O(n).
    """
    n = W.shape[0]
    if (np.diff(W.indptr) != W.indptr[1]).any():
        return None
    first = W.indices[: W.indptr[1]].astype(np.int64)
    for shape in _shapes(n, first):
        if _is_convolution(W, first, shape):
            row = np.zeros(n)
            row[first] = W.data[: first.size]
            return np.asarray(scipy.fft.fftn(row.reshape(shape)).real.ravel())
    return None


def _shapes(n: int, first: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Shapes of groups with row 0 as a kernel: a cycle, a cube, tori whose second row starts at a neighbour of 0."""
    yield (n,)
    if n & (n - 1) == 0 and n > 2:
        yield (2,) * (n.bit_length() - 1)
    yield from ((n // c, c) for c in [int(c) for c in first if 1 < c < n and n % c == 0][:MAX_SHAPES])


def _is_convolution(W: csr_array, first: np.ndarray, shape: tuple[int, ...]) -> bool:
    n, degree, weights = W.shape[0], first.size, W.data[: first.size]
    offsets, width = np.unravel_index(first, shape), max(1, BLOCK_ENTRIES // degree)
    for start in range(0, n, width):
        rows = np.arange(start, min(n, start + width))
        to = np.zeros((rows.size, degree), dtype=np.int64)
        for length, at, offset in zip(shape, np.unravel_index(rows, shape), offsets, strict=True):
            to = to * length + (at[:, None] + offset) % length
        order = np.argsort(to, axis=1)  # exact: integers
        entries = slice(W.indptr[start], W.indptr[rows[-1] + 1])
        same = np.array_equal(np.take_along_axis(to, order, 1).ravel(), W.indices[entries])
        if not same or np.abs(weights[order].ravel() - W.data[entries]).max() > SYMMETRY_TOLERANCE:
            return False
    return True


EQUAL, MAX_BASE = 1e-12, 6  # difference of weights that count as equal, and nodes whose images decide a permutation
IntArray = NDArray[np.intp]


def vertex_symmetries(weights: FloatArray) -> IntArray | None:
    """Permutations s_u with s_u[0] = u and W[s_u][:, s_u] = W, as rows, shape (n, n); None if none is found for some u.

    A few nodes tell all others apart by a random polynomial of W; their images decide a permutation to check.
    """
    polynomial = power = np.eye(len(weights))
    for coefficient in np.random.default_rng(0).normal(size=len(weights)):
        power = power @ weights
        polynomial = polynomial + coefficient * power
        if (power > 0).all():
            break
    labels = np.unique(np.round(polynomial, 9), return_inverse=True)[1].reshape(weights.shape)
    base = [0]
    while (cells := np.unique(labels[base], axis=1, return_inverse=True, return_counts=True))[0].shape[1] < len(labels):
        base.append(int(np.flatnonzero(cells[2][cells[1].ravel()] > 1)[0]))
        if len(base) > MAX_BASE:
            return None
    symmetries = []
    for u in range(len(labels)):
        moves = (s for s in _moving(labels, base, [u]) if np.abs(weights[np.ix_(s, s)] - weights).max() <= EQUAL)
        if (symmetry := next(moves, None)) is None:
            return None
        symmetries.append(symmetry)
    return np.array(symmetries)


def _moving(labels: IntArray, base: list[int], images: list[int]) -> Iterator[IntArray]:
    """Permutations that move the base to nodes that start with `images`, by the labels between base and others."""
    if len(images) == len(base):
        by_labels = {tuple(column): v for v, column in enumerate(labels[images].T.tolist())}
        moved = [by_labels.get(tuple(column), -1) for column in labels[base].T.tolist()]
        if sorted(moved) == list(range(len(labels))):
            yield np.array(moved)
        return
    wanted = labels[base[: len(images)], base[len(images)]]
    for image in np.flatnonzero((labels[images] == wanted[:, None]).all(axis=0)).tolist():
        yield from _moving(labels, base, [*images, image])
