"""H over steps x nodes as one array, for small problems and for gossip without modes."""

from __future__ import annotations

import numpy as np

from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_weights import ErrorWeights
from ..operators.space_time_noise import MAX_JOINT_SIZE, require_joint_size
from ._counted import Counted, finite_gram

MAX_SIZE = MAX_JOINT_SIZE
"""T n up to which the array is formed."""


def space_time_error_gram(
    dynamics: Dynamics,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
) -> FloatArray:
    """H with tr(H Sigma) the counted variance of injected noise of covariance Sigma; shape (T n, T n), time-major.

    Any gossip, dynamics and weights.
    Raises: UnsupportedMechanism: T n above MAX_SIZE. InvalidInput: as for `error_gram`.
    Cost: T (T n)^2 nnz(W) / n time, a few arrays of (T n)^2.
    """
    counted = Counted.of(dynamics, num_steps, weights, objective)
    n, T = dynamics.num_nodes, num_steps
    require_joint_size(T, n, "use adapted or time-space, which scale")
    return finite_gram(lambda: _summed(counted))


def _summed(counted: Counted) -> FloatArray:
    dynamics, T = counted.dynamics, counted.num_steps
    n = dynamics.num_nodes
    model, buffer = np.zeros((n, T, n)), np.zeros(T)  # model[v, s, u]: at v, of a unit injection at node u in step s
    nodes = np.arange(n)
    H = np.zeros((T * n, T * n))
    for r in range(T):
        W, so_far = dynamics.step_weights(r), r + 1
        buffer *= dynamics.momentum
        buffer[r] = 1.0
        message = counted.shrink[r] * model[:, :so_far]
        message[nodes, :, nodes] += counted.rates[r] * buffer[:so_far]
        averaged = (W @ message.reshape(n, -1)).reshape(n, so_far, n)
        if counted.step_weights[r]:
            kept = counted.counts(averaged if counted.after_averaging else message)
            flat = kept.reshape(kept.shape[0], so_far * n)
            H[: so_far * n, : so_far * n] += counted.step_weights[r] * (flat.T @ flat)
        model[:, :so_far] = averaged
    return H
