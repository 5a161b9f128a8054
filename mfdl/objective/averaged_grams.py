"""H over steps averaged over gossip that is drawn anew in each round: the expected cost of noise, before any draw.

In closed form where E[W] and X -> E[W^T X W] are known (`gossip.randomized`), from drawn runs with error bars
elsewhere. Rounds are independent of the past, so the mean effect of an injection of step s before step t is the
recursion with E[W], and what it then costs together with one of step t is a quadratic form carried back over
E[W^T . W]. Injections of nodes that are offline enter nothing, as `algorithms.with_dropout` runs.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mfdl_solvers.arithmetic import blas_threads

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..gossip import RandomGossip
from ..gossip.randomized import Moments
from .counted_models import CountedModels, finite_gram
from .estimated_grams import EstimatedGram, Probes, checked_probes
from .time_grams import over_steps

SYMMETRIC = 1e-12
MAX_BYTES = 2**32
"""Of the forms in memory at once where E[W] is not symmetric, T n^2 numbers; beyond it runs are drawn."""


def averaged(counted: CountedModels, random: RandomGossip, probes: Probes | None) -> FloatArray | EstimatedGram:
    """See `NoiseObjective.averaged`."""
    dynamics = counted.dynamics
    check.instance(RandomGossip, random=random)
    if random.num_nodes != dynamics.num_nodes:
        raise InvalidInput(f"random must have the {dynamics.num_nodes} nodes of dynamics, got {random.num_nodes}.")
    if random.node_dropout and dynamics.gossip_rounds > 1:
        raise InvalidInput(
            f"node dropout needs one gossip round in each step, got gossip_rounds={dynamics.gossip_rounds}; take 1."
        )
    if len(counted.kinds) > 1:
        raise UnsupportedMechanism(
            "gossip that is drawn anew is covered with released models or models on the way, not both at once; leave "
            "out one of them."
        )
    if random.moments is not None and counted.released is None:
        steps = _MeanSteps.of(random.moments, dynamics.gossip_rounds, counted.num_steps)
        if steps is not None:
            with blas_threads(dynamics.num_nodes):
                return finite_gram(lambda: counted.over_directions(lambda each: _closed_form(each, steps)))
    return _of_draws(counted, random, checked_probes(probes))


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
    def of(cls, moments: Moments, rounds: int, num_steps: int) -> _MeanSteps | None:
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


def _of_draws(counted: CountedModels, random: RandomGossip, probes: Probes) -> EstimatedGram:
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
