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

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from ..check import FloatArray
from ..errors import InvalidInput
from .column_generator import ColumnGenerator, Words, prf

LONGEST = 2**35
"""Words of a row at most: 2^32 blocks of 64 bytes, those of a 32-bit block counter."""

_PIECE = 2**15
"""Words at once: 256 KiB, so that a piece stays in the cache of a core from keystream to normals."""
_ZEROS = memoryview(bytes(8 * _PIECE))  # keystream is what zeros are encrypted to


class ChaChaColumns(ColumnGenerator):
    """See `ColumnGenerator`.

    The words of (secret, index, tensor, shard, step) are the ChaCha20 keystream with key HMAC-SHA256(secret,
    "chacha20", index, tensor), nonce step + 2^64 shard (12 bytes, lowest first) and block counter 0, 1, ...

    Guarantees:
        No two (secret, index, tensor) share a key, up to a collision of HMAC-SHA256, and under one key no two
        (step, shard) share a nonce; a row that would exceed the block counter is refused. So no keystream is used
        twice, and whoever tells the words from uniform ones without the secret has broken HMAC-SHA256 or ChaCha20.
    Raises: InvalidInput: rows longer than LONGEST.
    Cost: about 4 microseconds per row, and up to 1.4 times the time of Philox per normal of long rows.
    """

    name, secure = "chacha20/inverse-cdf/holder-keys/1", True

    def __init__(self, secrets: Sequence[bytes], indices: Words, shard: int) -> None:
        self._secrets, self._indices, self._shard = secrets, indices.tolist(), shard
        self._keys: dict[int, list[bytes]] = {}  # by tensor

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
                for row, key in zip(rows, self._keys_of(tensor), strict=True):
                    keystream(key, step, self._shard, row)
        return out

    def _keys_of(self, tensor: int) -> list[bytes]:
        if tensor not in self._keys:
            columns = zip(self._secrets, self._indices, strict=True)
            self._keys[tensor] = [prf(secret, "chacha20", index, tensor) for secret, index in columns]
        return self._keys[tensor]


def keystream(key: bytes, step: int, shard: int, out: Words, *, first_block: int = 0) -> None:
    """Fills `out`, a contiguous row of little-endian words, with ChaCha20 keystream from a block."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # keeps `import mfdl` light

    nonce = step.to_bytes(8, "little") + shard.to_bytes(4, "little")
    counted = first_block.to_bytes(4, "little") + nonce
    encryptor = Cipher(algorithms.ChaCha20(key, counted), mode=None).encryptor()
    raw = out.view(np.uint8).data
    for start in range(0, len(raw), len(_ZEROS)):
        piece = raw[start : start + len(_ZEROS)]
        encryptor.update_into(_ZEROS[: len(piece)], piece)


def _become_normals(words: Words) -> None:
    """Replaces uniform words, in place, by the bits of the normals that they stand for."""
    sign = words << np.uint64(63)
    ndtri(tail_probabilities(words), out=words.view(np.float64))
    words ^= sign


def tail_probabilities(words: Words) -> FloatArray:
    """P(Z > |z|) of the normals z that uniform words stand for, in (0, 1/2]."""
    tail = (words >> np.uint64(1)).astype(np.float64)
    tail += 0.5
    tail *= 2.0**-64
    return tail
