"""Random allocation of one Gaussian shift to one of b places: its privacy loss, never below the true one.

The pair: under P one of b coordinates, drawn uniformly, is shifted by a; under Q none; noise of every coordinate is
N(0, 1). With Y = exp(a x - a^2/2), Y' = exp(-a x - a^2/2), x of Q, every divergence is E f(W_1 + ... + W_b) / b of
independent copies of one number W and a convex f:

    P against Q    W = Y             f(w) = (w - b e^epsilon)_+
    Q against P    W = Y             f(w) = (b - e^epsilon w)_+
    P against P'   W = Y - e^epsilon Y'    f(w) = w_+            (P' shifts by -a: the record is replaced)

Rounding goes one way. Exchanging W for its mean-preserving spread onto a grid, mass at the ends of a cell in place of
mass inside, raises E f for every convex f, and so does every later spread onto a coarser grid. Values beyond the grid
are moved to its ends, and how far, on average, is added to the answer: both f are Lipschitz. What floating point may
do to sums and to Fourier transforms is carried along and added too.
docs/balls_in_bins_theorem.md has the argument in full.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.fft
import scipy.special

from ...check import FloatArray
from .spread_atoms import between

LEAST, MOST = 2**12, 2**17
"""Grid points of a law; fewer are another upper bound, larger and sooner."""
ROUNDING = 2.0**-53
TRANSFORM = 24.0
"""Roundoff of one convolution (three transforms) in the 2-norm, in units of ROUNDING * log2(size)."""
MOMENTS = 32.0
"""Roundoff of the mean of one law, in units of ROUNDING and of its parts of mean one, once for each point."""
LOWER = 3.5
"""Where W is cut below, in standard deviations: raising W there raises what is asked of it, by next to nothing."""


@dataclasses.dataclass(frozen=True)
class _Law:
    """A number on the grid start + i step, larger in convex order than the true one, but for what was cut.

    Attributes:
        mass: probabilities, shape (points,).
        above, below: how far values beyond the ends were moved, on average: downwards, upwards.
        error, at_ends: bounds on the error of `mass`, the sum of two parts: the 2-norm of one, the 1-norm of the other.
    """

    start: float
    step: float
    mass: FloatArray
    above: float
    below: float
    error: float
    at_ends: float = 0.0

    @property
    def values(self) -> FloatArray:
        return np.asarray(self.start + self.step * np.arange(self.mass.size), dtype=np.float64)

    def beyond(self, points: FloatArray) -> FloatArray:
        """E (w - k)_+ at points k, at least: linear in k between the points of the grid."""
        at = np.cumsum(np.cumsum(self.mass[::-1]))[::-1] * self.step  # of k one step below each point
        grid = self.values
        rising = np.concatenate([at[1:], [0.0]])
        beyond = np.where(
            points < grid[0], rising[0] + (grid[0] - points) * self.mass.sum(), np.interp(points, grid, rising)
        )
        reach = np.maximum(grid[-1] - points, 0.0) + self.step
        off = self.error * np.sqrt(reach**3 / (3 * self.step)) * 2 + self.at_ends * reach
        return np.asarray(beyond * (1 + 8 * ROUNDING * self.mass.size) + off)

    def mirrored(self) -> _Law:
        """-w."""
        end = -(self.start + self.step * (self.mass.size - 1))
        return dataclasses.replace(self, start=end, mass=self.mass[::-1], above=self.below, below=self.above)

    def _off(self, f: FloatArray) -> float:
        """What errors of the mass may move E f by."""
        return (self.error * float(np.linalg.norm(f)) + self.at_ends * float(f.max(initial=0.0))) * (1 + 1e-9)

    def __add__(self, other: _Law) -> _Law:
        """The sum of independent numbers, on a grid of the coarser step."""
        a, b = self, other
        while a.step != b.step:
            a, b = (a.coarser(), b) if a.step < b.step else (a, b.coarser())
        size = a.mass.size + b.mass.size - 1
        length = scipy.fft.next_fast_len(size, real=True)
        product = scipy.fft.rfft(a.mass, length) * scipy.fft.rfft(b.mass, length)
        mass = np.maximum(scipy.fft.irfft(product, length)[:size], 0.0)
        norms = float(np.linalg.norm(a.mass)), float(np.linalg.norm(b.mass))
        transforms = TRANSFORM * ROUNDING * math.log2(length) * norms[0] * norms[1]
        both = math.sqrt(size) * a.error + a.at_ends  # 1-norm of what b's error is multiplied with, besides its mass
        error = (1 + 1e-9) * (a.error + b.error + both * b.error) + transforms
        ends = (1 + 1e-9) * (a.at_ends + b.at_ends + both * b.at_ends)
        return _Law(a.start + b.start, a.step, mass, a.above + b.above, a.below + b.below, error, ends)

    def coarser(self) -> _Law:
        """Twice the step: mass at odd points goes to both neighbours, half each."""
        mass = self.mass if self.mass.size % 2 else np.append(self.mass, 0.0)
        kept = mass[::2].copy()
        kept[:-1] += mass[1::2] / 2
        kept[1:] += mass[1::2] / 2
        return dataclasses.replace(self, step=2 * self.step, mass=kept, error=2 * self.error + 4 * ROUNDING)

    def cut(self, allowed: float, points: int) -> _Law:
        """Ends moved inwards while that moves values by at most `allowed` on average, then coarser until it fits."""
        top, bottom = np.cumsum(np.cumsum(self.mass[::-1])), np.cumsum(np.cumsum(self.mass))
        size = self.mass.size
        after = min(int(np.searchsorted(top * self.step, allowed)), size - 2)  # points that go at the top
        before = min(int(np.searchsorted(bottom * self.step, allowed)), size - 2 - after)
        kept = self.mass[before : size - after].copy()
        above, below = self.above, self.below
        if after:
            above += self._moved(np.arange(1.0, after + 1) * self.step, self.mass[size - after :])
            kept[-1] += self.mass[size - after :].sum()
        if before:
            below += self._moved(np.arange(before, 0, -1.0) * self.step, self.mass[:before])
            kept[0] += self.mass[:before].sum()
        start, ends = self.start + before * self.step, self.at_ends + 4 * ROUNDING
        ends += self.error * (math.sqrt(after) + math.sqrt(before))
        law = dataclasses.replace(self, start=start, mass=kept, above=above, below=below, at_ends=ends)
        while law.mass.size > points:
            law = law.coarser()
        return law

    def _moved(self, by: FloatArray, mass: FloatArray) -> float:
        return float(by @ mass) * (1 + 1e-9) + self._off(by)


def _summed(law: _Law, count: int, allowed: float, points: int) -> _Law:
    """The sum of `count` independent numbers of one law; cuts move no more than `allowed` each, for each number."""
    total: _Law | None = None
    power, numbers = law, 1
    while True:
        if count & 1:
            total = power if total is None else (total + power).cut(allowed * numbers, points)
        count >>= 1
        if not count:
            assert total is not None
            return total
        power, numbers = (power + power).cut(allowed * 2 * numbers, points), 2 * numbers


def _single(shift: float, weight: float, tail: float, points: int) -> _Law:
    """Y - weight Y' on a grid, larger in convex order; cut at the top where P has a mass of `tail` left."""
    half, reach = shift * shift / 2, -float(scipy.special.ndtri(tail))
    top = math.exp(half + shift * reach)
    bottom = -weight * math.exp(half + shift * LOWER) if weight else math.exp(-half - shift * reach)
    step = (top - bottom) / (points - 1)
    grid = bottom + step * np.arange(points)
    power = grid * math.exp(half)  # e^(shift x), where W is at a grid point
    if weight:
        root = np.sqrt(power * power + 4 * weight)
        power = np.where(power >= 0, (power + root) / 2, 2 * weight / (root - np.minimum(power, 0.0)))
    x = np.concatenate([[-np.inf], np.log(power) / shift, [np.inf]])
    mass = between(x, 0.0)
    moment = between(x, shift) - (weight * between(x, -shift) if weight else 0.0)
    inner = mass[1:-1]
    right = np.clip((moment[1:-1] - grid[:-1] * inner) / step, 0.0, inner)
    spread = np.zeros(points)
    spread[1:] += right
    spread[:-1] += inner - right
    spread[-1] += mass[-1]
    spread[0] += mass[0]
    rounding = MOMENTS * ROUNDING * ((points + 1 / shift) * (1 + weight) + abs(bottom) + top)
    above = max(0.0, moment[-1] - grid[-1] * mass[-1]) + rounding
    below = max(0.0, grid[0] * mass[0] - moment[0]) + rounding
    return _Law(bottom, step, spread, above, below, 4 * ROUNDING)


def kept_curve(shift: float, bins: int, epsilons: FloatArray, tail: float) -> FloatArray:
    """delta of P against Q and of Q against P at some epsilons, at least, shape (2, epsilons)."""
    points = _points(shift, tail, MOST)
    law = _summed(_single(shift, 0.0, tail, points), bins, tail, points)
    grown = np.exp(epsilons)
    deltas = (
        np.stack(
            [
                law.beyond(bins * grown) + law.above,
                grown * (law.mirrored().beyond(-bins / grown) + law.below),
            ]
        )
        / bins
    )
    return np.clip(deltas, np.maximum(0.0, -np.expm1(epsilons)), 1.0)


def replaced_curve(shift: float, bins: int, epsilons: FloatArray, tail: float, most: int = MOST // 8) -> FloatArray:
    """delta of P against P', the same both ways, at epsilons >= 0, at least, shape (epsilons,)."""
    points = _points(shift, tail, most)
    deltas = np.empty(epsilons.size)
    for i, grown in enumerate(np.exp(epsilons)):
        law = _summed(_single(shift, float(grown), tail, points), bins, tail, points)
        deltas[i] = (law.beyond(np.zeros(1))[0] + law.above) / bins
    return np.clip(deltas, 0.0, 1.0)


def largest(shift: float, tail: float) -> float:
    """Y beyond which P has a mass of `tail`: the end of the grid."""
    return math.exp(shift * shift / 2 - shift * float(scipy.special.ndtri(tail)))


def _points(shift: float, tail: float, most: int) -> int:
    """Grid points: enough for steps that are small against the spread of Y, as long as that many are allowed."""
    fine = largest(shift, tail) / (0.05 * math.sqrt(math.expm1(min(shift * shift, 100.0))))
    return int(min(max(2.0 ** math.ceil(math.log2(fine)), LEAST), most))
