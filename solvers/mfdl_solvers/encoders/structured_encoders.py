"""Toeplitz encoders, C[t, s] = c_(t - s), and banded ones: any causal C with few diagonals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import scipy

from ..arithmetic import UNIT, Array
from ..problem import ProblemError
from .base import Encoder
from .bins import from_coefficients, from_rows, require_products
from .coefficients import MAX_BANDS, Coefficients, combined, keep, own_numbers, require_scale, solve_banded

DIRECT = 64  # coefficients up to which products and inverses are sums, one by one, instead of Fourier transforms


@dataclasses.dataclass(frozen=True, eq=False)
class Toeplitz(Encoder):
    """C[t, s] = coefficients[t - s], 0 where there is no such coefficient.

    Attributes: coefficients: c_0 > 0, c_1, ..., shape (b,) with b <= T (the bandwidth); size: T.
    Raises: ProblemError: coefficients that are not finite, beyond LARGEST_ENTRY, c_0 <= 0, or more of them than steps.
    Cost: products and solutions O(T log T) for each column, O(T b) for few coefficients.

    >>> Toeplitz([1.0, 0.5], size=3).dense().tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]]
    """

    coefficients: Array | Sequence[float]
    size: int

    def __post_init__(self) -> None:
        c = own_numbers("coefficients", self.coefficients, 1)
        if not 1 <= c.size <= self.size:
            raise ProblemError(f"coefficients must be at most one for each of {self.size} steps, got {c.size}.")
        if not c[0] > 0:
            raise ProblemError(f"coefficients must begin with a number > 0, the diagonal of C, got {c[0]:g}.")
        require_scale("coefficients", c, c[:1])
        object.__setattr__(self, "coefficients", c)

    @property
    def series(self) -> Array:
        return np.asarray(self.coefficients)

    def noise_series(self) -> Array | None:
        return self.inverse_series if self.shipped else None

    @property
    def bandwidth(self) -> int:
        return self.series.size

    @property
    def memory(self) -> int:
        return self.bandwidth - 1

    @property
    def nonnegative(self) -> bool:
        return bool((self.series >= 0).all())

    @cached_property
    def inverse_series(self) -> Array:
        """d with C^-1[t, s] = d_(t - s), shape (T,)."""
        return inverse_series(self.series, self.size)

    def certified_series(self) -> Coefficients | None:
        if not self.shipped:
            return None
        c = np.zeros(self.size)
        c[: self.series.size] = self.series
        return Coefficients(c, np.zeros(self.size))

    def diagonals(self) -> Array | None:
        few = self.bandwidth < self.size and self.bandwidth * self.size <= MAX_BANDS
        return np.broadcast_to(self.series, (self.size, self.bandwidth)) if few and self.shipped else None

    def bin_gram(self, bins: int) -> Array | None:
        if not self.shipped:
            return None
        return from_coefficients(self.certified_series(), self.size, bins)

    def times(self, x: Array) -> Array:
        return convolved(self.series, x)

    def transposed_times(self, x: Array) -> Array:
        return convolved(self.series, x[::-1])[::-1]

    def solve(self, x: Array) -> Array:
        if self.bandwidth <= DIRECT:
            return solve_banded(np.broadcast_to(self.series, (self.size, self.bandwidth)), x)
        return convolved(self.inverse_series, x)

    def transposed_solve(self, x: Array) -> Array:
        return self.solve(x[::-1])[::-1]

    def absolute_times(self, x: Array) -> Array:
        return convolved(np.abs(self.series), x)

    @property
    def noise_variances(self) -> Array:
        return np.cumsum(self.inverse_series**2)

    def envelope(self) -> Array:
        return np.abs(self.series)

    def weights_of(self, step: int) -> Array:
        return self.series[: step + 1]

    def advance(self, step: int, state: Array, fresh: Array) -> Array:
        row = fresh
        if len(state):
            row = row - combined(step, state, self.series[1:])
        row = row / self.series[0]
        keep(step, state, row)
        return row

    def scaled(self, factor: float) -> Toeplitz:
        return Toeplitz(factor * self.series, self.size)

    def leading(self, size: int) -> Toeplitz:
        return Toeplitz(self.series[:size], size)


def convolved(series: Array, x: Array) -> Array:
    """The first T terms of series * x along the first axis of x, shape (T, ...)."""
    T = len(x)
    if series.size <= DIRECT:
        total = series[0] * x
        for lag in range(1, min(series.size, T)):
            total[lag:] += series[lag] * x[:-lag]
        return np.asarray(total)
    length = scipy.fft.next_fast_len(T + series.size - 1, real=True)
    transform = scipy.fft.rfft(series, length).reshape(-1, *[1] * (x.ndim - 1))
    return np.asarray(scipy.fft.irfft(transform * scipy.fft.rfft(x, length, axis=0), length, axis=0)[:T])


def inverse_series(series: Array, size: int) -> Array:
    """d, shape (size,), with c * d = 1, 0, 0, ...: by substitution for few coefficients, else by Newton's iteration."""
    if series.size <= DIRECT:
        unit = np.zeros(size)
        unit[0] = 1.0
        return solve_banded(np.broadcast_to(series, (size, series.size)), unit)
    d = inverse_series(series[:DIRECT], DIRECT)
    while d.size < size:
        length = min(2 * d.size, size)
        longer = np.concatenate([d, np.zeros(length - d.size)])
        product = convolved(d, np.concatenate([series[:length], np.zeros(max(length - series.size, 0))]))
        product[0] -= 1.0
        d = longer - convolved(d, product)
    return d


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Buffered(Toeplitz):
    """C[t, t] = diagonal, C[t, s] = diagonal * sum_i scales[i] decays[i]^(t - s - 1) below it.

    Its noise takes one buffer for each exponential, whatever T is.

    Attributes: scales, decays: shape (d,), |decay| <= 1; size: T; diagonal: > 0.
    Raises: ProblemError: numbers that are not finite or of different lengths, a decay outside [-1, 1], T < 1.
    Source: arXiv:2404.16706 (BLT), arXiv:2408.08868 (over several participations).

    >>> Buffered([0.5], [0.5], size=3).dense().tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]
    """

    coefficients: Array = dataclasses.field(init=False, repr=False)
    scales: Array | Sequence[float] = ()
    decays: Array | Sequence[float] = ()
    diagonal: float = 1.0

    def __init__(
        self, scales: Array | Sequence[float], decays: Array | Sequence[float], size: int, diagonal: float = 1.0
    ) -> None:
        arrays = {"scales": own_numbers("scales", scales, 1), "decays": own_numbers("decays", decays, 1)}
        if arrays["scales"].shape != arrays["decays"].shape:
            b, d = arrays["scales"], arrays["decays"]
            raise ProblemError(f"decays must be one for each scale, got {d.size} for {b.size} scales.")
        if (np.abs(arrays["decays"]) > 1).any():
            raise ProblemError(f"decays must lie in [-1, 1], got {np.abs(arrays['decays']).max():g} in size.")
        for name, value in {**arrays, "size": size, "diagonal": float(diagonal)}.items():
            object.__setattr__(self, name, value)
        with np.errstate(over="ignore"):  # refused as any other coefficient
            object.__setattr__(self, "coefficients", diagonal * _series(arrays["scales"], arrays["decays"], size))
        super().__post_init__()

    def certified_series(self) -> Coefficients | None:
        if not self.shipped:
            return None
        scales, decays = self._numbers
        absolute = Buffered(np.abs(scales), np.abs(decays), self.size, self.diagonal).series
        return Coefficients(self.series, 4 * (len(scales) + 8) * UNIT * absolute)

    @property
    def memory(self) -> int:
        return len(self.scales)

    def step_rounding(self, x: Array) -> Array:
        """A buffer is rounded twice in each step, so that what it holds of a row j steps back has lost 2 j units, and
        buffers that cancel in C are rounded one by one.
        """
        scales, decays = np.abs(self._numbers)
        units = 2 * np.arange(self.size) + len(scales) + 4
        return convolved(self.diagonal * units * _series(scales, decays, self.size), x)

    @cached_property
    def _numbers(self) -> tuple[Array, Array]:
        return np.asarray(self.scales), np.asarray(self.decays)

    def advance(self, step: int, state: Array, fresh: Array) -> Array:
        scales, decays = self._numbers
        row = fresh / self.diagonal - np.tensordot(scales, state, 1)
        state *= decays.reshape(-1, *[1] * (state.ndim - 1))
        state += row
        return row

    def scaled(self, factor: float) -> Buffered:
        return Buffered(self.scales, self.decays, self.size, factor * self.diagonal)

    def leading(self, size: int) -> Buffered:
        return Buffered(self.scales, self.decays, size, self.diagonal)


def _series(scales: Array, decays: Array, size: int) -> Array:
    """1, sum_i scales[i], sum_i scales[i] decays[i], ..."""
    series = np.zeros(max(size, 1))
    series[0] = 1.0
    ages = np.arange(max(size - 1, 0))
    for scale, decay in zip(scales, decays, strict=True):
        series[1:] += scale * decay**ages
    return series


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
    entry_rounding = 0.0

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
