"""Random orders and seeds that every version of numpy repeats.

`Generator.permutation` may change between numpy versions; the raw words of a bit generator and the hash of
`SeedSequence` may not. Nothing here is secret: noise keys are in `training.keys`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

DATA_SPLIT, NODE_SPLIT, BATCH_ORDER, INITIAL_MODEL, NODE_SHARES, SYNTHETIC_DATA = range(6)
"""Purposes: each draws from a stream of its own, so that changing one leaves the others alone."""

DATA_SPLIT_SEED = 0
"""Seed of every train and test split, one for all runs: the seeds of a run never move a record across it."""


def permutation(seed: int, purpose: int, size: int) -> NDArray[np.int64]:
    """A uniform random order of 0, ..., size - 1, up to ties of 64-bit words (below size^2 2^-65)."""
    words = np.random.Philox(_sequence(seed, purpose)).random_raw(size)
    return np.argsort(words, kind="stable").astype(np.int64)  # exact: integers


def split_rows(size: int, test_fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows held back, at least one, by the split with the fixed seed `DATA_SPLIT_SEED`."""
    order = permutation(DATA_SPLIT_SEED, DATA_SPLIT, size)
    num_test = max(1, round(test_fraction * size))
    return order[num_test:], order[:num_test]


class Uniforms:
    """A stream of independent uniform numbers, strictly between 0 and 1: midpoints of 2^52 equal steps."""

    def __init__(self, seed: int, purpose: int) -> None:
        self._words = np.random.Philox(_sequence(seed, purpose))

    def __call__(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        words = self._words.random_raw(math.prod(shape)) >> np.uint64(12)
        uniforms: NDArray[np.float64] = (words.astype(np.float64) + 0.5) * 2.0**-52
        return uniforms.reshape(shape)


def torch_seed(seed: int, purpose: int) -> int:
    """A seed below 2^63 for a torch generator."""
    return int(_sequence(seed, purpose).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, purpose: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(purpose,))
