"""Gossip that changes from round to round, dropout of nodes, and how fast gossip averages."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import settings
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import ZERO_OUT, given, refuses, st

import mfdl
from mfdl import InvalidInput, NoiseKey, gossip
from mfdl.algorithms import with_dropout
from mfdl.testing import connected_graphs, gossip_matrices, pinv_gram
from mfdl.training.executor import Executor

SEEDS = st.integers(0, 2**32 - 1)


def dense(sequence, rounds):
    return [sequence.at(r).dense() for r in range(rounds)]


@given(60, connected_graphs(min_nodes=2), st.integers(1, 4), SEEDS)
def test_pairs_average_and_nobody_else_moves(graph, rounds, seed):
    edges = {frozenset(edge) for edge in graph.edges}
    for build, most in ((gossip.random_matchings, graph.number_of_nodes() // 2), (gossip.random_pairs, 1)):
        sequence = build(graph, rounds, seed)
        for W in dense(sequence, rounds):
            ends = [frozenset((sequence.labels[u], sequence.labels[v])) for u, v in np.argwhere(np.triu(W, 1))]
            assert 1 <= len(ends) <= most
            assert set(ends) <= edges
            assert len(set().union(*ends)) == 2 * len(ends)  # nobody in two pairs
            assert_array_equal(W @ W, W)  # an average taken twice is the average
            assert_array_equal(W, W.T)
        assert build(graph, rounds, seed).content_hash == sequence.content_hash


@pytest.mark.parametrize("n", [2, 4, 8, 32])
def test_peers_at_powers_of_two_agree_after_log_n_rounds(n):
    sequence, product = gossip.one_peer_exponential(n), np.eye(n)
    assert len(sequence.matrices) == np.log2(n)
    for W in dense(sequence, len(sequence.matrices)):
        assert_array_equal(np.count_nonzero(W, axis=1), 2)
        product = W @ product
    assert_allclose(product, np.full((n, n), 1 / n))
    assert gossip.one_peer_exponential(n + 1).is_doubly_stochastic


@given(40, st.integers(2, 7), st.data(), SEEDS)
def test_drawn_peers_are_others_and_as_many_as_asked(n, data, seed):
    peers = data.draw(st.integers(1, n - 1))
    for W in dense(gossip.peer_sampling(n, 3, peers, seed), 3):
        assert_array_equal(np.count_nonzero(W, axis=1), peers + 1)
        assert_allclose(W[W > 0], 1 / (peers + 1))
        assert (np.diagonal(W) > 0).all()


@given(60, gossip_matrices(), st.floats(0, 0.9), SEEDS)
def test_what_is_away_exchanges_nothing_and_what_is_there_keeps_its_weights(W, rate, seed):
    n, whole = W.num_nodes, W.dense()
    online = gossip.sampled_presence(n, 3, rate, seed)
    links = gossip.link_dropout(W, 3, rate, seed)
    for r, left in enumerate(dense(gossip.node_dropout(W, online), 3)):
        both = np.outer(online[r], online[r]) & ~np.eye(n, dtype=bool)
        assert_allclose(left[both], whole[both])
        assert_array_equal(left[~both & ~np.eye(n, dtype=bool)], 0)
    for left in dense(links, 3):
        off = ~np.eye(n, dtype=bool)
        nonzero = left[off] != 0
        assert_allclose(left[off][nonzero], whole[off][nonzero])
        pairs = (left != 0) | (whole == 0)
        if W.is_symmetric:
            assert_array_equal(pairs, pairs.T)
    if W.is_symmetric:
        assert links.is_symmetric


def under_dropout(W, name, online, participation):
    whole = mfdl.algorithms.build(name, mfdl.Dynamics(W, 0.5), participation)
    left = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip.node_dropout(W, online), 0.5), participation)
    return with_dropout(dataclasses.replace(left, name=name, noise=whole.noise), online)


CASES = st.tuples(gossip_matrices(kinds=("symmetric",), min_nodes=2, max_nodes=4), st.integers(1, 3), st.integers(1, 2))


@given(40, CASES, st.sampled_from(["dp-dsgd", "mafalda", "decor"]), st.floats(0, 0.7), SEEDS)
def test_the_run_is_the_loop_in_which_nodes_miss_steps(case, name, rate, seed):
    W, period, epochs = case
    participation, rng = mfdl.Cyclic(epochs=epochs, period=period), np.random.default_rng(seed)
    T, n = participation.num_steps, W.num_nodes
    online = gossip.sampled_presence(n, T, rate, seed)
    algorithm = under_dropout(W, name, online, participation)
    executor = Executor(algorithm, dtype=torch.float64)
    injected = rng.standard_normal((2, T, n, 1))
    state = executor.initial_state(torch.zeros(n, 1, dtype=torch.float64))
    x = np.zeros((n, 1))
    for t in range(T):
        messages, state = executor.step(t, state, *map(torch.tensor, injected[:, t]))
        moved = x - 0.5 * online[t][:, None] * injected[:, t].sum(0)
        x = moved.copy()
        for u in np.flatnonzero(online[t]):
            x[u] = sum((W.dense()[u, v] * (moved[v] if online[t][v] else moved[u]) for v in range(n)), np.zeros(1))
        assert_allclose(messages.numpy()[online[t]], moved[online[t]], atol=1e-12)
        assert_allclose(executor.models(state).numpy(), x, atol=1e-12)
    assert_array_equal(np.broadcast_to(algorithm.sent, (T, n)), online)


@given(60, CASES, st.sampled_from(["dp-dsgd", "mafalda", "decor"]), st.floats(0, 0.7), SEEDS)
def test_losses_are_those_of_the_messages_that_are_sent(case, name, rate, seed):
    W, period, epochs = case
    participation = mfdl.Cyclic(epochs=epochs, period=period)
    T, n = participation.num_steps, W.num_nodes
    online = gossip.sampled_presence(n, T, rate, seed)
    algorithm = under_dropout(W, name, online, participation)
    seen = mfdl.trust.named("eavesdropper")
    losses = mfdl.privacy.sensitivity_by_victim(algorithm, seen)
    whole = mfdl.privacy.sensitivity_by_victim(mfdl.algorithms.build(name, mfdl.Dynamics(W, 0.5), participation), seen)
    sent = online.ravel()
    A = (algorithm.messages_from_gradients @ np.eye(T * n))[sent]
    B = (algorithm.messages_from_noise @ np.eye(algorithm.noise.shape[1]))[sent]
    for loss, with_all in zip(losses, whole, strict=True):
        assert loss.sensitivity_squared <= with_all.sensitivity_squared * (1 + 1e-9)
        gram, leaks = pinv_gram(A[:, loss.victim :: n], B)
        assert not leaks.any()
        least = max(np.abs(gram[r::period, r::period]).sum() for r in range(period))  # at most two uses: signs decide
        assert loss.sensitivity_squared == pytest.approx(least, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("offline", "grows"), [({}, False), ({0: [(2, 3)]}, True)])
def test_where_messages_are_hidden_dropout_may_cost_the_offline_node(offline, grows):
    """Noise that it does not add covers nothing: the number of docs/changing_networks.md."""
    W, participation = gossip.metropolis_hastings("path:n=3"), mfdl.Cyclic(epochs=1, period=4)
    algorithm = under_dropout(W, "dp-dsgd", gossip.churn(W, 4, offline=offline), participation)
    loss = mfdl.privacy.sensitivity_by_victim(algorithm, mfdl.trust.ReleasedOnly())[0]
    assert loss.sensitivity_squared == pytest.approx(0.4455 if grows else 0.3724, abs=1e-4)


def test_where_a_message_sums_steps_dropout_may_cost_the_offline_node_though_all_is_seen():
    W, online = gossip.metropolis_hastings("path:n=2"), np.array([[False, True], [True, True]])
    whole = mfdl.algorithms.local_steps(mfdl.Dynamics(W, 0.5), mfdl.participation.Single(2), steps=2)
    for algorithm, wanted in ((whole, (0.5, 0.5)), (with_dropout(whole, online), (1.0, 0.5))):
        losses = mfdl.privacy.sensitivity_by_victim(algorithm, mfdl.trust.LDP())
        assert [loss.sensitivity_squared for loss in losses] == pytest.approx(wanted, rel=1e-9)
        assert [loss.adaptive_sensitivity_squared for loss in losses] == pytest.approx((1.0, 1.0), rel=1e-9)


@pytest.mark.parametrize("mu", [0.5, 8.0, {0: 1.0, 1: 8.0}])
def test_a_run_that_shows_nobody_is_calibrated(mu):
    W, online = gossip.metropolis_hastings("path:n=2"), np.array([[True, False]])
    dynamics = mfdl.Dynamics(gossip.node_dropout(W, online), 0.5)
    algorithm = with_dropout(mfdl.algorithms.dp_dsgd(dynamics, mfdl.EveryStep(1)), online)
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.PNDP([0]), **ZERO_OUT), mu=mu)
    assert mechanism.noise_std < 1e-300
    assert mechanism.guarantee.mu <= 8


def test_equal_rounds_are_one_matrix():
    W, participation = gossip.metropolis_hastings("star:n=5"), mfdl.Cyclic(epochs=2, period=3)
    noise = []
    for either in (W, gossip.sequence([W] * 6, repeat=False), gossip.node_dropout(W, np.ones((6, 5), dtype=bool))):
        algorithm = mfdl.algorithms.mafalda(mfdl.Dynamics(either, 0.1), participation)
        mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.PNDP(attackers=[1]), **ZERO_OUT), mu=1.0)
        noise.append(mechanism.noise_std)
        assert len(algorithm.kinds) == 1
    assert noise == pytest.approx([noise[0]] * 3, rel=1e-9)


def test_a_returning_node_uses_the_noise_of_later_steps_and_no_node_that_of_missed_steps():
    W, participation = gossip.metropolis_hastings("ring:n=4"), mfdl.Cyclic(epochs=1, period=6)
    online = gossip.churn(W, 6, {2: [(1, 4)]})
    algorithm, key = under_dropout(W, "decor", online, participation), NoiseKey.from_seed(0)
    streams = [mfdl.training.streams.noise_stream(noise, 1.0, key, 3) for noise in (algorithm.noise, algorithm.noise)]
    rows = [[stream.step(t) for t in steps] for stream, steps in zip(streams, (range(6), (0, 4, 5)), strict=True)]
    for t, row in zip((0, 4, 5), rows[1], strict=True):
        assert_array_equal(row[2], rows[0][t][2])
    assert len({row.tobytes() for row in rows[0]}) == 6
    effect = algorithm.messages_from_injected_noise @ np.eye(6 * 4)
    assert_array_equal(effect[:, [t * 4 + 2 for t in (1, 2, 3)]], 0)  # what was missed enters nothing


def test_what_does_not_fit_is_refused():
    W, participation = gossip.metropolis_hastings("ring:n=4"), mfdl.Cyclic(epochs=1, period=3)
    whole, online = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, 0.1), participation), np.ones((3, 4), dtype=bool)
    online[1, 2] = False
    for call, words in (
        (lambda: with_dropout(whole, online), "enters models of other nodes"),
        (lambda: with_dropout(whole, online[:2]), "one row for each of 3 steps, got 2"),
        (lambda: with_dropout(whole, online.astype(int)), "must be a bool array"),
        (lambda: gossip.sampled_presence(4, 3, 1.0, 0), r"rate must lie in \[0, 1\), got 1"),
        (lambda: gossip.churn(W, 3, {9: [(0, 1)]}), "node 9, which is not in the graph"),
        (lambda: gossip.churn(W, 3, {1: [(2, 4)]}), r"got \(2, 4\) for node 1"),
        (lambda: gossip.peer_sampling(3, 2, 3, 0), "peers must be below the number of nodes, 3"),
        (lambda: gossip.random_pairs("ring:n=4", 2, -1), "seed"),
    ):
        refuses(words, call)


def test_an_average_of_messages_is_of_those_that_are_sent():
    W, online = gossip.from_array(np.array([[0.75, 0.25], [0.25, 0.75]])), np.array([[True, True], [True, False]])
    dynamics, participation = mfdl.Dynamics(gossip.node_dropout(W, online), 1.0), mfdl.participation.Explicit([[0]], 2)
    algorithm = with_dropout(mfdl.algorithms.dp_dsgd(dynamics, participation), online)
    loss = mfdl.privacy.sensitivity_by_victim(algorithm, mfdl.trust.Central(), release="none")[0]
    rows = np.array([[1.0, 1.0, 0.0], [0.75, 0.25, -1.0]])  # <- noise of nodes 0 and 1, then of node 0
    wanted = rows[:, 0] @ np.linalg.inv(rows @ rows.T) @ rows[:, 0]
    assert (wanted, loss.sensitivity_squared) == (pytest.approx(5 / 9), pytest.approx(wanted, rel=1e-9))


@settings(deadline=None)
@given(W=gossip_matrices(max_nodes=6, kinds=["symmetric", "singular"]), seed=st.integers(0, 99))
def test_mixing_parameter_bounds_every_contraction_and_is_met(W, seed):
    p, n = W.mixing_parameter, W.num_nodes
    x = np.random.default_rng(seed).standard_normal(n)
    x -= x.mean()
    after = W.dense() @ x
    assert after @ after <= (1 - p + 1e-12) * (x @ x)
    second = np.sort(np.linalg.eigvalsh(W.dense().T @ W.dense()))[-2] if n > 1 else 0.0
    assert_allclose(1 - p, second, atol=1e-12)


def test_mixing_parameter_of_special_cases():
    assert gossip.from_array([[1.0]]).mixing_parameter == 1.0
    assert gossip.from_array(np.eye(3)).mixing_parameter == 0.0
    one_way = np.roll(np.eye(4), 1, axis=1)  # doubly stochastic, not symmetric
    assert_allclose(gossip.from_array((np.eye(4) + one_way) / 2).mixing_parameter, 0.5, rtol=1e-12)
    with pytest.raises(InvalidInput, match="must be doubly stochastic: otherwise the average moves"):
        _ = gossip.uniform("star:n=5").mixing_parameter
