"""ParticipationByNode: nodes whose records take part in different patterns of steps.

Questions about all nodes at once, such as one partition of the steps for a shared encoder, are refused where the nodes
differ, as any one answer would be wrong at some node.

JointParticipation: each owner uses the record in the steps of a pattern of its own node. A joint pattern is a set of
pairs (owner, step), in the order of `mfdl_solvers.pattern_sets`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mfdl_solvers.pattern_sets import CommonPatterns, PatternSet, ProductPatterns

from .. import check
from ..display import short_repr
from ..errors import InvalidInput, UnsupportedMechanism
from ..spec import storable
from .schemes import Participation


@storable
@dataclasses.dataclass(frozen=True, init=False)
class ParticipationByNode(Participation):
    """One participation per node, all over the same steps.

    Raises: InvalidInput: none given, something else than a participation of one node, or differing numbers of steps.

    >>> from mfdl.participation import Cyclic
    >>> by_node = ParticipationByNode([Cyclic(epochs=2, period=3), Cyclic(epochs=3, period=2)])
    >>> [pattern.tolist() for pattern in by_node.at_node(1).patterns()]
    [[0, 2, 4], [1, 3, 5]]
    """

    __repr__ = short_repr

    participations: tuple[Participation, ...]
    scheme = "by-node"

    def __init__(self, participations: Iterable[Participation]) -> None:
        given = tuple(check.listed("participations, one for each node", participations=participations))
        if not given:
            raise InvalidInput("participations must hold one participation per node, got none.")
        for node, each in enumerate(given):
            if not isinstance(each, Participation) or isinstance(each, ParticipationByNode):
                raise InvalidInput(
                    f"participations must hold the participation of one node each, such as Cyclic(epochs, period), got "
                    f"{type(each).__name__} at node {node}."
                )
            if each.secret:
                raise InvalidInput(
                    f"participations must be public, got {each.describe()} at node {node}; sampling is one rate for "
                    "all nodes, accounted for by mfdl.account."
                )
            if each.num_steps != given[0].num_steps:
                raise InvalidInput(
                    f"participations must have one number of steps, got {each.num_steps} at node {node} and "
                    f"{given[0].num_steps} at node 0; all nodes train for the same steps."
                )
        object.__setattr__(self, "participations", given)

    @property
    def num_nodes(self) -> int:
        return len(self.participations)

    @property
    def num_steps(self) -> int:
        return self.participations[0].num_steps

    def at_node(self, node: int) -> Participation:
        """Raises: InvalidInput: no such node."""
        if check.integer_at_least(0, node=node) >= self.num_nodes:
            raise InvalidInput(f"node must be below {self.num_nodes}, the nodes with a participation, got {node}.")
        return self.participations[node]

    def shared_by(self, nodes: Sequence[int]) -> list[tuple[Participation, list[int]]]:
        gathered: list[tuple[Participation, list[int]]] = []
        for node in nodes:
            scheme = self.at_node(node)
            members = next((members for seen, members in gathered if seen == scheme), None)
            if members is None:
                gathered.append((scheme, members := []))
            members.append(node)
        return gathered

    def distinct(self) -> tuple[Participation, ...]:
        return tuple(scheme for scheme, _ in self.shared_by(range(self.num_nodes)))

    @property
    def in_every_step(self) -> bool:
        return all(scheme.in_every_step for scheme in self.distinct())

    def patterns_of_record(self) -> PatternSet:
        """Raises: UnsupportedMechanism: nodes differ. (A union would be safe, but nothing computed from it exact.)"""
        first, *others = self.distinct()
        if others:
            raise UnsupportedMechanism(
                f"the nodes differ in participation ({self._kinds()}), so there are no patterns of them all; ask for "
                "those of one node: at_node(u).patterns()."
            )
        return first.patterns_of_record()

    def classes(self) -> NDArray[np.intp]:
        """Raises: UnsupportedMechanism: the patterns of nodes partition the steps differently, or not at all."""
        first, *others = (_first_seen(scheme.classes()) for scheme in self.distinct())
        if any((labels != first).any() for labels in others):
            raise UnsupportedMechanism(
                f"one encoder for all nodes needs one partition of the steps, but the nodes differ in participation "
                f"({self._kinds()}); use mafalda-l or mafalda-classes, which give such nodes encoders of their own."
            )
        return first

    def _kinds(self) -> str:
        return "; ".join(scheme.describe() for scheme in self.distinct())

    def describe(self) -> str:
        gathered = self.shared_by(range(self.num_nodes))
        parts = (f"{scheme.describe()} at {_nodes(members)}" for scheme, members in gathered)
        return "participation by node: " + " and ".join(parts)

    def to_dict(self) -> dict[str, object]:
        schemes = [scheme.to_dict() for scheme in self.distinct()]
        return {"scheme": self.scheme, "participations": schemes, "of_node": self._number_of_node()}

    def stored_fields(self) -> dict[str, object]:
        return {"participations": self.distinct(), "of_node": self._number_of_node()}

    @classmethod
    def from_stored(cls, participations: Sequence[Participation], of_node: Sequence[int]) -> ParticipationByNode:
        return cls(participations[check.integer_at_least(0, of_node=number)] for number in of_node)

    def _number_of_node(self) -> list[int]:
        distinct = self.distinct()
        return [distinct.index(scheme) for scheme in self.participations]


def _first_seen(labels: NDArray[np.intp]) -> NDArray[np.intp]:
    """The same partition with classes numbered by their first step."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]  # exact: integers


def _nodes(nodes: Sequence[int]) -> str:
    """Ascending nodes in words, with ranges: "nodes 0-2, 5"."""
    runs = [
        [node for _, node in run] for _, run in itertools.groupby(enumerate(nodes), key=lambda pair: pair[1] - pair[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(texts)}"


def in_steps(same_steps: bool) -> str:
    return "all owners of a record in the same steps" if same_steps else "each owner of a record by itself"


@dataclasses.dataclass(frozen=True)
class JointParticipation(Participation):
    """The participations of the owners of one record; its steps are pairs (owner, step).

    Attributes: same_steps: all owners use the record in the same steps; else in any combination of their patterns.
    """

    __repr__ = short_repr

    participations: tuple[Participation, ...]
    same_steps: bool = False
    scheme = "joint"

    @classmethod
    def from_scheme(cls, scheme: Participation, owners: Sequence[int], *, same_steps: bool) -> JointParticipation:
        """Raises: InvalidInput: same steps of differing schemes."""
        parts = tuple(scheme.at_node(u) for u in owners)
        if same_steps and any(part != parts[0] for part in parts):
            kinds = "; ".join(dict.fromkeys(part.describe() for part in parts))
            raise InvalidInput(
                f"same_steps needs one participation of all owners of a record, but those of nodes "
                f"{', '.join(map(str, owners))} differ ({kinds}); leave same_steps out."
            )
        return cls(parts, same_steps)

    @property
    def num_steps(self) -> int:
        return sum(part.num_steps for part in self.participations)

    def patterns_of_record(self) -> PatternSet:
        sets = tuple(part.patterns_of_record() for part in self.participations)
        return CommonPatterns.from_part(sets[0], len(sets)) if self.same_steps else ProductPatterns.from_parts(sets)

    def describe(self) -> str:
        kinds = dict.fromkeys(part.describe() for part in self.participations)
        return f"{'; '.join(kinds)}, {in_steps(self.same_steps)}"

    def to_dict(self) -> dict[str, object]:
        schemes = [part.to_dict() for part in self.participations]
        return {"scheme": self.scheme, "participations": schemes, "same_steps": self.same_steps}
