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

Laws on a linear grid serve small shifts. Where the shift is large, W spans many orders of magnitude, and a linear grid
of as many points as are affordable is coarse where the loss is decided. Cells are then even in asinh(w / scale), and
sums are taken atom by atom and spread again. Every term is positive, so masses keep a relative precision however small
they are. Mass beyond the range that is resolved goes to the outermost atoms of a law, by a spread as well. Only what Y
exceeds at `REACH` standard deviations under P is added to the answer, and for P against P' numbers are raised to where
no others can make up for them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import scipy

from ...check import FloatArray
from ...floats import UNIT

LEAST, MOST = 2**12, 2**17  # grid points of a law; fewer are another upper bound, larger and sooner
ROUNDING = 2.0**-53
TRANSFORM = 24.0
"""Roundoff of one convolution (three transforms) in the 2-norm, in units of ROUNDING * log2(size)."""
MOMENTS = 32.0
"""Roundoff of the mean of one law, in units of ROUNDING and of its parts of mean one, once for each point."""
LOWER = 3.5
"""Where W is cut below, in standard deviations: raising W there raises what is asked of it, by next to nothing."""
POINTS = 400  # atoms of a law; a sum costs their square
REACH = 8.5  # standard deviations up to which Y is resolved, under P above and under Q below
NEGLIGIBLE = 3e-17
"""Mass below, and mean excess above, of what is not resolved but spread to the ends of a law."""
MEANS = 1e-12  # relative: what floating point may do to the mean of an atom, in all sums together
BLOCK = 4096  # epsilons that are looked at together, for memory
LEAST_SHIFT, LARGEST_SHIFT = 1e-7, {False: 18.0, True: 12.0}
"""Shifts for which float64 holds these laws, of a record that is left out or replaced."""
GROUP = 5  # atoms that are looked at together where a range is chosen
Atoms = tuple[FloatArray, FloatArray]  # increasing values, and their masses
Number = TypeVar("Number")


# ---- laws on a linear grid -------------------------------------------------------------------------------------------


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
        before = rising[0] + (grid[0] - points) * self.mass.sum()
        beyond = np.where(points < grid[0], before, np.interp(points, grid, rising))
        reach = np.maximum(grid[-1] - points, 0.0) + self.step
        off = self.error * np.sqrt(reach**3 / (3 * self.step)) * 2 + self.at_ends * reach
        return np.asarray(beyond * (1 + 8 * ROUNDING * self.mass.size) + off)

    def mirrored(self) -> _Law:
        end = -(self.start + self.step * (self.mass.size - 1))
        return dataclasses.replace(self, start=end, mass=self.mass[::-1], above=self.below, below=self.above)

    def _off(self, f: FloatArray) -> float:
        """How far errors of the mass may move E f."""
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
        even = mass[::2].copy()
        even[:-1] += mass[1::2] / 2
        even[1:] += mass[1::2] / 2
        return dataclasses.replace(self, step=2 * self.step, mass=even, error=2 * self.error + 4 * ROUNDING)

    def cut(self, allowed: float, points: int) -> _Law:
        """Ends moved inwards while that moves values by at most `allowed` on average, then coarser until it fits."""
        top, bottom = np.cumsum(np.cumsum(self.mass[::-1])), np.cumsum(np.cumsum(self.mass))
        size = self.mass.size
        after = min(int(np.searchsorted(top * self.step, allowed)), size - 2)  # points that go at the top
        before = min(int(np.searchsorted(bottom * self.step, allowed)), size - 2 - after)
        inner = self.mass[before : size - after].copy()
        above, below = self.above, self.below
        if after:
            above += self._moved(np.arange(1.0, after + 1) * self.step, self.mass[size - after :])
            inner[-1] += self.mass[size - after :].sum()
        if before:
            below += self._moved(np.arange(before, 0, -1.0) * self.step, self.mass[:before])
            inner[0] += self.mass[:before].sum()
        start, ends = self.start + before * self.step, self.at_ends + 4 * ROUNDING
        ends += self.error * (math.sqrt(after) + math.sqrt(before))
        law = dataclasses.replace(self, start=start, mass=inner, above=above, below=below, at_ends=ends)
        while law.mass.size > points:
            law = law.coarser()
        return law

    def _moved(self, by: FloatArray, mass: FloatArray) -> float:
        return float(by @ mass) * (1 + 1e-9) + self._off(by)


def _summed(law: Number, count: int, add: Callable[[Number, Number, int], Number]) -> Number:
    """The sum of `count` independent numbers of one law, by doubling; `add` takes how many numbers the second is."""
    total, power, numbers = None, law, 1
    while True:
        if count & 1:
            total = power if total is None else add(total, power, numbers)
        count >>= 1
        if not count:
            assert total is not None
            return total
        power, numbers = add(power, power, 2 * numbers), 2 * numbers


def _summed_laws(law: _Law, count: int, allowed: float, points: int) -> _Law:
    """The sum of `count` independent numbers of one law; cuts move no more than `allowed` each, for each number."""
    return _summed(law, count, lambda a, b, numbers: (a + b).cut(allowed * numbers, points))


def _single_law(shift: float, weight: float, tail: float, points: int) -> _Law:
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
    law = _summed_laws(_single_law(shift, 0.0, tail, points), bins, tail, points)
    grown = np.exp(epsilons)
    forward, backward = law.beyond(bins * grown) + law.above, grown * (law.mirrored().beyond(-bins / grown) + law.below)
    return np.clip(np.stack([forward, backward]) / bins, np.maximum(0.0, -np.expm1(epsilons)), 1.0)


def replaced_curve(shift: float, bins: int, epsilons: FloatArray, tail: float, most: int = MOST // 8) -> FloatArray:
    """delta of P against P', the same both ways, at epsilons >= 0, at least, shape (epsilons,)."""
    points = _points(shift, tail, most)
    deltas = np.empty(epsilons.size)
    for i, grown in enumerate(np.exp(epsilons)):
        law = _summed_laws(_single_law(shift, float(grown), tail, points), bins, tail, points)
        deltas[i] = (law.beyond(np.zeros(1))[0] + law.above) / bins
    return np.clip(deltas, 0.0, 1.0)


def largest(shift: float, tail: float) -> float:
    """Y beyond which P has a mass of `tail`: the end of the grid."""
    return math.exp(shift * shift / 2 - shift * float(scipy.special.ndtri(tail)))


def _points(shift: float, tail: float, most: int) -> int:
    """Grid points: enough for steps that are small against the spread of Y, as long as that many are allowed."""
    fine = largest(shift, tail) / (0.05 * math.sqrt(math.expm1(min(shift * shift, 100.0))))
    return int(min(max(2.0 ** math.ceil(math.log2(fine)), LEAST), most))


# ---- atoms on a logarithmic grid -------------------------------------------------------------------------------------


def fits(shift: float, doubled: bool) -> bool:
    """Whether all numbers fit into float64, and steps of the grid are above its roundoff."""
    return LEAST_SHIFT <= shift <= LARGEST_SHIFT[doubled]


def epsilon_at(shift: float, bins: int, doubled: bool, delta: float, most: float) -> float:
    """The least epsilon up to `most` at which delta is certified; inf where none is."""

    def excess(e: float) -> float:
        return math.log(delta_at(shift, bins, doubled, e) / delta)

    if not excess(most) <= 0:
        return math.inf
    if excess(0.0) <= 0:
        return 0.0
    root, more = float(scipy.optimize.brentq(excess, 0.0, most, xtol=1e-9, rtol=1e-9)), 1e-9
    while root < most and excess(root) > 0:
        root, more = min(most, root + more * (1 + root)), 2 * more
    return root


@functools.lru_cache(maxsize=4096)
def delta_at(shift: float, bins: int, doubled: bool, epsilon: float) -> float:
    """delta at one epsilon >= 0, of both directions the larger."""
    at = np.array([epsilon])
    return float((replaced_deltas if doubled else kept_deltas)(shift, bins, at).max())


def kept_deltas(shift: float, bins: int, epsilons: FloatArray) -> FloatArray:
    """delta of P against Q and of Q against P at some epsilons >= 0, at least, shape (2, epsilons)."""
    values, mass = _atoms_of_sum(shift, bins)
    deltas = np.empty((2, epsilons.size))
    for start in range(0, epsilons.size, BLOCK):
        block = slice(start, start + BLOCK)
        grown = np.exp(epsilons[block])[:, None]
        deltas[0, block] = np.maximum(values * (1 + MEANS) - bins * grown, 0.0) @ mass
        deltas[1, block] = np.maximum(bins - grown * (1 - MEANS) * values, 0.0) @ mass
    return _rounded_up(deltas / bins, bins)


@functools.lru_cache(maxsize=64)
def _atoms_of_sum(shift: float, bins: int) -> Atoms:
    return _summed_atoms(_single_atoms(shift, 0.0), bins, math.exp(-shift * shift / 2 - shift * REACH), -math.inf)


def replaced_deltas(shift: float, bins: int, epsilons: FloatArray) -> FloatArray:
    """delta of P against P', the same both ways, at epsilons >= 0, at least, shape (epsilons,)."""
    bottom, deltas = -bins * math.exp(shift * shift / 2 + shift * REACH), np.empty(epsilons.size)
    for i, at in enumerate(epsilons):
        weight, scale = math.exp(float(at)), math.exp(float(at) / 2 - shift * shift / 2)
        values, mass = _summed_atoms(_single_atoms(shift, weight), bins, scale, bottom)
        deltas[i] = np.maximum(values, 0.0) @ mass / bins
    return _rounded_up(deltas, bins)


def _rounded_up(deltas: FloatArray, bins: int) -> FloatArray:
    """With what masses lack by rounding, and what was cut."""
    beyond = 2 * float(scipy.special.ndtr(-REACH))
    return np.asarray(np.minimum(1.0, deltas * (1 + bins * (4 * POINTS**2 * UNIT + MEANS)) + beyond))


def _single_atoms(shift: float, weight: float) -> Atoms:
    """Y - weight Y', larger in convex order, its values beyond the end of the line moved there."""
    x = np.linspace(-REACH - (shift if weight else 0.0), shift + REACH, POINTS)
    half, edges = shift * shift / 2, np.concatenate([[-np.inf], x, [np.inf]])
    values, mass, moment, lowest = np.exp(shift * x - half), between(edges, 0.0), between(edges, shift), 0.0
    if weight:  # raised to the lowest value
        down = weight * between(edges, -shift)
        values = values - weight * np.exp(-shift * x - half)
        lowest, mass, moment = mass[0], mass[1:], (moment - down + MEANS * (moment + down))[1:]
    else:
        values = np.concatenate([[0.0], values])
    cells = mass[:-1]
    right = np.clip((moment[:-1] - values[:-1] * cells) / np.diff(values), 0.0, cells)
    placed = np.append(cells - right, mass[-1])
    placed[1:] += right
    placed[0] += lowest
    return values, placed


def between(x: FloatArray, mean: float) -> FloatArray:
    """Mass of N(mean, 1) between neighbouring points, each to a relative precision."""
    z = x - mean
    upper = z[:-1] > 0
    low, high = scipy.special.ndtr(np.where(upper, -z[1:], z[:-1])), scipy.special.ndtr(np.where(upper, -z[:-1], z[1:]))
    return np.asarray(np.maximum(high - low, 0.0))


def _summed_atoms(law: Atoms, count: int, scale: float, bottom: float) -> Atoms:
    """The sum of `count` independent numbers; values below the bottom are raised to it."""
    return _summed(law, count, lambda a, b, _: _sum(a, b, scale, bottom))


def _sum(a: Atoms, b: Atoms, scale: float, bottom: float) -> Atoms:
    values, mass = np.add.outer(a[0], b[0]).ravel(), np.multiply.outer(a[1], b[1]).ravel()
    if bottom > -math.inf:
        values = np.maximum(values + MEANS / 64 * np.abs(values), bottom)
    grid = _grid(float(values.min()), float(values.max()), *_resolved(a, b), scale)
    if grid.size == 1:  # all raised to the bottom
        return grid, np.array([mass.sum()])
    at = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, grid.size - 2)
    right = np.clip((values - grid[at]) / (grid[at + 1] - grid[at]), 0.0, 1.0) * mass
    spread: FloatArray = np.bincount(at, mass - right, grid.size).astype(np.float64)
    spread[1:] += np.bincount(at, right, grid.size)[:-1]
    return grid, spread


def _resolved(a: Atoms, b: Atoms) -> tuple[float, float]:
    """Values of the sum between which there is mass that counts, by groups of atoms: any are valid."""
    low, high, mass = zip(*(_grouped(*law) for law in (a, b)), strict=True)
    lows, highs, masses = np.add.outer(*low).ravel(), np.add.outer(*high).ravel(), np.multiply.outer(*mass).ravel()
    upwards, downwards = np.argsort(lows), np.argsort(-highs)  # bound
    first = np.searchsorted(np.cumsum(masses[upwards]), NEGLIGIBLE)
    highs, masses = highs[downwards], masses[downwards]
    excess = np.cumsum(masses * highs) - highs * np.cumsum(masses)  # E (w - h)_+ at each of the highs
    last = int(np.flatnonzero(excess <= NEGLIGIBLE).max(initial=0))
    return float(lows[upwards[first]]), float(highs[last])


def _grouped(values: FloatArray, mass: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Least and largest value and mass of the first atom, which may be far from all others, and of each GROUP atoms."""
    starts = np.concatenate([[0], np.arange(1, values.size, GROUP)])
    return values[starts], values[np.append(starts[1:], values.size) - 1], np.add.reduceat(mass, starts)


def _grid(low: float, high: float, start: float, end: float, scale: float) -> FloatArray:
    """Both ends, zero where it is between them, and points even in asinh from start to end."""
    inner = scale * np.sinh(np.linspace(math.asinh(start / scale), math.asinh(end / scale), POINTS))
    inner = inner[(inner > low) & (inner < high)]
    return np.unique(np.concatenate([[low, high], inner, [0.0] if low < 0 < high else []]))
