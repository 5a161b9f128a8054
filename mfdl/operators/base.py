"""What every structured operator shares: both products, and a dense form for oracles.

A subclass implements `_matmat` (x of shape (columns, k)) and `_rmatmat` (the transpose); scipy derives the
vector forms, sums and products. All operators are real float64.
"""

from __future__ import annotations

import abc

import numpy as np
from scipy.sparse.linalg import LinearOperator

from ..check import FloatArray


class StructuredOperator(LinearOperator, abc.ABC):
    """A real linear operator given by its products; `to_dense` is for oracles and tests only."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(dtype=np.dtype(np.float64), shape=shape)

    @abc.abstractmethod
    def _matmat(self, X: FloatArray) -> FloatArray: ...

    @abc.abstractmethod
    def _rmatmat(self, X: FloatArray) -> FloatArray: ...

    def _matvec(self, x: FloatArray) -> FloatArray:
        return self._matmat(x.reshape(-1, 1)).ravel()

    def _rmatvec(self, x: FloatArray) -> FloatArray:
        return self._rmatmat(x.reshape(-1, 1)).ravel()

    def to_dense(self) -> FloatArray:
        """The matrix itself: memory rows x columns. Oracles and tests only."""
        return self._matmat(np.eye(self.shape[1]))
