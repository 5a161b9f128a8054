"""Time (x) space products: (L (x) R) x without forming the Kronecker matrix."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ..check import FloatArray
from .base import StructuredOperator


class Kronecker(StructuredOperator):
    """L (x) R over the time-major index: out[a * rows(R) + i] = sum_bj L[a, b] R[i, j] x[b * cols(R) + j].

    Args:
        time: L, shape (p, T), dense or sparse.
        space: R, shape (q, n), dense or sparse.

    Cost of one product with k columns: k (T nnz(R) + q nnz(L)).
    """

    def __init__(self, time: FloatArray | sp.sparray, space: FloatArray | sp.sparray) -> None:
        self.time, self.space = time, space
        super().__init__((time.shape[0] * space.shape[0], time.shape[1] * space.shape[1]))

    @staticmethod
    def _apply(L: FloatArray | sp.sparray, R: FloatArray | sp.sparray, X: FloatArray) -> FloatArray:
        (T, n), k = (L.shape[1], R.shape[1]), X.shape[1]
        blocks = X.reshape(T, n, k)
        spaced = R @ blocks.transpose(1, 0, 2).reshape(n, T * k)  # (q, T k)
        timed = L @ spaced.reshape(R.shape[0], T, k).transpose(1, 0, 2).reshape(T, R.shape[0] * k)
        return np.asarray(timed).reshape(L.shape[0] * R.shape[0], k)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._apply(self.time, self.space, X)

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return self._apply(self.time.T, self.space.T, X)
