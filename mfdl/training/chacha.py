"""Base noise of secret keys: ChaCha20 (RFC 8439) and the inverse of the normal distribution function.

A 64-bit word of the keystream becomes a normal: its lowest bit is the sign, the others are m, and the normal is
+-Phi^-1((m + 1/2) 2^-64). Every normal takes one word, so coordinate i of a row is a function of word i alone, and the
time of a row does not depend on rejected candidates. The largest normal is 9.2, which a true one exceeds with
probability 2^-64.

The bits and the transform are computed on the CPU, so models on every device get the same numbers, bit for bit. The
keystream is the same on every machine; normals may differ between builds of SciPy in the last bits.

Source: RFC 8439 (2018), section 2.4, by the package `cryptography`; Phi^-1 is `scipy.special.ndtri`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from ..check import FloatArray
from ..errors import InvalidInput
from .column_generator import ColumnGenerator, Words, prf

LONGEST = 2**35
"""Words of a row at most: 2^32 blocks of 64 bytes, those of a 32-bit block counter."""

HEAD = 16
"""Words at the start of a row that lie beside those of the next step: two blocks of the cipher."""
STEPS = 2**31
"""Steps whose heads share a nonce: twice as many blocks are those of a counter."""
AHEAD_BYTES = 2**27
"""Of heads that are made ahead of their step."""
_PIECE = 2**15
"""Words at once: 256 KiB, so that a piece stays in the cache of a core from keystream to normals."""
_COLUMNS = 32
"""Columns of heads at once, for the same reason."""
_ZEROS = memoryview(bytes(8 * _PIECE))  # keystream is what zeros are encrypted to


class ChaChaColumns(ColumnGenerator):
    """See `ColumnGenerator`.

    The words of (secret, index, tensor, shard, step) are ChaCha20 keystream with key HMAC-SHA256(secret, "chacha20",
    index, tensor): the first HEAD words are blocks 2 s and 2 s + 1 of the nonce q + 2^64 (shard + 2^31), step = STEPS q
    + s; words from HEAD on are blocks 2, 3, ... of the nonce step + 2^64 shard (12 bytes, lowest first). So one call of
    the cipher makes the heads of several steps: steps that follow each other are made ahead, twice as many each time.

    Guarantees:
        No two (secret, index, tensor) share a key, up to a collision of HMAC-SHA256. Under one key nonces of heads
        differ from the others by their highest bit, as shard < 2^24, from each other by (q, shard), and two steps of
        one nonce have other blocks, 2 s + 1 < 2^32; the other nonces differ by (step, shard), and a row that would
        exceed their block counter is refused. So no block is used twice, and whoever tells the words from uniform ones
        without the secret has broken HMAC-SHA256 or ChaCha20.
    Raises: InvalidInput: rows longer than LONGEST.
    Cost: of rows up to HEAD, step after step, twice the time of Philox in one call; of longer rows 3 microseconds and
        up to 1.4 times the time of Philox per normal. Memory: AHEAD_BYTES.
    """

    name, secure = "chacha20/inverse-cdf/holder-keys/2", True

    def __init__(self, secrets: Sequence[bytes], indices: Words, shard: int) -> None:
        self._secrets, self._indices, self._shard = secrets, indices.tolist(), shard
        self._keys: dict[int, list[bytes]] = {}  # by tensor
        self._ahead = _Heads(0, 0, np.empty((0, len(secrets), 0), dtype="<u8"))

    def block(self, steps: Words, dim: int, tensor: int) -> FloatArray:
        """See `ColumnGenerator`."""
        out = self._keystream(steps, dim, tensor)
        flat = out.reshape(-1)
        for start in range(0, flat.size, _PIECE):
            _become_normals(flat[start : start + _PIECE])
        return out.view(np.float64)

    def words(self, step: int, count: int) -> Words:
        """See `ColumnGenerator`."""
        return self._keystream(np.array([step], dtype=np.uint64), count, 0)[0].astype(np.uint64, copy=False)

    def _keystream(self, steps: Words, count: int, tensor: int) -> Words:
        """Words, shape (steps, columns, count)."""
        if count > LONGEST:
            raise InvalidInput(f"a row must have at most {LONGEST} coordinates, got {count}; make it in shards.")
        out = np.empty((steps.size, len(self._secrets), count), dtype="<u8")
        if out.size:
            for rows, step in zip(out, steps.tolist(), strict=True):
                rows[:, :HEAD] = self._heads(step, min(count, HEAD), tensor)
                for row, key in zip(rows, self._keys_of(tensor), strict=True) if count > HEAD else ():
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
        (nonce, first), keys = divmod(start, STEPS), self._keys_of(tensor)
        for begin in range(0, len(keys), _COLUMNS):
            some = keys[begin : begin + _COLUMNS]
            fresh = np.empty((len(some), steps, HEAD), dtype="<u8")
            for row, key in zip(fresh.reshape(len(some), -1), some, strict=True):
                keystream(key, nonce, self._shard + 2**31, row, first_block=2 * first)
            out[:, begin : begin + _COLUMNS] = fresh[..., :width].swapaxes(0, 1)
        return out

    def _keys_of(self, tensor: int) -> list[bytes]:
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
    """Replaces uniform words, in place, by the bits of the normals that they stand for."""
    sign = words << np.uint64(63)
    ndtri(tail_probabilities(words), out=words.view(np.float64))
    words ^= sign


def tail_probabilities(words: Words) -> FloatArray:
    """P(Z > |z|) of the normals z that uniform words stand for, in (0, 1/2]."""
    tail = (words >> np.uint64(1)).view(np.int64).astype(np.float64)  # below 2^63, and signed numbers are faster
    tail += 0.5
    tail *= 2.0**-64
    return tail
