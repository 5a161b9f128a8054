"""The theorem of secret bins against attackers: certified is above Monte Carlo, and both are above adaptive attacks."""

import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from mfdl.privacy.curves import BallsInBinsGaussian, correlations, importance
from mfdl.testing.oracles.curve_oracles import attacked


def gram_of(C, bins):
    V = np.abs(C).reshape(len(C), -1, bins).sum(axis=1)
    return V.T @ V


@st.composite
def attacks(draw, most_steps=3):
    """Causal C of any signs, bins, noise and a direction."""
    bins, epochs = draw(st.sampled_from([(b, k) for b in (1, 2, 3) for k in (1, 2, 3) if b * k <= most_steps]))
    T = bins * epochs
    entries = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])
    C = np.tril(np.array(draw(st.lists(entries, min_size=T * T, max_size=T * T))).reshape(T, T))
    C[np.diag_indices(T)] = np.where(np.diag(C) == 0, 1.0, np.diag(C))
    return C, bins, draw(st.floats(0.8, 2.5)), draw(st.sampled_from(["kept", "lost", "replaced"]))


def require_above_attacks(case):
    C, bins, sigma, way = case
    if way == "replaced" and len(C) > 3:
        C, bins = C[:3, :3], bins if 3 % bins == 0 else 1
    M = gram_of(C, bins)
    epsilons = np.array([0.0, 0.5, 1.5])
    true = attacked(C, bins, sigma, epsilons, way, 12 if len(C) < 3 else 6)
    adjacency = "replace-one" if way == "replaced" else "zero-out"
    stated = BallsInBinsGaussian(sigma / math.sqrt(M.diagonal().max()), bins, correlations(M), adjacency)
    pair = importance.Pair.of(M / sigma**2)
    mixture = pair.mixture(way, 0.5, 20000, 1e-6, np.random.default_rng(0))
    draws = pair.draws(way, mixture, 20000, np.random.default_rng(1))
    for epsilon, attack in zip(epsilons, true, strict=True):
        mean, second = draws.moments(epsilon)
        assert draws.upper(epsilon, pair.range_of(way, mixture, epsilon), 1e-6) >= attack
        assert stated.delta(epsilon) >= attack
        assert stated.delta(epsilon) >= mean - 5 * math.sqrt(second / 20000)


@examples(40)
@given(case=attacks(2))
def test_certified_is_above_monte_carlo_and_both_above_adaptive_attacks(case):
    require_above_attacks(case)


@pytest.mark.slow
@examples(300)
@given(case=attacks(4))
def test_certified_is_above_monte_carlo_and_both_above_longer_adaptive_attacks(case):
    require_above_attacks(case)


@pytest.mark.parametrize("way", ["kept", "lost", "replaced"])
def test_attacks_come_near_the_bound_where_the_encoder_is_positive(way):
    """So the attackers above are no straw men."""
    C, epsilons = np.array([[1.0, 0.0], [0.5, 1.0]]), np.array([0.0, 0.5])
    for bins in (1, 2):
        true = attacked(C, bins, 1.0, epsilons, way, 40)
        pair = importance.Pair.of(gram_of(C, bins))
        mixture = pair.mixture(way, 0.3, 20000, 1e-6, np.random.default_rng(0))
        means = [pair.draws(way, mixture, 60000, np.random.default_rng(1)).moments(e)[0] for e in epsilons]
        assert true == pytest.approx(means, rel=0.04)
