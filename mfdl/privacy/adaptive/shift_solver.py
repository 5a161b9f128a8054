"""The first-order method of shift reduction. Nothing in this file can make a bound too small.

In: a `System`, which holds the recursion and its masks, and the sources of the victims. Out: the
best point met, with the value that `System.repaired` computes for it, rounded up. Steps, prices and dual values, which
are here, only decide where to go next and when to stop.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from ...check import FloatArray
from .shift_problem import BoolArray, Repaired, System

CHECK_EVERY = 25  # iterations between two certificates


@dataclasses.dataclass(eq=False)
class ShiftMinimum:
    value: FloatArray
    lower: FloatArray
    shifts: FloatArray
    iterations: int

    def improve(self, columns: NDArray[np.int64], point: Repaired, lower: FloatArray) -> None:
        better = point.value < self.value[columns]
        self.value[columns[better]] = point.value[better]
        self.shifts[:, :, columns[better]] = point.shifts[:, :, better]
        self.lower[columns] = np.fmax(self.lower[columns], lower)

    def finished(self, columns: NDArray[np.int64], tolerance: float) -> BoolArray:
        value = self.value[columns]
        return (self.lower[columns] >= (1 - tolerance) * value) | ~np.isfinite(value)


def minimise(system: System, source: FloatArray, iterations: int, tolerance: float) -> ShiftMinimum:
    """The best repaired point met, with the best dual value, for every column of `source`."""
    width = source.shape[2]
    columns = np.arange(width)
    start = system.repaired(np.zeros_like(source), source)
    best = ShiftMinimum(start.value.copy(), _dual_value(system, start, source), start.shifts.copy(), 0)
    two_sided = system.cost.matrix is None
    penalty = np.zeros_like(system.scale)
    if not two_sided:
        penalty[system.step_rounds] = system.scale[system.step_rounds] ** 2 * system.cost.diagonal
    tau = _step_sizes(system, penalty)
    weight = np.zeros_like(tau)
    np.divide(1.0, tau, out=weight, where=tau > 0)
    keep = ~best.finished(columns, tolerance)
    columns, source = columns[keep], source[:, :, keep]
    current = np.zeros_like(source)
    ahead, momentum, multiplier = current.copy(), np.ones(columns.size), np.zeros_like(source)
    while columns.size and best.iterations < iterations:
        best.iterations += 1
        a = _absorbed(system, ahead, source)
        gradient = _gradient(system, a)
        if not two_sided:
            gradient -= np.maximum(multiplier - penalty[:, :, None] * a, 0.0)
        of_r, _ = _prices(system, gradient, dual=False)
        of_r -= gradient
        of_r *= tau
        new = ahead - of_r
        np.maximum(new, 0.0, out=new)
        step = new - current
        ahead -= new
        ahead *= weight
        uphill = np.einsum("rnb,rnb->b", ahead, step) > 0
        momentum[uphill] = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        factor = np.where(uphill, 0.0, (momentum - 1) / following)
        step *= factor
        ahead = new + step
        momentum, current = following, new
        if best.iterations % CHECK_EVERY and best.iterations < iterations:
            continue
        point = system.repaired(current, source)
        best.improve(columns, point, _dual_value(system, point, source))
        if not two_sided:
            a = _absorbed(system, current, source)
            multiplier = np.maximum(multiplier - penalty[:, :, None] * a, 0.0)
        keep = ~best.finished(columns, tolerance)
        if not keep.all():
            columns, source, momentum = columns[keep], source[:, :, keep], momentum[keep]
            current, ahead, multiplier = current[:, :, keep], ahead[:, :, keep], multiplier[:, :, keep]
    return best


# The recursion, forward for what is absorbed and backward for prices


def _absorbed(system: System, shifts: FloatArray, source: FloatArray) -> FloatArray:
    """a = d - r for any r on the free entries: linear, nothing clipped, entries without noise 0."""
    R, n, width = source.shape
    a = np.empty((R, n, width))
    s = np.zeros((n, width))
    for r in range(R):
        d = system.growth[r][:, None] * s
        d += source[r]
        np.subtract(d, shifts[r], out=a[r])
        a[r] *= system.noise[r][:, None]
        carried = np.where(system.forced[r][:, None], d, shifts[r]) if system.forced[r].any() else shifts[r]
        s = system.forward_weights[r] @ carried
    return a


def _prices(system: System, gradient: FloatArray, *, dual: bool) -> tuple[FloatArray, FloatArray]:
    """(price of r, price of d), each (R, n, B), for the price `gradient` of a, by the transposed recursion.

    With `dual`, the price of d at free entries is cut to the price of r, which makes it feasible for the dual.
    """
    R, n, width = gradient.shape
    of_r, of_d = np.zeros((R, n, width)), np.empty((R, n, width))
    for r in range(R - 1, -1, -1):
        if r + 1 < R:
            of_r[r] = system.backward_weights[r] @ (system.growth[r + 1][:, None] * of_d[r + 1])
        noise, forced = system.noise[r][:, None], system.forced[r][:, None]
        of_d[r] = gradient[r]
        if dual:
            np.minimum(of_d[r], of_r[r], out=of_d[r], where=system.free[r][:, None])
        of_d[r] *= noise
        if system.forced[r].any():
            np.copyto(of_d[r], of_r[r], where=forced)
    return of_r, of_d


def _gradient(system: System, absorbed: FloatArray) -> FloatArray:
    """Half the derivative of the cost by a, (R, n, B)."""
    g = np.zeros_like(absorbed)
    scale = system.scale[system.step_rounds][:, :, None]
    g[system.step_rounds] = scale * system.cost.apply(scale * absorbed[system.step_rounds])
    return g


def _dual_value(system: System, point: Repaired, source: FloatArray) -> FloatArray:
    """A lower bound on the optimum from a primal point, (B,); equal to its cost exactly at an optimum.

    With prices q of d that satisfy q <= Q a at noisy entries and q <= (price of r) at free ones, weak duality gives
    2 theta <source, q> - theta^2 a^T Q a for every theta >= 0; the best theta gives the square below.
    """
    gradient = _gradient(system, point.absorbed)
    _, q = _prices(system, gradient, dual=True)
    attained = np.maximum(np.einsum("rnb,rnb->b", source, q), 0.0)
    spent = np.einsum("rnb,rnb->b", point.absorbed, gradient)
    positive = spent > 0
    return np.where(positive, attained**2 / np.where(positive, spent, 1.0), 0.0)


def _step_sizes(system: System, extra: FloatArray) -> FloatArray:
    """(R, n, 1) diagonal tau with diag(1 / tau) >= Hessian: weighted row sums of its magnitudes.

    `extra` is the curvature (R, n) added to the cost by the penalty on a < 0.
    """
    unit = np.zeros_like(system.scale)
    np.divide(1.0, system.scale, out=unit, where=system.free)
    R, n = unit.shape
    a = np.empty((R, n, 1))
    s = np.zeros((n, 1))
    for r in range(R):
        d = system.growth[r][:, None] * s
        a[r] = np.where(system.noise[r][:, None], d + unit[r][:, None], 0.0)
        s = system.forward_weights[r] @ np.where(system.forced[r][:, None], d, unit[r][:, None])
    gradient = _gradient(system, a) + extra[:, :, None] * a
    of_r, _ = _prices(system, gradient, dual=False)
    rows = (of_r + gradient)[:, :, 0]
    tau = np.zeros_like(rows)
    np.divide(unit, rows, out=tau, where=system.free)
    return tau[:, :, None]
