"""The stream of a simulation: nu N Z of all nodes, Z from one root secret or the keys of all holder sets.

Base noise is always made on the CPU, so that every device trains with the same numbers. How a stream is computed is in
`mfdl.noise.stream`, the secrets of a single node in `node_noise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..noise import NoiseOperator, NoiseStream
from .keys import SHARDS, NoiseKey
from .shared_randomness import HolderKeys, base_columns

SHARD = 2**22
"""Coordinates of a shard: 32 MiB a row."""


def noise_stream(
    noise: NoiseOperator,
    noise_std: float,
    key: NoiseKey | HolderKeys,
    dim: int,
    tensor: int = 0,
    slots: Sequence[int] | None = None,
    *,
    shard: int = 0,
) -> NoiseStream:
    """Injected noise step by step, of all slots or of some.

    Args:
        key: root secret of a simulation, from which `HolderKeys.simulated` derives that of every holder set; or the
            keys themselves.
        tensor: which of several parameter tensors the noise is for; equal numbers would repeat it.
        shard: which part of the coordinates of that tensor `dim` counts, see `ShardedNoise`.
    """
    keys = key if isinstance(key, HolderKeys) else HolderKeys.simulated(key)
    return NoiseStream(noise, noise_std, partial(base_columns, noise, keys, shard=shard), dim, tensor, slots)


class ShardedNoise:
    """Injected noise of a long parameter vector in pieces: shard i is coordinates [i size, (i + 1) size).

    Every piece is a stream of its own, on counters of its own, so pieces can be made one after another, or by several
    workers, and a vector of any length takes the memory of a piece, besides what an encoder keeps of each. The noise
    depends on where it is cut: a run, and all who share a column, take one size.

    Args: as `noise_stream`; size: coordinates of a shard; the last one has what is left.
    Raises: InvalidInput: more shards than SHARDS.

    >>> from mfdl.noise import IndependentNoise
    >>> pieces = ShardedNoise(IndependentNoise(5, 2), 1.0, NoiseKey.from_seed(0), dim=10, size=4)
    >>> [(where.start, where.stop, noise.shape) for where, noise in pieces.step(3)]
    [(0, 4, (2, 4)), (4, 8, (2, 4)), (8, 10, (2, 2))]
    """

    def __init__(
        self,
        noise: NoiseOperator,
        noise_std: float,
        key: NoiseKey | HolderKeys,
        dim: int,
        *,
        size: int = SHARD,
        tensor: int = 0,
        slots: Sequence[int] | None = None,
    ) -> None:
        dim, size = check.integer_at_least(1, dim=dim), check.integer_at_least(1, size=size)
        if -(-dim // size) > SHARDS:
            raise InvalidInput(f"size must be at least {-(-dim // SHARDS)} for {dim} coordinates, got {size}.")
        self.pieces = [slice(start, min(start + size, dim)) for start in range(0, dim, size)]
        self._of = [
            partial(noise_stream, noise, noise_std, key, piece.stop - piece.start, tensor, slots, shard=shard)
            for shard, piece in enumerate(self.pieces)
        ]
        keeps = noise.causal is not None and noise.causal.strategy is not None
        self._kept: dict[int, NoiseStream] | None = {} if keeps else None

    def stream(self, shard: int) -> NoiseStream:
        """The stream of one piece: kept where an encoder has a state, so that steps go on from it."""
        if self._kept is None:
            return self._of[shard]()
        if shard not in self._kept:
            self._kept[shard] = self._of[shard]()
        return self._kept[shard]

    def step(self, t: int) -> Iterator[tuple[slice, FloatArray]]:
        """nu (N Z)_t piece by piece: (its coordinates, shape (injection slots, coordinates))."""
        for shard, piece in enumerate(self.pieces):
            stream = self.stream(shard)
            yield piece, stream.step(t)
            stream.release()
