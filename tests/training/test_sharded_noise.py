"""Noise in pieces: each the noise of an encoder, on normals that nothing else uses, in the memory of a piece."""

import itertools
import tracemalloc

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from noises import STRUCTURED, example, structured_encoder
from numpy.testing import assert_allclose, assert_array_equal

from mfdl.errors import InvalidInput
from mfdl.factorization.encoders import Inverse, Toeplitz
from mfdl.noise import IndependentNoise, LocalNoise
from mfdl.noise import stream as streams
from mfdl.training.keys import SHARDS, ColumnNormals, NoiseKey
from mfdl.training.streams import ShardedNoise, noise_stream

KEY = NoiseKey.from_seed(5)


def whole(pieces, t):
    return np.concatenate([noise for _, noise in pieces.step(t)], axis=1)


@examples(60)
@given(
    kind=st.sampled_from(["independent", "shared", "time-space", *STRUCTURED]),
    dim=st.integers(1, 9),
    size=st.integers(1, 5),
    order=st.lists(st.integers(0, 6), min_size=1, max_size=6),
)
def test_pieces_are_streams_of_their_own_in_any_order(kind, dim, size, order):
    noise = example(kind, 7)
    one, other = (ShardedNoise(noise, 2.0, KEY, dim, size=size) for _ in range(2))
    forward = np.stack([whole(one, t) for t in range(7)])
    for t in order:
        assert_array_equal(whole(other, t), forward[t])
    for shard, piece in reversed(list(enumerate(other.pieces))):
        alone = noise_stream(noise, 2.0, KEY, piece.stop - piece.start, shard=shard)
        for t in order:
            assert_array_equal(alone.step(t), forward[t][:, piece])
    if dim <= size:  # not cut: what it always was
        assert_array_equal(forward[0], noise_stream(noise, 2.0, KEY, dim).step(0))


@pytest.mark.parametrize("kind", ["independent", "shared", *STRUCTURED])
def test_no_normal_is_in_two_pieces_tensors_or_steps(kind):
    """Of a fresh noise each number is a normal; of another, the normals of all pieces tell its numbers."""
    fresh = IndependentNoise(6, 3)
    made = [whole(ShardedNoise(fresh, 1.0, KEY, 40, size=16, tensor=tensor), t) for tensor in (0, 1) for t in range(6)]
    values = np.abs(np.concatenate([part.ravel() for part in made]))
    assert np.unique(values).size == values.size == 2 * 6 * 3 * 40
    noise = (
        LocalNoise(structured_encoder(kind, np.linspace(-0.5, 0.5, 8), 6), 3)
        if kind in STRUCTURED
        else example(kind, 6)
    )
    normals = np.stack([whole(ShardedNoise(fresh, 1.0, KEY, 40, size=16), t) for t in range(6)])
    wanted = (noise.to_dense() @ normals.reshape(18, 40)).reshape(6, 3, 40)
    pieces = ShardedNoise(noise, 1.0, KEY, 40, size=16)
    assert_allclose(np.stack([whole(pieces, t) for t in range(6)]), wanted, rtol=1e-9, atol=1e-9)


def test_blocks_of_shards_are_far_apart():
    """The words of the documented counter: shard s of (key, index, step) begins after block 2^40 s."""
    for shard in (0, 1, SHARDS - 1):
        made = ColumnNormals([KEY], [3], shard=shard).block([7], 5)[0, 0]
        philox = np.random.Philox(key=ColumnNormals([KEY], [3])._words[0], counter=[shard << 40, 1, 3, 7])
        assert_array_equal(made, np.random.Generator(philox).standard_normal(5))
    with pytest.raises(InvalidInput, match=f"shard must be below {SHARDS}, got {SHARDS}"):
        ColumnNormals([KEY], [0], shard=SHARDS)
    with pytest.raises(InvalidInput, match="size must be at least 2 "):
        ShardedNoise(IndependentNoise(2, 1), 1.0, KEY, SHARDS + 1, size=1)


def test_a_long_vector_takes_the_memory_of_a_piece(monkeypatch):
    """2,000,000 coordinates in pieces of 50,000, fresh or made again from counters: a few rows of a piece."""
    monkeypatch.setattr(streams, "KEEP_BYTES", 0)
    dim, size = 2_000_000, 50_000
    for noise in (IndependentNoise(40, 1), LocalNoise(Inverse(Toeplitz([1.0, -0.5, -0.1], 40)), 1)):
        pieces = ShardedNoise(noise, 1.0, KEY, dim, size=size)
        tracemalloc.start()
        largest = max(float(np.abs(part).max()) for _, part in itertools.islice(pieces.step(20), 40))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 * 8 * size + 2**18
        assert 4 < largest < 8
