"""What structured encoders share: checked numbers, a ring of recent rows, shifts, banded triangular solutions."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from ..arithmetic import Array
from ..problem import ProblemError

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
