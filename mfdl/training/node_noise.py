"""What one node of a deployment adds: its rows of nu N Z, from the secrets that it holds and no others.

In: the noise operator of the algorithm, a node, its keys. Out: the node's injected noise, step by step, equal to its
rows of the simulator's stream. The operator is cut to the node's rows, so neither the work nor the memory grows with
the other nodes, but for operators that no stream knows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..operators import IndependentNoise, LocalNoise, NoiseOperator, StepNoise, ZeroNoise
from .shared_randomness import HolderKeys, base_columns
from .streams import IndependentStream, LocalStream, NoiseStream, NoNoise, StepStream


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

    >>> from mfdl.operators import IndependentNoise
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
    Cost: per step, 1 us + 10 ns dim per column used; for operators that no stream knows, O(columns of N) besides.
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
    rows = [node] if slots is None else [check.integer_at_least(0, slots=slot) for slot in slots]
    if max(rows, default=0) >= width or len(set(rows)) != len(rows):
        raise InvalidInput(f"slots must be distinct and below {width}, got {rows}.")
    held = keys.of_node(node)
    if isinstance(noise, ZeroNoise) or noise_std == 0:
        return _OwnRows(NoNoise(noise, noise_std, held, dim, tensor), rows)
    if isinstance(noise, StepNoise):
        return StepStream(noise.rows(rows), noise_std, held, dim, tensor)
    if rows == [node] and isinstance(noise, IndependentNoise | LocalNoise):
        alone = HolderKeys.given({(0,): held.key_of({node})})
        if isinstance(noise, LocalNoise):
            return LocalStream(LocalNoise(noise.encoder_of(node), 1), noise_std, alone, dim, tensor)
        return IndependentStream(IndependentNoise(noise.num_steps, 1), noise_std, alone, dim, tensor)
    return _AnyRows(noise, noise_std, held, dim, tensor, rows)


class _OwnRows(NoiseStream):
    """Some rows of another stream."""

    def __init__(self, whole: NoiseStream, rows: Sequence[int]) -> None:
        super().__init__(whole.noise, whole.noise_std, whole.keys, whole.dim, whole.tensor)
        self._whole, self._chosen = whole, list(rows)

    def _rows(self, t: int) -> FloatArray:
        return self._whole.step(t)[self._chosen]


class _AnyRows(NoiseStream):
    """Rows of any operator, read off by its transpose; base noise of exactly the columns they use."""

    def __init__(
        self, noise: NoiseOperator, noise_std: float, keys: HolderKeys, dim: int, tensor: int, rows: Sequence[int]
    ) -> None:
        super().__init__(noise, noise_std, keys, dim, tensor)
        self._chosen = list(rows)

    def _rows(self, t: int) -> FloatArray:
        k = len(self._chosen)
        unit = np.zeros((self.noise.shape[0], k))
        unit[t * self.noise.slots_per_step + np.array(self._chosen, dtype=np.int64), np.arange(k)] = 1
        entries = self.noise.rmatmat(unit).reshape(self.noise.num_steps, self.noise.columns_per_step, k)
        steps = np.flatnonzero(entries.any(axis=(1, 2)))
        columns = np.flatnonzero(entries.any(axis=(0, 2)))
        base = base_columns(self.noise, self.keys, columns).block(steps, self.dim, tensor=self.tensor)
        return self.noise_std * np.einsum("sck,scd->kd", entries[np.ix_(steps, columns)], base)
