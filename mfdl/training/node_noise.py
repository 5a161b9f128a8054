"""What one node of a deployment adds: its rows of nu N Z, from the secrets that it holds and no others.

In: the noise operator of the algorithm, a node, its keys. Out: the node's injected noise, step by step, equal to its
rows of the simulator's stream. The operator is cut to the node's rows, so neither the work nor the memory grows with
the other nodes, but for operators of one's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..noise import NoiseOperator, NoiseStream
from .shared_randomness import HolderKeys
from .streams import noise_stream


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
    """Injected noise of one node at one step, shape (number of its slots, dim). See `node_stream`, which is for many.

    >>> from mfdl.noise import IndependentNoise
    >>> from mfdl.training.keys import NoiseKey
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
        noise: N of the algorithm that was calibrated; noise_std: nu of the mechanism.
        node: index in 0 .. n - 1.
        keys: at least the secrets of the holder sets of the node's noise; those of sets without the node are not
            used.
        slots: injection slots of the node in a step. Default its one row, right whenever noise is added to gradients;
            for noise on messages `np.flatnonzero(algorithm.message_sender == node)`.
        tensor: which of several parameter tensors the noise is for, if a model is sent in several.

    Guarantees:
        Stacked over the nodes, the rows are those of `noise_stream` with the same keys: bit for bit for independent
        and step noise, to rounding otherwise.
    Raises:
        InvalidInput: node or a slot out of range, slots missing where noise is on messages, or a needed secret that
            the node does not hold, naming its holder set.
    Cost: per step, 1 us + 10 ns dim per column used; for operators of one's own, products with all columns besides.
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
    return noise_stream(noise, noise_std, keys.of_node(node), dim, tensor, [node] if slots is None else slots)
