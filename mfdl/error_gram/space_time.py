"""H over steps x nodes as one array, for small problems and for gossip without modes."""

from __future__ import annotations

import numpy as np

from ..check import FloatArray
from ..dynamics import Dynamics
from ..dynamics.responses import ByNodes
from ..error_weights import ErrorWeights
from ..noise.joint import MAX_JOINT_SIZE, require_joint_size
from . import _released
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
    if counted.released is not None:
        e = _released.over_both(counted).reshape(T * n, -1)
        return finite_gram(lambda: e @ e.T)
    return finite_gram(lambda: _summed(counted))


def _summed(counted: Counted) -> FloatArray:
    n, size = counted.dynamics.num_nodes, counted.dynamics.num_nodes * counted.num_steps
    every = np.arange(n)
    H = np.zeros((size, size))
    for r, y in enumerate(counted.responses(ByNodes(counted.dynamics), (every, every))):
        if counted.step_weights[r]:
            kept = counted.of_nodes(y)
            rows = kept.reshape(kept.shape[0], -1)
            H[: rows.shape[1], : rows.shape[1]] += counted.step_weights[r] * (rows.T @ rows)
    return H
