"""The best banded C^-1: every entry of its diagonals is free, beside those that are alike over time (`toeplitz`).

What N = C^-1 costs is a quadratic form in its band (`diagonals`). Its rows are multiplied by the sensitivities of their
classes, sigma_r = ||N^-1 1_r|| where no entry of C is below 0, so that the sensitivity is 1 at every step of the
search; N has no positive entry besides its diagonal, which makes C >= 0. With y = N^-1 1_r and z = N^-T y

    d sigma_r^2 / d N[t, s] = -2 z_t y_s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..encoders import Banded, Inverse
from ..encoders._rows import solve_banded
from ..iterations import minimise
from ..pattern_sets import PERIODIC, Spaced
from ..problem import Array, ProblemError
from .banded_search import rows_of
from .cost import ModeCost
from .diagonals import gram_diagonals, of_noising
from .toeplitz_search import LARGEST_CHANGE, SearchedEncoder, Settled, best_inverse

AT_ONCE = 2**23  # numbers in one block of classes
MOST_PRODUCTS = 2**28  # of the solutions with every class, in each step of the search: about a second


def best_banded_inverse(
    cost: ModeCost, patterns: Spaced, *, bandwidth: int, max_iterations: int = 500
) -> SearchedEncoder:
    """C^-1 with `bandwidth` diagonals; the search begins at the best Toeplitz one.

    Raises: ProblemError: uses that are not periodic, or too many classes of steps for O(T bandwidth gap) a step.
    """
    T, width = cost.size, min(bandwidth, cost.size)
    if patterns.kind != PERIODIC:
        raise ProblemError(
            "form 'banded-inverse' takes cyclic, single and every-step participation: of uses that are at least some "
            "steps apart its sensitivity is not known exactly; use form 'inverse'."
        )
    if T * width * patterns.gap > MOST_PRODUCTS:
        raise ProblemError(
            f"form 'banded-inverse' takes steps x bandwidth x period up to {MOST_PRODUCTS:,}, got {T:,} x {width} x "
            f"{patterns.gap:,}; use form 'inverse', whose diagonals are alike over time."
        )
    diagonals, inside = gram_diagonals(cost, width), np.arange(T)[:, None] + np.arange(width) < T

    alike = cost if cost.by_age else cost.at_mean_rates
    begin = best_inverse(alike, patterns, bandwidth=width, max_iterations=max_iterations).encoder.weights_of(T)

    def noising(x: Array) -> Array:
        """begin * exp(x - 1): x begins at 1, for the first step of the search is a share of its size."""
        columns = np.zeros((T, width))
        columns[inside] = np.exp(x - 1)
        return begin * columns

    def value_and_gradient(x: Array) -> tuple[float, Array]:
        if np.abs(x).max() > LARGEST_CHANGE:
            return np.inf, x
        columns = noising(x)
        with np.errstate(over="ignore", invalid="ignore"):  # C that grows over the steps
            value, gradient = at_unit_sensitivity(diagonals, columns, patterns.gap)
        if not 0 < value < np.inf:
            return np.inf, x
        return float(np.log(value)), (gradient * columns)[inside] / value

    minimum = minimise(value_and_gradient, np.ones(inside.sum()), stop=Settled(), max_iterations=max_iterations)
    columns = noising(minimum.point)
    sigma = np.sqrt(class_squares(columns, patterns.gap))[np.arange(T) % patterns.gap]
    return SearchedEncoder(Inverse(Banded(sigma[:, None] * rows_of(columns))), minimum.iterations)


def at_unit_sensitivity(diagonals: Array, columns: Array, period: int) -> tuple[float, Array]:
    """tr(H N N^T) with the rows of N divided so that every class has sensitivity 1, and the gradient in its columns.

    Args: diagonals: of H; columns: N[s + j, s] at [s, j], both shape (T, b); no entry of N^-1 below 0.
    """
    T, width = columns.shape
    squares = class_squares(columns, period)
    sigma = np.zeros(columns.shape)  # of the row of each entry
    of_rows = np.sqrt(squares)[np.arange(T) % period]
    for j in range(width):
        sigma[: T - j, j] = of_rows[j:]
    value, of_scaled = of_noising(diagonals, sigma * columns)
    of_sigma = rows_of(of_scaled * columns).sum(axis=1)
    of_squares = np.bincount(np.arange(T) % period, weights=of_sigma) / (2 * np.sqrt(squares))
    gradient = of_scaled * sigma
    for classes, y in _solutions(columns, period):
        z = solve_banded(columns, y, transposed=True) * of_squares[classes]
        for j in range(width):
            gradient[: T - j, j] -= 2 * (z[j:] * y[: T - j]).sum(axis=1)
    return value, gradient


def class_squares(columns: Array, period: int) -> Array:
    """||N^-1 1_r||^2 of the classes r, r + period, ..., shape (period,)."""
    return np.concatenate([(y**2).sum(axis=0) for _, y in _solutions(columns, period)])


def _solutions(columns: Array, period: int) -> Iterator[tuple[NDArray[np.intp], Array]]:
    """N^-1 1_r for some classes at a time, shape (T, classes)."""
    T = len(columns)
    for start in range(0, period, width := max(1, AT_ONCE // T)):
        classes = np.arange(start, min(start + width, period))
        yield classes, solve_banded(columns, (np.arange(T)[:, None] % period == classes).astype(np.float64))
