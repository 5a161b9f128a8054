"""Which objects a file may hold: a class is marked as storable and declares what of its objects is stored.

`archive` writes and reads the files. This module is separate, since marking a class needs none of its imports.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Marked = TypeVar("Marked", bound=type)

_CLASSES: dict[str, type] = {}
_NAMES: dict[type, str] = {}


def storable(kind: Marked) -> Marked:
    """Class decorator: files hold objects of exactly this class, by its name.

    Stored is what `stored_fields()` returns, by default the fields of a dataclass that its constructor takes. The class
    method `from_stored(**fields)`, by default the constructor, makes the object again and checks what it is given. A
    subclass is not storable until it is marked itself.

    Raises: TypeError: another class of this name is storable.
    """
    known = _CLASSES.setdefault(kind.__name__, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise TypeError(f"{kind.__name__} of {kind.__module__} cannot be stored beside that of {known.__module__}.")
    _CLASSES[kind.__name__], _NAMES[kind] = kind, kind.__name__
    return kind


def stored_as(general: type) -> Callable[[Marked], Marked]:
    """Class decorator: objects of exactly this class are stored, and come back, as those of a more general one."""

    def mark(kind: Marked) -> Marked:
        _NAMES[kind] = _NAMES[general]
        return kind

    return mark


def is_storable(value: object) -> bool:
    """Whether a file may hold the object itself; what it is made of may still be code."""
    return type(value) in _NAMES


def stored_parts(value: Any) -> tuple[str, Mapping[str, Any]]:
    """The name of the class in files, and what of the object is stored."""
    if hasattr(value, "stored_fields"):
        return _NAMES[type(value)], value.stored_fields()
    names = [field.name for field in dataclasses.fields(value) if field.init]
    return _NAMES[type(value)], {name: getattr(value, name) for name in names}


def from_parts(name: str, fields: Mapping[str, Any]) -> Any:
    """The object of a class name and its stored fields.

    Raises: KeyError: no storable class; what its constructor raises.
    """
    kind: Any = _CLASSES[name]
    return getattr(kind, "from_stored", kind)(**fields)


def storable_names() -> tuple[str, ...]:
    """Names of the classes marked so far, sorted."""
    return tuple(sorted(_CLASSES))
