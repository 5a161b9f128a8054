"""Views over the rationals: rank, leaks and Gram without rounding (python-flint).

Floats are taken as the binary fractions that they are. Sizes: at most about 40 rows.
"""

from __future__ import annotations

from fractions import Fraction

import flint
import numpy as np
from numpy.typing import ArrayLike

from ...check import FloatArray

Rational = list[list[Fraction]]


def rational(matrix: FloatArray) -> Rational:
    """The rational numbers that the floats are."""
    return [[Fraction(float(x)) for x in row] for row in matrix]


def to_float(matrix: Rational) -> FloatArray:
    """Nearest floats."""
    return np.array([[float(x) for x in row] for row in matrix])


def exact_gram(encoder: ArrayLike) -> Rational:
    """C^T C; the entries of C are taken as the exact binary numbers they are.

    >>> exact_gram([[1, 0], [2, 3]])[0]
    [Fraction(5, 1), Fraction(6, 1)]
    """
    C = flint_matrix(rational(np.asarray(encoder)))
    return fractions(C.transpose() * C)


def rank(matrix: Rational) -> int:
    """Rank over the rationals.

    >>> rank(rational(np.array([[1, 3], [2, 6]]))), rank(rational(np.array([[0.1, 0.3], [1, 3]])))  # 3 * 0.1 > 0.3
    (1, 2)
    """
    return int(flint_matrix(matrix).rank())


def rows_span(spanning: FloatArray, wanted: FloatArray) -> bool:
    """Whether every wanted row is a rational combination of the spanning rows."""
    rows = rational(spanning)
    return rank(rows) == rank([*rows, *rational(wanted)])


def exact_leaks(A: Rational, B: Rational) -> list[bool]:
    """For each column of A whether it lies outside the range of B.

    In the reduced [B | A] the rows below the rank of B hold what of A no combination of B's columns reaches.
    """
    reduced, _ = flint_matrix([[*b, *a] for a, b in zip(A, B, strict=True)]).rref()
    beyond = reduced.tolist()[rank(B) :]
    return [any(row[j] != 0 for row in beyond) for j in range(len(B[0]), len(B[0]) + len(A[0]))]


def exact_view_gram(A: Rational, B: Rational) -> Rational:
    """A^T (B B^T)^+ A for any A and B.

    B = F C with F the pivot columns of B and C the rows of its reduced form, both of full rank, so that
    (B B^T)^+ = F (F^T F)^-1 (C C^T)^-1 (F^T F)^-1 F^T.
    """
    reduced, r = flint_matrix(B).rref()
    rows = reduced.tolist()[:r]
    if not r:
        return [[Fraction(0)] * len(A[0]) for _ in A[0]]
    pivots = [next(j for j, x in enumerate(row) if x != 0) for row in rows]
    F, C = flint_matrix([[row[j] for j in pivots] for row in B]), flint.fmpq_mat(rows)
    K = (F.transpose() * F).solve(F.transpose() * flint_matrix(A))
    return fractions(K.transpose() * (C * C.transpose()).solve(K))


def flint_matrix(matrix: Rational) -> flint.fmpq_mat:
    entries = [flint.fmpq(x.numerator, x.denominator) for row in matrix for x in row]
    return flint.fmpq_mat(len(matrix), len(matrix[0]) if matrix else 0, entries)


def fractions(matrix: flint.fmpq_mat) -> Rational:
    return [[Fraction(int(x.p), int(x.q)) for x in row] for row in matrix.tolist()]
