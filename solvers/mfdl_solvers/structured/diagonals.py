"""The error Gram near its diagonal, and what a banded C^-1 costs by it: tr(H N N^T) = sum over columns n_s^T H n_s.

After step t a mode has the state (v_t, y_t) (`cost`). With V_t what a state after step t costs from there on,

    V_t = w_t e_y e_y^T + A_(t+1)^T V_(t+1) A_(t+1),    H[s, s + l] = (A_(s+l) ... A_(s+1) g_s)^T V_(s+l) g_(s+l),

g_t = (1, rho_t) the state that a unit injection makes. A is triangular, so V comes by three recursions of first order.
"""

from __future__ import annotations

import numpy as np

from ..arithmetic import Array
from ..encoders._rows import solve_banded
from .cost import ModeCost


def gram_diagonals(cost: ModeCost, width: int) -> Array:
    """H[s, s + l] at [s, l] for l < width, shape (T, width), 0 where s + l >= T. Cost: O(T width) a mode."""
    T, beta = cost.size, cost.momentum
    rates, shrink = np.asarray(cost.rates), np.asarray(cost.shrink)
    diagonals = np.zeros((T, width))
    for lam, m in zip(cost.eigenvalues, cost.weights, strict=True):
        decay = shrink * lam
        yy = _backwards(decay**2, cost.step_weights)
        vy = _backwards(beta * decay, _ahead(beta * decay * rates * yy))
        vv = _backwards(np.full(T, beta**2), _ahead(beta**2 * (2 * rates * vy + rates**2 * yy)))
        of_v, of_y = vv + rates * vy, vy + rates * yy  # V g
        v, y = np.ones(T), rates.copy()  # of an injection at s, so many steps later
        for lag in range(min(width, T)):
            if lag:
                v, y = beta * v[:-1], decay[lag:] * y[:-1] + rates[lag:] * beta * v[:-1]
            diagonals[: T - lag, lag] += m * (v * of_v[lag:] + y * of_y[lag:])
    return diagonals


def of_noising(diagonals: Array, columns: Array) -> tuple[float, Array]:
    """tr(H N N^T) and its gradient for N[s + j, s] = columns[s, j], both shape (T, b). Cost: O(T b^2)."""
    T, width = columns.shape
    through = np.zeros(columns.shape)  # H N
    for i in range(width):
        for j in range(width):
            low, lag = min(i, j), abs(i - j)
            through[: T - low, i] += diagonals[low:, lag] * columns[: T - low, j]
    return float((columns * through).sum()), 2 * through


def _backwards(factors: Array, given: Array) -> Array:
    """x with x_t = factors_(t + 1) x_(t + 1) + given_t."""
    columns = np.ones((given.size, 2))
    columns[:-1, 1] = -factors[1:]
    return solve_banded(columns, given, transposed=True)


def _ahead(given: Array) -> Array:
    """given_(t + 1) at t, 0 at the last."""
    return np.append(given[1:], 0.0)
