"""Normals that are rounded to a grid exactly: the nearest integer to scale z, z a real standard normal of a secret key.

In: a secret key, a step and a scale. Out: integers k with P(k) = Phi((k + 1/2) / scale) - Phi((k - 1/2) / scale), up to
a total variation of 2^-512 for uniform keystream. They are no float64 normals that are rounded: a float decides the
integer only where its error bound leaves no doubt, and otherwise more random bits and more digits do.

The absolute value of z has the tail probability P = 0.0b_1 b_2 ... in binary, b_1 to b_63 of the word that `chacha`
takes for the coordinate, the 512 that follow of a ChaCha20 block of the coordinate alone.

Assumptions: `scipy.special.ndtri` errs by at most 2^-46 max(1, |z|) (measured: 2^-50.1 at 45,000 tails), and sums and
products are those of IEEE 754. Doubtful integers are decided in decimals, whose errors are bounded here.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ..errors import InvalidInput
from .column_generators import ChaChaColumns, Words, keystream, prf, tail_probabilities
from .keys import NoiseKey

LARGEST_SCALE = 2.0**40
"""With it the error of a float is below half a step, so that it leaves two integers at most."""
PIECE = 2**14
"""Coordinates at once."""
LONGEST = 2**32
"""Coordinates at most: blocks of a 32-bit counter."""

_MORE = 512  # bits of a coordinate beyond its word: a block of the cipher
_SURE = 4.5  # normals up to which the bits of a word decide as many digits as a float has
_ERROR = 2.0**-45  # of a float normal z > 1, relative; of a smaller one absolute
_ROUNDING = 2.0**-50  # of the last sums
DIGITS = 60, 240
"""Of the decimals that decide what floats leave in doubt."""


class RoundedNormals:
    """Rows of rounded normals of a key.

    Args: key: secret; a key of a seed is taken for simulations, and uses the same cipher.

    Attributes: name: of the rule from key, step and coordinate to normals; stored with nodes.
    Guarantees: a pure function of (key, step, coordinate, scale).
    Cost: 1.6 to 3.5 times that of float normals, plus 0.1 milliseconds for each in doubt, a share of about 2^-44 scale.
    """

    name = "chacha20/rounded-normals/holder-keys/2"

    def __init__(self, key: NoiseKey) -> None:
        secret = key.derive("rounded normals").reveal_secret()
        self._drawn = ChaChaColumns([secret], np.zeros(1, dtype=np.uint64), 0)
        self._more = prf(secret, "more bits")

    def row(self, step: int, dim: int, scale: float) -> NDArray[np.int64]:
        """Integers of one step, shape (dim,).

        Raises: InvalidInput: scale outside [0, LARGEST_SCALE], or more than LONGEST coordinates.
        """
        if not 0 <= scale <= LARGEST_SCALE:
            raise InvalidInput(f"scale must lie in [0, 2^40], got {scale:g}; take a coarser grid.")
        if dim > LONGEST:
            raise InvalidInput(f"dim must be at most {LONGEST}, got {dim}; train fewer parameters.")

        def more(place: int) -> int:
            block = np.empty(_MORE // 64, dtype="<u8")
            keystream(self._more, step, 0, block, first_block=place)
            return int.from_bytes(block.tobytes(), "big")

        words, integers = self._drawn.words(step, dim)[0], np.empty(dim, dtype=np.int64)
        for start in range(0, dim, PIECE):  # which stay in the cache of a core
            piece = slice(start, start + PIECE)
            integers[piece] = rounded(words[piece], scale, more, start)
        return integers


def rounded(words: Words, scale: float, more: Callable[[int], int], first: int = 0) -> NDArray[np.int64]:
    """The nearest integers to scale z, z the normals of the words and of the 512 bits that `more(first + i)` adds."""
    z = -ndtri(tail_probabilities(words))
    x = scale * z
    nearest = np.floor(x + 0.5)
    doubt = scale * _ERROR * np.maximum(z, 1.0) + _ROUNDING
    integers = nearest.astype(np.int64)
    for place in np.flatnonzero((z > _SURE) | (np.abs(np.abs(x - nearest) - 0.5) <= doubt)).tolist():
        integers[place] = _decided(int(words[place]) >> 1, more(first + place), scale)
    negative = (words & np.uint64(1)).astype(bool)
    return np.where(negative, -integers, integers)


def _decided(first: int, more: int, scale: float) -> int:
    """The nearest integer to scale |z|, |z| of tail probability (first + more 2^-512) 2^-64."""
    numerator, denominator = (first << _MORE) + more, 2 ** (64 + _MORE)
    z = -float(ndtri(max(numerator, 1) / denominator))
    x = scale * z
    nearest = int(np.floor(x + 0.5))
    if abs(abs(x - nearest) - 0.5) > scale * _ERROR * max(z, 1.0) + _ROUNDING:
        return nearest
    edge = int(np.floor(x))  # |z| is beyond edge + 1/2 if its tail probability is less than that of it
    for digits in DIGITS:
        with decimal.localcontext(prec=digits):
            difference = upper_tail(Decimal(2 * edge + 1) / 2 / Decimal(scale)) - Decimal(numerator) / denominator
        if abs(difference) > Decimal(10) ** (6 - digits):
            break
    return edge + 1 if difference > 0 else edge


def upper_tail(x: Decimal) -> Decimal:
    """1 - Phi(x), 0 <= x <= 30, with an absolute error below 10^(6 - digits) in a context of so many digits.

    It is 1/2 - phi(x) sum_n x^(2n + 1) / (1 3 5 ... (2n + 1)). Roundings err by a relative 5 10^-digits. The terms are
    positive and fall to a quarter from n = 2 x^2 <= 1800 on, so there are fewer than 2300, each with three roundings
    more than the last; sum, exponent (at most 450) and the rest stay below 10^4 roundings, and the product below 1/2.
    """
    term = total = x
    n = 0
    while n < 2 * float(x) ** 2 or term > total * Decimal(10) ** (-decimal.getcontext().prec):
        n += 1
        term *= x * x / (2 * n + 1)
        total += term
    density = (-x * x / 2).exp() / (2 * _pi(decimal.getcontext().prec)).sqrt()
    return Decimal(1) / 2 - density * total


@functools.cache
def _pi(digits: int) -> Decimal:
    """Machin's formula, 16 arctan(1/5) - 4 arctan(1/239), in whole numbers with ten digits more."""
    scale = 10 ** (digits + 10)

    def arctan_of_inverse(q: int) -> int:
        power, total, n = scale // q, scale // q, 1
        while power:
            power //= -q * q
            n += 2
            total += power // n
        return total

    return Decimal(16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) / scale
