"""Noise in columns, each correlated over time and spread over nodes: one class for all that the papers add.

    N[(t, i), (s, k)] = F[i, k] E_k[t, s],    E_k = C_k^-1.

Column k of the base noise becomes noise over time by its encoder C_k, and slot i of a step adds F[i, k] times it. With
one C for all columns the covariance is (C^T C)^-1 (x) F F^T, time (x) space, for any holders: nodes alone,
both ends of an edge, groups, or all. With one C per column and a square invertible F it is the inverse of
sum_k C_k^T C_k (x) g_k g_k^T, g_k the rows of F^-1: a time correlation of its own for each mode of the nodes. Without
an encoder noise is fresh in each step, without a factor each node has a column of its own; without columns it is zero.

`JointNoise` has any covariance over time and nodes, N = C^-1 with C of size T n, causal in time: for small problems.
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

from mfdl_solvers.encoders import ArrayEncoder, Encoder

from .. import check, matrices
from ..check import FloatArray
from ..entries import to_dense
from ..errors import InvalidInput, UnsupportedMechanism
from ..operators.structured import StructuredOperator
from ..spec import storable, stored_as
from . import base, encoder_arguments
from .base import NoiseOperator
from .encoder_arguments import Given, as_encoder, content, given_steps, unwrapped, written_out


@storable
class CausalNoise(NoiseOperator):
    """N = (I (x) F) blockdiag(C_k^-1).

    Args:
        encoder: C, shape (T, T) shared by all columns, or (columns, T, T), one per column; lower triangular with a
            positive diagonal, so that the noise of step t needs base noise of steps <= t only. Or an encoder of
            `mfdl.factorization.encoders`, whose C is never written out where it has structure. None: the identity.
        factor: F, shape (slots, columns), dense or sparse: slot i injects sum_k F[i, k] times column k. None: the
            identity, slot i injects column i.
        holders: bool (columns, n), dense or sparse: the nodes that hold each column (two for a pairwise secret). With
            one slot per node, node i adds what it holds and nothing else: F[i, k] = 0 unless i holds k. None: without
            a factor, each node holds its column.
        num_steps: T; num_nodes: n.

    Raises: InvalidInput: an encoder that is not causal, has a diagonal entry <= 0 or entries beyond LARGEST; entries
        that are not finite real numbers or out of range; shapes that do not fit; a node that adds a column it does not
        hold.
    Cost: a product with one vector takes O(columns T^2 + nnz(F) T), without the first term where there is no encoder;
        nothing of size (T n)^2 is formed.
    """

    in_blocks = True

    def __init__(
        self,
        encoder: Given = None,
        factor: sp.sparray | ArrayLike | None = None,
        holders: sp.sparray | ArrayLike | None = None,
        *,
        num_steps: int,
        num_nodes: int,
    ) -> None:
        self.num_steps = check.integer_at_least(1, num_steps=num_steps)
        self.num_nodes = check.integer_at_least(1, num_nodes=num_nodes)
        self.factor = None if factor is None else matrices.sparse_matrix(factor=factor)
        if factor is None and holders is None:
            holders = sp.eye_array(self.num_nodes, dtype=bool)
        self._holders = matrices.sparse_mask(holders=holders)
        columns = self._holders.shape[0] if self.factor is None else self.factor.shape[1]
        slots = columns if self.factor is None else self.factor.shape[0]
        if self._holders.shape != (columns, num_nodes):
            raise InvalidInput(f"holders must have shape {(columns, num_nodes)}, got {self._holders.shape}.")
        if slots == num_nodes:
            _require_held(self.mixing, self._holders)
        self.encoder = as_encoder(encoder, columns=columns, num_steps=self.num_steps)
        self.in_blocks = self.encoder.in_blocks
        each_its_column = sp.csr_array(sp.eye_array(columns, dtype=bool))
        self.local = (
            columns == num_nodes and (self._holders != each_its_column).nnz == 0 and _is_positive_diagonal(self.factor)
        )
        self.fresh = unwrapped(self.encoder) is None
        super().__init__((num_steps * slots, num_steps * columns))

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        base.require_products_kept(cls)

    def stored_fields(self) -> dict[str, Any]:
        sizes = {"num_steps": self.num_steps, "num_nodes": self.num_nodes}
        return {"encoder": unwrapped(self.encoder), "factor": self.factor, "holders": self._holders, **sizes}

    @property
    def causal(self) -> CausalNoise:
        return self

    @property
    def kind(self) -> str:
        if type(self).__module__ != __name__:  # a user's subclass may have other products
            return type(self).__name__
        if self.is_zero:
            return ZeroNoise.__name__
        if self.factor is None:
            return (IndependentNoise if self.fresh else LocalNoise).__name__
        return (StepNoise if self.fresh else SpatioTemporalNoise).__name__

    @property
    def mixing(self) -> sp.csr_array:
        """F, csr (slots, columns), with the identity written out."""
        return sp.csr_array(sp.eye_array(self._holders.shape[0])) if self.factor is None else self.factor

    @property
    def step_factor(self) -> sp.csr_array | None:
        return self.mixing if self.fresh else None

    @property
    def node_scales(self) -> FloatArray:
        """Factor F[u, u] of each node of noise that is `local`, shape (n,)."""
        return np.ones(self.num_nodes) if self.factor is None else np.asarray(self.factor.diagonal())

    @property
    def shared(self) -> bool:
        """Whether all columns have one encoder."""
        return self.encoder.shared

    @cached_property
    def written(self) -> ArrayEncoder:
        """The encoder as an array, for questions that take one.

        Raises: UnsupportedMechanism: of an encoder with structure over more than MAX_DENSE_STEPS.
        """
        return written_out(self.encoder)

    def column_encoder(self, column: int) -> FloatArray:
        """C_k, shape (T, T); k is the node where there is no factor, or noise is local."""
        return _column_array(self.written.array, column, self.num_steps)

    def column_inverse(self, column: int) -> FloatArray:
        """E_k = C_k^-1, shape (T, T)."""
        return _column_array(self.inverse, column, self.num_steps)

    @property
    def inverse(self) -> FloatArray | None:
        """C^-1 as an array, shape (T, T) or (columns, T, T); lower triangular. None: the identity."""
        return self.written.inverse

    def holders(self) -> sp.csr_array:
        return self._holders

    def pattern(self) -> sp.csr_array:
        return sp.csr_array(self.mixing != 0)

    def content(self) -> bytes:
        parts = [content(self.encoder, with_shape=self.factor is not None)]
        if not (self.is_zero or (self.local and self.factor is None)):
            sparse = (sp.coo_array(m) for m in (self.factor, self._holders) if m is not None)
            parts += [np.ascontiguousarray(x).tobytes() for m in sparse for x in (*m.coords, m.data)]
        return b"".join(parts)

    def scaled(self, slots: FloatArray) -> CausalNoise:
        factor, sizes = sp.diags_array(slots) @ self.mixing, {"num_steps": self.num_steps, "num_nodes": self.num_nodes}
        return CausalNoise(self.encoder, factor, self._holders, **sizes)

    def first_steps(self, steps: int) -> NoiseOperator:
        if not self.encoder.shipped:
            return super().first_steps(steps)
        encoder = unwrapped(self.encoder.leading(steps))
        return CausalNoise(encoder, self.factor, self._holders, num_steps=steps, num_nodes=self.num_nodes)

    def factors(self) -> tuple[FloatArray, ...]:
        over_nodes = () if self.factor is None else (self.factor.data,)
        return over_nodes if self.inverse is None else (self.inverse, *over_nodes)

    def variances(self) -> FloatArray:
        columns = self.columns_per_step
        over_time = np.asarray(self.encoder.noise_variances)
        rows = over_time.T.copy() if over_time.ndim == 2 else np.repeat(over_time[:, None], columns, axis=1)
        return rows if self.factor is None else np.asarray(rows @ self.factor.power(2).T)

    # ---- products --------------------------------------------------------------------------------------------------

    def over_time(self, rows: slice, columns: slice, base: FloatArray) -> FloatArray:
        return self.written.noise_block(rows, columns, base)

    def spread(self, columns: FloatArray) -> FloatArray:
        return columns if self.factor is None else _mixed(self.factor, columns)

    def _matmat(self, X: FloatArray) -> FloatArray:
        blocks = X.reshape(self.num_steps, self.columns_per_step, X.shape[1])
        correlated = np.asarray(self.encoder.solve(blocks))
        return self.spread(correlated).reshape(self.shape[0], X.shape[1])

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        blocks = self._gathered(self.factor, X)
        return np.asarray(self.encoder.transposed_solve(blocks)).reshape(self.shape[1], X.shape[1])

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        blocks = self._gathered(None if self.factor is None else abs(self.factor), X)
        return self.written.absolute_transposed_solve(blocks).reshape(self.shape[1], X.shape[1])

    def _gathered(self, F: sp.csr_array | None, X: FloatArray) -> FloatArray:
        """F^T x of each step, shape (T, columns, d)."""
        blocks = X.reshape(self.num_steps, self.slots_per_step, X.shape[1])
        return blocks if F is None else _mixed(sp.csr_array(F.T), blocks)

    def cut(self, slots: Sequence[int] | None = None) -> tuple[NDArray[np.intp], CausalNoise]:
        F = self.mixing if slots is None else self.mixing[np.array(slots, dtype=np.intp)]
        columns = np.unique(F.indices).astype(np.intp)
        if slots is None and columns.size == self.columns_per_step:
            return columns, self
        part = copy.copy(self)
        part.local, part._holders = False, self._holders[columns]
        part.factor = matrices.sparse_matrix(factor=F[:, columns])
        if not self.shared:
            part.encoder = self.written.select_columns(columns)
            part.__dict__.pop("written", None)
        StructuredOperator.__init__(part, (self.num_steps * F.shape[0], self.num_steps * columns.size))
        return columns, part


@stored_as(CausalNoise)
class ZeroNoise(CausalNoise):
    """No noise at all: no columns."""

    def __init__(self, num_steps: int, num_nodes: int) -> None:
        n = check.integer_at_least(1, num_nodes=num_nodes)
        none = sp.csr_array((0, n), dtype=bool)
        super().__init__(None, sp.csr_array((n, 0)), none, num_steps=num_steps, num_nodes=n)


@stored_as(CausalNoise)
class IndependentNoise(CausalNoise):
    """N = I: fresh noise at every node and step."""

    def __init__(self, num_steps: int, num_nodes: int) -> None:
        super().__init__(num_steps=num_steps, num_nodes=num_nodes)


@stored_as(CausalNoise)
class LocalNoise(CausalNoise):
    """Block diagonal over nodes: node u injects C_u^-1 times base noise of its own.

    Args: encoder: C shared by all nodes, an array of shape (T, T) or with structure, or one per node, (n, T, T);
        num_nodes: n.
    """

    inverse: FloatArray

    def __init__(self, encoder: ArrayLike | Encoder, num_nodes: int) -> None:
        super().__init__(encoder, num_steps=given_steps(encoder), num_nodes=num_nodes)


@stored_as(CausalNoise)
class StepNoise(CausalNoise):
    """N = I_T (x) F: the same mixing of fresh base noise in every step, correlated across slots but not in time."""

    factor: sp.csr_array

    def __init__(
        self, factor: sp.sparray | ArrayLike, holders: sp.sparray | ArrayLike, num_steps: int, num_nodes: int
    ) -> None:
        super().__init__(None, factor, holders, num_steps=num_steps, num_nodes=num_nodes)


@stored_as(CausalNoise)
class SpatioTemporalNoise(CausalNoise):
    """Columns of base noise, each correlated over time by its encoder and spread over the n nodes by the factor.

    Raises: InvalidInput: besides, another number of slots than nodes, or no column at all.
    """

    inverse: FloatArray
    factor: sp.csr_array

    def __init__(
        self,
        encoder: ArrayLike | Encoder,
        factor: sp.sparray | ArrayLike,
        holders: sp.sparray | ArrayLike,
        num_nodes: int,
    ) -> None:
        F = matrices.sparse_matrix(factor=factor)
        if F.shape[0] != num_nodes or F.shape[1] == 0:
            raise InvalidInput(
                f"factor must have shape ({num_nodes}, columns) with at least one column, got {F.shape}; noise "
                "without columns is ZeroNoise."
            )
        super().__init__(encoder, F, holders, num_steps=given_steps(encoder), num_nodes=num_nodes)


def _is_positive_diagonal(factor: sp.csr_array | None) -> bool:
    """Whether a square factor multiplies each column by a number of its own, > 0; None is the identity."""
    if factor is None:
        return True
    square = factor.shape[0] == factor.shape[1]
    return square and factor.nnz == factor.shape[0] and bool((factor.diagonal() > 0).all())


def _require_held(factor: sp.csr_array, holders: sp.csr_array) -> None:
    """Raises InvalidInput where a node adds a column that it does not hold: F[i, k] is not 0, holders[k, i] false."""
    foreign = sp.coo_array((factor != 0) > sp.csr_array(holders.T))
    if foreign.nnz:
        node, column = int(foreign.coords[0][0]), int(foreign.coords[1][0])
        raise InvalidInput(
            f"a node can only add noise that it holds, got factor[{node}, {column}] = {factor[node, column]:g} "
            f"while node {node} does not hold column {column}; add it to holders or make the entry zero."
        )


def _column_array(each: FloatArray | None, column: int, num_steps: int) -> FloatArray:
    if each is None:
        return np.eye(num_steps)
    return each if each.ndim == 2 else each[column]


def _mixed(F: sp.csr_array, columns: FloatArray) -> FloatArray:
    """F[i, k] times (t, k, d), shape (t, i, d); each row sums its columns in increasing order."""
    if F.shape == (1, 1):  # of one node
        return float(F[0, 0]) * columns
    steps, k, d = columns.shape
    mixed = np.asarray(F @ columns.transpose(1, 0, 2).reshape(k, steps * d))
    return mixed.reshape(F.shape[0], steps, d).transpose(1, 0, 2)


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
    """N = C^-1 over all of time x nodes: n columns of base noise per step.

    Args:
        encoder: C as an array, shape (T n, T n), time-major, block lower triangular: no step uses noise of a later one,
            and inside a step any block that can be inverted (where C is lower triangular, its diagonal is positive).
        num_steps: T; num_nodes: n.
        holders: bool (n, n): the nodes that hold each column of a step, at least those whose noise it enters in any
            step; "use" for exactly these. Default: all nodes hold all columns.
    Raises: InvalidInput: another shape, an entry that needs noise of a later step, a singular block, entries beyond
        LARGEST, a node that adds a column it does not hold. UnsupportedMechanism: T n above MAX_JOINT_SIZE.
    """

    in_blocks = True

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
        self.encoder = encoder_arguments.block_causal(encoder, T, n)
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
        base.require_products_kept(cls)

    def stored_fields(self) -> dict[str, Any]:
        sizes = {"num_steps": self.num_steps, "num_nodes": self.num_nodes}
        return {"encoder": self.encoder.array, "holders": self._holders, **sizes}

    @property
    def joint(self) -> JointNoise:
        return self

    @property
    def inverse(self) -> FloatArray:
        """C^-1 as the executor uses it, shape (T n, T n); block lower triangular."""
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
    """Whether a value is C: an array, a sparse matrix, an operator, an encoder with structure, or a result with one."""
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
