"""X_u of a small view given entry by entry, in rational arithmetic: what float64 leaves undecided.

Let R be rows of B that are a basis of its row space. Where a column of A lies in the range of B, every other row of
[A B] is, in that column, the same combination of those rows as in B, and shows nothing more. So with B_R of full row
rank

    X_u = A_u^T (B B^T)^+ A_u = A_R^T (B_R B_R^T)^-1 A_R,

which rational numbers give without rounding, whatever the sizes of the entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import flint
import numpy as np
from numpy.typing import NDArray

from ...check import FloatArray
from ...floats import UNIT
from ...view import View
from ..exact_rank import independent_rows, range_of
from ._base import AS_THEY_ARE, ViewForm, ViewGram, leak_in_words

MAX_ROWS = 48
MAX_ENTRIES = 6000
"""Of A and B together: about a second of rational arithmetic."""
SAFE = 1e280
"""Size of the entries of X beyond which, or below whose inverse, later products could leave float64."""


class Fractions(ViewForm):
    """Views whose entries are given, of few rows and columns."""

    def __init__(self, view: View) -> None:
        self.view = view

    @classmethod
    def of(cls, view: View) -> Self | None:
        if not view.entries_given:
            return None
        rows, columns = view.noise.shape
        return cls(view) if rows <= MAX_ROWS and rows * (columns + view.axis.size) <= MAX_ENTRIES else None

    def cost(self, victims: Sequence[int]) -> float:
        rows, columns = self.view.noise.shape
        return 1e4 * rows**2 * (rows + columns + self.view.axis.num_steps * len(victims))

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        T = self.view.axis.num_steps
        A, B = self.view.entries(np.asarray(victims, dtype=np.intp))
        _, leaks = range_of(B, A)
        rows = independent_rows(B)
        grams: list[ViewGram | None] = []
        for signal, shows in zip(np.split(A[rows], len(victims), axis=1), leaks.reshape(-1, T), strict=True):
            X = rounded(gram_of_rows(signal, B[rows]))
            step = int(np.argmax(shows))
            why = f"{leak_in_words(step, np.zeros(len(B)), [])}, {AS_THEY_ARE}" if shows.any() else ""
            grams.append(None if X is None else ViewGram(*X, leaks=shows, why=why, form="rational arithmetic"))
        return grams


def gram_of_rows(signal: NDArray[Any], noise: NDArray[Any]) -> flint.fmpq_mat:
    """signal^T (noise noise^T)^-1 signal of numbers as they are, for noise of full row rank."""
    S, N = rational(signal), rational(noise)
    if not len(noise):
        return flint.fmpq_mat(signal.shape[1], signal.shape[1])
    return S.transpose() * (N * N.transpose()).solve(S)


def rational(matrix: NDArray[Any]) -> flint.fmpq_mat:
    """Floats or Fractions, as they are."""
    ratios = (x.as_integer_ratio() for x in matrix.ravel().tolist())
    rows, columns = matrix.shape
    return flint.fmpq_mat(rows, columns, [flint.fmpq(p, q) for p, q in ratios])


def rounded(X: flint.fmpq_mat) -> tuple[FloatArray, FloatArray] | None:
    """(X as floats, how far each may be off); None where an entry is too large or too small for the products of X."""
    entries = [int(x.p) / int(x.q) if abs(x.p) < x.q * int(SAFE) else np.inf for x in X.entries()]
    values = np.array(entries, dtype=np.float64).reshape(X.nrows(), X.ncols())
    diagonal = np.diagonal(values)
    exactly_zero = np.array([X[i, i] == 0 for i in range(X.nrows())], dtype=bool)
    if not np.isfinite(values).all() or ((diagonal < 1 / SAFE) & ~exactly_zero).any():
        return None
    return values, 2 * UNIT * np.abs(values) + np.where(values == 0, 0.0, 2.0**-1070)
