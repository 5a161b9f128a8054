"""The gossip workload W_T and its inverse.

W_T is block lower-triangular with block (t, s) = W_{t-1} ... W_s (identity for t = s), so that
y = W_T x is the recursion y_t = x_t + W_{t-1} y_{t-1}. Its inverse has two block diagonals. With constant
W, block (t, s) is W^(t-s). Largest cost of a product with k columns: k T nnz(W). Singular values:
sigma_min(W_T) >= 1 / (1 + max ||W_t||), since W_T^-1 = I - S (x) W has norm at most 1 + max ||W_t||.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from .. import matrices
from ..check import FloatArray
from ..errors import InvalidInput
from .base import StructuredOperator
from .recursion import OutputRecursion, RecursionMaps


def _per_step(weights: sp.csr_array | Sequence[sp.csr_array], num_steps: int) -> list[sp.csr_array]:
    if sp.issparse(weights) or isinstance(weights, np.ndarray):
        return [sp.csr_array(weights)] * num_steps
    if len(weights) < num_steps:
        raise InvalidInput(f"weights must hold one matrix per step, got {len(weights)} for num_steps={num_steps}.")
    return [sp.csr_array(w) for w in weights[:num_steps]]


class GossipRecursion(OutputRecursion):
    """W_T: y_t = x_t + W_{t-1} y_{t-1}, shape (T n, T n).

    Args:
        weights: W (n, n), or one matrix per step; the averaging between step t and t + 1 uses weights[t].
        num_steps: T >= 1.
    """

    def __init__(self, weights: sp.csr_array | Sequence[sp.csr_array], num_steps: int) -> None:
        per_step = _per_step(weights, num_steps)
        n = per_step[0].shape[0]
        eye = sp.csr_array(sp.eye_array(n))
        maps = matrices.once(lambda W: RecursionMaps(out_from_state=eye, out_from_input=eye, state_from_out=W))
        super().__init__([*map(maps, per_step)], input_size=n, out_size=n, state_size=n)


class InverseGossipRecursion(StructuredOperator):
    """W_T^-1: x_t = y_t - W_{t-1} y_{t-1}, shape (T n, T n); arguments as for `GossipRecursion`."""

    def __init__(self, weights: sp.csr_array | Sequence[sp.csr_array], num_steps: int) -> None:
        self.weights = _per_step(weights, num_steps)
        n = self.weights[0].shape[0]
        super().__init__((num_steps * n, num_steps * n))

    def _matmat(self, X: FloatArray) -> FloatArray:
        Y = X.reshape(len(self.weights), self.weights[0].shape[0], X.shape[1])
        out = Y.copy()
        for t in range(1, len(self.weights)):
            out[t] -= self.weights[t - 1] @ Y[t - 1]
        return out.reshape(X.shape)

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        Y = X.reshape(len(self.weights), self.weights[0].shape[0], X.shape[1])
        out = Y.copy()
        for t in range(1, len(self.weights)):
            out[t - 1] -= self.weights[t - 1].T @ Y[t]
        return out.reshape(X.shape)
