"""Banded encoders: any causal C with few diagonals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ..arithmetic import Array
from ..problem import ProblemError
from .base import Encoder
from .bins import from_rows, require_products
from .coefficients import combined, keep, own_numbers, require_scale, solve_banded


@dataclasses.dataclass(frozen=True, eq=False)
class Banded(Encoder):
    """C[t, t - j] = bands[t, j] for j < b.

    Attributes: bands: shape (T, b), b <= T; bands[t, 0] > 0 is the diagonal, bands[t, j] = 0 where j > t.
    Raises: ProblemError: bands that are not finite, beyond LARGEST_ENTRY, too wide, with a diagonal <= 0 or entries
        before step 0.
    Cost: products and solutions O(T b) for each column.

    >>> Banded([[1.0, 0.0], [2.0, 0.5], [3.0, 0.25]]).dense().tolist()
    [[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [0.0, 0.25, 3.0]]
    """

    bands: Array | Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        bands = own_numbers("bands", self.bands, 2)
        if bands.shape[1] > bands.shape[0]:
            raise ProblemError(f"bands must be at most one for each step, got shape {bands.shape}.")
        if not (bands[:, 0] > 0).all():
            step = int(np.argmax(bands[:, 0] <= 0))  # exact: booleans
            raise ProblemError(f"bands must have a positive diagonal bands[:, 0], got {bands[step, 0]:g} at {step}.")
        width = bands.shape[1]
        if np.triu(bands[:width], 1).any():
            raise ProblemError("bands must be 0 at [t, j] with j > t: there are no steps before step 0.")
        require_scale("bands", bands, bands[:, 0])
        object.__setattr__(self, "bands", bands)

    @property
    def rows(self) -> Array:
        """`bands` as an array."""
        return np.asarray(self.bands)

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.rows.shape[0]

    @property
    def bandwidth(self) -> int:
        return self.rows.shape[1]

    @property
    def memory(self) -> int:
        return self.bandwidth - 1

    @property
    def nonnegative(self) -> bool:
        return bool((self.rows >= 0).all())

    @cached_property
    def columns(self) -> Array:
        """C[s + j, s] at [s, j], shape (T, b), 0 below the last row."""
        return columns_from_rows(self.rows)

    @property
    def entry_rounding(self) -> float:
        return 0.0

    def diagonals(self) -> Array | None:
        return self.rows if self.shipped else None

    def bin_gram(self, bins: int) -> Array | None:
        if not self.shipped:
            return None
        require_products(self.size * self.bandwidth**2)
        return from_rows(self.rows, bins)

    def times(self, x: Array) -> Array:
        return _times(self.rows, x)

    def transposed_times(self, x: Array) -> Array:
        return _times(self.columns[::-1], x[::-1])[::-1]

    def solve(self, x: Array) -> Array:
        return solve_banded(self.columns, x)

    def transposed_solve(self, x: Array) -> Array:
        return solve_banded(self.columns, x, transposed=True)

    def absolute_times(self, x: Array) -> Array:
        return _times(np.abs(self.rows), x)

    @property
    def noise_variances(self) -> Array:
        return inverse_column_norms(self.rows[::-1])[::-1]  # row t of C^-1 is a column of the inverse of C^T reversed

    def envelope(self) -> Array:
        return np.asarray(np.abs(self.rows).max(axis=0))

    def weights_of(self, step: int) -> Array:
        return np.asarray(self.rows[step, : step + 1])

    def advance(self, step: int, state: Array, fresh: Array) -> Array:
        row = fresh
        if len(state):
            row = row - combined(step, state, self.rows[step, 1:])
        row = row / self.rows[step, 0]
        keep(step, state, row)
        return row

    def scaled(self, factor: float) -> Banded:
        return Banded(factor * self.rows)

    def leading(self, size: int) -> Banded:
        return Banded(self.rows[:size, :size])


def columns_from_rows(rows: Array) -> Array:
    """[s, j] = rows[s + j, j]: from rows back from the diagonal to columns down from it, and back."""
    columns = np.zeros(rows.shape)
    for j in range(rows.shape[1]):
        columns[: len(rows) - j, j] = rows[j:, j]
    return columns


def _times(rows: Array, x: Array) -> Array:
    spread = rows.reshape(*rows.shape, *[1] * (x.ndim - 1))
    total = spread[:, 0] * x
    for j in range(1, rows.shape[1]):
        total[j:] += spread[j:, j] * x[:-j]
    return np.asarray(total)


def inverse_column_norms(columns: Array) -> Array:
    """diag(C^-T C^-1), shape (T,), of C[s + j, s] = columns[s, j]: the squared norms of the columns of C^-1.

    Z = C^-T C^-1 satisfies Z C = C^-T, which is upper triangular: from the last column of Z to the first, the entries
    within the band of C follow from those behind (Takahashi's equations). Cost: O(T b^2), no array beyond (b, b).
    """
    T, b = columns.shape
    norms, behind = np.empty(T), np.zeros((b - 1, b - 1))  # Z[i, k] for s < i, k < s + b
    for s in range(T - 1, -1, -1):
        column = columns[s]
        down = -(behind @ column[1:]) / column[0]
        norms[s] = (1 / column[0] - down @ column[1:]) / column[0]
        if b > 1:
            moved = np.empty_like(behind)
            moved[0, 0] = norms[s]
            moved[0, 1:] = moved[1:, 0] = down[:-1]
            moved[1:, 1:] = behind[:-1, :-1]
            behind = moved
    return norms
