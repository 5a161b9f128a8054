"""The base class of structured operators, and the two simplest: time (x) space products and row selection.

A subclass implements `_matmat` (x of shape (columns, k)) and `_rmatmat` (the transpose); scipy derives the vector
forms, sums and products. All operators are real float64.
"""

from __future__ import annotations

import abc
import dataclasses

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput


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


IntArray = NDArray[np.intp]


@dataclasses.dataclass(frozen=True)
class TimeNodeAxis:
    """The index set time x nodes.

    Attributes: num_steps: T >= 1; num_nodes: n >= 1.

    >>> axis = TimeNodeAxis(num_steps=2, num_nodes=3)
    >>> axis.flat(step=1, node=2)
    5
    >>> axis.node_major().tolist()
    [0, 3, 1, 4, 2, 5]
    """

    num_steps: int
    num_nodes: int

    def __post_init__(self) -> None:
        check.integer_at_least(1, num_steps=self.num_steps)
        check.integer_at_least(1, num_nodes=self.num_nodes)

    @property
    def size(self) -> int:
        """num_steps * num_nodes."""
        return self.num_steps * self.num_nodes

    def flat(self, step: int, node: int) -> int:
        """Flat index of one (step, node)."""
        return step * self.num_nodes + node

    def of_node(self, node: int) -> IntArray:
        """Flat indices of all steps of one node, shape (num_steps,), in time order."""
        return np.arange(self.num_steps, dtype=np.intp) * self.num_nodes + node

    def node_major(self) -> IntArray:
        """pi with pi[u * T + t] = t * n + u, so that `A @ commutation == A[:, pi]` and `x[pi]` is node-major."""
        flat = np.arange(self.size, dtype=np.intp)
        return flat.reshape(self.num_steps, self.num_nodes).T.ravel().copy()

    def commutation(self) -> sp.csr_array:
        """K with K[t * n + u, u * T + t] = 1: K (X (x) Y) = (Y (x) X) K for X n x n, Y T x T. For oracles."""
        columns = np.arange(self.size)
        return sp.csr_array((np.ones(self.size), (self.node_major(), columns)), shape=(self.size, self.size))
