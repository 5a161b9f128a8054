"""Error Gram matrices H: what independent unit noise at each step costs the models, without the workload.

In: `Dynamics`, `ErrorWeights`, num_steps. Out: H, T x T, with

    H[s, t] = sum over r >= max(s, t) of tr((W^(r-s+p))^T W^(r-t+p)),

p = 1 for the models after averaging ("post-average") and 0 for the messages ("message"). The total noise in
the counted models under local noise C_local^-1 is then nu^2 tr(H X^-1), X = C_local^T C_local, per
coordinate. With a constant learning rate H is stated for learning rate 1; the rate only multiplies it. With a
schedule H is stated in units of the first rate, H[s, t] times (eta_s / eta_0) (eta_t / eta_0): the variance is
eta_0^2 nu^2 tr(H X^-1) in both cases. The per-node form H_u keeps the columns of node u, and sum_u H_u = H.

`spatial_error_gram` is the same over nodes: n x n, for noise fresh in each step but correlated across nodes.

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
    offset, rates = _checked(dynamics, num_steps, objective)
    gossip = dynamics.gossip
    if not gossip.is_constant:
        n = dynamics.num_nodes
        total = _sum_blocks(
            n,
            lambda columns: _impulse_gram(dynamics, columns, num_steps, offset),
            bytes_per_column=8 * n * num_steps,
        )
        return _scaled(total, rates)
    measure = gossip.at(0).reversible_measure
    with blas_threads(max(dynamics.num_nodes, num_steps)):
        if measure is not None and measure.max() <= MAX_MEASURE_RATIO * measure.min():
            powers = _reversible_power_gram(dynamics.step_weights(0), measure, num_steps + offset)
        else:
            powers = _general_power_gram(dynamics.step_weights(0), num_steps + offset)
    return _scaled(_sum_over_models(powers[offset:, offset:]), rates)


def node_error_grams(
    dynamics: Dynamics,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
) -> Iterator[FloatArray]:
    """H_u for u = 0..n-1, one at a time, each shape (T, T); cost per node T nnz(W) + n T^2."""
    offset, rates = _checked(dynamics, num_steps, objective)
    return (_scaled(H, rates) for H in _node_grams(dynamics, num_steps, offset))


def spatial_error_gram(dynamics: Dynamics, *, num_steps: int = 1, objective: str = "post-average") -> FloatArray:
    """H over nodes: noise of covariance R over nodes, fresh in each step, has variance tr(H R) in the counted models.

        H = sum over s <= r of (eta_s / eta_0)^2 P^T P,   P = W_r ... W_s  (message: W_{r-1} ... W_s),

    all nodes and all T steps counted; times eta_0^2 nu^2 and the number of coordinates it is the total variance. One
    step gives W^T W, the criterion tr(W R W^T); for constant W and rate, H = sum_a (T - a + 1) (W^a)^T W^a.

    Args:
        dynamics: gossip, constant or not, any number of rounds per step, and step sizes.
        num_steps: T >= 1.
        objective: "post-average" (models after averaging) or "message" (before: powers from 0).

    Returns: H, shape (n, n), symmetric positive semidefinite; trace(H) = trace(error_gram).
    Raises: InvalidInput: num_steps < 1, unknown objective, a sequence or schedule of another length.
    Cost: T n nnz(W) time, by H = W_s^T (c I + H) W_s backwards in time; n^3 + n T by one eigendecomposition for
        constant symmetric W where that is less; n^2 memory.
    Source: one step, arXiv:2501.14644v2, Theorem 1, which counts only the step itself; the sum over steps follows
        from linearity.

    >>> from mfdl import gossip
    >>> spatial_error_gram(Dynamics(gossip.metropolis_hastings("path:n=2")), num_steps=3)
    array([[3., 3.],
           [3., 3.]])
    """
    offset, rates = _checked(dynamics, num_steps, objective)
    n = dynamics.num_nodes
    if dynamics.gossip.is_constant and dynamics.gossip.at(0).is_symmetric:
        W = dynamics.step_weights(0)
        if num_steps * W.nnz > n * n:
            with blas_threads(n):
                return _symmetric_spatial_gram(W, rates, offset)
    return _backward_spatial_gram(dynamics, rates, offset)


def _symmetric_spatial_gram(weights: sp.csr_array, rates: FloatArray, offset: int) -> FloatArray:
    """U f(lam) U^T, f(lam) = sum_j c_j lam^(2 (j + offset)), c_j = sum of rates^2 over the steps s < T - j."""
    W = weights.toarray()
    lam, U = scipy.linalg.eigh((W + W.T) / 2, overwrite_a=True, driver="evd")
    total = np.zeros_like(lam)
    for c in np.cumsum(rates**2):  # j = T - 1 first: Horner's rule in lam^2
        total = total * lam**2 + c
    H: FloatArray = (U * (total * lam ** (2 * offset))) @ U.T
    return (H + H.T) / 2


def _backward_spatial_gram(dynamics: Dynamics, rates: FloatArray, offset: int) -> FloatArray:
    """sum_s rates_s^2 G_s with the cost-to-go G_s of unit noise of step s: W_s^T (I + G) W_s or I + W_s^T G W_s."""
    n = dynamics.num_nodes
    eye, later, total = np.eye(n), np.zeros((n, n)), np.zeros((n, n))
    for s in range(rates.size - 1, -1, -1):
        W = dynamics.step_weights(s)
        later = _congruence(W, eye + later) if offset else eye + _congruence(W, later)
        total += rates[s] ** 2 * later
    return (total + total.T) / 2


def _congruence(W: sp.csr_array, X: FloatArray) -> FloatArray:
    """W^T X W for symmetric X."""
    half = W.T @ X
    return np.asarray(W.T @ half.T)


def _scaled(H: FloatArray, rates: FloatArray) -> FloatArray:
    H *= np.outer(rates, rates)
    return H


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


def _checked(dynamics: Dynamics, num_steps: int, objective: str) -> tuple[int, FloatArray]:
    """(1 if models count after averaging else 0, eta_t / eta_0)."""
    check.integer_at_least(1, num_steps=num_steps)
    if objective not in OBJECTIVES:
        raise unknown_name("objective", objective, OBJECTIVES)
    return (1 if objective == "post-average" else 0), dynamics.relative_rates(num_steps)


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
