"""Boundary checks shared by the public constructors; inside the package the types are trusted.

Each check takes one keyword, `name=value`, so that the message can name the argument, and returns the
checked value as the plain type it stands for.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput

FloatArray = NDArray[np.float64]

LARGEST = 1e60
"""Size of entries, and of their inverses: beyond, squares and their products leave the range of float64, and a loss
that underflows would read as none."""


def one(named: dict[str, Any]) -> tuple[str, Any]:
    ((name, value),) = named.items()
    return name, value


def index(value: Any) -> int:
    """An integer as Python has it; TypeError for all else, bool among it."""
    if isinstance(value, bool | np.bool_):
        raise TypeError
    return operator.index(value)


def integer_at_least(minimum: int, **named: Any) -> int:
    """An integer >= minimum (bool is not an integer here)."""
    name, value = one(named)
    try:
        number = index(value)
    except TypeError:
        raise InvalidInput(f"{name} must be an integer >= {minimum}, got {value!r}.") from None
    if number < minimum:
        raise InvalidInput(f"{name} must be an integer >= {minimum}, got {number}.")
    return number


def _number(named: dict[str, Any], rule: str, holds: Callable[[float], bool]) -> float:
    name, value = one(named)
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not holds(number):
        raise InvalidInput(f"{name} must be {rule}, got {value!r}.")
    return number


def positive(**named: Any) -> float:
    """A finite number > 0."""
    return _number(named, "a finite number > 0", lambda number: 0 < number < math.inf)


def non_negative(**named: Any) -> float:
    """A finite number >= 0."""
    return _number(named, "a finite number >= 0", lambda number: 0 <= number < math.inf)


def non_negative_or_inf(**named: Any) -> float:
    """A number >= 0, inf included."""
    _, value = one(named)
    return math.inf if isinstance(value, float | np.floating) and value == math.inf else non_negative(**named)


def open_unit(**named: Any) -> float:
    """A number strictly between 0 and 1."""
    return _number(named, "a number strictly between 0 and 1", lambda number: 0 < number < 1)


def finite_array(ndim: int, **named: Any) -> FloatArray:
    """An own float64 copy of an array of `ndim` dimensions with finite entries."""
    name, value = one(named)
    try:
        given = np.asarray(value)
        if given.dtype.kind == "c":  # numpy would drop the imaginary part
            raise InvalidInput(f"{name} must be real numbers, got complex ones.")
        array = np.array(given, dtype=np.float64)
    except InvalidInput:
        raise
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(
            f"{name} must be a numeric array with {ndim} dimensions, got {type(value).__name__}."
        ) from None
    if array.ndim != ndim:
        raise InvalidInput(f"{name} must have {ndim} dimensions, got shape {array.shape}.")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InvalidInput(f"{name} must be finite, got {array[where]} at index {where}.")
    return array


def square_array(**named: Any) -> FloatArray:
    """An own float64 copy of a finite square matrix."""
    name, value = one(named)
    array = finite_array(2, **{name: value})
    if array.shape[0] != array.shape[1]:
        raise InvalidInput(f"{name} must be square, got shape {array.shape}.")
    return array


def device(**named: Any) -> None:
    """A device of torch, by name, number or object, that can be used here; None is always fine."""
    name, value = one(named)
    if value is None:
        return
    import torch  # only a named device needs it

    try:
        torch.zeros(1, device=value).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        here = "cpu or cuda" if torch.cuda.is_available() else "cpu, the only one here"
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InvalidInput(f"{name} {str(value)!r} cannot be used: {reason}; use {here}, or leave it out.") from None


def trained_in(**named: Any) -> None:
    """A dtype of torch that models and gradients may have: float32 or float64."""
    name, value = one(named)
    import torch  # only a task or a run has one

    if value not in (torch.float32, torch.float64):
        raise InvalidInput(f"{name} must be torch.float32 or torch.float64, got {value!r}.")
