"""Participation: the sets of steps in which one record may take part.

The privacy unit moves only the gradients of its own node at the steps of one pattern. Only what can happen counts:
`Cyclic` holds while the record-to-step map is fixed over the epochs, public, and independent of which other records are
present. Epochs that are reshuffled are `OncePerEpoch`, with a larger sensitivity; where only gaps between uses are sure
it is `MinSeparation`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfdl_solvers.pattern_sets import Listed, OnePerBlock, Pattern, PatternSet, Periodic, Separated

from .. import check
from ..display import short_repr
from ..errors import InvalidInput, UnsupportedMechanism
from ..spec import Entry, Registry, storable


@dataclasses.dataclass(frozen=True)
class SchemeEntry(Entry):
    """A scheme whose parameters follow from a run, where some are `called` otherwise: {"bins": "period"}."""

    called: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def takes(self) -> set[str]:
        return {self.called.get(name, name) for name, parameter in self.signature.items() if parameter.required}

    def from_run(self, **run: Any) -> Any:
        """The participation of a run. Args: run: epochs k, period b, steps T, rate of records that are sampled."""
        names = {name: self.called.get(name, name) for name in self.signature}
        return self(**{name: run[called] for name, called in names.items() if called in run})


SCHEMES: Registry[SchemeEntry] = Registry("participation", SchemeEntry)
"""Participations by name, as the command line takes them: every scheme is registered where it is defined."""


class Participation(abc.ABC):
    """The steps that one record may join: all follows from `patterns_of_record`.

    A `PatternSet` that knows its heaviest pattern alone is enough for sensitivities and accounting.

    Attributes:
        secret: steps are drawn secretly, so there are no patterns (`Sampled`).
        instead_in_files: text to write in the place of a scheme that is not `storable`.
    """

    scheme: str
    secret = False
    instead_in_files = "list its patterns with mfdl.participation.Explicit"

    @property
    @abc.abstractmethod
    def num_steps(self) -> int:
        """T, the number of gradient steps."""

    @abc.abstractmethod
    def patterns_of_record(self) -> PatternSet:
        """The maximal sets of steps. Raises: UnsupportedMechanism: none common to all nodes, or none public."""

    def patterns(self) -> Iterator[Pattern]:
        """The maximal sets, each sorted, shape (k,). Raises: UnsupportedMechanism: they are not listed."""
        try:
            return self.patterns_of_record().patterns()
        except NotImplementedError as error:
            raise UnsupportedMechanism(f"{self.describe()}: {error}") from None

    @property
    def num_patterns(self) -> float:
        """Number of `patterns`, found without listing them; infinite where they are not listed."""
        return self.patterns_of_record().num_patterns

    @property
    def in_every_step(self) -> bool:
        """Whether the one pattern, at every node, is the set of all steps."""
        return self.patterns_of_record().in_every_step

    @property
    def cycle(self) -> int | None:
        """b, where the same records take part every b steps; None for another scheme."""
        return None

    @property
    def fed_every(self) -> int | None:
        """b, where training feeds step t the records of class t mod b; None without such a rule."""
        if self.cycle is not None:
            return self.cycle
        return 1 if self.in_every_step else None

    @property
    def num_bins(self) -> int | None:
        """b, where each record secretly draws one of b bins, else None."""
        return None

    @property
    def public(self) -> Participation:
        """The scheme that an encoder is made for, another one where steps are drawn secretly."""
        return self

    def first_steps(self, steps: int) -> Participation:
        """The scheme of the first `steps` steps, or of a few more: those of whole epochs.

        >>> Cyclic(epochs=4, period=3).first_steps(4)
        Cyclic(epochs=2, period=3, steps=6)

        Raises: UnsupportedMechanism: a scheme that has no shorter one.
        """
        raise UnsupportedMechanism(f"{self.describe()} cannot be cut to its first steps.")

    def require_public(self, refusal: str = "") -> None:
        """Raises: UnsupportedMechanism: participation is drawn secretly."""
        if self.secret and refusal:
            raise UnsupportedMechanism(refusal)
        if self.secret:
            self.patterns_of_record()

    def patterns_of_bins(self, name: str, otherwise: str) -> PatternSet:
        """The patterns of which each record draws one. Raises: UnsupportedMechanism: no balls-in-bins."""
        if self.num_bins is not None:
            return self.public.patterns_of_record()
        raise UnsupportedMechanism(
            f"{name} is for balls-in-bins, BallsInBins(epochs, bins), got {self.describe()}; take {otherwise}."
        )

    def allows(self, steps: Sequence[int]) -> bool:
        """Whether these distinct steps lie in one pattern.

        >>> Cyclic(epochs=2, period=3).allows([1, 4]), Cyclic(epochs=2, period=3).allows([1, 3])
        (True, False)
        """
        checked = [check.integer(step=step) for step in check.listed("steps, e.g. [0, 2]", steps=steps)]
        return self.patterns_of_record().allows(checked)

    @abc.abstractmethod
    def describe(self) -> str:
        """Words for sentences and captions."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, object]:
        """JSON form, with `scheme` first."""

    def at_node(self, node: int) -> Participation:
        return self

    def shared_by(self, nodes: Sequence[int]) -> list[tuple[Participation, list[int]]]:
        """(participation, its nodes), in order of appearance."""
        return [(self, list(nodes))]

    def distinct(self) -> tuple[Participation, ...]:
        return (self,)

    @property
    def num_nodes(self) -> int | None:
        return None

    def require_nodes(self, num_nodes: int) -> None:
        """Raises: InvalidInput: it was given for another number of nodes."""
        if self.num_nodes not in (None, num_nodes):
            raise InvalidInput(
                f"participation is given for {self.num_nodes} nodes, but there are {num_nodes}; give one participation "
                "for each node."
            )

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
            step = int(np.argmax(labels < 0))  # exact: booleans
            raise UnsupportedMechanism(
                f"factorization needs every step in a pattern, but no record takes part in step {step} under "
                f"{self.describe()}; leave such steps out or add a pattern for them."
            )
        return labels


@dataclasses.dataclass(frozen=True)
class NumberedScheme(Participation):
    """A scheme that its numbers describe: integers >= 1, and a `rate` in (0, 1)."""

    def __post_init__(self) -> None:
        for name in self._numbers():
            given: dict[str, Any] = {name: getattr(self, name)}
            number = check.open_unit(**given) if name == "rate" else check.integer_at_least(1, **given)
            object.__setattr__(self, name, number)

    @classmethod
    def _numbers(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING]

    def to_dict(self) -> dict[str, object]:
        return {"scheme": self.scheme, **{name: getattr(self, name) for name in self._numbers()}}

    def first_steps(self, steps: int) -> Participation:
        if type(self).__module__ != __name__:  # a user's subclass may have other patterns
            return super().first_steps(steps)
        numbers = {name: getattr(self, name) for name in self._numbers()}
        shorter = {"epochs": -(-steps // numbers["period"])} if "period" in numbers else {"steps": steps}
        return type(self)(**{**numbers, **shorter})


@dataclasses.dataclass(frozen=True)
class EpochScheme(NumberedScheme):
    epochs: int
    period: int

    @property
    def num_steps(self) -> int:
        return self.epochs * self.period


@dataclasses.dataclass(frozen=True)
class StepScheme(NumberedScheme):
    steps: int

    @property
    def num_steps(self) -> int:
        return self.steps


@storable
@SCHEMES.register()
@dataclasses.dataclass(frozen=True)
class Cyclic(EpochScheme):
    """(k, b)-cyclic: record r of a node takes part in steps r, r + b, ..., r + (k-1) b.

    Attributes: epochs: k, how often each record takes part; period: b, steps per epoch; steps: T = k b, optional.

    >>> [p.tolist() for p in Cyclic(epochs=2, period=3).patterns()]
    [[0, 3], [1, 4], [2, 5]]
    """

    steps: int | None = None
    scheme = "cyclic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and check.integer_at_least(1, steps=self.steps) != self.num_steps:
            raise InvalidInput(
                f"steps must be epochs * period, got steps={self.steps}, epochs={self.epochs}, "
                f"period={self.period}; use steps={self.num_steps} or leave it out."
            )
        object.__setattr__(self, "steps", self.num_steps)

    @property
    def cycle(self) -> int:
        return self.period

    def patterns_of_record(self) -> PatternSet:
        return Periodic(self.num_steps, uses=self.epochs, gap=self.period)

    def describe(self) -> str:
        return f"cyclic participation (epochs={self.epochs}, period={self.period})"


@storable
@SCHEMES.register()
@dataclasses.dataclass(frozen=True)
class Single(StepScheme):
    """Each record takes part in one step of its own: T patterns of one step."""

    scheme = "single"

    def patterns_of_record(self) -> PatternSet:
        return Periodic(self.steps, uses=1, gap=self.steps)

    def describe(self) -> str:
        return f"single participation ({self.steps} steps)"


@storable
@SCHEMES.register()
@dataclasses.dataclass(frozen=True)
class EveryStep(StepScheme):
    """The unit takes part in every step: user level. One pattern with all T steps."""

    scheme = "every-step"

    def patterns_of_record(self) -> PatternSet:
        return Periodic(self.steps, uses=self.steps, gap=1)

    def describe(self) -> str:
        return f"participation in every one of {self.steps} steps"


@storable
@dataclasses.dataclass(frozen=True)
class Explicit(Participation):
    """The listed patterns, sequences of distinct steps in [0, steps), and no others."""

    __repr__ = short_repr

    given: tuple[tuple[int, ...], ...]
    steps: int
    scheme = "explicit"

    def __init__(self, patterns: Sequence[Sequence[int]], steps: int) -> None:
        steps = check.integer_at_least(1, steps=steps)
        try:
            listed = [list(pattern) for pattern in patterns]
        except TypeError:
            raise InvalidInput(f"patterns must be sequences of steps, e.g. [[0, 2], [1]], got {patterns!r}.") from None
        if not listed:
            raise InvalidInput("patterns must hold at least one pattern, got none.")
        maximal = []
        for number, pattern in enumerate(listed):
            members = tuple(sorted(check.integer_at_least(0, step=step) for step in pattern))
            if not members or members[-1] >= steps or len(set(members)) != len(members):
                raise InvalidInput(
                    f"patterns[{number}] must be distinct steps in [0, {steps}), at least one, got {list(pattern)}."
                )
            maximal.append(members)
        object.__setattr__(self, "given", tuple(maximal))
        object.__setattr__(self, "steps", steps)

    def stored_fields(self) -> dict[str, object]:
        return {"patterns": self.given, "steps": self.steps}

    @property
    def num_steps(self) -> int:
        return self.steps

    def patterns_of_record(self) -> PatternSet:
        return Listed.from_patterns(self.given, self.steps)

    def describe(self) -> str:
        return f"explicit participation ({len(self.given)} patterns, {self.steps} steps)"

    def to_dict(self) -> dict[str, object]:
        return {"scheme": self.scheme, "steps": self.steps, "patterns": [list(p) for p in self.given]}


@storable
@SCHEMES.register()
@dataclasses.dataclass(frozen=True)
class OncePerEpoch(EpochScheme):
    """One step, any, in each of `epochs` consecutive epochs of `period` steps: data reshuffled before each epoch.

    >>> [p.tolist() for p in OncePerEpoch(epochs=2, period=2).patterns()]
    [[0, 2], [0, 3], [1, 2], [1, 3]]
    """

    scheme = "once-per-epoch"

    def patterns_of_record(self) -> PatternSet:
        return OnePerBlock(self.num_steps, uses=self.epochs, gap=1)

    def describe(self) -> str:
        return f"participation once per epoch in any order (epochs={self.epochs}, period={self.period})"


@storable
@SCHEMES.register(called={"max_participations": "epochs", "separation": "period"})
@dataclasses.dataclass(frozen=True)
class MinSeparation(StepScheme):
    """At most k uses, any two of them at least b steps apart: (k, b)-min-separation.

    The patterns are the maximal ones: those with k uses, and shorter ones into which no further use fits; b = 1 means
    any k steps.

    >>> [p.tolist() for p in MinSeparation(steps=5, max_participations=2, separation=3).patterns()]
    [[0, 3], [0, 4], [1, 4], [2]]
    """

    max_participations: int
    separation: int
    scheme = "min-separation"

    def patterns_of_record(self) -> PatternSet:
        return Separated(self.steps, uses=self.max_participations, gap=self.separation)

    def describe(self) -> str:
        return (
            f"at most {self.max_participations} participations, at least {self.separation} steps apart "
            f"({self.steps} steps)"
        )
