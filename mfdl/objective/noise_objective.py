"""NoiseObjective: how much noise is left in the models that count, in every form that a search or a report needs.

`noise_error` is the value for a noise operator. The form of H depends on the noise:

- correlated in time at each node: tr(N^T H N) with H over steps, one per node if needed; for an encoder with structure
  by the modes of the gossip, if it has modes, without a T x T array;
- fresh in each step with factor F over nodes: tr(F^T H F) with H over nodes;
- correlated over both: sum_k tr(E_k^T H(f_k) E_k), H(f)[s, t] = f^T H[s, t] f the Gram over steps of noise that f
  spreads over nodes, from the modes of the gossip; by H over steps x nodes if there are none, or if the noise itself is
  a matrix of that size.

Beyond MAX_DENSE nodes no array over nodes is formed, and the value may have an error bar. No array has more than n^2 or
T^2 entries, or n T^2 for noise correlated over both; (T n)^2 only where documented.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from mfdl_solvers import structured
from mfdl_solvers.problem import ProblemError
from mfdl_solvers.structured import ModeCost

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..gossip.randomized import RandomGossip
from ..noise import CausalNoise, NoiseOperator
from ..noise.causal import MAX_JOINT_SIZE
from ..noise.encoder_arguments import MAX_DENSE_STEPS
from . import estimated_grams, spectra, time_grams
from .counted_models import CountedModels
from .error_weights import ErrorWeights
from .estimated_grams import Estimate, EstimatedGram, Probes, exact_or_estimated, fresh_noise, same_size
from .spectra import MAX_DENSE, SpectralMeasure, mode_cost
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

    With a curvature in the weights the methods sum over its directions j, sum_j w_j H(1 - eta_t lambda_j), eta_t the
    rates of `dynamics` themselves: eta_0^2 nu^2 times the value is an excess loss, summed over the nodes that count.
    Costs are then those stated times the directions, at most about sqrt(40 T), but for `mode_cost`, which sums over the
    products of both spectra.

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

    # ---- exact -------------------------------------------------------------------------------------------------------

    def over_steps(self, present: ArrayLike | None = None) -> FloatArray:
        """H of noise correlated in time, alike at all nodes: tr(H N N^T) is the variance; shape (T, T).

        Args: present: who is there in each step, bool (T, n); noise of nodes that are offline enters nothing, as
            `algorithms.with_dropout` runs. Default everybody.
        Returns: symmetric positive semidefinite.
        Raises: InvalidInput: `present` of another shape. UnsupportedMechanism: more than half an hour of work;
            `estimated` has an answer.
        Cost: see `mfdl.objective.time_grams`.
        """
        return time_grams.over_steps(self, present)

    def over_each_step(self) -> FloatArray:
        """w_r H_r of each step r whose models count, shape (counted steps, T, T); their sum is `over_steps`.

        tr(H_r N N^T) is the variance in the models after step r alone, of which encoders may minimise the largest.

        Raises: InvalidInput: released models. UnsupportedMechanism: T above 512; as `over_steps`.
        Cost: T^3 numbers; T^2 times the modes of the gossip for each step, n T^3 nnz(W) where it has none.
        """
        return time_grams.over_each_step(self)

    def over_steps_of_nodes(self) -> Iterator[FloatArray]:
        """H_u of the noise of node u, for u = 0..n-1, one at a time, each shape (T, T); their sum is `over_steps`.

        Cost: per node T nnz(W) + n T^2.
        """
        return time_grams.over_steps_of_nodes(self)

    def over_nodes(self) -> FloatArray:
        """H of noise fresh in each step: covariance R over nodes leaves variance tr(H R); shape (n, n).

        Returns: symmetric positive semidefinite; its trace is that of `over_steps`. One step gives W^T W, the criterion
            tr(W R W^T).
        Cost: T n nnz(W) time, by a cost-to-go backwards in time; n^3 + n T by one eigendecomposition for constant
            symmetric W, every node counted, where that is less; n^2 memory.
        Source: arXiv:2501.14644v2, Theorem 1 for one step; see `mfdl.objective.time_grams`.
        """
        return time_grams.over_nodes(self)

    def by_modes(self) -> tuple[FloatArray, FloatArray]:
        """(U, H_k): eigenvectors of the gossip, shape (n, n), and one H over steps for each, shape (n, T, T).

        H over steps x nodes is sum_k H_k (x) u_k u_k^T, since each mode is a scalar recursion and no two meet in the
        counted models. sum_k H_k is `over_steps`, sum_k tr(H_k) u_k u_k^T is `over_nodes`.

        Raises: UnsupportedMechanism: gossip that is not constant and symmetric, or a target that couples modes (some
            nodes only; the average of doubly stochastic gossip does not).
        Cost: n T^3 time, n T^2 memory.
        """
        return time_grams.by_modes(self)

    def over_both(self) -> FloatArray:
        """H of any noise: covariance Sigma over steps x nodes leaves tr(H Sigma); shape (T n, T n), time-major.

        Raises: UnsupportedMechanism: T n above 4096.
        Cost: T (T n)^2 nnz(W) / n time, a few arrays of (T n)^2.
        """
        return time_grams.over_both(self)

    def spectral_measure(self) -> SpectralMeasure:
        """The measure of one step's averaging of constant symmetric gossip, exact up to rounding.

        In closed form where the average of the models counts, or where gossip is a convolution over a product of cycles
        (`GossipMatrix.closed_spectrum`: rings, tori, hypercubes, complete graphs of any size); otherwise by the
        eigenvectors of W, up to 5000 nodes. The target of the weights is Q; their steps play no part.

        Raises: UnsupportedMechanism: other gossip, or too large.
        Cost: O(weights of W + n log n) in closed form, else n^3.

        >>> from mfdl import Dynamics, gossip
        >>> ring = NoiseObjective(Dynamics(gossip.metropolis_hastings("ring:n=6")), 1).spectral_measure()
        >>> ring.eigenvalues.round(3), ring.weights
        (array([-0.333,  0.   ,  0.667,  1.   ]), array([1., 2., 2., 1.]))
        """
        return spectra.spectral_measure(self)

    def mode_cost(self, measure: SpectralMeasure | None = None) -> ModeCost:
        """H over steps as an operator, a sum of scalar recursions: no array of T x T.

        Args: measure: of one step's averaging; default `spectral_measure`.
        Raises: UnsupportedMechanism: as `spectral_measure`; released models; a curvature with a schedule of rates.
        """
        return spectra.mode_cost(self, measure)

    # ---- averaged or estimated ---------------------------------------------------------------------------------------

    def averaged(self, random: RandomGossip, probes: Probes | None = None) -> FloatArray | EstimatedGram:
        """E[H] of `over_steps` over the draws of `random`, which takes the place of the gossip of `dynamics`.

        Args: probes: of a Gram that is averaged over draws, how many; default 8, of seed 0.
        Returns: E[H], shape (T, T), exact up to rounding, where `random.moments` are known and models count step by
            step; else an `EstimatedGram` whose probes are draws: each has mean E[H].
        Raises: InvalidInput: another number of nodes, or node dropout with more than one round of gossip in a step.
        Cost: T (n^3 + the cost of E[W^T X W]) + n T^2 time and n^2 + n T memory for symmetric E[W]; T^2 n^3 time and
            T n^2 memory for another one; that of `over_steps` for each draw.

        >>> from mfdl import Dynamics, gossip
        >>> path = gossip.metropolis_hastings("path:n=2")
        >>> NoiseObjective(Dynamics(path), 2).averaged(gossip.randomized.links(path, 0.5))
        array([[2.75, 1.25],
               [1.25, 1.5 ]])
        """
        return estimated_grams.averaged(self, random, probes)

    def estimated(self, probes: Probes | None = None) -> EstimatedGram:
        """An estimate of `over_steps` for graphs of any size.

        The relative error falls as 1 / sqrt(probes x nodes): about 1e-3 with 8 probes on 10^5 nodes.

        Args: probes: default 8 of seed 0.
        Raises: UnsupportedMechanism: gossip that is not symmetric with fewer than 1000 nodes that count (their average
            above all).
        Cost: for constant symmetric W about sqrt(30 T) products of W with (n, probes), and n x probes memory; for other
            constant W T products, and up to 1 GiB more; for gossip that varies T^2 / 2 for each probe, and n T memory.
        Source: M. F. Hutchinson (1990) for the probes, G. H. Golub and G. Meurant (1994) for the quadrature.
        """
        return estimated_grams.estimated(self, probes)

    def exact_or_estimated(self, probes: Probes | None = None) -> FloatArray | EstimatedGram:
        """`over_steps` where it takes about a minute at most, else `estimated`."""
        return estimated_grams.exact_or_estimated(self, probes)

    def fresh_noise(self, factor: sp.sparray | ArrayLike, probes: Probes | None = None) -> Estimate:
        """tr(F^T H F), H = `over_nodes`, with its 95 % interval, without an array over nodes.

        Args: factor: F of the noise of a step, csr (n, columns); probes: default 8 of seed 0.
        Returns: of error 0 where it has a closed form.
        Raises: UnsupportedMechanism: gossip that varies or is not symmetric, or models of which some count more than
            others.
        Cost: about sqrt(30 T) products of W with (n, probes), and T for each of so many eigenvalues.
        """
        return estimated_grams.fresh_noise(self, factor, probes)

    def noise_error(
        self, noise: NoiseOperator, divisors: ArrayLike | None = None, probes: Probes | None = None
    ) -> Estimate:
        """The variance that noise on gradient sums leaves, per unit nu^2 and coordinate, with its 95 % interval.

        Exact, of error 0, up to 5000 nodes, and beyond of noise of one size at each node on gossip whose eigenvalues
        are known. Of a whole algorithm: `mfdl.algorithms.noise_error`.

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
        return noise_error(self, noise, divisors, probes)

    def excess_loss(
        self, noise: NoiseOperator, noise_std: float, divisors: ArrayLike | None = None, probes: Probes | None = None
    ) -> ExcessLoss:
        """The loss that noise is predicted to add, by the curvature of the weights: published and on the way.

        That of a quadratic loss, mean over the nodes that count; with another loss it is the first term in the noise,
        without what clipping and the learning of slow directions add.

        Args:
            noise, divisors, probes: as for `noise_error`; divisors: records in the batch of a node, so that gradients
                are means.
            noise_std: nu of the base noise, per gradient sum.
        Returns: in the published model: what the step weights count, released or not, at a total weight of 1; on the
            way: mean over the T models at which gradients are taken, the first one without noise. `on_the_way` of the
            weights plays no part.
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
            return noise_error(counted, noise, divisors, probes).scaled(scale)

        way = Estimate(0.0, 0.0) if T == 1 else error(self.weights.for_gradients(T))
        return ExcessLoss(error(self.weights.for_published(T)), way)


def noise_error(
    counted: CountedModels, noise: NoiseOperator, divisors: ArrayLike | None, probes: Probes | None
) -> Estimate:
    """See `NoiseObjective.noise_error`."""
    (_, first), *others = kinds = counted.kinds
    if others:
        costs = [noise_error(kind, noise, divisors, probes).scaled(factor) for factor, kind in kinds]
        return Estimate(sum(cost.value for cost in costs), sum(cost.error for cost in costs))
    counted = first
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
    if not causal.fresh:
        own_noise = causal.factor is None or causal.local
        return Estimate((_at_each_node if own_noise else _over_time_and_nodes)(counted, causal, m), 0.0)
    F = _divided(causal, m)
    return Estimate(float((F * (over_nodes(counted) @ F)).sum()), 0.0)


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
    if noise.in_blocks:
        return None
    try:
        return structured.objective(mode_cost(counted), noise.encoder)
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
