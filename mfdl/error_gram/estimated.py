"""The error Gram over steps of graphs too large for all their modes, from random probes, with error bars.

A probe is a vector z of random signs over nodes. For constant symmetric gossip z^T F p(W) F^T z has mean tr(Q p(W)),
Q = F^T F, for every polynomial p at once, and Lanczos gives it from about sqrt(T) products with W; the eigenvector 1 of
W, whose share is known, is taken out before. For other gossip the responses to z themselves have the Gram, as random
signs have covariance I. Every probe alone has a positive semidefinite H with the right mean, so their average has, and
how far they lie apart says how far the average may be from H.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import norm
from scipy.stats import norm as normal
from scipy.stats import t as student

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..dynamics.responses import ByNodes, effects
from ..error_weights import ErrorWeights
from ..errors import UnsupportedMechanism
from ._counted import Counted, finite_gram
from ._lanczos import nodes_needed, quadrature
from .measure import SpectralMeasure
from .temporal import error_gram, in_reach, of_measure

ACCURACY = 1e-12
"""Of the moments of one probe, relative to its mass: what Lanczos may be off, far below what probes differ."""
SPREAD_ACCURACY = 1e-6
LEVEL = 0.95
EXACT_WORK = 2e11
"""Operations over nodes that are spent on an exact Gram before it is estimated."""
MIN_COUNTED = 1000
"""Nodes that must count where gossip is not symmetric: a probe of few is one of few random numbers."""
BLOCK_BYTES = 2**30
"""Responses that are kept at once; beyond it those at nodes drawn at random, anew for each probe."""


@dataclasses.dataclass(frozen=True)
class Probes:
    """How many, and the seed of their signs; the same give the same H, bit for bit on one machine.

    Raises: InvalidInput: fewer than 2, of which no error is known; a negative seed.
    """

    count: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        check.integer_at_least(2, count=self.count)
        check.integer_at_least(0, seed=self.seed)

    def generators(self, purpose: int) -> list[np.random.Generator]:
        """One for each probe, independent of one another and of those for another purpose."""
        return [np.random.default_rng([self.seed, probe, purpose]) for probe in range(self.count)]

    def signs(self, num_nodes: int) -> FloatArray:
        """Of all probes, shape (n, count)."""
        drawn = [rng.integers(0, 2, num_nodes, dtype=np.int8) for rng in self.generators(0)]
        return np.asarray(2.0 * np.stack(drawn, axis=1) - 1.0, dtype=np.float64)


class Estimate(NamedTuple):
    """A value, and `error`, half the width of its 95 % interval."""

    value: float
    error: float

    @property
    def relative_error(self) -> float:
        """error / value."""
        return self.error / self.value


@dataclasses.dataclass(frozen=True, eq=False)
class Spread:
    """How far probes of symmetric gossip may lie apart, from the measure itself.

    z^T A z, A = F p(W) F^T, has variance 2 (|A|_F^2 - sum_u A_uu^2) <= 2 (q tr(F p(W)^2 F^T) - tr(A)^2 / m) for signs
    z, F with m rows and Q = F^T F at most q. Where few eigenvectors cost most, which few probes tell badly, this is
    larger than what they differ by.

    Attributes: measure: of all that is estimated; rows: m; largest: q; probes: how many were averaged.
    """

    counted: Counted
    measure: SpectralMeasure
    rows: int
    largest: float
    probes: int

    def error(self, inverse: FloatArray) -> float:
        """Half the width of the normal interval of tr(H inverse)."""
        ones = np.ones(1)
        each = (of_measure(self.counted, SpectralMeasure(np.array([lam]), ones)) for lam in self.measure.eigenvalues)
        costs = np.array([float(np.sum(h * inverse)) for h in each])
        return normal_error(self.measure, costs, self.rows, self.largest, self.probes)


def normal_error(measure: SpectralMeasure, costs: FloatArray, rows: int, largest: float, probes: int) -> float:
    """Half the width of the normal interval of sum_i weights_i costs_i over probes; see `Spread`."""
    first, second = (float(measure.weights @ costs**power) for power in (1, 2))
    variance = 2 * max(0.0, largest * second - first**2 / rows)
    return float(normal.ppf((1 + LEVEL) / 2)) * (variance / probes) ** 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class EstimatedGram:
    """An estimate of H over steps.

    Attributes:
        gram: the average over probes, shape (T, T), symmetric positive semidefinite.
        of_probes: H of each probe, shape (probes, T, T), independent, each with mean H.
        spread: for symmetric gossip, what else is known of how far probes lie apart.
        source: what a probe is, in words.
    """

    gram: FloatArray
    of_probes: FloatArray
    spread: Spread | None = None
    source: str = "random probes"

    def loss(self, encoder: FloatArray) -> Estimate:
        """tr(H X^-1), X = C^T C, with its 95 % interval: Student's t over the probes or `spread`, whichever is wider.

        For an encoder chosen by this very estimate the loss also is too low by a share of the square of the relative
        error, which the interval does not show.
        """
        N = scipy.linalg.solve_triangular(check.square_array(encoder=encoder), np.eye(len(encoder)), lower=True)
        return self.cost(N @ N.T)

    @property
    def trace(self) -> Estimate:
        """tr(H), the loss of independent noise."""
        return self.cost(np.eye(len(self.gram)))

    def cost(self, inverse: FloatArray) -> Estimate:
        """tr(H X^-1) of the covariance X^-1 over steps, with the interval of `loss`."""
        values = np.array([float(np.sum(H * inverse)) for H in self.of_probes])
        error = float(student.ppf((1 + LEVEL) / 2, values.size - 1) * values.std(ddof=1)) / values.size**0.5
        return Estimate(float(values.mean()), max(error, 0.0 if self.spread is None else self.spread.error(inverse)))


def estimated_error_gram(
    dynamics: Dynamics,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    probes: Probes | None = None,
) -> EstimatedGram:
    """An estimate of `error_gram` for graphs of any size.

    The relative error falls as 1 / sqrt(probes x nodes): about 1e-3 with 8 probes on 10^5 nodes.

    Args: those of `error_gram`; probes: default 8 of seed 0.
    Raises: those of `error_gram`; UnsupportedMechanism: gossip that is not symmetric with fewer than MIN_COUNTED nodes
        that count (their average above all).
    Cost: for constant symmetric W about sqrt(30 T) products of W with (n, probes), and n x probes memory; for other
        constant W T products, and up to 1 GiB more; for gossip that varies T^2 / 2 for each probe, and n T memory.
    Source: M. F. Hutchinson (1990) for the probes, G. H. Golub and G. Meurant (1994) for the quadrature.
    """
    counted = Counted.of(dynamics, num_steps, weights, objective)
    probes = Probes() if probes is None else probes
    check.instance(Probes, probes=probes)
    if dynamics.gossip.is_constant and dynamics.gossip.at(0).is_symmetric:
        return _by_measures(counted, probes)
    factor = counted.node_factor
    if counted.released is None and factor is not None and factor.shape[0] < MIN_COUNTED:
        raise UnsupportedMechanism(
            f"the error Gram of gossip that is not symmetric is estimated where {MIN_COUNTED} nodes or more count, "
            f"got {'their average' if counted.of_average else factor.shape[0]}; take metropolis-hastings gossip."
        )
    of_probes = np.stack(list(_by_responses(counted, probes)))
    return EstimatedGram(of_probes.mean(axis=0), of_probes)


def exact_or_estimated(
    dynamics: Dynamics,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    probes: Probes | None = None,
) -> FloatArray | EstimatedGram:
    """`error_gram` where it takes about a minute at most, else `estimated_error_gram`, with their arguments."""
    target: dict[str, Any] = {"weights": weights, "objective": objective}
    if in_reach(Counted.of(dynamics, num_steps, weights, objective), EXACT_WORK):
        return error_gram(dynamics, num_steps, **target)
    return estimated_error_gram(dynamics, num_steps, probes=probes, **target)


def _by_measures(counted: Counted, probes: Probes) -> EstimatedGram:
    """Symmetric gossip: the part of the eigenvector 1, which is known, and Lanczos on the rest."""
    W, rounds, T = counted.dynamics.gossip.at(0).weights, counted.dynamics.gossip_rounds, counted.num_steps
    n, signs, factor = W.shape[0], probes.signs(W.shape[0]), counted.node_factor
    z = signs if factor is None else np.asarray(factor.T @ signs[: factor.shape[0]])
    z -= z.mean(axis=0)
    rules = quadrature(lambda x: np.asarray(W @ x), z, nodes_needed(2 * T * rounds, ACCURACY))
    measures = [SpectralMeasure(*of_probe).after_rounds(rounds) for of_probe in rules]
    share = n if factor is None else (np.asarray(factor.sum(axis=1)) ** 2).sum()  # 1^T Q 1
    known = SpectralMeasure(np.ones(1), np.array([share / n]))
    of_probes = np.stack([of_measure(counted, measure.plus(known)) for measure in measures])
    pooled = functools.reduce(SpectralMeasure.plus, measures)
    pooled = SpectralMeasure(pooled.eigenvalues, pooled.weights / probes.count).reduced(4 * T, SPREAD_ACCURACY)
    rows, largest = (n, 1.0) if factor is None else (factor.shape[0], float(norm(factor, 1) * norm(factor, np.inf)))
    spread = Spread(counted, pooled, rows, largest, probes.count)
    return EstimatedGram(of_probes.mean(axis=0), of_probes, spread)


def _by_responses(counted: Counted, probes: Probes) -> Iterator[FloatArray]:
    """Of each probe, any gossip: the Gram of the responses to it, or of its effects on what is released.

    All probes at once, but for responses that depend on more than the age of what they respond to.
    """
    signs = probes.signs(counted.dynamics.num_nodes)
    rows = len(signs) if counted.node_factor is None else counted.node_factor.shape[0]
    if counted.released is not None:
        steps, rows, finish = _effects(counted, signs[:rows]), len(signs), _itself
    elif counted.shift_invariant:
        steps, finish = enumerate(y[:, 0] for y in _responses(counted, signs, by_age=True)), counted.over_steps
    else:
        yield from (finite_gram(functools.partial(_summed, counted, z)) for z in signs.T)
        return
    kept = min(rows, max(MIN_COUNTED, BLOCK_BYTES // (8 * counted.num_steps * probes.count)))
    each = np.empty((probes.count, counted.num_steps, kept))
    chosen = [rng.choice(rows, kept, replace=False) if kept < rows else slice(None) for rng in probes.generators(1)]
    for r, y in steps:
        for j, at in enumerate(chosen):
            each[j, r] = y[at, j]
    for of_probe in each:
        yield finite_gram(functools.partial(finish, of_probe @ of_probe.T * (rows / kept)))


def _itself(gram: FloatArray) -> FloatArray:
    return gram


def _effects(counted: Counted, signs: FloatArray) -> Iterator[tuple[int, FloatArray]]:
    """(s, what an injection of step s does to the signs of what is released), each of shape (nodes, probes)."""
    form = signs if counted.node_factor is None else np.asarray(counted.node_factor.T @ signs)
    return effects(counted.dynamics, counted.num_steps, ByNodes(counted.dynamics), counted.step_weights, form)


def _summed(counted: Counted, z: FloatArray) -> FloatArray:
    """sum_r w_r y_r^T y_r, y_r what step r counts of the injections of z at every step so far."""
    H = np.zeros((counted.num_steps, counted.num_steps))
    for r, y in enumerate(_responses(counted, z[:, None], by_age=False)):
        H[: r + 1, : r + 1] += counted.step_weights[r] * (y[:, :, 0].T @ y[:, :, 0])
    return H


def _responses(counted: Counted, probes: FloatArray, *, by_age: bool) -> Iterator[FloatArray]:
    """What counts of each step, shape (counted nodes, injections, probes)."""
    rows, columns = (axis.ravel() for axis in np.indices(probes.shape))
    averaging = ByNodes(counted.dynamics)
    for y in counted.responses(averaging, (rows, columns), sizes=probes.ravel(), by_age=by_age):
        yield counted.of_nodes(y)
