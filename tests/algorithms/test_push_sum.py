"""Push-sum: weights, sums and models by hand, losses of what is received by hand, and graphs that are refused."""

import networkx as nx
import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses

import mfdl
from mfdl import InvalidInput, UnsupportedMechanism, gossip, trust
from mfdl.algorithms import dp_dsgd, push_sum
from mfdl.testing import pinv_gram
from mfdl.training.executor import Executor

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def digraphs(draw, max_nodes=5):
    """One to three graphs on the same nodes: a circle spread over them, and any further edges."""
    n = draw(st.integers(2, max_nodes))
    circle = [(a, (a + 1) % n) for a in draw(st.permutations(range(n)))]
    parts = [nx.DiGraph() for _ in range(draw(st.integers(1, 3)))]
    for graph in parts:
        graph.add_nodes_from(range(n))
        graph.add_edges_from(draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=4)))
    for k, edge in enumerate(circle):
        parts[k % len(parts)].add_edge(*edge)
    return parts


def shares(graph):
    """S, written out: column j holds what j sends."""
    n = len(graph)
    S = np.eye(n)
    for a, b in graph.edges:
        S[b, a] = 1.0
    return S / S.sum(axis=0)


@examples(60)
@given(digraphs(), st.integers(1, 6), SEEDS)
def test_weights_and_models_are_sums_pushed_along_edges(parts, rounds, seed):
    sequence, n = gossip.push_sum(parts, rounds), len(parts[0])
    x, w = np.random.default_rng(seed).normal(size=n), np.ones(n)
    z, total = x.copy(), x.sum()
    for t in range(rounds):
        assert_allclose(sequence.push_weights[t], w, rtol=1e-12)
        S = shares(parts[t % len(parts)])
        x, w, z = S @ x, S @ w, sequence.at(t).weights @ z
        assert_allclose(z, x / w, atol=1e-12)
        assert (sequence.push_weights[t + 1] @ z) == pytest.approx(total, abs=1e-12)
        assert_array_equal(sequence.at(t).dense() > 0, S > 0)


@pytest.mark.parametrize("parts", [[[(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]], [[(0, 1), (2, 3)], [(1, 2), (3, 0)]]])
def test_all_models_become_the_average_of_the_first_ones(parts):
    graphs, z = [nx.DiGraph(edges) for edges in parts], np.array([8.0, 0.0, -1.0, 5.0])
    for graph in graphs:
        graph.add_nodes_from(range(4))
    for matrix in gossip.push_sum(graphs, 120).matrices:
        z = matrix.weights @ z
    assert_allclose(z, 3.0, atol=1e-9)


@examples(40)
@given(digraphs(), st.integers(1, 5), SEEDS)
def test_the_run_is_stochastic_gradient_push(parts, T, seed):
    n, rng = len(parts[0]), np.random.default_rng(seed)
    rates, injected = rng.uniform(0.1, 1, T), rng.normal(size=(2, T, n, 1))
    algorithm = push_sum(mfdl.Dynamics(gossip.push_sum(parts, T), rates), mfdl.EveryStep(T))
    executor = Executor(algorithm, dtype=torch.float64)
    start = rng.normal(size=(n, 1))
    state = executor.initial_state(torch.tensor(start))
    x, w = start.copy(), np.ones((n, 1))
    for t in range(T):
        assert_allclose(executor.models(state).numpy(), x / w, atol=1e-12)
        messages, state = executor.step(t, state, *map(torch.tensor, injected[:, t]))
        x = x - rates[t] * injected[:, t].sum(0)
        assert_allclose(messages.numpy(), x / w, atol=1e-12)
        S = shares(parts[t % len(parts)])
        x, w = S @ x, S @ w
    assert_allclose(executor.models(state).numpy(), x / w, atol=1e-12)
    assert x.sum() == pytest.approx(start.sum() - (rates[:, None] * injected.sum(0)[..., 0]).sum(), abs=1e-10)


@examples(40)
@given(digraphs(4), st.integers(1, 3), st.integers(1, 2), st.data())
def test_losses_are_those_of_the_sums_received(parts, period, epochs, data):
    """Seen by all: what D-SGD loses. By one node: the rows of the sums it got, its own noise left out."""
    participation, n = mfdl.Cyclic(epochs=epochs, period=period), len(parts[0])
    T = participation.num_steps
    sequence = gossip.push_sum(parts, T)
    algorithm = push_sum(mfdl.Dynamics(sequence, 0.5), participation)
    seen = mfdl.privacy.sensitivity_by_victim(algorithm, trust.LDP())
    plain = mfdl.privacy.sensitivity_by_victim(dp_dsgd(mfdl.Dynamics(sequence, 0.5), participation), trust.LDP())
    for loss, other in zip(seen, plain, strict=True):
        assert loss.sensitivity_squared == pytest.approx(epochs)
        assert loss.adaptive_sensitivity_squared == pytest.approx(other.adaptive_sensitivity_squared)
    attacker = data.draw(st.integers(0, n - 1))
    x, rows = np.zeros((n, T * n)), [np.zeros((0, T * n))]
    for t in range(T):
        x[:, t * n : (t + 1) * n] -= 0.5 * np.eye(n)
        S = shares(parts[t % len(parts)])
        got = (S[attacker] > 0) & (np.arange(n) != attacker)
        rows.append(x[got])
        x = S @ x
    A = np.vstack(rows)
    B = A * (np.arange(T * n) % n != attacker)
    losses = mfdl.privacy.sensitivity_by_victim(algorithm, trust.PNDP([attacker]), release="none")
    for loss in losses:
        gram, leaks = pinv_gram(A[:, loss.victim :: n], B)
        assert not leaks.any()
        least = max(np.abs(gram[r::period, r::period]).sum() for r in range(period))  # at most two uses: signs decide
        assert loss.sensitivity_squared == pytest.approx(least, rel=1e-6, abs=1e-9)


def test_training_over_one_way_links_is_saved_and_read(tmp_path):
    links = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)])
    algorithm = push_sum(mfdl.Dynamics(gossip.push_sum(links, 2), 0.2), mfdl.EveryStep(2))
    options = {"adjacency": "zero-out", "clip_norm": 1.0}
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(trust.named("eavesdropper"), **options), mu=1.0)
    assert mechanism.noise_std == pytest.approx(np.sqrt(2))
    run = mfdl.replay(mechanism, mfdl.tasks.least_squares(mfdl.graphs.load("ring:n=4"), dimension=2), seeds=[0])
    assert np.isfinite(run.final_test_losses).all()
    mechanism.save(tmp_path / "push")
    read = mfdl.Mechanism.load(tmp_path / "push")
    assert read.algorithm.content_hash == algorithm.content_hash
    assert_array_equal(read.algorithm.dynamics.gossip.push_weights, algorithm.dynamics.gossip.push_weights)


def test_what_averages_nothing_is_refused():
    one_way = nx.DiGraph([(0, 1), (1, 2)])
    circle = nx.DiGraph([(0, 1), (1, 2), (2, 0)])
    sequence, bent = gossip.push_sum(circle, 3), np.ones((4, 3))
    bent[1, 0] = 2.0
    tail = nx.DiGraph([(k, 0) for k in range(1, 30)] + [(k, k + 1) for k in range(29)])
    other = nx.relabel_nodes(circle, {0: "a"})
    steps = mfdl.EveryStep(4)
    for error, words, call in (
        (InvalidInput, "not strongly connected; add", lambda: gossip.push_sum(one_way, 3)),
        (InvalidInput, "nor are all of them together", lambda: gossip.push_sum([one_way, one_way], 3)),
        (InvalidInput, "within a factor of 1e\\+06, got .* at node 2", lambda: gossip.push_sum(tail, 300)),
        (InvalidInput, "differ in 'a'", lambda: gossip.push_sum([circle, other], 3)),
        (InvalidInput, "empty list", lambda: gossip.push_sum([], 3)),
        (InvalidInput, "rounds", lambda: gossip.push_sum(circle, 0)),
        (InvalidInput, "in round 0", lambda: gossip.directed.PushSum(sequence.matrices, False, "x", bent)),
        (InvalidInput, "a row for each of 3 rounds", lambda: gossip.directed.PushSum(sequence.matrices, False)),
        (InvalidInput, "each of 4 steps, got 3", lambda: push_sum(mfdl.Dynamics(sequence), steps)),
        (InvalidInput, "gossip of gossip.push_sum", lambda: push_sum(mfdl.Dynamics(gossip.uniform("ring:n=3")), steps)),
        (UnsupportedMechanism, "momentum", lambda: push_sum(mfdl.Dynamics(sequence, momentum=0.5), mfdl.EveryStep(3))),
    ):
        refuses(words, call, error=error)
