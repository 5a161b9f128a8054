"""Row selection: keep the listed rows, in the listed order."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from .base import StructuredOperator


class Selection(StructuredOperator):
    """The 0/1 matrix with out[i] = x[indices[i]].

    Args:
        indices: integers in [0, size), shape (m,); repeats are allowed.
        size: number of rows selected from.

    Raises: InvalidInput: an index outside [0, size), or not an integer (a boolean mask is not a list of indices).
    """

    def __init__(self, indices: ArrayLike, size: int) -> None:
        check.integer_at_least(0, size=size)
        given = np.asarray(indices).reshape(-1)
        if given.size and given.dtype.kind not in "iu":
            raise InvalidInput(f"indices must be integers, got {given.dtype}; use np.flatnonzero for a mask.")
        self.indices = given.astype(np.intp)
        outside = self.indices[(self.indices < 0) | (self.indices >= size)]
        if outside.size:
            raise InvalidInput(f"indices must lie in [0, {size}), got {outside[0]}.")
        super().__init__((self.indices.size, size))

    def _matmat(self, X: FloatArray) -> FloatArray:
        return X[self.indices]

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        out = np.zeros((self.shape[1], X.shape[1]))
        np.add.at(out, self.indices, X)
        return out
