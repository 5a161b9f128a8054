"""The error Gram as an operator: a sum of scalar recursions, never an array over steps x steps.

    H = sum_k m_k R_k^T W R_k,    W = diag(step_weights),

R_k what unit injections make of mode k: with shrink c_t, rates rho_t and momentum beta

    v_t = beta v_(t-1) + x_t,    y_t = c_t lam_k y_(t-1) + rho_t v_t,    y = R_k x.

Its inverse has three diagonals, so that R_k C^-1 = (C R_k^-1)^-1 for a banded C is the inverse of a banded matrix.
Prefix sums are the one mode lam = 1.

A banded C^-1 = N costs tr(H N N^T) = sum over columns n_s^T H n_s, which takes H near its diagonal. After step t a mode
has the state (v_t, y_t). With V_t what a state after step t costs from there on,

    V_t = w_t e_y e_y^T + A_(t+1)^T V_(t+1) A_(t+1),    H[s, s + l] = (A_(s+l) ... A_(s+1) g_s)^T V_(s+l) g_(s+l),

g_t = (1, rho_t) the state that a unit injection makes. A is triangular, so V comes by three recursions of first order.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ..arithmetic import Array
from ..encoders import Encoder
from ..encoders.coefficients import own_numbers, solve_banded
from ..encoders.structured_encoders import columns_from_rows
from ..problem import ProblemError

SAME = 1e-13  # eigenvalues this close are one: what they differ by is rounding of the eigenvalues
AT_ONCE = 2**22  # numbers in one block of columns


@dataclasses.dataclass(frozen=True, eq=False)
class ModeCost:
    """What noise over T steps costs, by modes.

    Attributes:
        eigenvalues, weights: lam_k in [-1, 1] and m_k >= 0, shape (modes,); equal eigenvalues are put together.
        step_weights: w_t >= 0 of the models that count, shape (T,), which says T.
        rates, shrink: rho_t > 0 and c_t in [0, 1], shape (T,); default all 1.
        momentum: beta in [0, 1).

    Raises: ProblemError: shapes, numbers out of range, no weight at all.
    """

    eigenvalues: Array
    weights: Array
    step_weights: Array
    rates: ArrayLike | None = None
    shrink: ArrayLike | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        lam, m = own_numbers("eigenvalues", self.eigenvalues, 1), own_numbers("weights", self.weights, 1)
        w = own_numbers("step_weights", self.step_weights, 1)
        rates = np.ones(w.size) if self.rates is None else own_numbers("rates", self.rates, 1)
        shrink = np.ones(w.size) if self.shrink is None else own_numbers("shrink", self.shrink, 1)
        if m.shape != lam.shape or rates.shape != w.shape or shrink.shape != w.shape:
            raise ProblemError(
                f"weights must be one for each of {lam.size} eigenvalues, rates and shrink one for each of {w.size} "
                f"steps, got {m.size}, {rates.size} and {shrink.size}."
            )
        inside = (np.abs(lam) <= 1 + 1e-9).all() and (m >= 0).all() and (w >= 0).all() and (rates > 0).all()
        if not (inside and (shrink >= 0).all() and (shrink <= 1).all() and 0 <= self.momentum < 1):
            raise ProblemError(
                "eigenvalues must lie in [-1, 1], weights and step_weights be >= 0, rates > 0, shrink in [0, 1] and "
                "momentum in [0, 1)."
            )
        if not (m.any() and w.any()):
            raise ProblemError("weights and step_weights must not all be 0: no noise costs anything.")
        lam, m = _put_together(lam, m)
        for name, array in {"eigenvalues": lam, "weights": m, "rates": rates, "shrink": shrink}.items():
            object.__setattr__(self, name, array)
        object.__setattr__(self, "step_weights", w)

    @property
    def size(self) -> int:
        return self.step_weights.size

    @property
    def by_age(self) -> bool:
        """What an injection does depends on its age alone."""
        return bool(np.ptp(self.rates) == 0 and np.ptp(self.shrink) == 0)  # type: ignore[arg-type]

    @property
    def at_mean_rates(self) -> ModeCost:
        """The same with rates and shrink factors at their means."""
        rates, shrink = (np.full(self.size, np.mean(np.asarray(each))) for each in (self.rates, self.shrink))
        return dataclasses.replace(self, rates=rates, shrink=shrink)

    def inverse_bands(self, eigenvalue: float) -> Array:
        """R^-1[t, t - j], j < 3, shape (T, 3): from the states y of a mode back to injections x."""
        rates, shrink = np.asarray(self.rates), np.asarray(self.shrink)
        bands = np.zeros((self.size, 3))
        decay, beta = shrink * eigenvalue, self.momentum
        bands[:, 0] = 1 / rates
        bands[1:, 1] = -decay[1:] / rates[1:] - beta / rates[:-1]
        bands[2:, 2] = beta * decay[1:-1] / rates[1:-1]
        return bands

    @cached_property
    def later(self) -> Array:
        """What a response of each age counts where only the age matters, shape (T,): sum of w_r over r >= age."""
        return np.cumsum(self.step_weights[::-1])[::-1]

    @cached_property
    def gram(self) -> Array:
        """H as an array, shape (T, T): O(T^2) a mode."""
        T, total, at_once = self.size, np.zeros((self.size, self.size)), max(1, AT_ONCE // self.size**2)
        for start in range(0, self.eigenvalues.size, at_once):
            bands = np.stack([self.inverse_bands(lam) for lam in self.eigenvalues[start : start + at_once]])
            R, m = np.zeros((T + 2, *bands.shape[:1], T)), self.weights[start : start + at_once, None]
            for t in range(T):  # R^-1 R = I, then R^-T H = W R
                R[t, :, t] = 1.0
                R[t] = (R[t] - bands[:, t, 1, None] * R[t - 1] - bands[:, t, 2, None] * R[t - 2]) / bands[:, t, 0, None]
            R *= m
            padded = np.pad(bands, ((0, 0), (0, 2), (0, 0)))
            for t in range(T - 1, -1, -1):
                R[t] = self.step_weights[t] * R[t]
                R[t] -= padded[:, t + 1, 1, None] * R[t + 1] + padded[:, t + 2, 2, None] * R[t + 2]
                R[t] /= bands[:, t, 0, None]
            total += R[:T].sum(axis=1)
        return (total + total.T) / 2

    def series_objective(self, series: Array) -> tuple[float, Array]:
        """tr(H N N^T) and its gradient in d for the Toeplitz noising matrix N[t, s] = d_(t - s), d of shape (T,).

        Raises: ProblemError: where what an injection does depends on its step. Cost: O(T) a mode.
        """
        if not self.by_age:
            raise ProblemError("a Toeplitz encoder takes constant rates; give its coefficients to a banded one.")
        rate, shrink, beta = float(np.asarray(self.rates)[0]), float(np.asarray(self.shrink)[0]), self.momentum
        value, gradient = 0.0, np.zeros(self.size)
        for lam, m in zip(self.eigenvalues, self.weights, strict=True):
            recursion = np.array([1.0, -(shrink * lam + beta), beta * shrink * lam]) / rate
            columns = np.broadcast_to(recursion, (self.size, 3))
            e = solve_banded(columns, series)
            counted = m * self.later * e
            value += float(counted @ e)
            gradient += solve_banded(columns, counted, transposed=True)
        return value, 2 * gradient

    def encoder_objective(self, encoder: Encoder) -> float:
        """tr(H C^-1 C^-T) of any encoder, column by column: O(T^2) a mode."""
        total, T, width = 0.0, self.size, max(1, AT_ONCE // self.size)
        bands = [self.inverse_bands(lam) for lam in self.eigenvalues]
        for start in range(0, T, width):
            unit = np.eye(T, min(width, T - start), k=-start)
            noise = encoder.solve(unit)
            for m, rows in zip(self.weights, bands, strict=True):
                responses = solve_banded(columns_from_rows(rows), noise)
                total += m * float(self.step_weights @ (responses**2).sum(axis=1))
        return total


def _put_together(lam: Array, m: Array) -> tuple[Array, Array]:
    order = np.argsort(lam)  # bound: close ones are merged
    lam, m = lam[order], m[order]
    first = np.concatenate([[True], np.diff(lam) > SAME])
    weights = np.bincount(np.cumsum(first) - 1, weights=m).astype(np.float64)
    return lam[first][weights > 0], weights[weights > 0]


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


def noising_objective(diagonals: Array, columns: Array) -> tuple[float, Array]:
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
