"""The noise stream of a simulation, nu N Z of all nodes, and of a single node of a deployment from its secrets alone.

Base noise is made on the CPU, so that every device trains with the same numbers. The operator of a node is cut to its
rows, so neither work nor memory grows with the number of nodes, except for operators that a user defines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..noise import NoiseOperator
from ..noise.stream import NoiseStream
from .column_generators import SHARDS
from .keys import NoiseKey
from .shared_randomness import HolderKeys, base_columns

SHARD = 2**22  # coordinates of a shard: 32 MiB a row


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

    Args: key: of a simulation, see `HolderKeys.simulated`, or the keys themselves; tensor: number of the parameter
        tensor, equal numbers would repeat the noise; shard: part of its coordinates, see `ShardedNoise`.
    """
    keys = key if isinstance(key, HolderKeys) else HolderKeys.simulated(key)
    return NoiseStream(noise, noise_std, partial(base_columns, noise, keys, shard=shard), dim, tensor, slots)


class ShardedNoise:
    """Injected noise of a long parameter vector in pieces: shard i is coordinates [i size, (i + 1) size).

    Every piece is a stream with counters of its own, made in any order or by several workers, in the memory of one
    piece, plus what an encoder stores of each. The noise depends on `size`: a run, and all holders of a column, take
    one size.

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
        self._kept: dict[int, NoiseStream] | None = None if noise.stepped is None else {}

    def stream(self, shard: int) -> NoiseStream:  # kept where an encoder has a state
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


def node_noise(
    noise: NoiseOperator,
    node: int,
    keys: HolderKeys,
    noise_std: float,
    step: int,
    dim: int,
    *,
    slots: Sequence[int] | None = None,
    tensor: int = 0,
) -> FloatArray:
    """Injected noise of one node at one step, shape (number of its slots, dim). For many steps use `node_stream`.

    >>> from mfdl.noise import IndependentNoise
    >>> own = HolderKeys.given({(1,): NoiseKey.from_entropy()})
    >>> node_noise(IndependentNoise(num_steps=5, num_nodes=2), 1, own, noise_std=2.0, step=0, dim=3).shape
    (1, 3)
    """
    return node_stream(noise, node, keys, noise_std, dim, slots=slots, tensor=tensor).step(step)


def node_stream(
    noise: NoiseOperator,
    node: int,
    keys: HolderKeys,
    noise_std: float,
    dim: int,
    *,
    slots: Sequence[int] | None = None,
    tensor: int = 0,
) -> NoiseStream:
    """The injected noise of one node, step after step.

    Args:
        noise: N of the calibrated algorithm; noise_std: nu of the mechanism.
        keys: at least the secrets of the holder sets of the node's noise.
        slots: injection slots of the node in a step. Default its one row, right whenever noise is added to gradients;
            for noise on messages `np.flatnonzero(algorithm.message_sender == node)`.
    Guarantees: stacked over the nodes, the rows are those of `noise_stream` with the same keys: bit for bit for
        independent and step noise, to rounding otherwise.
    Raises:
        InvalidInput: node or a slot out of range, slots missing where noise is on messages, or a missing secret, naming
            its holder set.
    Cost: per step, 1 us + 10 ns dim per column used; for operators that a user defines, also products with all columns.
    """
    n, width = noise.num_nodes, noise.slots_per_step
    node = check.integer_at_least(0, node=node)
    if node >= n:
        raise InvalidInput(f"node must be below the number of nodes, {n}, got {node}.")
    if slots is None and width != n:
        raise InvalidInput(
            f"this noise has {width} slots per step for {n} nodes; pass slots, for noise on messages "
            "np.flatnonzero(algorithm.message_sender == node)."
        )
    return noise_stream(noise, noise_std, keys.node_keys(node), dim, tensor, [node] if slots is None else slots)
