"""Noise whose columns enter by a plan: which of them a slot adds, and how much, changes from step to step.

    N = S (I (x) I_columns) blockdiag(E_k),   N[(t, i), (s, k)] = sum_r S[(t, i), (r, k)] E_k[r, s].

Columns are as those of a `CausalNoise`, each correlated over time by its encoder; S adds up columns of steps r <= t. A
`CausalNoise` has S = I (x) F. Dropout of nodes and its recovery change S (`algorithms.with_dropout`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from .. import check, matrices
from ..check import FloatArray
from ..errors import InvalidInput
from ..operators.structured import StructuredOperator
from ..spec import storable
from .base import NoiseOperator, flat
from .causal import CausalNoise
from .encoder_arguments import Given

BLOCK = 256  # rows whose variances are summed at a time


@storable
class ScheduledNoise(NoiseOperator):
    """N = S times columns that are correlated over time.

    Args:
        encoder: as that of a `CausalNoise`: C shared by all columns, one for each, or None for the identity.
        mixing: S, shape (T slots, T columns), time-major both, dense or sparse; S[(t, i), (r, k)] = 0 for r > t, and,
            with one slot for each node, unless i holds k.
        holders: bool (columns, n), at least one column: the nodes that hold each.
        num_steps: T; num_nodes: n.

    Raises: InvalidInput: another shape, an entry that needs noise of a later step, or one of a column that the node
        does not hold; those of `CausalNoise`.
    Cost: a product takes that of the columns and O(nnz(S)) a vector. A stream keeps the base noise of all steps.
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
        # each its own "node": who holds what is said above
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
