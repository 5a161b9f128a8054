"""Sensitivity of encoders with structure over participation patterns: by bands, series or inverse, else by C^T C.

Banded lower triangular C, bandwidth w, O(T w) memory: X[s, t] = 0 from |s - t| = w on, so the w diagonals of X are all
of it. |<g_s, g_t>| <= 1, so sum |X[s, t]| over a pattern bounds it, and is its value where signs d_t with d_s X[s, t]
d_t >= 0 exist: always where no two steps of a pattern are closer than w. The largest pattern, by dynamic programming
over the step of the last use:

    best[t] = X[t, t] + max(best[s], s <= t - w;  best[s] + 2 |X[s, t]| + far[t - s, t], t - w < s <= t - gap),

far[d, t] the most that uses b or more before t - d add to X[., t]: 0 for two uses and for w <= 2 b, where the program
is exact. Bounds on at most k uses are in `mfdl_solvers.chains`.

Toeplitz lower triangular C, from its coefficients alone, O(T) memory: X = C^T C is never formed. With |c_j| <= h_j,
sens(C) <= sens(H) for the Toeplitz H of h, since <g_s, g_t> is at most 1 in size; and H has entries >= 0, so that g_t =
g for all t attains its sensitivity on each pattern.

- One pattern: ||sum_{t in pi} H[:, t]||^2. Of patterns r, r + b, ..., that of r = 0 is the largest: the others are its
  first T - r rows. So cyclic participation costs O(T), and is exact where c >= 0. Where signs differ,
  sum |X[s, t]| over the pattern is less, from sums of c_j c_{j+d} at the lags d that are multiples of b: O(T k).
- Min-separation: where h does not increase, no pattern beats 0, b, 2b, ... (arXiv:2405.13763, Theorem 2). Any c has its
  envelope h_j = max_{i >= j} |c_i|, which does not increase: an upper bound, and the value where c is >= 0 and does not
  increase. Where H falls otherwise, X_H[s, t] <= X_H[0, t - s]: no use s sees more of those that follow than the best
  lags b apart, and X_H[s, s] falls, so X_H at 0, b, ... and what 0 .. k - 1 lags add up to is an upper bound as well.
- One step of each block: X_H[s, t] falls in s and in t - s, so the steps t_i of blocks i < j have
  X_H[t_i, t_j] <= X_H[i b, i b + max((j - i - 1) b + 1, 1)]. An upper bound.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from mfdl_solvers.chains import COUNTED, at_most
from mfdl_solvers.encoders import Coefficients, Encoder, defect_inflation, rounding_of_substitution
from mfdl_solvers.pattern_sets import LISTED, ONE_PER_BLOCK, PERIODIC, SEPARATED, PatternSet
from mfdl_solvers.ties import equal_to_largest, first_largest, first_maximum

from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..floats import UNIT
from ..noise.encoder_arguments import MAX_DENSE_STEPS
from ..participation import Participation
from .patterns import PatternBound, bound


@dataclasses.dataclass(frozen=True, eq=False)
class BandedGram:
    """X = C^T C of a banded C by its diagonals: C[t + j, t] at [t, j], shape (T, w), 0 where t + j >= T."""

    columns: FloatArray

    @classmethod
    def from_rows(cls, bands: FloatArray) -> BandedGram:
        """From bands[t, j] = C[t, t - j], shape (T, w); entries with t < j do not count."""
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
    return PatternBound.between(upper, _banded_attained(gram, pattern), pattern)


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
        total += (2 if q else 1) * float((values * signs[q:] * signs[: len(steps) - q] - off)[inside].sum())
        size += (2 if q else 1) * float((np.abs(values) + off)[inside].sum())
    return max(0.0, total - 4 * (len(steps) + len(entries) + 4) * UNIT * size)


def _banded_periodic(gram: BandedGram, patterns: PatternSet) -> tuple[float, tuple[int, ...]]:
    uses, period = patterns.uses, patterns.gap
    lags, total = range(0, min(gram.width, gram.size), period), np.zeros(period)
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
    """2 |X[t - lag, t]| + far[lag, t] of at most `uses` uses before t, the last at this lag, for lags b, b + 1, ..."""
    inside = min(uses, -(-len(linked) // separation))  # so many meet the band
    if inside <= 1:
        return linked
    together, heaviest = _one_more(linked, [np.zeros(1)] * len(linked) if inside <= COUNTED else None, separation)
    for _ in range(1, inside if inside <= COUNTED else 1):
        together, heaviest = _one_more(linked, heaviest, separation)
    return together


def _one_more(
    linked: list[FloatArray], fewer: list[FloatArray] | None, separation: int
) -> tuple[list[FloatArray], list[FloatArray]]:
    """(sums with the last use at each lag, the largest from each lag on), one more use than `fewer` (None: any)."""
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


MAX_PRODUCTS = 10**9
"""Products of two coefficients up to which signs are taken into account: a second or two."""
FFT_UNITS = 32
"""Units, for each doubling of the length, by which an autocorrelation by FFT may be off: of its norm, plus lag 0."""


def toeplitz_bound(c: Coefficients, participation: Participation) -> PatternBound | None:
    """Bounds on sens^2 of a Toeplitz C; None for a kind of patterns that no rule above covers.

    Guarantees: those of `banded_bound`.
    Cost: O(T) time and memory, O(T k) where signs differ or for one step of each block.
    """
    if not np.isfinite(c.high).all():
        return PatternBound(math.inf, 0.0, False, (0,))
    patterns = participation.patterns_of_record()
    rule = TOEPLITZ_RULES.get(patterns.kind)
    return None if rule is None else rule(c, patterns)


def _periodic(c: Coefficients, patterns: PatternSet) -> PatternBound:
    k, b = patterns.uses, patterns.gap
    upper = _squares_up(*_repeated(c.high, k, b))
    if (c.values < c.errors).any() and c.size * k <= MAX_PRODUCTS:
        upper = min(upper, _by_lags(c, k, b))
    return _attained_at(c, k, b, upper)


def _separated(c: Coefficients, patterns: PatternSet) -> PatternBound:
    k, b, high = patterns.uses, patterns.gap, c.high
    upper = _squares_up(*_repeated(_envelope(high), k, b))
    if (np.diff(high) > 0).any() and c.size * k <= MAX_PRODUCTS:
        upper = min(upper, _by_later_uses(high, k, b))
    return _attained_at(c, k, b, upper)


def _one_per_block(c: Coefficients, patterns: PatternSet) -> PatternBound | None:
    k, b = patterns.uses, patterns.num_steps // patterns.uses
    if c.size * k > MAX_PRODUCTS:
        return None
    return _attained_at(c, k, b, _spread_over_blocks(_envelope(c.high), k, b))


def _attained_at(c: Coefficients, uses: int, separation: int, upper: float) -> PatternBound:
    """An upper bound with what 0, b, ..., (k - 1) b attain."""
    return PatternBound.between(upper, _attained_regularly(c, uses, separation), _regular(c.size, uses, separation))


def _regular(num_steps: int, uses: int, separation: int) -> tuple[int, ...]:
    return tuple(range(0, num_steps, separation))[:uses]


def _listed(c: Coefficients, patterns: PatternSet) -> PatternBound | None:
    given = [tuple(pattern.tolist()) for pattern in patterns.patterns()]
    if c.size * sum(map(len, given)) > MAX_PRODUCTS:
        return None
    upper = max(_squares_up(*_pattern_sums(c.high, pattern)) for pattern in given)
    attained = [_attained(c, pattern) for pattern in given]
    return PatternBound.between(upper, max(attained), given[first_largest(attained)])


def _envelope(high: FloatArray) -> FloatArray:
    return np.maximum.accumulate(high[::-1])[::-1]


def _shifted(values: FloatArray, pattern: Sequence[int], signs: Sequence[int] | None = None) -> FloatArray:
    total = np.zeros(len(values))
    for i, step in enumerate(pattern):
        total[step:] += (1 if signs is None else signs[i]) * values[: len(values) - step]
    return total


def _pattern_sums(high: FloatArray, pattern: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """`_shifted` of h >= 0, and how far each sum may be off."""
    sums = _shifted(high, pattern)
    return sums, 2 * (len(pattern) + 1) * UNIT * sums


def _repeated(high: FloatArray, uses: int, separation: int) -> tuple[FloatArray, FloatArray]:
    """`_pattern_sums` of 0, b, ..., (k - 1) b, in O(T)."""
    T, b = len(high), separation
    rows = -(-T // b)
    padded = np.zeros(rows * b)
    padded[:T] = high
    running = np.cumsum(padded.reshape(rows, b), axis=0)
    sums = running.copy()
    sums[uses:] -= running[: max(rows - uses, 0)]
    return sums.ravel()[:T], 4 * (rows + 2) * UNIT * running.ravel()[:T]


def _squares_up(sums: FloatArray, off: FloatArray) -> float:
    return float(((sums + off) ** 2).sum()) * (1 + 2 * (len(sums) + 4) * UNIT)


def _squares_down(sums: FloatArray, off: FloatArray) -> float:
    return float((np.clip(sums - off, 0.0, None) ** 2).sum()) * (1 - 2 * (len(sums) + 4) * UNIT)


def _attained(c: Coefficients, pattern: Sequence[int]) -> float:
    """A value that g_t = g, or g and -g in turn, attain on a pattern, rounding and errors taken off."""
    if c.size * len(pattern) > MAX_PRODUCTS:
        return 0.0
    _, rounding = _pattern_sums(c.high, pattern)
    off = _shifted(c.errors, pattern) * (1 + 4 * (len(pattern) + 1) * UNIT) + rounding
    turns = [[1] * len(pattern), [(-1) ** i for i in range(len(pattern))]]
    sums = [_shifted(c.values, pattern, signs) for signs in (turns if (c.values < 0).any() else turns[:1])]
    return max(_squares_down(np.abs(values), off) for values in sums)


def _attained_regularly(c: Coefficients, uses: int, separation: int) -> float:
    """`_attained` on 0, b, ..., (k - 1) b; in O(T) where no coefficient is below its error."""
    low = c.values - c.errors
    if (low < 0).any():
        return _attained(c, _regular(c.size, uses, separation))
    return _squares_down(*_repeated(low * (1 - 2 * UNIT), uses, separation))


def _by_lags(c: Coefficients, uses: int, period: int) -> float:
    """The largest over r of sum |X[s, t]| over s and t in r, r + b, ..., rounded up."""
    T, high, sizes = c.size, c.high, np.abs(c.values)
    total = np.zeros(period)
    for m in range(uses):
        d = m * period
        near, far = slice(0, T - d), slice(d, T)
        most = np.cumsum(high[near] * high[far])
        off = np.cumsum(high[near] * high[far] - sizes[near] * sizes[far]) + 4 * (T + 4) * UNIT * most
        entries = np.abs(np.cumsum(c.values[near] * c.values[far])) + off  # of X[t, t + d], t from the last to 0
        total += (2 if m else 1) * entries.reshape(uses - m, period).sum(axis=0)
    return float(total.max()) * (1 + 4 * (uses + 4) * UNIT)


def _by_later_uses(high: FloatArray, uses: int, separation: int) -> float:
    """X_H[i b, i b] and twice the most that 0, 1, ..., k - 1 later uses add, rounded up."""
    T, b, exponent = len(high), separation, int(np.frexp(high.max())[1])
    h, length = np.ldexp(high, -exponent), scipy.fft.next_fast_len(2 * T, real=True)
    entries = scipy.fft.irfft(np.abs(scipy.fft.rfft(h, length)) ** 2, length)[:T]  # X_H[0, d]
    entries = np.maximum(entries, 0) + FFT_UNITS * UNIT * np.log2(length) * (np.linalg.norm(entries) + entries[0])
    total = float(np.cumsum(h**2)[T - 1 - b * np.arange(uses)].sum())
    best = np.zeros(T + b)  # of so many lags, none below d
    for _ in range(1, uses):
        best[:T] = np.maximum.accumulate((entries + best[b:])[::-1])[::-1]
        total += 2 * float(best[b])
    with np.errstate(over="ignore"):
        return float(np.ldexp(total * (1 + 4 * (T + uses + 4) * UNIT), 2 * exponent))


def _spread_over_blocks(high: FloatArray, blocks: int, length: int) -> float:
    """sum over i of X_H[i b, i b] and 2 sum over i < j of the bounds above, rounded up."""
    T, b = len(high), length
    starts, running = b * np.arange(blocks), np.cumsum(high**2)
    total = float(running[T - 1 - starts].sum())
    for gap in range(1, blocks):
        d = (gap - 1) * b + 1
        running = np.cumsum(high[: T - d] * high[d:])
        total += 2 * float(running[T - 1 - d - starts[: blocks - gap]].sum())
    return total * (1 + 4 * (T + blocks + 4) * UNIT)


TOEPLITZ_RULES: Mapping[str, Callable[[Coefficients, PatternSet], PatternBound | None]] = {
    PERIODIC: _periodic,
    SEPARATED: _separated,
    ONE_PER_BLOCK: _one_per_block,
    LISTED: _listed,
}
"""By the kind of patterns; of one without a rule the array C^T C is bounded."""


MAX_SUBSTITUTION = 10**10  # products
IMPROVED = 512  # T up to which a bound that is not exact is improved by the Gram matrix
BLOCK = 10**6  # numbers of one substitution at once


def structured_bound(encoder: Encoder, participation: Participation, method: str = "exact") -> PatternBound:
    """Bounds on max over patterns and ||g_t|| <= 1 of ||C g||^2, with the guarantees of `banded_bound`.

    Raises: UnsupportedMechanism: a participation that takes C^T C as an array, over more steps than that is formed for.
    Guarantees: upper is never below, lower never above the true value; exact where they meet within TOLERANCE.
    """
    bounds = [each for each in _by_structure(encoder, participation) if each is not None]
    best = _best(bounds) if bounds else None
    T = encoder.size
    improved = min(IMPROVED, MAX_DENSE_STEPS) if method == "exact" else 0
    if best is not None and (best.exact or improved < T):
        return best
    if T > MAX_DENSE_STEPS:
        raise UnsupportedMechanism(
            f"the sensitivity of a {type(encoder).__name__} encoder under {participation.describe()} takes an array "
            f"of T x T, which is limited to {MAX_DENSE_STEPS} steps, got {T}; use cyclic participation of fewer "
            "classes, or an encoder that is Toeplitz or banded itself."
        )
    C = np.tril(encoder.dense())
    off = encoder.entry_rounding * np.asarray(np.abs(C).T @ np.abs(C))
    written = bound(C.T @ C, participation, method, off + 2 * (T + 2) * UNIT * (np.abs(C).T @ np.abs(C)))
    more = defect_inflation(encoder.written_defect(C))
    written = dataclasses.replace(written, upper=written.upper * more, lower=written.lower / more)
    return _best([*bounds, written])


def _best(bounds: list[PatternBound]) -> PatternBound:
    upper, lower = min(each.upper for each in bounds), max(each.lower for each in bounds)
    return PatternBound.between(upper, lower, first_maximum(bounds, lambda each: each.lower).pattern)


def _by_structure(encoder: Encoder, participation: Participation) -> Iterator[PatternBound | None]:
    if (c := encoder.certified_series()) is not None:
        yield toeplitz_bound(c, participation)
    if (rows := encoder.diagonals()) is not None:
        yield banded_bound(BandedGram.from_rows(rows), participation)
    yield _comparison_bound(encoder, participation)


def _comparison_bound(encoder: Encoder, participation: Participation) -> PatternBound | None:
    """||M 1_pattern||^2 of patterns that are classes, where the diagonals of C^-1 were given."""
    rows, patterns = encoder.noise_diagonals(), participation.patterns_of_record()
    if rows is None or patterns.kind != PERIODIC:
        return None
    T, w = rows.shape
    b = patterns.gap
    if T * w * b > MAX_SUBSTITUTION:
        return None
    squares = np.zeros(b)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, b, width := max(1, BLOCK // w)):
            classes = np.arange(start, min(start + width, b))
            for row in encoder.class_sums(b, classes) or ():
                squares[start : start + width] += row**2
    rounding = 2 * rounding_of_substitution(T, w) + 4 * (T + 4) * UNIT
    largest = float(squares.max())
    upper = largest * (1 + 2 * rounding)
    if not math.isfinite(upper):
        return PatternBound(math.inf, 0.0, False, (int(np.argmax(~np.isfinite(squares))),))  # exact: booleans
    lower = largest * (1 - 2 * rounding) if encoder.nonnegative else 0.0
    return PatternBound.between(upper, lower, range(first_largest(squares), T, b))
