"""Public step sizes, momentum and decay: they change no loss where all is seen, and some where messages are hidden."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from mfdl import algorithms, gossip, trust
from mfdl.algorithms.dsgd import decentralized
from mfdl.dynamics import Dynamics
from mfdl.noise_error import noise_error
from mfdl.participation import Cyclic
from mfdl.privacy.accounting import victim_losses
from mfdl.testing.oracles import largest_signed_sum, of_node, pinv_gram
from mfdl.testing.strategies import gossip_matrices

PATH = gossip.metropolis_hastings("path:n=4")
SCHEME, NODES = Cyclic(2, 2), 4
TRIPLES = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3]]
MODELS = {
    "local": trust.LDP(),
    "eavesdropper": trust.SecLDP(),
    "colluding": trust.SecLDP([1]),
    "coalitions": trust.Coalitions(2),
}
FALLING = [1.0, 0.3, 0.1, 0.03]


def built(name):
    options = {"groups": TRIPLES, "coalition_size": 1} if name == "time-space" else {}
    return algorithms.build(name, Dynamics(PATH), SCHEME, **options)


NOISES = {
    name: built(name).noise
    for name in ("dp-dsgd", "anti-pgd", "mafalda-l", "decor", "corn", "time-space", "adapted", "space-time")
}


def under(name, **dynamics):
    """The noise of a mechanism, unchanged, in other dynamics: it is added to gradients, so it has their step sizes."""
    return decentralized(name, Dynamics(PATH, **dynamics), SCHEME, NOISES[name])


def losses(one, model, **options):
    return [
        (loss.sensitivity_squared, loss.adaptive_sensitivity_squared) for loss in victim_losses(one, model, **options)
    ]


OTHER_DYNAMICS = (
    {"learning_rate": FALLING},
    {"learning_rate": FALLING[::-1]},
    {"learning_rate": 0.01},
    {"momentum": 0.9},
    {"learning_rate": 0.5, "weight_decay": 0.5},
    {"learning_rate": FALLING, "momentum": 0.5, "weight_decay": 0.1},
)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NOISES)
def test_where_all_messages_are_seen_step_sizes_momentum_and_decay_change_no_loss(name, model):
    wanted = losses(under(name), MODELS[model])
    assert max(first for first, _ in wanted) > 0.5
    for dynamics in OTHER_DYNAMICS:
        assert_allclose(losses(under(name, **dynamics), MODELS[model]), wanted, rtol=1e-9)


@examples(25)
@given(
    W=gossip_matrices(min_nodes=2, max_nodes=4, kinds=("symmetric", "general")),
    rates=st.lists(st.sampled_from([1.0, 0.3, 0.1]), min_size=4, max_size=4),
    momentum=st.sampled_from([0.0, 0.5]),
    decay=st.sampled_from([0.0, 0.5]),
)
def test_the_accountant_is_a_view_written_out(W, rates, momentum, decay):
    """Rows from the recursion, one unit injection at a time; the noise is injected where the gradient is."""
    n, T = W.num_nodes, 4
    rows = np.zeros((T, n, T * n))
    theta, buffer = np.zeros((2, n, T * n))
    for r in range(T):
        buffer = momentum * buffer + np.eye(T * n)[r * n : (r + 1) * n]
        rows[r] = (1 - rates[r] * decay) * theta - rates[r] * buffer
        theta = W.dense() @ rows[r]
    A = rows.reshape(T * n, T * n)
    one = algorithms.anti_pgd(Dynamics(W, rates, momentum=momentum, weight_decay=decay), SCHEME)
    N = np.kron(np.linalg.inv(one.noise.encoder_of(0)), np.eye(n))
    for loss in victim_losses(one, trust.LDP()):
        X, outside = pinv_gram(of_node(A, loss.victim, n), A @ N)
        assert not outside.any()
        by_hand = max(largest_signed_sum(X[p][:, p]) for p in SCHEME.patterns())
        # scalar gradients of two steps attain the maximum; cond(B)^2 is about 1e6
        assert_allclose(loss.sensitivity_squared, by_hand, rtol=1e-6)


# ---- where messages are hidden ---------------------------------------------------------------------------


def pairwise(rates, release):
    one = algorithms.dp_dsgd(Dynamics(PATH, rates), SCHEME)
    return victim_losses(one, trust.PNDP([0]), victims=[2], release=release)[0]


def test_a_falling_schedule_costs_more_where_messages_are_hidden():
    """An early gradient of node 2 reaches node 0 over node 1, under later noise that a falling schedule makes small.

    A constant rate, whatever its size, is no schedule; a rising one hides more.
    """
    equal, falling, rising = (pairwise(r, "none").sensitivity_squared for r in (np.ones(4), FALLING, FALLING[::-1]))
    assert_allclose(pairwise(0.01, "none").sensitivity_squared, equal, rtol=1e-9)
    assert falling > 1.5 * equal > 1.5 * rising
    assert_allclose(falling / equal, 3.282, rtol=1e-3)
    everything = victim_losses(algorithms.dp_dsgd(Dynamics(PATH, FALLING), SCHEME), trust.LDP(), victims=[2])[0]
    assert falling < everything.sensitivity_squared  # what is hidden still hides


def test_a_mechanism_made_for_a_schedule_is_the_best_under_it():
    """Privacy does not depend on the schedule, the best correlation does."""
    dynamics = Dynamics(PATH, FALLING)
    for name in ("mafalda", "time-space", "adapted", "space-time"):
        made = algorithms.build(name, dynamics, SCHEME)
        constant = algorithms.build(name, Dynamics(PATH), SCHEME)
        moved = decentralized(name, dynamics, SCHEME, constant.noise)
        worst = [max(first for first, _ in losses(one, trust.SecLDP())) for one in (made, moved)]
        assert_allclose(worst, 1.0, rtol=1e-6)
        assert noise_error(made) < 0.7 * noise_error(moved)
