"""The theorem of secret bins against attackers: certified is above Monte Carlo, and both are above adaptive attacks."""

import itertools
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from mfdl.privacy import binned, importance
from mfdl.privacy.binned import BinnedGaussian


def gram_of(C, bins):
    V = np.abs(C).reshape(len(C), -1, bins).sum(axis=1)
    return V.T @ V


def attacked(C, bins, sigma, epsilons, way, cells):
    """Hockey sticks of the best policies that choose gradients in {-1, 0, 1} from what was seen: never above the sup.

    The attacker sees of each step in which of some cells its noise lies, and then the likelihood ratio of cells: no
    more than the transcript shows. By dynamic programming over all gradients and all cells: a step averages over its
    cells, then takes the best gradient. With a record replaced, gradients of both worlds are chosen.
    """
    T, twice = len(C), way == "replaced"
    edges = np.concatenate([[-np.inf], np.linspace(-2.5, 2.5, cells - 1), [np.inf]])
    weights = np.diff(ndtr(edges))
    choices = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=1 + twice)))
    number = len(choices)

    def axes(array, step, of_noise):  # axes are g_1, cell_1, g_2, cell_2, ...
        shape = [1] * (2 * T)
        shape[2 * step + of_noise] = len(array)
        return array.reshape(shape)

    def ratio(world):
        total = 0.0
        for r in range(bins):
            product = np.ones((1,) * (2 * T))
            for t in range(T):
                gradients = (C[t, s] * axes(choices[:, world], s, 0) for s in range(r, t + 1, bins))
                shift = sum(gradients, start=np.zeros((1,) * (2 * T))) / sigma
                inside = ndtr(axes(edges[1:], t, 1) - shift) - ndtr(axes(edges[:-1], t, 1) - shift)
                product = product * inside / axes(weights, t, 1)
            total = total + product
        return np.broadcast_to(total / bins, (number, cells) * T)

    S = ratio(0)
    other = ratio(1) if twice else 1.0
    found = []
    for epsilon in epsilons:
        a, b = (1.0, S) if way == "lost" else (S, other)
        value = np.clip(a - math.exp(epsilon) * b, 0.0, None)
        for _ in range(T):
            value = (value @ weights).max(axis=-1)
        found.append(float(value))
    return np.array(found)


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
    stated = BinnedGaussian(sigma / math.sqrt(M.diagonal().max()), bins, binned.correlations(M), adjacency)
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
