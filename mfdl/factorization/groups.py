"""Who shares which seed: groups of nodes, checked, read from a file, or both ends of every edge."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Sequence

from .. import check
from ..errors import InvalidInput, unknown_name
from ..gossip import Gossip

Groups = tuple[tuple[int, ...], ...]


def edge_groups(gossip: Gossip) -> tuple[tuple[int, int], ...]:
    """Both ends of every edge of the gossip graph, as indices, i < j, in increasing order."""
    check.instance(Gossip, gossip=gossip)
    edges = gossip.at(0).graph().edges
    return tuple(sorted((min(i, j), max(i, j)) for i, j in edges))


def checked_groups(groups: Sequence[Sequence[int]], num_nodes: int) -> Groups:
    """Groups as sorted tuples of distinct indices below n.

    Raises: InvalidInput: an empty group, an index out of range, a node twice in one group.
    """
    out = []
    num_nodes = check.integer_at_least(0, num_nodes=num_nodes)
    for number, group in enumerate(check.listed("groups of node indices, e.g. [[0, 1], [1, 2]]", groups=groups)):
        given = check.listed("groups of node indices, e.g. [[0, 1], [1, 2]]", groups=group)
        nodes = [check.integer_at_least(0, node=node) for node in given]
        if not nodes:
            raise InvalidInput(f"groups must hold at least one node each, got none in group {number}.")
        if max(nodes) >= num_nodes:
            raise InvalidInput(f"groups must hold node indices below {num_nodes}, got {max(nodes)} in group {number}.")
        if len(set(nodes)) != len(nodes):
            raise InvalidInput(f"groups must hold distinct nodes, got one twice in group {number}.")
        out.append(tuple(sorted(nodes)))
    return tuple(out)


def given_groups(groups: Sequence[Sequence[int]], num_nodes: int) -> Groups:
    """`checked_groups` of what a caller gave; raises InvalidInput for what is no list of lists, or no group at all."""
    try:
        listed = [list(group) for group in groups]
    except TypeError:
        raise InvalidInput(f"groups must be a list of lists of node indices, got {groups!r}.") from None
    if not listed:
        raise InvalidInput(
            "groups must hold at least one group; for noise without shared seeds take mafalda or dp-dsgd."
        )
    return checked_groups(listed, num_nodes)


def checked_coalition(size: int, n: int) -> int:
    """The size of a coalition that leaves some of n nodes; raises InvalidInput."""
    q = check.integer_at_least(0, coalition_size=size)
    if q >= n:
        raise InvalidInput(f"coalition_size must be below the number of nodes, {n}, got {q}; some node must be left.")
    return q


def read_groups(path: str | os.PathLike[str], labels: Sequence[Hashable]) -> Groups:
    """Groups from a JSON file: a list of lists of node labels.

    Raises: InvalidInput: the file cannot be read or is not of that form, or a label that is no node.
    """
    form = "a JSON list of lists of node labels, e.g. [[0, 1], [1, 2]]"
    path = check.path(path=path)
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidInput(f"cannot read {str(path)!r}: {error.strerror}; give {form}.") from None
    except (ValueError, RecursionError):
        raise InvalidInput(f"{str(path)!r} is not valid JSON; give {form}.") from None
    if not isinstance(content, list) or not all(isinstance(group, list) for group in content) or not content:
        raise InvalidInput(f"{str(path)!r} must hold {form}.")
    index = {str(label): i for i, label in enumerate(labels)}
    named = []
    for group in content:
        for label in group:
            if isinstance(label, list | dict) or str(label) not in index:
                raise unknown_name(f"node in {str(path)!r}", str(label), index)
        named.append([index[str(label)] for label in group])
    return checked_groups(named, len(labels))
