"""A participation read back from the dictionary that `to_dict` wrote, as JSON keeps it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import check
from ..errors import InvalidInput, require_known
from .by_node import ParticipationByNode
from .schemes import Participation

BY_NODE = ParticipationByNode.scheme


def participation_from_dict(saved: Mapping[str, object]) -> Participation:
    """The participation that `to_dict` wrote.

    Raises: InvalidInput: an unknown scheme, a field missing or too many, or a value out of range.

    >>> participation_from_dict({"scheme": "cyclic", "epochs": 2, "period": 3})
    Cyclic(epochs=2, period=3, steps=6)
    """
    if not isinstance(saved, Mapping) or "scheme" not in saved:
        raise InvalidInput(f"a saved participation must be a mapping with a scheme, got {saved!r}.")
    name = str(saved["scheme"])
    if name == BY_NODE:
        return _by_node(saved)
    schemes = {kind.scheme: kind for kind in _below(Participation)}
    require_known("participation scheme", name, list(schemes))
    fields = {key: value for key, value in saved.items() if key != "scheme"}
    build: Any = schemes[name]
    try:
        inspect.signature(build).bind(**fields)
    except TypeError as error:
        raise InvalidInput(f"saved participation {name!r}: {error}, got {sorted(fields)}.") from None
    if name == "explicit" and not _is_sequence(fields["patterns"], depth=2):
        raise InvalidInput(f"saved participation 'explicit': patterns must be lists of steps, got {fields!r}.")
    participation: Participation = build(**fields)
    return participation


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    """The named schemes of this package; none of a user's own, whose code no file can bring."""
    for below in kind.__subclasses__():
        if below.__module__.startswith(f"{__package__}.") and hasattr(below, "scheme"):
            yield below
        yield from _below(below)


def _is_sequence(value: object, depth: int) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return depth == 1 or all(_is_sequence(part, depth - 1) for part in value)


def _by_node(saved: Mapping[str, object]) -> ParticipationByNode:
    kinds, which = saved.get("participations"), saved.get("of_node")
    if set(saved) != {"scheme", "participations", "of_node"} or not isinstance(kinds, list | tuple):
        raise InvalidInput(
            f"saved participation {BY_NODE!r} must hold lists participations and of_node, and nothing else, got "
            f"{sorted(map(str, saved))}."
        )
    if not isinstance(which, list | tuple):
        raise InvalidInput(f"saved participation {BY_NODE!r}: of_node must be a list of numbers, got {which!r}.")
    schemes = [participation_from_dict(each) for each in kinds]
    numbers = [check.integer_at_least(0, of_node=number) for number in which]
    if numbers and max(numbers) >= len(schemes):
        raise InvalidInput(
            f"saved participation {BY_NODE!r}: of_node must be below {len(schemes)}, the participations there are, got "
            f"{max(numbers)}."
        )
    return ParticipationByNode(schemes[number] for number in numbers)
