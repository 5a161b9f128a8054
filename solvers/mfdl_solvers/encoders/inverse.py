"""Encoders whose noise C^-1 Z is a short sum of fresh rows: C^-1 is banded (BandInvMF), Toeplitz besides (BISR)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..arithmetic import UNIT, Array
from ..problem import ProblemError
from .arrays import inverse_defect
from .base import Encoder
from .bins import from_coefficients, require_products
from .coefficients import Coefficients, combined, inverse_coefficients, keep, solve_banded
from .structured_encoders import Banded, Toeplitz, convolved


@dataclasses.dataclass(frozen=True, eq=False)
class Inverse(Encoder):
    """C = N^-1 for a `Toeplitz` or `Banded` noising matrix N: noise of step t is sum_j N[t, t - j] z_(t - j).

    Its stepper keeps b - 1 fresh rows; where these are made again from their counters it keeps nothing (lambda-CGD: N
    has 1 and -lambda). Source: arXiv:2505.12128 (BISR, BandInvMF).

    >>> Inverse(Toeplitz([1.0, -0.5], size=3)).dense().tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]
    """

    noising: Toeplitz | Banded
    keeps_fresh_rows = True

    def __post_init__(self) -> None:
        if not isinstance(self.noising, Toeplitz | Banded):
            raise ProblemError(f"noising must be a Toeplitz or Banded encoder, got {type(self.noising).__name__}.")

    @property
    def shipped(self) -> bool:
        return super().shipped and self.noising.shipped

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.noising.size

    def noise_series(self) -> Array | None:
        given = self.noising.series
        if given is None or not self.shipped:
            return None
        return np.concatenate([given, np.zeros(self.size - given.size)])

    @property
    def bandwidth(self) -> int:
        return self.size if self.noising.bandwidth > 1 else 1

    @property
    def memory(self) -> int:
        return self.noising.bandwidth - 1

    @property
    def series(self) -> Array | None:
        return self.noising.inverse_series if isinstance(self.noising, Toeplitz) else None

    @cached_property
    def nonnegative(self) -> bool:
        """N has no positive entry besides its diagonal (an M-matrix), or C is Toeplitz with coefficients >= 0."""
        if isinstance(self.noising, Banded):
            return bool((self.noising.rows[:, 1:] <= 0).all())
        return bool((self.noising.series[1:] <= 0).all() or (self.noising.inverse_series >= 0).all())

    def certified_series(self) -> Coefficients | None:
        if not self.shipped or isinstance(self.noising, Banded):
            return None
        return inverse_coefficients(self.noising.series, self.size)

    def noise_diagonals(self) -> Array | None:
        return self.noising.rows if self.shipped and isinstance(self.noising, Banded) else None

    def class_sums(self, period: int, classes: NDArray[np.intp]) -> Iterator[Array] | None:
        rows = self.noise_diagonals()
        return None if rows is None else _class_sums(rows, period, classes)

    def bin_gram(self, bins: int) -> Array | None:
        """Of the rows of N's comparison matrix, of terms >= 0, where N is banded."""
        if not self.shipped:
            return None
        if (rows := self.noise_diagonals()) is None:
            return from_coefficients(self.certified_series(), self.size, bins)
        T, width = rows.shape
        require_products(T * bins * (width + bins))
        M = np.zeros((bins, bins))
        with np.errstate(over="ignore", invalid="ignore"):
            for row in _class_sums(rows, bins, np.arange(bins)):
                M += np.outer(row, row)
        return np.asarray(M * (1 + 16 * (width + 4) * T * UNIT))

    def times(self, x: Array) -> Array:
        return self.noising.solve(x)

    def transposed_times(self, x: Array) -> Array:
        return self.noising.transposed_solve(x)

    def solve(self, x: Array) -> Array:
        return self.noising.times(x)

    def transposed_solve(self, x: Array) -> Array:
        return self.noising.transposed_times(x)

    def absolute_times(self, x: Array) -> Array:
        """|N^-1| <= M^-1 entry by entry, M with the diagonal of N and -|N| besides; |c| itself where C is Toeplitz."""
        if self.nonnegative:
            return self.times(x)
        if self.series is not None:
            return convolved(np.abs(self.series), x)
        assert isinstance(self.noising, Banded)
        return _comparison(self.noising).solve(x)

    @property
    def noise_variances(self) -> Array:
        if isinstance(self.noising, Banded):
            return np.asarray((self.noising.rows**2).sum(axis=1))
        squares = np.zeros(self.size)
        squares[: self.noising.bandwidth] = self.noising.series**2
        return np.cumsum(squares)

    def envelope(self) -> Array:
        if self.series is not None:
            return np.abs(self.series)
        assert isinstance(self.noising, Banded)
        rows = self.noising.rows
        shares = (np.abs(rows) / rows[:, :1]).max(axis=0)
        shares[1:] *= -1
        # row by row |C[t, s]| <= sum_j |shares_j| |C[t - j, s]|, begun with 1 / N[s, s]
        with np.errstate(over="ignore", invalid="ignore"):
            bound = solve_banded(np.broadcast_to(shares, rows.shape), np.eye(self.size, 1)[:, 0]) / rows[:, 0].min()
        return np.where(np.isfinite(bound), bound, np.inf)

    def weights_of(self, step: int) -> Array:
        return self.noising.weights_of(step)

    def advance(self, step: int, state: Array, fresh: Array) -> Array:
        weights = self.noising.weights_of(step)
        row = weights[0] * fresh
        if len(state):
            row = row + combined(step, state, weights[1:])
        keep(step, state, fresh)
        return row

    def written_defect(self, written: Array) -> float:
        """C as it is written out may be far from N^-1, beside its own entries too."""
        return inverse_defect(written, self.noising.dense())

    def scaled(self, factor: float) -> Inverse:
        return Inverse(self.noising.scaled(1 / factor))

    def leading(self, size: int) -> Inverse:
        return Inverse(self.noising.leading(size))


def _class_sums(rows: Array, period: int, classes: NDArray[np.intp]) -> Iterator[Array]:
    """The sums of each row of M over the steps of some classes t mod period, M the inverse of N's comparison matrix.

    x_t = (e_t + sum_j |N[t, t - j]| x_(t - j)) / N[t, t], of terms >= 0.
    """
    T, w = rows.shape
    recent, sizes = np.zeros((max(w - 1, 1), classes.size)), np.abs(rows)
    for t in range(T):
        sums = (classes == t % period).astype(np.float64)
        for j in range(1, min(w, t + 1)):
            sums += sizes[t, j] * recent[(t - j) % len(recent)]
        sums /= sizes[t, 0]
        recent[t % len(recent)] = sums
        yield sums


def _comparison(noising: Banded) -> Banded:
    rows = -np.abs(noising.rows)
    rows[:, 0] *= -1
    return Banded(rows)
