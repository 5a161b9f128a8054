"""Participation schemes of many patterns: what one dual point for all of them needs to know.

Free entries (s, t), which no pattern holds: 1 <= |s - t| < separation under min-separation, two steps of one epoch
under once per epoch. The heaviest pattern is a dynamic program (`chains`), or has the largest lam of each epoch.
"""

from __future__ import annotations

import abc
import math
from functools import cached_property

import numpy as np

from ..check import FloatArray
from ..floats import UNIT
from ..participation import MinSeparation, OncePerEpoch, Participation
from .chains import at_most
from .elliptope import BoolArray


class Family(abc.ABC):
    """A scheme with many patterns: its free entries, its heaviest pattern, and moves between patterns."""

    log_count: float

    @abc.abstractmethod
    def free(self) -> BoolArray:
        """Entries (s, t), s != t, that no pattern holds, shape (T, T)."""

    @abc.abstractmethod
    def heaviest(self, lam: FloatArray) -> tuple[float, tuple[int, ...]]:
        """The largest sum of lam >= 0 over a pattern, rounded up, and that pattern."""

    @abc.abstractmethod
    def log_sum(self, lam: FloatArray) -> tuple[float, FloatArray]:
        """log sum over patterns of exp(sum of lam), a smooth bound on the heaviest, and its gradient."""

    @abc.abstractmethod
    def neighbours(self, pattern: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Patterns that differ a little, admissible all of them."""


def family_of(participation: Participation) -> Family | None:
    if isinstance(participation, MinSeparation):
        return Separated(participation)
    if isinstance(participation, OncePerEpoch):
        return Epochs(participation)
    return None


class Separated(Family):
    def __init__(self, scheme: MinSeparation) -> None:
        self.T, self.k, self.b = scheme.steps, scheme.max_participations, scheme.separation
        self._scheme = scheme

    @cached_property
    def log_count(self) -> float:  # type: ignore[override]
        """Counted when asked: sums of numbers of as many digits as there are steps."""
        return math.log(self._scheme.num_patterns)

    def free(self) -> BoolArray:
        lag = np.abs(np.subtract.outer(np.arange(self.T), np.arange(self.T)))
        result: BoolArray = (lag > 0) & (lag < self.b)
        return result

    def _shifted(self, values: FloatArray, empty: float) -> FloatArray:
        """values[t - b], and `empty` where t < b."""
        result = np.full(self.T, empty)
        result[self.b :] = values[: max(self.T - self.b, 0)]
        return result

    def heaviest(self, lam: FloatArray) -> tuple[float, tuple[int, ...]]:
        most, steps = at_most(self.k, lam, (), self.b)
        return most, steps or (0,)

    def _tables(self, lam: FloatArray) -> FloatArray:
        """log sum of exp over the patterns of exactly m uses, all of them b or more before t, shape (k + 1, T)."""
        table = np.full((self.k + 1, self.T), -math.inf)
        table[0] = 0.0
        for m in range(1, self.k + 1):
            table[m] = self._shifted(np.logaddexp.accumulate(lam + table[m - 1]), -math.inf)
        return table

    def log_sum(self, lam: FloatArray) -> tuple[float, FloatArray]:
        before = self._tables(lam)[: self.k]
        after = np.logaddexp.accumulate(self._tables(lam[::-1])[: self.k], axis=0)[:, ::-1]  # at most m uses
        through = lam + np.logaddexp.reduce(before + after[::-1], axis=0)  # all patterns that use step t
        ends = lam + before
        total = float(np.logaddexp.reduce(ends, axis=None))
        return total, np.exp(through - total)

    def neighbours(self, pattern: tuple[int, ...]) -> list[tuple[int, ...]]:
        T, b, m = self.T, self.b, len(pattern)
        found = []
        for i in range(m):
            low = pattern[i - 1] + b if i else 0
            high = pattern[i + 1] - b if i + 1 < m else T - 1
            found += [(*pattern[:i], t, *pattern[i + 1 :]) for t in range(low, high + 1) if t != pattern[i]]
            if pattern[-1] < T - 1:
                found.append((*pattern[:i], *(t + 1 for t in pattern[i:])))
            if pattern[0] > 0:
                found.append((*(t - 1 for t in pattern[: i + 1]), *pattern[i + 1 :]))
        if m < self.k:
            fits = [t for t in range(T) if all(abs(t - s) >= b for s in pattern)]
            found += [tuple(sorted((*pattern, t))) for t in fits]
        return found


class Epochs(Family):
    def __init__(self, scheme: OncePerEpoch) -> None:
        self.k, self.b = scheme.epochs, scheme.period
        self.log_count = self.k * math.log(self.b)

    def free(self) -> BoolArray:
        return np.kron(np.eye(self.k), 1 - np.eye(self.b)) > 0

    def heaviest(self, lam: FloatArray) -> tuple[float, tuple[int, ...]]:
        of_epoch = lam.reshape(self.k, self.b)
        steps = tuple(int(t) for t in of_epoch.argmax(axis=1) + self.b * np.arange(self.k))
        return float(of_epoch.max(axis=1).sum()) * (1 + 2 * (self.k + 2) * UNIT), steps

    def log_sum(self, lam: FloatArray) -> tuple[float, FloatArray]:
        of_epoch = lam.reshape(self.k, self.b)
        sums = np.logaddexp.reduce(of_epoch, axis=1)
        return float(sums.sum()), np.exp(of_epoch - sums[:, None]).ravel()

    def neighbours(self, pattern: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [
            (*pattern[:i], t, *pattern[i + 1 :])
            for i in range(self.k)
            for t in range(i * self.b, (i + 1) * self.b)
            if t != pattern[i]
        ]
