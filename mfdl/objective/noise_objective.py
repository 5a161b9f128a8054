"""NoiseObjective: how much noise is left in the models that count; `noise_error` is the value for a noise operator.

The form of H depends on the noise:

- correlated in time at each node: tr(N^T H N) with H over steps, one per node if needed; for an encoder with structure
  by the modes of the gossip, if it has modes, without a T x T array;
- fresh in each step with factor F over nodes: tr(F^T H F) with H over nodes;
- correlated over both: sum_k tr(E_k^T H(f_k) E_k), H(f)[s, t] = f^T H[s, t] f, from the modes of the gossip; by H over
  steps x nodes if there are none, or if the noise itself is a matrix of that size.

Beyond MAX_DENSE nodes no array over nodes is formed, and the value may have an error bar. No array has more than n^2 or
T^2 entries, or n T^2 for noise correlated over both; (T n)^2 only where documented.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

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
from ..noise.general import MAX_JOINT_SIZE
from . import estimated_grams, spectra, time_grams
from .counted_models import CountedModels
from .error_weights import ErrorWeights
from .estimated_grams import Estimate, EstimatedGram, Probes, exact_or_estimated, fresh_noise, same_size
from .spectra import MAX_DENSE, mode_cost
from .time_grams import by_modes, over_both, over_nodes, over_steps, over_steps_of_nodes


class ExcessLoss(NamedTuple):
    """Predicted excess loss of the noise, mean over the nodes that count.

    Attributes: published: in the published model; on_the_way: mean over the models at which gradients are taken.
    """

    published: Estimate
    on_the_way: Estimate


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NoiseObjective(CountedModels):
    """The variance of noise in the models of plain gossip that count: a quadratic form H of the injected noise.

    All methods count the same: sum over steps r of w_r tr(theta_r^T Q theta_r), w and Q from the weights, of the models
    after averaging or of the messages before it; or tr(R^T Q R) of the released sum R = sum_r a_r theta_r. They are
    stated for a first learning rate of 1: the variance is eta_0^2 nu^2 times the value, per coordinate.

    With a curvature they sum over its directions j, sum_j w_j H(1 - eta_t lambda_j), and eta_0^2 nu^2 times the value
    is an excess loss, summed over the nodes that count. Costs are then those stated times the directions, at most about
    sqrt(40 T), but for `mode_cost`, which sums over the products of both spectra.

    Attributes:
        dynamics: gossip, constant or not, any number of rounds a step, step sizes, momentum, decay.
        num_steps: T >= 1.
        weights: which models count; default all alike.
        counted_models: "post-average" (models after averaging) or "message" (before).

    Raises: InvalidInput: num_steps < 1, an unknown counted_models, a schedule or weights of another length, released
        models or those on the way with counted_models "message", a curvature under which training diverges; methods: an
        error beyond float64, a sequence of gossip that ends too early. UnsupportedMechanism: curvature with momentum.

    >>> from mfdl import Dynamics, gossip
    >>> NoiseObjective(Dynamics(gossip.metropolis_hastings("path:n=2")), 3).over_nodes()
    array([[3., 3.],
           [3., 3.]])
    """

    # exact
    over_steps = time_grams.over_steps
    over_each_step = time_grams.over_each_step
    over_steps_of_nodes = time_grams.over_steps_of_nodes
    over_nodes = time_grams.over_nodes
    by_modes = time_grams.by_modes
    over_both = time_grams.over_both
    spectral_measure = spectra.spectral_measure
    mode_cost = spectra.mode_cost
    # averaged or estimated
    averaged = estimated_grams.averaged
    estimated = estimated_grams.estimated
    exact_or_estimated = estimated_grams.exact_or_estimated
    fresh_noise = estimated_grams.fresh_noise

    def noise_error(
        self, noise: NoiseOperator, divisors: ArrayLike | None = None, probes: Probes | None = None
    ) -> Estimate:
        """The variance that noise on gradient sums leaves, per unit nu^2 and coordinate, with its 95 % interval.

        Exact, of error 0, up to 5000 nodes, and beyond where `fresh_noise` has a closed form. Of a whole algorithm:
        `mfdl.algorithms.noise_error`.

        Args:
            noise: one injection slot a node.
            divisors: m_u > 0 that divide the gradients and the noise of node u, shape (n,); default 1.
            probes: beyond 5000 nodes; default 8 of seed 0.
        Raises: InvalidInput: noise of other sizes. UnsupportedMechanism: a noise operator that is not known here; noise
            correlated over steps and nodes on gossip without modes (not constant and symmetric, or counted at some
            nodes only) for T n above 4096; beyond 5000 nodes, noise neither fresh in each step nor alike at all nodes,
            or gossip that varies or is not symmetric.
        Cost: that of `over_steps` (noise correlated in time; `over_steps_of_nodes` if encoders or divisors differ),
            `over_nodes` (fresh noise), `by_modes` or `over_both` (noise correlated over both).
        """
        (_, counted), *others = kinds = self.kinds
        if others:
            costs = [kind.noise_error(noise, divisors, probes).scaled(factor) for factor, kind in kinds]
            return Estimate(sum(cost.value for cost in costs), sum(cost.error for cost in costs))
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
            return _large_graph_estimate(counted, causal, m, probes)
        if causal.step_factor is None:
            own_noise = causal.factor is None or causal.local
            return Estimate((_at_each_node if own_noise else _over_time_and_nodes)(counted, causal, m), 0.0)
        F = _divided(causal, m)
        return Estimate(float((F * (over_nodes(counted) @ F)).sum()), 0.0)

    def excess_loss(
        self, noise: NoiseOperator, noise_std: float, divisors: ArrayLike | None = None, probes: Probes | None = None
    ) -> ExcessLoss:
        """The loss that noise is predicted to add, by the curvature of the weights: published and on the way.

        That of a quadratic loss, mean over the nodes that count; with another loss the first term in the noise, without
        what clipping and the learning of slow directions add.

        Args:
            noise, divisors, probes: as for `noise_error`; divisors: records in the batch of a node.
            noise_std: nu of the base noise, per gradient sum.
        Returns: in the published model: what the step weights count, released or not, at a total weight of 1; on the
            way: mean over the T models at which gradients are taken, whatever `on_the_way` of the weights.
        Raises: InvalidInput: weights without a curvature, a negative noise_std; as `noise_error`.
        Cost: twice that of `noise_error`.

        >>> from mfdl import Dynamics, ErrorWeights, gossip
        >>> from mfdl.noise import IndependentNoise
        >>> two = Dynamics(gossip.metropolis_hastings("path:n=2"), learning_rate=0.5)
        >>> weights = ErrorWeights("released:average:4", curvature="power:1:10")
        >>> loss = NoiseObjective(two, 8, weights).excess_loss(IndependentNoise(8, 2), noise_std=0.1)
        >>> round(loss.published.value, 5), round(loss.on_the_way.value, 5)
        (0.00387, 0.00339)
        """
        nu, T = check.non_negative(noise_std=noise_std), self.num_steps
        if self.curvature is None:
            raise InvalidInput(
                "an excess loss needs a curvature of the loss: weights=ErrorWeights(..., curvature='power:1:100')."
            )
        scale = (nu * float(self.dynamics.learning_rates(T)[0])) ** 2 / (self.weights.mass or self.dynamics.num_nodes)

        def error(weights: ErrorWeights) -> Estimate:
            counted = dataclasses.replace(self, weights=weights)
            return counted.noise_error(noise, divisors, probes).scaled(scale)

        way = Estimate(0.0, 0.0) if T == 1 else error(self.weights.for_gradients(T))
        return ExcessLoss(error(self.weights.for_published(T)), way)


def _divided(noise: CausalNoise, divisors: FloatArray) -> sp.csr_array:
    """The factor of a step's noise over what each node's sum is divided by."""
    return sp.csr_array(sp.diags_array(1 / divisors) @ noise.mixing)


def _large_graph_estimate(
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
    N = noise.column_inverse(0)
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
            N = noise.column_inverse(0)  # refused here where T is too large for arrays of T x T
            value = float(np.sum(N * (over_steps(counted) @ N)))
        return value / float(divisors[0]) ** 2
    grams = over_steps_of_nodes(counted)
    pairs = ((noise.column_inverse(u), H / divisors[u] ** 2) for u, H in enumerate(grams))
    return sum(float(np.sum(N * (H @ N))) for N, H in pairs)


def _by_structure(counted: CountedModels, noise: CausalNoise) -> float | None:
    """tr(N^T H N) of an encoder with structure by the modes of the gossip; None where arrays of T x T say it.

    Raises: InvalidInput: rates that change over many steps, neither C nor C^-1 banded.
    """
    if (encoder := noise.stepped) is None:
        return None
    try:
        return structured.objective(mode_cost(counted), encoder)
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
        total, E = np.tensordot(parts.sum(axis=1), grams, 1), noise.column_inverse(0)
        return float(np.sum(E * (total @ E)))
    pairs = ((noise.column_inverse(k), np.tensordot(part, grams, 1)) for k, part in enumerate(parts.T))
    return sum(float(np.sum(E * (H @ E))) for E, H in pairs)
