"""Participation: the sets of steps in which one record may take part.

A pattern belongs to one node and is a set of steps. The privacy unit (a record, or a user's whole data set)
moves only the gradients of its own node at the steps of one pattern. Only what can happen counts: the
record-to-step map is fixed over the epochs, public, and independent of which other records are present.
Reshuffled epochs are another scheme with a larger sensitivity, not one of these.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from . import check
from .errors import InvalidInput, UnsupportedMechanism

Pattern = NDArray[np.intp]


class Participation(abc.ABC):
    """Which steps one record may join; `patterns` are the maximal possibilities."""

    scheme: str

    @property
    @abc.abstractmethod
    def num_steps(self) -> int:
        """T, the number of gradient steps."""

    @abc.abstractmethod
    def patterns(self) -> Iterator[Pattern]:
        """The maximal sets of steps, each sorted, shape (k,)."""

    @abc.abstractmethod
    def describe(self) -> str:
        """A few words for sentences and captions."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, object]:
        """JSON form, with `scheme` first."""

    def classes(self) -> NDArray[np.intp]:
        """The class label of each step when the patterns partition the steps, shape (T,).

        Raises: UnsupportedMechanism: patterns overlap, or leave a step without a pattern.
        """
        labels = np.full(self.num_steps, -1, dtype=np.intp)
        for label, pattern in enumerate(self.patterns()):
            taken = pattern[labels[pattern] >= 0]
            if taken.size:
                raise UnsupportedMechanism(
                    f"factorization needs disjoint participation patterns, but {self.describe()} has step "
                    f"{int(taken[0])} in two patterns; use cyclic, single or every-step participation."
                )
            labels[pattern] = label
        if (labels < 0).any():
            step = int(np.argmax(labels < 0))
            raise UnsupportedMechanism(
                f"factorization needs every step in a pattern, but no record takes part in step {step} under "
                f"{self.describe()}; leave such steps out or add a pattern for them."
            )
        return labels


@dataclasses.dataclass(frozen=True)
class Cyclic(Participation):
    """(k, b)-cyclic: record r of a node takes part in steps r, r + b, ..., r + (k-1) b.

    Attributes:
        epochs: k >= 1, how often each record takes part.
        period: b >= 1, steps per epoch.
        steps: T, optional, must be epochs * period.

    >>> [p.tolist() for p in Cyclic(epochs=2, period=3).patterns()]
    [[0, 3], [1, 4], [2, 5]]
    """

    epochs: int
    period: int
    steps: int | None = None
    scheme = "cyclic"

    def __post_init__(self) -> None:
        check.integer_at_least(1, epochs=self.epochs)
        check.integer_at_least(1, period=self.period)
        T = self.epochs * self.period
        if self.steps is not None and self.steps != T:
            raise InvalidInput(
                f"steps must be epochs * period, got steps={self.steps}, epochs={self.epochs}, "
                f"period={self.period}; use steps={T} or leave it out."
            )
        object.__setattr__(self, "steps", T)

    @property
    def num_steps(self) -> int:
        return self.epochs * self.period

    def patterns(self) -> Iterator[Pattern]:
        for start in range(self.period):
            yield np.arange(start, self.num_steps, self.period, dtype=np.intp)

    def describe(self) -> str:
        return f"cyclic participation (epochs={self.epochs}, period={self.period})"

    def to_dict(self) -> dict[str, object]:
        return {"scheme": self.scheme, "epochs": self.epochs, "period": self.period}


@dataclasses.dataclass(frozen=True)
class Single(Participation):
    """Each record takes part in one step of its own: T patterns of one step."""

    steps: int
    scheme = "single"

    def __post_init__(self) -> None:
        check.integer_at_least(1, steps=self.steps)

    @property
    def num_steps(self) -> int:
        return self.steps

    def patterns(self) -> Iterator[Pattern]:
        for step in range(self.steps):
            yield np.array([step], dtype=np.intp)

    def describe(self) -> str:
        return f"single participation ({self.steps} steps)"

    def to_dict(self) -> dict[str, object]:
        return {"scheme": self.scheme, "steps": self.steps}


@dataclasses.dataclass(frozen=True)
class EveryStep(Participation):
    """The unit takes part in every step: user level. One pattern with all T steps."""

    steps: int
    scheme = "every-step"

    def __post_init__(self) -> None:
        check.integer_at_least(1, steps=self.steps)

    @property
    def num_steps(self) -> int:
        return self.steps

    def patterns(self) -> Iterator[Pattern]:
        yield np.arange(self.steps, dtype=np.intp)

    def describe(self) -> str:
        return f"participation in every one of {self.steps} steps (user level)"

    def to_dict(self) -> dict[str, object]:
        return {"scheme": self.scheme, "steps": self.steps}


@dataclasses.dataclass(frozen=True)
class Explicit(Participation):
    """The listed patterns and no others.

    Attributes: given: sequences of steps in [0, steps), each without repeats; steps: T.
    """

    given: tuple[tuple[int, ...], ...]
    steps: int
    scheme = "explicit"

    def __init__(self, patterns: Sequence[Sequence[int]], steps: int) -> None:
        check.integer_at_least(1, steps=steps)
        if not len(patterns):
            raise InvalidInput("patterns must hold at least one pattern, got none.")
        kept = []
        for number, pattern in enumerate(patterns):
            members = tuple(sorted(check.integer_at_least(0, step=step) for step in pattern))
            if not members or members[-1] >= steps or len(set(members)) != len(members):
                raise InvalidInput(
                    f"patterns[{number}] must be distinct steps in [0, {steps}), at least one, got {list(pattern)}."
                )
            kept.append(members)
        object.__setattr__(self, "given", tuple(kept))
        object.__setattr__(self, "steps", steps)

    @property
    def num_steps(self) -> int:
        return self.steps

    def patterns(self) -> Iterator[Pattern]:
        for members in self.given:
            yield np.array(members, dtype=np.intp)

    def describe(self) -> str:
        return f"explicit participation ({len(self.given)} patterns, {self.steps} steps)"

    def to_dict(self) -> dict[str, object]:
        return {"scheme": self.scheme, "steps": self.steps, "patterns": [list(p) for p in self.given]}
