"""Base noise of keys that come from a seed: Philox4x64-10 and the ziggurat of NumPy, for repeatable experiments.

Philox is a statistical generator with a 128-bit key, hashed from the secret. It is no cipher: nobody has shown that
its output can be told from random bits, and nobody claims that it cannot. Secret keys use `chacha`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import matrices
from ..check import FloatArray
from . import short_rows
from .column_generator import ColumnGenerator, Words
from .prf import prf

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
    Cost: about 1 microsecond per row and 10 ns per normal; of many short rows less (`short_rows`).
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
        if dim <= short_rows.LONGEST and len(rows) >= short_rows.FEWEST:
            columns, of_step = np.tile(np.arange(count), steps.size), np.repeat(steps, count)
            left = short_rows.fill(rows, self._keys[columns], (block, domain, self._indices[columns], of_step))
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
        counter = np.array([*low, 0, 0], dtype=np.uint64)
        # Setting the state costs 0.6 microseconds, a new Philox and Generator 6. The state of an unused Philox
        # holds no word left over from an earlier block, so setting it also empties the buffer.
        state: Any = philox.state
        state["state"] = words = {"counter": counter, "key": None}
        step, column = np.divmod(which, max(1, self._indices.size))
        for row, key, index, t in zip(
            which.tolist(), self._keys[column], self._indices[column], steps[step], strict=True
        ):
            counter[2], counter[3] = index, t
            words["key"] = key
            philox.state = state
            draw(out=rows[row])


def _philox_key(secret: bytes) -> Words:
    return np.frombuffer(prf(secret, "philox")[:16], dtype="<u8")
