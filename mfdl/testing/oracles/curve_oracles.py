"""Oracles of privacy curves: the Gaussian in mpmath, and what balls-in-bins loses by three ways that share no code.

Gaussian: at a precision that leaves no doubt about rounding.

Balls-in-bins without correlation, that is random allocation of one Gaussian shift to one of b places, by merged atoms.
Hockey sticks are never above the true ones. Every divergence is E f(W_1 + .. + W_b) / b with f convex
(`privacy.curves.random_allocation`). Where that module spreads W on a linear grid and convolves by Fourier transforms,
this merges atoms into their mean in cells of an asinh grid, which lowers E f, and sums atom by atom, with positive
terms only: no cancellation, at any delta.

Balls-in-bins with correlated noise: hockey sticks by integration over the plane of the means (exact up to the grid), by
samples with a standard error, and by attackers that choose gradients (never above the supremum). Directions: "kept"
(with the record against without), "lost" (the other way) or "replaced".

Laws of secret patterns are written out from the definition of each scheme: every set of steps with its probability.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
from scipy.special import ndtr

from ... import check
from ...check import FloatArray
from ...participation.sampling import (
    BallsInBins,
    CyclicPoisson,
    MinSeparationSampling,
    PoissonSampling,
    RandomAllocation,
    Sampled,
)

DIGITS = 80  # the two terms of delta share at most about 20 digits for mu >= 1e-6 and epsilon / mu <= 1e5


def normal_cdf(x: Any) -> Any:
    """Phi(x), relative accuracy in both tails."""
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def exact_delta(mu: float, epsilon: float, *, digits: int = DIGITS) -> Any:
    """delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) for 0 < mu < inf."""
    with mpmath.workdps(digits):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return normal_cdf(-e / m + m / 2) - mpmath.exp(e) * normal_cdf(-e / m - m / 2)


def exact_log_delta(mu: float, epsilon: float, *, digits: int = DIGITS) -> Any:
    """Natural logarithm of `exact_delta`."""
    with mpmath.workdps(digits):
        return mpmath.log(exact_delta(mu, epsilon, digits=digits))


def exact_epsilon(mu: float, delta: float, *, digits: int = DIGITS) -> Any:
    """The root of delta(epsilon) = delta by bisection to 1e-25 relative; 0 where delta(0) <= delta."""
    check.open_unit(delta=delta)  # 0 would be bisected for ever
    if exact_delta(mu, 0.0, digits=digits) <= delta:
        return mpmath.mpf(0)
    return _last_before(lambda epsilon: exact_delta(mu, epsilon, digits=digits) <= delta, 0, digits)[1]


def exact_mu(epsilon: float, delta: float, *, digits: int = DIGITS) -> Any:
    """The largest mu with delta(epsilon) <= delta, by bisection to 1e-25 relative."""
    check.open_unit(delta=delta)
    with mpmath.workdps(digits):
        low = mpmath.mpf(1)
        while exact_delta(low, epsilon, digits=digits) > delta:
            low /= 2
    return _last_before(lambda mu: exact_delta(mu, epsilon, digits=digits) > delta, low, digits)[0]


def _last_before(beyond: Callable[[Any], bool], low: Any, digits: int) -> tuple[Any, Any]:
    """Numbers 1e-25 apart, relative, between which a condition begins to hold; `low` is before it."""
    with mpmath.workdps(digits):
        low, high = mpmath.mpf(low), mpmath.mpf(1)
        while not beyond(high):
            high *= 2
        while high - low > high * mpmath.mpf(10) ** -25:
            middle = (low + high) / 2
            low, high = (low, middle) if beyond(middle) else (middle, high)
        return low, high


def exact_renyi(mu: float, order: float, *, digits: int = 20) -> Any:
    """D_order(N(mu, 1) || N(0, 1)) for order > 1 by integration of p^order q^(1 - order)."""
    with mpmath.workdps(digits + 10):
        m, a = mpmath.mpf(mu), mpmath.mpf(order)
        centre = a * m  # of the integrand, a normal curve of width 1
        height = -a * (centre - m) ** 2 / 2 + (a - 1) * centre**2 / 2
        integral = mpmath.quad(
            lambda x: mpmath.exp(-a * (x - m) ** 2 / 2 + (a - 1) * x**2 / 2 - height),
            [centre - 15, centre, centre + 15],
        )
        return (height + mpmath.log(integral / mpmath.sqrt(2 * mpmath.pi))) / (a - 1)


def composed_delta(first: float, second: float, epsilon: float, *, digits: int = 20) -> Any:
    """delta(epsilon) of two independent releases, first- and second-GDP: an integral over the loss of one.

    Its loss is N(mu^2 / 2, mu^2), and what that leaves of epsilon is for the other. The smaller mu is integrated
    over: the other's delta is smooth on its scale. The error is absolute, about 10^-digits.
    """
    with mpmath.workdps(digits + 10):
        m, other = sorted((mpmath.mpf(first), mpmath.mpf(second)))

        def at(z: Any) -> Any:
            return mpmath.npdf(z) * exact_delta(other, epsilon - m * z - m * m / 2, digits=mpmath.mp.dps)

        return mpmath.quad(at, [-15, -5, 0, 5, 15 + m])


def mills_ratio(x: Any, *, digits: int = DIGITS) -> Any:
    """(1 - Phi(x)) / phi(x)."""
    with mpmath.workdps(digits):
        y = mpmath.mpf(x)
        return normal_cdf(-y) * mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(y * y / 2)


REACH = 9.5
"""How far beyond both means the line is cut into cells, in standard deviations; what is beyond is one cell each."""
Atoms = tuple[FloatArray, FloatArray]
"""Values and their masses."""


def _merged(values: FloatArray, mass: FloatArray, scale: float, step: float) -> tuple[FloatArray, FloatArray]:
    """Atoms of one cell of the grid scale sinh(k step) in place of all that lie in it."""
    cells = np.floor(np.arcsinh(values / scale) / step).astype(np.int64)
    cells -= cells.min()
    total, moment = (np.bincount(cells, weights).astype(np.float64) for weights in (mass, mass * values))
    occupied = total > 1e-290
    return moment[occupied] / total[occupied], total[occupied]


def _sum(a: Atoms, b: Atoms, scale: float, step: float) -> Atoms:
    values, mass = np.add.outer(a[0], b[0]).ravel(), np.multiply.outer(a[1], b[1]).ravel()
    return _merged(values, mass, scale, step)


@functools.lru_cache(maxsize=512)
def _atoms(shift: float, bins: int, weight: float, points: int) -> Atoms:
    """Of the sum of b copies of W = Y - weight Y', smaller in convex order."""
    x = np.linspace(-REACH - (shift if weight else 0.0), shift + REACH, points + 1)
    mass, up, down = (_between(x, mean) for mean in (0.0, shift, -shift))
    occupied = mass > 0
    values = ((up - weight * down if weight else up)[occupied]) / mass[occupied]
    scale = math.exp(-shift * shift / 2) * (math.sqrt(weight) if weight else math.exp(-shift * 5.0))
    span = np.arcsinh(values / scale)
    step = float(span[-1] - span[0]) / points
    total: Atoms | None = None
    power, count = (values, mass[occupied]), bins
    while True:
        if count & 1:
            total = power if total is None else _sum(total, power, scale, step)
        count >>= 1
        if not count:
            assert total is not None
            return total
        power = _sum(power, power, scale, step)


def _between(x: FloatArray, mean: float) -> FloatArray:
    z = np.concatenate([[-np.inf], x - mean, [np.inf]])
    left, right = z[:-1], z[1:]
    return np.asarray(np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left)))


def allocation_delta(shift: float, bins: int, epsilon: float, direction: str, points: int = 1000) -> float:
    """The hockey stick of a direction, "kept", "lost" or "replaced": never above the true one, close with many points.

    Cost: points^2 for each doubling of bins.
    """
    grown = math.exp(epsilon)
    values, mass = _atoms(shift, bins, grown if direction == "replaced" else 0.0, points)
    gain = {"kept": values - bins * grown, "lost": bins / grown - values, "replaced": values}[direction]
    return float(mass @ np.maximum(gain, 0.0)) / bins * (grown if direction == "lost" else 1.0)


def two_bin_delta(M: FloatArray, epsilon: float, way: str, points: int = 401) -> float:
    """The hockey stick of the pair of M, shape (2, 2), noise of std 1."""
    root: FloatArray = np.asarray(np.linalg.cholesky(np.asarray(M) + 1e-13 * np.eye(2)), dtype=np.float64)
    return means_delta(root, epsilon, way, points)


def means_delta(
    means: FloatArray, epsilon: float, way: str, points: int = 401, probabilities: FloatArray | None = None
) -> float:
    """The hockey stick of the pair of means m_r, shape (bins, 2), noise of std 1, on a grid of the plane.

    Args: probabilities: of the means, shape (bins,); default equal.
    """
    drawn = np.full(len(means), 1 / len(means)) if probabilities is None else probabilities
    grid = np.linspace(-9, 9, points)
    x, y = np.meshgrid(grid, grid, indexing="ij")
    normal = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
    shifts, half = [row[0] * x + row[1] * y for row in means], np.square(means).sum(axis=1) / 2
    S = sum(p * np.exp(s - h) for p, s, h in zip(drawn, shifts, half, strict=True))
    other = sum(p * np.exp(-s - h) for p, s, h in zip(drawn, shifts, half, strict=True))
    a, b = {"kept": (S, 1.0), "lost": (1.0, S), "replaced": (S, other)}[way]
    return float(normal @ np.clip(a - math.exp(epsilon) * b, 0, None) @ normal)


Pattern = tuple[float, Sequence[int]]
"""A set of steps with its probability."""


def bins_of_steps(steps: int, bins: int) -> list[Pattern]:
    return [(1 / bins, range(r, steps, bins)) for r in range(bins)]


def attacked(
    C: FloatArray,
    patterns: Sequence[Pattern],
    sigma: float,
    epsilons: Sequence[float],
    way: str,
    cells: int,
    row_steps: Sequence[int] | None = None,
) -> FloatArray:
    """Hockey sticks of the best policies that choose gradients in {-1, 0, 1} from what was seen: never above the sup.

    The attacker sees of each row in which of some cells its noise lies, and then the likelihood ratio of cells: no
    more than the transcript shows. By dynamic programming over all gradients and all cells: a step averages over its
    cells, then takes the best gradient. With a record replaced, gradients of both worlds are chosen.

    Args: C: shape (rows, T); patterns: the steps that a record joins, drawn secretly; row_steps: after whose gradient
        each row is seen; default one row a step.
    Cost: 3^T cells^rows numbers, of a replaced record 9^T, for each pattern.
    """
    T, twice = C.shape[1], way == "replaced"
    seen_after = np.arange(len(C)) if row_steps is None else np.asarray(row_steps)
    edges = np.concatenate([[-np.inf], np.linspace(-2.5, 2.5, cells - 1), [np.inf]])
    weights = np.diff(ndtr(edges))
    choices = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=1 + twice)))
    rows = [[("row", r) for r in np.flatnonzero(seen_after == t)] for t in range(T)]
    order = [axis for t in range(T) for axis in (("gradient", t), *rows[t])]
    place = {axis: number for number, axis in enumerate(order)}
    flat = (1,) * len(order)

    def along(array: FloatArray, kind: str, index: int) -> FloatArray:
        return array.reshape([len(array) if i == place[kind, index] else 1 for i in range(len(order))])

    def ratio(world: int) -> FloatArray:
        total = np.zeros(flat)
        for probability, steps in patterns:
            product = np.full(flat, probability)
            for r in range(len(C)):
                joined = [s for s in steps if C[r, s]]
                if not joined:
                    continue
                gradients = (C[r, s] * along(choices[:, world], "gradient", s) for s in joined)
                shift = sum(gradients, start=np.zeros(flat)) / sigma
                inside = ndtr(along(edges[1:], "row", r) - shift) - ndtr(along(edges[:-1], "row", r) - shift)
                product = product * inside / along(weights, "row", r)
            total = total + product
        return np.broadcast_to(total, [len(choices) if kind == "gradient" else cells for kind, _ in order])

    S = ratio(0)
    other = ratio(1) if twice else np.ones(1)
    deltas = []
    for epsilon in epsilons:
        a, b = (np.ones(1), S) if way == "lost" else (S, other)
        value = np.clip(a - math.exp(epsilon) * b, 0.0, None)
        for kind, _ in reversed(order):
            value = value @ weights if kind == "row" else value.max(axis=-1)
        deltas.append(float(value))
    return np.array(deltas)


def sampled_delta(
    first: FloatArray, second: FloatArray, probabilities: FloatArray, epsilon: float, samples: int, seed: int
) -> tuple[float, float]:
    """(mean, standard error) of the hockey stick of two mixtures of N(m_S, I), by samples of the first one.

    Args: first, second: their means, shape (patterns, dim); probabilities: of the patterns.
    """
    rng = np.random.default_rng(seed)
    y = first[rng.choice(len(first), samples, p=probabilities)] + rng.standard_normal((samples, first.shape[1]))

    def log_density(means: FloatArray) -> FloatArray:
        exponents = y @ means.T - np.square(means).sum(axis=1) / 2 + np.log(probabilities)
        return np.asarray(np.logaddexp.reduce(exponents, axis=1))

    lost = np.clip(-np.expm1(epsilon + log_density(second) - log_density(first)), 0.0, None)
    return float(lost.mean()), float(lost.std() / math.sqrt(samples))


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
