"""Patterns of a record that several owners hold: sets of pairs (owner, step), owner after owner.

Pair (i, t) of T steps has index i T + t. Either each owner takes part by patterns of its own, in any combination
(`ProductPatterns`), or all in the same steps (`CommonPatterns`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Self

import numpy as np
import scipy.linalg

from .arithmetic import UNIT, Array
from .pattern_sets import BoolArray, Pattern, PatternSet


@dataclasses.dataclass(frozen=True)
class ProductPatterns(PatternSet):
    """One pattern of each owner, in every combination.

    Attributes: parts: the patterns of each owner, all of the same T.
    """

    parts: tuple[PatternSet, ...]

    @classmethod
    def from_parts(cls, parts: tuple[PatternSet, ...]) -> Self:
        """With the numbers that follow from the parts."""
        return cls(sum(part.num_steps for part in parts), sum(part.uses for part in parts), 1, parts)

    def heaviest(self, weights: Array) -> tuple[float, tuple[int, ...]]:
        of_parts = [part.heaviest(of) for part, of in zip(self.parts, self._split(weights), strict=True)]
        return sum(most for most, _ in of_parts) * (1 + 2 * len(of_parts) * UNIT), self._joined(
            [steps for _, steps in of_parts]
        )

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
    """One pattern, the same for all owners.

    Attributes: part: the patterns of one owner; owners: how many.
    """

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
