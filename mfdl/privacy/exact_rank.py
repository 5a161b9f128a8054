"""Ranks without rounding: floats are the binary fractions that they are, computed modulo two primes.

The primes have 63 bits and were drawn at random when this file was written. A rank modulo a prime is never above the
true one, and below it only if the prime divides every minor of that size. A minor here has below 10^8 bits, so fewer
than 2^21 of the 2^57 primes of that size divide it: the larger of two ranks is wrong with a chance below 10^-21, and
then too small.

Weights such as 1 / 3 are no floats. What was meant by them has ranks of its own, which `meant` gives back: a float next
to a fraction of a small denominator stands for the fraction.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import flint
import numpy as np
from numpy.typing import NDArray

from ..check import FloatArray
from ..entries import fraction_of

PRIMES = (5_312_186_569_479_497_857, 8_731_438_793_126_205_647)
MAX_DENOMINATOR = 4096  # of a fraction that a float stands for; fractions up to it are 2^-24 apart
MAX_VALUES = 10_000  # different numbers that are looked at
MAX_ENTRIES = 500_000  # of a matrix: under a second per prime


def range_of(
    B: NDArray[Any], A: NDArray[Any], stand_for: Mapping[float, Fraction] | None = None
) -> tuple[int, NDArray[np.bool_]]:
    """(rank of B, for each column of A whether it lies outside the range of B), of the floats or what they stand for.

    >>> third = np.array([[1 / 3, 0.1], [1.0, 0.3]])  # neither float is the fraction that it stands for
    >>> range_of(third[:, :1], third)
    (1, array([False,  True]))
    """
    ranges = [outside_range(table(residues(B, p, stand_for)), table(residues(A, p, stand_for)), p) for p in PRIMES]
    return max(rank for rank, _ in ranges), np.logical_or(ranges[0][1], ranges[1][1])


def ranks_agree(A: FloatArray, B: FloatArray, rank: int, leaks: NDArray[np.bool_]) -> bool:
    """Whether float64 found the rank of B, and which columns of A lie outside its range, as exact arithmetic does.

    On the floats, or on what they stand for. True also where the arrays are too large to ask.
    """
    if A.size + B.size > MAX_ENTRIES:
        return True
    fractions = meant(A, B)
    for stand_for in (None, fractions) if fractions is not None else (None,):
        exact, outside = range_of(B, A, stand_for)
        if exact == rank and (outside == leaks).all():
            return True
    return False


def independent_rows(B: NDArray[Any], stand_for: Mapping[float, Fraction] | None = None) -> NDArray[np.intp]:
    """The rows of B that are no combination of rows above them, in their order; entries as in `range_of`.

    >>> independent_rows(np.array([[0.0, 0.0], [0.5, 1.0], [1.5, 3.0], [0.5, 0.0]])).tolist()
    [1, 3]
    >>> independent_rows(np.array([[0.1, 1.0], [0.3, 3.0]])).tolist()  # of floats: 3 * 0.1 > 0.3
    [0, 1]
    """
    by_prime = [pivots(table(residues(B.T, prime, stand_for)), prime).tolist() for prime in PRIMES]
    # a prime that divides a minor makes a row look dependent: fewer rows, or later ones
    return np.array(min(by_prime, key=lambda rows: (-len(rows), rows)), dtype=np.intp)


def pivots(columns: NDArray[np.object_], prime: int) -> NDArray[np.intp]:
    """The columns of a table of residues that are no combination of those before them."""
    if not columns.size:
        return np.zeros(0, dtype=np.intp)
    reduced, _ = flint.nmod_mat(len(columns), columns.shape[1], columns.ravel().tolist(), prime).rref()
    entries = table(reduced) != 0
    return np.asarray(entries[entries.any(axis=1)].argmax(axis=1), dtype=np.intp)


def outside_range(B: NDArray[np.object_], A: NDArray[np.object_], prime: int) -> tuple[int, NDArray[np.bool_]]:
    """`range_of` for tables of residues."""
    rows, columns = len(B), B.shape[1] + A.shape[1]
    if not rows:
        return 0, np.zeros(A.shape[1], dtype=bool)
    reduced, _ = flint.nmod_mat(rows, columns, np.hstack([B, A]).ravel().tolist(), prime).rref()
    entries = table(reduced) != 0
    rank = int(np.count_nonzero(entries[:, : B.shape[1]].any(axis=1)))
    return rank, np.asarray(entries[rank:, B.shape[1] :].any(axis=0))


def meant(*arrays: FloatArray) -> dict[float, Fraction] | None:
    """What floats stand for: themselves if they are of few bits, else p / q times a power of two, q <= MAX_DENOMINATOR.

    None where one is next to no such fraction, or there are too many.

    >>> meant(np.array([1 / 3, 1 - 0.9])) == {1 / 3: Fraction(1, 3), 1 - 0.9: Fraction(1, 10)}
    True
    >>> meant(np.array([2**0.5])) is None
    True
    """
    values = np.unique(np.concatenate([np.ravel(array) for array in arrays]))
    if values.size > MAX_VALUES:
        return None
    fractions: dict[float, Fraction] = {}
    for x in values.tolist():
        if (fraction := fraction_of(x, MAX_DENOMINATOR)) is None:
            return None
        fractions[x] = fraction
    return fractions


def residues(matrix: NDArray[Any], prime: int, stand_for: Mapping[float, Fraction] | None = None) -> flint.nmod_mat:
    """The binary fractions of an array, or the fractions that they stand for, modulo an odd prime.

    Also an array of Fractions themselves, as objects.
    """
    if matrix.dtype == object:
        entries = [f.numerator * pow(f.denominator, -1, prime) % prime for f in matrix.ravel().tolist()]
        return flint.nmod_mat(matrix.shape[0], matrix.shape[1], entries, prime)
    if stand_for is not None:
        of = {x: f.numerator * pow(f.denominator, -1, prime) % prime for x, f in stand_for.items()}
        entries = [of[x] for x in matrix.ravel().tolist()]
        return flint.nmod_mat(matrix.shape[0], matrix.shape[1], entries, prime)
    mantissa, exponent = np.frexp(matrix)
    half = pow(2, -1, prime)
    powers = {int(e): pow(2, int(e), prime) if e >= 0 else pow(half, -int(e), prime) for e in np.unique(exponent - 53)}
    whole = np.ldexp(mantissa, 53).astype(np.int64).ravel().tolist()
    entries = [m * powers[e] % prime if m else 0 for m, e in zip(whole, (exponent - 53).ravel().tolist(), strict=True)]
    return flint.nmod_mat(matrix.shape[0], matrix.shape[1], entries, prime)


def table(matrix: flint.nmod_mat) -> NDArray[np.object_]:
    """The residues, shape (rows, columns), as Python integers."""
    return np.array([int(x) for x in matrix.entries()], dtype=object).reshape(matrix.nrows(), matrix.ncols())
