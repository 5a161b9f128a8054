"""NoiseObjective: how much noise is left in the models that count, in every form that a search or a report needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import scipy.sparse as sp
from numpy.typing import ArrayLike

from mfdl_solvers.structured import ModeCost

from ..check import FloatArray
from ..gossip import RandomGossip
from ..noise import NoiseOperator
from . import averaged_grams, estimated_grams, gradient_noise, node_grams, spectra, time_grams
from .counted_models import CountedModels
from .estimated_grams import Estimate, EstimatedGram, Probes
from .spectra import SpectralMeasure


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NoiseObjective(CountedModels):
    """The variance of noise in the models of plain gossip that count: a quadratic form H of the injected noise.

    All methods count the same: sum over steps r of w_r tr(theta_r^T Q theta_r), w and Q from the weights, of the models
    after averaging or of the messages before it; or tr(R^T Q R) of the released sum R = sum_r a_r theta_r. They are
    stated for a first learning rate of 1: the variance is eta_0^2 nu^2 times the value, per coordinate.

    Attributes:
        dynamics: gossip, constant or not, any number of rounds a step, step sizes, momentum, decay.
        num_steps: T >= 1.
        weights: which models count; default all alike.
        objective: "post-average" (models after averaging) or "message" (before).

    Raises: InvalidInput: num_steps < 1, an unknown objective, a schedule or weights of another length, released models
        with objective "message"; methods: an error beyond float64, a sequence of gossip that ends too early.

    >>> from mfdl import Dynamics, gossip
    >>> NoiseObjective(Dynamics(gossip.metropolis_hastings("path:n=2")), 3).over_nodes()
    array([[3., 3.],
           [3., 3.]])
    """

    # ---- exact -------------------------------------------------------------------------------------------------------

    def over_steps(self, present: ArrayLike | None = None) -> FloatArray:
        """H of noise correlated in time, alike at all nodes: tr(H N N^T) is the variance; shape (T, T).

        Args: present: who is there in each step, bool (T, n); noise of nodes that are offline enters nothing, as
            `algorithms.with_absences` runs. Default everybody.
        Returns: symmetric positive semidefinite.
        Raises: InvalidInput: `present` of another shape. UnsupportedMechanism: more than half an hour of work;
            `estimated` has an answer.
        Cost: see `mfdl.objective.time_grams`.
        """
        return time_grams.over_steps(self, present)

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
        Source: arXiv:2501.14644v2, Theorem 1 for one step; see `mfdl.objective.node_grams`.
        """
        return node_grams.over_nodes(self)

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
        return node_grams.over_both(self)

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
        Raises: UnsupportedMechanism: as `spectral_measure`; released models.
        """
        return spectra.mode_cost(self, measure)

    # ---- averaged or estimated ---------------------------------------------------------------------------------------

    def averaged(self, random: RandomGossip, probes: Probes | None = None) -> FloatArray | EstimatedGram:
        """E[H] of `over_steps` over the draws of `random`, which takes the place of the gossip of `dynamics`.

        Args: probes: of a Gram that is averaged over draws, how many; default 8, of seed 0.
        Returns: E[H], shape (T, T), exact up to rounding, where `random.moments` are known and models count step by
            step; else an `EstimatedGram` whose probes are draws: each has mean E[H].
        Raises: InvalidInput: another number of nodes, or nodes that may be away with more than one round of gossip in a
            step.
        Cost: T (n^3 + the cost of E[W^T X W]) + n T^2 time and n^2 + n T memory for symmetric E[W]; T^2 n^3 time and
            T n^2 memory for another one; that of `over_steps` for each draw.

        >>> from mfdl import Dynamics, gossip
        >>> path = gossip.metropolis_hastings("path:n=2")
        >>> NoiseObjective(Dynamics(path), 2).averaged(gossip.randomized.links(path, 0.5))
        array([[2.75, 1.25],
               [1.25, 1.5 ]])
        """
        return averaged_grams.averaged(self, random, probes)

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
        return gradient_noise.noise_error(self, noise, divisors, probes)
