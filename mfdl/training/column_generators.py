"""Generators of base noise: words and standard normals of fixed columns at any step.

They depend only on (secret, index, shard, tensor, step) and their place in the row: `ChaChaColumns` for secret keys,
`PhiloxColumns` for keys of a seed, each with the `name` of its rule, which runs store, and whether it is `secure`, a
cipher's. `block` gives normals, (steps, columns, dim), the first k of a row the same for every dim >= k; `words` gives
uniform words of tensor 0, (columns, count), from the same counters: a secret serves one use. All are computed on the
CPU, so every device gets the same noise, bit for bit.
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from .. import check, matrices
from ..check import FloatArray
from ..errors import InvalidInput

Words = NDArray[np.uint64]
SHARDS = 2**24  # shards of a row at most
TENSORS = 2**32  # tensors at most


def prf(secret: bytes, *parts: str | int | bytes) -> bytes:
    """HMAC-SHA256 of the parts; the first part names the purpose, so purposes never meet."""
    return hmac.digest(secret, encode_context(parts), "sha256")


def encode_context(parts: Sequence[str | int | bytes]) -> bytes:
    """An injective encoding of a context: each part as its type, its length in 8 bytes, its bytes."""
    encoded = []
    for part in parts:
        if isinstance(part, str):
            try:
                tag, data = b"s", part.encode("utf-8")
            except UnicodeEncodeError:  # a lone surrogate, as JSON files may hold one
                raise InvalidInput(f"a key context must be text that UTF-8 can encode, got {part!a}.") from None
        elif isinstance(part, bytes):
            tag, data = b"b", part
        else:
            try:
                number = check.index(part)
            except TypeError:
                raise InvalidInput(f"a key context must be str, int or bytes, got {type(part).__name__}.") from None
            tag, data = b"i", number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
        encoded.append(tag + len(data).to_bytes(8, "big") + data)
    return b"".join(encoded)


LONGEST_ROW = 2**35  # words of a row at most: 2^32 blocks of 64 bytes, those of a 32-bit block counter
HEAD = 16  # words at the start of a row that are made together with those of the next steps: two blocks of the cipher
STEPS = 2**31  # steps whose heads share a nonce
AHEAD_BYTES = 2**27  # bytes of heads that are made ahead
_PIECE = 2**15  # words at once: 256 KiB stay in the cache of a core
_COLUMNS = 32  # columns of heads at once, for the same reason
_ZEROS = memoryview(bytes(8 * _PIECE))  # keystream is what zeros are encrypted to


class ChaChaColumns:
    """Noise of secret keys: ChaCha20 (RFC 8439) by `cryptography`, and the inverse of the normal distribution function.

    A word becomes a normal: its lowest bit is the sign, the others are m, and the normal is +-Phi^-1((m + 1/2) 2^-64)
    (`scipy.special.ndtri`, whose last bits may differ between builds), at most 9.2 in size.

    The words of (secret, index, tensor, shard, step) are ChaCha20 keystream with key HMAC-SHA256(secret, "chacha20",
    index, tensor): the first HEAD words are blocks 2 s and 2 s + 1 of the nonce q + 2^64 (shard + 2^31), step = STEPS q
    + s; words from HEAD on are blocks 2, 3, ... of the nonce step + 2^64 shard (12 bytes, lowest first). So one call of
    the cipher makes the heads of several steps, twice as many each time.

    Guarantees:
        No two (secret, index, tensor) share a key, up to a collision of HMAC-SHA256. Under one key nonces of heads
        differ from the others by their highest bit, as shard < 2^24, from each other by (q, shard), and two steps of
        one nonce have other blocks, 2 s + 1 < 2^32; the other nonces differ by (step, shard), and a row that would
        exceed their block counter is refused. So no block is used twice, and distinguishing the words from uniform ones
        without the secret breaks HMAC-SHA256 or ChaCha20.
    Cost: rows up to HEAD twice the time of Philox; longer rows 3 microseconds and up to 1.4 times the time of Philox
        per normal. Memory: AHEAD_BYTES.
    """

    name, secure = "chacha20/inverse-cdf/holder-keys/2", True

    def __init__(self, secrets: Sequence[bytes], indices: Words, shard: int) -> None:
        self._secrets, self._indices, self._shard = secrets, indices.tolist(), shard
        self._keys: dict[int, list[bytes]] = {}  # by tensor
        self._ahead = _Heads(0, 0, np.empty((0, len(secrets), 0), dtype="<u8"))

    def block(self, steps: Words, dim: int, tensor: int) -> FloatArray:
        out = self._keystream(steps, dim, tensor)
        flat = out.reshape(-1)
        for start in range(0, flat.size, _PIECE):
            _become_normals(flat[start : start + _PIECE])
        return out.view(np.float64)

    def words(self, step: int, count: int) -> Words:
        return self._keystream(np.array([step], dtype=np.uint64), count, 0)[0].astype(np.uint64, copy=False)

    def _keystream(self, steps: Words, count: int, tensor: int) -> Words:  # (steps, columns, count)
        if count > LONGEST_ROW:
            raise InvalidInput(f"a row must have at most {LONGEST_ROW} coordinates, got {count}; make it in shards.")
        out = np.empty((steps.size, len(self._secrets), count), dtype="<u8")
        if out.size:
            for rows, step in zip(out, steps.tolist(), strict=True):
                rows[:, :HEAD] = self._heads(step, min(count, HEAD), tensor)
                for row, key in zip(rows, self._tensor_keys(tensor), strict=True) if count > HEAD else ():
                    keystream(key, step, self._shard, row[HEAD:], first_block=2)
        return out

    def _heads(self, step: int, width: int, tensor: int) -> Words:
        """The first words of a step, shape (columns, width)."""
        ahead = self._ahead
        fits = ahead.tensor == tensor and width <= ahead.words.shape[2]
        if not (fits and 0 <= step - ahead.start < len(ahead.words)):
            follows = fits and step == ahead.start + len(ahead.words)
            steps = min(2 * len(ahead.words), AHEAD_BYTES // (8 * len(self._secrets) * width)) if follows else 1
            steps = max(1, min(steps, STEPS - step % STEPS))
            ahead = self._ahead = _Heads(tensor, step, self._made_ahead(step, steps, width, tensor))
        return ahead.words[step - ahead.start, :, :width]

    def _made_ahead(self, start: int, steps: int, width: int, tensor: int) -> Words:
        """Heads of several steps that share a nonce, shape (steps, columns, width)."""
        out = np.empty((steps, len(self._secrets), width), dtype="<u8")
        (nonce, first), keys = divmod(start, STEPS), self._tensor_keys(tensor)
        for begin in range(0, len(keys), _COLUMNS):
            some = keys[begin : begin + _COLUMNS]
            fresh = np.empty((len(some), steps, HEAD), dtype="<u8")
            for row, key in zip(fresh.reshape(len(some), -1), some, strict=True):
                keystream(key, nonce, self._shard + 2**31, row, first_block=2 * first)
            out[:, begin : begin + _COLUMNS] = fresh[..., :width].swapaxes(0, 1)
        return out

    def _tensor_keys(self, tensor: int) -> list[bytes]:
        if tensor not in self._keys:
            columns = zip(self._secrets, self._indices, strict=True)
            self._keys[tensor] = [prf(secret, "chacha20", index, tensor) for secret, index in columns]
        return self._keys[tensor]


class _Heads(NamedTuple):
    """Words of steps from `start` on, shape (steps, columns, width), as secret as the keys."""

    tensor: int
    start: int
    words: Words


def keystream(key: bytes, step: int, shard: int, out: Words, *, first_block: int = 0) -> None:
    """Fills `out`, a contiguous row of little-endian words, with ChaCha20 keystream from a block."""
    nonce = step.to_bytes(8, "little") + shard.to_bytes(4, "little")
    cipher, chacha20 = _cipher()
    encryptor = cipher(chacha20(key, first_block.to_bytes(4, "little") + nonce), mode=None).encryptor()
    raw = out.view(np.uint8).data
    for start in range(0, len(raw), len(_ZEROS)):
        piece = raw[start : start + len(_ZEROS)]
        encryptor.update_into(_ZEROS[: len(piece)], piece)


@functools.cache
def _cipher() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # keeps `import mfdl` light

    return Cipher, algorithms.ChaCha20


def _become_normals(words: Words) -> None:
    """Replaces uniform words, in place, by the bits of their normals."""
    sign = words << np.uint64(63)
    ndtri(tail_probabilities(words), out=words.view(np.float64))
    words ^= sign


def tail_probabilities(words: Words) -> FloatArray:
    """P(Z > |z|) of the normals z that uniform words stand for, in (0, 1/2]."""
    tail = (words >> np.uint64(1)).view(np.int64).astype(np.float64)  # below 2^63, and signed numbers are faster
    tail += 0.5
    tail *= 2.0**-64
    return tail


_COUNTER_DOMAIN = 1  # low half of the second counter word: the version of the rule named by PhiloxColumns.name
_TENSOR_SHIFT = 32  # its high half: the tensor
_SHARD_SHIFT = 40  # first counter word at which the blocks of a shard begin: far above those that any row takes


class PhiloxColumns:
    """Noise of keys that come from a seed: Philox4x64-10 and the ziggurat of NumPy; no cipher.

    The stream of (secret, index, step) is Philox4x64 with a 128-bit key hashed from the secret and the 256-bit counter
    with words, lowest first, (block, domain + 2^32 tensor, index, step), block = 2^40 shard + 1, ...; each block gives
    4 words of 64 bits. A row is `Generator(Philox(key=key, counter=counter)).standard_normal(dim)`; many short rows are
    computed together (`fill`).

    Guarantees:
        Under one key, no two (index, step, tensor) share a counter: block would carry into their words after 2^64 - 1
        blocks only. Philox is a bijection of the counter, so different counters give different blocks.
    Cost: about 1 microsecond per row and 10 ns per normal; of many short rows less (`fill`).
    Source: Salmon et al., SC 2011 (Philox4x64-10); Marsaglia and Tsang (2000), the ziggurat.
    """

    name, secure = "philox4x64-10/ziggurat/holder-keys/2", False

    def __init__(self, secrets: Sequence[bytes], indices: Words, shard: int) -> None:
        self._indices, self._shard = indices, shard
        self._keys = np.array([*map(matrices.once(_philox_key), secrets)], dtype=np.uint64).reshape(-1, 2)

    def block(self, steps: Words, dim: int, tensor: int) -> FloatArray:
        count = self._indices.size
        block, domain = np.uint64(self._shard << _SHARD_SHIFT), np.uint64(_COUNTER_DOMAIN + (tensor << _TENSOR_SHIFT))
        out = np.empty((steps.size, count, dim))
        rows = out.reshape(-1, dim)
        left: NDArray[np.intp] = np.arange(len(rows))
        if dim <= LONGEST_FILLED and len(rows) >= FEWEST:
            columns, of_step = np.tile(np.arange(count), steps.size), np.repeat(steps, count)
            left = fill(rows, self._keys[columns], (block, domain, self._indices[columns], of_step))
        self._draw(rows, left, steps, (block, domain))
        return out

    def words(self, step: int, count: int) -> Words:
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
        """Draws some of all (step, column) rows one by one; `low` are the lower counter words."""
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


LONGEST_FILLED = 32  # normals of a row up to which `fill` is faster than a call of the generator for each
FEWEST = 256  # rows from which `fill` is faster
BLOCKS = 2**13  # Philox blocks at once: 64 KiB an array
_ROUNDS = 10
_HALF, _LOW = np.uint64(32), np.uint64(2**32 - 1)
_WEYL = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)  # what is added to the key in every round
_FACTORS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)


def _product(factor: np.uint64, words: Words) -> tuple[Words, Words]:
    """(upper, lower 64 bits) of factor * words: by halves, none of whose sums leaves 64 bits."""
    low, high, factor_low, factor_high = words & _LOW, words >> _HALF, factor & _LOW, factor >> _HALF
    middle = high * factor_low
    middle += (low * factor_low) >> _HALF
    low *= factor_high
    low += middle & _LOW
    high *= factor_high
    high += middle >> _HALF
    high += low >> _HALF
    return high, words * factor


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """The four words of Philox4x64-10 at each counter; words of counter and key may broadcast."""
    a, b, c, d = counter
    left, right = key
    for round_ in range(_ROUNDS):
        if round_:
            left, right = left + _WEYL[0], right + _WEYL[1]
        (high, low), (other_high, other_low) = _product(_FACTORS[0], a), _product(_FACTORS[1], c)
        a, b, c, d = other_high ^ b ^ left, other_low, high ^ d ^ right, low
    return a, b, c, d


class Ziggurat(NamedTuple):
    """The ziggurat by the lowest 9 bits of a word, layer and sign.

    Attributes: width: factor of a place, with the sign; inside: places below it are inside the layer beneath, at most
        2^12 of 2^52 too small, so that no rounding decides.
    """

    width: FloatArray
    inside: Words


@functools.cache
def ziggurat() -> Ziggurat | None:
    """The ziggurat of NumPy, read off its generator; None if it does not use its words as assumed here.

    The places at which a layer ends are quotients of widths; the last of them and 512 arbitrary words must give what is
    computed here.
    """
    bits = np.random.Philox(key=0)
    draw = np.random.Generator(bits).standard_normal
    state = bits.state

    def drawn(words: Words) -> tuple[FloatArray, NDArray[np.bool_]]:
        """The normal of each word, and whether one word decides it."""
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
    computed, known = word_normals(seen, tables)
    normals, alone = drawn(seen)
    agree = (normals == computed) & alone
    return tables if agree[known].all() and known.mean() > 0.9 else None


def word_normals(words: Words, table: Ziggurat) -> tuple[FloatArray, NDArray[np.bool_]]:
    """The normal of each word if it is the first of its normal, and where it is known."""
    lowest = (words & np.uint64(511)).astype(np.intp)
    places = (words >> np.uint64(9)) & np.uint64(2**52 - 1)
    return places * table.width[lowest], places < table.inside[lowest]


def fill(
    out: FloatArray, keys: NDArray[np.uint64], counter: tuple[np.uint64, np.uint64, Words, Words]
) -> NDArray[np.intp]:
    """Writes the rows that need one word a normal, nine of ten normals, into `out`, (rows, dim); returns the others.

    Args: keys: Philox keys, (rows, 2); counter: the words of each row's counter before its first block, lowest first:
        block (below 2^64) and domain, the same for all, and two of shape (rows,).
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
        normals, known = word_normals(np.stack(words, axis=1).reshape(4 * blocks, -1)[:dim], table)
        out[these] = normals.T
        left.append(start + np.flatnonzero(~known.all(axis=0)))
    return np.concatenate(left) if left else np.empty(0, dtype=np.intp)


ColumnGenerator = ChaChaColumns | PhiloxColumns
