"""A, B and C of a view as matrices to look at: what an attacker sees, and a C with A = B C where there is one.

Columns of gradients that the attacker knows are zero in A, and columns of noise that it knows are zero in B
(arXiv:2510.17480, Lemma 11, with marks in place of further rows). Theorem 5 of that paper writes the view as
O = B (C G + Z). With all messages seen, C is the encoder; with some of them hidden it is the encoder without the known
columns, if that fits, else the least solution; and there may be none, where a combination of what is seen shows a
gradient without noise. Nothing accounts by these: ranks are decided in floats here.

`GivenModels` are the models at which gradients are taken, and when rows are seen: what a bare view needs, beside A and
B, to be proven adaptive. The condition itself is in `privacy.victim_sensitivity`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from mfdl_solvers.ties import first_largest

from .. import check
from ..algorithms.workloads import RESIDUAL, Matrix
from ..check import FloatArray
from ..entries import exact_entries, to_dense
from ..errors import InvalidInput, UnsupportedMechanism
from ..floats import RANK_TOLERANCE
from ..operators import TimeNodeAxis


class ViewMatrices:
    """The matrices and marks of a view. Attributes: those of `View`."""

    gradients: Any
    noise: Any
    axis: TimeNodeAxis
    known_gradients: NDArray[np.bool_]
    marked_gradients: NDArray[np.bool_]
    zero_noise: NDArray[np.bool_]
    attacker: str
    models: GivenModels | None = None
    source: Any = None
    rank: str | None = None
    rank_tolerance: float = 0.0
    _entries: tuple[Any, Any] = (None, None)

    @cached_property
    def content_hash(self) -> str:
        """16 hex digits of A, B, what is known of G and Z, and models where they were given."""
        digest = hashlib.sha256(repr((self.axis, self.gradients.shape, self.noise.shape)).encode())
        for entries, operator in zip(self._entries, (self.gradients, self.noise), strict=True):
            is_exact = entries is not None and entries.dtype == object
            digest.update(_bytes(entries if is_exact else to_dense(operator)))
        for mask in (self.marked_gradients, self.known_gradients, self.zero_noise):
            digest.update(np.packbits(mask).tobytes())
        if self.rank == "numerical":
            digest.update(repr(self.rank_tolerance).encode())
        if self.source is not None:  # whose numbers bound those of this view
            digest.update(self.source.content_hash.encode())
        if self.models is not None:
            digest.update(_bytes(self.models.rows) + self.models.row_steps.astype(np.int64).tobytes())
        return digest.hexdigest()[:16]

    def full_encoder(self) -> LinearOperator | None:
        """A candidate for C; None: none is known."""
        return None

    @cached_property
    def A(self) -> Matrix:
        """Seen <- G; columns of known gradients are zero."""
        return self._matrix(self.gradients @ masked(~self.marked_gradients), "A, known columns zero")

    @cached_property
    def B(self) -> Matrix:
        """Seen <- Z; columns of known noise are zero."""
        rows, columns = self.noise.shape
        return Matrix(self.noise, "B, known columns zero", [rows], [columns])

    @cached_property
    def C(self) -> Matrix:
        """An encoder: A = B C. Raises: UnsupportedMechanism: there is none, or it takes arrays too large to say."""
        A, B = self.A.dense(), self.B.dense()
        if (full := self.full_encoder()) is not None:
            candidate = np.asarray(full.matmat(np.eye(full.shape[1])), dtype=np.float64)
            if _gives(A, B, candidate):
                return self._matrix(aslinearoperator(candidate), "C, known rows and columns zero")
        least = np.linalg.lstsq(B, A, rcond=RANK_TOLERANCE)[0] if B.size else np.zeros((B.shape[1], A.shape[1]))
        if not _gives(A, B, least):
            step, node = divmod(first_largest(np.abs(A - B @ least).max(axis=0)), self.axis.num_nodes)
            raise UnsupportedMechanism(
                f"no C gives A = B C here, for {self.attacker}: a combination of what is seen shows the gradient of "
                f"node {node} at step {step} without noise, so the loss of that node is infinite."
            )
        return self._matrix(aslinearoperator(least), "B^+ A")

    def _matrix(self, operator: LinearOperator, formula: str) -> Matrix:
        return Matrix(operator, formula, [operator.shape[0]], [self.axis.num_nodes] * self.axis.num_steps)


def masked(entries: NDArray[np.bool_]) -> LinearOperator:
    return aslinearoperator(sp.csr_array(sp.diags_array(entries.ravel().astype(np.float64))))


def _bytes(entries: NDArray[Any]) -> bytes:
    if entries.dtype == object:
        return repr([x.as_integer_ratio() for x in entries.ravel().tolist()]).encode()
    return np.ascontiguousarray(entries + 0.0).tobytes()  # no negative zeros


def _gives(A: FloatArray, B: FloatArray, C: NDArray[Any]) -> bool:
    return bool(np.abs(B @ C - A).max(initial=0.0) <= RESIDUAL * np.abs(A).max(initial=0.0))


@dataclasses.dataclass(frozen=True, eq=False)
class GivenModels:
    """Models as they were given.

    Attributes:
        rows: [M_G M_Z], row t n + u the model at which node u takes its gradient of step t, shape (T n, T n + m); of
            floats or Fractions.
        row_steps: for each row of the view the step after whose gradients it is seen, shape (rows,).
    """

    rows: NDArray[Any]
    row_steps: NDArray[np.intp]

    @classmethod
    def from_arrays(
        cls, models: tuple[Any, Any], row_steps: ArrayLike | None, A: Any, num_noises: int, axis: TimeNodeAxis
    ) -> GivenModels:
        """Raises: InvalidInput: shapes that do not fit, a model that holds a gradient of its own step or a later one,
        no row_steps, or a row that would be seen before the last gradient in it is taken.
        """
        if A is None:
            raise InvalidInput("models can be given with A and B as arrays or sparse matrices, not as operators.")
        pair = check.listed("two matrices, of gradients and of noise", models=models)
        if len(pair) != 2:
            raise InvalidInput(f"models must be two matrices, of gradients and of noise, got {len(pair)}.")
        parts = [_dense(name, part) for name, part in zip(("models[0]", "models[1]"), pair, strict=True)]
        shapes = (axis.size, axis.size), (axis.size, num_noises)
        for number, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            if part.shape != shape:
                raise InvalidInput(f"models[{number}] must have shape {shape}, got {part.shape}.")
        steps = np.arange(axis.size) // axis.num_nodes
        if ((parts[0] != 0) & (steps >= steps[:, None])).any():
            raise InvalidInput(
                "models[0] must hold gradients of earlier steps alone, in rows of time-major order: row t n + u is the "
                "model at which node u takes its gradient of step t."
            )
        return cls(np.hstack(parts), _row_steps(row_steps, A, axis))


def _row_steps(row_steps: ArrayLike | None, A: Any, axis: TimeNodeAxis) -> NDArray[np.intp]:
    if row_steps is None:
        raise InvalidInput(
            f"with models, row_steps must give for each of the {A.shape[0]} rows the step after whose "
            f"gradients it is seen; rows seen at the end have step {axis.num_steps - 1}."
        )
    steps = check.as_array(row_steps=row_steps)
    wrong = steps.dtype.kind not in "iu" or steps.shape != (A.shape[0],)
    if wrong or (steps < 0).any() or (steps >= axis.num_steps).any():
        raise InvalidInput(
            f"row_steps must be {A.shape[0]} steps below {axis.num_steps}, one for each row, got "
            f"{check.brief(row_steps)} of shape {steps.shape}."
        )
    has_gradient = (A.toarray() if sp.issparse(A) else A) != 0
    zeros = has_gradient[:, ::-1].argmax(axis=1)  # exact: booleans
    last = np.where(has_gradient.any(axis=1), axis.size - 1 - zeros, 0) // axis.num_nodes
    if (late := np.flatnonzero(last > steps)).size:
        row = int(late[0])
        raise InvalidInput(
            f"row_steps must not be before the last gradient in a row is taken, got step {int(steps[row])} for row "
            f"{row}, which holds a gradient of step {int(last[row])}."
        )
    return np.asarray(steps, dtype=np.intp)


def _dense(name: str, given: Any) -> NDArray[Any]:
    entries = exact_entries(name, given)
    dense: NDArray[Any] = entries.toarray() if sp.issparse(entries) else entries
    return dense
