"""Whoever knows a gradient of the victim is told everything, under every participation, noise and trust model."""

import dataclasses
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import mfdl
from mfdl import BallsInBins, Cyclic, Dynamics, EveryStep, PoissonSampling, Privacy, algorithms, gossip, trust
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.noise import JointNoise, LocalNoise, SpatioTemporalNoise
from mfdl.noise_scale import account
from mfdl.privacy.attacking_sets import sensitivity_by_victim
from mfdl.trust import TrustModel

T, N = 4, 3
RING = Dynamics(gossip.metropolis_hastings("ring:n=3"), 0.5)
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
    options = {"trust": model, "adjacency": "zero-out", "clip_norm": 1.0}
    if isinstance(algorithm.participation, PoissonSampling | BallsInBins):
        method = mfdl.privacy.MonteCarlo(samples=4096) if by_samples else "certified"
        return mfdl.account(algorithm, mfdl.Privacy(method=method, **options), noise_std=5.0).epsilon(1e-5)
    return account(algorithm, Privacy(**options), noise_std=5.0).epsilon(1e-5)


@examples(150)
@given(
    scheme=st.sampled_from(sorted(SCHEMES)), noise=st.sampled_from(sorted(NOISES)), victim=st.integers(0, N - 1),
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
    algorithm = algorithms.build(name, Dynamics(gossip.metropolis_hastings("ring:n=4"), 0.5), BallsInBins(2, 3))
    options = {"adjacency": "zero-out", "clip_norm": 1.0}
    of_first = np.array([True, False, False, False])
    model = TrustModel.from_masks(seen=np.ones(4, bool), known_gradients=of_first)
    guarantee = mfdl.account(algorithm, mfdl.Privacy(model, **options), noise_std=5.0)
    assert guarantee.epsilon(1e-5) == math.inf
    assert "Infinite for node 0: the attacker knows the gradient of step 0" in guarantee.why
    for u, curve in guarantee.by_victim().items():
        assert (curve.epsilon(1e-5) == math.inf) == (u == "0")
    with pytest.raises(InvalidInput, match="infinite loss"):
        mfdl.calibrate(algorithm, mfdl.Privacy(model, adjacency="zero-out", clip_norm=1.0), epsilon=1.0, delta=1e-5)


def test_attackers_that_know_their_own_gradients_are_no_victims():
    algorithm = algorithm_of("joint", SCHEMES["bins"])
    of_first = np.array([True, False, False])
    nothing = np.zeros(algorithm.holders.shape[0], bool)
    model = TrustModel.from_masks(seen=np.ones(N, bool), known_gradients=of_first, known_noise=nothing, attackers=[0])
    assert 0 < epsilon_of(algorithm, model) <= epsilon_of(algorithm, trust.Eavesdropper()) < math.inf
    (loss,) = sensitivity_by_victim(dataclasses.replace(algorithm, participation=Cyclic(2, 2)), model, victims=[0])
    assert loss.adaptive_sensitivity_squared == math.inf
