"""What several strategies draw alike: one of the requested kinds, and lists of a fixed length."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from ...check import FloatArray
from ...errors import InvalidInput

Element = TypeVar("Element")


def some_of(possible: Collection[str], wanted: Collection[str], *, name: str = "kinds", why: str = "") -> list[str]:
    """The names wanted, in order. Raises: InvalidInput: an unknown one, or none; `why` ends the message."""
    if not len(wanted) or set(wanted) - set(possible):
        raise InvalidInput(f"{name} must be some of {', '.join(possible)}, got {tuple(wanted)}{why}.")
    return list(wanted)


def lists_of(elements: st.SearchStrategy[Element], size: int) -> st.SearchStrategy[list[Element]]:
    """Lists of exactly this many elements."""
    return st.lists(elements, min_size=size, max_size=size)


def integer_arrays(largest: int, *shape: int) -> st.SearchStrategy[FloatArray]:
    """Float arrays of integers from -largest to largest; they shrink to zero."""
    entries = lists_of(st.integers(-largest, largest), math.prod(shape))
    return entries.map(lambda drawn: np.array(drawn, dtype=np.float64).reshape(shape))
