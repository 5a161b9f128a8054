"""How base noise Z becomes injected noise: the operator N in `injected = N Z`.

Rows of N are (step, injection slot), time-major; columns are the independent parts of the base noise, each
with its own holders. With Z ~ N(0, nu^2) iid the injected noise has covariance nu^2 N N^T. Local noise has one
column per (step, node), held by that node alone, and N is block diagonal over nodes: node u injects
C_u^-1 times its own base noise.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import ArrayLike

from .. import check, matrices
from ..check import LARGEST, FloatArray
from ..errors import InvalidInput
from .base import StructuredOperator


def require_scale(encoder: FloatArray, diagonal: FloatArray) -> None:
    """Raises InvalidInput where an encoder has entries beyond LARGEST or a diagonal entry below 1 / LARGEST."""
    largest, least = float(np.abs(encoder).max(initial=0.0)), float(diagonal.min(initial=1.0))
    if largest > LARGEST or least < 1 / LARGEST:
        raise InvalidInput(
            f"encoder must have a diagonal of at least {1 / LARGEST:g} and entries of at most {LARGEST:g} in size, got "
            f"{least:g} and {largest:g}; its scale is free, so divide it and noise_std by one number."
        )


def require_held(factor: sp.csr_array, holders: sp.csr_array) -> None:
    """Raises InvalidInput where a node adds a column that it does not hold: F[i, k] is not 0, holders[k, i] false."""
    foreign = sp.coo_array((factor != 0) > sp.csr_array(holders.T))
    if foreign.nnz:
        node, column = int(foreign.coords[0][0]), int(foreign.coords[1][0])
        raise InvalidInput(
            f"a node can only add noise that it holds, got factor[{node}, {column}] = {factor[node, column]:g} "
            f"while node {node} does not hold column {column}; add it to holders or make the entry zero."
        )


def _sizes(num_steps: int, num_nodes: int) -> tuple[int, int]:
    return check.integer_at_least(1, num_steps=num_steps), check.integer_at_least(1, num_nodes=num_nodes)


class NoiseOperator(StructuredOperator, abc.ABC):
    """N over (num_steps x num_nodes) injection slots; `encoder_gram` is what privacy reads."""

    num_steps: int
    num_nodes: int

    @abc.abstractmethod
    def variances(self) -> FloatArray:
        """diag(N N^T), shape (num_steps, num_nodes): variance of the injected noise per unit nu^2."""

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        """|N|^T X, |N| the entries' absolute values: what could cancel in N^T X."""
        return np.asarray(np.abs(self.matmat(np.eye(self.shape[1]))).T @ X)

    def content(self) -> bytes:
        """What a content hash must see besides type and sizes; by default N and its holders, dense."""
        return self.matmat(np.eye(self.shape[1])).tobytes() + self.holders().toarray().tobytes()

    def factors(self) -> tuple[FloatArray, ...]:
        """Arrays whose entries, one of each, multiply to the entries of N; by default N itself, dense."""
        return (self.matmat(np.eye(self.shape[1])),)

    @property
    def slots_per_step(self) -> int:
        """Injection slots per step; the rows of N are time-major."""
        return self.shape[0] // self.num_steps

    def holders(self) -> sp.csr_array:
        """Who holds each independent part of a step's base noise: bool (columns per step, n)."""
        return sp.csr_array(sp.eye_array(self.num_nodes, dtype=bool))

    def pattern(self) -> sp.csr_array:
        """Which parts of the base noise a slot uses, at any step: bool (slots per step, columns per step)."""
        return sp.csr_array(np.ones((self.slots_per_step, self.columns_per_step), dtype=bool))

    @property
    def columns_per_step(self) -> int:
        """Independent parts of the base noise per step; the columns of N are time-major."""
        return self.shape[1] // self.num_steps


class ZeroNoise(NoiseOperator):
    """No noise at all: no columns."""

    def __init__(self, num_steps: int, num_nodes: int) -> None:
        self.num_steps, self.num_nodes = _sizes(num_steps, num_nodes)
        super().__init__((num_steps * num_nodes, 0))

    def holders(self) -> sp.csr_array:
        return sp.csr_array((0, self.num_nodes), dtype=bool)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return np.zeros((self.shape[0], X.shape[1]))

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return np.zeros((0, X.shape[1]))

    def variances(self) -> FloatArray:
        return np.zeros((self.num_steps, self.num_nodes))


class LocalNoise(NoiseOperator):
    """Block diagonal over nodes: N = C^-1 (x) I for one shared encoder, or C_u^-1 per node.

    Args:
        encoder: C, shape (T, T) shared by all nodes, or (n, T, T), one per node; causal (lower triangular)
            with a positive diagonal, so that the noise of step t needs base noise of steps <= t only.
        num_nodes: n.

    Raises: InvalidInput: not lower triangular, a diagonal entry <= 0, entries beyond LARGEST, or a wrong shape.
    """

    def __init__(self, encoder: FloatArray, num_nodes: int) -> None:
        ndim = np.ndim(encoder)
        if ndim not in (2, 3):
            raise InvalidInput(f"encoder must have shape (T, T) or (n, T, T), got {np.shape(encoder)}.")
        C = check.finite_array(ndim, encoder=encoder)
        if C.shape[-1] != C.shape[-2] or (ndim == 3 and C.shape[0] != num_nodes):
            raise InvalidInput(f"encoder must have shape (T, T) or ({num_nodes}, T, T), got {C.shape}.")
        if np.triu(C, 1).any():
            raise InvalidInput(
                "encoder must be causal (lower triangular): an entry above the diagonal would need noise of a "
                "later step; use mfdl.factorization.causal_encoder on its Gram matrix."
            )
        diagonal = np.diagonal(C, axis1=-2, axis2=-1)
        if not (diagonal > 0).all():
            where = tuple(int(i) for i in np.argwhere(~(diagonal > 0))[0])
            node = f" of node {where[0]}" if ndim == 3 else ""
            raise InvalidInput(
                f"encoder must have a positive diagonal, got {diagonal[where]:g} at step {where[-1]}{node}."
            )
        require_scale(C, diagonal)
        C.setflags(write=False)
        self.encoder = C
        self.num_steps, self.num_nodes = C.shape[-1], num_nodes
        super().__init__((self.num_steps * num_nodes,) * 2)

    @property
    def shared(self) -> bool:
        """One encoder for all nodes."""
        return self.encoder.ndim == 2

    def pattern(self) -> sp.csr_array:
        return self.holders()

    def content(self) -> bytes:
        return self.encoder.tobytes()

    def factors(self) -> tuple[FloatArray, ...]:
        return (self.inverse,)

    def encoder_of(self, node: int) -> FloatArray:
        """C_u, shape (T, T)."""
        return self.encoder if self.shared else self.encoder[node]

    @cached_property
    def inverse(self) -> FloatArray:
        """C^-1 as the executor uses it, the shape of `encoder`; lower triangular."""
        eye = np.eye(self.num_steps)
        encoders = self.encoder[None] if self.shared else self.encoder
        inverse = np.stack([np.tril(scipy.linalg.solve_triangular(C, eye, lower=True)) for C in encoders])
        return np.asarray(matrices.read_only(inverse[0] if self.shared else inverse))

    def inverse_of(self, node: int) -> FloatArray:
        """C_u^-1, shape (T, T)."""
        return self.inverse if self.shared else self.inverse[node]

    def _blockwise(self, matrices: FloatArray, X: FloatArray) -> FloatArray:
        blocks = X.reshape(self.num_steps, self.num_nodes, -1)
        if self.shared:
            return (matrices @ blocks.reshape(self.num_steps, -1)).reshape(X.shape)
        return np.matmul(matrices, blocks.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(X.shape)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._blockwise(self.inverse, X)

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return self._blockwise(self.inverse.swapaxes(-1, -2), X)

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        return self._blockwise(np.abs(self.inverse).swapaxes(-1, -2), X)

    def variances(self) -> FloatArray:
        rows = (self.inverse**2).sum(axis=-1)
        return np.repeat(rows[:, None], self.num_nodes, axis=1) if self.shared else rows.T.copy()


class IndependentNoise(NoiseOperator):
    """N = I: fresh noise at every node and step. `LocalNoise` with C = I, without the T x T array."""

    def __init__(self, num_steps: int, num_nodes: int) -> None:
        self.num_steps, self.num_nodes = _sizes(num_steps, num_nodes)
        super().__init__((num_steps * num_nodes,) * 2)

    def pattern(self) -> sp.csr_array:
        return self.holders()

    def _matmat(self, X: FloatArray) -> FloatArray:
        return X.copy()

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return X.copy()

    absolute_rmatmat = _rmatmat

    def content(self) -> bytes:
        return b""

    def factors(self) -> tuple[FloatArray, ...]:
        return ()

    def variances(self) -> FloatArray:
        return np.ones((self.num_steps, self.num_nodes))


class StepNoise(NoiseOperator):
    """N = I_T (x) F: the same mixing of fresh base noise in every step, correlated across slots but not in time.

    Args:
        factor: F, (slots, columns), dense or sparse: injected noise of a step = F times the step's base noise.
        holders: bool (columns, n), dense or sparse: the nodes that hold each part (two for a pairwise secret). With one
            slot per node, node i adds what it holds and nothing else: F[i, k] = 0 unless i holds k.
        num_steps: T; num_nodes: n.
    Raises: InvalidInput: entries that are not finite real numbers or out of range, shapes that do not fit, or a node
        that adds a column it does not hold.
    """

    def __init__(
        self,
        factor: sp.sparray | ArrayLike,
        holders: sp.sparray | ArrayLike,
        num_steps: int,
        num_nodes: int,
    ) -> None:
        self.num_steps, self.num_nodes = _sizes(num_steps, num_nodes)
        self.factor, self._holders = matrices.sparse_matrix(factor=factor), matrices.sparse_mask(holders=holders)
        slots, columns = self.factor.shape
        if self._holders.shape != (columns, num_nodes):
            raise InvalidInput(f"holders must have shape {(columns, num_nodes)}, got {self._holders.shape}.")
        if slots == num_nodes:
            require_held(self.factor, self._holders)
        super().__init__((num_steps * slots, num_steps * columns))

    def rows(self, slots: Sequence[int]) -> StepNoise:
        """The noise of some injection slots alone: the rows F[slots], held as before."""
        cut = copy.copy(self)
        cut.factor = matrices.sparse_matrix(factor=self.factor[list(slots)])
        StructuredOperator.__init__(cut, (self.num_steps * len(slots), self.shape[1]))
        return cut

    def pattern(self) -> sp.csr_array:
        return sp.csr_array(self.factor != 0)

    def holders(self) -> sp.csr_array:
        return self._holders

    def content(self) -> bytes:
        parts = (sp.coo_array(self.factor), sp.coo_array(self._holders))
        return b"".join(np.ascontiguousarray(x).tobytes() for part in parts for x in (*part.coords, part.data))

    def factors(self) -> tuple[FloatArray, ...]:
        return (self.factor.data,)

    def _per_step(self, matrix: sp.csr_array, X: FloatArray) -> FloatArray:
        k, columns = X.shape[1], matrix.shape[1]
        blocks = X.reshape(self.num_steps, columns, k).transpose(1, 0, 2).reshape(columns, self.num_steps * k)
        mixed = np.asarray(matrix @ blocks).reshape(matrix.shape[0], self.num_steps, k)
        return mixed.transpose(1, 0, 2).reshape(self.num_steps * matrix.shape[0], k)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._per_step(self.factor, X)

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return self._per_step(sp.csr_array(self.factor.T), X)

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        return self._per_step(sp.csr_array(abs(self.factor).T), X)

    def variances(self) -> FloatArray:
        rows = np.asarray(self.factor.power(2).sum(axis=1)).ravel()
        return np.tile(rows, (self.num_steps, 1))
