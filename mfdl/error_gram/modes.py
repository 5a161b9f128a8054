"""H over steps and nodes by modes: for symmetric gossip, H = sum_k H_k (x) u_k u_k^T."""

from __future__ import annotations

import numpy as np

from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_weights import AVERAGE, ErrorWeights
from ..errors import UnsupportedMechanism
from ..threads import blas_threads
from . import _released
from ._counted import Counted, finite_gram
from ._modes import Modes


def mode_error_grams(
    dynamics: Dynamics,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
) -> tuple[FloatArray, FloatArray]:
    """(U, H_k): eigenvectors of the gossip, shape (n, n), and one error Gram over steps for each, shape (n, T, T).

    The error Gram over steps x nodes is sum_k H_k (x) u_k u_k^T, since each mode is a scalar recursion and no two meet
    in the counted models. sum_k H_k = error_gram, sum_k tr(H_k) u_k u_k^T = spatial_error_gram.

    Raises: UnsupportedMechanism: gossip that is not constant and symmetric, or a target that couples modes (some nodes
        only; the average of doubly stochastic gossip does not). InvalidInput: as for `error_gram`.
    Cost: n T^3 time, n T^2 memory.
    """
    counted = Counted.of(dynamics, num_steps, weights, objective)
    modes = Modes.of(counted) if dynamics.gossip.is_constant and dynamics.gossip.at(0).is_symmetric else None
    if modes is None or not modes.symmetric:
        raise UnsupportedMechanism(
            "noise correlated over time and nodes at once is factorized by the modes of one symmetric gossip matrix; "
            "this gossip has none. Use metropolis-hastings, or space-time for small problems."
        )
    target = np.ones(modes.lam.size)
    if counted.released is not None and weights is not None and weights.uniform_target:
        target = (counted.of_nodes(modes.vectors) ** 2).sum(axis=0)  # further rounds are of the same modes
    elif modes.coupling is not None:
        if weights is None or not (isinstance(weights.target, str) and weights.target == AVERAGE):
            raise UnsupportedMechanism(
                "a target of some nodes couples the modes of the gossip; use target 'nodes' or 'average', or "
                "space-time for small problems."
            )
        # 1 1^T / n is the projection on the eigenvector 1: of that eigenvalue there may be others, all orthogonal to it
        target = (modes.vectors.sum(axis=0) ** 2) / modes.lam.size
        if (np.minimum(target, 1 - target) > 1e-9).any():
            raise UnsupportedMechanism("the average of the models is not a mode of this gossip.")
        target = np.round(target)
    if counted.released is not None:
        e = _released.over_modes(counted, modes.lam) * np.sqrt(target)
        return modes.vectors, finite_gram(lambda: np.einsum("sk,tk->kst", e, e))
    return modes.vectors, finite_gram(lambda: _grams(modes, target))


def _grams(modes: Modes, target: FloatArray) -> FloatArray:
    T, n = modes.counted.num_steps, modes.lam.size
    grams = np.zeros((n, T, T))
    root = np.sqrt(modes.counted.step_weights)
    with blas_threads(max(n, T)):
        responses = np.zeros((n, T, T))  # mode, step r, step s of the injection
        for r, y in enumerate(modes.counted.responses(modes.averaging, modes.entries)):
            responses[:, r, : r + 1] = root[r] * y[:, :, 0]
        for k in np.flatnonzero(target):
            grams[k] = responses[k].T @ responses[k]
    return grams
