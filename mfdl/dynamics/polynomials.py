"""Several rounds of gossip as a polynomial of W: its roots, and the round of each.

p(W) = product over j of (W - r_j I) / (1 - r_j) for the roots r_j of p, p(1) = 1. A round costs the messages of one
with W, and a node adds (w_uu - r_j) / (1 - r_j) of its own model, a number that may be negative, in the place of w_uu.

Chebyshev: of all p of degree K with p(1) = 1 the one whose largest modulus on an interval [a, b] below 1 is least,
1 / T_K(1 + 2 (1 - b) / (b - a)). It falls as exp(-2 K sqrt((1 - b) / (b - a))), where b^K falls as exp(-K (1 - b)).

Least noise: sum over the eigenvalues lambda but the 1 of p^2 / (1 - p^2) is the variance that fresh unit noise of every
step leaves around the average of the models, after many steps at a constant rate. At its minimum p is orthogonal to all
q with q(1) = 0 under the weights 1 / (1 - p^2)^2, that is the orthogonal polynomial of degree K under (1 - lambda)
times these weights; so its roots are real, among the eigenvalues, and the nodes of a Gauss rule. Reweighting finds
them. With as many rounds as there are other eigenvalues it averages exactly.

Products of factors have the same p as the two-term recursion of Chebyshev polynomials, and need the models of one round
in place of two; what nodes see of a step spans the same. Their order matters for rounding alone.
Source: Chebyshev as accelerated gossip, arXiv:2206.05091 (Muffliato), Algorithm 2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from mfdl_solvers.ties import first_largest, first_minimum

from .. import matrices
from ..check import FloatArray
from ..errors import InvalidInput
from ..gossip import Gossip, GossipMatrix

POWERS, CHEBYSHEV, LEAST_NOISE = "powers", "chebyshev", "least-noise"
POLYNOMIALS = (POWERS, CHEBYSHEV, LEAST_NOISE)
ROUNDING = 1e-12  # of weights: a smaller one left by a shift is zero
REWEIGHTINGS, SETTLED = 100, 1e-10


def shifted(W: sp.csr_array, shift: float) -> sp.csr_array:
    """(W - shift I) / (1 - shift), read-only."""
    V = sp.csr_array(W - shift * sp.eye_array(W.shape[0]))
    V.data[np.abs(V.data) < ROUNDING] = 0.0
    return matrices.sparse_matrix(weights=V / (1 - shift))


def require_one_symmetric_matrix(polynomial: str, gossip: Gossip) -> None:
    """Raises InvalidInput where p(W) may enlarge differences though p is small, or is of another matrix."""
    if type(gossip) is not GossipMatrix:
        reason = "the polynomial is of one matrix, that of the whole graph, and matrices that change do not commute"
    elif not gossip.is_symmetric:
        reason = (
            "between directed edges or unequal weights eigenvectors are not orthogonal, so that p(W) may enlarge "
            "differences although p is small on the eigenvalues"
        )
    elif not gossip.is_connected:
        reason = "without a path between all nodes other eigenvalues are 1, too"
    else:
        return
    raise InvalidInput(
        f"polynomial {polynomial!r} needs one symmetric, connected gossip matrix, got {gossip.describe()}: {reason}; "
        "take metropolis-hastings or fastest-mixing, or polynomial='powers'."
    )


def roots(polynomial: str, W: GossipMatrix, rounds: int) -> tuple[float, ...]:
    """r_j of the K rounds: the lowest first, then in the order of Leja, so that partial products stay small."""
    low, high = W.spectral_interval
    chosen = _chebyshev(low, high, rounds)
    if polynomial == LEAST_NOISE and W.num_nodes > 1:
        chosen = _least_noise(W.spectrum[1:], chosen)
    left = [1 - float(f"{1 - root:.9e}") for root in np.sort(chosen).tolist()]  # the same on every machine
    ordered = [left.pop(0)]
    while left:
        sizes = [float(np.sum(np.log(np.abs(root - np.array(ordered)) + 1e-300))) for root in left]
        ordered.append(left.pop(first_largest(np.exp(np.array(sizes) - max(sizes)))))
    return tuple(ordered)


def _chebyshev(low: float, high: float, rounds: int) -> FloatArray:
    angles = (2 * np.arange(rounds) + 1) * np.pi / (2 * rounds)
    return np.asarray((low + high) / 2 - (high - low) / 2 * np.cos(angles))


def values(eigenvalues: FloatArray, shifts: Iterable[float]) -> FloatArray:
    """p(lambda)."""
    return functools.reduce(lambda p, r: p * (eigenvalues - r) / (1 - r), shifts, np.ones_like(eigenvalues))


def _least_noise(eigenvalues: FloatArray, chebyshev: FloatArray) -> FloatArray:
    """Roots that leave no more noise than those of Chebyshev or powers."""
    lam, counts = np.unique(eigenvalues.round(13), return_counts=True)
    if lam.size <= chebyshev.size:  # nothing is left
        return np.append(lam, np.zeros(chebyshev.size - lam.size))

    def noise(chosen: FloatArray) -> tuple[float, FloatArray]:
        squares = values(lam, chosen) ** 2
        least = float((counts * squares / (1 - squares)).sum()) if squares.max() < 1 else np.inf
        return least, -2 * np.log1p(-np.minimum(squares, 1 - 1e-9))

    best = first_minimum((chebyshev, np.zeros_like(chebyshev)), lambda chosen: noise(chosen)[0])
    least, before, share = noise(best)[0], np.inf, 0.5
    logs = known = target = np.zeros_like(lam)
    for _ in range(REWEIGHTINGS):
        chosen = _gauss_nodes(lam, counts * (1 - lam) * np.exp(logs - logs.max()), chebyshev.size)
        left, proposed = noise(chosen)
        if left > before:
            share /= 2
        else:
            if left < least:
                best, least = chosen, left
            if before - left <= SETTLED * left:
                break
            known, target, before = logs, proposed, left
        logs = known + share * (target - known)
    return best


def _gauss_nodes(points: FloatArray, weights: FloatArray, size: int) -> FloatArray:
    """Gauss nodes of a discrete measure with more points than nodes, by Lanczos."""
    basis = [np.sqrt(weights / weights.sum())]
    diagonal, beside = np.empty(size), np.empty(size)
    for j in range(size):
        x = points * basis[-1]
        diagonal[j] = basis[-1] @ x
        Q = np.array(basis)
        for _ in range(2):
            x = x - Q.T @ (Q @ x)
        beside[j] = np.linalg.norm(x)
        basis.append(x / max(beside[j], 1e-300))
    return np.asarray(scipy.linalg.eigvalsh_tridiagonal(diagonal, beside[:-1]))
