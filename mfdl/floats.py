"""Facts of float64, and the levels below which a computed value is rounding; each with its reason.

A relation that holds in the real numbers holds up to rounding in float64, a sum of k products up to k units. Levels are
relative to the sizes of what is added up, and where one decides a privacy number, both answers are safe.
"""

from __future__ import annotations

import numpy as np

EPS = float(np.finfo(np.float64).eps)  # distance from 1 to the next float, 2^-52
UNIT = EPS / 2  # unit roundoff: the largest relative error of one rounded operation
ROUNDING = 16 * EPS
"""Remainder that counts as zero: a handful of roundings; only where a true one cannot be as small."""
RANK_TOLERANCE = 1e-12
"""Singular values below it may be zero, above it are not: far from the 1e-15 of rounding and the 1e-6 of weights."""
LARGEST = float(np.finfo(np.float64).max)


def sum_rounding(terms: int) -> float:
    """How far a sum of so many products may be off, relative to the sum of their sizes."""
    return terms * UNIT / (1 - terms * UNIT)
