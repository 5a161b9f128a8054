"""Noise beyond columns that enter alike in every step: by a plan (`ScheduledNoise`), or joint over time and nodes.

    N = S (I (x) I_columns) blockdiag(E_k),   N[(t, i), (s, k)] = sum_r S[(t, i), (r, k)] E_k[r, s].

Columns of a `ScheduledNoise` are as those of a `CausalNoise`; S adds up columns of steps r <= t. A `CausalNoise` has
S = I (x) F. Dropout of nodes and its recovery change S (`algorithms.with_dropout`). `JointNoise` has any covariance
over time and nodes, N = C^-1 with C of size T n, causal in time: for small problems.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from mfdl_solvers.encoders import Dense, Encoder

from .. import check, matrices
from ..check import FloatArray
from ..entries import to_dense
from ..errors import InvalidInput, UnsupportedMechanism
from ..operators import StructuredOperator
from ..spec import storable
from .base import CausalNoise, LocalNoise, NoiseOperator, flat, require_products_kept
from .encoder_arguments import Given, block_causal

BLOCK = 256  # rows whose variances are summed at a time


@storable
class ScheduledNoise(NoiseOperator):
    """N = S times columns that are correlated over time.

    Args:
        encoder: as that of a `CausalNoise`.
        mixing: S, shape (T slots, T columns), time-major both, dense or sparse; S[(t, i), (r, k)] = 0 for r > t, and,
            with one slot for each node, unless i holds k.
        holders: bool (columns, n), at least one column: the nodes that hold each.
    Raises: InvalidInput: where that does not hold; those of `CausalNoise`.
    Cost: a product takes O(nnz(S)) besides that of the columns. A stream keeps the base noise of all steps.
    """

    def __init__(
        self,
        encoder: Given,
        mixing: sp.sparray | ArrayLike,
        holders: sp.sparray | ArrayLike,
        *,
        num_steps: int,
        num_nodes: int,
    ) -> None:
        self._holders = matrices.sparse_mask(holders=holders)
        # each column its own "node"
        self.columns = CausalNoise(encoder, num_steps=num_steps, num_nodes=self._holders.shape[0])
        self.num_steps, self.num_nodes = self.columns.num_steps, check.integer_at_least(1, num_nodes=num_nodes)
        self.mixing = matrices.sparse_matrix(mixing=mixing)
        T, (rows, of) = self.num_steps, self.mixing.shape
        if of != self.columns.shape[0] or rows % T:
            raise InvalidInput(f"mixing must have {T} rows a slot and {self.columns.shape[0]} columns, got {rows, of}.")
        if self._holders.shape[1] != num_nodes:
            raise InvalidInput(f"holders must name {num_nodes} nodes for each column, got {self._holders.shape[1]}.")
        super().__init__((rows, of))
        entries = sp.coo_array(self.mixing)
        if (entries.col // self.columns_per_step > entries.row // self.slots_per_step).any():
            raise InvalidInput("mixing must be causal: an entry is not 0 that adds noise of a later step.")
        if self.slots_per_step == self.num_nodes and (self.pattern() > sp.csr_array(self._holders.T)).nnz:
            raise InvalidInput("a node can only add noise that it holds, and mixing adds another's; see holders.")

    def stored_fields(self) -> dict[str, Any]:
        sizes = {"num_steps": self.num_steps, "num_nodes": self.num_nodes}
        encoder = self.columns.stored_fields()["encoder"]
        return {"encoder": encoder, "mixing": self.mixing, "holders": self._holders, **sizes}

    def holders(self) -> sp.csr_array:
        return self._holders

    def pattern(self) -> sp.csr_array:
        entries = sp.coo_array(self.mixing)
        places = entries.row % self.slots_per_step, entries.col % self.columns_per_step
        used = sp.csr_array((np.ones(entries.nnz), places), shape=(self.slots_per_step, self.columns_per_step))
        return sp.csr_array(used != 0)

    def content(self) -> bytes:
        entries = sp.coo_array(self.mixing)
        mixing = b"".join(np.ascontiguousarray(x).tobytes() for x in (*entries.coords, entries.data))
        return self.columns.kind.encode() + self.columns.content() + self._holders.toarray().tobytes() + mixing

    def scaled(self, slots: FloatArray) -> ScheduledNoise:
        scaled = copy.copy(self)
        scaled.mixing = matrices.sparse_matrix(mixing=sp.diags_array(np.tile(slots, self.num_steps)) @ self.mixing)
        scaled.__dict__.pop("_variances", None)
        return scaled

    def variances(self) -> FloatArray:
        return self._variances.reshape(self.num_steps, self.slots_per_step)

    @cached_property
    def _variances(self) -> FloatArray:
        if self.columns.fresh:
            return np.asarray(self.mixing.power(2).sum(axis=1)).ravel()
        starts = range(0, self.shape[0], BLOCK) or [0]  # a cut of no rows has no variances
        rows = (self.columns.rmatmat(self.mixing[at : at + BLOCK].toarray().T) for at in starts)
        return np.concatenate([np.square(block).sum(axis=0) for block in rows])

    def cut(self, slots: Sequence[int] | None = None) -> tuple[NDArray[np.intp], ScheduledNoise]:
        rows = self.mixing if slots is None else self.mixing[flat(slots, self.shape[0], self.num_steps)]
        columns = np.unique(rows.indices % self.columns_per_step).astype(np.intp)
        if slots is None and columns.size == self.columns_per_step:
            return columns, self
        part = copy.copy(self)
        part.__dict__.pop("_variances", None)
        part.columns, part._holders = self.columns.cut(columns.tolist())[1], self._holders[columns]
        part.mixing = matrices.sparse_matrix(mixing=rows[:, flat(columns, self.shape[1], self.num_steps)])
        StructuredOperator.__init__(part, part.mixing.shape)
        return columns, part

    def _matmat(self, X: FloatArray) -> FloatArray:
        return np.asarray(self.mixing @ self.columns.matmat(X))

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return np.asarray(self.columns.rmatmat(np.asarray(self.mixing.T @ X)))

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        return self.columns.absolute_rmatmat(np.asarray(abs(self.mixing).T @ X))


MAX_JOINT_SIZE = 4096
"""T n up to which arrays of (T n)^2 are formed: 128 MiB each, and minutes of factorization."""


def require_joint_size(num_steps: int, num_nodes: int, instead: str) -> None:
    if (size := num_steps * num_nodes) > MAX_JOINT_SIZE:
        raise UnsupportedMechanism(
            f"noise of any correlation over time and nodes takes an array of (T n)^2 and is limited to T n = "
            f"{MAX_JOINT_SIZE}, got {num_steps} * {num_nodes} = {size}; {instead}."
        )


@storable
class JointNoise(NoiseOperator):
    """N = C^-1 over all of time x nodes: n columns of base noise per step.

    Args:
        encoder: C as an array, shape (T n, T n), time-major, block lower triangular: no step uses noise of a later one,
            and inside a step any block that can be inverted (where C is lower triangular, its diagonal is positive).
        holders: bool (n, n): the nodes that hold each column of a step, at least those whose noise it enters in any
            step; "use" for exactly these. Default: all nodes hold all columns.
    Raises: InvalidInput: where that does not hold, a singular block, entries beyond LARGEST. UnsupportedMechanism: T n
        above MAX_JOINT_SIZE.
    """

    in_blocks = fills_new_arrays = True

    def __init__(
        self,
        encoder: ArrayLike,
        num_steps: int,
        num_nodes: int,
        *,
        holders: sp.sparray | ArrayLike | Literal["use"] | None = None,
    ) -> None:
        T, n = check.integer_at_least(1, num_steps=num_steps), check.integer_at_least(1, num_nodes=num_nodes)
        require_joint_size(T, n, "use SpatioTemporalNoise, which scales")
        self.encoder = block_causal(encoder, T, n)
        self.num_steps, self.num_nodes = T, n
        self._slots: NDArray[np.intp] | slice = slice(None)
        self._columns: NDArray[np.intp] = np.arange(n)
        super().__init__((T * n, T * n))
        everybody = sp.csr_array(np.ones((n, n), dtype=bool))
        by_use = isinstance(holders, str) and holders == "use"
        users = sp.csr_array(everybody if holders is None else self.pattern().T)
        self._holders = users if holders is None or by_use else matrices.sparse_mask(holders=holders)
        if self._holders.shape != (n, n):
            raise InvalidInput(f"holders must have shape {(n, n)}, got {self._holders.shape}.")
        if (foreign := sp.coo_array(users > self._holders)).nnz:
            column, node = int(foreign.row[0]), int(foreign.col[0])
            raise InvalidInput(f"a node can only add noise that it holds: node {node} adds column {column} of a step.")

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        require_products_kept(cls)

    def stored_fields(self) -> dict[str, Any]:
        sizes = {"num_steps": self.num_steps, "num_nodes": self.num_nodes}
        return {"encoder": self.encoder.array, "holders": self._holders, **sizes}

    @property
    def joint(self) -> Dense:
        return self.encoder

    @property
    def inverse(self) -> FloatArray:
        return self.encoder.inverse

    def holders(self) -> sp.csr_array:
        return self._holders

    def pattern(self) -> sp.csr_array:
        T, n = self.num_steps, self.num_nodes
        used = (self.inverse.reshape(T, n, T, n) != 0).any(axis=(0, 2))
        return sp.csr_array(used[self._slots][:, self._columns])

    def content(self) -> bytes:
        holders = self._holders.toarray()
        return self.encoder.array.tobytes() + (b"" if holders.all() else holders.tobytes())

    def factors(self) -> tuple[FloatArray, ...]:
        return (self.inverse,)

    def scaled(self, slots: FloatArray) -> JointNoise:
        C = self.encoder.array / np.tile(slots, self.num_steps)
        return JointNoise(C, self.num_steps, self.num_nodes, holders=self._holders)

    def cut(self, slots: Sequence[int] | None = None) -> tuple[NDArray[np.intp], JointNoise]:
        part = copy.copy(self)
        if slots is not None:
            part._slots = np.arange(self.num_nodes)[self._slots][np.array(slots, dtype=np.intp)]
        columns = np.unique(part.pattern().indices).astype(np.intp)
        if slots is None and columns.size == self.columns_per_step:
            return columns, self
        part._columns, part._holders = self._columns[columns], self._holders[columns]
        StructuredOperator.__init__(part, (self.num_steps * part.pattern().shape[0], self.num_steps * columns.size))
        return columns, part

    def over_time(self, rows: slice, columns: slice, base: FloatArray) -> FloatArray:
        rows_of_noise = self._entries(rows, columns) @ base.reshape(-1, base.shape[2])
        return rows_of_noise.reshape(-1, self.slots_per_step, base.shape[2])

    def _entries(self, rows: slice = slice(None), columns: slice = slice(None)) -> FloatArray:
        T, n = self.num_steps, self.num_nodes
        entries = self.inverse.reshape(T, n, T, n)[rows][:, self._slots, columns][..., self._columns]
        slots, steps, parts = entries.shape[1:]
        return entries.reshape(entries.shape[0] * slots, steps * parts)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._entries() @ X

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return self._entries().T @ X

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        return np.abs(self._entries()).T @ X

    def variances(self) -> FloatArray:
        return np.asarray((self._entries() ** 2).sum(axis=1)).reshape(self.num_steps, -1)


def is_encoder(given: Any) -> bool:
    """Whether a value is C in any form, or a result with one."""
    if isinstance(given, NoiseOperator):
        return False
    kinds = np.ndarray | list | LinearOperator | Encoder
    return isinstance(given, kinds) or sp.issparse(given) or hasattr(given, "encoder")


def encoded_noise(encoder: Any, num_steps: int, num_nodes: int) -> NoiseOperator:
    """C^-1: each node's own noise if C does not join nodes, else noise held by all nodes that use it."""
    given: Any = getattr(encoder, "encoder", encoder)
    if isinstance(encoder, NoiseOperator):
        raise InvalidInput(
            f"encoder must be C, got the noise {encoder.kind}, which is C^-1; mfdl.algorithms.from_maps takes a noise."
        )
    if sp.issparse(given) or isinstance(given, LinearOperator):
        if max(given.shape) > MAX_JOINT_SIZE:
            raise UnsupportedMechanism(
                f"an encoder as a sparse matrix or an operator is written out, up to {MAX_JOINT_SIZE} rows, got "
                f"{given.shape}; encoders with structure (mfdl.factorization.encoders) are not."
            )
        given = given.toarray() if sp.issparse(given) else to_dense(given)
    if num_nodes == 1 or isinstance(given, Encoder) or np.shape(given) != (num_steps * num_nodes,) * 2:
        return LocalNoise(given, num_nodes)
    joint = JointNoise(given, num_steps, num_nodes, holders="use")
    if joint.holders().nnz > num_nodes or not joint.holders().diagonal().all():
        return joint
    blocks = np.einsum("tusu->uts", joint.encoder.array.reshape((num_steps, num_nodes) * 2))
    return LocalNoise(blocks[0] if (blocks == blocks[0]).all() else blocks, num_nodes)
