"""Which steps one record may take part in, as mathematics: a set of patterns, each a set of steps.

For weights of the steps the heaviest pattern, rounded up, alone bounds a sensitivity over all patterns. Other methods
make the bound better or faster: the patterns in turn, pairs of steps that no pattern holds, patterns near a pattern,
and `kind`, which says which rules for encoders with structure hold. The kinds:

    periodic      r, r + b, ..., r + (k - 1) b for each r < b, T = k b
    separated     at most k steps, any two of them b or more apart
    one per block one step, any, of each of k consecutive blocks of T / k
    listed        the given patterns
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from .arithmetic import UNIT, Array
from .chains import at_most
from .problem import ProblemError
from .ties import equal_to_largest, first_largest

BoolArray = NDArray[np.bool_]
Pattern = NDArray[np.intp]

PERIODIC, SEPARATED, ONE_PER_BLOCK, LISTED = "periodic", "separated", "one-per-block", "listed"


@dataclasses.dataclass(frozen=True)
class PatternSet(abc.ABC):
    """The patterns of one record. A set that answers only `heaviest` is bounded over arrays of T x T.

    Attributes:
        num_steps: T.
        uses: k, steps in a pattern at most; gap: b, how far apart they are at least.
        kind: which rules for encoders with structure hold; "" for none.
        few: whether `patterns` yields at most T patterns, or the given ones, so that all can be tried.
    Raises: ProblemError: a number below 1.
    """

    num_steps: int
    uses: int
    gap: int
    kind: ClassVar[str] = ""
    few: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if min(self.num_steps, self.uses, self.gap) < 1:
            raise ProblemError(
                f"patterns must have steps, uses k >= 1 and a gap b >= 1, got T = {self.num_steps}, k = {self.uses} "
                f"and b = {self.gap}."
            )

    @abc.abstractmethod
    def heaviest(self, weights: Array) -> tuple[float, tuple[int, ...]]:
        """The largest sum of weights >= 0 over a pattern, rounded up, and a pattern, or part of one, near it."""

    def patterns(self) -> Iterator[Pattern]:
        """The maximal patterns in turn, each sorted. Raises: NotImplementedError: the set knows no list of them."""
        raise NotImplementedError("these patterns are not listed, only the heaviest one is known.")

    @property
    def num_patterns(self) -> float:
        """The number of `patterns`, an integer; infinite where they are not listed."""
        return math.inf

    @property
    def in_every_step(self) -> bool:
        """Whether there is one pattern, with all steps; False if that is not known."""
        return self.uses == self.num_steps and self.num_patterns == 1

    def allows(self, steps: Sequence[int]) -> bool:
        """Whether all of these distinct steps lie in one pattern; False where the heaviest pattern does not show it."""
        return self._are_steps(steps) and set(steps) <= set(self.heaviest(self._marked(steps))[1])

    def reaches(self, steps: BoolArray) -> bool:
        """Whether some pattern holds one of the marked steps, shape (T,)."""
        return bool(steps.any()) and self.heaviest(steps.astype(np.float64))[0] > 0

    def free(self) -> BoolArray:
        """Entries (s, t), s != t, that no pattern holds; here by the heaviest pattern for each pair of steps.

        Cost: here the heaviest pattern for each pair of steps, once.
        """
        return self._apart

    @property
    def log_count(self) -> float:
        """How far `log_sum` may be above the heaviest."""
        return 0.0

    def log_sum(self, weights: Array) -> tuple[float, Array]:
        """log sum over patterns of exp(sum of weights), a smooth bound on the heaviest, and its gradient.

        Here the heaviest itself, where patterns are not known; no guarantee rests on it.
        """
        value, pattern = self.heaviest(weights)
        return value, self._marked(pattern)

    def neighbours(self, pattern: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Patterns, or parts of patterns, that differ a little; empty if none are known."""
        return []

    @cached_property
    def _apart(self) -> BoolArray:
        apart = np.zeros((self.num_steps, self.num_steps), dtype=bool)
        for s, t in itertools.combinations(range(self.num_steps), 2):
            apart[s, t] = apart[t, s] = self.heaviest(self._marked((s, t)))[0] < 2  # rounded up, so none holds both
        return apart

    def _are_steps(self, steps: Sequence[int]) -> bool:
        return all(0 <= step < self.num_steps for step in steps)

    def _marked(self, steps: Sequence[int]) -> Array:
        marked = np.zeros(self.num_steps)
        marked[list(steps)] = 1.0
        return marked


# ---- k uses that are b steps apart, or at least that -----------------------------------------------------------------


class Spaced(PatternSet):
    """k uses that are b or more steps apart: the sets that the search for encoders with structure takes."""

    def squared_size(self, series: Array) -> tuple[float, Array]:
        """||C 1_first||^2 and its gradient for Toeplitz C of coefficients c, shape (T,), at the first k steps b apart.

        The squared sensitivity itself where C has at most b diagonals, where uses are periodic and no coefficient is
        below 0, and where none is and they do not rise.
        """
        T, b = series.size, self.gap
        k = min(self.uses, -(-T // b))
        moved = _window(series, b, k)
        return float(moved @ moved), 2 * _window(moved[::-1], b, k)[::-1]


def _window(series: Array, b: int, k: int) -> Array:
    """sum over m < k of series[t - m b]."""
    T = series.size
    padded = np.zeros(-(-T // b) * b)
    padded[:T] = series
    sums = np.cumsum(padded.reshape(-1, b), axis=0)
    sums[k:] -= sums[:-k].copy()
    return sums.ravel()[:T]


class Periodic(Spaced):
    """r, r + b, ..., r + (k - 1) b for each r < b: disjoint, of all steps. Raises: ProblemError: T other than k b."""

    kind = PERIODIC
    few = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uses * self.gap != self.num_steps:
            raise ProblemError(
                f"periodic patterns must have k b = T, got k = {self.uses}, b = {self.gap} and T = {self.num_steps}."
            )

    def heaviest(self, weights: Array) -> tuple[float, tuple[int, ...]]:
        sums = weights.reshape(self.uses, self.gap).sum(axis=0)
        steps = tuple(range(first_largest(sums), self.num_steps, self.gap))
        return float(sums.max()) * (1 + 2 * (self.uses + 2) * UNIT), steps

    def patterns(self) -> Iterator[Pattern]:
        for start in range(self.gap):
            yield np.arange(start, self.num_steps, self.gap, dtype=np.intp)

    @property
    def num_patterns(self) -> int:
        return self.gap


class Separated(Spaced):
    """At most k uses, any two of them b steps or more apart; `uses` is no more than fit into T steps.

    The maximal patterns are those of k uses, and shorter ones into which no further use fits.
    """

    kind = SEPARATED

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "uses", min(self.uses, -(-self.num_steps // self.gap)))

    def patterns(self) -> Iterator[Pattern]:
        T, k, b = self.num_steps, self.uses, self.gap
        # depth first; `roomy` counts prefixes with a gap into which one more use fits: those need k uses
        chosen: list[int] = []
        roomy: list[bool] = []
        step = 0
        while True:
            before = chosen[-1] if chosen else -1
            fits = step - before >= (2 * b if chosen else b + 1)
            wide = fits or (bool(roomy) and roomy[-1])
            missing = k - len(chosen) - 1
            if step < T and not (wide and step + missing * b >= T):
                chosen.append(step)
                roomy.append(wide)
                if missing and step + b < T:
                    step += b
                    continue
                yield np.array(chosen, dtype=np.intp)
            elif not chosen:
                return
            step = chosen.pop() + 1
            roomy.pop()

    @cached_property
    def num_patterns(self) -> int:
        """Counted when needed: sums of numbers of as many digits as there are steps."""
        # T - 1 - (m-1) b steps of slack go to the m + 1 gaps before, between and after m uses: any way for
        # m = k; for a maximal shorter pattern less than b to each gap (inclusion and exclusion)
        k, b = self.uses, self.gap
        count = 0
        for m in range(1, k + 1):
            slack = self.num_steps - 1 - (m - 1) * b
            if slack < 0:
                break
            overfull = range(1) if m == k else range(min(m + 1, slack // b) + 1)
            count += sum((-1) ** j * math.comb(m + 1, j) * math.comb(slack - j * b + m, m) for j in overfull)
        return count

    @property
    def in_every_step(self) -> bool:
        return self.uses == self.num_steps

    def allows(self, steps: Sequence[int]) -> bool:
        apart = (np.diff(sorted(steps)) >= self.gap).all()
        return bool(apart) and len(steps) <= self.uses and self._are_steps(steps)

    def free(self) -> BoolArray:
        lag = np.abs(np.subtract.outer(np.arange(self.num_steps), np.arange(self.num_steps)))
        result: BoolArray = (lag > 0) & (lag < self.gap)
        return result

    def heaviest(self, weights: Array) -> tuple[float, tuple[int, ...]]:
        most, steps = at_most(self.uses, weights, (), self.gap)
        return most, steps or (0,)

    @property
    def log_count(self) -> float:
        return math.log(self.num_patterns)

    def log_sum(self, weights: Array) -> tuple[float, Array]:
        before = self._tables(weights)[: self.uses]
        after = np.logaddexp.accumulate(self._tables(weights[::-1])[: self.uses], axis=0)[:, ::-1]  # at most m uses
        through = weights + np.logaddexp.reduce(before + after[::-1], axis=0)  # all patterns that use step t
        ends = weights + before
        total = float(np.logaddexp.reduce(ends, axis=None))
        return total, np.exp(through - total)

    def _tables(self, weights: Array) -> Array:
        """log sum of exp over the patterns of exactly m uses, all of them b or more before t, shape (k + 1, T)."""
        table = np.full((self.uses + 1, self.num_steps), -math.inf)
        table[0] = 0.0
        for m in range(1, self.uses + 1):
            table[m] = self._shifted(np.logaddexp.accumulate(weights + table[m - 1]), -math.inf)
        return table

    def _shifted(self, values: Array, empty: float) -> Array:
        """values[t - b], and `empty` where t < b."""
        result = np.full(self.num_steps, empty)
        result[self.gap :] = values[: max(self.num_steps - self.gap, 0)]
        return result

    def neighbours(self, pattern: tuple[int, ...]) -> list[tuple[int, ...]]:
        T, b, m = self.num_steps, self.gap, len(pattern)
        near = []
        for i in range(m):
            low = pattern[i - 1] + b if i else 0
            high = pattern[i + 1] - b if i + 1 < m else T - 1
            near += [(*pattern[:i], t, *pattern[i + 1 :]) for t in range(low, high + 1) if t != pattern[i]]
            if pattern[-1] < T - 1:
                near.append((*pattern[:i], *(t + 1 for t in pattern[i:])))
            if pattern[0] > 0:
                near.append((*(t - 1 for t in pattern[: i + 1]), *pattern[i + 1 :]))
        if m < self.uses:
            fits = [t for t in range(T) if all(abs(t - s) >= b for s in pattern)]
            near += [tuple(sorted((*pattern, t))) for t in fits]
        return near


# ---- one step of each block, and patterns that are given -------------------------------------------------------------


class OnePerBlock(PatternSet):
    """One step of each of k consecutive blocks of `length` steps. Raises: ProblemError: k that does not divide T."""

    kind = ONE_PER_BLOCK

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_steps % self.uses:
            raise ProblemError(f"{self.num_steps} steps cannot be divided into {self.uses} blocks of equal length.")

    @property
    def length(self) -> int:
        """Steps of a block."""
        return self.num_steps // self.uses

    def patterns(self) -> Iterator[Pattern]:
        starts = np.arange(0, self.num_steps, self.length, dtype=np.intp)
        for offsets in itertools.product(range(self.length), repeat=self.uses):
            yield starts + np.array(offsets, dtype=np.intp)

    @property
    def num_patterns(self) -> int:
        return int(self.length**self.uses)

    def free(self) -> BoolArray:
        return np.kron(np.eye(self.uses), 1 - np.eye(self.length)) > 0

    def heaviest(self, weights: Array) -> tuple[float, tuple[int, ...]]:
        of_block = weights.reshape(self.uses, self.length)
        first = equal_to_largest(of_block, axis=1).argmax(axis=1)  # exact: booleans
        steps = tuple(int(t) for t in first + self.length * np.arange(self.uses))
        return float(of_block.max(axis=1).sum()) * (1 + 2 * (self.uses + 2) * UNIT), steps

    @property
    def log_count(self) -> float:
        return self.uses * math.log(self.length)

    def log_sum(self, weights: Array) -> tuple[float, Array]:
        of_block = weights.reshape(self.uses, self.length)
        sums = np.logaddexp.reduce(of_block, axis=1)
        return float(sums.sum()), np.exp(of_block - sums[:, None]).ravel()

    def neighbours(self, pattern: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [
            (*pattern[:i], t, *pattern[i + 1 :])
            for i in range(self.uses)
            for t in range(i * self.length, (i + 1) * self.length)
            if t != pattern[i]
        ]


@dataclasses.dataclass(frozen=True)
class Listed(PatternSet):
    """The patterns that are `given`, as `of` takes them: at least one, each sorted, of distinct steps."""

    given: tuple[tuple[int, ...], ...]
    kind: ClassVar[str] = LISTED
    few: ClassVar[bool] = True

    @classmethod
    def from_patterns(cls, patterns: Sequence[tuple[int, ...]], num_steps: int) -> Self:
        """With the numbers that follow from the patterns."""
        gaps = [t - s for pattern in patterns for s, t in itertools.pairwise(pattern)]
        return cls(num_steps, max(map(len, patterns)), min(gaps, default=num_steps), tuple(patterns))

    def patterns(self) -> Iterator[Pattern]:
        for members in self.given:
            yield np.array(members, dtype=np.intp)

    @property
    def num_patterns(self) -> int:
        return len(self.given)

    def heaviest(self, weights: Array) -> tuple[float, tuple[int, ...]]:
        sums = [float(weights[list(pattern)].sum()) for pattern in self.given]
        return max(sums) * (1 + 2 * (self.uses + 2) * UNIT), self.given[first_largest(sums)]


# ---- a record that several owners hold: pair (owner i, step t) of T steps has index i T + t --------------------------


@dataclasses.dataclass(frozen=True)
class ProductPatterns(PatternSet):
    """One pattern of each owner, in every combination; `parts`: the patterns of each owner, all of the same T."""

    parts: tuple[PatternSet, ...]

    @classmethod
    def from_parts(cls, parts: tuple[PatternSet, ...]) -> Self:
        """With the numbers that follow from the parts."""
        return cls(sum(part.num_steps for part in parts), sum(part.uses for part in parts), 1, parts)

    def heaviest(self, weights: Array) -> tuple[float, tuple[int, ...]]:
        of_parts = [part.heaviest(of) for part, of in zip(self.parts, self._split(weights), strict=True)]
        rounding, steps = 1 + 2 * len(of_parts) * UNIT, [steps for _, steps in of_parts]
        return sum(most for most, _ in of_parts) * rounding, self._joined(steps)

    def patterns(self) -> Iterator[Pattern]:
        for members in itertools.product(*(list(part.patterns()) for part in self.parts)):
            yield np.concatenate([members[i] + i * self._length for i in range(len(members))])

    @property
    def num_patterns(self) -> float:
        return math.prod(part.num_patterns for part in self.parts)

    def free(self) -> BoolArray:
        return np.asarray(scipy.linalg.block_diag(*(part.free() for part in self.parts)), dtype=bool)

    @property
    def log_count(self) -> float:
        return sum(part.log_count for part in self.parts)

    def log_sum(self, weights: Array) -> tuple[float, Array]:
        of_parts = [part.log_sum(of) for part, of in zip(self.parts, self._split(weights), strict=True)]
        return sum(value for value, _ in of_parts), np.concatenate([gradient for _, gradient in of_parts])

    def neighbours(self, pattern: tuple[int, ...]) -> list[tuple[int, ...]]:
        T = self._length
        members = [tuple(p - i * T for p in pattern if p // T == i) for i in range(len(self.parts))]
        return [
            self._joined([*members[:i], near, *members[i + 1 :]])
            for i, part in enumerate(self.parts)
            if members[i]
            for near in part.neighbours(members[i])
        ]

    @property
    def _length(self) -> int:
        return self.parts[0].num_steps

    def _split(self, weights: Array) -> Array:
        return weights.reshape(len(self.parts), -1)

    def _joined(self, members: list[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(int(t) + i * self._length for i, steps in enumerate(members) for t in steps)


@dataclasses.dataclass(frozen=True)
class CommonPatterns(PatternSet):
    """One pattern, the same for all owners; `part`: the patterns of one, `owners`: how many."""

    part: PatternSet
    owners: int

    @classmethod
    def from_part(cls, part: PatternSet, owners: int) -> Self:
        """With the numbers that follow from the part."""
        return cls(part.num_steps * owners, part.uses * owners, 1, part, owners)

    def heaviest(self, weights: Array) -> tuple[float, tuple[int, ...]]:
        most, steps = self.part.heaviest(self._summed(weights))
        return most * (1 + 2 * self.owners * UNIT), self._repeated(steps)

    def patterns(self) -> Iterator[Pattern]:
        for pattern in self.part.patterns():
            yield np.array(self._repeated(tuple(pattern.tolist())), dtype=np.intp)

    @property
    def num_patterns(self) -> float:
        return self.part.num_patterns

    def free(self) -> BoolArray:
        return np.asarray(np.tile(self.part.free(), (self.owners, self.owners)))

    @property
    def log_count(self) -> float:
        return self.part.log_count

    def log_sum(self, weights: Array) -> tuple[float, Array]:
        value, gradient = self.part.log_sum(self._summed(weights))
        return value, np.tile(gradient, self.owners)

    def neighbours(self, pattern: tuple[int, ...]) -> list[tuple[int, ...]]:
        steps = tuple(sorted({p % self.part.num_steps for p in pattern}))
        return [self._repeated(near) for near in self.part.neighbours(steps)]

    def _summed(self, weights: Array) -> Array:
        return np.asarray(weights.reshape(self.owners, -1).sum(axis=0))

    def _repeated(self, steps: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(t) + i * self.part.num_steps for i in range(self.owners) for t in steps)
