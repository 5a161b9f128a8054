"""Records that several nodes hold: who may own one, and owners as victims.

A record of the owners S moves clipped gradients at pairs (t, u), u in S, each by at most one record shift. So its
sensitivity is that of X_S over the owners' patterns (`forms`, `participation.by_node`); the proof for adaptive
gradients is that of one node, with pairs for steps. Attackers that hold the record know it, and are not counted.

For every view, changing the record at one owner after the other composes mu_u-GDP statements to sum_u mu_u (group
privacy), so sens_S <= sum_u sens_u.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from .. import check
from ..display import short_repr
from ..errors import InvalidInput, UnsupportedMechanism

Victim = int | tuple[int, ...]  # a node, or the nodes that hold one record
MAX_GROUPS = 5000
NAMED = 2  # groups that a sentence names


@dataclasses.dataclass(frozen=True, init=False)
class Owners:
    """The nodes that may hold one and the same record; every node may hold records of its own besides.

    Args:
        who: q, any q nodes or fewer; or groups of nodes, such as [(0, 3)]. Default 1: no record is held twice.
        same_steps: the owners of a record use it in the same steps, as where batches are shared; they then need one
            participation. Default: each by its own patterns, in any combination.

    Attributes: most: q, 1 beside groups; groups: sorted.

    Raises: InvalidInput: no integer >= 1, or groups that are not of two or more distinct node indices.

    >>> Owners(2).describe(), Owners([(3, 0)]).describe()
    ('any 2 nodes', 'nodes 0 and 3')
    """

    __repr__ = short_repr

    most: int
    groups: tuple[tuple[int, ...], ...]
    same_steps: bool

    def __init__(self, who: int | Iterable[Sequence[int]] = 1, *, same_steps: bool = False) -> None:
        groups: list[tuple[int, ...]] = []
        if isinstance(who, Iterable) and not isinstance(who, str):
            groups = [group for group in map(checked_victim, who) if isinstance(group, tuple)]
            if not groups:
                raise InvalidInput(f"owners must be a number, or groups of nodes such as [(0, 3)], got {who!r}.")
            who = 1
        object.__setattr__(self, "most", check.integer_at_least(1, owners=who))
        object.__setattr__(self, "groups", tuple(sorted(set(groups))))
        object.__setattr__(self, "same_steps", check.flag(same_steps=same_steps))

    @classmethod
    def from_value(cls, given: Any) -> Owners:
        return given if isinstance(given, cls) else cls(given)

    @property
    def shared(self) -> bool:
        return self.most > 1 or bool(self.groups)

    def among(self, nodes: Sequence[int], num_nodes: int) -> list[tuple[int, ...]]:
        """The groups; for q nodes all groups of q of these nodes, at most MAX_GROUPS.

        Raises: InvalidInput: a group with a node that does not exist, or more owners than nodes. UnsupportedMechanism:
            over MAX_GROUPS groups.
        """
        for group in self.groups:
            require_nodes(group, num_nodes)
        if self.most > num_nodes:
            raise InvalidInput(f"owners must be at most the {num_nodes} nodes, got {self.most}.")
        if self.most == 1:
            return list(self.groups)
        size = min(self.most, len(nodes))
        if (count := math.comb(len(nodes), size)) > MAX_GROUPS:
            raise UnsupportedMechanism(
                f"owners={self.most} means {count} groups of {len(nodes)} nodes, over {MAX_GROUPS}; name the groups of "
                "nodes that share records, e.g. owners=[(0, 3), (1, 2)]."
            )
        return list(itertools.combinations(nodes, size)) if size > 1 else []

    def covers(self, other: Owners) -> bool:
        if self.same_steps and not other.same_steps and other.shared:
            return False
        if other.most > self.most:
            return False
        return all(len(group) <= self.most or any(map(set(group).issubset, self.groups)) for group in other.groups)

    def describe(self) -> str:
        """The groups in words, by node index; more than a few by their number."""
        if len(self.groups) > NAMED:
            return f"{len(self.groups)} given groups of nodes"
        if self.groups:
            return " or ".join(nodes_in_words(group) for group in self.groups)
        return "one node" if self.most == 1 else f"any {self.most} nodes"

    def to_dict(self) -> dict[str, Any]:
        return {"most": self.most, "groups": [list(group) for group in self.groups], "same_steps": self.same_steps}

    @classmethod
    def from_dict(cls, data: Any) -> Owners:
        if not isinstance(data, dict) or set(data) != {"most", "groups", "same_steps"}:
            raise InvalidInput(f"owners must have the fields most, groups and same_steps, got {check.brief(data)}.")
        return cls(data["groups"] or data["most"], same_steps=data["same_steps"])


def checked_victim(given: Any) -> Victim:
    """A node index, or a sorted tuple of several."""
    if isinstance(given, tuple | list | set | frozenset):
        nodes = sorted(check.integer_at_least(0, victim=u) for u in given)
        if len(nodes) < 2 or len(set(nodes)) < len(nodes):
            raise InvalidInput(f"owners of one record must be two or more distinct node indices, got {given!r}.")
        return tuple(nodes)
    return check.integer_at_least(0, victim=given)


def require_nodes(victim: Victim, num_nodes: int) -> None:
    """Raises: InvalidInput: a node that does not exist."""
    if (largest := victim_nodes(victim)[-1]) >= num_nodes:
        raise InvalidInput(f"victim must be a node index below {num_nodes}, got {largest}.")


def victim_nodes(victim: Victim) -> tuple[int, ...]:
    return victim if isinstance(victim, tuple) else (victim,)


def require_one_owner(unit: str, groups: Sequence[tuple[int, ...]]) -> None:
    """Raises: InvalidInput: groups of owners where all data of a node are protected."""
    if groups and unit == "user":
        raise InvalidInput(
            f"unit 'user' protects all data of one node, so it takes no owners, got {nodes_in_words(groups[0])}; give "
            "unit='record'."
        )


def require_unshared(owners: Owners, victims: Iterable[Any] | None, sampling: str) -> None:
    """Raises: UnsupportedMechanism: records with several owners under secret sampling."""
    named = victims if isinstance(victims, Iterable) else ()
    if owners.shared or any(isinstance(victim, (tuple, list, set, frozenset)) for victim in named):
        raise UnsupportedMechanism(
            f"records of several owners are accounted for public batches alone, got {sampling}: no proof covers owners "
            "that draw their batches apart; use a public participation, or leave owners out if no record is held twice."
        )


def within(groups: Iterable[tuple[int, ...]], nodes: Sequence[int]) -> list[tuple[int, ...]]:
    inside = set(nodes)
    return [group for group in groups if inside.issuperset(group)]


def in_order(victims: Iterable[Victim]) -> list[Victim]:
    distinct = set(victims)
    if all(type(victim) is int for victim in distinct):
        return sorted(distinct)  # exact: nodes
    return sorted(distinct, key=lambda victim: (len(victim_nodes(victim)), victim_nodes(victim)))  # exact: nodes


def victim_name(victim: Victim, labels: Sequence[Hashable]) -> str:
    """The label of a node; those of several joined by "and"."""
    return " and ".join(str(labels[u]) for u in victim_nodes(victim))


def nodes_in_words(nodes: Sequence[int]) -> str:
    """
    >>> nodes_in_words((0, 3)), nodes_in_words((0, 1, 2))
    ('nodes 0 and 3', 'nodes 0, 1 and 2')
    """
    return f"nodes {', '.join(map(str, nodes[:-1]))} and {nodes[-1]}"
