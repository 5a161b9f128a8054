"""Losses of known gradients, of first steps, and by neighbourhood: bounded by what attackers can reach."""

import dataclasses
import itertools
import math

import networkx as nx
import numpy as np
import pytest
from vocabulary import ZERO_OUT, assume, dynamics_on, each, given, refuses, st

import mfdl
from mfdl import BallsInBins, Cyclic, Dynamics, EveryStep, PoissonSampling, algorithms, gossip, trust
from mfdl.errors import UnsupportedMechanism
from mfdl.factorization import encoders, square_root_encoder
from mfdl.noise import JointNoise, LocalNoise, SpatioTemporalNoise
from mfdl.participation import Explicit, MinSeparation, OncePerEpoch, ParticipationByNode, Single
from mfdl.privacy.attacking_sets import sensitivity_by_victim
from mfdl.testing import gossip_matrices
from mfdl.trust import TrustModel, neighbourhood

T, N = 4, 3
RING = dynamics_on("ring:n=3", 0.5)
SCHEMES = {
    "every step": EveryStep(T), "cyclic": Cyclic(2, 2), "poisson": PoissonSampling(0.2, T),
    "bins": BallsInBins(2, 2), "one bin": BallsInBins(T, 1), "bins by samples": BallsInBins(2, 2),
}  # fmt: skip
ENCODER = np.eye(T) + 0.3 * np.eye(T, k=-1)
FACTOR = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.5, 0.0, 2.0]])
HELD = np.ones((N, N), dtype=bool)


def joint():
    rng = np.random.default_rng(0)
    return JointNoise(np.eye(T * N) + 0.2 * np.tril(rng.standard_normal((T * N, T * N)), -1), T, N)


NOISES = {
    "fresh": None,
    "shared by pairs": "decor",
    "of one encoder": LocalNoise(ENCODER, N),
    "of an encoder at each node": LocalNoise(np.stack([ENCODER, np.eye(T), ENCODER @ ENCODER]), N),
    "of one encoder, over nodes": SpatioTemporalNoise(ENCODER, FACTOR, HELD, N),
    "of an encoder for each column": SpatioTemporalNoise(np.stack([ENCODER, np.eye(T), ENCODER]), FACTOR, HELD, N),
    "joint": joint(),
}


def algorithm_of(noise, scheme):
    if NOISES[noise] == "decor":
        return algorithms.decor(RING, scheme, sigma_ldp=1.0, sigma_cor=2.0)
    algorithm = algorithms.dp_dsgd(RING, scheme)
    return algorithm if NOISES[noise] is None else dataclasses.replace(algorithm, noise=NOISES[noise])


def epsilon_of(algorithm, model, by_samples=False):
    """Of the worst victim at delta = 1e-5."""
    method = mfdl.privacy.MonteCarlo(samples=4096) if by_samples else "certified"
    drawn = {"method": method} if isinstance(algorithm.participation, PoissonSampling | BallsInBins) else {}
    return mfdl.account(algorithm, mfdl.Privacy(model, **drawn, **ZERO_OUT), noise_std=5.0).epsilon(1e-5)


@given(
    150, scheme=st.sampled_from(sorted(SCHEMES)), noise=st.sampled_from(sorted(NOISES)), victim=st.integers(0, N - 1),
    steps=st.sets(st.integers(0, T - 1), min_size=1), hidden=st.booleans(), known_noise=st.sets(st.integers(0, N - 1)),
    data=st.data(),
)  # fmt: skip
def test_a_known_gradient_is_no_secret_under_any_participation(scheme, noise, victim, steps, hidden, known_noise, data):
    """Of one step that a record may take part in, whoever else is known: infinite, or refused where nothing is."""
    algorithm = algorithm_of(noise, SCHEMES[scheme])
    known = np.array(data.draw(st.lists(st.lists(st.booleans(), min_size=N, max_size=N), min_size=T, max_size=T)))
    known[sorted(steps), victim] = True
    parts = np.isin(np.arange(algorithm.noise.columns_per_step), sorted(known_noise))
    seen = np.arange(N) < (N - 1 if hidden and scheme != "poisson" else N)
    model = TrustModel.from_masks(seen=seen, known_gradients=known, known_noise=parts)
    try:
        epsilon = epsilon_of(algorithm, model, scheme == "bins by samples")
    except UnsupportedMechanism as refusal:
        assert scheme in ("poisson", "bins", "one bin", "bins by samples")
        assert any(why in str(refusal) for why in ("know a part", "correlated over time"))  # noqa: PT017
        return
    assert epsilon == math.inf


@pytest.mark.parametrize("name", ["per-mode", "joint"])
def test_noise_over_both_hides_nothing_of_a_gradient_that_is_known(name):
    algorithm = algorithms.build(name, dynamics_on("ring:n=4", 0.5), BallsInBins(2, 3))
    of_first = np.array([True, False, False, False])
    model = TrustModel.from_masks(seen=np.ones(4, bool), known_gradients=of_first)
    guarantee = mfdl.account(algorithm, mfdl.Privacy(model, **ZERO_OUT), noise_std=5.0)
    assert guarantee.epsilon(1e-5) == math.inf
    assert "Infinite for node 0: the attacker knows the gradient of step 0" in guarantee.why
    for u, curve in guarantee.by_victim().items():
        assert (curve.epsilon(1e-5) == math.inf) == (u == "0")
    refuses("infinite loss", mfdl.calibrate, algorithm, mfdl.Privacy(model, **ZERO_OUT), epsilon=1.0, delta=1e-5)


def test_attackers_that_know_their_own_gradients_are_no_victims():
    algorithm = algorithm_of("joint", SCHEMES["bins"])
    of_first = np.array([True, False, False])
    nothing = np.zeros(algorithm.holders.shape[0], bool)
    model = TrustModel.from_masks(seen=np.ones(N, bool), known_gradients=of_first, known_noise=nothing, attackers=[0])
    assert 0 < epsilon_of(algorithm, model) <= epsilon_of(algorithm, trust.Eavesdropper()) < math.inf
    (loss,) = sensitivity_by_victim(dataclasses.replace(algorithm, participation=Cyclic(2, 2)), model, victims=[0])
    assert loss.adaptive_sensitivity_squared == math.inf


def loss(built, model, victim, release):
    (of_victim,) = sensitivity_by_victim(built, model, victims=[victim], release=release)
    return of_victim


@given(
    60, W=gossip_matrices(min_nodes=3, max_nodes=7), data=st.data(), radius=st.integers(0, 3),
    correlated=st.booleans(), release=st.sampled_from(["none", "all"]),
)  # fmt: skip
def test_a_neighbourhood_loses_what_the_graph_loses_to_one_who_is_told_more(W, data, radius, correlated, release):
    victim, attacker = data.draw(st.permutations(range(W.num_nodes)).map(lambda order: order[:2]))
    near, scheme = neighbourhood(W, victim, [attacker], radius=radius, release=release), Cyclic(epochs=2, period=2)

    def built(matrix):
        dynamics = Dynamics(matrix, 0.5)
        if correlated:
            return algorithms.mf_dsgd(dynamics, scheme, square_root_encoder(4))
        return algorithms.dp_dsgd(dynamics, scheme)

    whole, inside = built(W), loss(built(near.gossip), near.trust, near.victim, release)
    seen, attacks = np.ones(W.num_nodes, dtype=bool), np.arange(W.num_nodes) == attacker
    seen[near.nodes[near.hidden]] = False
    informed = TrustModel.from_masks(
        seen=seen, known_gradients=attacks, known_noise=attacks, attackers=[attacker], release=release
    )
    same, pndp = (loss(whole, model, victim, release) for model in (informed, trust.PNDP([attacker])))
    assume(np.isfinite(same.sensitivity_squared))
    assert inside.sensitivity_squared == pytest.approx(same.sensitivity_squared, rel=1e-6)
    assert inside.adaptive_sensitivity_squared >= same.adaptive_sensitivity_squared * (1 - 1e-6)
    assert inside.sensitivity_squared >= pndp.sensitivity_squared * (1 - 1e-6)


def test_a_victim_among_a_hundred_thousand_comes_closer_with_the_radius():
    ring = gossip.metropolis_hastings("ring:n=100000")
    collected = []
    for radius in (0, 1, 4, 7):
        near = neighbourhood(ring, 50, [46], radius=radius)
        built = algorithms.dp_dsgd(Dynamics(near.gossip), Cyclic(epochs=4, period=2))
        collected.append(loss(built, near.trust, near.victim, "none").sensitivity_squared)
    small = algorithms.dp_dsgd(dynamics_on("ring:n=40"), Cyclic(epochs=4, period=2))
    exact = loss(small, trust.PNDP([6]), 10, "none").sensitivity_squared
    assert collected == sorted(collected, reverse=True)
    assert collected[0] > 2 * collected[-1]
    assert exact * (1 - 1e-9) <= collected[-1] <= 1.05 * exact


def test_refusals():
    W = gossip.metropolis_hastings("ring:n=5")
    for victim, attackers in ((0, [0]), (5, [1]), (0, [7]), (0, [])):
        refuses("different nodes below 5", neighbourhood, W, victim, attackers)


NODES, STEPS = 3, 6
GOSSIP = mfdl.gossip.metropolis_hastings(nx.cycle_graph(NODES))
STEP_SCHEMES = [
    mfdl.Cyclic(3, 2), mfdl.Cyclic(2, 3), mfdl.EveryStep(6), Single(6), OncePerEpoch(3, 2),
    MinSeparation(6, max_participations=3, separation=2),
]  # fmt: skip


def encoder(kind, rng):
    lower = np.tril(rng.uniform(-0.6, 0.9, (STEPS, STEPS)))
    np.fill_diagonal(lower, rng.uniform(0.5, 1.5, STEPS))
    series = np.concatenate([[1.0], rng.uniform(-0.5, 0.5, 2)])
    bands = np.where(np.arange(3) <= np.arange(STEPS)[:, None], rng.uniform(-0.5, 0.5, (STEPS, 3)), 0.0)
    bands[:, 0] = rng.uniform(0.5, 1.5, STEPS)
    return {
        "dense": lambda: encoders.Dense(lower),
        "toeplitz": lambda: encoders.Toeplitz(series, STEPS),
        "banded": lambda: encoders.Banded(bands),
        "inverse": lambda: encoders.Inverse(encoders.Banded(bands)),
        "buffered": lambda: encoders.Buffered([0.4, -0.2], [0.7, 0.3], STEPS),
        "identity": lambda: encoders.Identity(STEPS),
    }[kind]()


KINDS = ["dense", "toeplitz", "banded", "inverse", "buffered", "identity"]


@given(100, kind=st.sampled_from(KINDS), k=st.integers(1, STEPS), seed=st.integers(0, 99))
def test_the_leading_part_of_an_encoder_makes_the_noise_of_the_first_steps(kind, k, seed):
    rng = np.random.default_rng(seed)
    whole = encoder(kind, rng)
    part, z = whole.leading(k), rng.standard_normal((STEPS, 2))
    assert part.size == k
    np.testing.assert_allclose(part.dense(), whole.dense()[:k, :k], atol=1e-12)
    np.testing.assert_allclose(part.solve(z[:k]), whole.solve(z)[:k], atol=1e-9)


@given(100, scheme=st.sampled_from(STEP_SCHEMES), steps=st.integers(1, STEPS))
def test_a_shorter_scheme_allows_what_the_whole_one_allows_so_far(scheme, steps):
    short = scheme.first_steps(steps)
    assert steps <= short.num_steps <= STEPS
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


@given(
    60, kind=st.sampled_from(KINDS), scheme=st.sampled_from(STEP_SCHEMES), seed=st.integers(0, 99),
    steps=st.integers(1, STEPS),
)  # fmt: skip
def test_the_loss_of_the_first_steps_lies_between_what_is_reached_and_that_of_the_whole(kind, scheme, seed, steps):
    given_encoder = encoder(kind, np.random.default_rng(seed))
    noise = LocalNoise(given_encoder, NODES)
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(GOSSIP, 0.3), scheme)
    algorithm = dataclasses.replace(algorithm, noise=noise)
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), noise_std=2.0)
    so_far = mechanism.guarantee_after(steps)
    assert so_far.mu >= reached(given_encoder.dense(), scheme, steps) / 2.0 * (1 - 1e-9)
    assert so_far.mu <= mechanism.guarantee.mu
    if scheme.first_steps(steps).num_steps < STEPS:
        assert so_far.mu <= reached_bound(given_encoder.dense(), scheme.first_steps(steps)) / 2.0 * (1 + 1e-6)


def reached_bound(C, short):
    """Of the absolute Gram matrix: an upper bound on any sensitivity over the scheme."""
    X = np.abs(C[: short.num_steps, : short.num_steps].T @ C[: short.num_steps, : short.num_steps])
    return max(float(np.sqrt(X[np.ix_(p, p)].sum())) for p in short.patterns())


def calibrated(algorithm, trust, **more):
    return mfdl.calibrate(algorithm, mfdl.Privacy(trust, **more, **ZERO_OUT), mu=1.0)


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


@each(
    "scheme, trust",
    (ParticipationByNode([mfdl.Cyclic(3, 2), mfdl.Cyclic(2, 3), mfdl.Cyclic(3, 2)]), mfdl.trust.LDP()),
    (Explicit([[0, 5], [1, 2, 4], [3]], 6), mfdl.trust.LDP()),
    (mfdl.Cyclic(3, 2), mfdl.trust.PNDP([0])),
)
def test_where_nothing_can_be_cut_the_number_of_the_whole_is_given(scheme, trust):
    whole = calibrated(mfdl.algorithms.dp_dsgd(mfdl.Dynamics(GOSSIP, 0.3), scheme), trust)
    assert whole.guarantee_after(1) is whole.guarantee
    assert whole.guarantee_after(0) is None
    assert whole.guarantee_after(STEPS) is whole.guarantee
    refuses("steps must be at most 6", whole.guarantee_after, STEPS + 1)
