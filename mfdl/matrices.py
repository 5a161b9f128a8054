"""Checked, read-only copies of what a caller gives: sparse maps, sparse masks, indices.

These checks are not in `check`, which the command line loads, since scipy is not light.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from . import check
from .check import LARGEST
from .errors import InvalidInput

Made = TypeVar("Made")


def once(make: Callable[..., Made]) -> Callable[..., Made]:
    """`make`, called once for each first argument: rounds share maps, which are then processed once.

    Arguments are compared by identity and kept alive, so that no id is reused.
    """
    results: dict[int, tuple[Any, Made]] = {}

    def of(thing: Any, *more: Any) -> Made:
        if id(thing) not in results:
            results[id(thing)] = thing, make(thing, *more)
        return results[id(thing)][1]

    return of


def numbered() -> Callable[[Any], int]:
    """A number for each object, by identity: for keys made of several objects."""
    counter = itertools.count()
    return once(lambda thing: next(counter))


def once_for_places(make: Callable[[sp.csr_array], Made]) -> Callable[[sp.csr_array], Made]:
    """`make`, called once for all matrices with the same sparsity pattern, on which alone its result depends."""
    results: dict[tuple[Any, ...], Made] = {}

    def of(matrix: sp.csr_array) -> Made:
        parts = (matrix.indptr, matrix.indices, matrix.data != 0)
        key = matrix.shape, *(part.tobytes() for part in parts)
        if key not in results:
            results[key] = make(matrix)
        return results[key]

    return once(of)


def read_only(array: Any) -> Any:
    """The array itself, or a csr_array whose parts are its own, no longer writable."""
    if not sp.issparse(array):
        array.setflags(write=False)
        return array
    for name in ("data", "indices", "indptr"):
        part = getattr(array, name)
        if part.base is not None:  # a view of an array that may still be written
            setattr(array, name, part := part.copy())
        part.setflags(write=False)
    return array


def content_hash(text: str, *arrays: NDArray[Any]) -> str:
    """16 hex digits of the SHA-256 of a text and of the numbers of arrays, alike on every machine."""
    digest = hashlib.sha256(text.encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8" if array.dtype.kind == "f" else "<i8").tobytes())
    return digest.hexdigest()[:16]


def sparse_matrix(**named: Any) -> sp.csr_array:
    """A read-only csr_array of a finite real matrix, dense or sparse, sorted and without stored zeros.

    A copy, or the given array if it is one already. Sizes of entries other than zero: from 1 / LARGEST to LARGEST.
    """
    name, value = check.name_and_value(named)
    if sp.issparse(value):
        if value.dtype.kind not in "fiub":
            raise InvalidInput(f"{name} must be real numbers, got dtype {value.dtype}.")
        if value.ndim != 2:
            raise InvalidInput(f"{name} must have 2 dimensions, got shape {value.shape}.")
        matrix = value if _is_frozen(value, np.float64) else sp.csr_array(value, dtype=np.float64, copy=True)
    else:
        matrix = sp.csr_array(check.finite_array(2, **named))
    matrix.sum_duplicates()
    sizes = np.abs(matrix.data)
    bad = np.flatnonzero(~(((sizes >= 1 / LARGEST) & (sizes <= LARGEST)) | (sizes == 0)))
    if bad.size:
        raise InvalidInput(
            f"{name} must hold finite numbers, 0 or of size {1 / LARGEST:g} to {LARGEST:g}, got "
            f"{matrix.data[bad[0]]:g} at {position(matrix, bad[0])}."
        )
    if (sizes == 0).any():
        matrix = sp.csr_array(matrix, copy=True)
        matrix.eliminate_zeros()
    return read_only(matrix)


def with_entries(matrix: sp.csr_array, entries: NDArray[np.float64]) -> sp.csr_array:
    """A result of `sparse_matrix` with other entries at the same positions; the two share the index arrays."""
    other = copy.copy(matrix)
    other.data = read_only(entries)
    return sparse_matrix(map=other)


def position(matrix: sp.csr_array, k: int) -> tuple[int, int]:
    return int(np.searchsorted(matrix.indptr, k, side="right")) - 1, int(matrix.indices[k])


def sparse_mask(**named: Any) -> sp.csr_array:
    """A read-only bool csr_array of a mask or of a matrix of numbers 0 and 1, dense or sparse."""
    name, value = check.name_and_value(named)
    if sp.issparse(value) and _is_frozen(value, np.bool_):
        return value
    given = sp.csr_array(value, copy=True) if sp.issparse(value) else check.as_array(**named)
    entries = np.asarray(given.data) if sp.issparse(value) else given
    if given.ndim != 2 or (entries.dtype != bool and not np.isin(entries, (0, 1)).all()):
        raise InvalidInput(f"{name} must be a boolean matrix, got shape {given.shape} of {given.dtype}.")
    mask = sp.csr_array(given, dtype=bool)
    mask.sum_duplicates()
    mask.eliminate_zeros()
    return read_only(mask)


def _is_frozen(matrix: Any, dtype: type) -> bool:
    """Whether this is a csr_array as `sparse_matrix` and `sparse_mask` make them, so that it need not be copied."""
    if not isinstance(matrix, sp.csr_array) or matrix.dtype != dtype:
        return False
    parts = (matrix.data, matrix.indices, matrix.indptr)
    return not any(part.flags.writeable or part.base is not None for part in parts) and bool(
        matrix.has_canonical_format
    )


def integers(size: int, below: int, **named: ArrayLike) -> NDArray[np.intp]:
    """An own read-only array of `size` integers in [0, below)."""
    name, _ = check.name_and_value(named)
    given = check.as_array(**named)
    if given.shape != (size,) or (given.dtype.kind not in "iu" and given.size):
        raise InvalidInput(f"{name} must be {size} integers, got shape {given.shape} of {given.dtype}.")
    outside = given[(given < 0) | (given >= below)]
    if outside.size:
        raise InvalidInput(f"{name} must lie in [0, {below}), got {outside[0]}.")
    return read_only(np.array(given, dtype=np.intp))
