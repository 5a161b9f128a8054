"""Choices among floats whose answer a user sees: which node loses most, which candidate is best, in which order.

Values that are equal in exact arithmetic differ in their last bits, and differently under each BLAS. Here those within
a relative tolerance of one another count as equal, and the lowest of their indices comes first. A bound takes the
maximum itself; only a name or an order needs this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Item = TypeVar("Item")

SAME = 1e-9
"""Relative distance below which values count as equal: far above rounding, far below what a reader tells apart."""


def equal_to_largest(values: ArrayLike, axis: int | None = None, *, tolerance: float = SAME) -> NDArray[np.bool_]:
    """Mask of the values within the tolerance of the largest, along an axis or over all; shape of `values`.

    Infinities are equal to one another only. Raises ValueError on nan, which has no order.

    >>> equal_to_largest([1.0, 3.0, 3.0 - 1e-15, 2.0]).tolist()
    [False, True, True, False]
    """
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        raise ValueError("values that are compared must be numbers, got nan.")
    top = array.max(axis=axis, keepdims=True)
    slack = np.where(np.isfinite(top), tolerance * np.abs(top), 0.0)
    return np.asarray(array >= top - slack)


def first_largest(values: ArrayLike, *, tolerance: float = SAME) -> int:
    """Flat index of the first value within the tolerance of the largest.

    >>> first_largest([0.9999999999999983, 0.9999999999999993, 0.5])
    0
    """
    return int(equal_to_largest(values, tolerance=tolerance).argmax())  # exact: booleans


def first_smallest(values: ArrayLike, *, tolerance: float = SAME) -> int:
    """Flat index of the first value within the tolerance of the smallest."""
    return first_largest(-np.asarray(values, dtype=np.float64), tolerance=tolerance)


def ranking(values: ArrayLike, *, descending: bool = False, tolerance: float = SAME) -> NDArray[np.intp]:
    """Indices that sort values, shape (k,); neighbours within the tolerance keep the order of their indices.

    Neighbours are those of the sorted values, so "equal" is transitive: a chain of close values is one class.

    >>> ranking([2.0, 1.0 + 1e-15, 1.0, 0.5]).tolist(), ranking([1.0, 1.0 + 1e-15, 2.0], descending=True).tolist()
    ([3, 1, 2, 0], [2, 0, 1])
    """
    array = np.asarray(values, dtype=np.float64) * (-1.0 if descending else 1.0)
    if np.isnan(array).any():
        raise ValueError("values that are ordered must be numbers, got nan.")
    order = np.argsort(array, kind="stable")  # exact: classes of equal values follow
    low, high = array[order[:-1]], array[order[1:]]
    slack = tolerance * np.maximum(np.abs(low), np.abs(high))
    finite = np.isfinite(low) & np.isfinite(high)
    with np.errstate(over="ignore"):  # the ends of the float range lie further apart than a float can say
        distance = np.subtract(high, low, where=finite, out=np.zeros_like(high))
    apart = np.where(finite, distance > slack, low != high)
    ranks = np.concatenate([[0], np.cumsum(apart)])[: len(order)]  # none of no values
    return np.asarray(order[np.lexsort((order, ranks))], dtype=np.intp)  # exact: integers


def first_maximum(items: Sequence[Item], key: Callable[[Item], float], *, tolerance: float = SAME) -> Item:
    """The first item whose key is within the tolerance of the largest."""
    return items[first_largest([key(item) for item in items], tolerance=tolerance)]


def first_minimum(items: Sequence[Item], key: Callable[[Item], float], *, tolerance: float = SAME) -> Item:
    """The first item whose key is within the tolerance of the smallest."""
    return items[first_smallest([key(item) for item in items], tolerance=tolerance)]


def ranked(items: Sequence[Item], key: Callable[[Item], float], *, descending: bool = False) -> list[Item]:
    """The items in the order of `ranking` of their keys."""
    return [items[i] for i in ranking([key(item) for item in items], descending=descending)]
