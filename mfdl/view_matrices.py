"""A, B and C of a view as matrices to look at: what an attacker sees, and a C with A = B C where there is one.

Columns of gradients that the attacker knows are zero in A, and columns of noise that it knows are zero in B
(arXiv:2510.17480, Lemma 11, with marks in place of further rows). Theorem 5 of that paper writes the view as
O = B (C G + Z). With all messages seen, C is the encoder; with some of them hidden it is the encoder without the known
columns, if that fits, else the least solution; and there may be none, where a combination of what is seen shows a
gradient without noise. Nothing accounts by these: ranks are decided in floats here.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from .algorithms.workloads import RESIDUAL, Matrix
from .check import FloatArray
from .entries import to_dense
from .errors import UnsupportedMechanism
from .floats import RANK_TOLERANCE
from .operators.structured import TimeNodeAxis
from .view_models import GivenModels


class ViewMatrices:
    """What a view shows of itself.

    Attributes: those of `View`.
    """

    gradients: Any
    noise: Any
    axis: TimeNodeAxis
    known_gradients: NDArray[np.bool_]
    marked_gradients: NDArray[np.bool_]
    zero_noise: NDArray[np.bool_]
    attacker: str
    models: GivenModels | None = None
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
        if self.models is not None:
            digest.update(_bytes(self.models.rows) + self.models.row_steps.astype(np.int64).tobytes())
        return digest.hexdigest()[:16]

    def full_encoder(self) -> LinearOperator | None:
        """A candidate for C; None: none is known."""
        return None

    @cached_property
    def A(self) -> Matrix:
        """What is seen <- G; columns of known gradients are zero."""
        return self._matrix(self.gradients @ masked(~self.marked_gradients), "A, known columns zero")

    @cached_property
    def B(self) -> Matrix:
        """What is seen <- Z; columns of known noise are zero."""
        rows, columns = self.noise.shape
        return Matrix(self.noise, "B, known columns zero", [rows], [columns])

    @cached_property
    def C(self) -> Matrix:
        """An encoder: A = B C.

        Raises: UnsupportedMechanism: there is none, or it takes arrays too large to say.
        """
        A, B = self.A.dense(), self.B.dense()
        if (full := self.full_encoder()) is not None:
            candidate = np.asarray(full.matmat(np.eye(full.shape[1])), dtype=np.float64)
            if _gives(A, B, candidate):
                return self._matrix(aslinearoperator(candidate), "C, known rows and columns zero")
        least = np.linalg.lstsq(B, A, rcond=RANK_TOLERANCE)[0] if B.size else np.zeros((B.shape[1], A.shape[1]))
        if not _gives(A, B, least):
            step, node = divmod(int(np.argmax(np.abs(A - B @ least).max(axis=0))), self.axis.num_nodes)
            raise UnsupportedMechanism(
                f"no C gives A = B C here, for {self.attacker}: a combination of what is seen shows the gradient of "
                f"node {node} at step {step} without noise, so the loss of that node is infinite."
            )
        return self._matrix(aslinearoperator(least), "B^+ A")

    def _matrix(self, operator: LinearOperator, formula: str) -> Matrix:
        return Matrix(operator, formula, [operator.shape[0]], [self.axis.num_nodes] * self.axis.num_steps)


def masked(entries: NDArray[np.bool_]) -> LinearOperator:
    """A diagonal of zeros and ones."""
    return aslinearoperator(sp.csr_array(sp.diags_array(entries.ravel().astype(np.float64))))


def _bytes(entries: NDArray[Any]) -> bytes:
    if entries.dtype == object:
        return repr([x.as_integer_ratio() for x in entries.ravel().tolist()]).encode()
    return np.ascontiguousarray(entries + 0.0).tobytes()  # no negative zeros


def _gives(A: FloatArray, B: FloatArray, C: NDArray[Any]) -> bool:
    return bool(np.abs(B @ C - A).max(initial=0.0) <= RESIDUAL * np.abs(A).max(initial=0.0))
