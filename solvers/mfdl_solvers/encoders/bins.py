"""M = (|C| E)^T (|C| E) of encoders with structure, E the 0/1 matrix of bins, step t in bin t mod b: no T x T array.

|C_ts| of a Toeplitz C is a_(t - s), so column r of |C| E is one sequence w that starts at step r,

    w_j = sum over m of a_(j - m b),    M_(r, r + l) = sum over j < T - r - l of w_j w_(j + l),

and of a banded C row t of |C| E has an entry for each of its diagonals, in bin t - j mod b: rows of one bin are
multiplied with each other, summed over epochs, and added where they belong. All terms are >= 0, so sums are rounded up
by a share that grows with how many they are.
"""

from __future__ import annotations

import math

import numpy as np

from ..arithmetic import EPS, Array
from ..problem import ProblemError
from .coefficients import Coefficients

SLACK = 4  # units for each term of a sum
MAX_PRODUCTS = 10**10
"""Of M, or of a substitution."""


def require_products(products: int) -> None:
    """Raises ProblemError: more than MAX_PRODUCTS."""
    if products > MAX_PRODUCTS:
        raise ProblemError(
            f"M of this encoder takes {products:.1e} products, allowed are {MAX_PRODUCTS:.0e}; take fewer steps, bins "
            "or diagonals, or a Toeplitz encoder."
        )


def from_coefficients(c: Coefficients | None, size: int, bins: int) -> Array:
    """M of a Toeplitz C; infinite where its coefficients have no known bounds. Raises: ProblemError: too many."""
    require_products(size * bins)
    if c is None or not np.isfinite(c.high).all():
        return np.array([math.inf])
    return from_series(c.high, bins)


def from_series(absolute: Array, bins: int) -> Array:
    """M, shape (b, b), of |C_ts| <= absolute[t - s], rounded up, in O(T b). Raises: ProblemError: T != k b."""
    T = absolute.size
    _require_bins(T, bins)
    w = folded(absolute, bins)
    M = np.empty((bins, bins))
    for lag in range(bins):
        sums = np.cumsum(w[: T - lag] * w[lag:])
        first = np.arange(bins - lag)
        M[first, first + lag] = M[first + lag, first] = sums[T - 1 - lag - first]
    return M * (1 + SLACK * T * EPS)


def folded(series: Array, bins: int) -> Array:
    """w_j = sum over m of series[j - m b], shape (T,)."""
    padded = np.zeros(-(-series.size // bins) * bins)
    padded[: series.size] = series
    return np.cumsum(padded.reshape(-1, bins), axis=0).ravel()[: series.size]


def from_rows(rows: Array, bins: int) -> Array:
    """M, shape (b, b), of |C[t, t - j]| <= |rows[t, j]|, rows of shape (T, width), rounded up.

    Raises: ProblemError: bins that do not divide T. Cost: O(T width^2), and width^2 sums of b numbers.
    """
    T, width = rows.shape
    _require_bins(T, bins)
    by_bin = np.abs(rows).reshape(-1, bins, width).transpose(1, 0, 2)
    products = by_bin.transpose(0, 2, 1) @ by_bin  # (b, width, width)
    M = np.zeros((bins, bins))
    steps = np.arange(bins)
    for i in range(width):
        for j in range(width):
            M[(steps - i) % bins, (steps - j) % bins] += products[:, i, j]
    return M * (1 + SLACK * (T + width * width) * EPS)


def _require_bins(steps: int, bins: int) -> None:
    if bins < 1 or steps % bins:
        raise ProblemError(f"bins must divide the {steps} steps, got {bins}.")
