"""Random allocation of a large shift: its privacy loss by atoms on a logarithmic grid, never below the true one.

The numbers W and the argument are those of `allocation`: a mean-preserving spread of W raises E f for every convex f.
Where the shift is large, W spans many orders of magnitude, and a linear grid of as many points as are affordable is
coarse where the loss is decided. Here cells are even in asinh(w / scale), and sums are taken atom by atom and spread
again. Every term is positive, so masses keep a relative precision however small they are.

Mass beyond the range that is resolved goes to the outermost atoms of a law, by a spread as well. Only what Y exceeds
at `REACH` standard deviations under P is added to the answer, and for P against P' numbers are raised to where no
others can make up for them.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy.optimize
import scipy.special

from ...check import FloatArray
from ...floats import UNIT

POINTS = 400
"""Atoms of a law; a sum costs their square."""
REACH = 8.5
"""Standard deviations up to which Y is resolved, under P above and under Q below."""
NEGLIGIBLE = 3e-17
"""Mass below, and mean excess above, of what is not resolved but spread to the ends of a law."""
MEANS = 1e-12
"""Relative: what floating point may do to the mean of an atom, in all sums together."""
BLOCK = 4096
"""Epsilons that are looked at together, for memory."""
LEAST_SHIFT, LARGEST_SHIFT = 1e-7, {False: 18.0, True: 12.0}
"""Shifts for which float64 holds these laws, of a record that is left out or replaced."""
GROUP = 5
"""Atoms that are looked at together where a range is chosen."""

Atoms = tuple[FloatArray, FloatArray]
"""Increasing values, and their masses."""


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
    values, mass = _kept(shift, bins)
    deltas = np.empty((2, epsilons.size))
    for start in range(0, epsilons.size, BLOCK):
        block = slice(start, start + BLOCK)
        grown = np.exp(epsilons[block])[:, None]
        deltas[0, block] = np.maximum(values * (1 + MEANS) - bins * grown, 0.0) @ mass
        deltas[1, block] = np.maximum(bins - grown * (1 - MEANS) * values, 0.0) @ mass
    return _rounded_up(deltas / bins, bins)


@functools.lru_cache(maxsize=64)
def _kept(shift: float, bins: int) -> Atoms:
    """The sum of Y."""
    return _summed(_single(shift, 0.0), bins, math.exp(-shift * shift / 2 - shift * REACH), -math.inf)


def replaced_deltas(shift: float, bins: int, epsilons: FloatArray) -> FloatArray:
    """delta of P against P', the same both ways, at epsilons >= 0, at least, shape (epsilons,)."""
    bottom, deltas = -bins * math.exp(shift * shift / 2 + shift * REACH), np.empty(epsilons.size)
    for i, at in enumerate(epsilons):
        weight, scale = math.exp(float(at)), math.exp(float(at) / 2 - shift * shift / 2)
        values, mass = _summed(_single(shift, weight), bins, scale, bottom)
        deltas[i] = np.maximum(values, 0.0) @ mass / bins
    return _rounded_up(deltas, bins)


def _rounded_up(deltas: FloatArray, bins: int) -> FloatArray:
    """With what masses lack by rounding, and what was cut."""
    beyond = 2 * float(scipy.special.ndtr(-REACH))
    return np.asarray(np.minimum(1.0, deltas * (1 + bins * (4 * POINTS**2 * UNIT + MEANS)) + beyond))


def _single(shift: float, weight: float) -> Atoms:
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


def _summed(law: Atoms, count: int, scale: float, bottom: float) -> Atoms:
    """The sum of `count` independent numbers, by doubling; values below the bottom are raised to it."""
    total: Atoms | None = None
    while True:
        if count & 1:
            total = law if total is None else _sum(total, law, scale, bottom)
        count >>= 1
        if not count:
            assert total is not None
            return total
        law = _sum(law, law, scale, bottom)


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
    upwards, downwards = np.argsort(lows), np.argsort(-highs)
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
