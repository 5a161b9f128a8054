"""Dynamics and error weights: where step sizes live."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses

from mfdl import Cyclic, Dynamics, algorithms, gossip, trust
from mfdl.dynamics.dynamics import MAX_RATE_RATIO
from mfdl.privacy.adaptive import is_adaptive
from mfdl.privacy.forms import view_grams
from mfdl.testing import gossip_matrices, gossip_sequences
from mfdl.testing.oracles import clear_rank, gossip_messages, local_noising, of_node, pinv_gram, received
from mfdl.testing.strategies import random_encoder
from mfdl.testing.strategies.graphs import polynomials
from mfdl.training.executor import Executor

RING = gossip.metropolis_hastings("ring:n=5")


def test_learning_rate_is_constant_and_one_by_default():
    assert_array_equal(Dynamics(RING).learning_rates(3), np.ones(3))
    assert_array_equal(Dynamics(RING, 0.25).learning_rates(2), [0.25, 0.25])
    assert Dynamics(RING, 0.25).num_nodes == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"learning_rate": bad}, "must be a finite number > 0")
            for bad in (0, -0.1, np.inf, np.nan, "0.1", True, None)
        ),
        ({"learning_rate": []}, "got an empty schedule"),
        ({"learning_rate": [1.0, 0.0]}, r"must be a finite number > 0 at every step, got 0.0 at 1"),
        ({"learning_rate": [1.0, -1.0, 0.5]}, r"got -1.0 at 1"),
        ({"learning_rate": [1.0, np.inf]}, "learning_rate must be finite, got inf"),
        ({"learning_rate": [[1.0, 2.0]]}, "must have 1 dimensions"),
        ({"learning_rate": [1.0, [2.0]]}, "must be a numeric array"),
        ({"learning_rate": [1.0, 0.9e-6]}, "must not span more than a factor 1e[+]06, got 9e-07 to 1"),
        *(({"gossip_rounds": bad}, "gossip_rounds must be an integer >= 1") for bad in (0, -1, 1.5, True)),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\)"),
        ({"momentum": -0.1}, "momentum must be a finite number >= 0"),
        ({"weight_decay": -1}, "weight_decay must be a finite number >= 0"),
        ({"learning_rate": 0.5, "weight_decay": 2.0}, "must be below 1, got 2"),
    ],
)
def test_what_is_no_dynamics_is_refused(options, message):
    refuses(message, Dynamics, RING, **options)


def test_a_schedule_is_an_own_read_only_copy():
    given_rates = np.array([1.0, 0.5, 0.25])
    dynamics = Dynamics(RING, given_rates)
    given_rates[0] = 7.0
    assert_array_equal(dynamics.learning_rates(3), [1.0, 0.5, 0.25])
    assert_array_equal(dynamics.relative_rates(3), [1.0, 0.5, 0.25])
    assert_array_equal(Dynamics(RING, (0.5, 1)).relative_rates(2), [1.0, 2.0])
    assert_array_equal(Dynamics(RING, 0.3).relative_rates(2), [1.0, 1.0])
    with pytest.raises(ValueError, match="read-only"):
        dynamics.learning_rate[0] = 7.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        dynamics.learning_rate = 2.0
    dynamics.learning_rates(3)[0] = 7.0
    assert dynamics.learning_rates(3)[0] == 1.0


def test_a_schedule_serves_its_own_number_of_steps_only():
    dynamics = Dynamics(RING, [1.0, 0.5])
    for steps in (1, 3):
        refuses(f"one for each of {steps} steps, got a schedule of 2; give as many", dynamics.learning_rates, steps)
    refuses("one for each of 4 steps", lambda: algorithms.dp_dsgd(dynamics, Cyclic(2, 2)))


def test_step_weights_apply_the_first_round_first():
    first, second = gossip.uniform("star:n=4"), gossip.metropolis_hastings("ring:n=4")
    dynamics = Dynamics(gossip.sequence([first, second, second]), gossip_rounds=2)
    assert_allclose(dynamics.step_weights(0).toarray(), second.dense() @ first.dense())
    assert_allclose(dynamics.step_weights(1).toarray(), first.dense() @ second.dense())


# A schedule in training and in accounting


@st.composite
def scheduled(draw):
    """(algorithm, encoders, messages <- injected sums, final models <- injected sums), the last three by hand."""
    W = draw(st.one_of(gossip_matrices(min_nodes=2, max_nodes=4), gossip_sequences(min_nodes=2, max_nodes=4)))
    W = W if W.is_constant else gossip.sequence(W.matrices)
    T, n, K = draw(st.integers(1, 3)), W.num_nodes, draw(st.sampled_from([1, 1, 2]))
    rates = draw(st.lists(st.sampled_from([0.01, 0.3, 1.0, 2.0]), min_size=T, max_size=T))
    dynamics, part = Dynamics(W, rates, gossip_rounds=K, polynomial=draw(polynomials(W))), Cyclic(1, T)
    encoders = np.stack([np.eye(T)] * n)
    if draw(st.booleans()):
        algorithm = algorithms.dp_dsgd(dynamics, part)
    else:
        encoders = random_encoder(np.random.default_rng(draw(st.integers(0, 99))), T, n)
        algorithm = algorithms.mf_dsgd(dynamics, part, encoders)
    sent, final = gossip_messages(
        W, T, gossip_rounds=K, shifts=dynamics.shifts
    )  # at rate 1; column (s, u) belongs to step s
    return algorithm, encoders, sent * np.repeat(rates, n), final * np.repeat(rates, n)


@examples(40)
@given(case=scheduled(), seed=st.integers(0, 99))
def test_the_executor_takes_the_steps_of_the_schedule(case, seed):
    algorithm, _, sent, final = case
    T, n = algorithm.num_steps, algorithm.num_nodes
    G, E = np.random.default_rng(seed).standard_normal((2, T, n, 2))
    executor = Executor(algorithm, dtype=torch.float64)
    state, messages = executor.initial_state(torch.zeros(n, 2, dtype=torch.float64)), []
    for t in range(T):
        out, state = executor.step(t, state, torch.from_numpy(G[t]), torch.from_numpy(E[t]))
        messages.append(out.numpy())
    injected = (G + E).reshape(T * n, 2)
    assert_allclose(np.concatenate(messages), sent @ injected, rtol=1e-12, atol=1e-12)
    assert_allclose(executor.models(state).numpy(), final @ injected, rtol=1e-12, atol=1e-12)


@examples(100)
@given(case=scheduled(), release=st.sampled_from(["none", "all"]))
def test_a_schedule_scales_the_columns_of_a_view_that_hides_messages(case, release):
    algorithm, encoders, sent, final = case
    n, attacker = algorithm.num_nodes, 0
    seen = received(algorithm.dynamics.gossip, len(algorithm.rounds), [attacker]).ravel()
    A = np.concatenate([sent[seen], final]) if release == "all" else sent[seen]
    B = A @ local_noising(encoders)
    B[:, attacker::n] = 0.0
    if not clear_rank(B, low=1e-13, high=1e-4):
        return
    victims = range(1, n)
    for u, gram in zip(
        victims, view_grams(trust.PNDP([attacker]).view(algorithm, release=release), victims), strict=True
    ):
        X, outside = pinv_gram(of_node(A, u, n), B)
        assert_array_equal(gram.leaks, outside)
        if gram.leaks.any() or np.isinf(gram.inflation):
            continue
        size = np.abs(X).max(initial=1e-3)
        # never under-reported, in the positive semidefinite order and beyond the oracle's own rounding
        excess = np.linalg.eigvalsh(X - gram.inflation * gram.matrix)[-1]
        assert excess <= gram.inflation * np.abs(gram.entry_error).sum(axis=1).max() + 1e-9 * size
        if not gram.upper:
            # released models: their share is reported a little high, by what rounding may hide at rates 200 apart
            closeness = 1e-5 if release == "none" else 1e-2
            assert_allclose(gram.matrix, X, rtol=closeness, atol=closeness * size)


@examples(60)
@given(W=gossip_matrices(min_nodes=2, max_nodes=4), seed=st.integers(0, 2**16))
def test_no_schedule_makes_hidden_messages_look_adaptive(W, seed):
    """Whether models can be computed from seen messages does not depend on step sizes; small ones are not rounding."""
    T, n, rng = 3, W.num_nodes, np.random.default_rng(seed)
    model = trust.TrustModel.from_masks(seen=rng.random((T, n)) < 0.7, release="none")
    rates = rng.choice([1.0, 1 / MAX_RATE_RATIO], T)
    constant, varied = (
        is_adaptive(model.view(algorithms.dp_dsgd(Dynamics(W, rate), Cyclic(1, T)))) for rate in (1.0, rates)
    )
    assert constant or not varied
