"""The best Toeplitz encoders: banded, buffered, and with a banded inverse, in O(T log T) for each step of the search.

What is minimised is sensitivity^2 tr(H C^-1 C^-T), whatever the scale of C, over the logarithms of what is free: so
coefficients keep their signs, and sensitivities stay exact. Coefficients of long encoders are free at `KNOTS` lags,
dense at both ends and even in log(lag) between, and follow the shape they began with between those.

All begin where a run without end is best: there |c(w)|^4 = sum_k m_k |a_k(w)|^2, a_k the response of mode k at
frequency w, and c the outer function of that modulus (by its cepstrum): for prefix sums their square root.

The best banded encoders and banded inverses: every entry of a band is free, O(T b^2) for each mode and iteration.

With R_k^-1 of three diagonals B_k = C R_k^-1 is banded, and tr(H C^-1 C^-T) = sum_k m_k ||W^1/2 B_k^-1||^2. In blocks
of L = b + 2 steps B_k has blocks D_i on its diagonal and E_i to their left, so that P_i, the covariance of
y = B_k^-1 z over a block, and V_i, what it costs there and later, are two recursions over the blocks:

    P_i = D_i^-1 D_i^-T + A_i P_(i-1) A_i^T,    V_i = W_i + A_(i+1)^T V_(i+1) A_(i+1),    A_i = D_i^-1 E_i.

Columns are divided by the norms of their classes, so that the sensitivity is 1 at every step of the search.

Every entry of a banded C^-1 is free too. The cost of N = C^-1 is quadratic in its band (`cost.noising_objective`).
Its rows are multiplied by the sensitivities of their classes, sigma_r = ||N^-1 1_r|| where no entry of C is below 0, so
that the sensitivity is 1 at every step of the search; N has no positive entry besides its diagonal, which makes C >= 0.
With y = N^-1 1_r and z = N^-T y

    d sigma_r^2 / d N[t, s] = -2 z_t y_s.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import scipy
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from ..encoders import Banded, Buffered, Encoder, Inverse, Toeplitz
from ..encoders.coefficients import solve_banded
from ..encoders.structured_encoders import columns_from_rows, convolved, inverse_series
from ..iterations import minimise
from ..pattern_sets import PERIODIC, Spaced
from ..problem import Array, ProblemError
from .cost import ModeCost, gram_diagonals, noising_objective

KNOTS = 512  # up to as many coefficients each is free
LARGEST_CHANGE = 50.0  # of the logarithm of a coefficient
FLOOR = 1e-12  # of the largest coefficient: what a coefficient of 0 begins with


def stationary_series(cost: ModeCost, size: int) -> Array:
    """c_j, j < size, of the best encoder of a run without end; c_0 = 1."""
    length = scipy.fft.next_fast_len(8 * max(size, 64), real=True)
    beta, shrink = cost.momentum, float(np.mean(np.asarray(cost.shrink)))
    inside = 8 / length  # of the unit circle, where lam = 1 has its pole
    z = np.exp(-1j * np.linspace(0, np.pi, length // 2 + 1) - inside)
    power = np.zeros(z.size)
    for lam, m in zip(cost.eigenvalues, cost.weights, strict=True):
        power += m / np.abs((1 - shrink * lam * z) * (1 - beta * z)) ** 2
    cepstrum = scipy.fft.irfft(np.log(power) / 4, length)
    cepstrum[1 : length // 2] *= 2
    cepstrum[length // 2 + 1 :] = 0
    cepstrum[0] = 0
    outer = scipy.fft.irfft(np.exp(scipy.fft.rfft(cepstrum)), length)[:size]
    return np.asarray(outer * np.exp(inside * np.arange(size)))


def best_toeplitz(
    cost: ModeCost, patterns: Spaced, *, bandwidth: int | None = None, max_iterations: int = 500
) -> SearchedEncoder:
    """C of at most `bandwidth` diagonals, default as many as one record's uses are apart: sensitivity is exact then.

    With more of them coefficients are >= 0 where uses are periodic, and must not rise where they are at least b apart.
    """
    T = cost.size
    width = min(patterns.gap, T) if bandwidth is None else min(bandwidth, T)
    begin = _moved_from_zero(stationary_series(cost, width))
    if width > patterns.gap:
        begin = np.abs(begin)

    def padded_loss(c: Array) -> tuple[float, Array]:
        return log_loss(cost, patterns, np.pad(c, (0, T - width)), width, free_encoder=True)

    c, iterations = _search(padded_loss, begin, patterns.gap, max_iterations)
    return SearchedEncoder(Toeplitz(c, T), iterations)


def best_inverse(cost: ModeCost, patterns: Spaced, *, bandwidth: int, max_iterations: int = 500) -> SearchedEncoder:
    """C^-1 Toeplitz with `bandwidth` diagonals and no positive entry besides the first: then C >= 0."""
    T = cost.size
    width = min(bandwidth, T)
    begin = inverse_series(stationary_series(cost, width), width)
    begin[1:] = -np.maximum(np.abs(begin[1:]), FLOOR)
    begin[1:] *= min(1.0, 0.999 / max(float(-begin[1:].sum()), 1e-300))  # so that C does not grow over the steps

    def padded_loss(n: Array) -> tuple[float, Array]:
        return log_loss(cost, patterns, np.pad(n, (0, T - width)), width, free_encoder=False)

    n, iterations = _search(padded_loss, begin, patterns.gap, max_iterations)
    return SearchedEncoder(Inverse(Toeplitz(n, T)), iterations)


def best_buffered(cost: ModeCost, patterns: Spaced, *, buffers: int, max_iterations: int = 500) -> SearchedEncoder:
    """C with `buffers` exponentials of positive scales (BLT): coefficients fall, and memory does not grow with T."""
    T = cost.size
    reach = np.geomspace(1.0, max(2.0, float(min(T, 4 * patterns.gap))), buffers)
    decays = np.exp(-1 / reach)
    scales = np.full(buffers, 0.5 / buffers) * (1 - decays) ** 0.5
    ages = np.arange(T - 1)

    def parts(x: Array) -> tuple[Array, Array]:
        return np.exp(x[:buffers]), 1 / (1 + np.exp(-x[buffers:]))

    def value_and_gradient(x: Array) -> tuple[float, Array]:
        if np.abs(x).max() > LARGEST_CHANGE:
            return np.inf, x
        scales, decays = parts(x)
        c, gradient = np.zeros(T), np.empty(2 * buffers)
        c[0] = 1.0
        powers = [decay**ages for decay in decays]
        for scale, power in zip(scales, powers, strict=True):
            c[1:] += scale * power
        value, of_c = log_loss(cost, patterns, c, T, free_encoder=True)
        for i, (scale, decay, power) in enumerate(zip(scales, decays, powers, strict=True)):
            gradient[i] = scale * float(of_c[1:] @ power)
            gradient[buffers + i] = scale * (1 - decay) * float((of_c[1:] * ages) @ power)
        return value, gradient

    begin = np.concatenate([np.log(scales), np.log(decays / (1 - decays))])
    minimum = minimise(value_and_gradient, begin, stop=Settled(), max_iterations=max_iterations)
    scales, decays = parts(minimum.point)
    return SearchedEncoder(Buffered(scales, decays, T), minimum.iterations)


class Size(Protocol):
    """What C is divided by, squared: a function of the coefficients of a Toeplitz C, and its gradient."""

    def squared_size(self, series: Array) -> tuple[float, Array]: ...


def log_loss(cost: ModeCost, size: Size, free: Array, width: int, *, free_encoder: bool) -> tuple[float, Array]:
    """log(sensitivity^2 tr(H C^-1 C^-T)) and its gradient in the first coefficients that are free, of C or of C^-1."""
    with np.errstate(over="ignore", invalid="ignore"):
        inverse = inverse_series(np.trim_zeros(free, "b"), free.size)
        c, d = (free, inverse) if free_encoder else (inverse, free)
        squared, of_c = size.squared_size(c)
        error, of_d = cost.series_objective(d)
        if not (0 < squared < np.inf and 0 < error < np.inf):
            return np.inf, free[:width]
        of_c, of_d = of_c / squared, of_d / error
        of_free, other = (of_c, of_d) if free_encoder else (of_d, of_c)
        through = convolved(inverse, convolved(inverse, other[::-1]))[::-1]  # the inverse moves by -d * d * change
        return float(np.log(squared) + np.log(error)), of_free[:width] - through[:width]


def _search(
    loss: Callable[[Array], tuple[float, Array]], begin: Array, gap: int, max_iterations: int
) -> tuple[Array, int]:
    """The best coefficients begin * exp(knots (x - 1)) for any x over knots, the first coefficient kept.

    x begins at 1, for the first step of the search is a share of its size.
    """
    if begin.size == 1:
        return begin, 0
    knots = spread(begin.size - 1, gap)

    def series(x: Array) -> Array:
        return np.concatenate([begin[:1], begin[1:] * np.exp(knots @ (x - 1))])

    def value_and_gradient(x: Array) -> tuple[float, Array]:
        if np.abs(x).max() > LARGEST_CHANGE:
            return np.inf, x
        c = series(x)
        value, gradient = loss(c)
        return value, knots.T @ (gradient[1:] * c[1:])

    start = np.ones(knots.shape[1])
    minimum = minimise(value_and_gradient, start, stop=Settled(), max_iterations=max_iterations)
    return series(minimum.point), minimum.iterations


def spread(size: int, gap: int) -> sp.csr_array:
    """From values at knots to lags 1..size, linear between: shape (size, knots); the identity for few lags."""
    if size <= KNOTS:
        return sp.csr_array(sp.eye_array(size))
    ages = np.geomspace(1, size, KNOTS // 4).astype(np.intp)
    near = [ages, size + 1 - ages, gap + ages, gap - ages]
    knots = np.unique(np.concatenate(near))
    knots = knots[(knots >= 1) & (knots <= size)]
    lags = np.arange(1, size + 1)
    left = np.minimum(np.searchsorted(knots, lags, side="right") - 1, knots.size - 2)
    share = (lags - knots[left]) / (knots[left + 1] - knots[left])
    rows = np.arange(size)
    data = np.concatenate([1 - share, share])
    return sp.csr_array((data, (np.tile(rows, 2), np.concatenate([left, left + 1]))), shape=(size, knots.size))


def _moved_from_zero(series: Array) -> Array:
    least = FLOOR * float(np.abs(series).max())
    return np.where(np.abs(series) < least, least, series)


SETTLED, WITHIN = 1e-8, 10  # a search ends once the logarithm of the objective fell by less in so many iterations


@dataclasses.dataclass(frozen=True, eq=False)
class SearchedEncoder:
    """An encoder of its form, and the iterations that it took."""

    encoder: Encoder
    iterations: int


class Settled:
    """Ends a search whose value hardly falls."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def __call__(self, iteration: int, x: Array, value: float, gradient: Array) -> bool:
        self.values.append(value)
        return len(self.values) > WITHIN and self.values[-1 - WITHIN] - value < SETTLED


AT_ONCE = 2**23  # numbers in one array of blocks
DENSE_STEPS = 1024  # up to which H may stand as an array
EXTRA = 2  # diagonals that R^-1 adds
MOST_PRODUCTS = 2**28  # of the solutions with every class, in each step of the search: about a second


def best_banded(cost: ModeCost, patterns: Spaced, *, bandwidth: int, max_iterations: int = 500) -> SearchedEncoder:
    """C with `bandwidth` diagonals, at most as many as uses are apart; the search begins at the best Toeplitz one.

    Raises: ProblemError: a wider band.
    """
    T, width = cost.size, min(bandwidth, cost.size)
    if width > patterns.gap:
        raise ProblemError(
            f"bandwidth must be at most {patterns.gap}, which uses are apart, got {width}: else they meet in the band."
        )
    inside = np.arange(T)[:, None] + np.arange(width) < T  # columns from the diagonal down
    periodic = patterns.kind == PERIODIC  # else a record may meet the heaviest column at each of its uses
    classes = np.arange(T) % patterns.gap if periodic else np.arange(T)

    def encoder(x: Array) -> tuple[Array, Array, Array]:
        columns = np.zeros((T, width))
        columns[inside] = x
        norms = np.bincount(classes, weights=(columns**2).sum(axis=1)).astype(np.float64)[classes]
        norms *= 1 if periodic else patterns.uses
        return columns, columns / np.sqrt(norms)[:, None], norms

    def value_and_gradient(x: Array) -> tuple[float, Array]:
        columns, scaled, norms = encoder(x)
        if not (columns[:, 0] > 0).all():
            return np.inf, x
        value, of_rows = bands_objective(cost, rows_from_columns(scaled))
        if not np.isfinite(value):
            return np.inf, x
        of_scaled = columns_from_rows(of_rows)
        shares = np.bincount(classes, weights=(of_scaled * columns).sum(axis=1))[classes]
        shares *= 1 if periodic else patterns.uses
        gradient = of_scaled / np.sqrt(norms)[:, None] - columns * (shares / norms**1.5)[:, None]
        return float(np.log(value)), gradient[inside] / value

    begin = _begin(cost, patterns, width)
    minimum = minimise(value_and_gradient, begin[inside], stop=Settled(), max_iterations=max_iterations)
    return SearchedEncoder(Banded(rows_from_columns(encoder(minimum.point)[1])), minimum.iterations)


def _begin(cost: ModeCost, patterns: Spaced, width: int) -> Array:
    """Columns of the best Toeplitz encoder for rates that do not change, their mean."""
    alike = cost if cost.by_age else cost.at_mean_rates
    series = best_toeplitz(alike, patterns, bandwidth=width).encoder.envelope()
    columns = np.tile(series / series[0], (cost.size, 1))
    return np.where(np.arange(cost.size)[:, None] + np.arange(width) < cost.size, columns, 0.0)


def rows_from_columns(columns: Array) -> Array:
    """[t, j] = columns[t - j, j]: from columns down from the diagonal to rows back from it."""
    rows = np.zeros(columns.shape)
    for j in range(columns.shape[1]):
        rows[j:, j] = columns[: len(columns) - j, j]
    return rows


def bands_objective(cost: ModeCost, rows: Array) -> tuple[float, Array]:
    """tr(H C^-1 C^-T) and its gradient in C[t, t - j] = rows[t, j]; both shape (T, b)."""
    T, width = rows.shape
    length = width + EXTRA
    if DENSE_STEPS >= T and cost.eigenvalues.size * length**2 >= T**2 / 8:  # three products of T x T are faster
        return _dense_objective(cost.gram, rows)
    at_once = max(1, AT_ONCE // (T * length))
    value, gradient = 0.0, np.zeros(rows.shape)
    for start in range(0, cost.eigenvalues.size, at_once):
        lam, m = cost.eigenvalues[start : start + at_once], cost.weights[start : start + at_once]
        inverses = np.stack([cost.inverse_bands(each) for each in lam])
        bands = np.zeros((lam.size, T, length))
        for i in range(width):
            for j in range(3):  # C[t, t - i] R^-1[t - i, t - i - j]
                bands[:, i:, i + j] += rows[i:, i] * inverses[:, : T - i, j]
        values, of_b = _inverse_squared(bands, cost.step_weights)
        value += float(m @ values)
        of_b *= m[:, None, None]
        for i in range(width):
            for j in range(3):
                gradient[i:, i] += (of_b[:, i:, i + j] * inverses[:, : T - i, j]).sum(axis=0)
    return value, gradient


def _dense_objective(gram: Array, rows: Array) -> tuple[float, Array]:
    """The same from H as an array: three products of T x T, for many modes and few steps."""
    C = np.zeros(gram.shape)
    for j in range(rows.shape[1]):
        np.fill_diagonal(C[j:], rows[j:, j])
    N, info = scipy.linalg.lapack.dtrtri(C, lower=1)
    if info:
        return np.inf, np.zeros(rows.shape)
    times = functools.partial(scipy.linalg.blas.dtrmm, 1.0, N, lower=1)
    product = times(times(gram, side=1), trans_a=1)
    slopes = -2 * times(product, side=1, trans_a=1)  # by every entry of C
    gradient = np.zeros(rows.shape)
    for j in range(rows.shape[1]):
        gradient[j:, j] = np.diagonal(slopes, -j)
    return float(np.trace(product)), gradient


def _inverse_squared(bands: Array, weights: Array) -> tuple[Array, Array]:
    """||W^1/2 B^-1||^2 of each of some banded B, shape (modes,), and its gradient, the shape of bands (modes, T, L)."""
    modes, T, L = bands.shape
    count = -(-T // L)
    padded = np.zeros((modes, count * L, L))
    padded[:, :T], padded[:, T:, 0] = bands, 1.0
    w = np.zeros(count * L)
    w[:T] = weights
    block = padded.reshape(modes, count, L, L)
    row, lag = np.indices((L, L))
    here, column = row >= lag, row - lag
    D, E = np.zeros(block.shape), np.zeros(block.shape)
    D[..., row[here], column[here]] = block[..., row[here], lag[here]]
    E[..., row[~here], column[~here] + L] = block[..., row[~here], lag[~here]]
    Q = np.linalg.inv(D)
    A = Q @ E
    P, cost_to_go = Q @ Q.swapaxes(-1, -2), np.zeros(block.shape)
    cost_to_go[..., np.arange(L), np.arange(L)] = w.reshape(count, L)
    for i in range(1, count):
        P[:, i] += A[:, i] @ P[:, i - 1] @ A[:, i].swapaxes(-1, -2)
    for i in range(count - 1, 0, -1):
        cost_to_go[:, i - 1] += A[:, i].swapaxes(-1, -2) @ cost_to_go[:, i] @ A[:, i]
    values = (P.diagonal(axis1=-2, axis2=-1) * w.reshape(count, L)).sum(axis=(1, 2))
    back = Q.swapaxes(-1, -2) @ cost_to_go
    of_D, of_E = -2 * back @ P, np.zeros(block.shape)
    of_E[:, 1:] = 2 * (back @ Q)[:, 1:] @ E[:, 1:] @ P[:, :-1]
    gradient = np.empty(block.shape)
    gradient[..., row[here], lag[here]] = of_D[..., row[here], column[here]]
    gradient[..., row[~here], lag[~here]] = of_E[..., row[~here], column[~here] + L]
    return values, gradient.reshape(modes, count * L, L)[:, :T]


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
    return SearchedEncoder(Inverse(Banded(sigma[:, None] * rows_from_columns(columns))), minimum.iterations)


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
    value, of_scaled = noising_objective(diagonals, sigma * columns)
    of_sigma = rows_from_columns(of_scaled * columns).sum(axis=1)
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


SEARCHES: dict[str, Callable[..., SearchedEncoder]] = {
    "toeplitz": best_toeplitz,
    "banded": best_banded,
    "buffered": best_buffered,
    "inverse": best_inverse,
    "banded-inverse": best_banded_inverse,
}
"""By the name of a form."""
