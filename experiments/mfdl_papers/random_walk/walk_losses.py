"""Privacy losses of Gaussians drawn at random, composed and mixed: upper bounds on delta, by Fourier transforms.

What is composed is known to both worlds alike: which Gaussian it is. Nothing here knows of walks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy.special import ndtr

from mfdl.check import FloatArray

POINTS = 2**13
"""Of the grid of losses, to which they are rounded up: fewer give another upper bound."""
SMALLEST, LARGEST = 16.0, 1024.0  # how far the grid reaches, both ways
ORDER = 2.0  # of the moment that bounds what lies beyond
SLACK = 1e-11  # of delta: what floating point may do to the transforms, all sums being of probabilities
FAINT = 1e-14  # weights of a mixture that count as lost
LEAST = 1e-9  # a mu that is smaller counts as it
WIDTH = 9.0  # standard deviations beyond which a Gaussian has 1e-19


@dataclasses.dataclass(frozen=True, eq=False)
class WalkLosses:
    """A measure of privacy losses, of mass 1 or less.

    Attributes: transform: of what lies on the grid, loss 0 first, so that sums of losses are products; mass: all of it;
        moment: E exp(ORDER loss), for what comes round again; lost: mass that counts as infinite loss.
    """

    reach: float
    transform: NDArray[np.complex128]
    mass: float
    moment: float
    lost: float = 0.0

    @classmethod
    def none(cls, reach: float, mass: float = 1.0) -> WalkLosses:
        """Loss 0 with this mass."""
        return cls(reach, np.full(POINTS // 2 + 1, complex(mass)), mass, mass)

    @classmethod
    def gaussians(cls, reach: float, weights: FloatArray, mus: FloatArray) -> WalkLosses:
        """Of N(mu, 1) against N(0, 1), which has loss N(mu^2 / 2, mu^2), mu drawn with these weights."""
        step, half = 2 * reach / POINTS, POINTS // 2
        on_grid, lost, moment = np.zeros(POINTS), 0.0, 0.0
        for weight, given in zip(weights.tolist(), mus.tolist(), strict=True):
            mu = max(given, LEAST) if given else 0.0
            middle, top = mu * mu / 2, mu * mu / 2 + WIDTH * mu + step
            if mu == 0:
                on_grid[half] += weight
            elif weight < FAINT or top >= reach - step or middle - WIDTH * mu <= step - reach:
                lost += weight
                continue
            else:
                first = half + math.floor((middle - WIDTH * mu) / step)
                grid = step * (np.arange(first, half + math.ceil(top / step) + 1) - half)
                part = weight * np.diff(ndtr(grid / mu - mu / 2), prepend=0.0)
                lost += max(0.0, weight - float(part.sum()))
                on_grid[first : first + part.size] += part
            exponent = ORDER * (ORDER + 1) * middle + ORDER * step
            moment += weight * math.exp(exponent) if exponent < 700 else math.inf
        return cls(reach, scipy.fft.rfft(np.roll(on_grid, -half)), float(weights.sum()), moment, lost)

    def times(self, other: WalkLosses) -> WalkLosses:
        """Of both, independent."""
        lost = self.lost * other.mass + self.mass * other.lost
        return WalkLosses(
            self.reach, self.transform * other.transform, self.mass * other.mass, self.moment * other.moment, lost
        )

    def plus(self, other: WalkLosses) -> WalkLosses:
        """Of one or the other."""
        return WalkLosses(
            self.reach,
            self.transform + other.transform,
            self.mass + other.mass,
            self.moment + other.moment,
            self.lost + other.lost,
        )

    @property
    def never_counted(self) -> float:
        """Bound on the mass that is lost or lies beyond the grid, where it would come round again."""
        return self.lost + self.moment * math.exp(-ORDER * self.reach) + SLACK

    @functools.cached_property
    def _on_grid(self) -> tuple[FloatArray, FloatArray]:
        """(losses >= 0 of the grid, the mass at each)."""
        mass = np.asarray(scipy.fft.irfft(self.transform, POINTS), dtype=np.float64)
        return np.arange(POINTS // 2, dtype=np.float64) * (2 * self.reach / POINTS), mass[: POINTS // 2]

    def delta(self, epsilon: float) -> float:
        """An upper bound on E (1 - exp(epsilon - loss))_+."""
        losses, mass = self._on_grid
        above = losses > epsilon
        return float(np.maximum(mass[above], 0.0) @ -np.expm1(epsilon - losses[above])) + self.never_counted

    def epsilon(self, delta: float) -> float:
        """The least point of the grid with at most this delta; inf where there is none."""
        grid = self._on_grid[0]
        low, high = 0, grid.size - 1
        if self.delta(float(grid[high])) > delta:
            return math.inf
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.delta(float(grid[middle])) <= delta else (middle + 1, high)
        return float(grid[high])


def smallest_epsilon(losses: Callable[[float], WalkLosses], delta: float) -> float:
    """epsilon at delta on the least grid that reaches far enough; inf for a delta too small to be told from SLACK."""
    reach = SMALLEST
    while reach <= LARGEST:
        found = losses(reach)
        if found.never_counted <= delta / 100 and math.isfinite(epsilon := found.epsilon(delta)):
            return epsilon
        reach *= 2
    return math.inf
