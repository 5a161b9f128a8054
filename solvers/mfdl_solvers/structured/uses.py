"""Who takes part when, in two numbers: k uses that are b steps apart, or at least that."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..problem import ProblemError
from ..scale import Array


@dataclasses.dataclass(frozen=True)
class Uses:
    """k uses of one record.

    Attributes: count: k >= 1; gap: b >= 1; steps: T; at_least: the gap may be larger ((k, b)-min-separation), else
        T = k b and uses are cyclic. Single participation is one use: `Uses(1, T, T)`.
    Raises: ProblemError: k or b below 1, or T other than k b where uses are cyclic.
    """

    count: int
    gap: int
    steps: int
    at_least: bool = False

    def __post_init__(self) -> None:
        if min(self.count, self.gap, self.steps) < 1 or not (self.at_least or self.count * self.gap == self.steps):
            raise ProblemError(
                f"uses must be k >= 1 of gap b >= 1, k b = T where they are cyclic, got {self.count}, {self.gap} and "
                f"T = {self.steps}."
            )

    def of_series(self, series: Array) -> tuple[float, Array]:
        """||C 1_first||^2 and its gradient for Toeplitz C of coefficients c, shape (T,), at the first k steps b apart.

        The squared sensitivity itself where C has at most b diagonals, where uses are cyclic and no coefficient is
        below 0, and where none is and they do not rise.
        """
        T, b = series.size, self.gap
        k = min(self.count, -(-T // b))
        moved = _window(series, b, k)
        return float(moved @ moved), 2 * _window(moved[::-1], b, k)[::-1]


def _window(series: Array, b: int, k: int) -> Array:
    """sum over m < k of series[t - m b]."""
    T = series.size
    padded = np.zeros(-(-T // b) * b)
    padded[:T] = series
    sums = np.cumsum(padded.reshape(-1, b), axis=0)
    sums[k:] -= sums[:-k].copy()
    return sums.ravel()[:T]
