"""Views over the rationals: rank, leaks and Gram without rounding.

Floats are taken as the binary fractions that they are. Sizes: at most about 40 rows.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from ...check import FloatArray

Rational = list[list[Fraction]]


def rational(matrix: FloatArray) -> Rational:
    """The rational numbers that the floats are."""
    return [[Fraction(float(x)) for x in row] for row in matrix]


def exact_gram(encoder: ArrayLike) -> list[list[Fraction]]:
    """C^T C in rational arithmetic; the entries of C are taken as the exact binary numbers they are.

    >>> exact_gram([[1, 0], [2, 3]])[0]
    [Fraction(5, 1), Fraction(6, 1)]
    """
    C = [[Fraction(entry) for entry in row] for row in np.asarray(encoder).tolist()]
    columns = range(len(C[0]))
    return [[sum((row[s] * row[t] for row in C), Fraction(0)) for t in columns] for s in columns]


def independent_rows(matrix: Rational) -> list[int]:
    """Indices of the first rows that are not combinations of earlier ones; their number is the rank."""
    chosen: list[int] = []
    reduced: list[tuple[int, list[Fraction]]] = []
    for i, row in enumerate(matrix):
        rest = list(row)
        for pivot, other in reduced:
            if rest[pivot]:
                factor = rest[pivot] / other[pivot]
                rest = [x - factor * y for x, y in zip(rest, other, strict=True)]
        pivot = next((j for j, x in enumerate(rest) if x), -1)
        if pivot >= 0:
            chosen.append(i)
            reduced.append((pivot, rest))
    return chosen


def rank(matrix: Rational) -> int:
    """Rank over the rationals."""
    return len(independent_rows(matrix))


def exact_leaks(A: Rational, B: Rational) -> list[bool]:
    """For each column of A whether it lies outside the range of B, by ranks."""
    plain = rank(B)
    return [rank([[*b, a[j]] for a, b in zip(A, B, strict=True)]) > plain for j in range(len(A[0]))]


def exact_view_gram(A: Rational, B: Rational) -> Rational:
    """A^T (B B^T)^+ A for columns of A in the range of B: rows of B that depend on others are left out.

    With B = E B_r, B_r of full row rank, A = E A_r too, and the pseudo-inverse drops E.
    """
    rows, T = independent_rows(B), len(A[0])
    A = [A[i] for i in rows]
    S = [[sum((x * y for x, y in zip(B[i], B[j], strict=True)), Fraction(0)) for j in rows] for i in rows]
    solved = _solve(S, A)
    return [[sum((A[i][s] * solved[i][t] for i in range(len(rows))), Fraction(0)) for t in range(T)] for s in range(T)]


def _solve(S: Rational, A: Rational) -> Rational:
    """S^-1 A by Gauss-Jordan elimination."""
    m = len(S)
    rows = [[*s, *a] for s, a in zip(S, A, strict=True)]
    for c in range(m):
        pivot = next(r for r in range(c, m) if rows[r][c])
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [x / rows[c][c] for x in rows[c]]
        for r in range(m):
            if r != c and rows[r][c]:
                factor = rows[r][c]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[c], strict=True)]
    return [row[m:] for row in rows]


def to_float(matrix: Rational) -> FloatArray:
    """Nearest floats."""
    return np.array([[float(x) for x in row] for row in matrix])


def rows_span(spanning: FloatArray, wanted: FloatArray) -> bool:
    """Whether every wanted row is a rational combination of the spanning rows."""
    both = [*rational(spanning), *rational(wanted)]
    return all(i < len(spanning) for i in independent_rows(both))
