"""H over steps, and the cost of fresh noise, estimated with error bars.

By random probes on graphs too large for all their modes, by draws of gossip that is drawn anew in each round. A probe
is a vector z of random signs over nodes. For constant symmetric gossip z^T F p(W) F^T z has mean tr(Q p(W)), Q = F^T F,
for every polynomial p at once, and Lanczos gives it from about sqrt(T) products with W; the eigenvector 1 of W, whose
share is known, is taken out before. For other gossip the responses to z themselves have the Gram. Every probe alone has
a positive semidefinite H with the right mean, so their average has, and their spread says how far it may be from H.

The cost of fresh noise of factor F, tr(F^T H F) with H over nodes, is tr(F^T f(W) F) with a polynomial f of such W: in
closed form for noise of one size at each node on gossip whose eigenvalues are known, else by probes.

The mean of H over draws has a closed form where E[W] and X -> E[W^T X W] are known (`gossip.randomized`). Rounds are
independent of the past, so the mean effect of an injection of step s before step t is the recursion with E[W], and what
it then costs together with one of step t is a quadratic form carried back over E[W^T . W]. Injections of nodes that are
offline enter nothing, as `algorithms.with_dropout` runs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy
import scipy.linalg
import scipy.sparse as sp

from mfdl_solvers.arithmetic import blas_threads

from .. import check, matrices
from ..check import FloatArray
from ..dynamics import POWERS, ByModes, ByNodes
from ..errors import InvalidInput, UnsupportedMechanism
from ..gossip.randomized import Moments, RandomGossip
from .counted_models import CountedModels, finite_gram
from .curvature import nodes_needed, quadrature
from .spectra import SpectralMeasure
from .time_grams import in_reach, measure_gram, over_steps

ACCURACY = 1e-12
"""Of the moments of one probe, relative to its mass: what Lanczos may be off, far below what probes differ."""
SPREAD_ACCURACY = 1e-6
LEVEL = 0.95
EXACT_WORK = 2e11
"""Operations over nodes that are spent on an exact Gram before it is estimated."""
MIN_COUNTED = 1000
"""Nodes that must count where gossip is not symmetric: a probe of few is one of few random numbers."""
BLOCK_BYTES = 2**30
"""Responses in memory at once; beyond it those at nodes drawn at random, anew for each probe."""


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
        drawn = [rng.integers(0, 2, num_nodes, dtype=np.int8) for rng in self.generators(0)]
        return np.asarray(2.0 * np.stack(drawn, axis=1) - 1.0, dtype=np.float64)


def checked_probes(probes: Probes | None = None) -> Probes:
    """Those given, or 8 of seed 0; raises InvalidInput."""
    chosen = Probes() if probes is None else probes
    check.instance(Probes, probes=chosen)
    return chosen


class Estimate(NamedTuple):
    """A value, and `error`, half the width of its 95 % interval."""

    value: float
    error: float

    @property
    def relative_error(self) -> float:
        return self.error / self.value

    def scaled(self, factor: float) -> Estimate:
        return Estimate(factor * self.value, factor * self.error)

    @classmethod
    def from_probes(cls, values: FloatArray, spread: float) -> Estimate:
        """The mean of independent values by Student's t, or by `spread`, half the width of an interval if wider."""
        t = float(scipy.special.stdtrit(values.size - 1, (1 + LEVEL) / 2))
        by_probes = float(t * values.std(ddof=1)) / values.size**0.5
        return cls(float(values.mean()), max(by_probes, spread))


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeSpread:
    """How far probes of symmetric gossip may lie apart, from the measure itself.

    z^T A z, A = F p(W) F^T, has variance 2 (|A|_F^2 - sum_u A_uu^2) <= 2 (q tr(F p(W)^2 F^T) - tr(A)^2 / m) for signs
    z, F with m rows and Q = F^T F at most q: more than few probes differ by where few eigenvectors cost most.

    Attributes: measure: mean of what the probes measure; rows: m; largest: q; probes: how many were averaged.
    """

    measure: SpectralMeasure
    rows: int
    largest: float
    probes: int

    @classmethod
    def from_measures(
        cls, measures: list[SpectralMeasure], factor: sp.csr_array | None, rows: int, num_steps: int
    ) -> ProbeSpread:
        """Args: factor: F, whichever way round; None is the identity."""
        pooled = functools.reduce(SpectralMeasure.plus, measures)
        pooled = SpectralMeasure(pooled.eigenvalues, pooled.weights / len(measures))
        largest = 1.0 if factor is None else float(sp.linalg.norm(factor, 1) * sp.linalg.norm(factor, np.inf))
        return cls(pooled.reduced(4 * num_steps, SPREAD_ACCURACY), rows, largest, len(measures))

    def error(self, costs: FloatArray) -> float:
        """Half the width of the normal interval of the mean of sum_i weights_i costs_i over probes."""
        first, second = (float(self.measure.weights @ costs**power) for power in (1, 2))
        variance = 2 * max(0.0, self.largest * second - first**2 / self.rows)
        return float(scipy.special.ndtri((1 + LEVEL) / 2)) * (variance / self.probes) ** 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class EstimatedGram:
    """An estimate of H over steps.

    Attributes:
        gram: the average over probes, shape (T, T), symmetric positive semidefinite.
        of_probes: H of each probe, shape (probes, T, T), independent, each with mean H.
        counted, spread: for symmetric gossip, what else says how far probes lie apart.
        source: what a probe is, in words.
    """

    gram: FloatArray
    of_probes: FloatArray
    counted: CountedModels | None = None
    spread: ProbeSpread | None = None
    source: str = "random probes"

    def objective(self, encoder: FloatArray) -> Estimate:
        """tr(H X^-1), X = C^T C, with its 95 % interval: Student's t over the probes or `spread`, whichever is wider.

        For an encoder chosen by this very estimate it also is too low by a share of the square of the relative error.
        """
        N = scipy.linalg.solve_triangular(check.square_array(encoder=encoder), np.eye(len(encoder)), lower=True)
        return self.cost(N @ N.T)

    @property
    def trace(self) -> Estimate:
        """tr(H), the objective of independent noise."""
        return self.cost(np.eye(len(self.gram)))

    def cost(self, inverse: FloatArray) -> Estimate:
        """tr(H X^-1) of the covariance X^-1 over steps, with the interval of `objective`."""
        values = np.array([float(np.sum(H * inverse)) for H in self.of_probes])
        if self.counted is None or self.spread is None:
            return Estimate.from_probes(values, 0.0)
        alone = (SpectralMeasure(np.array([lam]), np.ones(1)) for lam in self.spread.measure.eigenvalues)
        costs = np.array([float(np.sum(measure_gram(self.counted, each) * inverse)) for each in alone])
        return Estimate.from_probes(values, self.spread.error(costs))


def exact_or_estimated(counted: CountedModels, probes: Probes | None = None) -> FloatArray | EstimatedGram:
    """`over_steps` where it takes about a minute at most, else `estimated`."""
    in_time = all(in_reach(kind, EXACT_WORK) for _, kind in counted.kinds)
    return over_steps(counted) if in_time else estimated(counted, probes)


def estimated(counted: CountedModels, probes: Probes | None = None) -> EstimatedGram:
    """An estimate of `over_steps` for graphs of any size.

    The relative error falls as 1 / sqrt(probes x nodes): about 1e-3 with 8 probes on 10^5 nodes.

    Args: probes: default 8 of seed 0.
    Raises: UnsupportedMechanism: gossip that is not symmetric where fewer than 1000 nodes count, or their average.
    Cost: for constant symmetric W about sqrt(30 T) products of W with (n, probes), and n x probes memory; for other
        constant W T products, and up to 1 GiB more; for gossip that varies T^2 / 2 for each probe, and n T memory.
    Source: M. F. Hutchinson (1990) for the probes, G. H. Golub and G. Meurant (1994) for the quadrature.
    """
    if len(counted.kinds) > 1:
        raise UnsupportedMechanism(
            "the error Gram of a graph this large is estimated for released models or models on the way, not both at "
            "once; leave out one of them."
        )
    probes, gossip, factor = checked_probes(probes), counted.dynamics.gossip, counted.node_factor
    if gossip.is_constant and gossip.at(0).is_symmetric:
        return _by_measures(counted, probes)
    if counted.released is None and factor is not None and factor.shape[0] < MIN_COUNTED:
        few = "their average" if counted.weights.is_average else factor.shape[0]
        raise UnsupportedMechanism(
            f"the error Gram of gossip that is not symmetric is estimated where {MIN_COUNTED} nodes or more count, "
            f"got {few}; take metropolis-hastings gossip."
        )
    of_probes = counted.over_directions(lambda each: np.stack(list(_by_responses(each, probes))))
    return EstimatedGram(of_probes.mean(axis=0), of_probes)


# ---- symmetric gossip: measures of probes ----------------------------------------------------------------------------


def _by_measures(counted: CountedModels, probes: Probes) -> EstimatedGram:
    """The part of the eigenvector 1, which is known, and Lanczos on the rest."""
    n, factor = counted.dynamics.num_nodes, counted.node_factor
    signs = probes.signs(n)
    z = signs if factor is None else np.asarray(factor.T @ signs[: factor.shape[0]])
    measures = _column_measures(counted, z)
    share = n if factor is None else (np.asarray(factor.sum(axis=1)) ** 2).sum()  # 1^T Q 1
    known = SpectralMeasure(np.ones(1), np.array([share / n]))
    of_probes = np.stack([measure_gram(counted, measure.plus(known)) for measure in measures])
    spread = ProbeSpread.from_measures(measures, factor, n if factor is None else factor.shape[0], counted.num_steps)
    return EstimatedGram(of_probes.mean(axis=0), of_probes, counted, spread)


def _column_measures(counted: CountedModels, z: FloatArray) -> list[SpectralMeasure]:
    """Of each column of z, which loses its part in the eigenvector 1: z^T p(W) z for one step's averaging W."""
    W, rounds = counted.dynamics.gossip.at(0).weights, counted.dynamics.gossip_rounds
    z -= z.mean(axis=0)
    rules = quadrature(lambda x: np.asarray(W @ x), z, nodes_needed(2 * counted.num_steps * rounds, ACCURACY))
    return [SpectralMeasure(*of_probe).after_rounds(counted.dynamics) for of_probe in rules]


def fresh_noise(counted: CountedModels, factor: sp.csr_array, probes: Probes | None = None) -> Estimate:
    """tr(F^T H F), H = `over_nodes`, with its 95 % interval, without an array over nodes; of error 0 in closed form.

    Args: factor: F of the noise of a step, csr (n, columns); probes: default 8 of seed 0.
    Raises: InvalidInput: another number of rows. UnsupportedMechanism: gossip that varies or is not symmetric, or
        models of which some count more.
    Cost: about sqrt(30 T) products of W with (n, probes), and T for each of so many eigenvalues.
    """
    factor = matrices.sparse_matrix(factor=factor)
    gossip, T, n = counted.dynamics.gossip, counted.num_steps, counted.dynamics.num_nodes
    if factor.shape[0] != n:
        raise InvalidInput(f"factor must have a row for each of {n} nodes, got shape {factor.shape}.")
    plain = counted.weights.uniform_target and counted.released is None
    if not (plain and gossip.is_constant and gossip.at(0).is_symmetric):
        raise UnsupportedMechanism(
            f"what fresh noise costs the models of {n:,} nodes is told of constant symmetric gossip where all models "
            "count alike; take metropolis-hastings gossip, or a smaller graph."
        )
    size = same_size(factor)
    if size is not None and (closed := gossip.at(0).closed_spectrum) is not None:
        measure = SpectralMeasure.from_spectrum(closed, size).after_rounds(counted.dynamics)
        return Estimate(_fresh_cost(counted, measure.reduced(2 * T)), 0.0)
    probes = checked_probes(probes)
    measures = _column_measures(counted, np.asarray(factor @ probes.signs(factor.shape[1])))
    share = float((np.asarray(factor.sum(axis=0)) ** 2).sum()) / n
    known = _fresh_cost(counted, SpectralMeasure(np.ones(1), np.array([share])))
    values = known + np.array([_fresh_cost(counted, measure) for measure in measures])
    # of z^T A z, A = F^T f(W) F, as of F p(W) F^T: |A|_F^2 <= |F|^2 tr(F^T f(W)^2 F)
    spread = ProbeSpread.from_measures(measures, factor, factor.shape[1], T)
    return Estimate.from_probes(values, spread.error(_fresh_costs(counted, spread.measure)))


def same_size(factor: sp.csr_array) -> float | None:
    """c where F F^T = c I, one column for each node; else None."""
    n, columns = factor.shape
    diagonal = factor.diagonal()
    if n != columns or factor.nnz != n or not (diagonal == diagonal[0]).all():
        return None
    return float(diagonal[0]) ** 2


def _fresh_cost(counted: CountedModels, measure: SpectralMeasure) -> float:
    return float(measure.weights @ _fresh_costs(counted, measure))


def _fresh_costs(counted: CountedModels, measure: SpectralMeasure) -> FloatArray:
    """f(lam): what unit noise in a mode, fresh in each step, costs."""
    averaging, alike = ByModes(measure.eigenvalues), np.ones_like(measure.eigenvalues)
    return counted.over_directions(lambda each: each.fresh_costs(averaging, alike))


# ---- other gossip: responses to probes -------------------------------------------------------------------------------


def _by_responses(counted: CountedModels, probes: Probes) -> Iterator[FloatArray]:
    """Of each probe, any gossip: the Gram of the responses to it, or of its effects on what is released.

    All probes at once where responses depend on the age of what they respond to alone.
    """
    signs = probes.signs(counted.dynamics.num_nodes)
    rows = len(signs) if counted.node_factor is None else counted.node_factor.shape[0]
    if counted.released is not None:
        form = signs[:rows] if counted.node_factor is None else np.asarray(counted.node_factor.T @ signs[:rows])
        steps, rows = counted.effects(ByNodes(counted.dynamics), form), len(signs)
    elif counted.shift_invariant:
        steps = enumerate(y[:, 0] for y in _responses(counted, signs, by_age=True))
    else:
        yield from (finite_gram(functools.partial(_summed, counted, z)) for z in signs.T)
        return
    size = min(rows, max(MIN_COUNTED, BLOCK_BYTES // (8 * counted.num_steps * probes.count)))
    each = np.empty((probes.count, counted.num_steps, size))
    chosen = [rng.choice(rows, size, replace=False) if size < rows else slice(None) for rng in probes.generators(1)]
    for r, y in steps:
        for j, at in enumerate(chosen):
            each[j, r] = y[at, j]
    finished = (lambda gram: gram) if counted.released is not None else counted.over_ages
    for of_probe in each:
        yield finite_gram(functools.partial(finished, of_probe @ of_probe.T * (rows / size)))


def _summed(counted: CountedModels, z: FloatArray) -> FloatArray:
    """sum_r w_r y_r^T y_r, y_r the counted responses of step r to the injections of z at every step so far."""
    H = np.zeros((counted.num_steps, counted.num_steps))
    for r, y in enumerate(_responses(counted, z[:, None], by_age=False)):
        H[: r + 1, : r + 1] += counted.step_weights[r] * (y[:, :, 0].T @ y[:, :, 0])
    return H


def _responses(counted: CountedModels, probes: FloatArray, *, by_age: bool) -> Iterator[FloatArray]:
    """The counted responses of each step, shape (counted nodes, injections, probes)."""
    rows, columns = (axis.ravel() for axis in np.indices(probes.shape))
    averaging = ByNodes(counted.dynamics)
    for y in counted.responses(averaging, (rows, columns), sizes=probes.ravel(), by_age=by_age):
        yield counted.times_node_factor(y)


SYMMETRIC = 1e-12
MAX_BYTES = 2**32
"""Of the forms in memory at once where E[W] is not symmetric, T n^2 numbers; beyond it runs are drawn."""


def averaged(counted: CountedModels, random: RandomGossip, probes: Probes | None = None) -> FloatArray | EstimatedGram:
    """E[H] of `over_steps` over the draws of `random`, which takes the place of the gossip of `dynamics`.

    Args: probes: of a Gram that is averaged over draws, how many; default 8, of seed 0.
    Returns: E[H], shape (T, T), exact up to rounding, where `random.moments` are known and models count step by step;
        else an `EstimatedGram` whose probes are draws.
    Raises: InvalidInput: another number of nodes, or node dropout with more than one round of gossip in a step.
    Cost: T (n^3 + the cost of E[W^T X W]) + n T^2 time and n^2 + n T memory for symmetric E[W]; T^2 n^3 time and T n^2
        memory for another one; that of `over_steps` for each draw.

    >>> from mfdl import Dynamics, gossip
    >>> from mfdl.objective import NoiseObjective
    >>> path = gossip.metropolis_hastings("path:n=2")
    >>> NoiseObjective(Dynamics(path), 2).averaged(gossip.randomized.links(path, 0.5))
    array([[2.75, 1.25],
           [1.25, 1.5 ]])
    """
    dynamics = counted.dynamics
    check.instance(RandomGossip, random=random)
    if random.num_nodes != dynamics.num_nodes:
        raise InvalidInput(f"random must have the {dynamics.num_nodes} nodes of dynamics, got {random.num_nodes}.")
    if random.node_dropout and dynamics.gossip_rounds > 1:
        raise InvalidInput(
            f"node dropout needs one gossip round in each step, got gossip_rounds={dynamics.gossip_rounds}; take 1."
        )
    if dynamics.polynomial != POWERS:
        raise UnsupportedMechanism(
            f"polynomial {dynamics.polynomial!r} is of one matrix, and gossip that is drawn anew has many; take powers."
        )
    if len(counted.kinds) > 1:
        raise UnsupportedMechanism(
            "gossip that is drawn anew is covered with released models or models on the way, not both at once; leave "
            "out one of them."
        )
    if random.moments is not None and counted.released is None:
        steps = _MeanSteps.from_moments(random.moments, dynamics.gossip_rounds, counted.num_steps)
        if steps is not None:
            with blas_threads(dynamics.num_nodes):
                return finite_gram(lambda: counted.over_directions(lambda each: _closed_form(each, steps)))
    return _average_over_draws(counted, random, checked_probes(probes))


@dataclasses.dataclass(frozen=True, eq=False)
class _MeanSteps:
    """One step's averaging on average, for traces tr(f(E[W])^T G), from the part of G that f(E[W]) needs.

    Of symmetric E[W] = U diag(lam) U^T that part is the diagonal of U^T G U, shape (n,); of another one, which
    `vectors` then is, G itself.
    """

    moments: Moments
    rounds: int
    lam: FloatArray | None
    vectors: FloatArray

    @classmethod
    def from_moments(cls, moments: Moments, rounds: int, num_steps: int) -> _MeanSteps | None:
        """None where E[W] is not symmetric and T n^2 numbers are more than MAX_BYTES."""
        M = moments.mean.toarray()
        if np.abs(M - M.T).max() <= SYMMETRIC:
            return cls(moments, rounds, *np.linalg.eigh((M + M.T) / 2))
        return cls(moments, rounds, None, M) if 8 * num_steps * M.size <= MAX_BYTES else None

    @property
    def presence(self) -> float:
        """How often a node is present."""
        return 1 - self.moments.rate

    def part(self, G: FloatArray) -> FloatArray:
        return G if self.lam is None else np.einsum("ij,ij->j", self.vectors, G @ self.vectors)

    def back(self, parts: FloatArray) -> FloatArray:
        """Of E[W]^T G, for the parts of several G."""
        if self.lam is not None:
            return np.asarray(parts * self.lam**self.rounds)
        for _ in range(self.rounds):
            parts = self.vectors.T @ parts
        return parts

    def entering(self, parts: FloatArray) -> FloatArray:
        """tr(E[W P]^T G)."""
        if self.lam is not None:
            return np.asarray(parts @ (self.lam**self.rounds - self.moments.rate))
        return self.trace(self.back(parts)) - self.moments.rate * self.trace(parts)

    def trace(self, parts: FloatArray) -> FloatArray:
        return np.asarray(parts.sum(axis=-1) if self.lam is not None else np.trace(parts, axis1=-2, axis2=-1))

    def around(self, X: FloatArray) -> FloatArray:
        for _ in range(self.rounds):
            X = self.moments.around(X)
        return X

    def around_online(self, X: FloatArray) -> FloatArray:
        return self.moments.around_online(X) if self.moments.rate else self.around(X)

    def back_dense(self, X: FloatArray) -> FloatArray:
        for _ in range(self.rounds):
            X = np.asarray(self.moments.mean.T @ X)
        return X

    def back_online(self, X: FloatArray) -> FloatArray:
        return self.moments.back_online(X) if self.moments.rate else self.back_dense(X)

    def there_from(self, X: FloatArray) -> FloatArray:
        """X E[W P]."""
        return np.asarray(self.back_dense(X.T).T - self.moments.rate * X)


def _closed_form(counted: CountedModels, steps: _MeanSteps) -> FloatArray:
    """H by one pass backwards; letters as in `dynamics.responses`, blocks A, B, D of the cost of (theta, v) among them.

    In (mu, v') an injection x of step t costs with an earlier one mu^T (rho E[W^T V W P] + E[W^T B P]) x +
    v'^T (rho B^T E[W P] + D P) x: forms that are carried back to the step of the earlier one by E[W].
    """
    dynamics, T, q = counted.dynamics, counted.num_steps, steps.presence
    rates, shrink, beta = counted.rates, dynamics.shrink_factors(T), dynamics.momentum
    n, F = dynamics.num_nodes, counted.target_factor
    Q = np.eye(n) if F is None else np.asarray((F.T @ F).toarray())
    H, A, none = np.zeros((T, T)), np.zeros((n, n)), np.zeros((n, n))
    B = D = none
    shape = (T, *steps.part(none).shape)
    of_model, of_buffer = np.zeros(shape), np.zeros(shape)  # by step t of the later injection
    for s in range(T - 1, -1, -1):
        later = slice(s + 1, T)
        H[s, later] = rates[s] * steps.entering(of_model[later]) + q * steps.trace(of_buffer[later])
        pulled = steps.back(of_model[later])
        of_model[later] = shrink[s] * pulled
        of_buffer[later] = beta * (rates[s] * pulled + of_buffer[later])
        counts = counted.step_weights[s] * Q
        before = none if counted.after_averaging else counts
        after = A + counts if counted.after_averaging else A
        P = steps.around(after) + before
        mu, buffer = rates[s] * (steps.around_online(after) + q * before), none
        if beta:
            mu = mu + steps.back_online(B)
            buffer = rates[s] * steps.there_from(B.T) + q * D
        H[s, s] = rates[s] * np.trace(mu) + np.trace(buffer)
        of_model[s] = shrink[s] * steps.part(mu)
        of_buffer[s] = beta * steps.part(rates[s] * mu + buffer)
        if beta:
            R = steps.back_dense(B)
            entering = rates[s] ** 2 * P + rates[s] * (R + R.T) + D
            B, D = shrink[s] * beta * (rates[s] * P + R), beta**2 * entering
        A = shrink[s] ** 2 * P
    upper = np.triu(H, 1)
    return np.asarray(upper + upper.T + np.diag(np.diagonal(H)))


def _average_over_draws(counted: CountedModels, random: RandomGossip, probes: Probes) -> EstimatedGram:
    """The exact Gram of each of several draws."""
    T, dynamics = counted.num_steps, counted.dynamics
    rounds = T * dynamics.gossip_rounds + (0 if counted.released is None else counted.released.rounds_of_gossip)
    grams = []
    for rng in probes.generators(2):
        drawn = random.draw(rounds, int(rng.integers(2**32)))
        present = None if drawn.present is None else drawn.present[:T]
        of_draw = dataclasses.replace(counted, dynamics=dataclasses.replace(dynamics, gossip=drawn.gossip))
        grams.append(over_steps(of_draw, present))
    of_probes = np.stack(grams)
    return EstimatedGram(of_probes.mean(axis=0), of_probes, source=f"draws of {random.name}")
