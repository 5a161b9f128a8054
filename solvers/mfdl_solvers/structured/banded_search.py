"""The best banded encoders: as many free numbers as a band holds, in O(T b^2) for each mode and step of the search.

With R_k^-1 of three diagonals B_k = C R_k^-1 is banded, and tr(H C^-1 C^-T) = sum_k m_k ||W^1/2 B_k^-1||^2. In blocks
of L = b + 2 steps B_k has blocks D_i on its diagonal and E_i to their left, so that P_i, the covariance of
y = B_k^-1 z over a block, and V_i, what it costs there and later, are two recursions over the blocks:

    P_i = D_i^-1 D_i^-T + A_i P_(i-1) A_i^T,    V_i = W_i + A_(i+1)^T V_(i+1) A_(i+1),    A_i = D_i^-1 E_i.

Columns are divided by the norms of their classes, so that the sensitivity is 1 at every step of the search: no two
steps of a class meet in a band that is no wider than they are apart.
"""

from __future__ import annotations

import numpy as np

from ..encoders import Banded
from ..encoders.banded_encoder import columns_of
from ..iterations import minimise
from ..pattern_sets import PERIODIC, Spaced
from ..problem import Array, ProblemError
from .cost import ModeCost
from .toeplitz_search import SearchedEncoder, Settled, best_toeplitz

AT_ONCE = 2**23  # numbers in one array of blocks
EXTRA = 2  # diagonals that R^-1 adds


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
        value, of_rows = of_bands(cost, rows_of(scaled))
        if not np.isfinite(value):
            return np.inf, x
        of_scaled = columns_of(of_rows)
        shares = np.bincount(classes, weights=(of_scaled * columns).sum(axis=1))[classes]
        shares *= 1 if periodic else patterns.uses
        gradient = of_scaled / np.sqrt(norms)[:, None] - columns * (shares / norms**1.5)[:, None]
        return float(np.log(value)), gradient[inside] / value

    begin = _begin(cost, patterns, width)
    minimum = minimise(value_and_gradient, begin[inside], stop=Settled(), max_iterations=max_iterations)
    return SearchedEncoder(Banded(rows_of(encoder(minimum.point)[1])), minimum.iterations)


def _begin(cost: ModeCost, patterns: Spaced, width: int) -> Array:
    """Columns of the best Toeplitz encoder for rates that do not change, their mean."""
    alike = cost if cost.by_age else cost.at_mean_rates
    series = best_toeplitz(alike, patterns, bandwidth=width).encoder.envelope()
    columns = np.tile(series / series[0], (cost.size, 1))
    return np.where(np.arange(cost.size)[:, None] + np.arange(width) < cost.size, columns, 0.0)


def rows_of(columns: Array) -> Array:
    """[t, j] = columns[t - j, j]: from columns down from the diagonal to rows back from it."""
    rows = np.zeros(columns.shape)
    for j in range(columns.shape[1]):
        rows[j:, j] = columns[: len(columns) - j, j]
    return rows


def of_bands(cost: ModeCost, rows: Array) -> tuple[float, Array]:
    """tr(H C^-1 C^-T) and its gradient in C[t, t - j] = rows[t, j]; both shape (T, b)."""
    T, width = rows.shape
    length = width + EXTRA
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
