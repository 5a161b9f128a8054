"""Objects of the caller in the place of names: a graph, a task, a trust model or an algorithm of their own.

Configs, stores and results hold texts. `Given` is such a text with its object: it names the object by its content, so
that equal objects have equal texts, a store finds the runs of an object again, and another object is another text.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

from .errors import InvalidInput

PREFIX = "own:"
Value = TypeVar("Value")


class Given(str, Generic[Value]):
    """The text own:LABEL:HASH of an object, and the object itself as `value`.

    >>> given = Given.named("my task", "0123456789abcdef01", object())
    >>> given, given.label
    ('own:my-task:0123456789abcdef', 'my-task')
    """

    value: Value

    def __new__(cls, text: str, value: Value) -> Given[Value]:
        given = super().__new__(cls, text)
        given.value = value
        return given

    @classmethod
    def named(cls, label: str, content_hash: str, value: Value) -> Given[Value]:
        """A text of a label, whose other characters than letters, digits and -+_ become hyphens, and a hash."""
        return cls(f"{PREFIX}{re.sub(r'[^A-Za-z0-9+_]+', '-', label).strip('-')}:{content_hash[:16]}", value)

    def __getnewargs__(self) -> tuple[str, Value]:  # type: ignore[override]  # pickled with the object
        return str(self), self.value

    @property
    def label(self) -> str:
        return label_of(self)


def label_of(text: str) -> str:
    """The label of an object's text; any other text as it is.

    >>> label_of("own:my-task:0123456789abcdef"), label_of("mafalda")
    ('my-task', 'mafalda')
    """
    return text.split(":")[1] if text.startswith(PREFIX) and text.count(":") > 1 else text


def value_of(text: Any, option: str) -> Any:
    """The object of a text, or what is given if it is none.

    Raises: InvalidInput: the text of an object without the object, as it stands in a file.
    """
    if isinstance(text, Given):
        return text.value
    if isinstance(text, str) and text.startswith(PREFIX):
        raise InvalidInput(
            f"{option} {text!r} names an object that was given in Python, and files hold no objects: give the object "
            f"again, mfdl.compare(..., {option}=...)."
        )
    return text
