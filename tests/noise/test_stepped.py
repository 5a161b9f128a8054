"""Streams of encoders with structure: memory by structure, states that go on, the steps a row is made of."""

import tracemalloc

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from noises import STRUCTURED, base_noise, example, structured_encoder
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses

from mfdl import NoiseKey
from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.noise import LocalNoise, stream
from mfdl.noise.stream import NoiseStream, StreamState
from mfdl.training.shared_randomness import HolderKeys, base_columns
from mfdl.training.streams import noise_stream

KEY = NoiseKey.from_seed(3)


@st.composite
def steps_and_states(draw):
    """(kind, T, numbers, orders): what is asked for before a state is taken, and after."""
    T = draw(st.integers(1, 12))
    numbers = np.array(draw(st.lists(st.integers(-4, 4), min_size=8, max_size=8))) / 8
    step = st.integers(0, T - 1)
    return (
        draw(st.sampled_from(STRUCTURED)),
        T,
        numbers,
        draw(st.lists(step, max_size=5)),
        draw(st.lists(step, min_size=1, max_size=5)),
    )


@examples(150)
@given(case=steps_and_states(), keep=st.booleans())
def test_resumed_anywhere_it_is_the_same_noise_bit_for_bit(case, keep):
    """From nothing or from a state, whatever was asked before: C^-1 Z of the written encoder, and no bit of another."""
    kind, T, numbers, before, after = case
    noise = LocalNoise(structured_encoder(kind, numbers, T), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "KEEP_BYTES", 2**30 if keep else 0)
        first, straight = noise_stream(noise, 1.0, KEY, 3), noise_stream(noise, 1.0, KEY, 3)
        for t in before:
            first.step(t)
        resumed = noise_stream(noise, 1.0, KEY, 3)
        resumed.resume(first.state())
        every = np.stack([straight.step(t) for t in range(T)])
        for t in after:
            assert_array_equal(resumed.step(t), every[t])
            assert_array_equal(first.step(t), every[t])
    wanted = np.linalg.solve(np.kron(noise.causal.encoder.dense(), np.eye(2)), base_noise(noise, KEY, 3))
    assert_allclose(every.reshape(T * 2, 3), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", STRUCTURED)
def test_a_state_of_another_stream_is_refused(kind):
    """Its rows would be added to noise of other normals: part of them for a second time."""
    noise = LocalNoise(structured_encoder(kind, np.linspace(-0.5, 0.5, 8), 9), 2)
    other = LocalNoise(structured_encoder(kind, np.linspace(-0.5, 0.25, 8), 9), 2)
    given_ = noise_stream(noise, 1.0, KEY, 3)
    given_.step(4)
    state = given_.state()
    assert state.position == 5
    streams = {
        "another key": noise_stream(noise, 1.0, NoiseKey.from_seed(4), 3),
        "another tensor": noise_stream(noise, 1.0, KEY, 3, 1),
        "another encoder": noise_stream(other, 1.0, KEY, 3),
        "fewer coordinates": noise_stream(noise, 1.0, KEY, 2),
        "one column": noise_stream(noise, 1.0, KEY, 3, slots=[0]),
    }
    for other_stream in streams.values():
        refuses("state must be of a stream", other_stream.resume, state)
    first, foreign = (noise_stream(noise, 1.0, KEY, 3, slots=[node]) for node in (0, 1))
    first.step(4)
    refuses("of the same encoder, keys, columns", lambda: foreign.resume(first.state()))
    refuses("state must be of a stream", lambda: given_.resume(StreamState(10, state.rows, state.mark)))
    refuses(r"state must be what NoiseStream\.state", given_.resume, 5)
    plain = noise_stream(example("shared", 9), 1.0, KEY, 3)
    plain.resume(plain.state())  # nothing is kept, nothing to go on from


def asked_of(noise, dim, options):
    def base_of(columns):
        base = base_columns(noise, HolderKeys.simulated(KEY), columns)

        class Counted:
            def block(self, steps, dim, *, tensor=0):
                options.append(int(steps[0]))
                return base.block(steps, dim, tensor=tensor)

        return Counted()

    return NoiseStream(noise, 1.0, base_of, dim)


def test_each_way_to_a_row_takes_the_steps_it_is_made_of(monkeypatch):
    inverse, buffered = (
        LocalNoise(Inverse(Toeplitz([1.0, -0.5, 0.25], 50)), 1),
        LocalNoise(Buffered([0.5], [0.5], 50), 1),
    )
    for noise, wanted in ((inverse, [38, 39, 40, 41, 8, 9, 10]), (buffered, [*range(42), *range(11)])):
        requested = []
        products = asked_of(noise, 4, requested)
        for t in (40, 41, 10):
            products.step(t)
        assert requested == wanted
    monkeypatch.setattr(stream, "KEEP_BYTES", 0)
    requested = []
    asked_of(inverse, 4, requested).step(40)
    assert requested == [40, 39, 38]


@pytest.mark.parametrize("T", [60, 240])
def test_memory_is_that_of_the_structure(T, monkeypatch):
    """Rows of 80 kB: a dense encoder takes a few blocks, bands their window, a buffer one row, whatever T is."""
    dim, row = 10_000, 80_000
    monkeypatch.setattr(stream, "KEEP_BYTES", 0)
    monkeypatch.setattr(stream, "BLOCK_BYTES", 4 * row)
    bands = np.tri(T, 11) * 0.5 ** np.arange(11)
    most = {
        "dense": (np.linalg.inv(np.tri(T)), 4 * 6),
        "banded": (Banded(bands), 10 + 7),
        "buffered": (Buffered([0.5], [0.5], T), 1 + 7),
        "kept fresh": (Inverse(Banded(bands)), 7),  # made again from counters
    }
    for name, (encoder, rows) in most.items():
        noise_rows = noise_stream(LocalNoise(encoder, 1), 1.0, KEY, dim)
        tracemalloc.start()
        for t in (0, 1, 30, 31):
            noise_rows.step(t)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < rows * row + 8 * T * T, name
