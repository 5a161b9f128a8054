"""How base noise Z becomes injected noise: the operator N in `injected = N Z`.

Rows of N are (step, injection slot), time-major; columns are the independent parts of the base noise, each
with its own holders. With Z ~ N(0, nu^2) iid the injected noise has covariance nu^2 N N^T. Local noise has one
column per (step, node), held by that node alone, and N is block diagonal over nodes: node u injects
C_u^-1 times its own base noise.
"""

from __future__ import annotations

import abc
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from .base import StructuredOperator

LARGEST = 1e60
"""Of entries of encoders and factors, and of 1 / diagonals: beyond, squares and their products leave the range of
float64, and a loss that underflows would read as none."""

SCALE_DOWN = "the size of all noise is noise_std, so scale the array down and noise_std up."


def require_scale(encoder: FloatArray, diagonal: FloatArray) -> None:
    """Raises InvalidInput where an encoder has entries beyond LARGEST or a diagonal entry below 1 / LARGEST."""
    largest, least = float(np.abs(encoder).max(initial=0.0)), float(diagonal.min(initial=1.0))
    if largest > LARGEST or least < 1 / LARGEST:
        raise InvalidInput(
            f"encoder must have a diagonal of at least {1 / LARGEST:g} and entries of at most {LARGEST:g} in size, got "
            f"{least:g} and {largest:g}; its scale is free, so divide it and noise_std by one number."
        )


class NoiseOperator(StructuredOperator, abc.ABC):
    """N over (num_steps x num_nodes) injection slots; `encoder_gram` is what privacy reads."""

    num_steps: int
    num_nodes: int

    @abc.abstractmethod
    def variances(self) -> FloatArray:
        """diag(N N^T), shape (num_steps, num_nodes): variance of the injected noise per unit nu^2."""

    def content(self) -> bytes:
        """What a content hash must see besides type and sizes."""
        return b""

    @property
    def slots_per_step(self) -> int:
        """Injection slots per step; the rows of N are time-major."""
        return self.shape[0] // self.num_steps

    def holders(self) -> sp.csr_array:
        """Who holds each independent part of a step's base noise: bool (columns per step, n)."""
        return sp.csr_array(sp.eye_array(self.num_nodes, dtype=bool))

    @property
    def columns_per_step(self) -> int:
        """Independent parts of the base noise per step; the columns of N are time-major."""
        return self.shape[1] // self.num_steps


class ZeroNoise(NoiseOperator):
    """No noise at all: no columns."""

    def __init__(self, num_steps: int, num_nodes: int) -> None:
        self.num_steps, self.num_nodes = num_steps, num_nodes
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

    def content(self) -> bytes:
        return self.encoder.tobytes()

    def encoder_of(self, node: int) -> FloatArray:
        """C_u, shape (T, T)."""
        return self.encoder if self.shared else self.encoder[node]

    @cached_property
    def inverse(self) -> FloatArray:
        """C^-1 as the executor uses it, the shape of `encoder`; lower triangular."""
        eye = np.eye(self.num_steps)
        if self.shared:
            return np.tril(scipy.linalg.solve_triangular(self.encoder, eye, lower=True))
        return np.stack([np.tril(scipy.linalg.solve_triangular(C, eye, lower=True)) for C in self.encoder])

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

    def variances(self) -> FloatArray:
        rows = (self.inverse**2).sum(axis=-1)
        return np.repeat(rows[:, None], self.num_nodes, axis=1) if self.shared else rows.T.copy()


class IndependentNoise(NoiseOperator):
    """N = I: fresh noise at every node and step. `LocalNoise` with C = I, without the T x T array."""

    def __init__(self, num_steps: int, num_nodes: int) -> None:
        self.num_steps, self.num_nodes = num_steps, num_nodes
        super().__init__((num_steps * num_nodes,) * 2)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return X.copy()

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return X.copy()

    def variances(self) -> FloatArray:
        return np.ones((self.num_steps, self.num_nodes))


class StepNoise(NoiseOperator):
    """N = I_T (x) F: the same mixing of fresh base noise in every step, correlated across slots but not in time.

    Args:
        factor: F, csr (slots, columns): injected noise of a step = F times the step's base noise.
        holders: bool csr (columns, n): the nodes that hold each part (two for a pairwise secret).
        num_steps: T; num_nodes: n.
    """

    def __init__(self, factor: sp.sparray | FloatArray, holders: sp.sparray, num_steps: int, num_nodes: int) -> None:
        F = sp.csr_array(factor, dtype=np.float64)
        if not np.isfinite(F.data).all():
            raise InvalidInput("factor must be finite, got a nan or infinite entry.")
        if F.nnz and (largest := float(np.abs(F.data).max())) > LARGEST:
            raise InvalidInput(
                f"factor must have entries of at most {LARGEST:g} in size, got {largest:g}; {SCALE_DOWN}"
            )
        if holders.shape != (F.shape[1], num_nodes):
            raise InvalidInput(f"holders must have shape {(F.shape[1], num_nodes)}, got {holders.shape}.")
        self.factor, self._holders = F, sp.csr_array(holders, dtype=bool)
        self.num_steps, self.num_nodes = num_steps, num_nodes
        super().__init__((num_steps * F.shape[0], num_steps * F.shape[1]))

    def holders(self) -> sp.csr_array:
        return self._holders

    def content(self) -> bytes:
        return self.factor.toarray().tobytes() + self._holders.toarray().tobytes()

    def _per_step(self, matrix: sp.csr_array, X: FloatArray) -> FloatArray:
        k, columns = X.shape[1], matrix.shape[1]
        blocks = X.reshape(self.num_steps, columns, k).transpose(1, 0, 2).reshape(columns, self.num_steps * k)
        mixed = np.asarray(matrix @ blocks).reshape(matrix.shape[0], self.num_steps, k)
        return mixed.transpose(1, 0, 2).reshape(self.num_steps * matrix.shape[0], k)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._per_step(self.factor, X)

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return self._per_step(sp.csr_array(self.factor.T), X)

    def variances(self) -> FloatArray:
        rows = np.asarray(self.factor.power(2).sum(axis=1)).ravel()
        return np.tile(rows, (self.num_steps, 1))
