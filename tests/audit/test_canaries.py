"""Canaries and what attackers read: views equal what runs emit, and signs and patterns that show most are tried."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.linalg
from last_bits import nudged
from vocabulary import dynamics_on, given, st

from mfdl import Cyclic, EveryStep, MinSeparation, NoiseKey
from mfdl.algorithms import registry
from mfdl.audit import Training
from mfdl.audit.canaries import ALONG, SPREAD, _strongest, best_signs, candidates, large_signs, learned, tried_patterns
from mfdl.audit.observation import COORDINATES, Observation
from mfdl.participation import Explicit, OncePerEpoch
from mfdl.training.shared_randomness import HolderKeys, base_columns
from mfdl.trust import LDP, PNDP, Central, Colluding, Eavesdropper, ReleasedOnly

DYNAMICS = dynamics_on("path:n=4", 0.5)
VIEWS = {
    "local": ("mafalda", LDP()), "edges known": ("decor", LDP()), "eavesdropper": ("decor", Eavesdropper()),
    "colluders": ("corn", Colluding([1])), "hidden messages": ("anti-pgd", PNDP([3])), "average": ("bsr", Central()),
    "released": ("dp-dsgd", ReleasedOnly()), "several rounds": ("muffliato", PNDP([0])),
}  # fmt: skip


def build(name):
    return registry.build(name, DYNAMICS, Cyclic(epochs=2, period=2))


@pytest.mark.parametrize("case", VIEWS)
@pytest.mark.parametrize("feedback", [0.0, -0.7])
def test_what_is_seen_of_a_run_is_the_view_of_its_gradients_and_unknown_noise(case, feedback):
    name, trust = VIEWS[case]
    algorithm, rng = build(name), np.random.default_rng(0)
    T, n = algorithm.num_steps, algorithm.num_nodes
    view = Observation.from_trust(algorithm, trust, 2).with_feedback(feedback)
    gradients = rng.standard_normal((T, n, COORDINATES)) / 10  # below the clipping norm
    gradients[view.knowledge.known_gradients] = 0.0
    key = NoiseKey.from_seed(4)
    run = Training(algorithm, noise_std=0.3, clip_norm=1.0).run(gradients, view.feedback, trials=1, key=key)
    Z = base_columns(algorithm.noise, HolderKeys.simulated(key)).block(np.arange(T), COORDINATES)
    Z = Z.reshape(-1, COORDINATES) * ~view.known_noise[:, None]
    expected = view.gradients @ gradients.reshape(T * n, -1) + 0.3 * view.noise @ Z
    np.testing.assert_allclose(view.rows(run, key, 0.3), expected, atol=1e-9)


def test_a_view_without_rows_has_as_many_trials_as_any():
    view = Observation.from_trust(build("dp-dsgd"), ReleasedOnly(), 0, release="none")
    assert view.by_trial(np.zeros((0, 5 * COORDINATES))).shape == (5, 0, COORDINATES)
    np.testing.assert_array_equal(view.by_trial(np.arange(12.0).reshape(2, 6))[1], [[2, 3], [8, 9]])


@pytest.mark.parametrize("case", VIEWS)
def test_whitened_columns_give_the_gram_of_the_pseudo_inverse(case):
    name, trust = VIEWS[case]
    view = Observation.from_trust(build(name), trust, 2)
    A, B = view.victim_columns(2), view.noise[:, ~view.known_noise]
    white = view.whitener() @ A
    np.testing.assert_allclose(white.T @ white, A.T @ np.linalg.pinv(B @ B.T, rcond=1e-12) @ A, atol=1e-8)


@pytest.mark.parametrize(
    "scheme",
    [  # more patterns than are enumerated
        OncePerEpoch(epochs=3, period=17),
        OncePerEpoch(epochs=13, period=2),
        MinSeparation(steps=40, max_participations=4, separation=3),
        Explicit(list(itertools.combinations(range(1, 21), 4)), steps=22),
    ],
    ids=["once per epoch", "few steps an epoch", "min-separation", "explicit"],
)
def test_of_many_patterns_those_that_are_tried_hold_every_step_that_a_record_can_join(scheme):
    admissible = {frozenset(pattern.tolist()) for pattern in scheme.patterns()}
    joined, rng = set().union(*admissible), np.random.default_rng(1)
    square = rng.standard_normal((scheme.num_steps, scheme.num_steps)) * rng.uniform(0.01, 1, scheme.num_steps)
    tried = {frozenset(pattern) for pattern in tried_patterns(square.T @ square, scheme)}
    assert tried <= admissible
    assert set().union(*tried) == joined
    assert len(tried) <= scheme.num_steps + 1
    for step in range(0, scheme.num_steps, 7):
        gram = np.eye(scheme.num_steps)
        gram[step, step] = 9.0
        signs, value = best_signs(gram, scheme)
        assert frozenset(np.flatnonzero(signs).tolist()) in admissible
        assert (value, (signs[step] != 0)) == (signs @ gram @ signs, (step in joined))


@given(
    20,
    data=st.data(),
    scheme=st.sampled_from(
        [OncePerEpoch(2, 3), MinSeparation(7, 3, 2), Cyclic(3, 4), EveryStep(12), Explicit([[1], [0, 3], [0, 2, 4]], 5)]
    ),
)
def test_signs_of_every_pattern_are_tried_where_patterns_are_few(data, scheme):
    T = scheme.num_steps
    square = np.array(data.draw(st.lists(st.lists(st.integers(-3, 3), min_size=T, max_size=T), min_size=3, max_size=3)))
    gram, largest = (square.T @ square).astype(float), 0.0
    for pattern in scheme.patterns():
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(pattern))))
        largest = max(largest, float(((signs @ square.T[pattern]) ** 2).sum(axis=1).max()))
    best, value = best_signs(gram, scheme)
    assert best @ gram @ best == value
    if max(pattern.size for pattern in scheme.patterns()) <= 10:
        assert value == largest
    else:  # improved one by one until no single sign is better the other way
        assert ((square @ (best[:, None] * (1 - 2 * np.eye(T)))) ** 2).sum(axis=0).max() <= value <= largest


@given(
    40, lags=st.lists(st.integers(-3, 3), min_size=11, max_size=11),
    scheme=st.sampled_from([OncePerEpoch(6, 2), MinSeparation(12, 3, 4), Cyclic(3, 4), EveryStep(12)]),
    count=st.integers(1, 3), seed=st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_of_patterns_and_signs_that_show_the_same_the_last_bits_choose_none(lags, scheme, count, seed):
    gram = scipy.linalg.toeplitz([20.0, *lags])
    strongest, near = (_strongest(X, scheme, count) for X in (gram, nudged(gram, seed)))
    assert [signs.tolist() for signs, _ in near] == [signs.tolist() for signs, _ in strongest]


@given(20, seed=st.integers(0, 2**32 - 1))
def test_of_patterns_that_are_not_all_tried_the_last_bits_choose_none(seed):
    scheme = OncePerEpoch(3, 17)
    signs, _ = best_signs(nudged(np.eye(51), seed), scheme)
    assert np.flatnonzero(signs).tolist() == np.flatnonzero(best_signs(np.eye(51), scheme)[0]).tolist() == [0, 17, 34]


@pytest.mark.parametrize("size", [11, 12])
def test_a_repeated_eigenvalue_gives_the_same_signs_in_every_basis(monkeypatch, size):
    X = scipy.linalg.block_diag(*[np.ones((block, block)) for block in (4, 4, size - 8)])
    plain = large_signs(X[None])[0]
    values, vectors = np.linalg.eigh(X)
    turned = vectors.copy()
    turned[:, -2:] = turned[:, -2:] @ np.array([[0.6, 0.8], [-0.8, 0.6]])
    monkeypatch.setattr(np.linalg, "eigh", lambda X: (values[None], -turned[None]))
    np.testing.assert_array_equal(large_signs(X[None])[0], plain)


@pytest.mark.parametrize("seed", range(4))
def test_of_nodes_that_lose_the_same_the_first_one_has_the_further_canaries(monkeypatch, seed):
    algorithm = registry.build("decor", dynamics_on("ring:n=6", 0.5), Cyclic(epochs=2, period=2))
    whitener, numbers = Observation.whitener, itertools.count(100 * seed)
    monkeypatch.setattr(Observation, "whitener", lambda view: nudged(whitener(view), next(numbers)))
    chosen = candidates(algorithm, LDP(), range(6))
    assert [canary.victim for canary in chosen[:6]] == list(range(6))
    assert {canary.victim for canary in chosen[6:]} == {0}
    assert all(canary.steps == (0, 2) for canary in chosen if canary.name == "worst gradients")


def test_the_canary_chosen_from_runs_is_the_worst_compared_with_its_claim_and_where_the_noise_is_weak():
    near, far = (each for each in candidates(build("dp-dsgd"), LDP(), [0, 3]) if each.name == "worst gradients")
    precision = near.view.whitener().T @ near.view.whitener()
    for claims, victim in (({0: 1.0, 3: 0.5}, 3), ({0: 0.5, 3: 1.0}, 0)):
        assert learned([near, far], [precision, precision], claims).victim == victim
    tried = [dataclasses.replace(near, direction=along) for along in (ALONG, SPREAD)]
    for sizes, direction in (((1, 2), SPREAD), ((2, 1), ALONG)):
        assert learned(tried, [size * precision for size in sizes], {0: 1.0}).direction is direction
