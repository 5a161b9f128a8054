"""Bugs for the audit to find."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mfdl import PrivateNode
from mfdl.check import FloatArray
from mfdl.noise import NoiseOperator, NoiseStream
from mfdl.training.keys import ColumnNormals
from mfdl.training.shared_randomness import HolderKeys, base_columns, columns_by_holders

CULPRIT = 1  # the node with the bug, where it is one node's


def silent(node: PrivateNode, keys: HolderKeys) -> None:
    """One node adds no noise."""
    if node.node == CULPRIT:
        node._stream.step = lambda t: np.zeros((1, node._stream.dim))  # type: ignore[method-assign]


def shared_once(node: PrivateNode, keys: HolderKeys) -> None:
    """All nodes draw what they share once, and add it in every step."""
    stream = node._stream
    base = partial(_Once.of, stream.noise, keys.of_node(node.node))
    node._stream = NoiseStream(stream.noise, stream.noise_std, base, stream.dim, slots=[node.node])


@dataclasses.dataclass(frozen=True)
class _Once:
    """Base noise whose shared columns are always those of step 0."""

    drawn: ColumnNormals
    shared: NDArray[np.bool_]

    @staticmethod
    def of(noise: NoiseOperator, keys: HolderKeys, columns: NDArray[np.intp]) -> _Once:
        shared = np.zeros(noise.columns_per_step, dtype=bool)
        for holders, held in columns_by_holders(noise).items():
            shared[held] = len(holders) > 1
        return _Once(base_columns(noise, keys, columns), shared[columns])

    def block(self, steps: NDArray[np.int64], dim: int, *, tensor: int = 0) -> FloatArray:
        """See `mfdl.noise.stream.BaseNoise`."""
        fresh = self.drawn.block(steps, dim, tensor=tensor)
        return np.where(self.shared[:, None], self.drawn.block([0], dim, tensor=tensor), fresh)


PLANTED = {"silent": silent, "shared-once": shared_once}
