"""Error Gram matrices H: what independent unit noise at each step costs the models, without the workload.

In: `Dynamics`, `ErrorWeights`, num_steps. Out: H, T x T, with

    H[s, t] = sum over r >= max(s, t) of tr((W^(r-s+p))^T W^(r-t+p)),

p = 1 for the models after averaging ("post-average") and 0 for the messages ("message"). The total noise in
the counted models under local noise C_local^-1 is then nu^2 tr(H X^-1), X = C_local^T C_local, per
coordinate. With a constant learning rate H is stated for learning rate 1; the rate only multiplies it.
The per-node form H_u keeps the columns of node u, and sum_u H_u = H.

Cost: reversible W (D W symmetric for some positive D; every symmetric and every uniform one) with
max D / min D up to MAX_MEASURE_RATIO n^3 + n T^2 time, n^2 + T^2 memory; general W n T (nnz(W) + n T) time;
time-varying W n T^2 (nnz(W) + n T).
No (n T) x (n T) array. Source: arXiv:2510.17480, Lemma 10 and Definition 9 in corrected, closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from . import check
from .check import FloatArray
from .dynamics import Dynamics, ErrorWeights
from .errors import unknown_name
from .threads import blas_threads

OBJECTIVES = ("post-average", "message")
BLOCK_BYTES = 128 * 2**20  # working memory for blocks of columns of W^a
MAX_MEASURE_RATIO = 1e6  # the closed form cancels: relative error about 1e-16 of max D / min D


def error_gram(
    dynamics: Dynamics,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
) -> FloatArray:
    """H for the sum over all nodes.

    Args:
        dynamics: gossip and step size.
        num_steps: T >= 1.
        weights: which models count; default all alike.
        objective: "post-average" (models after averaging) or "message" (before).

    Returns: H, shape (T, T), symmetric positive semidefinite.
    """
    offset, _ = _checked(num_steps, weights, objective)
    gossip = dynamics.gossip
    if not gossip.is_constant:
        n = dynamics.num_nodes
        return _sum_blocks(
            n,
            lambda columns: _impulse_gram(dynamics, columns, num_steps, offset),
            bytes_per_column=8 * n * num_steps,
        )
    measure = gossip.at(0).reversible_measure
    with blas_threads(max(dynamics.num_nodes, num_steps)):
        if measure is not None and measure.max() <= MAX_MEASURE_RATIO * measure.min():
            powers = _reversible_power_gram(dynamics.step_weights(0), measure, num_steps + offset)
        else:
            powers = _general_power_gram(dynamics.step_weights(0), num_steps + offset)
    return _sum_over_models(powers[offset:, offset:])


def node_error_grams(
    dynamics: Dynamics,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
) -> Iterator[FloatArray]:
    """H_u for u = 0..n-1, one at a time, each shape (T, T); cost per node T nnz(W) + n T^2."""
    offset, _ = _checked(num_steps, weights, objective)
    return _node_grams(dynamics, num_steps, offset)


def _node_grams(dynamics: Dynamics, num_steps: int, offset: int) -> Iterator[FloatArray]:
    gossip = dynamics.gossip
    for node in range(dynamics.num_nodes):
        columns = np.array([node])
        if gossip.is_constant:
            powers = _column_power_gram(dynamics.step_weights(0), columns, num_steps + offset)
            yield _sum_over_models(powers[offset:, offset:])
        else:
            yield _impulse_gram(dynamics, columns, num_steps, offset)


def prefix_sum_gram(num_steps: int) -> FloatArray:
    """A^T A for the prefix sums A (ones lower triangular): H[s, t] = T - max(s, t). D-MF uses it."""
    check.integer_at_least(1, num_steps=num_steps)
    index = np.arange(num_steps)
    return (num_steps - np.maximum.outer(index, index)).astype(np.float64)


def _checked(num_steps: int, weights: ErrorWeights | None, objective: str) -> tuple[int, ErrorWeights]:
    check.integer_at_least(1, num_steps=num_steps)
    if objective not in OBJECTIVES:
        raise unknown_name("objective", objective, OBJECTIVES)
    return (1 if objective == "post-average" else 0), weights or ErrorWeights()


def _sum_over_models(powers: FloatArray) -> FloatArray:
    """H[s, t] = sum_{j < T - max(s,t)} powers[j + max(s,t) - s, j + max(s,t) - t]: cumulative sums of diagonals.

    With t = s + lag the terms run down diagonal `lag` of `powers`, so the last j is T - 1 - t.
    """
    T = powers.shape[0]
    H = np.empty_like(powers)
    for lag in range(T):
        running = np.cumsum(np.diagonal(powers, -lag))[::-1]  # entry s: sum of the first T - lag - s terms
        steps = np.arange(T - lag)
        H[steps, steps + lag] = running
        H[steps + lag, steps] = running
    return H


def _reversible_power_gram(weights: sp.csr_array, measure: FloatArray, num_powers: int) -> FloatArray:
    """G[a, b] = tr((W^a)^T W^b) for W = D^-1/2 S D^1/2, S symmetric = U diag(lam) U^T.

    (W^a)^T W^b = D^1/2 U lam^a U^T D^-1 U lam^b U^T D^1/2, so G[a, b] = (lam^a)^T M (lam^b) with
    M = (U^T D U) * (U^T D^-1 U) entrywise, and M = I when D is constant (W symmetric).
    """
    root = np.sqrt(measure)
    symmetric = bool(np.ptp(measure) <= 1e-12 * measure.max())
    S = (sp.diags_array(root) @ weights @ sp.diags_array(1 / root)).toarray()
    S = (S + S.T) / 2
    exponents = np.arange(num_powers)[:, None]
    if symmetric:
        L = scipy.linalg.eigvalsh(S, overwrite_a=True)[None, :] ** exponents
        return L @ L.T
    lam, U = scipy.linalg.eigh(S, overwrite_a=True, driver="evd")
    M = (U.T * measure) @ U
    M *= (U.T / measure) @ U
    L = lam[None, :] ** exponents
    G = L @ M @ L.T
    return (G + G.T) / 2


def _column_power_gram(weights: sp.csr_array, columns: np.ndarray, num_powers: int) -> FloatArray:
    """G[a, b] = sum over the given columns c of <W^a e_c, W^b e_c>."""
    n = weights.shape[0]
    current = np.zeros((n, columns.size))
    current[columns, np.arange(columns.size)] = 1.0
    stack = np.empty((num_powers, n * columns.size))
    for a in range(num_powers):
        stack[a] = current.ravel()
        current = weights @ current
    return stack @ stack.T


def _general_power_gram(weights: sp.csr_array, num_powers: int) -> FloatArray:
    n = weights.shape[0]
    return _sum_blocks(
        n,
        lambda columns: _column_power_gram(weights, columns, num_powers),
        bytes_per_column=8 * n * num_powers,
    )


def _impulse_gram(dynamics: Dynamics, columns: np.ndarray, num_steps: int, offset: int) -> FloatArray:
    """H restricted to the given nodes for time-varying W: impulses of every step are carried together."""
    n, width = dynamics.num_nodes, columns.size
    carried = np.zeros((n, num_steps, width))  # [:, s]: W_{r-1} ... W_s e_columns at step r
    H = np.zeros((num_steps, num_steps))
    for r in range(num_steps):
        W = dynamics.step_weights(r)
        carried[columns, r, np.arange(width)] = 1.0
        averaged = (W @ carried[:, : r + 1].reshape(n, -1)).reshape(n, r + 1, width)
        counted = averaged if offset else carried[:, : r + 1]
        flat = counted.transpose(1, 0, 2).reshape(r + 1, -1)
        H[: r + 1, : r + 1] += flat @ flat.T
        carried[:, : r + 1] = averaged
    return H


def _sum_blocks(n: int, gram: Callable[[np.ndarray], FloatArray], *, bytes_per_column: int) -> FloatArray:
    width = int(np.clip(BLOCK_BYTES // max(bytes_per_column, 1), 1, n))
    blocks = (gram(np.arange(start, min(start + width, n))) for start in range(0, n, width))
    total = next(blocks)
    for block in blocks:
        total += block
    return total
