"""Noise of any covariance over time and nodes, N = C^-1 with C of size T n: for small problems."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..operators.structured import StructuredOperator
from ..storable import storable
from . import base, encoder_arguments
from .base import NoiseOperator

MAX_JOINT_SIZE = 4096
"""T n up to which arrays of (T n)^2 are formed: 128 MiB each, and minutes of factorization."""


def require_joint_size(num_steps: int, num_nodes: int, instead: str) -> None:
    """Raises UnsupportedMechanism where T n is above MAX_JOINT_SIZE; `instead` says what to use then."""
    if (size := num_steps * num_nodes) > MAX_JOINT_SIZE:
        raise UnsupportedMechanism(
            f"noise of any correlation over time and nodes takes an array of (T n)^2 and is limited to T n = "
            f"{MAX_JOINT_SIZE}, got {num_steps} * {num_nodes} = {size}; {instead}."
        )


@storable
class JointNoise(NoiseOperator):
    """N = C^-1 over all of time x nodes: n columns per step, each held by all nodes.

    Args:
        encoder: C as an array, shape (T n, T n), time-major, lower triangular with a positive diagonal; kept as a
            `Dense` of `mfdl.factorization.encoders`.
        num_steps: T; num_nodes: n.
    Raises: InvalidInput: another shape, an entry above the diagonal, a diagonal entry <= 0, entries beyond LARGEST.
        UnsupportedMechanism: T n above MAX_JOINT_SIZE.
    """

    in_blocks = True

    def __init__(self, encoder: ArrayLike, num_steps: int, num_nodes: int) -> None:
        T, n = check.integer_at_least(1, num_steps=num_steps), check.integer_at_least(1, num_nodes=num_nodes)
        require_joint_size(T, n, "use SpatioTemporalNoise, which scales")
        self.encoder = encoder_arguments.dense(encoder, T * n, f"{T} steps x {n} nodes")
        self.num_steps, self.num_nodes = T, n
        self._slots: NDArray[np.intp] | slice = slice(None)
        super().__init__((T * n, T * n))

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        base.require_products_kept(cls)

    def stored_fields(self) -> dict[str, Any]:
        """See `storable`."""
        return {"encoder": self.encoder.array, "num_steps": self.num_steps, "num_nodes": self.num_nodes}

    @property
    def joint(self) -> JointNoise:
        return self

    @property
    def inverse(self) -> FloatArray:
        """C^-1 as the executor uses it, shape (T n, T n); lower triangular."""
        return self.encoder.inverse

    def holders(self) -> sp.csr_array:
        return sp.csr_array(np.ones((self.num_nodes, self.num_nodes), dtype=bool))

    def content(self) -> bytes:
        return self.encoder.array.tobytes()

    def factors(self) -> tuple[FloatArray, ...]:
        return (self.inverse,)

    def scaled(self, slots: FloatArray) -> JointNoise:
        return JointNoise(self.encoder.array / np.tile(slots, self.num_steps), self.num_steps, self.num_nodes)

    def cut(self, slots: Sequence[int] | None = None) -> tuple[NDArray[np.intp], JointNoise]:
        part = copy.copy(self)
        if slots is not None:
            part._slots = np.arange(self.num_nodes)[self._slots][np.array(slots, dtype=np.intp)]
            StructuredOperator.__init__(part, (self.num_steps * part._slots.size, self.shape[1]))
        return np.arange(self.columns_per_step), part

    def over_time(self, rows: slice, columns: slice, base: FloatArray) -> FloatArray:
        rows_of_noise = self._entries(rows, columns) @ base.reshape(-1, base.shape[2])
        return rows_of_noise.reshape(-1, self.slots_per_step, base.shape[2])

    def _entries(self, rows: slice = slice(None), columns: slice = slice(None)) -> FloatArray:
        T, n = self.num_steps, self.num_nodes
        entries = self.inverse.reshape(T, n, T, n)[rows][:, self._slots, columns]
        return entries.reshape(entries.shape[0] * entries.shape[1], entries.shape[2] * n)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._entries() @ X

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return self._entries().T @ X

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        return np.abs(self._entries()).T @ X

    def variances(self) -> FloatArray:
        return np.asarray((self._entries() ** 2).sum(axis=1)).reshape(self.num_steps, -1)
