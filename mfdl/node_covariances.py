"""Covariances of noise over the nodes of one step, and how well the nodes hide each other.

With all messages of T steps seen and noise fresh in every step, mu^2 = record_shift^2 * T * [R^-1]_ii for the record of
node i, R the covariance in index order of the labels. Published bounds built on these are in `mfdl_papers`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array, hstack, issparse, vstack

from . import check, graphs
from .check import FloatArray
from .errors import InvalidInput

MAX_COALITIONS = 20_000  # each costs one dense n x n factorization
SYMMETRY_TOLERANCE = 1e-12  # relative to the largest entry; differences of rounding only
NEGLIGIBLE = 2.0**-80  # of the largest entry of a factor: far below what rounding leaves of R
_BATCH_ENTRIES = 2**20  # 8 MB of stacked matrices at a time


def laplacian(graph: graphs.Source) -> csr_array:
    """Graph Laplacian, shape (n, n), in label order.

    >>> laplacian("path:n=3").toarray()
    array([[ 1., -1.,  0.],
           [-1.,  2., -1.],
           [ 0., -1.,  1.]])
    """
    N = incidence(graph)
    return csr_array(N @ N.T)


def incidence(graph: graphs.Source, orientation: Sequence[int] | None = None) -> csr_array:
    """Signed incidence matrix N, shape (n, number of edges); L = N N^T for every orientation.

    Columns are the edges (i, j), i < j, in increasing order; +1 at i and -1 at j.

    Raises:
        InvalidInput: `orientation` has another length than the list of edges, or an entry that is not +1 or -1.

    >>> incidence("path:n=3", orientation=[1, -1]).toarray()
    array([[ 1.,  0.],
           [-1., -1.],
           [ 0.,  1.]])

    Args: orientation: for each edge +1 (as above) or -1 (both signs flipped); default all +1.
    """
    A = graphs.adjacency(graphs.load_sparse(graph)).tocoo()
    upper = A.row < A.col
    first, second = A.row[upper].astype(np.int64), A.col[upper].astype(np.int64)
    order = np.lexsort((second, first))  # exact: integers
    first, second = first[order], second[order]
    signs = np.ones(len(first))
    if orientation is not None:
        signs = check.finite_array(1, orientation=orientation)
        if len(signs) != len(first):
            raise InvalidInput(f"orientation must have one entry per edge, got {len(signs)} for {len(first)} edges.")
        if not (np.abs(signs) == 1).all():
            where = int(np.flatnonzero(np.abs(signs) != 1)[0])
            raise InvalidInput(f"orientation must hold +1 or -1, got {signs[where]:g} at edge {where}.")
    edges = np.arange(len(first))
    values = np.concatenate([signs, -signs])
    places = (np.concatenate([first, second]), np.concatenate([edges, edges]))
    return csr_array((values, places), shape=(A.shape[0], len(first)))


def decor_covariance(laplacian: Any, sigma_ldp: float, sigma_cor: float) -> FloatArray:
    """R = sigma_ldp^2 I + sigma_cor^2 L, where the noises of edges are independent, also of edges that share a node.

    Args: laplacian: L, dense or sparse, shape (n, n); for colluders that of the graph without them; sigma_ldp,
        sigma_cor: standard deviations of a node's private noise, and of what an edge shares with opposite signs.
    Raises: InvalidInput: L is not a finite square matrix, or a standard deviation is negative or not finite.
    """
    R = check.square_array(laplacian=laplacian.toarray() if issparse(laplacian) else laplacian)
    R *= check.non_negative(sigma_cor=sigma_cor) ** 2
    R[np.diag_indices_from(R)] += check.non_negative(sigma_ldp=sigma_ldp) ** 2
    return R


def seed_factor(
    private_variance: float, groups: Sequence[Sequence[int]], parts: Sequence[FloatArray], num_nodes: int
) -> tuple[csr_array, csr_array]:
    """F with F F^T = s I + sum_k R_k, csr (n, columns), and the holders of its columns, bool csr (columns, n).

    Args: groups: for each seed the nodes that hold it; parts: R_k over these nodes, in their order.
    Raises: InvalidInput: a part that is not symmetric positive semidefinite, or zero; no noise at all.
    """
    n, factors, holders = num_nodes, [], []
    if private_variance > 0:
        factors.append(csr_array(math.sqrt(private_variance) * eye_array(n)))
        holders.append(csr_array(eye_array(n, dtype=bool)))
    for R, group in zip(parts, groups, strict=True):
        factor = _root(R)
        columns = np.arange(factor.shape[1])
        rows = np.repeat(np.asarray(group), columns.size)
        factors.append(csr_array((factor.ravel(), (rows, np.tile(columns, len(group)))), shape=(n, columns.size)))
        members = np.zeros(n, dtype=bool)
        members[list(group)] = True
        holders.append(csr_array(np.tile(members, (columns.size, 1))))
    if not factors:
        raise InvalidInput("no noise at all: give a covariance, groups with parts, or private_variance > 0.")
    return hstack(factors).tocsr(), vstack(holders).tocsr()


def inverse_diagonal(covariance: Any, honest: Sequence[int] | None = None) -> float:
    """Largest entry of `inverse_diagonal_by_node`: the privacy cost of one step for the worst victim."""
    return float(inverse_diagonal_by_node(covariance, honest).max())


def inverse_diagonal_by_node(covariance: Any, honest: Sequence[int] | None = None) -> FloatArray:
    """[R_honest^-1]_ii for each honest node i, in the order of `honest`.

    R_honest is the covariance of the honest nodes' noise given that of the others: where they are correlated the
    submatrix would report too small a loss. Seeds that colluders share must be removed from `covariance` first.

    Args:
        covariance: R, dense, shape (n, n), symmetric positive definite.
        honest: distinct node indices; default all nodes, the case of an eavesdropper.
    Guarantees: never below the diagonal of the inverse of the submatrix, up to rounding of relative size
        cond(R) * 2^-53 * n.
    Raises: InvalidInput: R is not symmetric positive definite: along an eigenvector of eigenvalue 0 the messages show
        gradients without noise; `honest` is empty, repeats an index or leaves the range.
    Cost: O(n^3).
    """
    R = check.square_array(covariance=covariance)
    n = len(R)
    if n == 0:
        raise InvalidInput("covariance must have at least one node, got shape (0, 0).")
    scale = float(np.abs(R).max())
    gap = float(np.abs(R - R.T).max())
    if gap > SYMMETRY_TOLERANCE * scale:
        raise InvalidInput(f"covariance must be symmetric, got entries that differ from the transpose by {gap:.3g}.")
    honest_nodes = np.arange(n) if honest is None else _nodes(honest, n)
    others = np.setdiff1d(np.arange(n), honest_nodes)
    if not R[np.ix_(honest_nodes, others)].any():
        return _inverse_diagonal_of_definite(R[np.ix_(honest_nodes, honest_nodes)])
    # [R^-1] restricted to the honest nodes is the inverse of their conditional covariance
    return _inverse_diagonal_of_definite(R)[honest_nodes]


def algebraic_connectivity_after_deletion(graph: graphs.Source, q: int) -> float:
    """a_q: the smallest second eigenvalue of the Laplacian left after deleting any q nodes and their edges.

    0 if some q nodes cut the graph apart, inf if a single node is left.

    >>> [round(algebraic_connectivity_after_deletion("complete:n=16", q)) for q in (0, 1)]
    [16, 15]

    Guarantees: rounded down, by at most n * 2^-52 times the largest eigenvalue, so bounds that fall with it hold.
    Raises: InvalidInput: q is out of range, or there are more than MAX_COALITIONS choices. Cost: O(n^3) for each.
    """
    G = graphs.load(graph)
    smallest = math.inf
    for batch, _ in laplacians_after_deletion(G, q):
        m = batch.shape[1]
        if m == 1:
            return math.inf
        values = np.linalg.eigvalsh(batch)
        smallest = min(smallest, float((values[:, 1] - m * 2.0**-52 * values[:, -1]).min()))
    return max(0.0, smallest)


def laplacians_after_deletion(graph: graphs.Source, q: int) -> Iterator[tuple[FloatArray, NDArray[np.int64]]]:
    """Laplacians of the graph without q nodes, in batches (b, n - q, n - q), and the nodes left, (b, n - q).

    Raises: InvalidInput: q is not in 0 .. n - 1, or there are more than MAX_COALITIONS choices.
    """
    A = graphs.adjacency(graphs.load(graph)).toarray()
    n = len(A)
    q = check.integer_at_least(0, q=q)
    if q >= n:
        raise InvalidInput(f"q must be below the number of nodes, {n}, got {q}; some node must be left.")
    choices = math.comb(n, q)
    if choices > MAX_COALITIONS:
        raise InvalidInput(
            f"q={q} of {n} nodes makes {choices} coalitions, more than the {MAX_COALITIONS} that are tried one by "
            f"one; name the colluders (decor_victims), take fewer, or count all of them as colluding (LDP)."
        )
    remaining = combinations(range(n), n - q)
    size = max(1, _BATCH_ENTRIES // (n - q) ** 2)
    while batch := list(islice(remaining, size)):
        remaining_nodes = np.array(batch, dtype=np.int64)
        L = -A[remaining_nodes[:, :, None], remaining_nodes[:, None, :]]
        diagonal = np.arange(n - q)
        L[:, diagonal, diagonal] = -L.sum(axis=2)
        yield L, remaining_nodes


def _nodes(indices: Sequence[int], n: int) -> NDArray[np.int64]:
    nodes = [check.integer_at_least(0, honest=index) for index in indices]
    if not nodes:
        raise InvalidInput("honest must name at least one node, got none.")
    if max(nodes) >= n:
        raise InvalidInput(f"honest must hold indices below {n}, the number of nodes, got {max(nodes)}.")
    if len(set(nodes)) != len(nodes):
        raise InvalidInput("honest must hold distinct indices, got one twice.")
    return np.array(nodes, dtype=np.int64)


def _inverse_diagonal_of_definite(R: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh((R + R.T) / 2)
    if values[0] <= len(R) * 2.0**-52 * max(values[-1], 0.0):
        raise InvalidInput(
            f"covariance must be positive definite, got the smallest eigenvalue {values[0]:.6g} (largest "
            f"{values[-1]:.6g}): without noise in that direction the privacy loss is infinite; add noise of each "
            f"node's own."
        )
    diagonal: FloatArray = (vectors**2 / values).sum(axis=1)
    return diagonal


def _root(R: FloatArray) -> FloatArray:
    """F with F F^T = R, columns with non-zero variance only."""
    if np.abs(R - R.T).max() > 1e-9 * np.abs(R).max():
        raise InvalidInput("covariance must be symmetric; use (R + R.T) / 2 if that is what you mean.")
    values, vectors = np.linalg.eigh((R + R.T) / 2)
    if values[0] < -1e-9 * max(values[-1], 0.0) or values[-1] <= 0:
        raise InvalidInput(f"covariance must be positive semidefinite and not zero, got eigenvalue {values[0]:.3g}.")
    positive = values > 1e-12 * values[-1]
    factor = np.asarray(vectors[:, positive] * np.sqrt(values[positive]))
    # zeros of eigenvectors come out as up to 1e-16, or as products of such, on which the rank of noise stays undecided
    factor[np.abs(factor) < NEGLIGIBLE * np.abs(factor).max()] = 0.0
    return factor
