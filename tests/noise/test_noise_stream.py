"""Streams: each step is that of nu N Z whatever was asked before, with the claimed covariance; memory."""

import math
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
from noises import KINDS, STRUCTURED, OwnNoise, all_steps, base_noise, cases, example, structured_encoder
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import given, refuses, st

from mfdl.errors import UnusualSetting
from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.noise import IndependentNoise, LocalNoise, NoiseOperator, SpatioTemporalNoise, StepNoise, stream
from mfdl.noise.stream import NoiseStream, StreamState
from mfdl.training.keys import NoiseKey, normals
from mfdl.training.shared_randomness import HolderKeys, base_columns
from mfdl.training.streams import noise_stream

KEY = NoiseKey.from_seed(7)
NU = 1.7
NOISY = tuple(kind for kind in KINDS if kind not in ("zero", "messages"))


@given(
    200, case=cases(max_steps=6, max_nodes=3), dim=st.integers(1, 5), tensor=st.sampled_from([0, 1, 2**32 - 1]),
    block_steps=st.integers(1, 7), keep=st.booleans(), data=st.data(),
)  # fmt: skip
def test_however_it_is_cut_into_blocks_and_asked_for_it_is_nu_n_z(case, dim, tensor, block_steps, keep, data):
    noise, dense = case
    T, width = noise.num_steps, noise.slots_per_step
    nu = data.draw(st.sampled_from([0.0, NU, 2 * NU]))
    slots = data.draw(st.none() | st.lists(st.integers(0, width - 1), unique=True))
    wanted = (nu * dense @ base_noise(noise, KEY, dim, tensor)).reshape(T, width, dim)
    wanted = wanted if slots is None else wanted[:, slots]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "BLOCK_STEPS", block_steps)
        patch.setattr(stream, "KEEP_BYTES", 2**30 if keep else 0)
        noise_rows = noise_stream(noise, nu, KEY, dim, tensor, slots)
        for t in data.draw(st.lists(st.integers(0, T - 1), min_size=1, max_size=2 * T)):
            # inverses of at most 18 steps, entries below 1.5^18 = 1500
            assert_allclose(noise_rows.step(t), wanted[t], rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("kind", NOISY)
def test_the_order_of_steps_changes_no_bit(kind, monkeypatch):
    """More steps than a block holds: what a resumed run asks for, kept base noise or not, is what the first one got."""
    noise, T = example(kind, 40), 40
    assert T > stream.BLOCK_STEPS
    forward = all_steps(noise_stream(noise, NU, KEY, 4))
    wanted = (NU * noise.to_dense() @ base_noise(noise, KEY, 4)).reshape(forward.shape)
    assert_allclose(forward, wanted, rtol=1e-9, atol=1e-9)
    order = np.random.default_rng(0).permutation(T)
    again = noise_stream(noise, NU, KEY, 4)
    for t in (*order, *order[::-1], 39, 0):
        assert_array_equal(again.step(int(t)), forward[t])
    for t in (0, 31, 32, 39):
        assert_array_equal(noise_stream(noise, NU, KEY, 4).step(t), forward[t])
    monkeypatch.setattr(stream, "KEEP_BYTES", 0)
    assert_array_equal(all_steps(noise_stream(noise, NU, KEY, 4)), forward)
    with pytest.raises(ValueError, match="read-only"):
        again.step(0)[...] = 0


class Views(NoiseOperator):
    """N = I as a noise of a user's own that is made in blocks, and returns what it is given, or an array it keeps."""

    in_blocks = True

    def __init__(self, num_steps, num_nodes):
        self.num_steps, self.num_nodes, self.nothing = num_steps, num_nodes, np.zeros(1)
        super().__init__((num_steps * num_nodes, num_steps * num_nodes))

    def _matmat(self, X):
        return X

    _rmatmat = _matmat

    def variances(self):
        return np.ones((self.num_steps, self.num_nodes))

    def over_time(self, rows, columns, base):
        shape = (rows.stop - rows.start, *base.shape[1:])
        return base if rows == columns else np.broadcast_to(self.nothing, shape)


def test_a_noise_of_ones_own_may_return_views_of_what_it_is_given():
    """Base noise that is kept would else be scaled again each time: 0.1 Z, and 0.01 Z when asked for once more."""
    noise = Views(70, 2)
    stream, wanted = noise_stream(noise, 0.1, KEY, 3), 0.1 * base_noise(noise, KEY, 3).reshape(70, 2, 3)
    for t in (0, 40, 0, 69, 3):
        assert_array_equal(stream.step(t), wanted[t])
    assert noise.nothing == 0


def counted(noise, dim, options):
    """A stream that lists the steps for which base noise is made."""

    def base_of(columns):
        base = base_columns(noise, HolderKeys.simulated(KEY), columns)

        class Counted:
            def block(self, steps, dim, *, tensor=0):
                options.append((steps[0], len(steps), len(columns)))
                return base.block(steps, dim, tensor=tensor)

        return Counted()

    return NoiseStream(noise, NU, base_of, dim)


def test_base_noise_is_kept_when_it_fits(monkeypatch):
    noise = example("kronecker", 40)
    used = noise.columns_per_step - 1
    for bytes_, wanted in ((8 * 40 * used * 4, [0, 32]), (8 * 40 * used * 4 - 1, [0, 0, 32])):
        monkeypatch.setattr(stream, "KEEP_BYTES", bytes_)
        requested = []
        all_steps(counted(noise, 4, requested))
        assert [start for start, _, _ in requested] == wanted
        assert {columns for _, _, columns in requested} == {used}


def test_fresh_noise_keeps_no_noise_and_makes_no_step_but_its_own():
    """Memory of a stream does not grow with the steps: nothing it holds has T or more than a step in its size."""
    requested, noise = [], StepNoise(np.tri(5), np.ones((5, 4), dtype=bool), 50, 4)
    all_steps(counted(noise, 3, requested))
    assert requested == [(t, 1, 5) for t in range(50)]
    longer = StepNoise(np.tri(5), np.ones((5, 4), dtype=bool), 5000, 4)
    short, long = noise_stream(noise, NU, KEY, 30), noise_stream(longer, NU, KEY, 30)
    for t in (*np.random.default_rng(0).permutation(50), 49, 0):
        assert_array_equal(short.step(int(t)), long.step(int(t)))
    sizes = [len(pickle.dumps(vars(stream))) for stream in (short, long)]
    assert abs(sizes[0] - sizes[1]) < 40
    assert sizes[0] < 8 * 30 * 50


def test_keys_that_were_agreed_on_and_columns_that_nobody_adds():
    F, holders = np.array([[1.0, 2.0, 0.0], [0.0, -2.0, 0.0]]), np.array([[1, 0], [1, 1], [0, 1]], dtype=bool)
    private_key, shared = NoiseKey.from_seed(1), NoiseKey.from_seed(2)
    keys = HolderKeys.given({(0,): private_key, (1, 0): shared})
    for noise in (StepNoise(F, holders, 3, 2), SpatioTemporalNoise(np.tri(3), F, holders, 2)):
        z, v = normals(private_key, 0, [0], 4)[0], normals(shared, 0, [0], 4)[0]
        stream = noise_stream(noise, NU, keys, 4)  # the secret of {1} is not needed
        assert_allclose(stream.step(0), NU * np.stack([z + 2 * v, -2 * v]), rtol=1e-14)
        refuses(r"the secret of \{0, 1\} is missing", noise_stream, noise, NU, HolderKeys.given({(0,): private_key}), 4)
    silent = SpatioTemporalNoise(np.tri(3), np.zeros((2, 1)), np.ones((1, 2), dtype=bool), 2)
    for noise, nu in ((silent, NU), (StepNoise(F, holders, 3, 2), 0.0)):
        assert_array_equal(all_steps(noise_stream(noise, nu, HolderKeys.given({}), 5)), np.zeros((3, 2, 5)))


# ---- covariance -------------------------------------------------------------------------------------------
def allowance(scale, dim, entries):
    """How far entries of a sample covariance of `dim` Gaussian vectors may lie from the truth.

    By polarisation an entry is a difference of two chi-squares, and (Laurent and Massart) lies within
    sqrt(S_ii S_jj) (2 sqrt(x / D) + 2 x / D) of S_ij except with probability 4 e^-x. Here all entries hold at
    once but for a probability of 1e-9.
    """
    x = math.log(4 * entries / 1e-9)
    return np.sqrt(np.outer(np.diag(scale), np.diag(scale))) * (2 * math.sqrt(x / dim) + 2 * x / dim)


def planned(noise):
    """S (C^-1 (x) I)."""
    return noise.mixing @ np.kron(np.linalg.inv(noise.columns.encoder.dense()), np.eye(noise.columns_per_step))


def claimed(noise, inverse_gram):
    """sum_k (C_k^T C_k)^-1 (x) f_k f_k^T, or (C^T C)^-1 of joint noise, or N N^T of a user's."""
    if noise.joint is not None:
        return inverse_gram(noise.joint.array)
    if noise.causal is None:
        N = noise.dense if isinstance(noise, OwnNoise) else planned(noise)
        return N @ N.T
    columns = noise.causal.mixing.toarray().T
    return sum(np.kron(inverse_gram(noise.causal.column_encoder(k)), np.outer(f, f)) for k, f in enumerate(columns))


@pytest.mark.parametrize("kind", NOISY)
def test_the_covariance_of_the_noise_is_the_claimed_one_entrywise(kind):
    """False-alarm rate 1e-9 per case; the key is fixed, so the outcome is as well."""
    noise, D = example(kind, 4, decay=1.0), 40_000
    emitted = all_steps(noise_stream(noise, NU, KEY, D)).reshape(-1, D)
    wanted = NU**2 * claimed(noise, lambda C: np.linalg.inv(C.T @ C))
    allowed = allowance(wanted, D, wanted.size)
    covariance = emitted @ emitted.T / D
    assert (np.abs(covariance - wanted) <= allowed).all()
    if not noise.fresh and kind not in ("own", "scheduled"):  # the other orientation is far outside
        wrong = NU**2 * claimed(noise, lambda C: np.linalg.inv(C @ C.T))
        assert (np.abs(covariance - wrong) > 2 * allowed).any()


def test_coordinates_are_independent():
    """Between coordinates instead of within: T n samples of each; false-alarm rate 1e-9."""
    emitted = all_steps(noise_stream(IndependentNoise(200, 20), 1.0, KEY, 6)).reshape(-1, 6)
    covariance = emitted.T @ emitted / len(emitted)
    assert (np.abs(covariance - np.eye(6)) <= allowance(np.eye(6), len(emitted), 36)).all()


# ---- reuse and the end ------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", NOISY)
def test_no_two_keys_tensors_nodes_or_steps_share_noise(kind):
    """Each number alone: doubles of that precision collide by chance with probability below 1e-6."""
    noise, child = example(kind, 9, 3), KEY.derive("b", 1)
    keys = [KEY, NoiseKey.from_seed(8), KEY.derive("a"), child, KEY.derive("b", "1")]
    stream = [noise_stream(noise, 1.0, key, 40) for key in keys] + [noise_stream(noise, 1.0, KEY, 40, 1)]
    values = np.abs(np.concatenate([all_steps(rows).ravel() for rows in stream]))  # a sign flip is reuse as well
    assert len(np.unique(values)) == values.size == 6 * 9 * 3 * 40
    again = noise_stream(noise, 1.0, NoiseKey.from_seed(7).derive("b", 1), 40)
    assert_array_equal(all_steps(again), all_steps(stream[3]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_beyond_the_mechanism_is_an_error(kind):
    noise = example(kind, 6)
    stream = noise_stream(noise, NU, KEY, 2)
    assert stream.step(5).shape == (noise.slots_per_step, 2)
    for t in (6, 7, 32, 10**6, -1):
        refuses(rf"step must lie in \[0, 6\), got {t}.*calibrated for 6 steps", stream.step, t)


@pytest.mark.parametrize("kind", ["shared", "joint", "own"])
def test_products_that_take_minutes_are_announced(kind, monkeypatch):
    monkeypatch.setattr(stream, "LONG_WORK", 40 * 20 * 3 * 4 - 1)
    with pytest.warns(UnusualSetting, match="mfdl.factorization.encoders"):
        noise_stream(example(kind, 40), NU, KEY, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        noise_stream(example("banded", 40), NU, KEY, 4)
        noise_stream(example("independent", 40), NU, KEY, 4)


def test_base_noise_that_is_made_again_for_every_block_is_announced(monkeypatch):
    """In blocks of one step the normals of all earlier steps are made in each: far longer than the products."""
    monkeypatch.setattr(stream, "LONG_WORK", 40 * 20 * 3 * 4 * 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        noise_stream(example("shared", 40), NU, KEY, 4)
    for name in ("KEEP_BYTES", "BLOCK_BYTES"):
        monkeypatch.setattr(stream, name, 1)
    with pytest.warns(UnusualSetting, match="40 steps, 3 columns and 4 coordinates"):
        noise_stream(example("shared", 40), NU, KEY, 4)


SEED_KEY = NoiseKey.from_seed(3)


@st.composite
def steps_and_states(draw):
    """(kind, T, numbers, orders): what is asked for before a state is taken, and after."""
    T = draw(st.integers(1, 12))
    numbers = np.array(draw(st.lists(st.integers(-4, 4), min_size=8, max_size=8))) / 8
    step = st.integers(0, T - 1)
    return (
        draw(st.sampled_from(STRUCTURED)), T, numbers, draw(st.lists(step, max_size=5)),
        draw(st.lists(step, min_size=1, max_size=5)),
    )  # fmt: skip


@given(150, case=steps_and_states(), keep=st.booleans())
def test_resumed_anywhere_it_is_the_same_noise_bit_for_bit(case, keep):
    """From nothing or from a state, whatever was asked before: C^-1 Z of the written encoder, and no bit of another."""
    kind, T, numbers, before, after = case
    noise = LocalNoise(structured_encoder(kind, numbers, T), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "KEEP_BYTES", 2**30 if keep else 0)
        first, straight = noise_stream(noise, 1.0, SEED_KEY, 3), noise_stream(noise, 1.0, SEED_KEY, 3)
        for t in before:
            first.step(t)
        resumed = noise_stream(noise, 1.0, SEED_KEY, 3)
        resumed.resume(first.state())
        every = np.stack([straight.step(t) for t in range(T)])
        for t in after:
            assert_array_equal(resumed.step(t), every[t])
            assert_array_equal(first.step(t), every[t])
    wanted = np.linalg.solve(np.kron(noise.causal.encoder.dense(), np.eye(2)), base_noise(noise, SEED_KEY, 3))
    assert_allclose(every.reshape(T * 2, 3), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", STRUCTURED)
def test_a_state_of_another_stream_is_refused(kind):
    """Its rows would be added to noise of other normals: part of them for a second time."""
    noise = LocalNoise(structured_encoder(kind, np.linspace(-0.5, 0.5, 8), 9), 2)
    other = LocalNoise(structured_encoder(kind, np.linspace(-0.5, 0.25, 8), 9), 2)
    given_ = noise_stream(noise, 1.0, SEED_KEY, 3)
    given_.step(4)
    state = given_.state()
    assert state.position == 5
    streams = {
        "another key": noise_stream(noise, 1.0, NoiseKey.from_seed(4), 3),
        "another tensor": noise_stream(noise, 1.0, SEED_KEY, 3, 1),
        "another encoder": noise_stream(other, 1.0, SEED_KEY, 3),
        "fewer coordinates": noise_stream(noise, 1.0, SEED_KEY, 2),
        "one column": noise_stream(noise, 1.0, SEED_KEY, 3, slots=[0]),
    }
    for other_stream in streams.values():
        refuses("state must be of a stream", other_stream.resume, state)
    first, foreign = (noise_stream(noise, 1.0, SEED_KEY, 3, slots=[node]) for node in (0, 1))
    first.step(4)
    refuses("of the same encoder, keys, columns", lambda: foreign.resume(first.state()))
    refuses("state must be of a stream", lambda: given_.resume(StreamState(10, state.rows, state.mark)))
    refuses(r"state must be what NoiseStream\.state", given_.resume, 5)
    plain = noise_stream(example("shared", 9), 1.0, SEED_KEY, 3)
    plain.resume(plain.state())  # nothing is kept, nothing to go on from


def test_each_way_to_a_row_takes_the_steps_it_is_made_of(monkeypatch):
    inverse = LocalNoise(Inverse(Toeplitz([1.0, -0.5, 0.25], 50)), 1)
    buffered = LocalNoise(Buffered([0.5], [0.5], 50), 1)
    for noise, wanted in ((inverse, [38, 39, 40, 41, 8, 9, 10]), (buffered, [*range(42), *range(11)])):
        requested = []
        products = counted(noise, 4, requested)
        for t in (40, 41, 10):
            products.step(t)
        assert [start for start, _, _ in requested] == wanted
    monkeypatch.setattr(stream, "KEEP_BYTES", 0)
    requested = []
    counted(inverse, 4, requested).step(40)
    assert [start for start, _, _ in requested] == [40, 39, 38]


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
        noise_rows = noise_stream(LocalNoise(encoder, 1), 1.0, SEED_KEY, dim)
        tracemalloc.start()
        for t in (0, 1, 30, 31):
            noise_rows.step(t)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < rows * row + 8 * T * T, name
