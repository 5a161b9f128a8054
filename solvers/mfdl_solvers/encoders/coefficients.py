"""Coefficients of a Toeplitz C with certified bounds on their errors, and how they follow from other descriptions.

Sums of exponentials lose a few units for each power and product. The coefficients of C = N^-1 come by substitution and
are certified by what N leaves of them: with N c = e + r, c is off by N^-1 r, at most M |r|, where M is the inverse of
N's comparison matrix (its diagonal, and -|N| besides), of terms >= 0 alone, so that its rounding is relative.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.linalg

from ..arithmetic import UNIT, Array
from ..problem import ProblemError

MAX_BANDS = 5 * 10**7  # numbers in the bands of C, 400 MB


@dataclasses.dataclass(frozen=True, eq=False)
class Coefficients:
    """c of C[t, t - j] = c_j, shape (T,), and bounds on how far each is from the true one, shape (T,)."""

    values: Array
    errors: Array

    @property
    def high(self) -> Array:
        """|c_j| at most."""
        return np.asarray((np.abs(self.values) + self.errors) * (1 + 2 * UNIT))

    @property
    def size(self) -> int:
        return len(self.values)

    @property
    def exact(self) -> bool:
        """They are as they were given."""
        return not self.errors.any()


def inverse_coefficients(series: Array, size: int) -> Coefficients | None:
    """c with N c = e, for the coefficients of N; None for too many products."""
    T, N = size, series
    if T * N.size > MAX_BANDS:
        return None
    start = np.zeros(T)
    start[0] = 1.0
    comparison = np.concatenate([N[:1], -np.abs(N[1:])])
    with np.errstate(over="ignore", invalid="ignore"):
        c = _substituted(N, start)
        left, size_of_terms = -start, start.copy()
        for j, weight in enumerate(N.tolist()):
            left[j:] += weight * c[: T - j]
            size_of_terms[j:] += abs(weight) * np.abs(c[: T - j])
        left = np.abs(left) + 2 * (N.size + 4) * UNIT * size_of_terms
        errors = _substituted(comparison, left) * (1 + rounding_of_substitution(T, N.size))
    errors[~np.isfinite(errors)] = math.inf
    return Coefficients(np.where(np.isfinite(c), c, 0.0), errors)


def _substituted(series: Array, right: Array) -> Array:
    """x with series * x = right, by substitution, which leaves terms >= 0 such."""
    bands = np.repeat(series[:, None], len(right), axis=1)
    return np.asarray(scipy.linalg.lapack.dtbtrs(bands, right, uplo="L")[0]).ravel()


def rounding_of_substitution(steps: int, width: int) -> float:
    """Relative rounding of substitution with terms >= 0: at most width + 2 units in each step on the way."""
    return 4 * (width + 4) * steps * UNIT


LARGEST_ENTRY = 1e100  # sums of squares of as many such entries as there are stay numbers


def own_numbers(name: str, given: object, ndim: int) -> Array:
    """An own read-only float64 copy; raises ProblemError: another number of axes, empty, not finite."""
    array = np.array(given, dtype=np.float64)
    if array.ndim != ndim or array.size == 0 or not np.isfinite(array).all():
        raise ProblemError(f"{name} must be finite numbers along {ndim} axes, got shape {array.shape}.")
    array.setflags(write=False)
    return array


def require_scale(name: str, entries: Array, diagonal: Array) -> None:
    """Raises ProblemError: entries whose squares, or those of their inverses, leave float64."""
    largest, least = float(np.abs(entries).max()), float(diagonal.min())
    if largest > LARGEST_ENTRY or least < 1 / LARGEST_ENTRY:
        raise ProblemError(
            f"{name} must be at most {LARGEST_ENTRY:g} in size, the diagonal at least {1 / LARGEST_ENTRY:g}, got "
            f"{largest:.3g} and {least:.3g}; the scale of C is free, so divide it and the noise by one number."
        )


def combined(step: int, ring: Array, weights: Array) -> Array:
    """sum_l weights[l - 1] row(step - l) of a ring that holds row(s) at s % len(ring), without a copy of the rows."""
    placed = np.zeros(len(ring))
    placed[(step - 1 - np.arange(weights.size)) % len(ring)] = weights
    return np.tensordot(placed, ring, 1)


def keep(step: int, ring: Array, row: Array) -> None:
    """Puts the row of a step in the place of the oldest."""
    if len(ring):
        ring[step % len(ring)] = row


def solve_banded(columns: Array, x: Array, *, transposed: bool = False) -> Array:
    """C^-1 x or C^-T x, for the columns of C from the diagonal down, C[s + j, s] = columns[s, j], x of shape (T, ...).

    Columns may be longer than the matrix: what falls below its last row is not read.
    """
    if x.size == 0:  # LAPACK's wrapper writes beyond its memory where there is no right-hand side
        return x.copy()
    flat = x.reshape(len(x), -1)
    solved, info = scipy.linalg.lapack.dtbtrs(columns.T, flat, uplo="L", trans="T" if transposed else "N")
    if info:
        raise ProblemError(f"a banded encoder is singular at step {info - 1}.")
    return np.asarray(solved).reshape(x.shape)
