"""[(F F^T)^+]_uu of the noise of one step, F sparse: what one node's gradient shows beside the noise of all.

Connected parts of the pattern of F share no noise, so each stands for itself: a row alone is one over its variance,
parts of up to DENSE_ROWS rows are whitened, and larger ones are enclosed where every node has noise of its own
(`enclosed`).

F F^T = D + R R^T, D > 0 the variance of the columns that one row alone has. Scaled by D it is S = I + P with spectrum
in [1, b]. For every vector x and r = e_u - S x,

    e_u^T S^-1 e_u = 2 x_u - x^T S x + r^T S^-1 r,    |r|^2 / b <= r^T S^-1 r <= |r|^2,

so any x is a certificate, and x = sum_j c_j T_j(S') e_u, with Chebyshev polynomials of S moved to [-1, 1], needs of the
graph what lies within k edges of u: all products of the T_j are moments e_u^T T_i(S') e_u, i <= 2 k, which take |T_j
e_u|^2 and <T_j e_u, T_j+1 e_u>. The best c is a Gauss-Radau rule (Golub and Meurant, 1994); what rounding makes of it
is another c.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ...check import FloatArray
from ...floats import UNIT
from .whitening import whiten

DENSE_ROWS = 2000  # rows up to which a part is decomposed: a minute
MEETING = 1e-6
"""Relative distance of the two ends of an enclosure up to which its middle is called exact."""
ENOUGH = 1e-10
DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40)
"""Of polynomials, at which both ends are looked at; higher ones would need more than float64."""
BALL_ENTRIES = 12_000  # of vectors that are followed for one node: how far around it is looked
BLOCK_ENTRIES = 2**22
EXTREME = 2.0**300  # squares and products of such numbers stay far inside float64


@dataclasses.dataclass(frozen=True, eq=False)
class NodeNoise:
    """The noise that is left of each victim's, arrays (victims,).

    Attributes: inverse: [(F F^T)^+]_uu, within `errors`; open: the victim's gradient shows without noise, or that
        cannot be told; upper: only known to be at most this; undecided: nothing is told; tolerance: as `whitening`
        says.
    """

    inverse: FloatArray
    errors: FloatArray
    open: NDArray[np.bool_]
    upper: NDArray[np.bool_]
    undecided: NDArray[np.bool_]
    tolerance: float = 0.0


def node_noise(factor: sp.csr_array, known: NDArray[np.bool_], victims: Sequence[int]) -> NodeNoise:
    """The noise left of each victim's, where an attacker knows some columns of the factor (n, columns).

    Cost: of a part of m rows m^3 up to DENSE_ROWS, beyond about BALL_ENTRIES products for each victim.
    """
    F = sp.csr_array(factor @ sp.diags_array((~known).astype(np.float64)))
    F.eliminate_zeros()
    chosen = np.asarray(victims, dtype=np.intp)
    if F.shape[0] <= DENSE_ROWS:
        return _whitened(F, chosen)
    pattern = sp.csr_array((np.ones(F.nnz), F.indices, F.indptr), shape=F.shape)  # products of entries may underflow
    _, part = connected_components(pattern @ pattern.T, directed=False)
    sizes = np.bincount(part)
    zeros, no = np.zeros(chosen.size), np.zeros(chosen.size, dtype=bool)
    bounds = NodeNoise(zeros, zeros.copy(), no, no.copy(), no.copy())
    alone = sizes[part[chosen]] == 1
    variances = np.asarray(F.multiply(F).sum(axis=1)).ravel()[chosen]
    plain = alone & (variances > 1 / EXTREME) & (variances < EXTREME)
    inverse = np.divide(1.0, variances, out=np.zeros(chosen.size), where=plain)
    bounds.inverse[plain] = inverse[plain]
    bounds.errors[plain] = (np.diff(F.indptr).max() + 4) * UNIT * inverse[plain]
    tolerance = 0.0
    for component in np.unique(part[chosen[~plain]]):
        rows, at = np.flatnonzero(part == component), np.flatnonzero(~plain & (part[chosen] == component))
        local = F[rows]
        places = np.searchsorted(rows, chosen[at])
        columns = np.unique(local.indices)
        local = sp.csr_array(local[:, columns])
        given = _whitened(local, places) if rows.size <= DENSE_ROWS else enclosed(local, places)
        for name in ("inverse", "errors", "open", "upper", "undecided"):
            getattr(bounds, name)[at] = getattr(given, name)
        tolerance = max(tolerance, given.tolerance)
    return dataclasses.replace(bounds, tolerance=tolerance)


def joint_node_noise(factor: sp.csr_array, known: NDArray[np.bool_], nodes: Sequence[int]) -> NodeNoise | None:
    """The same for nodes together, `inverse` and `errors` (nodes, nodes); None of over DENSE_ROWS rows."""
    if factor.shape[0] > DENSE_ROWS:
        return None
    F = sp.csr_array(factor @ sp.diags_array((~known).astype(np.float64)))
    return _whitened(F, np.asarray(nodes, dtype=np.intp), joint=True)


def _whitened(F: sp.csr_array, nodes: NDArray[np.intp], *, joint: bool = False) -> NodeNoise:
    white = whiten(np.eye(F.shape[0])[:, nodes], F.toarray(), given_noise=True)
    Y, errors = white.whitened, white.gram_error()
    inverse, errors = (Y.T @ Y, errors) if joint else ((Y**2).sum(axis=0), np.diagonal(errors).copy())
    open_, upper = white.leaks | white.undecided, white.undecided | (white.leaks & white.assumed)
    return NodeNoise(inverse, errors, open_, upper, np.zeros(nodes.size, dtype=bool), white.tolerance)


def enclosed(F: sp.csr_array, victims: NDArray[np.intp]) -> NodeNoise:
    """Between certified ends, from what lies near each victim; undecided where a node has no noise of its own."""
    n, columns = F.shape
    single = np.bincount(F.indices, minlength=columns) == 1
    squares = F.multiply(F).tocsr()
    of_node = np.asarray(squares[:, np.flatnonzero(single)].sum(axis=1)).ravel()
    no, yes = np.zeros(victims.size, dtype=bool), np.ones(victims.size, dtype=bool)
    if not ((of_node > 1 / EXTREME) & (of_node < EXTREME)).all() or squares.max() > EXTREME:
        return NodeNoise(np.zeros(victims.size), np.zeros(victims.size), no, no, yes)
    R = sp.csr_array(sp.diags_array(1 / np.sqrt(of_node)) @ F[:, np.flatnonzero(~single)])
    P = sp.csr_array(R @ R.T)
    # entries of P and D are sums of at most that many rounded products
    terms = int(np.diff(F.indptr).max()) + int(np.diff(F.tocsc().indptr).max()) + 8
    off = terms * UNIT * (1 + float((abs(R) @ (abs(R).T @ np.ones(n))).max()))
    lower, upper = inverse_diagonal(P, victims)
    lower, upper = lower * (1 - 2 * off) / of_node[victims], upper * (1 + 2 * off) / of_node[victims]
    meet = upper - lower <= MEETING * upper
    middle = np.where(meet, (lower + upper) / 2, upper)
    return NodeNoise(middle, np.where(meet, (upper - lower) / 2, 0.0) + 4 * UNIT * upper, no, ~meet, no)


def inverse_diagonal(P: sp.csr_array, victims: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds on [(I + P)^-1]_uu, P sparse symmetric positive semidefinite, shape (n, n)."""
    n = P.shape[0]
    largest = float(abs(P).sum(axis=1).max()) * (1 + 1e-12)
    if largest == 0:
        return np.ones(victims.size), np.ones(victims.size)
    X = sp.csr_array((2 / largest) * P - sp.eye_array(n))  # (2 S - (1 + b)) / (b - 1), b = 1 + largest
    width = max(1, BLOCK_ENTRIES // BALL_ENTRIES)
    ends = [_enclosed_block(X, 1 + largest, victims[i : i + width]) for i in range(0, victims.size, width)]
    lower, upper = (np.concatenate(parts) for parts in zip(*ends, strict=True))
    return lower, upper


def _enclosed_block(X: sp.csr_array, b: float, victims: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
    """Ends by rows T_j(X) e_u of all victims at once, until both meet or the neighbourhoods are too large."""
    size, n = victims.size, X.shape[0]
    row_entries = X.nnz / n
    rounding = (float(np.diff(X.indptr).max()) + 8) * UNIT  # of one product of a row of norm at most 1
    before = sp.csr_array((np.ones(size), (np.arange(size), victims)), shape=(size, n))
    current = sp.csr_array(before @ X)
    moments = [np.ones(size), _dots(before, current), 2 * _dots(current, current) - 1]
    lower, upper = np.full(size, 1 / b), np.ones(size)  # as 1 <= S <= b
    for k in range(1, DEGREES[-1] + 1):
        last = current.nnz * row_entries > BALL_ENTRIES * size
        if last or k in DEGREES:
            with np.errstate(over="ignore", invalid="ignore"):
                low, high = _ends(np.stack(moments, axis=1), k, b, 8 * (k + 1) ** 2 * rounding)
            lower, upper = np.fmax(lower, low), np.fmin(upper, high)  # an end that overflowed to nan says nothing
        if last or (upper - lower <= ENOUGH * upper).all():
            break
        before, current = current, sp.csr_array(2 * (current @ X) - before)
        moments += [2 * _dots(current, before) - moments[1], 2 * _dots(current, current) - 1]
    return lower, upper


def _dots(A: sp.csr_array, B: sp.csr_array) -> FloatArray:
    """Row by row."""
    return np.asarray(A.multiply(B).sum(axis=1)).ravel()


def _ends(moments: FloatArray, k: int, b: float, off: float) -> tuple[FloatArray, FloatArray]:
    """(lower, upper) by polynomials of degree below k, from moments up to 2 k, each within `off` of the truth."""
    i, j = np.indices((k + 1, k + 1))
    G = (moments[:, i + j] + moments[:, np.abs(i - j)]) / 2  # <T_i e_u, T_j e_u>
    A = np.zeros((k + 1, k))  # of S T_j
    A[np.arange(k), np.arange(k)] = (1 + b) / 2
    A[1, 0] = (b - 1) / 2
    for column in range(1, k):
        A[column - 1, column] += (b - 1) / 4
        A[column + 1, column] += (b - 1) / 4
    xSx, g, h = G[:, :k] @ A, G[:, 0, :k], G[:, 0] @ A
    Q = A.T @ G @ A - (xSx + xSx.transpose(0, 2, 1)) / 2
    weights = _solved(Q, h - g)
    upper = 1 - 2 * ((h - g) * weights).sum(axis=1) + np.einsum("vi,vij,vj->v", weights, Q, weights)
    under = _solved(xSx, g)
    lower = 2 * (g * under).sum(axis=1) - np.einsum("vi,vij,vj->v", under, xSx, under)
    return lower - off * _size(under, A), upper + off * _size(weights, A)


def _solved(Q: FloatArray, right: FloatArray) -> FloatArray:
    """Some c with Q c near the right side; how near decides how tight an end is, not whether it holds."""
    k = Q.shape[1]
    ridge = 1e-13 * np.abs(np.trace(Q, axis1=1, axis2=2)) + 1e-300
    try:
        return np.asarray(np.linalg.solve(Q + ridge[:, None, None] * np.eye(k), right[..., None])[..., 0])
    except np.linalg.LinAlgError:  # of one victim; the block keeps the ends of fewer degrees
        return np.zeros_like(right)


def _size(c: FloatArray, A: FloatArray) -> FloatArray:
    """How much of rounding in moments, and in what is made of them, reaches an end at c."""
    plain, times = np.abs(c).sum(axis=1), (np.abs(c) @ np.abs(A).T).sum(axis=1)
    return np.asarray((1 + times) ** 2 + plain * (2 + times))
