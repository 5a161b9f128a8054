"""The base class of structured operators, and the two simplest: time (x) space products and row selection.

A subclass implements `_matmat` (x of shape (columns, k)) and `_rmatmat` (the transpose); scipy derives the vector
forms, sums and products. All operators are real float64.

Linear recursions over steps: the one form behind gossip, messages, models and their transposes.

A recursion carries a state s through steps t = 0..T-1, fed by one input block x_t per step:

    y_t     = P_t s_t + Q_t x_t                 the output
    s_{t+1} = K_t y_t + F_t s_t + J_t x_t       the next state,   s_0 = 0
    m_t     = M_t s_t                           the models, t = 0..T (m_T after the last step)

A step may have no input (a pure gossip round): `input_of_step` says which input block each step takes, -1 for none.
`None` stands for a zero map. Products cost the sum of the maps' non-zeros; the transpose is the same
recursion run backwards in time. Nothing of size (T n) x (T n) is formed.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from . import check, matrices
from .check import FloatArray
from .errors import InvalidInput

__all__ = ["Kronecker", "OutputRecursion", "StructuredOperator"]


def __dir__() -> list[str]:
    return sorted(__all__)


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

    Args: time: L, shape (p, T); space: R, shape (q, n); dense or sparse.
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

    Args: indices: integers in [0, size), shape (m,); repeats are allowed.
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
        return self.num_steps * self.num_nodes

    def flat(self, step: int, node: int) -> int:
        """Flat index of one (step, node)."""
        return step * self.num_nodes + node

    def node_columns(self, node: int) -> IntArray:
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


Map: TypeAlias = sp.csr_array | None


@dataclasses.dataclass(frozen=True, eq=False)
class RecursionMaps:
    """The sparse maps P, Q, K, F, J of one step; field names read `<to>_from_<from>`. None is the zero map."""

    out_from_state: Map
    out_from_input: Map
    state_from_out: Map
    state_from_state: Map = None
    state_from_input: Map = None

    def absolute(self) -> RecursionMaps:
        return RecursionMaps(*(None if m is None else abs(m) for m in vars(self).values()))


def _times(matrix: Map, x: FloatArray) -> FloatArray | float:
    return 0.0 if matrix is None else matrix @ x


def _transposed_times(matrix: Map, x: FloatArray) -> FloatArray | float:
    return 0.0 if matrix is None else matrix.T @ x


class _Recursion(StructuredOperator):
    """Sizes and both passes; the subclasses choose which rows are the output.

    Args: maps: one per step, the same object where steps are alike; input_of_step: the input block of each step, -1 for
        none; default one each, in order.
    """

    def __init__(
        self,
        maps: Sequence[RecursionMaps],
        *,
        input_size: int,
        out_size: int,
        state_size: int,
        input_of_step: Sequence[int] | None = None,
    ) -> None:
        self.maps = maps
        self.input_size, self.out_size, self.state_size = input_size, out_size, state_size
        self.input_of_step = list(range(len(maps)) if input_of_step is None else input_of_step)
        self.num_inputs = max(self.input_of_step, default=-1) + 1
        super().__init__((self._rows(), self.num_inputs * input_size))

    @abc.abstractmethod
    def _rows(self) -> int: ...

    def absolute(self) -> Self:
        """The recursion with the absolute values of all maps: it bounds what sums of products can cancel."""
        other = copy.copy(self)
        other.maps = [*map(matrices.once(RecursionMaps.absolute), self.maps)]
        return other

    def _forward(self, X: FloatArray) -> Iterator[tuple[FloatArray, FloatArray | None]]:
        """(s_t, y_t) of each step, then (s_T, None)."""
        k = X.shape[1]
        inputs = X.reshape(self.num_inputs, self.input_size, k)
        nothing = np.zeros((self.input_size, k))
        state = np.zeros((self.state_size, k))
        for block, maps in zip(self.input_of_step, self.maps, strict=True):
            x = inputs[block] if block >= 0 else nothing
            y = np.zeros((self.out_size, k)) + _times(maps.out_from_state, state) + _times(maps.out_from_input, x)
            yield state, y
            state = (
                np.zeros_like(state)
                + _times(maps.state_from_out, y)
                + _times(maps.state_from_state, state)
                + _times(maps.state_from_input, x)
            )
        yield state, None

    def _backward(self, k: int, out_bar: Mapping[int, FloatArray], state_bar: Mapping[int, FloatArray]) -> FloatArray:
        """Adjoint of `_forward`: cotangents of y_t and s_t, by step where they are not zero, to those of x_t."""
        T = len(self.maps)
        inputs_bar = np.zeros((self.num_inputs, self.input_size, k))
        carried = np.zeros((self.state_size, k)) + state_bar.get(T, 0.0)
        for t in range(T - 1, -1, -1):
            maps = self.maps[t]
            y_bar = np.zeros((self.out_size, k)) + _transposed_times(maps.state_from_out, carried) + out_bar.get(t, 0.0)
            if (block := self.input_of_step[t]) >= 0:
                inputs_bar[block] += _transposed_times(maps.out_from_input, y_bar)
                inputs_bar[block] += _transposed_times(maps.state_from_input, carried)
            carried = (
                np.zeros_like(carried)
                + _transposed_times(maps.out_from_state, y_bar)
                + _transposed_times(maps.state_from_state, carried)
                + state_bar.get(t, 0.0)
            )
        return inputs_bar.reshape(self.shape[1], k)


class OutputRecursion(_Recursion):
    """x -> (y_0, ..., y_{T-1}), shape (T * out, T * input)."""

    def _rows(self) -> int:
        return len(self.maps) * self.out_size

    def _matmat(self, X: FloatArray) -> FloatArray:
        out = np.empty((len(self.maps), self.out_size, X.shape[1]))
        for block, (_, y) in zip(out, self._forward(X), strict=False):  # the last state goes with no output
            block[...] = y
        return out.reshape(self.shape[0], X.shape[1])

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        k = X.shape[1]
        return self._backward(k, dict(enumerate(X.reshape(len(self.maps), self.out_size, k))), {})


class WeightedStates(_Recursion):
    """x -> sum_t weights[t] M s_t, M = model_from_state, over states by the number of recursion steps before them."""

    def __init__(
        self,
        maps: Sequence[RecursionMaps],
        *,
        model_from_state: sp.csr_array,
        weights: Mapping[int, float],
        **sizes: Any,
    ) -> None:
        self.model_from_state, self.weights = model_from_state, weights
        super().__init__(maps, **sizes)

    def absolute(self) -> Self:
        other = super().absolute()
        other.model_from_state = abs(self.model_from_state)
        return other

    def _rows(self) -> int:
        return int(self.model_from_state.shape[0])

    def _matmat(self, X: FloatArray) -> FloatArray:
        total = np.zeros((self.state_size, X.shape[1]))
        for t, (state, _) in enumerate(self._forward(X)):
            if t in self.weights:
                total += self.weights[t] * state
        return np.asarray(self.model_from_state @ total)

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        states = self.model_from_state.T @ X
        return self._backward(X.shape[1], {}, {t: weight * states for t, weight in self.weights.items()})


class StateRecursion(_Recursion):
    """x -> M s_t at each step t that takes an input, or only M s_T with `final`: the models, M = model_from_state."""

    def __init__(
        self, maps: Sequence[RecursionMaps], *, model_from_state: sp.csr_array, final: bool = False, **sizes: Any
    ) -> None:
        self.model_from_state, self.final = model_from_state, final
        super().__init__(maps, **sizes)

    @property
    def _output_steps(self) -> list[int]:
        """The steps t of the states s_t in the output."""
        return [len(self.maps)] if self.final else [t for t, block in enumerate(self.input_of_step) if block >= 0]

    def _rows(self) -> int:
        return self.model_from_state.shape[0] * len(self._output_steps)

    def _matmat(self, X: FloatArray) -> FloatArray:
        M, output_steps = self.model_from_state, set(self._output_steps)
        return np.concatenate([M @ s for t, (s, _) in enumerate(self._forward(X)) if t in output_steps])

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        k, output_steps, M = X.shape[1], self._output_steps, self.model_from_state
        blocks = X.reshape(len(output_steps), M.shape[0], k)
        return self._backward(k, {}, {t: M.T @ x for t, x in zip(output_steps, blocks, strict=True)})
