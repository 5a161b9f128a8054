"""A mark, in the type, for numbers that no guarantee covers: test metrics, times, whether a run diverged.

In: a dataclass whose fields are annotated `NotPrivate[...]`. Out: their names. Such numbers are computed without noise,
from records or from models that may not be released. They are for research; publishing them, choosing parameters by
them or stopping by them is outside every guarantee.
"""

from __future__ import annotations

import typing
from typing import Annotated, TypeVar

T = TypeVar("T")

NOT_PRIVATE = "not covered by any guarantee: computed without noise, for research"
NotPrivate = Annotated[T, NOT_PRIVATE]


def not_private_fields(kind: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass whose type carries the mark, in their order.

    >>> from mfdl.training.tasks import Evaluation
    >>> not_private_fields(Evaluation)
    ('loss', 'accuracy', 'metrics')
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(name for name, hint in hints.items() if NOT_PRIVATE in getattr(hint, "__metadata__", ()))
