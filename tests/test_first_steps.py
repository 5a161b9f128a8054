"""The privacy loss of the first steps: bounded below by what an attacker can reach, above by the whole run."""

import dataclasses
import itertools

import networkx as nx
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

import mfdl
from mfdl.factorization import encoders
from mfdl.noise import LocalNoise
from mfdl.participation import Explicit, MinSeparation, OncePerEpoch, ParticipationByNode, Single

NODES, T = 3, 6
GOSSIP = mfdl.gossip.metropolis_hastings(nx.cycle_graph(NODES))
SCHEMES = [
    mfdl.Cyclic(3, 2),
    mfdl.Cyclic(2, 3),
    mfdl.EveryStep(6),
    Single(6),
    OncePerEpoch(3, 2),
    MinSeparation(6, max_participations=3, separation=2),
]


def encoder(kind, rng):
    lower = np.tril(rng.uniform(-0.6, 0.9, (T, T)))
    np.fill_diagonal(lower, rng.uniform(0.5, 1.5, T))
    series = np.concatenate([[1.0], rng.uniform(-0.5, 0.5, 2)])
    bands = np.where(np.arange(3) <= np.arange(T)[:, None], rng.uniform(-0.5, 0.5, (T, 3)), 0.0)
    bands[:, 0] = rng.uniform(0.5, 1.5, T)
    return {
        "dense": lambda: encoders.Dense(lower),
        "toeplitz": lambda: encoders.Toeplitz(series, T),
        "banded": lambda: encoders.Banded(bands),
        "inverse": lambda: encoders.Inverse(encoders.Banded(bands)),
        "buffered": lambda: encoders.Buffered([0.4, -0.2], [0.7, 0.3], T),
        "identity": lambda: encoders.Identity(T),
    }[kind]()


KINDS = ["dense", "toeplitz", "banded", "inverse", "buffered", "identity"]


@examples(100)
@given(kind=st.sampled_from(KINDS), k=st.integers(1, T), seed=st.integers(0, 99))
def test_the_leading_part_of_an_encoder_makes_the_noise_of_the_first_steps(kind, k, seed):
    rng = np.random.default_rng(seed)
    whole = encoder(kind, rng)
    part, z = whole.leading(k), rng.standard_normal((T, 2))
    assert part.size == k
    np.testing.assert_allclose(part.dense(), whole.dense()[:k, :k], atol=1e-12)
    np.testing.assert_allclose(part.solve(z[:k]), whole.solve(z)[:k], atol=1e-9)


@examples(100)
@given(scheme=st.sampled_from(SCHEMES), steps=st.integers(1, T))
def test_a_shorter_scheme_allows_what_the_whole_one_allows_so_far(scheme, steps):
    short = scheme.first_steps(steps)
    assert steps <= short.num_steps <= T
    for pattern in scheme.patterns():
        if early := [int(t) for t in pattern if t < steps]:
            assert short.allows(early)


def reached(C, scheme, steps):
    """The largest norm of the first rows over patterns and gradients +-1 of one coordinate: a lower bound."""
    best = 0.0
    for pattern in scheme.patterns():
        columns = C[:steps, [t for t in pattern if t < steps]]
        for signs in itertools.product([-1.0, 1.0], repeat=columns.shape[1]):
            best = max(best, float(np.linalg.norm(columns @ np.array(signs))))
    return best


@examples(60)
@given(kind=st.sampled_from(KINDS), scheme=st.sampled_from(SCHEMES), seed=st.integers(0, 99), steps=st.integers(1, T))
def test_the_loss_of_the_first_steps_lies_between_what_is_reached_and_that_of_the_whole(kind, scheme, seed, steps):
    given_encoder = encoder(kind, np.random.default_rng(seed))
    noise = LocalNoise(given_encoder, NODES)
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(GOSSIP, 0.3), scheme)
    algorithm = dataclasses.replace(algorithm, noise=noise)
    mechanism = mfdl.calibrate(
        algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0), noise_std=2.0
    )
    so_far = mechanism.guarantee_after(steps)
    assert so_far.mu >= reached(given_encoder.dense(), scheme, steps) / 2.0 * (1 - 1e-9)
    assert so_far.mu <= mechanism.guarantee.mu
    if scheme.first_steps(steps).num_steps < T:
        assert so_far.mu <= reached_bound(given_encoder.dense(), scheme.first_steps(steps)) / 2.0 * (1 + 1e-6)


def reached_bound(C, short):
    """Of the absolute Gram matrix: an upper bound on any sensitivity over the scheme."""
    X = np.abs(C[: short.num_steps, : short.num_steps].T @ C[: short.num_steps, : short.num_steps])
    return max(float(np.sqrt(X[np.ix_(p, p)].sum())) for p in short.patterns())


def calibrated(algorithm, trust, **more):
    return mfdl.calibrate(algorithm, mfdl.Privacy(trust, adjacency="zero-out", clip_norm=1.0, **more), mu=1.0)


DYNAMICS = mfdl.Dynamics(GOSSIP, [0.5, 0.4, 0.3, 0.3, 0.2, 0.1], gossip_rounds=2)


def test_rounds_and_a_schedule_are_cut():
    algorithm = mfdl.algorithms.mafalda(DYNAMICS, mfdl.Cyclic(3, 2))
    part = algorithm.first_steps(3)
    assert (part.num_steps, len(part.rounds)) == (4, 8)
    assert part.dynamics.learning_rates(4).tolist() == [0.5, 0.4, 0.3, 0.3]
    sent, of_whole = (x.messages_from_gradients.to_dense() for x in (part, algorithm))
    np.testing.assert_array_equal(sent, of_whole[: len(sent), : sent.shape[1]])
    noise, of_whole = part.noise.to_dense(), algorithm.noise.to_dense()
    np.testing.assert_allclose(noise, of_whole[: len(noise), : noise.shape[1]], atol=1e-12)


@pytest.mark.parametrize(
    ("scheme", "trust"),
    [
        (ParticipationByNode([mfdl.Cyclic(3, 2), mfdl.Cyclic(2, 3), mfdl.Cyclic(3, 2)]), mfdl.trust.LDP()),
        (Explicit([[0, 5], [1, 2, 4], [3]], 6), mfdl.trust.LDP()),
        (mfdl.Cyclic(3, 2), mfdl.trust.PNDP([0])),
    ],
)
def test_where_nothing_can_be_cut_the_number_of_the_whole_is_given(scheme, trust):
    whole = calibrated(mfdl.algorithms.dp_dsgd(mfdl.Dynamics(GOSSIP, 0.3), scheme), trust)
    assert whole.guarantee_after(1) is whole.guarantee
    assert whole.guarantee_after(0) is None
    assert whole.guarantee_after(T) is whole.guarantee
    refuses("steps must be at most 6", whole.guarantee_after, T + 1)
