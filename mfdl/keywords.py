"""Functions of many settings take the fields of one frozen dataclass, so that names, types and defaults stand once."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

Fields = ParamSpec("Fields")
Config = TypeVar("Config")
Answer = TypeVar("Answer")


def takes_fields_of(
    config: Callable[Fields, Config],
) -> Callable[[Callable[[Config], Answer]], Callable[Fields, Answer]]:
    """Makes a function of a config callable with the config's fields; `help` and type checkers see them.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class Sum:
    ...     first: int
    ...     second: int = 2
    >>> @takes_fields_of(Sum)
    ... def total(config):
    ...     return config.first + config.second
    >>> total(1, second=4), total(1), str(inspect.signature(total))
    (5, 3, "(first: 'int', second: 'int' = 2)")
    >>> total(1, seconds=4)
    Traceback (most recent call last):
    ...
    TypeError: total() got an unexpected keyword argument 'seconds'; did you mean 'second'? Known: first, second.
    """

    signature = inspect.signature(config)

    def of(function: Callable[[Config], Answer]) -> Callable[Fields, Answer]:
        @functools.wraps(function)
        def called(*args: Fields.args, **fields: Fields.kwargs) -> Answer:
            try:
                signature.bind(*args, **fields)
            except TypeError as error:  # by the name that was called, not by the config's
                raise TypeError(f"{function.__name__}() {_refusal(error, fields, signature)}") from None
            return function(config(*args, **fields))

        shown: Any = called
        returned = inspect.signature(function).return_annotation
        shown.__signature__ = signature.replace(return_annotation=returned)
        return called

    return of


def _refusal(error: TypeError, given: Iterable[str], signature: inspect.Signature) -> str:
    """What is wrong with the arguments: an unknown keyword with the nearest known one, else as Python says it."""
    known = list(signature.parameters)
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return str(error)
    nearest = difflib.get_close_matches(unknown, known, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return f"got an unexpected keyword argument {unknown!r}{hint} Known: {', '.join(known)}."
