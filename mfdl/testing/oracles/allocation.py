"""What random allocation of one Gaussian shift to one of b places loses at least: a lower bound, by merging atoms.

In: the shift over the std of the noise, b, epsilon or delta, a direction. Out: hockey sticks, and epsilon, never above
the true ones. Every divergence is E f(W_1 + .. + W_b) / b with f convex (`mfdl.privacy.allocation`). Where that module
spreads W on a linear grid and convolves by Fourier transforms, this merges atoms into their mean in cells of an asinh
grid, which lowers E f, and sums atom by atom, with positive terms only: no cancellation, at any delta.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtr

from ...check import FloatArray

REACH = 9.5
"""How far beyond both means the line is cut into cells, in standard deviations; what is beyond is one cell each."""


def _merged(values: FloatArray, mass: FloatArray, scale: float, step: float) -> tuple[FloatArray, FloatArray]:
    """Atoms of one cell of the grid scale sinh(k step) in place of all that lie in it."""
    cells = np.floor(np.arcsinh(values / scale) / step).astype(np.int64)
    cells -= cells.min()
    total, moment = (np.bincount(cells, weights).astype(np.float64) for weights in (mass, mass * values))
    occupied = total > 1e-290
    return moment[occupied] / total[occupied], total[occupied]


Atoms = tuple[FloatArray, FloatArray]
"""Values and their masses."""


def _sum(a: Atoms, b: Atoms, scale: float, step: float) -> Atoms:
    values, mass = np.add.outer(a[0], b[0]).ravel(), np.multiply.outer(a[1], b[1]).ravel()
    return _merged(values, mass, scale, step)


@functools.lru_cache(maxsize=512)
def _atoms(shift: float, bins: int, weight: float, points: int) -> Atoms:
    """Of the sum of b copies of W = Y - weight Y', smaller in convex order."""
    x = np.linspace(-REACH - (shift if weight else 0.0), shift + REACH, points + 1)
    mass, up, down = (_between(x, mean) for mean in (0.0, shift, -shift))
    occupied = mass > 0
    values = ((up - weight * down if weight else up)[occupied]) / mass[occupied]
    scale = math.exp(-shift * shift / 2) * (math.sqrt(weight) if weight else math.exp(-shift * 5.0))
    span = np.arcsinh(values / scale)
    step = float(span[-1] - span[0]) / points
    total: Atoms | None = None
    power, count = (values, mass[occupied]), bins
    while True:
        if count & 1:
            total = power if total is None else _sum(total, power, scale, step)
        count >>= 1
        if not count:
            assert total is not None
            return total
        power = _sum(power, power, scale, step)


def _between(x: FloatArray, mean: float) -> FloatArray:
    z = np.concatenate([[-np.inf], x - mean, [np.inf]])
    left, right = z[:-1], z[1:]
    return np.asarray(np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left)))


def delta(shift: float, bins: int, epsilon: float, direction: str, points: int = 1000) -> float:
    """The hockey stick of a direction, "kept", "lost" or "replaced": never above the true one, close with many points.

    Cost: points^2 for each doubling of bins.
    """
    grown = math.exp(epsilon)
    values, mass = _atoms(shift, bins, grown if direction == "replaced" else 0.0, points)
    gain = {"kept": values - bins * grown, "lost": bins / grown - values, "replaced": values}[direction]
    return float(mass @ np.maximum(gain, 0.0)) / bins * (grown if direction == "lost" else 1.0)


def epsilon(shift: float, bins: int, target: float, adjacency: str, points: int = 1000) -> float:
    """The least epsilon >= 0 at which neither direction loses more than the target, or a little less."""
    directions = ("replaced",) if adjacency == "replace-one" else ("kept", "lost")
    return _crossing(lambda e: max(delta(shift, bins, e, way, points) for way in directions), target)


def _crossing(curve: Callable[[float], float], level: float) -> float:
    if curve(0.0) <= level:
        return 0.0
    low, high = 0.0, 1.0
    while curve(high) > level:
        low, high = high, 2 * high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > level else (low, middle)
    return low
