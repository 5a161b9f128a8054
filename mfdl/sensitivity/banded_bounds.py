"""Sensitivity of banded lower triangular C over participation patterns, without an array of T x T.

O(T w) memory, w the bandwidth.

X[s, t] = 0 from |s - t| = w on, so the w diagonals of X are all of it. |<g_s, g_t>| <= 1, so sum |X[s, t]| over a
pattern bounds it, and is its value where signs d_t with d_s X[s, t] d_t >= 0 exist: always where no two steps of a
pattern are closer than w. The largest pattern, by dynamic programming over the step of the last use:

    best[t] = X[t, t] + max(best[s], s <= t - w;  best[s] + 2 |X[s, t]| + far[t - s, t], t - w < s <= t - gap),

far[d, t] the most that uses b or more before t - d add to X[., t]: 0 for two uses and for w <= 2 b, where the program
is exact. Bounds on at most k uses are in `mfdl_solvers.chains`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mfdl_solvers.chains import COUNTED, at_most
from mfdl_solvers.pattern_sets import LISTED, ONE_PER_BLOCK, PERIODIC, SEPARATED, PatternSet
from mfdl_solvers.ties import equal_to_largest, first_largest

from ..check import FloatArray
from ..floats import UNIT
from ..participation import Participation
from .elliptope import TOLERANCE
from .patterns import PatternBound


@dataclasses.dataclass(frozen=True, eq=False)
class BandedGram:
    """X = C^T C of a banded C by its diagonals.

    Attributes: columns: C[t + j, t] at [t, j], shape (T, w), 0 where t + j >= T.
    """

    columns: FloatArray

    @classmethod
    def of_rows(cls, bands: FloatArray) -> BandedGram:
        """Of bands[t, j] = C[t, t - j], shape (T, w); entries with t < j do not count."""
        T, w = bands.shape
        columns = np.zeros((T, min(w, T)))
        for j in range(columns.shape[1]):
            columns[: T - j, j] = bands[j:, j]
        return cls(columns)

    @property
    def size(self) -> int:
        return len(self.columns)

    @property
    def width(self) -> int:
        return self.columns.shape[1]

    def diagonal(self, lag: int) -> tuple[FloatArray, FloatArray]:
        """(X[t, t + lag], how far it may be off) for t = 0 .. T - 1 - lag; zeros from `width` on."""
        T, w = self.columns.shape
        if lag >= w:
            return np.zeros(max(T - lag, 0)), np.zeros(max(T - lag, 0))
        near, far = self.columns[: T - lag, lag:], self.columns[lag:, : w - lag]
        off = 2 * (w + 2) * UNIT * np.einsum("tj,tj->t", np.abs(near), np.abs(far))
        return np.einsum("tj,tj->t", near, far), off

    def sizes(self, lag: int) -> FloatArray:
        """|X[t - lag, t]| at most, shape (T,), 0 where t < lag."""
        values, off = self.diagonal(lag)
        most = np.zeros(self.size)
        most[lag:] = (np.abs(values) + off) * (1 + 2 * UNIT)
        return most


def banded_bound(gram: BandedGram, participation: Participation) -> PatternBound | None:
    """Bounds on sens^2 of a banded C; None for a kind of patterns that no rule here covers.

    Guarantees: upper is never below, lower never above the true value; exact where they meet within TOLERANCE.
    Cost: O(T w^2) time and O(T w) memory; for min-separation also up to 40 passes of O(T w) (`chains`).
    """
    if not np.isfinite(gram.columns).all():
        return PatternBound(math.inf, 0.0, False, (0,))
    patterns = participation.patterns_of_record()
    if patterns.kind not in BANDED_RULES:
        return None
    upper, pattern = BANDED_RULES[patterns.kind](gram, patterns)
    lower = _banded_attained(gram, pattern)
    return PatternBound(upper, lower, upper <= (1 + TOLERANCE) * lower, pattern)


def _banded_attained(gram: BandedGram, pattern: Sequence[int]) -> float:
    """A value attained by g_t = d_t g, signs d_t that make neighbours in the pattern add up, rounding taken off."""
    steps, w = np.asarray(pattern, dtype=np.intp), gram.width
    entries: list[tuple[NDArray[np.intp], FloatArray, FloatArray]] = []
    diagonals: dict[int, tuple[FloatArray, FloatArray]] = {}
    for q in range(len(steps)):
        lags = steps[q:] - steps[: len(steps) - q]
        inside = np.flatnonzero(lags < w)
        if not inside.size:
            break
        values, off = np.zeros(len(lags)), np.zeros(len(lags))
        for lag in np.unique(lags[inside]).tolist():
            if lag not in diagonals:
                diagonals[lag] = gram.diagonal(lag)
            at = np.flatnonzero(lags == lag)
            values[at], off[at] = (array[steps[at]] for array in diagonals[lag])
        entries.append((inside, values, off))
    signs = np.ones(len(steps))
    if len(entries) > 1:
        signs[1:] = np.cumprod(np.where(entries[1][1] < 0, -1.0, 1.0))
    total = size = 0.0
    for q, (inside, values, off) in enumerate(entries):
        signed = values * signs[q:] * signs[: len(steps) - q]
        total += (2 if q else 1) * float((signed - off)[inside].sum())
        size += (2 if q else 1) * float((np.abs(values) + off)[inside].sum())
    return max(0.0, total - 4 * (len(steps) + len(entries) + 4) * UNIT * size)


def _banded_periodic(gram: BandedGram, patterns: PatternSet) -> tuple[float, tuple[int, ...]]:
    uses, period = patterns.uses, patterns.gap
    lags = range(0, min(gram.width, gram.size), period)
    total = np.zeros(period)
    for lag in lags:
        total += (2 if lag else 1) * gram.sizes(lag).reshape(uses, period).sum(axis=0)
    upper = float(total.max()) * (1 + 4 * (uses + len(lags) + 4) * UNIT)
    return upper, tuple(range(first_largest(total), gram.size, period))


def _banded_listed(gram: BandedGram, patterns: PatternSet) -> tuple[float, tuple[int, ...]]:
    totals: list[float] = []
    sizes: dict[int, FloatArray] = {}
    listed = list(patterns.patterns())
    for steps in listed:
        total = 0.0
        for q in range(len(steps)):
            lags = steps[q:] - steps[: len(steps) - q]
            if lags.min() >= gram.width:
                break
            for lag in np.unique(lags[lags < gram.width]).tolist():
                if lag not in sizes:
                    sizes[lag] = gram.sizes(lag)
                total += (2 if q else 1) * float(sizes[lag][steps[q:][lags == lag]].sum())
        totals.append(total)
    return max(totals) * (1 + 4 * (gram.size + 4) * UNIT), tuple(listed[first_largest(totals)].tolist())


# ---- min-separation -----------------------------------------------------------------------------------------------


def _banded_separated(gram: BandedGram, patterns: PatternSet) -> tuple[float, tuple[int, ...]]:
    uses, separation = patterns.uses, patterns.gap
    lags = range(separation, gram.width) if uses > 1 else range(0)
    linked = _with_earlier([2 * gram.sizes(lag) for lag in lags], uses - 1, separation)
    upper, steps = at_most(uses, gram.sizes(0), linked, separation)
    return upper, steps or (0,)


def _with_earlier(linked: list[FloatArray], uses: int, separation: int) -> list[FloatArray]:
    """2 |X[t - lag, t]| + far[lag, t] of at most `uses` uses before t, the last of them at this lag.

    Args: linked: 2 |X[t - lag, t]| for lag = b, b + 1, ...
    """
    inside = min(uses, -(-len(linked) // separation))  # so many meet the band
    if inside <= 1:
        return linked
    none = [np.zeros(1)] * len(linked)
    together, heaviest = _one_more(linked, none if inside <= COUNTED else None, separation)
    for _ in range(1, inside if inside <= COUNTED else 1):
        together, heaviest = _one_more(linked, heaviest, separation)
    return together


def _one_more(
    linked: list[FloatArray], fewer: list[FloatArray] | None, separation: int
) -> tuple[list[FloatArray], list[FloatArray]]:
    """(sums with the last use at each lag, the largest of those from each lag on), one use more than in `fewer`.

    Args: fewer: the second of them; None: of any number of uses.
    """
    count = len(linked)
    together, heaviest = list(linked), list(linked)
    for i in reversed(range(count)):
        if i + separation < count:
            together[i] = linked[i] + (heaviest if fewer is None else fewer)[i + separation]
        heaviest[i] = together[i] if i + 1 == count else np.maximum(together[i], heaviest[i + 1])
    return together, heaviest


# ---- one step of each block ------------------------------------------------------------------------------------------


def _banded_one_per_block(gram: BandedGram, patterns: PatternSet) -> tuple[float, tuple[int, ...]]:
    """Best sums by the step of the last block's use; links to the block before, and bounds on those to earlier ones."""
    k, b, w = patterns.uses, patterns.num_steps // patterns.uses, gram.width
    sizes = [gram.sizes(lag).reshape(k, b) for lag in range(w)]
    lags = b + np.arange(b)[None, :] - np.arange(b)[:, None]  # of t' after s' in the block before

    def links(block: int, back: int) -> FloatArray:
        """2 |X[s, t]|, s in the block `back` before that of t, shape (b, b)."""
        entries = np.zeros((b, b))
        for s in range(b):
            for_t = lags[s] + (back - 1) * b
            inside = np.flatnonzero(for_t < w)
            entries[s, inside] = [2 * sizes[for_t[t]][block, t] for t in inside]
        return entries

    ending, choices = sizes[0][0], []
    reach = -(-(w - 1) // b) if w > 1 else 0  # blocks back that a link can reach, the farthest maybe in part
    for block in range(1, k):
        here = sizes[0][block].copy()
        for back in range(2, min(reach + 1, block) + 1):
            here += links(block, back).max(axis=0)
        through = ending[:, None] + (links(block, 1) if w > 1 else np.zeros((b, b)))
        choices.append(equal_to_largest(through, axis=0).argmax(axis=0))  # exact: booleans
        ending = here + through.max(axis=0)
    chain = [first_largest(ending)]
    for chosen in reversed(choices):
        chain.append(int(chosen[chain[-1]]))
    steps = tuple(block * b + offset for block, offset in enumerate(reversed(chain)))
    return float(ending.max()) * (1 + 4 * (k * (reach + 3) + 4) * UNIT), steps


BANDED_RULES: Mapping[str, Callable[[BandedGram, PatternSet], tuple[float, tuple[int, ...]]]] = {
    PERIODIC: _banded_periodic,
    SEPARATED: _banded_separated,
    ONE_PER_BLOCK: _banded_one_per_block,
    LISTED: _banded_listed,
}
"""(upper bound, a pattern near it) by the kind of patterns."""
