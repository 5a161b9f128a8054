"""Streams of noise over time and nodes: nu N Z of their own base noise, resumable anywhere, and made node by node."""

from __future__ import annotations

import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mfdl.errors import InvalidInput
from mfdl.operators import JointNoise, SpaceTimeNoise
from mfdl.testing.strategies import encoders, random_encoder
from mfdl.training import streams
from mfdl.training.keys import NoiseKey, normals
from mfdl.training.node_noise import node_stream
from mfdl.training.shared_randomness import HolderKeys, columns_by_holders
from mfdl.training.streams import JointStream, MaterialisedNoise, SpaceTimeStream, noise_stream

KEY = NoiseKey.from_seed(11)
NU = 1.7
KINDS = {"shared": SpaceTimeStream, "per column": SpaceTimeStream, "joint": JointStream}


def all_steps(stream):
    return np.stack([stream.step(t) for t in range(stream.noise.num_steps)])


def by_definition(noise, key, dim, tensor=0):
    """nu sum_s,k F[i, k] E_k[t, s] z_s[k], z_s[k] stream j of the key of its holders, the j-th of their columns."""
    columns, seen = [], {}
    for held in noise.holders().toarray():
        holders = tuple(int(u) for u in np.flatnonzero(held))
        columns.append((key.derive("holders", *holders), seen.setdefault(holders, 0)))
        seen[holders] += 1
    T, n = noise.num_steps, noise.num_nodes
    Z = np.stack([np.concatenate([normals(own, s, [j], dim, tensor=tensor) for own, j in columns]) for s in range(T)])
    if isinstance(noise, JointNoise):
        return NU * (np.linalg.inv(noise.encoder) @ Z.reshape(T * n, dim)).reshape(T, n, dim)
    E = np.stack([np.linalg.inv(noise.encoder_of(k)) for k in range(len(columns))])
    return NU * np.einsum("ik,kts,skd->tid", noise.factor.toarray(), E, Z)


@st.composite
def noises(draw, max_steps=6):
    """Factors of small integers, columns that nobody uses included; holders of any kind."""
    kind, T, n = draw(st.sampled_from(list(KINDS))), draw(st.integers(1, max_steps)), draw(st.integers(1, 3))
    if kind == "joint":
        return JointNoise(draw(encoders(size=T * n)), T, n)
    m = draw(st.integers(1, n + 2))
    F = np.array(draw(st.lists(st.integers(-2, 2), min_size=n * m, max_size=n * m)), dtype=float).reshape(n, m)
    more = draw(st.lists(st.booleans(), min_size=n * m, max_size=n * m))
    C = np.stack([draw(encoders(size=T)) for _ in range(1 if kind == "shared" else m)])
    return SpaceTimeNoise(C[0] if kind == "shared" else C, F, (F.T != 0) | np.array(more).reshape(m, n), n)


def example(kind, T, n=3, decay=0.2):
    """Private columns and one seed for nodes 0 and 1, or one seed for all."""
    rng = np.random.default_rng(2)
    if kind == "joint":
        return JointNoise(
            random_encoder(rng, T * n) * decay ** np.subtract.outer(range(T * n), range(T * n)).clip(0), T, n
        )
    F = np.hstack([np.eye(n), [[1.0, -2.0], [0.5, 1.0], [0.0, 0.0]]])
    C = random_encoder(rng, T, F.shape[1]) * decay ** np.subtract.outer(range(T), range(T)).clip(0)
    return SpaceTimeNoise(C[0] if kind == "shared" else C, F, F.T != 0, n)


@examples(100)
@given(
    noise=noises(),
    dim=st.integers(1, 5),
    tensor=st.integers(0, 3),
    block_steps=st.integers(1, 4),
    keep=st.booleans(),
    data=st.data(),
)
def test_however_it_is_cut_into_blocks_and_asked_for(noise, dim, tensor, block_steps, keep, data):
    T = noise.num_steps
    close = {"rtol": 1e-9, "atol": 1e-8}  # inverses of at most 18 steps, entries below 1.5^18 = 1500
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "BLOCK_STEPS", block_steps)
        patch.setattr(streams, "KEEP_BYTES", 2**30 if keep else 0)
        wanted = by_definition(noise, KEY, dim, tensor)
        stream = noise_stream(noise, NU, KEY, dim, tensor)
        for t in data.draw(st.lists(st.integers(0, T - 1), min_size=1, max_size=2 * T)):
            assert_allclose(stream.step(t), wanted[t], **close)
    assert_allclose(all_steps(MaterialisedNoise(noise, NU, KEY, dim, tensor)), wanted, **close)


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_anywhere_changes_no_bit(kind, monkeypatch):
    """More steps than a block holds: in any order, from a new stream, and without kept base noise."""
    noise = example(kind, 40)
    assert noise.num_steps > streams.BLOCK_STEPS
    first = noise_stream(noise, NU, KEY, 4)
    assert type(first) is KINDS[kind]
    forward = all_steps(first)
    assert_allclose(forward, by_definition(noise, KEY, 4), rtol=1e-9, atol=1e-9)
    order = np.random.default_rng(0).permutation(40)
    stream = noise_stream(noise, NU, KEY, 4)
    for t in (*order, 39, 0):
        assert_array_equal(stream.step(int(t)), forward[t])
    for t in (0, 17, 31, 32, 39):
        assert_array_equal(noise_stream(noise, NU, KEY, 4).step(t), forward[t])
    monkeypatch.setattr(streams, "KEEP_BYTES", 0)
    regenerated = noise_stream(noise, NU, KEY, 4)
    assert (first._kept is None, regenerated._kept is None) == (False, True)
    assert_array_equal(all_steps(regenerated), forward)
    with pytest.raises(InvalidInput, match="calibrated for 40 steps"):
        stream.step(40)
    with pytest.raises(ValueError, match="read-only"):
        stream.step(0)[...] = 0


def allowance(scale, dim, entries):
    """How far entries of a sample covariance of `dim` Gaussian vectors lie from the truth, but for a rate of 1e-9.

    By polarisation and Laurent and Massart: sqrt(S_ii S_jj) (2 sqrt(x / D) + 2 x / D), x = log(4 entries / 1e-9).
    """
    x = math.log(4 * entries / 1e-9)
    return np.sqrt(np.outer(np.diag(scale), np.diag(scale))) * (2 * math.sqrt(x / dim) + 2 * x / dim)


@pytest.mark.parametrize("kind", KINDS)
def test_the_covariance_is_the_claimed_one_entrywise(kind):
    """False-alarm rate 1e-9 per case; the key is fixed, so the outcome is as well. Columns and steps share nothing."""
    noise, D, T, n = example(kind, 4, decay=0.7), 40_000, 4, 3
    if kind == "joint":
        wanted = np.linalg.inv(noise.encoder.T @ noise.encoder)
    else:
        F = noise.factor.toarray()
        R = [np.linalg.inv(noise.encoder_of(k).T @ noise.encoder_of(k)) for k in range(F.shape[1])]
        wanted = sum(np.kron(R[k], np.outer(f, f)) for k, f in enumerate(F.T))
    emitted = all_steps(noise_stream(noise, NU, KEY, D)).reshape(T * n, D)
    off = np.abs(emitted @ emitted.T / D - NU**2 * wanted)
    assert (off <= allowance(NU**2 * wanted, D, wanted.size)).all()
    shown = np.abs(wanted) * NU**2 > allowance(NU**2 * wanted, D, wanted.size)
    across_steps = ~np.kron(np.eye(T, dtype=bool), np.ones((n, n), dtype=bool))
    across_nodes = ~np.kron(np.ones((T, T), dtype=bool), np.eye(n, dtype=bool))
    assert (shown & across_steps & across_nodes).any()  # correlations that the sample can tell from none


@examples(60)
@given(noise=noises(max_steps=4), dim=st.integers(1, 4))
def test_nodes_make_together_what_the_simulator_injects(noise, dim):
    """Each from the secrets of its own holder sets and no others."""
    simulated = HolderKeys.simulated(KEY)
    sets = columns_by_holders(noise)
    forward = all_steps(noise_stream(noise, NU, KEY, dim))
    for u in range(noise.num_nodes):
        own = HolderKeys.given({s: simulated.key_of(s) for s in sets if u in s})
        stream = node_stream(noise, u, own, NU, dim)
        for t in range(noise.num_steps):
            assert_allclose(stream.step(t), forward[t, [u]], rtol=1e-10, atol=1e-9)


def test_columns_that_nobody_adds_need_no_secret():
    F = np.array([[1.0, 0.0], [2.0, 0.0]])
    noise = SpaceTimeNoise(np.tri(3), F, np.array([[1, 1], [1, 0]], dtype=bool), 2)
    shared = NoiseKey.from_seed(1)
    stream = noise_stream(noise, NU, HolderKeys.given({(0, 1): shared}), 5)
    z = normals(shared, 0, [0], 5)[0]
    assert_allclose(stream.step(0), NU * np.stack([z, 2 * z]), rtol=1e-14)
    with pytest.raises(InvalidInput, match=r"the secret of \{0, 1\} is missing"):
        noise_stream(noise, NU, HolderKeys.given({(0,): shared}), 5)
    silent = SpaceTimeNoise(np.tri(3), np.zeros((2, 1)), np.ones((1, 2), dtype=bool), 2)
    assert_array_equal(all_steps(noise_stream(silent, NU, KEY, 5)), np.zeros((3, 2, 5)))


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_and_runs_do_not_share_noise(kind):
    """Under one key and at one step: no two of 600 injected numbers agree; another key, other noise."""
    noise = example(kind, 2)
    made = [all_steps(noise_stream(noise, 1.0, KEY, 50, tensor)).ravel() for tensor in (0, 1)]
    assert len(np.unique(np.abs(np.concatenate(made)))) == 600
    assert not np.isin(all_steps(noise_stream(noise, 1.0, NoiseKey.from_seed(12), 50)), made[0]).any()
    assert_array_equal(all_steps(noise_stream(noise, 1.0, KEY, 50)).ravel(), made[0])
