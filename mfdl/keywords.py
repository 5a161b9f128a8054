"""Functions of many settings take the fields of one frozen dataclass, so that names, types and defaults stand once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
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
    """

    def of(function: Callable[[Config], Answer]) -> Callable[Fields, Answer]:
        @functools.wraps(function)
        def called(*args: Fields.args, **fields: Fields.kwargs) -> Answer:
            return function(config(*args, **fields))

        shown: Any = called
        returned = inspect.signature(function).return_annotation
        shown.__signature__ = inspect.signature(config).replace(return_annotation=returned)
        return called

    return of
