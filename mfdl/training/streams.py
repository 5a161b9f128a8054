"""The stream of a simulation: nu N Z of all nodes, Z from one root secret or the keys of all holder sets.

Base noise is always made on the CPU, so that every device trains with the same numbers. How a stream is computed is in
`mfdl.noise.stream`, the secrets of a single node in `node_noise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..noise import NoiseOperator, NoiseStream
from .keys import NoiseKey
from .shared_randomness import HolderKeys, base_columns


def noise_stream(
    noise: NoiseOperator,
    noise_std: float,
    key: NoiseKey | HolderKeys,
    dim: int,
    tensor: int = 0,
    slots: Sequence[int] | None = None,
) -> NoiseStream:
    """Injected noise step by step, of all slots or of some.

    Args:
        key: root secret of a simulation, from which `HolderKeys.simulated` derives that of every holder set; or the
            keys themselves.
        tensor: which of several parameter tensors the noise is for; equal numbers would repeat it.
    """
    keys = key if isinstance(key, HolderKeys) else HolderKeys.simulated(key)
    return NoiseStream(noise, noise_std, partial(base_columns, noise, keys), dim, tensor, slots)
