"""X of noise whose encoder float64 cannot tell from a singular one: N^-T N^-1 in intervals of many bits.

Forward substitution loses all digits where |C| |N| is near 1 / UNIT, while the loss itself can be small: an encoder
whose first diagonal entry is tiny makes large noise in that step. N is triangular with a diagonal that is not 0, so its
inverse exists, and intervals of enough bits hold it as closely as float64 can say.
"""

from __future__ import annotations

import flint
import numpy as np

from ..check import FloatArray
from ..floats import UNIT

MAX_SIZE = 64  # rows of N: at most about a second
PRECISIONS = (256, 1024, 4096)  # bits
CLOSE = 2.0**-44  # errors, relative to the diagonal of X, up to which no more bits are tried
LEAST = 2.0**-1074


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
