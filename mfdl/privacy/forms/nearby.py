"""X_u of every matrix near a given one that has its numerical rank: for views whose entries are rounded products.

Rows that depend on each other, rounded, are independent, and what they then show is rounding. Let M = [a A_u B] with
rows divided by their norms, a the power of two that gives A_u the size of B, and let M' of rank r be the matrix that is
meant, with |M' - M|_F <= e, e = tolerance sqrt(rows) and rounding. r is the number of singular values of M above e: no
matrix within e has a smaller rank, and of those of rank r the following holds.

Claim. P = [P_A P_B], the first r right singular vectors of M, X = (P_B^+ P_A)^T P_B^+ P_A, s the least singular value
of P_B. With d = sqrt(2) e / sigma_r < s and b = d / (s - d), for every g

    sqrt(g^T X' g) <= (1 + b) sqrt(g^T X g) + b |g|,   sqrt(g^T X g) <= (1 + b) sqrt(g^T X' g) + b |g|.

Proof. P = S^-1 U^T M, so off the row space of M' it is S^-1 U^T (M - M'), of norm at most e / sigma_r: the sine of the
largest angle between the two row spaces. So that of M' has orthonormal rows Q with |Q - P| <= d, and X' depends on the
row space alone. g^T X' g is the least |z|^2 with Q_B z = Q_A g. With y = P_B^+ P_A g, Q_A g = P_B y + (Q_A - P_A) g, so

    Q_B^+ Q_A g = Q_B^+ P_B y + Q_B^+ (Q_A - P_A) g,   |Q_B^+| <= 1 / (s - d),   Q_B^+ P_B = I' - Q_B^+ (Q_B - P_B)

with I' a projection: at most (1 + b) |y| + b |g|. The other way alike, with |P_B^+| = 1 / s.  []

Squares: (p + q)^2 <= (1 + b) p^2 + (1 + 1 / b) q^2. Where d is not below s / 2, noise may vanish in a combination that
shows a gradient, and nothing finite is claimed. Columns of other nodes are left out of M: they are not the victim's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from ...check import FloatArray
from ...entries import has_few_bits
from ...floats import EPS
from ...trust.view import View
from .base import Blocks, Group, ViewForm, ViewGram
from .dense_form import MAX_DENSE_WORK
from .whitening import RANK_SAFETY

FAR = 400  # in powers of two: beyond it squares could leave float64
NEARBY = "every matrix of rank "
VANISHES = "within rank_tolerance of the rows given, a combination may show a gradient without noise"


class Nearby(ViewForm):
    """Views with rank="numerical"."""

    def __init__(self, view: View) -> None:
        self.view = view

    @classmethod
    def of(cls, view: View) -> Self | None:
        return cls(view) if view.rank == "numerical" else None

    def cost(self, victims: Sequence[int]) -> float:
        rows, columns = self.view.noise.shape
        return float(rows) ** 2 * (columns + self.view.axis.num_steps) * len(victims)

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        return [self._gram((u,)) for u in victims]

    def joint_grams(self, groups: Sequence[Group]) -> list[ViewGram | Blocks | None]:
        return [self._gram(group) for group in groups]

    def _gram(self, group: Group) -> ViewGram:
        A, B, tolerance = self.view.dense_gradients(np.array(group)), self.view.dense_noise(), self.view.rank_tolerance
        (_, of_noise), (_, of_signal) = (np.frexp(np.abs(part).max(initial=0.0) or 1.0) for part in (B, A))
        size = 2.0 ** float(np.clip(of_noise - of_signal, -FAR, FAR))
        rank, P, angle = row_space(np.hstack([size * A, B]), tolerance)
        form = nearby_in_words(rank, tolerance)
        P_A, P_B = P[:, : A.shape[1]], P[:, A.shape[1] :]
        d = math.sqrt(2) * angle + 2 * RANK_SAFETY * max(P.shape) * EPS  # and rounding of P and of what follows
        s = float(np.linalg.svd(P_B, compute_uv=False)[-1]) if 0 < rank <= B.shape[1] else float(rank == 0)
        if not d < s / 2:
            return ViewGram.silent(A.shape[1], VANISHES, form=form, upper=True)
        Y = P_A if not rank else scipy.linalg.solve_triangular(np.linalg.qr(P_B.T)[1], P_A, trans="T")
        b, norms = d / (s - d), np.linalg.norm(Y, axis=0)
        X, more = Y.T @ Y * size**-2.0, (1 + b) ** 3 * (1 + 8 * EPS)
        errors = np.eye(len(X)) * (b + b * b) + 2 * RANK_SAFETY * max(P.shape) * EPS * np.outer(norms, norms)
        return ViewGram(X, errors * size**-2.0, more, form=form)


def may_be_rounded(matrix: NDArray[Any], tolerance: float) -> bool:
    """Whether rows depend on each other up to a tolerance, of entries that are floats of many bits.

    Integers and other floats of few bits are rarely rounded, and Fractions never.
    """
    if matrix.dtype == object or has_few_bits(matrix) or float(len(matrix)) * matrix.size > MAX_DENSE_WORK:
        return False
    return row_space(matrix, tolerance)[0] < int(np.count_nonzero(matrix.any(axis=1)))


def nearby_in_words(rank: int, tolerance: float) -> str:
    """Which matrices a number covers."""
    return f"{NEARBY}{rank} with rows within {tolerance:.2g} of those given"


def row_space(matrix: FloatArray, tolerance: float) -> tuple[int, FloatArray, float]:
    """(numerical rank r, orthonormal rows P, sine of their angle to the rows of any matrix of rank r within tolerance).

    Args: tolerance: of each row, relative to its norm.
    """
    rows = matrix[matrix.any(axis=1)]
    rows = rows / np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    if not len(rows):
        return 0, np.zeros((0, matrix.shape[1])), 0.0
    _, sigma, V = np.linalg.svd(rows, full_matrices=False)
    off = tolerance * math.sqrt(len(rows)) + RANK_SAFETY * max(rows.shape) * EPS * float(sigma[0])
    rank = max(1, int(np.count_nonzero(sigma > off)))
    return rank, V[:rank], off / float(sigma[rank - 1])
