"""The best Toeplitz encoders: banded, buffered, and with a banded inverse, in O(T log T) for each step of the search.

What is minimised is sensitivity^2 tr(H C^-1 C^-T), whatever the scale of C, over the logarithms of what is free: so
coefficients keep their signs, and sensitivities stay exact. Coefficients of long encoders are free at `KNOTS` lags,
dense at both ends and even in log(lag) between, and follow the shape they began with between those.

All begin where a run without end is best: there |c(w)|^4 = sum_k m_k |a_k(w)|^2, a_k the response of mode k at
frequency w, and c the outer function of that modulus (by its cepstrum): for prefix sums their square root.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np
import scipy
import scipy.sparse as sp

from ..encoders import Buffered, Encoder, Inverse, Toeplitz
from ..encoders.toeplitz_encoder import convolved, inverse_series
from ..iterations import minimise
from ..pattern_sets import Spaced
from ..problem import Array
from .cost import ModeCost

KNOTS = 512  # up to as many coefficients each is free
LARGEST_CHANGE = 50.0  # of the logarithm of a coefficient
FLOOR = 1e-12  # of the largest coefficient: what a coefficient of 0 begins with


def stationary_series(cost: ModeCost, size: int) -> Array:
    """c_j, j < size, of the best encoder of a run without end; c_0 = 1."""
    length = scipy.fft.next_fast_len(8 * max(size, 64), real=True)
    beta, shrink = cost.momentum, float(np.mean(np.asarray(cost.shrink)))
    inside = 8 / length  # of the unit circle, where lam = 1 has its pole
    z = np.exp(-1j * np.linspace(0, np.pi, length // 2 + 1) - inside)
    power = np.zeros(z.size)
    for lam, m in zip(cost.eigenvalues, cost.weights, strict=True):
        power += m / np.abs((1 - shrink * lam * z) * (1 - beta * z)) ** 2
    cepstrum = scipy.fft.irfft(np.log(power) / 4, length)
    cepstrum[1 : length // 2] *= 2
    cepstrum[length // 2 + 1 :] = 0
    cepstrum[0] = 0
    outer = scipy.fft.irfft(np.exp(scipy.fft.rfft(cepstrum)), length)[:size]
    return np.asarray(outer * np.exp(inside * np.arange(size)))


def best_toeplitz(
    cost: ModeCost, patterns: Spaced, *, bandwidth: int | None = None, max_iterations: int = 500
) -> SearchedEncoder:
    """C of at most `bandwidth` diagonals, default as many as one record's uses are apart: sensitivity is exact then.

    With more of them coefficients are >= 0 where uses are periodic, and must not rise where they are at least b apart.
    """
    T = cost.size
    width = min(patterns.gap, T) if bandwidth is None else min(bandwidth, T)
    begin = _moved_from_zero(stationary_series(cost, width))
    if width > patterns.gap:
        begin = np.abs(begin)

    def padded_loss(c: Array) -> tuple[float, Array]:
        padded = np.zeros(T)
        padded[:width] = c
        return log_loss(cost, patterns, padded, width, free_encoder=True)

    c, iterations = _search(padded_loss, begin, patterns.gap, max_iterations)
    return SearchedEncoder(Toeplitz(c, T), iterations)


def best_inverse(cost: ModeCost, patterns: Spaced, *, bandwidth: int, max_iterations: int = 500) -> SearchedEncoder:
    """C^-1 Toeplitz with `bandwidth` diagonals and no positive entry besides the first: then C >= 0."""
    T = cost.size
    width = min(bandwidth, T)
    begin = inverse_series(stationary_series(cost, width), width)
    begin[1:] = -np.maximum(np.abs(begin[1:]), FLOOR)
    begin[1:] *= min(1.0, 0.999 / max(float(-begin[1:].sum()), 1e-300))  # so that C does not grow over the steps

    def padded_loss(n: Array) -> tuple[float, Array]:
        padded = np.zeros(T)
        padded[:width] = n
        return log_loss(cost, patterns, padded, width, free_encoder=False)

    n, iterations = _search(padded_loss, begin, patterns.gap, max_iterations)
    return SearchedEncoder(Inverse(Toeplitz(n, T)), iterations)


def best_buffered(cost: ModeCost, patterns: Spaced, *, buffers: int, max_iterations: int = 500) -> SearchedEncoder:
    """C with `buffers` exponentials of positive scales (BLT): coefficients fall, and memory does not grow with T."""
    T = cost.size
    reach = np.geomspace(1.0, max(2.0, float(min(T, 4 * patterns.gap))), buffers)
    decays = np.exp(-1 / reach)
    scales = np.full(buffers, 0.5 / buffers) * (1 - decays) ** 0.5
    ages = np.arange(T - 1)

    def parts(x: Array) -> tuple[Array, Array]:
        return np.exp(x[:buffers]), 1 / (1 + np.exp(-x[buffers:]))

    def value_and_gradient(x: Array) -> tuple[float, Array]:
        if np.abs(x).max() > LARGEST_CHANGE:
            return np.inf, x
        scales, decays = parts(x)
        c, gradient = np.zeros(T), np.empty(2 * buffers)
        c[0] = 1.0
        powers = [decay**ages for decay in decays]
        for scale, power in zip(scales, powers, strict=True):
            c[1:] += scale * power
        value, of_c = log_loss(cost, patterns, c, T, free_encoder=True)
        for i, (scale, decay, power) in enumerate(zip(scales, decays, powers, strict=True)):
            gradient[i] = scale * float(of_c[1:] @ power)
            gradient[buffers + i] = scale * (1 - decay) * float((of_c[1:] * ages) @ power)
        return value, gradient

    begin = np.concatenate([np.log(scales), np.log(decays / (1 - decays))])
    minimum = minimise(value_and_gradient, begin, stop=Settled(), max_iterations=max_iterations)
    scales, decays = parts(minimum.point)
    return SearchedEncoder(Buffered(scales, decays, T), minimum.iterations)


class Size(Protocol):
    """What C is divided by, squared: a function of the coefficients of a Toeplitz C, and its gradient."""

    def squared_size(self, series: Array) -> tuple[float, Array]: ...


def log_loss(cost: ModeCost, size: Size, free: Array, width: int, *, free_encoder: bool) -> tuple[float, Array]:
    """log(sensitivity^2 tr(H C^-1 C^-T)) and its gradient in the first coefficients that are free, of C or of C^-1."""
    with np.errstate(over="ignore", invalid="ignore"):
        inverse = inverse_series(np.trim_zeros(free, "b"), free.size)
        c, d = (free, inverse) if free_encoder else (inverse, free)
        squared, of_c = size.squared_size(c)
        error, of_d = cost.series_objective(d)
        if not (0 < squared < np.inf and 0 < error < np.inf):
            return np.inf, free[:width]
        of_c, of_d = of_c / squared, of_d / error
        of_free, other = (of_c, of_d) if free_encoder else (of_d, of_c)
        through = convolved(inverse, convolved(inverse, other[::-1]))[::-1]  # the inverse moves by -d * d * change
        return float(np.log(squared) + np.log(error)), of_free[:width] - through[:width]


def _search(
    loss: Callable[[Array], tuple[float, Array]], begin: Array, gap: int, max_iterations: int
) -> tuple[Array, int]:
    """The best coefficients begin * exp(knots (x - 1)) for any x over knots, the first coefficient kept.

    x begins at 1, for the first step of the search is a share of its size.
    """
    if begin.size == 1:
        return begin, 0
    knots = spread(begin.size - 1, gap)

    def series(x: Array) -> Array:
        return np.concatenate([begin[:1], begin[1:] * np.exp(knots @ (x - 1))])

    def value_and_gradient(x: Array) -> tuple[float, Array]:
        if np.abs(x).max() > LARGEST_CHANGE:
            return np.inf, x
        c = series(x)
        value, gradient = loss(c)
        return value, knots.T @ (gradient[1:] * c[1:])

    start = np.ones(knots.shape[1])
    minimum = minimise(value_and_gradient, start, stop=Settled(), max_iterations=max_iterations)
    return series(minimum.point), minimum.iterations


def spread(size: int, gap: int) -> sp.csr_array:
    """From values at knots to lags 1..size, linear between: shape (size, knots); the identity for few lags."""
    if size <= KNOTS:
        return sp.csr_array(sp.eye_array(size))
    ages = np.geomspace(1, size, KNOTS // 4).astype(np.intp)
    near = [ages, size + 1 - ages, gap + ages, gap - ages]
    knots = np.unique(np.concatenate(near))
    knots = knots[(knots >= 1) & (knots <= size)]
    lags = np.arange(1, size + 1)
    left = np.minimum(np.searchsorted(knots, lags, side="right") - 1, knots.size - 2)
    share = (lags - knots[left]) / (knots[left + 1] - knots[left])
    rows = np.arange(size)
    data = np.concatenate([1 - share, share])
    return sp.csr_array((data, (np.tile(rows, 2), np.concatenate([left, left + 1]))), shape=(size, knots.size))


def _moved_from_zero(series: Array) -> Array:
    least = FLOOR * float(np.abs(series).max())
    return np.where(np.abs(series) < least, least, series)


SETTLED, WITHIN = 1e-8, 10  # a search ends once the logarithm of the objective fell by less in so many iterations


@dataclasses.dataclass(frozen=True, eq=False)
class SearchedEncoder:
    """An encoder of its form, and the iterations that it took."""

    encoder: Encoder
    iterations: int


class Settled:
    """Ends a search whose value hardly falls."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def __call__(self, iteration: int, x: Array, value: float, gradient: Array) -> bool:
        self.values.append(value)
        return len(self.values) > WITHIN and self.values[-1 - WITHIN] - value < SETTLED
