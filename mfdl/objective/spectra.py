"""Gossip by its spectrum: eigenvectors, the spectral measure of what counts, and measures with few nodes.

Constant symmetric W enters H over steps by its spectral measure alone: H = sum_i weights_i h(eigenvalues_i), h(lam) the
H of the scalar recursion with lam in the place of W. So a measure with few nodes and the same moments gives the same H.
Lanczos finds such a measure, and that of large W, from products with W.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from mfdl_solvers.arithmetic import blas_threads
from mfdl_solvers.structured import ModeCost
from mfdl_solvers.ties import first_largest

from .. import check
from ..check import FloatArray
from ..dynamics import ByModes, Dynamics, Entries
from ..errors import InvalidInput, UnsupportedMechanism
from .counted_models import CountedModels
from .curvature import ROUNDING, nodes_needed, quadrature
from .error_weights import ErrorWeights

MAX_DENSE = 5000
"""Nodes up to which eigenvectors are computed: minutes, and three arrays of 200 MB."""
MAX_MEASURE_RATIO = 1e6  # the closed form cancels: relative error about 1e-16 of max D / min D
GRID = 13  # decimals by which equal eigenvalues are told from others


@dataclasses.dataclass(frozen=True, eq=False)
class SpectralMeasure:
    """sum_i weights_i delta(eigenvalues_i), with tr(Q p(W)) = sum_i weights_i p(eigenvalues_i) for every polynomial p.

    W is the averaging of one step, symmetric, Q the form that counts models (the identity for all nodes alike).

    Attributes:
        eigenvalues: in [-1, 1], shape (m,); weights: >= 0, shape (m,), their sum tr(Q). Own read-only arrays.

    Raises: InvalidInput: other shapes, eigenvalues outside [-1, 1], negative weights.

    >>> two = SpectralMeasure([1.0, 0.5], [1.0, 3.0])
    >>> two.moment(2)
    1.75
    """

    eigenvalues: FloatArray
    weights: FloatArray

    def __post_init__(self) -> None:
        lam, weights = (check.finite_array(1, **{name: value}) for name, value in vars(self).items())
        if lam.shape != weights.shape or lam.size == 0:
            raise InvalidInput(
                f"weights must be one for each of {lam.size} eigenvalues, got {weights.size}; give both."
            )
        if np.abs(lam).max() > 1 + 1e-9 or weights.min() < 0:
            raise InvalidInput(
                f"eigenvalues must lie in [-1, 1] and weights be >= 0, got {lam[first_largest(np.abs(lam))]:g} and "
                f"{weights.min():g}; a gossip matrix has no others."
            )
        for name, array in (("eigenvalues", np.clip(lam, -1.0, 1.0)), ("weights", weights)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def from_spectrum(cls, eigenvalues: FloatArray, weight: float = 1.0) -> SpectralMeasure:
        """The same weight on each of some eigenvalues, equal ones (to 13 decimals) put together."""
        values, counts = np.unique(np.clip(eigenvalues, -1.0, 1.0).round(GRID), return_counts=True)
        return cls(values, np.asarray(weight * counts, dtype=np.float64))

    @property
    def mass(self) -> float:
        """tr(Q)."""
        return float(self.weights.sum())

    def moment(self, power: int) -> float:
        """tr(Q W^power)."""
        return float(self.weights @ self.eigenvalues**power)

    def weighted(self, factors: FloatArray) -> SpectralMeasure:
        return SpectralMeasure(self.eigenvalues, self.weights * factors)

    def after_rounds(self, dynamics: Dynamics) -> SpectralMeasure:
        """That of a whole step."""
        if dynamics.has_one_round:
            return self
        return SpectralMeasure(dynamics.step_eigenvalues(self.eigenvalues), self.weights)

    def reduced(self, degree: int, accuracy: float = ROUNDING) -> SpectralMeasure:
        """Fewer nodes, the same moments up to `degree` within `accuracy` times the mass; itself if it has few.

        The error Gram of T steps is made of moments up to degree 2 T, so that about sqrt(T ln(4 / accuracy)) nodes
        stand for any number. Cost: nodes times those left.
        """
        size = nodes_needed(degree, accuracy)
        if self.eigenvalues.size <= 2 * size:
            return self
        lam = self.eigenvalues[:, None]
        ((nodes, weights),) = quadrature(lambda x: lam * x, np.sqrt(self.weights)[:, None], size)
        return SpectralMeasure(nodes, weights)

    def plus(self, other: SpectralMeasure) -> SpectralMeasure:
        """The sum of two measures."""
        return SpectralMeasure(
            np.concatenate([self.eigenvalues, other.eigenvalues]), np.concatenate([self.weights, other.weights])
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Modes:
    """Eigenvalues of one step's averaging and what couples the modes.

    Attributes:
        lam: eigenvalues of the averaging of a step, shape (n,).
        vectors: U, orthogonal, shape (n, n); root: sqrt(D), shape (n,), all ones for symmetric W.
    """

    counted: CountedModels
    lam: FloatArray
    vectors: FloatArray
    root: FloatArray

    @classmethod
    def from_models(cls, counted: CountedModels) -> Modes | None:
        """None where gossip is not constant and reversible, with D within MAX_MEASURE_RATIO."""
        gossip = counted.dynamics.gossip
        if not gossip.is_constant:
            return None
        measure = gossip.at(0).reversible_measure
        if measure is None or measure.max() > MAX_MEASURE_RATIO * measure.min():
            return None
        symmetric = bool(np.ptp(measure) <= 1e-12 * measure.max())
        root = np.ones_like(measure) if symmetric else np.sqrt(measure)
        W = counted.dynamics.step_weights(0)
        S = (sp.diags_array(root) @ W @ sp.diags_array(1 / root)).toarray()
        lam, U = scipy.linalg.eigh((S + S.T) / 2, overwrite_a=True, driver="evd")
        return cls(counted, lam, U, root)

    @property
    def averaging(self) -> ByModes:
        return ByModes(self.lam)

    @property
    def entries(self) -> Entries:
        """A unit injection in every mode, as one column."""
        return np.arange(self.lam.size), np.zeros(self.lam.size, dtype=np.intp)

    @property
    def symmetric(self) -> bool:
        """W is symmetric: its eigenvectors are orthogonal."""
        return bool((self.root == 1.0).all())

    @property
    def coupling(self) -> FloatArray | None:
        """What two modes add to the counted variance together, shape (n, n); None where no two meet.

        (U^T D^-1/2 Q D^-1/2 U) * (U^T D U) entrywise: their overlap in the counted models times that of unit injections
        at all nodes. The identity for symmetric W where every node's model counts alike.
        """
        if self.symmetric and self.counted.node_factor is None:
            return None
        counted = self.counted.times_node_factor(self.vectors / self.root[:, None])
        sent = self.vectors * self.root[:, None]
        return (counted.T @ counted) * (sent.T @ sent)


def known_measure(counted: CountedModels) -> SpectralMeasure | None:
    """That of constant symmetric gossip where it has a closed form or few enough nodes; else None."""
    gossip = counted.dynamics.gossip
    if not (gossip.is_constant and gossip.at(0).is_symmetric):
        return None
    if counted.weights.is_average:
        return SpectralMeasure(np.ones(1), np.ones(1))
    if (closed := gossip.at(0).closed_spectrum) is not None:
        # every eigenspace has |u(i)|^2 alike at all nodes
        F = counted.target_factor
        trace = float(closed.size if F is None else F.data @ F.data)  # tr(Q)
        measure = SpectralMeasure.from_spectrum(closed, trace / closed.size)
        if (released := counted.released) is not None:  # |W^g u|^2
            measure = measure.weighted(measure.eigenvalues ** (2 * released.rounds_of_gossip))
        return measure.after_rounds(counted.dynamics)
    if gossip.num_nodes > MAX_DENSE:
        return None
    with blas_threads(gossip.num_nodes):
        modes = Modes.from_models(counted)
        if modes is None:
            return None
        weights = (counted.times_node_factor(modes.vectors) ** 2).sum(axis=0)
        return SpectralMeasure(np.clip(modes.lam, -1.0, 1.0), weights)


def spectral_measure(counted: CountedModels) -> SpectralMeasure:
    """The measure of one step's averaging of constant symmetric gossip, exact up to rounding.

    In closed form where the average of the models counts, or where gossip is a convolution over a product of cycles
    (`GossipMatrix.closed_spectrum`: rings, tori, hypercubes, complete graphs of any size); otherwise by the
    eigenvectors of W, up to 5000 nodes. The target of the weights is Q; their steps play no part.

    Raises: UnsupportedMechanism: other gossip, or too large.
    Cost: O(weights of W + n log n) in closed form, else n^3.

    >>> from mfdl import Dynamics, gossip
    >>> from mfdl.objective import NoiseObjective
    >>> ring = NoiseObjective(Dynamics(gossip.metropolis_hastings("ring:n=6")), 1).spectral_measure()
    >>> ring.eigenvalues.round(3), ring.weights
    (array([-0.333,  0.   ,  0.667,  1.   ]), array([1., 2., 2., 1.]))
    """
    measure = known_measure(dataclasses.replace(counted, weights=ErrorWeights("all", counted.weights.target)))
    if measure is None:
        raise UnsupportedMechanism(
            f"the spectral measure is known of constant symmetric gossip, in closed form or up to {MAX_DENSE} nodes, "
            f"got {counted.dynamics.gossip.describe()}; take metropolis-hastings, or NoiseObjective.over_steps."
        )
    return measure


def mode_cost(counted: CountedModels, measure: SpectralMeasure | None = None) -> ModeCost:
    """H over steps as an operator, a sum of scalar recursions: no array of T x T.

    Args: measure: of one step's averaging; default `spectral_measure`.
    Raises: UnsupportedMechanism: as `spectral_measure`; released models; a curvature with a schedule of rates.
    """
    if counted.released is not None:
        raise UnsupportedMechanism("forms with structure count models step by step, not released averages of them.")
    measure = spectral_measure(counted) if measure is None else measure
    check.instance(SpectralMeasure, measure=measure)
    known, dynamics = measure.reduced(2 * counted.num_steps), counted.dynamics
    lam, shrink = known.eigenvalues, dynamics.shrink_factors(counted.num_steps)
    weights = known.weights * lam**2 if counted.after_averaging else known.weights
    if counted.curvature is not None:
        product = _with_directions(counted, SpectralMeasure(lam, weights)).reduced(2 * counted.num_steps)
        lam, weights, shrink = product.eigenvalues, product.weights, np.ones_like(shrink)
    return ModeCost(lam, weights, counted.step_weights, rates=counted.rates, shrink=shrink, momentum=dynamics.momentum)


def _with_directions(counted: CountedModels, measure: SpectralMeasure) -> SpectralMeasure:
    """Of mode k and direction j at a constant rate: lam_k (1 - eta lambda_j), decay included, weighted by both."""
    if (counted.rates != 1.0).any():
        raise UnsupportedMechanism(
            "forms with structure take a curvature at a constant learning rate, got a schedule; leave out one of them, "
            "or take a dense encoder."
        )
    pairs = [(weight, float(each.dynamics.shrink_factors(counted.num_steps)[0])) for weight, each in counted.directions]
    factors, contraction = np.array(pairs).T
    products = np.multiply.outer(contraction, measure.eigenvalues).ravel()
    return SpectralMeasure(products, np.multiply.outer(factors, measure.weights).ravel())
