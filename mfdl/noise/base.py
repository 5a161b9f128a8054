"""Noise operators N in `injected = N Z`: the interface of every noise, and noise in columns, `CausalNoise`.

Rows of N are (step, injection slot), columns the independent parts of the base noise by step, both time-major. With
Z ~ N(0, nu^2) iid the injected noise has covariance nu^2 N N^T. Callers ask a noise (`is_zero`, `step_factor`, `local`,
or `causal` and `joint` for the parts of these structures), never which class it is of. Noise in columns has

    N[(t, i), (s, k)] = F[i, k] E_k[t, s],    E_k = C_k^-1.

With one C for all columns the covariance is (C^T C)^-1 (x) F F^T, time (x) space, for any holders: nodes alone, both
ends of an edge, groups, or all. With one C per column and a square invertible F it is the inverse of
sum_k C_k^T C_k (x) g_k g_k^T, g_k the rows of F^-1. Without an encoder noise is fresh in each step, without a factor
each node has a column of its own; without columns it is zero.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from mfdl_solvers.encoders import ArrayEncoder, Dense, Encoder

from .. import check, matrices
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..operators import Selection, StructuredOperator
from ..spec import storable, stored_as
from .encoder_arguments import Given, as_encoder, content, given_steps, unwrapped, written_out


class NoiseOperator(StructuredOperator, abc.ABC):
    """N over time x injection slots; a noise of your own gives sizes, both products, `variances` and holders.

    Attributes:
        fresh: base noise of a step enters in that step alone, in all steps alike: nothing is correlated in time.
        local: each node injects base noise that it alone holds.
        shared: all columns are correlated over time by one encoder.
        in_blocks: `over_time` takes any steps, and those of later steps add nothing; else it takes all at once.
        fills_new_arrays: the results of `over_time` are arrays of the caller, never base noise or what is kept.
        instead_in_files: what to write in the place of a noise that is not `storable`.
    """

    num_steps: int
    num_nodes: int
    fresh = False
    local = False
    shared = False
    in_blocks = False
    fills_new_arrays = False
    instead_in_files = "write it as a CausalNoise or a JointNoise of mfdl.noise"

    @abc.abstractmethod
    def variances(self) -> FloatArray:
        """diag(N N^T), shape (num_steps, slots per step): variance of the injected noise per unit nu^2."""

    @property
    def kind(self) -> str:
        return type(self).__name__

    @property
    def causal(self) -> CausalNoise | None:
        """This noise if it is one in columns, else None."""
        return None

    @property
    def joint(self) -> Dense | None:
        """The encoder over time x nodes of which N is the inverse, else None."""
        return None

    @property
    def step_factor(self) -> sp.csr_array | None:
        """F where each step adds F times base noise of its own, in all steps alike, else None."""
        return None

    @property
    def stepped(self) -> Encoder | None:
        """The encoder of all columns where its rows are made one after another, from its state; else None."""
        return None

    @property
    def is_zero(self) -> bool:
        return self.shape[1] == 0

    @property
    def slots_per_step(self) -> int:
        return self.shape[0] // self.num_steps

    @property
    def columns_per_step(self) -> int:
        return self.shape[1] // self.num_steps

    def holders(self) -> sp.csr_array:
        """Holders of each independent part of a step's base noise: bool (columns per step, n)."""
        return sp.csr_array(sp.eye_array(self.num_nodes, dtype=bool))

    def describe(self) -> str:
        """Its correlation over time and nodes, in a few words."""
        if self.is_zero:
            return "no noise"
        over_time = "fresh at every step" if self.fresh else "correlated over time"
        alone = self.local or bool((np.asarray(self.holders().sum(axis=1)) == 1).all())
        return f"noise {over_time}, {'each node its own' if alone else 'shared by nodes'}"

    def pattern(self) -> sp.csr_array:
        """Parts of the base noise that a slot uses at any step: bool (slots per step, columns per step)."""
        return sp.csr_array(np.ones((self.slots_per_step, self.columns_per_step), dtype=bool))

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        """|N|^T X, |N| the entries' absolute values: what could cancel in N^T X."""
        return np.asarray(np.abs(self.to_dense()).T @ X)

    def content(self) -> bytes:
        """Input of the content hash besides kind and sizes; by default N and its holders, dense."""
        return self.to_dense().tobytes() + self.holders().toarray().tobytes()

    def scaled(self, slots: FloatArray) -> NoiseOperator:
        """diag(slots) N in every step, slots > 0. Raises: UnsupportedMechanism: a noise of the user's own."""
        raise UnsupportedMechanism(
            f"noise {type(self).__name__} cannot be given another scale at each node; write it as a CausalNoise or a "
            "JointNoise of mfdl.noise."
        )

    def first_steps(self, steps: int) -> NoiseOperator:
        """Raises: UnsupportedMechanism: of another structure than an encoder's."""
        raise UnsupportedMechanism(f"noise {type(self).__name__} cannot be cut to its first steps.")

    def factors(self) -> tuple[FloatArray, ...]:
        """Arrays whose entries, one of each, multiply to the entries of N; by default N itself, dense."""
        return (self.to_dense(),)

    def cut(self, slots: Sequence[int] | None = None) -> tuple[NDArray[np.intp], NoiseOperator]:
        """(columns of a step that the distinct slots use, N for these alone, in this order); default all slots."""
        if slots is None:
            return np.arange(self.columns_per_step), self
        used = np.zeros(self.columns_per_step, dtype=bool)
        for rows in flat(slots, self.shape[0], self.num_steps).reshape(self.num_steps, -1):
            unit = np.zeros((self.shape[0], rows.size))
            unit[rows, np.arange(rows.size)] = 1
            used |= self.rmatmat(unit).reshape(self.num_steps, used.size, rows.size).any(axis=(0, 2))
        columns = np.flatnonzero(used)
        return columns, _Cut(self, slots, columns)

    def over_time(self, rows: slice, columns: slice, base: FloatArray) -> FloatArray:
        """Map from the base noise of some steps to others, before `spread`: (steps, columns, d) to (steps, ., d)."""
        return self.matmat(base.reshape(self.shape[1], -1)).reshape(self.num_steps, self.slots_per_step, base.shape[2])

    def spread(self, columns: FloatArray) -> FloatArray:
        """Spreads the result of `over_time` to the injection slots, step by step: (steps, slots, d)."""
        return columns


class _Cut(NoiseOperator):
    """Some slots of any noise and the columns that they use."""

    def __init__(self, whole: NoiseOperator, slots: Sequence[int], columns: NDArray[np.intp]) -> None:
        self.num_steps, self.num_nodes, self._whole = whole.num_steps, whole.num_nodes, whole
        self._rows = flat(slots, whole.shape[0], self.num_steps)
        columns_in_all = flat(columns, whole.shape[1], self.num_steps)
        self._operator = Selection(self._rows, whole.shape[0]) @ whole @ Selection(columns_in_all, whole.shape[1]).T
        self._held = whole.holders()[columns]
        super().__init__(self._operator.shape)

    def holders(self) -> sp.csr_array:
        return self._held

    def _matmat(self, X: FloatArray) -> FloatArray:
        return np.asarray(self._operator.matmat(X))

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return np.asarray(self._operator.rmatmat(X))

    def variances(self) -> FloatArray:
        return self._whole.variances().ravel()[self._rows].reshape(self.num_steps, -1)


def flat(places: Sequence[int] | NDArray[np.intp], size: int, num_steps: int) -> NDArray[np.intp]:
    """Time-major indices, in all steps, of some places of a step; `size` is that of all places in all steps."""
    return np.add.outer(np.arange(num_steps) * (size // num_steps), np.asarray(places, dtype=np.intp)).ravel()


def require_products_kept(kind: type) -> None:
    """Raises: InvalidInput: a subclass with products of its own, hence of another structure."""
    changed = [name for name in ("_matmat", "_rmatmat", "over_time", "spread", "cut") if name in vars(kind)]
    if changed:
        raise InvalidInput(
            f"{kind.__name__} must not change {changed[0]}: encoder and factor say what is accounted and streamed; "
            "subclass NoiseOperator for a noise of your own."
        )


@storable
class CausalNoise(NoiseOperator):
    """N = (I (x) F) blockdiag(C_k^-1).

    Args:
        encoder: C, shape (T, T) shared by all columns, or (columns, T, T), one per column; lower triangular with a
            positive diagonal. Or an encoder of `mfdl.factorization.encoders`, whose C is never written out where it has
            structure. None: the identity.
        factor: F, shape (slots, columns), dense or sparse: slot i injects sum_k F[i, k] times column k; None: column i.
        holders: bool (columns, n), dense or sparse: the nodes that hold each column (two for a pairwise secret). With
            one slot per node, node i adds what it holds and nothing else: F[i, k] = 0 unless i holds k. None: without
            a factor, each node holds its column.
        num_steps: T; num_nodes: n.

    Raises: InvalidInput: an encoder that is not causal, has a diagonal entry <= 0 or entries beyond LARGEST; entries
        that are not finite real numbers; shapes that do not fit; a node that adds a column it does not hold.
    Cost: O(columns T^2 + nnz(F) T) for a product with a vector, without the first term where there is no encoder.
    """

    fills_new_arrays = True

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
        self.in_blocks, self.fresh = self.encoder.in_blocks, unwrapped(self.encoder) is None
        each_its_column = sp.csr_array(sp.eye_array(columns, dtype=bool))
        self.local = (
            columns == num_nodes and (self._holders != each_its_column).nnz == 0 and _is_positive_diagonal(self.factor)
        )
        super().__init__((num_steps * slots, num_steps * columns))

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        require_products_kept(cls)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"num_steps": self.num_steps, "num_nodes": self.num_nodes}

    def stored_fields(self) -> dict[str, Any]:
        return {"encoder": unwrapped(self.encoder), "factor": self.factor, "holders": self._holders, **self._sizes}

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
    def shared(self) -> bool:  # type: ignore[override]
        return self.encoder.shared

    @property
    def stepped(self) -> Encoder | None:
        return None if self.encoder.in_blocks else self.encoder

    @cached_property
    def written(self) -> ArrayEncoder:
        """The encoder as an array. Raises: UnsupportedMechanism: structure over more than MAX_DENSE_STEPS steps."""
        return written_out(self.encoder)

    def column_encoder(self, column: int) -> FloatArray:
        return _column_array(self.written.array, column, self.num_steps)

    def column_inverse(self, column: int) -> FloatArray:
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
        return CausalNoise(self.encoder, sp.diags_array(slots) @ self.mixing, self._holders, **self._sizes)

    def rounded(self, bits: int) -> CausalNoise:
        """Entries of encoders rounded to multiples of 2^-bits. Raises: InvalidInput: a diagonal entry becomes zero."""
        if (C := self.written.array) is None:
            return self
        return CausalNoise(np.round(C * 2.0**bits) / 2.0**bits, self.factor, self._holders, **self._sizes)

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
    """Block diagonal over nodes: node u injects C_u^-1 times base noise of its own; encoder: (T, T) or (n, T, T)."""

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
    """Columns with an encoder over time, spread over the n nodes by the factor.

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
    if factor is None:
        return True
    return factor.shape == (factor.nnz,) * 2 and bool((factor.diagonal() > 0).all())


def _require_held(factor: sp.csr_array, holders: sp.csr_array) -> None:
    """Raises: InvalidInput: a node that adds a column it does not hold."""
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
