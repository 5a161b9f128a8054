"""How far one record moves C G: squared sensitivities of structured strategies, never too low.

With X = C^T C and gradients of norm at most 1 a record that takes part in the steps of a pattern moves C G by at most

    max sum_{s,t} X[s, t] <g_s, g_t> <= sum_{s,t} |X[s, t]| = || |C| 1_pattern ||^2 where no entry of C is below 0,

with equality on the left where X >= 0 on the pattern: then, and where no two steps of a pattern meet in C, what is
returned is exact, else an upper bound. Rounding: raised by SLACK T eps, above what sums of T products of one sign and
Fourier transforms of them lose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.fft

from ..problem import ProblemError
from ..scale import EPS, Array

if TYPE_CHECKING:
    from .base import Strategy

SLACK = 16
AT_ONCE = 2**24  # numbers in one block of classes
MOST_BY_LAGS = 2**32  # epochs times steps: beyond, only the bound by absolute values
LARGEST = 1e150  # its square is a float64 number


@dataclasses.dataclass(frozen=True)
class SquaredSensitivity:
    """The square of a sensitivity.

    Attributes: value: at least the square; exact: equal to it up to rounding, for gradients of two coordinates or more
        and with those of one.
    """

    value: float
    exact: bool


def of_pattern(strategy: Strategy, steps: Sequence[int]) -> SquaredSensitivity:
    """Of one set of distinct steps."""
    members = np.array(sorted(steps), dtype=np.intp)
    if members.size == 0 or members[0] < 0 or members[-1] >= strategy.size or (np.diff(members) == 0).any():
        raise ProblemError(f"steps must be distinct and in [0, {strategy.size}), at least one, got {list(steps)}.")
    if members.size == 1 or np.diff(members).min() >= strategy.bandwidth:
        return _raised(strategy, float(strategy.squared_column_norms[members].sum()), True)
    unit = np.zeros((strategy.size, members.size))
    unit[members, np.arange(members.size)] = 1.0
    C = strategy.times(unit)
    X = C.T @ C
    return _raised(strategy, float(np.abs(X).sum()), strategy.nonnegative or bool((X >= 0).all()))


def single(strategy: Strategy) -> SquaredSensitivity:
    """Of any one step."""
    return _raised(strategy, float(strategy.squared_column_norms.max()), True)


def cyclic(strategy: Strategy, epochs: int, period: int) -> SquaredSensitivity:
    """Of the classes {r, r + period, ...}, r < period. Cost: one product for each class, one in all for Toeplitz C."""
    T = strategy.size
    if min(epochs, period) < 1 or epochs * period != T:
        raise ProblemError(f"epochs * period must be the {T} steps of the strategy, got {epochs} * {period}.")
    if strategy.bandwidth <= period or epochs == 1:
        return _raised(strategy, float(strategy.squared_column_norms.reshape(epochs, period).sum(axis=0).max()), True)
    bound = _raised(strategy, _absolute(strategy, epochs, period), strategy.nonnegative)
    return bound if bound.exact else _better(bound, _by_lags(strategy, epochs, period))


def separated(strategy: Strategy, max_participations: int, separation: int) -> SquaredSensitivity:
    """Of any k steps that lie at least b apart: exact where C has at most b diagonals, or is Toeplitz with coefficients
    that are >= 0 and do not increase (the first k steps b apart are then the worst: X[s, t] falls with s and t - s).

    Elsewhere an upper bound by dynamic programming: from each step on, the best further steps as they are seen from
    that step alone. Source of the Toeplitz case: arXiv:2405.13763, Theorem 2.
    """
    T, k, b = strategy.size, max_participations, separation
    if min(k, b) < 1:
        raise ProblemError(f"max_participations and separation must be at least 1, got {k} and {b}.")
    k = min(k, -(-T // b))
    norms = strategy.squared_column_norms
    if strategy.bandwidth <= b or k == 1:
        return _raised(strategy, _best_separated(np.broadcast_to(norms, (k, T)), b), True)
    if strategy.series is not None and _falls(strategy.series):
        return _raised(strategy, _strided(strategy.series, T, k, b), True)
    if strategy.series is None and strategy.gram_diagonal(0) is not None:
        worth = _seen_by_lags(strategy, norms, k, b)
    else:
        worth = norms + 2 * _seen_at_most(strategy.envelope(), k, b)[:, None]
    return _raised(strategy, _best_separated(worth, b), False)


def _falls(series: Array) -> bool:
    return bool(series[-1] >= 0 and (np.diff(series) <= 0).all())


def _strided(series: Array, T: int, epochs: int, period: int) -> float:
    """||C e||^2 for Toeplitz C and the unit steps 0, b, ..., (k - 1) b. A later start only cuts the last rows off."""
    c = np.zeros(-(-T // period) * period)
    c[: series.size] = series
    sums = np.cumsum(c.reshape(-1, period), axis=0)
    late = sums.copy()
    late[epochs:] -= sums[:-epochs]
    return float((late.ravel()[:T] ** 2).sum())


def _absolute(strategy: Strategy, epochs: int, period: int) -> float:
    """The largest || |C| 1_class ||^2, or above it."""
    T = strategy.size
    if strategy.series is not None:
        return _strided(np.abs(strategy.series), T, epochs, period)
    largest, width = 0.0, max(1, AT_ONCE // T)
    for start in range(0, period, width):
        classes = np.arange(start, min(start + width, period))
        unit = np.zeros((T, classes.size))
        for place, label in enumerate(classes):
            unit[label::period, place] = 1.0
        largest = max(largest, float((strategy.absolute_times(unit) ** 2).sum(axis=0).max()))
    return largest


def _by_lags(strategy: Strategy, epochs: int, period: int) -> SquaredSensitivity:
    """The largest sum of |X[s, t]| over a class, lag by lag; infinite where lags are not cheap."""
    T = strategy.size
    norms = strategy.gram_diagonal(0)
    if norms is None or epochs * T > MOST_BY_LAGS:
        return SquaredSensitivity(np.inf, False)
    total, same_sign = norms.reshape(epochs, period).sum(axis=0), True
    for lag in range(period, min(strategy.bandwidth, T), period):
        entries = strategy.gram_diagonal(lag)
        assert entries is not None
        total += 2 * np.abs(entries).reshape(-1, period).sum(axis=0)
        same_sign = same_sign and bool((entries >= 0).all())
    return _raised(strategy, float(total.max()), same_sign)


def _best_separated(worth: Array, b: int) -> float:
    """The largest sum of worth[m, s] over k steps at least b apart, m further steps following step s."""
    k, T = worth.shape
    best = np.zeros(T + b)  # from each step on
    for m in range(k):
        ahead = np.zeros(T + b)
        ahead[:T] = worth[m] + best[b:]
        best = np.maximum.accumulate(ahead[::-1])[::-1]
    return float(best[0])


def _seen_at_most(envelope: Array, k: int, b: int) -> Array:
    """For m < k further steps: no |X[s, t]| of them with one step s, added up, is above entry m; shape (k,)."""
    if not np.isfinite(envelope).all() or envelope.max() > LARGEST:
        return np.concatenate([[0.0], np.full(k - 1, np.inf)])
    length = scipy.fft.next_fast_len(2 * envelope.size, real=True)
    power = np.abs(scipy.fft.rfft(envelope, length)) ** 2
    entries = scipy.fft.irfft(power, length)[: envelope.size]  # sum_i e_i e_(i + lag)
    entries = np.maximum(entries, 0.0) + SLACK * EPS * np.log2(length) * entries[0]
    seen, best = np.zeros(k), np.zeros(envelope.size + b)
    for m in range(1, k):
        ahead = np.zeros(envelope.size + b)
        ahead[: envelope.size] = entries + best[b:]
        best = np.maximum.accumulate(ahead[::-1])[::-1]
        seen[m] = best[b]
    return seen


def _seen_by_lags(strategy: Strategy, norms: Array, k: int, b: int) -> Array:
    """X[s, s] and twice the largest sum of |X[s, t]| over m < k further steps, for every s; shape (k, T)."""
    T, width = strategy.size, strategy.bandwidth
    entries = np.zeros((width - b, T))
    for row, lag in enumerate(range(b, width)):
        entries[row, : T - lag] = np.abs(strategy.gram_diagonal(lag))  # type: ignore[arg-type]
    worth, best = np.repeat(norms[None], k, axis=0), np.zeros((width, T))  # by the first lag that is still free, - b
    for m in range(1, k):
        ahead = np.zeros((width, T))
        ahead[: width - b] = entries + best[b:]
        best = np.maximum.accumulate(ahead[::-1], axis=0)[::-1]
        worth[m] += 2 * best[0]
    return worth


def _raised(strategy: Strategy, square: float, exact: bool) -> SquaredSensitivity:
    return SquaredSensitivity(square * (1 + SLACK * strategy.size * EPS), exact)


def _better(one: SquaredSensitivity, other: SquaredSensitivity) -> SquaredSensitivity:
    """The lower bound of two; exact where either is: then no other is below it."""
    if one.exact or other.exact:
        return one if one.exact else other
    return one if one.value <= other.value else other
