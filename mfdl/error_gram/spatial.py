"""H over nodes: what noise correlated across nodes, and fresh in every step, costs the counted models."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_weights import ErrorWeights
from ..threads import blas_threads
from ._counted import Counted, finite_gram
from ._mode_responses import Modes


def spatial_error_gram(
    dynamics: Dynamics,
    *,
    num_steps: int = 1,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
) -> FloatArray:
    """H over nodes: noise of covariance R over nodes, fresh in each step, has variance tr(H R) in the counted models.

        H = sum over s <= r of w_r (eta_s / eta_0)^2 P^T Q P,   P = W_r ... W_s  (message: W_{r-1} ... W_s),

    times eta_0^2 nu^2 and the number of coordinates it is the total variance; with momentum and weight decay P is what
    their recursion makes of an injection. One step gives W^T W, the criterion tr(W R W^T); for constant W and rate with
    all models counted alike, H = sum_a (T - a + 1) (W^a)^T W^a.

    Args:
        dynamics: gossip, constant or not, any number of rounds per step, step sizes, momentum, decay.
        num_steps: T >= 1.
        weights: which models count; default all alike.
        objective: "post-average" (models after averaging) or "message" (before: powers from 0).

    Returns: H, shape (n, n), symmetric positive semidefinite; trace(H) = trace(error_gram).
    Raises: InvalidInput: num_steps < 1, unknown objective, a sequence, schedule or weights of another length, an error
        beyond float64.
    Cost: T n nnz(W) time, by a cost-to-go backwards in time; n^3 + n T by one eigendecomposition for
        constant symmetric W, every node counted, where that is less; n^2 memory.
    Source: one step, arXiv:2501.14644v2, Theorem 1, which counts only the step itself; the sum over steps follows
        from linearity.

    >>> from mfdl import gossip
    >>> spatial_error_gram(Dynamics(gossip.metropolis_hastings("path:n=2")), num_steps=3)
    array([[3., 3.],
           [3., 3.]])
    """
    counted = Counted.of(dynamics, num_steps, weights, objective)
    n = dynamics.num_nodes
    has_modes = counted.node_factor is None and dynamics.gossip.is_constant and dynamics.gossip.at(0).is_symmetric
    if has_modes and num_steps * dynamics.step_weights(0).nnz > n * n:
        with blas_threads(n):
            return finite_gram(lambda: _by_modes(counted))
    return finite_gram(lambda: _backwards(counted))


def _by_modes(counted: Counted) -> FloatArray:
    """U f(lam) U^T: the cost-to-go of every mode, a scalar recursion."""
    modes = Modes.of(counted)
    assert modes is not None
    lam, U, c = modes.lam, modes.vectors, counted
    beta = c.dynamics.momentum
    total, of_model, mixed, of_buffer = (np.zeros_like(lam) for _ in range(4))
    for r in range(c.num_steps - 1, -1, -1):
        w, shrink, rate = c.step_weights[r], c.shrink[r], c.rates[r]
        of_message = lam**2 * (of_model + (w if c.after_averaging else 0.0)) + (0.0 if c.after_averaging else w)
        across = lam * mixed
        entering = rate**2 * of_message + 2 * rate * across + of_buffer
        total += entering
        of_model, mixed = shrink**2 * of_message, shrink * beta * (rate * of_message + across)
        of_buffer = beta**2 * entering
    H: FloatArray = (U * total) @ U.T
    return (H + H.T) / 2


def _backwards(counted: Counted) -> FloatArray:
    """The quadratic cost-to-go of (model, buffer), blocks A, B, D, from the last step to the first.

    Step r makes mu = c theta + rho v', v' = beta v + x, theta' = W mu. In (mu, v') the cost from here on is
    mu^T P mu + 2 mu^T R v' + v'^T D v', P = W^T (w_r Q + A) W and R = W^T B (messages counted: P = w_r Q + W^T A W).
    """
    c, n = counted, counted.dynamics.num_nodes
    beta = c.dynamics.momentum
    F = sp.eye_array(n) if c.node_factor is None else c.node_factor
    Q = sp.csr_array(F.T @ F)
    total, A = np.zeros((n, n)), np.zeros((n, n))
    B = D = np.zeros((n, n)) if beta else None
    for r in range(c.num_steps - 1, -1, -1):
        W, shrink, rate = c.dynamics.step_weights(r), c.shrink[r], c.rates[r]
        counts = c.step_weights[r] * Q
        P = _congruence(W, A + counts) if c.after_averaging else _congruence(W, A) + counts
        entering = rate**2 * P
        if B is not None and D is not None:
            R = np.asarray(W.T @ B)
            entering += rate * (R + R.T) + D
            B, D = shrink * beta * (rate * P + R), beta**2 * entering
        total += entering
        A = shrink**2 * P
    return (total + total.T) / 2


def _congruence(W: sp.csr_array, X: FloatArray) -> FloatArray:
    """W^T X W for symmetric X."""
    half = W.T @ X
    return np.asarray(W.T @ half.T)
