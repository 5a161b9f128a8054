"""One combination of each round's messages: the structured form against the dense one, and when it is refused."""

import dataclasses

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl import Cyclic, Dynamics, EveryStep, Privacy, algorithms, calibrate, gossip, trust
from mfdl.gossip import GossipMatrix
from mfdl.privacy import sensitivity_by_victim
from mfdl.privacy.adaptive import is_adaptive
from mfdl.privacy.forms import known_states as combination_form
from mfdl.privacy.forms import view_gram
from mfdl.privacy.forms.known_states import Combination, is_multiple
from mfdl.testing import gossip_matrices, of_node, pinv_gram
from mfdl.trust.view import AlgorithmView

RING = gossip.metropolis_hastings("ring:n=4")


@st.composite
def server_algorithms(draw):
    """Any noise fresh in every step under complete averaging; node 0 may weigh its gradient by a public divisor."""
    n, T = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    matrix = gossip.from_array(np.full((n, n), 1.0 / n))
    dynamics = Dynamics(matrix, learning_rate=draw(st.sampled_from([1.0, 0.3])))
    part = EveryStep(T)
    if draw(st.booleans()):
        algorithm = algorithms.cdp(dynamics, part)
    else:
        F = np.array(draw(st.lists(st.integers(-2, 2), min_size=n * n, max_size=n * n))).reshape(n, n)
        algorithm = algorithms.spatial_covariance(dynamics, part, F @ F.T + np.eye(n), private_variance=0.5)
    return algorithm.with_divisors(draw(st.lists(st.sampled_from([1.0, 2.0, 7.0]), min_size=n, max_size=n)))


@examples(60)
@given(algorithm=server_algorithms(), release=st.sampled_from(["none", "average", "all"]))
def test_equals_the_dense_form(algorithm, release):
    view = trust.Central().view(algorithm, 0, release=release)
    assert is_adaptive(view)
    for u, gram in enumerate(Combination.of(view).grams(range(algorithm.num_nodes))):
        assert not gram.leaks.any()
        X, _ = pinv_gram(of_node(view.dense_gradients_by_time(), u, algorithm.num_nodes), view.dense_noise())
        assert_allclose(gram.matrix, X, rtol=1e-9, atol=1e-9 * X.max())
        assert (gram.errors < 1e-10 * X.max()).all()


def test_the_server_baseline_needs_the_root_of_n_less_noise():
    """mu = record_shift sqrt(T) / (sqrt(n) nu) at user level, adaptively, and in a second for T = 5000."""
    many = algorithms.cdp(Dynamics(gossip.metropolis_hastings("ring:n=16")), EveryStep(5000))
    calibrated = calibrate(many, Privacy(trust.Central(), adjacency="replace-one", clip_norm=0.5), mu=2.0)
    assert_allclose(calibrated.noise_std, 5000**0.5 / 2 / 4, rtol=1e-9)
    assert calibrated.guarantee.adaptive
    assert calibrated.guarantee.mu <= 2.0


@examples(15)
@given(W=gossip_matrices(min_nodes=2, max_nodes=5, kinds=("symmetric",)), T=st.integers(1, 4))
def test_a_topology_shows_in_its_averages_as_little_but_hides_to_what_gradients_react(W, T):
    """Against the definition: X = (L_u)^T (L L^T)^-1 L_u of the averages of all messages, written out."""
    n, dynamics = W.num_nodes, Dynamics(W, 0.3)
    algorithm = algorithms.build("cdp", dynamics, EveryStep(T), average="topology")
    assert algorithm.content_hash == algorithms.dp_dsgd(dynamics, EveryStep(T)).named("cdp").content_hash
    W_powers = [np.linalg.matrix_power(W.dense(), k) for k in range(T)]
    messages = np.block([[W_powers[t - s] if s <= t else np.zeros((n, n)) for s in range(T)] for t in range(T)])
    rows = np.kron(np.eye(T), np.full((1, n), 1 / n)) @ messages
    for loss in sensitivity_by_victim(algorithm, trust.Central(), release="none", unit="user"):
        X, outside = pinv_gram(of_node(rows, loss.victim, n), rows)
        assert not outside.any()
        assert_allclose(X, np.eye(T) / n, atol=1e-8)
        assert_allclose(loss.sensitivity_squared, T / n, rtol=1e-6)
        reacting = T > 1 and np.ptp(W.dense()) > 0
        assert_allclose(loss.adaptive_sensitivity_squared, T if reacting else T / n, rtol=1e-6)


def test_the_average_that_cdp_shows_is_one_of_two():
    dynamics = Dynamics(gossip.metropolis_hastings("ring:n=4"))
    complete = algorithms.build("cdp", dynamics, EveryStep(3), average="complete")
    assert complete.content_hash == algorithms.cdp(dynamics, EveryStep(3)).content_hash
    refuses("unknown average of cdp", lambda: algorithms.build("cdp", dynamics, EveryStep(3), average="ring"))


def test_noise_that_cancels_in_the_average_leaks():
    L = np.array([[1.0, -1], [-1, 1]])
    algorithm = algorithms.spatial_covariance(Dynamics(gossip.from_array(np.full((2, 2), 0.5))), EveryStep(2), L)
    grams = view_gram(algorithm, trust.Central(), 0)
    assert grams.leaks.all()
    assert "no noise" in grams.why


def test_other_averages_are_not_of_this_form():
    """The average of ring messages is not what its nodes hold: the dense form decides, and it is not adaptive."""
    algorithm = algorithms.dp_dsgd(Dynamics(RING), EveryStep(3))
    view = trust.Central().view(algorithm, 0)
    assert Combination.of(view) is None
    assert not is_adaptive(view)
    local = algorithms.anti_pgd(Dynamics(gossip.from_array(np.full((4, 4), 0.25))), Cyclic(1, 3))
    assert Combination.of(trust.Central().view(local, 0)) is None  # correlated in time: not diagonal


def test_one_ulp_is_no_multiple():
    c = np.full(3, 1 / 3)
    assert is_multiple(np.full(3, 0.7), c)
    assert is_multiple(np.zeros(3), c)
    assert not is_multiple(np.array([0.7, 0.7, np.nextafter(0.7, 1)]), c)
    assert not is_multiple(np.ones(3), np.zeros(3))
    W = np.full((3, 3), 1 / 3)
    W[2, 2] = np.nextafter(W[2, 2], 1)
    nearly = algorithms.dp_dsgd(Dynamics(GossipMatrix(gossip.from_array(W).weights, (0, 1, 2))), EveryStep(2))
    assert not combination_form.states_are_multiples(nearly, trust.Central().knowledge(nearly, 0).combination)


@pytest.mark.parametrize("known", [[True, False, False], [True, True, True]])
def test_known_noise_is_no_noise(known):
    algorithm = algorithms.cdp(Dynamics(gossip.metropolis_hastings("path:n=3")), EveryStep(2))
    hidden = trust.Central().view(algorithm, 1)
    knowledge = dataclasses.replace(hidden.knowledge, known_noise=np.tile(known, (2, 1)))
    view = AlgorithmView(algorithm, knowledge, release=hidden.release, attacker=hidden.attacker)
    for gram in Combination.of(view).grams(range(3)):
        if all(known):
            assert gram.leaks.all()
        else:
            assert_allclose(gram.values, 0.5, rtol=1e-12)  # (1/3)^2 / (2/9)
