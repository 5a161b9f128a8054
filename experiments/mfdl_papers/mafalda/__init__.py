"""MAFALDA, arXiv:2510.17480: the sum of magnitudes of a view Gram as a sensitivity bound, and the proof of Theorem 7.

The proof takes all that is redundant out of a view O = A G + B Z, rows in the order of time: the same view as S G + Z',
Z' independent standard noise. Losses come from `mfdl.privacy`, which needs no such reduction.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mfdl import check
from mfdl.check import FloatArray
from mfdl.errors import InvalidInput
from mfdl.privacy.exact_arithmetic import MAX_ENTRIES, independent_rows, meant, rank_and_outside

from ..facts import errata
from ..published import NON_ADAPTIVE, PublishedBound

SOURCE = "[MF] arXiv:2510.17480, Theorem 7 (8)"
SMALLEST_PIVOT = 1e-9  # of a row's norm: what is left of it after earlier rows has then seven digits


def sum_abs_gram(gram: Any) -> PublishedBound:
    """sqrt(sum |X_st|): the sensitivity bound of the paper with the square root it lacks.

    Source: [MF] arXiv:2510.17480, Theorem 7, (8), corrected.
    Claims: mu per unit record shift and noise std, for the steps of one record. X is the block of the view Gram
        A^T (B B^T)^+ A on those steps.
    Errata: `mafalda-equation-8-square`, `mafalda-figure-2-tighter`, `mafalda-theorem-7-adaptive`.
    Validity: "bound" for non-adaptive gradients; exact when X >= 0.

    Args: gram: X, symmetric, shape (k, k), or one per victim, shape (victims, k, k); no victim may leak.
    """
    erratum = errata("mafalda-equation-8-square", "mafalda-figure-2-tighter", "mafalda-theorem-7-adaptive")
    validity = f"bound {NON_ADAPTIVE}; exact where X >= 0"
    return PublishedBound(np.sqrt(_sum_abs(gram)), "mu", f"{SOURCE}, with the square root", erratum, validity)


def sum_abs_gram_as_printed(gram: Any) -> PublishedBound:
    """sum |X_st| taken for the sensitivity itself. Not a bound: the sum bounds its square; use `sum_abs_gram`.

    Source: [MF] arXiv:2510.17480, Theorem 7, (8), also (12) and (28) to (31).
    Claims: mu per unit record shift and noise std. Errata: `mafalda-equation-8-square`.
    """
    erratum, validity = errata("mafalda-equation-8-square"), "refuted: the square root is missing"
    return PublishedBound(_sum_abs(gram), "mu", f"{SOURCE} as printed", erratum, validity)


def _sum_abs(gram: Any) -> Any:
    ndim = 3 if np.ndim(gram) == 3 else 2
    X = check.finite_array(ndim, gram=gram)
    if X.shape[-1] != X.shape[-2]:
        raise InvalidInput(f"gram must be square in its last two axes, got shape {X.shape}.")
    gap = np.abs(X - X.swapaxes(-1, -2)).max(initial=0.0)
    if gap > 1e-8 * np.abs(X).max(initial=0.0):
        raise InvalidInput(f"gram must be symmetric, got entries that differ from the transpose by {gap:.3g}.")
    return np.abs(X).sum(axis=(-2, -1))


class ReducedView(NamedTuple):
    """`reduce_view`: B[rows] = L Q and A[rows] = L S, so that L^-1 O[rows] = S G + Q Z.

    Attributes:
        rows: the rows kept, r of them in their order.
        triangle: L, lower triangular with a positive diagonal, shape (r, r).
        projection: Q, orthonormal rows, shape (r, columns of B); Q^T Q = B^+ B, and Q Z is standard noise.
        signal: S = Q C for every C with A = B C, shape (r, columns of A); S^T S = A^T (B B^T)^+ A.
    """

    rows: NDArray[np.intp]
    triangle: FloatArray
    projection: FloatArray
    signal: FloatArray


def greedy_rows(B: Any) -> NDArray[np.intp]:
    """Rows of B, top to bottom, each kept unless it is a combination of rows kept before; decided without rounding.

    Entries count as the fractions of small denominators that all of them stand for, as 1/3 does, else as they are.

    Guarantees: the rows kept are independent, and those among the first k span the first k, for every k: what is seen
        by some time is a function of the rows kept by that time.
    Raises: InvalidInput: B is not a finite matrix, or has more than 500,000 entries.
    Cost: O(rows columns rank) operations modulo each of two primes.
    Source: [MF] arXiv:2510.17480, Algorithm 3.

    >>> greedy_rows([[1, 0, 0], [2, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]]).tolist()
    [0, 2, 4]
    """
    matrix = check.finite_array(2, B=B)
    if matrix.size > MAX_ENTRIES:
        raise InvalidInput(f"B must have at most {MAX_ENTRIES} entries here, got shape {matrix.shape}; fewer steps do.")
    return independent_rows(matrix, meant(matrix))


def reduce_view(A: Any, B: Any) -> ReducedView:
    """Keeps `greedy_rows` of B, factors them as L Q, and inverts L.

    Args: A: shape (m, columns), of the gradients asked about. B: shape (m, noises), rows in the order of time.
    Guarantees: as in `ReducedView`, up to the rounding of L^-1. Where rows of A are zero in the columns of later times,
        so are rows of S.
    Raises: InvalidInput: what `greedy_rows` refuses, other shapes, rows that are nearly dependent, or a column of A
        outside the range of B: a row left out then shows more than the rows kept, without noise, and the loss is
        infinite.
    Source: [MF] arXiv:2510.17480, proof of Theorem 7, which leaves the last condition to A = B C.
    """
    signal, noise = check.finite_array(2, A=A), check.finite_array(2, B=B)
    if len(signal) != len(noise):
        raise InvalidInput(f"A and B must have as many rows, got shapes {signal.shape} and {noise.shape}.")
    if signal.size + noise.size > MAX_ENTRIES:
        raise InvalidInput(f"A and B must have at most {MAX_ENTRIES} entries together here; ask about fewer steps.")
    fractions = meant(signal, noise)
    rows = independent_rows(noise, fractions)
    _, outside = rank_and_outside(noise, signal, fractions)
    if outside.any():
        raise InvalidInput(
            f"A must lie in the range of B, got column {int(outside.argmax())} outside of it: some combination of rows "
            "shows that gradient without noise, and its loss is infinite; leave such columns out."
        )
    Q, R = np.linalg.qr(noise[rows].T)
    signs = np.where(np.diag(R) < 0, -1.0, 1.0)
    L, Q = (R * signs[:, None]).T, (Q * signs).T
    if (np.diag(L) < SMALLEST_PIVOT * np.linalg.norm(L, axis=1)).any():
        raise InvalidInput(
            "B must have rows that depend on earlier ones exactly or not nearly, got one whose new part is below "
            f"{SMALLEST_PIVOT:g} of it: rounding decides here; write entries as fractions of small denominators."
        )
    return ReducedView(rows, L, Q, np.linalg.solve(L, signal[rows]))
