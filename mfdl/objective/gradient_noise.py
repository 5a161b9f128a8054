"""The variance that noise on gradient sums leaves in the counted models of plain gossip, for every noise operator.

Which form of H gives it depends on the noise:

- correlated in time at each node: tr(N^T H N) with H over steps, one per node if needed; of an encoder with structure
  by the modes of the gossip, where there are modes, without an array of T x T;
- fresh in each step with factor F over nodes: tr(F^T H F) with H over nodes;
- correlated over both: sum_k tr(E_k^T H(f_k) E_k), H(f)[s, t] = f^T H[s, t] f the Gram over steps of noise that f
  spreads over nodes, from the modes of the gossip; by H over steps x nodes where there are none, or where the noise
  itself is a matrix of that size.

Beyond MAX_DENSE nodes no array over nodes is formed, and the value may have an error bar. No array has more than n^2 or
T^2 entries, or n T^2 for noise correlated over both; (T n)^2 only where said.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from mfdl_solvers import structured
from mfdl_solvers.problem import ProblemError

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..noise import CausalNoise, NoiseOperator
from ..noise.encoder_arguments import MAX_DENSE_STEPS
from ..noise.joint import MAX_JOINT_SIZE
from .counted_models import CountedModels
from .estimated_grams import Estimate, EstimatedGram, Probes, exact_or_estimated, fresh_noise, same_size
from .node_grams import over_both, over_nodes
from .spectra import MAX_DENSE, mode_cost
from .time_grams import by_modes, over_steps, over_steps_of_nodes


def noise_error(
    counted: CountedModels, noise: NoiseOperator, divisors: ArrayLike | None, probes: Probes | None
) -> Estimate:
    """See `NoiseObjective.noise_error`."""
    check.instance(NoiseOperator, noise=noise)
    T, n = counted.num_steps, counted.dynamics.num_nodes
    if (noise.num_steps, noise.num_nodes, noise.slots_per_step) != (T, n, n):
        raise InvalidInput(
            f"noise must cover {T} steps x {n} nodes with one injection slot a node, got {noise.num_steps} x "
            f"{noise.num_nodes} with {noise.slots_per_step} slots."
        )
    m = np.ones(n) if divisors is None else check.finite_array(1, divisors=divisors)
    if m.shape != (n,) or not (m > 0).all():
        raise InvalidInput(f"divisors must be one number > 0 for each of {n} nodes, got {divisors!r}.")
    if noise.is_zero:
        return Estimate(0.0, 0.0)
    if (joint := noise.joint) is not None:
        N = joint.inverse / np.tile(m, T)[:, None]
        return Estimate(float(np.sum(N * (over_both(counted) @ N))), 0.0)
    if (causal := noise.causal) is None:
        raise UnsupportedMechanism(f"the error of noise {noise.kind} is not covered.")
    if n > MAX_DENSE:
        return _of_large_graph(counted, causal, m, probes)
    if not causal.fresh:
        own_noise = causal.factor is None or causal.local
        return Estimate((_at_each_node if own_noise else _over_time_and_nodes)(counted, causal, m), 0.0)
    F = _divided(causal, m)
    return Estimate(float((F * (over_nodes(counted) @ F)).sum()), 0.0)


def _divided(noise: CausalNoise, divisors: FloatArray) -> sp.csr_array:
    """The factor of a step's noise over what each node's sum is divided by."""
    return sp.csr_array(sp.diags_array(1 / divisors) @ noise.mixing)


def _of_large_graph(
    counted: CountedModels, noise: CausalNoise, divisors: FloatArray, probes: Probes | None
) -> Estimate:
    """Without an array over nodes: of noise that is fresh, or alike at all nodes."""
    F = _divided(noise, divisors)
    if noise.fresh:
        return fresh_noise(counted, F, probes)
    if not noise.shared or (size := same_size(F)) is None:
        raise UnsupportedMechanism(
            f"the error of noise correlated in time is covered beyond {MAX_DENSE:,} nodes where it is alike at all "
            f"nodes, got {noise.num_nodes:,} nodes that differ."
        )
    if (value := _by_structure(counted, noise)) is not None:
        return Estimate(size * value, 0.0)
    N = noise.inverse_of(0)
    H = exact_or_estimated(counted, probes)
    if isinstance(H, EstimatedGram):
        return H.cost(N @ N.T).scaled(size)
    return Estimate(size * float(np.sum(N * (H @ N))), 0.0)


def _at_each_node(counted: CountedModels, noise: CausalNoise, divisors: FloatArray) -> float:
    """sum_u tr(N_u^T H_u N_u) s_u^2 / m_u^2; one Gram for all nodes where encoders, scales and divisors agree."""
    divisors = divisors / noise.node_scales
    if noise.shared and (divisors == divisors[0]).all():
        value = _by_structure(counted, noise)
        if value is None:
            N = noise.inverse_of(0)  # refused here where T is too large for arrays of T x T
            value = float(np.sum(N * (over_steps(counted) @ N)))
        return value / float(divisors[0]) ** 2
    grams = over_steps_of_nodes(counted)
    pairs = ((noise.inverse_of(u), H / divisors[u] ** 2) for u, H in enumerate(grams))
    return sum(float(np.sum(N * (H @ N))) for N, H in pairs)


def _by_structure(counted: CountedModels, noise: CausalNoise) -> float | None:
    """tr(N^T H N) of an encoder with structure by the modes of the gossip; None where arrays of T x T say it.

    Raises: InvalidInput: rates that change over many steps, neither C nor C^-1 banded.
    """
    if noise.in_blocks:
        return None
    try:
        return structured.loss(mode_cost(counted), noise.encoder)
    except ProblemError as error:
        raise InvalidInput(str(error)) from None
    except UnsupportedMechanism:
        if noise.num_steps > MAX_DENSE_STEPS:
            raise
        return None


def _over_time_and_nodes(counted: CountedModels, noise: CausalNoise, divisors: FloatArray) -> float:
    T, n = noise.num_steps, noise.num_nodes
    F = (sp.diags_array(1 / divisors) @ noise.mixing).toarray()
    try:
        U, grams = by_modes(counted)
        parts = (U.T @ F) ** 2  # (modes, columns): of column k in mode l
    except UnsupportedMechanism:
        if T * n > MAX_JOINT_SIZE:
            raise
        blocks = over_both(counted).reshape(T, n, T, n)
        grams = np.einsum("ik,sitk->kst", F, np.tensordot(blocks, F, 1))  # H(f_k) itself
        parts = np.eye(F.shape[1])
    if noise.shared:
        total, E = np.tensordot(parts.sum(axis=1), grams, 1), noise.inverse_of(0)
        return float(np.sum(E * (total @ E)))
    pairs = ((noise.inverse_of(k), np.tensordot(part, grams, 1)) for k, part in enumerate(parts.T))
    return sum(float(np.sum(E * (H @ E))) for E, H in pairs)
