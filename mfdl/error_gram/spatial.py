"""H over nodes: what noise correlated across nodes, and fresh in every step, costs the counted models."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ..check import FloatArray
from ..dynamics import Dynamics
from ..dynamics.responses import Averaging, ByNodes, cost_to_go
from ..error_weights import ErrorWeights
from ..threads import blas_threads
from . import _released
from ._counted import Counted, finite_gram
from ._modes import Modes


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
    if counted.released is not None:
        return finite_gram(lambda: _released.over_nodes(counted))
    has_modes = counted.node_factor is None and dynamics.gossip.is_constant and dynamics.gossip.at(0).is_symmetric
    if has_modes and num_steps * dynamics.step_weights(0).nnz > n * n:
        with blas_threads(n):
            return finite_gram(lambda: _by_modes(counted))
    return finite_gram(lambda: _by_nodes(counted))


def _by_modes(counted: Counted) -> FloatArray:
    """U f(lam) U^T, f(lam) the cost of an injection in each mode."""
    modes = Modes.of(counted)
    assert modes is not None
    H: FloatArray = (modes.vectors * _cost(counted, modes.averaging, np.ones_like(modes.lam))) @ modes.vectors.T
    return (H + H.T) / 2


def _by_nodes(counted: Counted) -> FloatArray:
    F = sp.eye_array(counted.dynamics.num_nodes) if counted.node_factor is None else counted.node_factor
    H = _cost(counted, ByNodes(counted.dynamics), sp.csr_array(F.T @ F))
    return (H + H.T) / 2


def _cost(counted: Counted, averaging: Averaging, Q: Any) -> FloatArray:
    weights, after = counted.step_weights, counted.after_averaging
    return cost_to_go(counted.dynamics, counted.num_steps, averaging, lambda r: weights[r] * Q, after_averaging=after)
