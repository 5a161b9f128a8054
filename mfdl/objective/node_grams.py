"""H over nodes, for noise fresh in each step, and H over steps x nodes as one array, for small problems.

    H = sum over s <= r of w_r (eta_s / eta_0)^2 P^T Q P,   P = W_r ... W_s  (message: W_{r-1} ... W_s),

with momentum and weight decay P is the response of their recursion to an injection. One step gives W^T W, the criterion
tr(W R W^T); for constant W and rate with all models counted alike, H = sum_a (T - a + 1) (W^a)^T W^a. Of released
models H is the sum of e_s e_s^T over the steps, e_s as in `time_grams`, and over steps x nodes all e_s e_t^T.

Source: one step, arXiv:2501.14644v2, Theorem 1, which counts only the step itself; the sum over steps follows from
linearity.
"""

from __future__ import annotations

import functools

import numpy as np
import scipy.sparse as sp

from ..check import FloatArray
from ..dynamics.responses import ByNodes
from ..noise.joint import require_joint_size
from ..threads import blas_threads
from .counted_models import CountedModels, finite_gram
from .spectra import Modes


def over_nodes(counted: CountedModels) -> FloatArray:
    """See `NoiseObjective.over_nodes`."""
    gossip, n = counted.dynamics.gossip, counted.dynamics.num_nodes
    if counted.released is not None:
        return finite_gram(lambda: _of_released(counted))
    has_modes = counted.node_factor is None and gossip.is_constant and gossip.at(0).is_symmetric
    if has_modes and counted.num_steps * counted.dynamics.step_weights(0).nnz > n * n:
        with blas_threads(n):
            return finite_gram(lambda: _by_modes(counted))
    return finite_gram(lambda: _by_nodes(counted))


def _by_modes(counted: CountedModels) -> FloatArray:
    """U f(lam) U^T, f(lam) the cost of an injection in each mode."""
    modes = Modes.of(counted)
    assert modes is not None
    costs = counted.fresh_costs(modes.averaging, np.ones_like(modes.lam))
    H: FloatArray = (modes.vectors * costs) @ modes.vectors.T
    return (H + H.T) / 2


def _by_nodes(counted: CountedModels) -> FloatArray:
    F = sp.eye_array(counted.dynamics.num_nodes) if counted.node_factor is None else counted.node_factor
    H = counted.fresh_costs(ByNodes(counted.dynamics), sp.csr_array(F.T @ F))
    return (H + H.T) / 2


def _of_released(counted: CountedModels) -> FloatArray:
    """The steps summed one by one."""
    steps = counted.effects(ByNodes(counted.dynamics), counted.form)
    H = functools.reduce(np.add, (e @ e.T for _, e in steps))
    return np.asarray((H + H.T) / 2)


def over_both(counted: CountedModels) -> FloatArray:
    """See `NoiseObjective.over_both`."""
    n, T = counted.dynamics.num_nodes, counted.num_steps
    require_joint_size(T, n, "use adapted or time-space, which scale")
    if counted.released is not None:
        e = counted.all_effects(ByNodes(counted.dynamics), counted.form).reshape(T * n, -1)
        return finite_gram(lambda: e @ e.T)
    return finite_gram(lambda: _sum_of_steps(counted))


def _sum_of_steps(counted: CountedModels) -> FloatArray:
    n, size = counted.dynamics.num_nodes, counted.dynamics.num_nodes * counted.num_steps
    every = np.arange(n)
    H = np.zeros((size, size))
    for r, y in enumerate(counted.responses(ByNodes(counted.dynamics), (every, every))):
        if counted.step_weights[r]:
            models = counted.of_nodes(y)
            rows = models.reshape(models.shape[0], -1)
            H[: rows.shape[1], : rows.shape[1]] += counted.step_weights[r] * (rows.T @ rows)
    return H
