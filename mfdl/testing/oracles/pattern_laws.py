"""Laws of secret patterns, written out from the definition of each scheme: every set of steps with its probability.

In: a scheme of a few steps. Out: for each public group of records one law, a list of (probability, steps).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from ...participation.sampling import (
    BallsInBins,
    CyclicPoisson,
    MinSeparationSampling,
    PoissonSampling,
    RandomAllocation,
    Sampled,
)
from .curve_oracles import Pattern, bins_of_steps

Law = list[Pattern]


@functools.singledispatch
def pattern_laws(scheme: Sampled) -> list[Law]:
    """The laws of the records of all public groups. Raises: NotImplementedError: an unknown scheme."""
    raise NotImplementedError(scheme)


@pattern_laws.register
def _(scheme: BallsInBins) -> list[Law]:
    return [bins_of_steps(scheme.num_steps, scheme.bins)]


@pattern_laws.register
def _(scheme: PoissonSampling) -> list[Law]:
    return [_each_by_a_coin(range(scheme.steps), scheme.rate)]


@pattern_laws.register
def _(scheme: CyclicPoisson) -> list[Law]:
    groups = (range(r, scheme.num_steps, scheme.period) for r in range(scheme.period))
    return [_each_by_a_coin(steps, scheme.rate) for steps in groups]


@pattern_laws.register
def _(scheme: RandomAllocation) -> list[Law]:
    k, b = scheme.epochs, scheme.period
    if scheme.per_epoch:
        drawn = list(itertools.product(*(range(j * b, (j + 1) * b) for j in range(k))))
    else:
        drawn = list(itertools.combinations(range(k * b), k))
    return [[(1 / len(drawn), steps) for steps in drawn]]


@pattern_laws.register
def _(scheme: MinSeparationSampling) -> list[Law]:
    T, b, p = scheme.steps, scheme.separation, scheme.rate
    share = p / (1 + (b - 1) * p)
    law: dict[tuple[int, ...], float] = {}
    for wait, coins in itertools.product(range(b), itertools.product((False, True), repeat=T)):
        free, steps, probability = wait, [], share if wait else 1 - (b - 1) * share
        for t, heads in enumerate(coins):
            probability *= p if heads else 1 - p
            if heads and t >= free:
                steps.append(t)
                free = t + b
        law[tuple(steps)] = law.get(tuple(steps), 0.0) + probability
    return [[(probability, steps) for steps, probability in law.items()]]


def _each_by_a_coin(steps: Sequence[int], rate: float) -> Law:
    chosen = itertools.chain.from_iterable(itertools.combinations(steps, k) for k in range(len(steps) + 1))
    return [(math.prod(rate if s in set(joined) else 1 - rate for s in steps), joined) for joined in chosen]
