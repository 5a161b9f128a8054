"""Base noise of keys that come from a seed: Philox4x64-10 and the ziggurat of NumPy, for repeatable experiments.

Philox is a statistical generator with a 128-bit key, hashed from the secret. It is no cipher: nobody has shown that
its output can be told from random bits, and nobody claims that it cannot. Secret keys use `chacha`.

Standard normals of many short rows at once: the bits of the library's generator, without a call of it for each row.

In: the Philox key and the counter words of every row. Out: for each row what
`Generator(Philox(key=key, counter=counter)).standard_normal(dim)` is, and which rows are left to that generator.

A call of the generator costs some microseconds, and a short row is a few numbers. So Philox4x64-10 is computed here for
all rows together, about 130 ns a block of four words. A word becomes a normal by the ziggurat: its lowest 8 bits are
the layer, the next one the sign, 52 more the place in it, and where the place is inside the layer beneath (98.8 % of
all words) the normal is place times width, and the next normal takes the next word. A row of such words alone is done;
any other row, one in nine of ten normals, is left to the generator, which knows how it goes on.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), Philox4x64-10; Marsaglia and Tsang (2000),
the ziggurat. Its widths are read off the generator itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import matrices
from ..check import FloatArray
from .column_generator import ColumnGenerator, Words, prf

_COUNTER_DOMAIN = 1  # low half of the second counter word: the version of the rule named by PhiloxColumns.name
_TENSOR_SHIFT = 32  # its high half: the tensor
_SHARD_SHIFT = 40  # first counter word at which the blocks of a shard begin: far above those that any row takes


class PhiloxColumns(ColumnGenerator):
    """See `ColumnGenerator`.

    The stream of (secret, index, step) is Philox4x64 with a 128-bit key hashed from the secret and the 256-bit counter
    with words, lowest first, (block, domain + 2^32 tensor, index, step), block = 2^40 shard + 1, ...; each block gives
    4 words of 64 bits.

    Guarantees:
        Under one key, no two (index, step, tensor) share a counter: they have counter words of their own, and
        block carries into them only after 2^64 - 1 blocks, about 2^66 words of 64 bits,
        while a normal takes 1.02 words on average and a row that long does not fit any memory. Philox is a
        bijection of the counter, so different counters give different blocks.
    Cost: about 1 microsecond per row and 10 ns per normal; of many short rows less (`fill`).
    """

    name, secure = "philox4x64-10/ziggurat/holder-keys/2", False

    def __init__(self, secrets: Sequence[bytes], indices: Words, shard: int) -> None:
        self._indices, self._shard = indices, shard
        self._keys = np.array([*map(matrices.once(_philox_key), secrets)], dtype=np.uint64).reshape(-1, 2)

    def block(self, steps: Words, dim: int, tensor: int) -> FloatArray:
        """See `ColumnGenerator`."""
        count = self._indices.size
        block, domain = np.uint64(self._shard << _SHARD_SHIFT), np.uint64(_COUNTER_DOMAIN + (tensor << _TENSOR_SHIFT))
        out = np.empty((steps.size, count, dim))
        rows = out.reshape(-1, dim)
        left: NDArray[np.intp] = np.arange(len(rows))
        if dim <= LONGEST and len(rows) >= FEWEST:
            columns, of_step = np.tile(np.arange(count), steps.size), np.repeat(steps, count)
            left = fill(rows, self._keys[columns], (block, domain, self._indices[columns], of_step))
        self._draw(rows, left, steps, (block, domain))
        return out

    def words(self, step: int, count: int) -> Words:
        """See `ColumnGenerator`."""
        low = self._shard << _SHARD_SHIFT, _COUNTER_DOMAIN
        counters = (np.array([*low, index, step], dtype=np.uint64) for index in self._indices)
        drawn = [
            np.random.Philox(key=key, counter=counter).random_raw(count)
            for key, counter in zip(self._keys, counters, strict=True)
        ]
        return np.array(drawn, dtype=np.uint64).reshape(-1, count)

    def _draw(
        self, rows: NDArray[np.float64], which: NDArray[np.intp], steps: NDArray[np.uint64], low: tuple[np.uint64, ...]
    ) -> None:
        """Draws some of all (step, column) rows, one after another; `low` are the lower counter words."""
        philox = np.random.Philox(key=0)  # local, so threads do not share it
        draw = np.random.Generator(philox).standard_normal
        # Setting the state costs 0.3 microseconds with Python numbers, 0.7 with those of numpy, a new Philox 6.
        # The state of an unused Philox holds no word left over from an earlier block, so setting it empties the buffer.
        state: Any = philox.state
        state |= {"state": (words := {}), "buffer": philox.state["buffer"].tolist()}
        block, domain = map(int, low)
        step, column = np.divmod(which, max(1, self._indices.size))
        numbers = which, self._keys[column], self._indices[column], steps[step]
        for row, key, index, t in zip(*(part.tolist() for part in numbers), strict=True):
            words["counter"], words["key"] = (block, domain, index, t), key
            philox.state = state
            draw(out=rows[row])


def _philox_key(secret: bytes) -> Words:
    return np.frombuffer(prf(secret, "philox")[:16], dtype="<u8")


LONGEST = 32
"""Normals of a row up to which this is faster than a call of the generator for each."""
FEWEST = 256
"""Rows from which it is."""
BLOCKS = 2**13
"""Philox blocks at once: 64 KiB an array, so that all of them stay in the cache of a core."""

_ROUNDS = 10
_HALF, _LOW = np.uint64(32), np.uint64(2**32 - 1)
_WEYL = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)  # what is added to the key in every round


class _Factor(NamedTuple):
    """A multiplier of Philox with its upper and lower half."""

    whole: np.uint64
    high: np.uint64
    low: np.uint64

    @classmethod
    def of(cls, number: int) -> _Factor:
        return cls(np.uint64(number), np.uint64(number >> 32), np.uint64(number % 2**32))


_FACTORS = _Factor.of(0xD2E7470EE14C6C93), _Factor.of(0xCA5A826395121157)


def _product(factor: _Factor, words: Words) -> tuple[Words, Words]:
    """(upper, lower 64 bits) of factor * words: by halves, none of whose sums leaves 64 bits."""
    low, high = words & _LOW, words >> _HALF
    middle = high * factor.low
    middle += (low * factor.low) >> _HALF
    low *= factor.high
    low += middle & _LOW
    high *= factor.high
    high += middle >> _HALF
    high += low >> _HALF
    return high, words * factor.whole


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """The four words of Philox4x64-10 at each counter, whose words, as those of the key, may broadcast."""
    a, b, c, d = counter
    left, right = key
    for round_ in range(_ROUNDS):
        if round_:
            left, right = left + _WEYL[0], right + _WEYL[1]
        (high, low), (other_high, other_low) = _product(_FACTORS[0], a), _product(_FACTORS[1], c)
        a, b, c, d = other_high ^ b ^ left, other_low, high ^ d ^ right, low
    return a, b, c, d


class Ziggurat(NamedTuple):
    """By the lowest 9 bits of a word, layer and sign.

    Attributes:
        width: what a place is multiplied by, with the sign.
        inside: places below it are inside the layer beneath; at most 2^12 of 2^52 less than there are, so that no
            rounding decides.
    """

    width: FloatArray
    inside: Words


@functools.cache
def ziggurat() -> Ziggurat | None:
    """The ziggurat of the library's generator, read off it; None if it does not use its words as assumed here.

    The generator is given chosen words as the rest of a block, and the number of words that it takes is counted. The
    places at which a layer ends are quotients of widths; the last of them and 512 words that follow no rule
    must give what is computed here, from one word.
    """
    bits = np.random.Philox(key=0)
    draw = np.random.Generator(bits).standard_normal
    state = bits.state

    def drawn(words: Words) -> tuple[FloatArray, NDArray[np.bool_]]:
        """What each word becomes, and whether it alone decides."""
        normals, alone = np.empty(len(words)), np.empty(len(words), dtype=bool)
        for i, word in enumerate(words):
            state["buffer"], state["buffer_pos"] = np.full(4, word), 0
            bits.state = state
            normals[i], alone[i] = draw(), bits.state["buffer_pos"] == 1
        return normals, alone

    lowest = np.arange(512, dtype=np.uint64)
    width, _ = drawn(lowest + np.uint64(512))  # place 1
    with np.errstate(all="ignore"):
        ends = np.floor(np.roll(np.abs(width[:256]), 1) / np.abs(width[:256]) * 2.0**52) - 2.0**12
    ends[1] = 0  # the layer at the top has none beneath
    if not (np.isfinite(width).all() and (ends >= 0).all() and (ends < 2**52).all()):
        return None
    tables = Ziggurat(width, np.tile(ends.astype(np.uint64), 2))
    last = lowest + ((np.maximum(tables.inside, np.uint64(1)) - np.uint64(1)) << np.uint64(9))
    seen = np.concatenate([last, np.random.Philox(key=1).random_raw(512)])
    computed, known = normals_of(seen, tables)
    normals, alone = drawn(seen)
    agree = (normals == computed) & alone
    return tables if agree[known].all() and known.mean() > 0.9 else None


def normals_of(words: Words, table: Ziggurat) -> tuple[FloatArray, NDArray[np.bool_]]:
    """The normal that each word becomes if it is the first of its normal, and where it is known."""
    lowest = (words & np.uint64(511)).astype(np.intp)
    places = (words >> np.uint64(9)) & np.uint64(2**52 - 1)
    return places * table.width[lowest], places < table.inside[lowest]


def fill(
    out: FloatArray, keys: NDArray[np.uint64], counter: tuple[np.uint64, np.uint64, Words, Words]
) -> NDArray[np.intp]:
    """Writes the rows that it can into `out`, (rows, dim), and returns the others, to be drawn by the generator.

    Args:
        keys: Philox keys, (rows, 2).
        counter: the words of each row's counter before its first block, lowest first, as `Philox(counter=...)` takes
            it: block and domain, the same for all, and two of shape (rows,). The block must not reach 2^64.
    Cost: 130 ns for four normals, 10 ns for each further one.
    """
    table, (rows, dim) = ziggurat(), out.shape
    if table is None:
        return np.arange(rows)
    blocks = -(-dim // 4)
    block, domain, third, fourth = counter
    first, second = block + np.arange(1, blocks + 1, dtype=np.uint64)[:, None], np.array(domain)
    left, at_once = [], max(1, BLOCKS // blocks)
    for start in range(0, rows, at_once):
        these = slice(start, start + at_once)
        key = np.ascontiguousarray(keys[these].T)
        with np.errstate(over="ignore"):
            words = philox((first, second, third[these], fourth[these]), (key[0], key[1]))
        normals, known = normals_of(np.stack(words, axis=1).reshape(4 * blocks, -1)[:dim], table)
        out[these] = normals.T
        left.append(start + np.flatnonzero(~known.all(axis=0)))
    return np.concatenate(left) if left else np.empty(0, dtype=np.intp)
