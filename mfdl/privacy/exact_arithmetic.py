"""Ranks and Gram matrices without rounding, or in intervals of as many bits as they take.

Ranks: floats are the binary fractions that they are, computed modulo two primes of 63 bits, drawn at random when this
file was written. A rank modulo a prime is never above the true one, and below it only if the prime divides every minor
of that size. A minor here has below 10^8 bits, so fewer than 2^21 of the 2^57 primes of that size divide it: the larger
of two ranks is wrong with a chance below 10^-21, and then too small.

Gram matrices: X of noise whose encoder float64 cannot tell from a singular one, N^-T N^-1. Forward substitution loses
all digits where |C| |N| is near 1 / UNIT, while the loss itself can be small. N is triangular with a diagonal that is
not 0, so its inverse exists, and intervals of enough bits hold it as closely as float64 can say.
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
from ..floats import UNIT
from ..trust.view import View

PRIMES = (5_312_186_569_479_497_857, 8_731_438_793_126_205_647)
MAX_DENOMINATOR = 4096  # of a fraction that a float stands for; fractions up to it are 2^-24 apart
MAX_VALUES = 10_000  # different numbers that are looked at
MAX_ENTRIES = 500_000  # of a matrix: under a second per prime
Table = NDArray[np.int64]  # residues, which have 63 bits
MAX_SIZE = 64  # rows of N: at most about a second
PRECISIONS = (256, 1024, 4096)  # bits
CLOSE = 2.0**-44  # errors, relative to the diagonal of X, up to which no more bits are tried
LEAST = 2.0**-1074


def rank_and_outside(
    B: NDArray[Any], A: NDArray[Any], stand_for: Mapping[float, Fraction] | None = None
) -> tuple[int, NDArray[np.bool_]]:
    """(rank of B, for each column of A whether it lies outside the range of B), of the floats or what they stand for.

    >>> third = np.array([[1 / 3, 0.1], [1.0, 0.3]])  # neither float is the fraction that it stands for
    >>> rank_and_outside(third[:, :1], third)
    (1, array([False,  True]))
    """
    ranges = [outside_range(residues(B, p, stand_for), residues(A, p, stand_for), p) for p in PRIMES]
    return max(rank for rank, _ in ranges), np.logical_or(ranges[0][1], ranges[1][1])


def ranks_agree(A: FloatArray, B: FloatArray, rank: int, leaks: NDArray[np.bool_]) -> bool:
    """Whether float64 found the rank of B, and which columns of A lie outside its range, as exact arithmetic does.

    On the floats, or on what they stand for. True also where the arrays are too large to ask.
    """
    if A.size + B.size > MAX_ENTRIES:
        return True
    fractions = meant(A, B)
    for stand_for in (None, fractions) if fractions is not None else (None,):
        exact, outside = rank_and_outside(B, A, stand_for)
        if exact == rank and (outside == leaks).all():
            return True
    return False


def independent_rows(B: NDArray[Any], stand_for: Mapping[float, Fraction] | None = None) -> NDArray[np.intp]:
    """The rows of B that are no combination of rows above them, in their order.

    >>> independent_rows(np.array([[0.0, 0.0], [0.5, 1.0], [1.5, 3.0], [0.5, 0.0]])).tolist()
    [1, 3]
    """
    by_prime = [pivots(residues(B.T, prime, stand_for), prime).tolist() for prime in PRIMES]
    # a prime that divides a minor makes a row look dependent: fewer rows, or later ones
    return np.array(min(by_prime, key=lambda rows: (-len(rows), rows)), dtype=np.intp)  # exact: indices


def pivots(columns: Table, prime: int) -> NDArray[np.intp]:
    """The columns of a table of residues that are no combination of those before them."""
    if not columns.size:
        return np.zeros(0, dtype=np.intp)
    reduced, _ = mod_matrix(columns, prime).rref()
    entries = table(reduced) != 0
    return np.asarray(entries[entries.any(axis=1)].argmax(axis=1), dtype=np.intp)  # exact: flags


def outside_range(B: Table, A: Table, prime: int) -> tuple[int, NDArray[np.bool_]]:
    if not len(B):
        return 0, np.zeros(A.shape[1], dtype=bool)
    reduced, _ = mod_matrix(np.hstack([B, A]), prime).rref()
    entries = table(reduced) != 0
    rank = int(np.count_nonzero(entries[:, : B.shape[1]].any(axis=1)))
    return rank, np.asarray(entries[rank:, B.shape[1] :].any(axis=0))


def meant(*arrays: FloatArray) -> dict[float, Fraction] | None:
    """The fractions that floats stand for: themselves if of few bits, else 2^k p / q with q <= MAX_DENOMINATOR.

    None where one is next to no such fraction, or there are too many.

    >>> meant(np.array([1 / 3, 1 - 0.9])) == {1 / 3: Fraction(1, 3), 1 - 0.9: Fraction(1, 10)}
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


def residues(matrix: NDArray[Any], prime: int, stand_for: Mapping[float, Fraction] | None = None) -> Table:
    """An array of floats or Fractions, or the fractions that floats stand for, modulo an odd prime."""
    if matrix.dtype == object:
        fractions = [_residue(f, prime) for f in matrix.ravel().tolist()]
        return np.array(fractions, dtype=np.int64).reshape(matrix.shape)
    places = np.nonzero(matrix)
    values, numbers = np.unique(matrix[places], return_inverse=True)
    if stand_for is not None:
        by_value = [_residue(stand_for[x], prime) for x in values.tolist()]
    else:
        mantissas, exponents = np.frexp(values)
        powers = {e: pow(2, e - 53, prime) for e in set(exponents.tolist())}
        whole = np.ldexp(mantissas, 53).astype(np.int64).tolist()
        by_value = [m * powers[e] % prime for m, e in zip(whole, exponents.tolist(), strict=True)]
    out = np.zeros(matrix.shape, dtype=np.int64)
    out[places] = np.array(by_value, dtype=np.int64)[numbers]
    return out


def _residue(fraction: Fraction, prime: int) -> int:
    return fraction.numerator * pow(fraction.denominator, -1, prime) % prime


def table(matrix: flint.nmod_mat) -> Table:
    return np.array(list(map(int, matrix.entries())), dtype=np.int64).reshape(matrix.nrows(), matrix.ncols())


def mod_matrix(residues: Table, prime: int) -> flint.nmod_mat:
    rows, columns = residues.shape
    return flint.nmod_mat(flint.fmpz_mat(rows, columns, residues.ravel().tolist()), prime)  # faster than at once


def is_small(view: View) -> bool:
    return max(view.noise.shape[0], view.axis.size) * (view.axis.size + view.noise.shape[1]) <= MAX_ENTRIES


def gram_of_noise(noise: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """(X, how far its entries may be off) for a lower triangular N, shape (T, T).

    None: N has more rows than MAX_SIZE, or entries that rounded to 0 on the diagonal or beyond float64, as may those of
    X, or more digits cancel than PRECISIONS have.

    >>> gram_of_noise(np.array([[2.0**60, 0], [-(2.0**60), 1]]))[0].tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    if len(noise) > MAX_SIZE or not np.isfinite(noise).all() or not (np.diagonal(noise) > 0).all():
        return None
    for bits in PRECISIONS:
        with flint.ctx.workprec(bits):
            X, errors = _gram(noise)
        sizes = np.sqrt(np.abs(np.diagonal(X)))
        if np.isfinite(X).all() and (errors <= CLOSE * np.outer(sizes, sizes) + 4 * LEAST).all():
            return X, errors
    return None


def _gram(noise: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Midpoints of the intervals as floats, and how far the ends are from these."""
    try:
        encoder = flint.arb_mat(len(noise), len(noise), noise.ravel().tolist()).inv()
    except ZeroDivisionError:  # too few bits to tell its pivots from 0
        return np.full(noise.shape, np.nan), np.full(noise.shape, np.inf)
    intervals = (encoder.transpose() * encoder).entries()
    X, radii = (np.reshape([float(x) for x in part], noise.shape) for part in (intervals, [x.rad() for x in intervals]))
    return X, (radii + UNIT * np.abs(X)) * (1 + 8 * UNIT) + 2 * LEAST
