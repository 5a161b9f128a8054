"""Noise streams: every one equals nu N Z of the same normals, has the claimed covariance, and ends where N ends."""

import math
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mfdl import gossip
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.operators import IndependentNoise, LocalNoise, NoiseOperator, StepNoise, ZeroNoise
from mfdl.participation import Cyclic
from mfdl.testing.oracles import dense_noising
from mfdl.testing.strategies import CHEAP_NAMES, NAMES, build_algorithm, random_encoder
from mfdl.training import streams
from mfdl.training.keys import NoiseKey, normals
from mfdl.training.shared_randomness import HolderKeys
from mfdl.training.streams import (
    IndependentStream,
    LocalStream,
    MaterialisedNoise,
    NoNoise,
    StepStream,
    noise_stream,
)

KEY = NoiseKey.from_seed(7)
DYN = Dynamics(gossip.uniform("star:n=3"), 0.3)
PART = Cyclic(epochs=2, period=3)
NU = 1.7
KINDS = {"none": NoNoise, "dp-dsgd": IndependentStream}


def all_steps(stream):
    return np.stack([stream.step(t) for t in range(stream.noise.num_steps)])


def base_noise(noise, key, dim, tensor=0):
    """Z one (step, column) at a time: the j-th column of a holder set is stream j of that set's key."""
    columns, seen = [], {}
    for held in noise.holders().toarray():
        holders = tuple(int(u) for u in np.flatnonzero(held))
        columns.append((key.derive("holders", *holders), seen.setdefault(holders, 0)))
        seen[holders] += 1
    rows = [normals(own, t, [j], dim, tensor=tensor) for t in range(noise.num_steps) for own, j in columns]
    return np.concatenate(rows) if rows else np.zeros((0, dim))


def dense_noise(algorithm, nu, key, dim):
    """nu N Z, dense."""
    Z = base_noise(algorithm.noise, key, dim)
    return (nu * dense_noising(algorithm) @ Z).reshape(algorithm.num_steps, algorithm.num_nodes, dim)


class Mixing(NoiseOperator):
    """Noise that no special stream knows: each step one column for all slots, minus that of the step before."""

    def __init__(self, num_steps, num_nodes):
        self.num_steps, self.num_nodes = num_steps, num_nodes
        self.dense = np.kron(np.eye(num_steps) - np.eye(num_steps, k=-1), np.arange(1.0, num_nodes + 1)[:, None])
        super().__init__(self.dense.shape)

    def _matmat(self, X):
        return self.dense @ X

    def _rmatmat(self, X):
        return self.dense.T @ X

    def variances(self):
        return (self.dense**2).sum(axis=1).reshape(self.num_steps, self.num_nodes)

    def holders(self):
        return sp.csr_array(np.ones((1, self.num_nodes), dtype=bool))


@st.composite
def step_noises(draw, max_nodes=4, max_columns=7):
    """Any small factor, zeros and unused columns included, and any holders, none and repeated sets included."""
    n, slots, columns = (
        draw(st.integers(1, max_nodes)),
        draw(st.integers(1, 5)),
        draw(st.integers(0, max_columns)),
    )
    entries = st.lists(st.integers(-3, 3), min_size=slots * columns, max_size=slots * columns)
    F = np.array(draw(entries), dtype=float).reshape(slots, columns)
    held = draw(st.lists(st.booleans(), min_size=columns * n, max_size=columns * n))
    holders = np.array(held, dtype=bool).reshape(columns, n)
    if slots == n:  # then a slot is a node's, which adds what it holds
        F = F * holders.T
    return StepNoise(F, holders, draw(st.integers(1, 4)), n)


# ---- equal to the definition ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_stream_is_nu_times_n_times_z(name):
    one = build_algorithm(name, DYN, PART)
    stream = noise_stream(one.noise, NU, KEY, 5)
    assert type(stream) is KINDS.get(name, LocalStream)
    wanted = dense_noise(one, NU, KEY, 5)
    assert_allclose(all_steps(stream), wanted, rtol=1e-10, atol=1e-11)
    assert_allclose(all_steps(MaterialisedNoise(one.noise, NU, KEY, 5)), wanted, rtol=1e-10, atol=1e-11)


@examples(60)
@given(
    name=st.sampled_from(CHEAP_NAMES),
    epochs=st.integers(1, 4),
    period=st.integers(1, 5),
    dim=st.integers(1, 7),
    block_steps=st.integers(1, 7),
    block_coordinates=st.integers(1, 4),
    keep=st.booleans(),
    data=st.data(),
)
def test_however_it_is_cut_into_blocks_and_asked_for(
    name, epochs, period, dim, block_steps, block_coordinates, keep, data
):
    one = build_algorithm(name, DYN, Cyclic(epochs, period), seed=dim)
    T = one.num_steps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "BLOCK_STEPS", block_steps)
        patch.setattr(streams, "BLOCK_COORDINATES", block_coordinates)
        patch.setattr(streams, "KEEP_BYTES", 2**30 if keep else 0)
        wanted = dense_noise(one, NU, KEY, dim)
        stream = noise_stream(one.noise, NU, KEY, dim)
        for t in data.draw(st.lists(st.integers(0, T - 1), min_size=1, max_size=2 * T)):
            assert_allclose(stream.step(t), wanted[t], rtol=1e-10, atol=1e-11)
        assert_allclose(all_steps(MaterialisedNoise(one.noise, NU, KEY, dim)), wanted, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["dp-dsgd", "mf-shared", "mf-per-node"])
def test_the_order_of_steps_changes_no_bit(name, monkeypatch):
    """More steps than a block holds; what a resumed run asks for equals what the first one got."""
    one = build_algorithm(name, DYN, Cyclic(5, 8))
    assert one.num_steps > streams.BLOCK_STEPS
    forward = all_steps(noise_stream(one.noise, NU, KEY, 4))
    order = np.random.default_rng(0).permutation(40)
    stream = noise_stream(one.noise, NU, KEY, 4)
    for t in (*order, *order[::-1], 39, 0):
        assert_array_equal(stream.step(int(t)), forward[t])
    for t in (0, 31, 32, 39):
        assert_array_equal(noise_stream(one.noise, NU, KEY, 4).step(t), forward[t])
    monkeypatch.setattr(streams, "KEEP_BYTES", 0)
    regenerated = noise_stream(one.noise, NU, KEY, 4)
    assert getattr(regenerated, "_kept", None) is None
    for t in order:
        assert_array_equal(regenerated.step(int(t)), forward[t])


def test_base_noise_is_kept_when_it_fits_and_is_the_same(monkeypatch):
    one = build_algorithm("mf-shared", DYN, Cyclic(5, 8))
    kept = LocalStream(one.noise, NU, KEY, 4)
    monkeypatch.setattr(streams, "KEEP_BYTES", 8 * 40 * 3 * 4 - 1)
    regenerated = LocalStream(one.noise, NU, KEY, 4)
    assert (kept._kept is None, regenerated._kept is None) == (False, True)
    assert_array_equal(all_steps(kept), all_steps(regenerated))


def test_noise_that_no_stream_knows_is_materialised():
    noise = Mixing(4, 3)
    stream = noise_stream(noise, NU, KEY, 300)  # more than one block of coordinates
    assert type(stream) is MaterialisedNoise
    Z = base_noise(noise, KEY, 300)
    assert_allclose(all_steps(stream), (NU * noise.dense @ Z).reshape(4, 3, 300), rtol=1e-12)


@settings(deadline=None)
@given(noise=step_noises(), dim=st.integers(1, 5), tensor=st.integers(0, 2**32 - 1))
def test_step_noise_is_nu_times_n_times_z(noise, dim, tensor):
    stream = noise_stream(noise, NU, KEY, dim, tensor)
    assert type(stream) is StepStream
    wanted = NU * np.kron(np.eye(noise.num_steps), noise.factor.toarray()) @ base_noise(noise, KEY, dim, tensor)
    wanted = wanted.reshape(noise.num_steps, -1, dim)
    assert_allclose(all_steps(stream), wanted, rtol=1e-12, atol=1e-12)
    assert_allclose(all_steps(MaterialisedNoise(noise, NU, KEY, dim, tensor)), wanted, rtol=1e-12, atol=1e-12)


def test_step_noise_keeps_no_noise_and_any_order_gives_the_same_bits():
    """Memory of a stream does not grow with the steps: nothing it holds has T or dim in its size."""
    noises = [StepNoise(np.tri(5), np.ones((5, 4), dtype=bool), T, 4) for T in (50, 5000)]
    streams_ = [noise_stream(noise, NU, KEY, 30) for noise in noises]
    for t in (*np.random.default_rng(0).permutation(50), 49, 0):
        assert_array_equal(streams_[0].step(int(t)), streams_[1].step(int(t)))
    short, long = (len(pickle.dumps(vars(s))) for s in streams_)
    assert abs(long - short) < 16
    assert short < 8 * 30 * 50


def test_streams_take_keys_that_were_agreed_on():
    noise = StepNoise(np.array([[1.0, 2.0], [0.0, -2.0]]), np.array([[1, 0], [1, 1]], dtype=bool), 3, 2)
    own, shared = NoiseKey.from_seed(1), NoiseKey.from_seed(2)
    stream = noise_stream(noise, NU, HolderKeys.given({(0,): own, (1, 0): shared}), 4)
    for t in range(3):
        z, v = normals(own, t, [0], 4)[0], normals(shared, t, [0], 4)[0]
        assert_allclose(stream.step(t), NU * np.stack([z + 2 * v, -2 * v]), rtol=1e-14)
    with pytest.raises(InvalidInput, match=r"the secret of \{0, 1\} is missing"):
        noise_stream(noise, NU, HolderKeys.given({(0,): own}), 4)


def test_tensors_do_not_share_noise():
    """Under one key and at one step; 2,000 normals that differ."""
    for noise in (IndependentNoise(2, 5), LocalNoise(np.eye(2), 5), StepNoise(np.eye(5), np.eye(5, dtype=bool), 2, 5)):
        made = np.concatenate([all_steps(noise_stream(noise, 1.0, KEY, 100, tensor)).ravel() for tensor in (0, 1)])
        assert len(np.unique(np.abs(made))) == 2000


@pytest.mark.parametrize("name", NAMES)
def test_without_noise_there_is_none(name):
    one = build_algorithm(name, DYN, PART)
    stream = noise_stream(one.noise, 0.0, KEY, 5)
    assert isinstance(stream, NoNoise)
    assert_array_equal(all_steps(stream), np.zeros((6, 3, 5)))


def test_noise_is_proportional_to_its_std():
    one = build_algorithm("mf-per-node", DYN, PART)
    twice, once = (all_steps(noise_stream(one.noise, nu, KEY, 5)) for nu in (2 * NU, NU))
    assert_allclose(twice, 2 * once, rtol=1e-14)


# ---- covariance -------------------------------------------------------------------------------------------

ENCODER = np.array([[1.0, 0, 0, 0], [2.0, 0.5, 0, 0], [-1.0, 1.0, 2.0, 0], [0, -1.5, 0.5, 1.0]])


def allowance(scale, dim, entries):
    """How far entries of a sample covariance of `dim` Gaussian vectors may lie from the truth.

    By polarisation an entry is a difference of two chi-squares, and (Laurent and Massart) lies within
    sqrt(S_ii S_jj) (2 sqrt(x / D) + 2 x / D) of S_ij except with probability 4 e^-x. Here all entries hold at
    once but for a probability of 1e-9.
    """
    x = math.log(4 * entries / 1e-9)
    return np.sqrt(np.outer(np.diag(scale), np.diag(scale))) * (2 * math.sqrt(x / dim) + 2 * x / dim)


@pytest.mark.parametrize("make", [noise_stream, MaterialisedNoise])
@pytest.mark.parametrize("kind", ["shared", "per-node", "independent", "mixing"])
def test_the_covariance_of_the_noise_is_the_claimed_one_entrywise(kind, make):
    """False-alarm rate 1e-9 per case; the key is fixed, so the outcome is as well."""
    n, D = 3, 40_000
    if kind == "independent":
        noise, wanted = IndependentNoise(4, n), np.eye(4 * n)
    elif kind == "mixing":
        noise = Mixing(4, n)
        wanted = noise.dense @ noise.dense.T
    else:
        C_u = [ENCODER] * n if kind == "shared" else [ENCODER, np.eye(4), np.tri(4)]
        noise = LocalNoise(ENCODER if kind == "shared" else np.stack(C_u), n)
        wanted = np.zeros((4, n, 4, n))
        for u, C in enumerate(C_u):
            wanted[:, u, :, u] = np.linalg.inv(C.T @ C)  # Cov = (C^T C)^-1, no noise shared by two nodes
        wanted = wanted.reshape(4 * n, 4 * n)
    emitted = all_steps(make(noise, NU, KEY, D)).reshape(4 * n, D)
    found = emitted @ emitted.T / D
    allowed = allowance(NU**2 * wanted, D, wanted.size)
    assert (np.abs(found - NU**2 * wanted) <= allowed).all()
    if kind in ("shared", "per-node"):  # the other orientation is far outside: (C C^T)^-1
        wrong = NU**2 * np.linalg.inv(ENCODER @ ENCODER.T)
        node_0 = np.ix_(np.arange(4) * n, np.arange(4) * n)
        assert (np.abs(found[node_0] - wrong) > 5 * allowed[node_0]).any()


def test_coordinates_are_independent():
    """Between coordinates instead of within: T n samples of each; false-alarm rate 1e-9."""
    noise = IndependentNoise(200, 20)
    emitted = all_steps(noise_stream(noise, 1.0, KEY, 6)).reshape(-1, 6)
    found = emitted.T @ emitted / len(emitted)
    assert (np.abs(found - np.eye(6)) <= allowance(np.eye(6), len(emitted), 36)).all()


# ---- reuse and the end ------------------------------------------------------------------------------------


def test_no_two_keys_nodes_or_steps_share_noise():
    """20,000 normals, each alone: doubles of that precision collide by chance with probability below 1e-6."""
    keys = [NoiseKey.from_seed(s) for s in range(4)] + [KEY.derive("a"), KEY.derive("b", 1), KEY.derive("b", "1")]
    rows = [
        noise_stream(IndependentNoise(9, 8), 1.0, key, 40).step(t)[u]
        for key in keys
        for t in range(9)
        for u in range(8)
    ]
    values = np.abs(np.concatenate(rows))  # a sign flip is reuse as well
    assert len(np.unique(values)) == values.size == len(keys) * 9 * 8 * 40


def test_streams_of_one_key_agree_and_of_two_keys_do_not():
    one = build_algorithm("mf-shared", DYN, PART)
    first, second, other = (
        all_steps(noise_stream(one.noise, NU, key, 200)) for key in (KEY, NoiseKey.from_seed(7), NoiseKey.from_seed(8))
    )
    assert_array_equal(first, second)
    cosine = np.sum(first * other) / np.linalg.norm(first) / np.linalg.norm(other)
    assert abs(cosine) < 0.2


@pytest.mark.parametrize(
    "noise",
    [
        IndependentNoise(6, 3),
        ZeroNoise(6, 3),
        LocalNoise(np.eye(6), 3),
        Mixing(6, 3),
        StepNoise(np.eye(3), np.eye(3, dtype=bool), 6, 3),
    ],
)
def test_a_step_beyond_the_mechanism_is_an_error(noise):
    stream = noise_stream(noise, NU, KEY, 2)
    assert stream.step(5).shape == (3, 2)
    for t in (6, 7, 32, 10**6, -1):
        with pytest.raises(InvalidInput, match=rf"step must lie in \[0, 6\), got {t}.*calibrated for 6 steps"):
            stream.step(t)


@pytest.mark.parametrize("per_node", [False, True])
def test_one_step_and_one_node(per_node):
    C = random_encoder(np.random.default_rng(0), 1, 1 if per_node else None)
    stream = noise_stream(LocalNoise(C, 1), NU, KEY, 3)
    assert_allclose(stream.step(0), NU * base_noise(stream.noise, KEY, 3) / C.item(), rtol=1e-14)
