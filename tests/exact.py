"""Matrices of rational numbers."""

from fractions import Fraction

import flint


def inverse(matrix):
    """Of a square matrix of Fractions; ZeroDivisionError where there is none."""
    entries = flint.fmpq_mat([[flint.fmpq(x.numerator, x.denominator) for x in row] for row in matrix])
    return [[Fraction(int(x.p), int(x.q)) for x in row] for row in entries.inv().tolist()]
