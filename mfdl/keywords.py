"""Functions of many settings take the fields of one frozen dataclass, so that names, types and defaults stand once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from .errors import InvalidInput, did_you_mean

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
            bound(function.__name__, signature, args, fields)  # by the name that was called, not by the config's
            return function(config(*args, **fields))

        shown: Any = called
        returned = inspect.signature(function).return_annotation
        shown.__signature__ = signature.replace(return_annotation=returned)
        return called

    return of


def refusing(
    elsewhere: Mapping[str, str],
) -> Callable[[Callable[Fields, Answer]], Callable[Fields, Answer]]:
    """Makes a function refuse keywords that other functions take, in words that name those; others as `bound` does.

    Args: elsewhere: what to use instead, by keyword.
    """

    def decorated(function: Callable[Fields, Answer]) -> Callable[Fields, Answer]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args: Fields.args, **named: Fields.kwargs) -> Answer:
            for keyword in named:
                if keyword in elsewhere and keyword not in signature.parameters:
                    raise InvalidInput(f"{function.__name__} takes no {keyword}: {elsewhere[keyword]}.")
            bound(function.__name__, signature, args, named)
            return function(*args, **named)

        return called

    return decorated


def bound(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The arguments by name. Raises: TypeError: they do not fit; an unknown keyword with the nearest known one."""
    try:
        return signature.bind(*args, **named).arguments
    except TypeError as error:
        known = list(signature.parameters)
        unknown = next((keyword for keyword in named if keyword not in known), None)
        said = str(error)
        if unknown is not None:
            hint = did_you_mean(unknown, known)
            said = f"got an unexpected keyword argument {unknown!r}{hint} Known: {', '.join(known)}."
        raise TypeError(f"{name}() {said}") from None
