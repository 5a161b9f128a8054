"""Push-sum and tokens: weights, walks and models by hand, losses of who receives them, graphs that are refused."""

import itertools

import networkx as nx
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import ZERO_OUT, given, refuses, st, unsupported

import mfdl
from mfdl import InvalidInput, UnsupportedMechanism, gossip, trust
from mfdl.algorithms import dp_dsgd, push_sum, random_walk
from mfdl.testing import gossip_matrices, pinv_gram
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


@given(60, digraphs(), st.integers(1, 6), SEEDS)
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


@given(40, digraphs(), st.integers(1, 5), SEEDS)
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


@given(40, digraphs(4), st.integers(1, 3), st.integers(1, 2), st.data())
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
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(trust.Eavesdropper(), **ZERO_OUT), mu=1.0)
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


RING = gossip.metropolis_hastings("ring:n=4")


@st.composite
def walks(draw, max_steps=6):
    """(W, rates, walk, to_all)."""
    W, T = draw(gossip_matrices(min_nodes=2, max_nodes=4)), draw(st.integers(1, max_steps))
    rates = draw(st.lists(st.sampled_from([0.25, 0.5, 1.0]), min_size=T, max_size=T))
    return W, np.array(rates), gossip.sampled_walk(W, T, draw(SEEDS)), draw(st.booleans())


def built(case, participation=None):
    W, rates, walk, to_all = case
    participation = participation or mfdl.EveryStep(len(rates))
    return random_walk(mfdl.Dynamics(W, rates), participation, walk=walk, to_all=to_all)


@given(60, gossip_matrices(), st.integers(1, 8), SEEDS)
def test_a_walk_goes_along_weights_and_its_seed_decides(W, steps, seed):
    walk = gossip.sampled_walk(W, steps, seed)
    assert walk.shape == (steps + 1,)
    assert (W.dense()[walk[:-1], walk[1:]] > 0).all()
    assert_array_equal(walk, gossip.sampled_walk(W, steps, seed))
    assert gossip.sampled_walk(W, steps, seed, start=W.labels[-1])[0] == W.num_nodes - 1


def test_moves_are_as_frequent_as_their_probabilities():
    P = np.array([[0.1, 0.6, 0.3], [0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])
    walk = gossip.sampled_walk(gossip.from_array(P), 4000, seed=1)
    moves = np.zeros((3, 3))
    np.add.at(moves, (walk[:-1], walk[1:]), 1)
    visits = moves.sum(axis=1, keepdims=True)
    assert_allclose(moves / visits, P, atol=5 * np.sqrt(0.25 / visits.min()))
    circle = gossip.from_array(np.roll(np.eye(5), 1, axis=1))
    assert_array_equal(gossip.sampled_walk(circle, 6, seed=0, start=3), [3, 4, 0, 1, 2, 3, 4])


@given(40, walks(), SEEDS)
def test_the_run_is_one_model_that_walks(case, seed):
    W, rates, walk, to_all = case
    algorithm, n, T = built(case), W.num_nodes, len(rates)
    executor, rng = Executor(algorithm, dtype=torch.float64), np.random.default_rng(seed)
    injected = rng.standard_normal((2, T, n, 1))
    state = executor.initial_state(torch.zeros(n, 1, dtype=torch.float64))
    token, last = 0.0, np.zeros((n, 1))
    for t, (here, after) in enumerate(itertools.pairwise(walk)):
        messages, state = executor.step(t, state, *map(torch.tensor, injected[:, t]))
        token = token - rates[t] * injected[:, t, here].sum()
        last[here] = last[after] = token
        assert messages[here].item() == pytest.approx(token, abs=1e-12)
        assert_array_equal(np.flatnonzero(algorithm.sent[t]), [here] if here != after or to_all * (t == T - 1) else [])
        if to_all and t == T - 1:
            last[:] = token
        assert_allclose(executor.models(state).numpy(), last, atol=1e-12)


def between_sightings(walk, victim, attacker, rates):
    """sens^2 of a victim in all steps, by hand: visits and noise between two sightings of the token."""
    total, moved, noise = 0.0, 0.0, 0.0
    for t, rate in enumerate([*rates, 0.0]):
        if walk[t] == attacker and noise:
            total, moved, noise = total + moved**2 / noise, 0.0, 0.0
        elif walk[t] != attacker:
            moved, noise = moved + rate * (walk[t] == victim), noise + rate**2
    return total


@given(60, walks(max_steps=8), st.data())
def test_who_has_the_token_now_and_then_sees_it_under_all_noise_since(case, data):
    W, rates, walk, _ = case
    algorithm = built((W, rates, walk, False))
    attacker = data.draw(st.integers(0, W.num_nodes - 1))
    losses = mfdl.privacy.sensitivity_by_victim(algorithm, trust.PNDP([attacker]), release="none")
    assert [loss.victim for loss in losses] == [u for u in range(W.num_nodes) if u != attacker]
    for loss in losses:
        wanted = between_sightings(walk, loss.victim, attacker, rates)
        assert loss.sensitivity_squared == pytest.approx(wanted, rel=1e-9, abs=1e-12)


MODELS = (trust.LDP(), trust.named("eavesdropper"), trust.PNDP([0]), trust.ReleasedOnly())


@given(60, walks(max_steps=5), st.integers(0, 3), st.booleans())
def test_losses_are_those_of_what_is_seen_written_out(case, model, every):
    """Rows of all messages that are sent and seen, of final models where they are released, known noise left out."""
    W, rates, walk, to_all = case
    T, n = len(rates), W.num_nodes
    algorithm = built(case, mfdl.EveryStep(T) if every else mfdl.participation.Single(T))
    moves, final = np.zeros((T, T * n)), np.zeros((n, T * n))  # the token after each step, as sums of injections
    for t in range(T):
        moves[t] = moves[t - 1] if t else 0.0
        moves[t, t * n + walk[t]] -= rates[t]
        final[[walk[t], walk[t + 1]]] = moves[t]
    if to_all:
        final[:] = moves[-1]
    leaves = walk[1:] != walk[:-1]
    leaves[-1] |= to_all
    received = leaves & ((walk[1:] == 0) | (to_all & (np.arange(T) == T - 1)))
    received &= walk[:-1] != 0
    hidden = np.ones(n, dtype=bool)
    rows = moves[leaves]
    if model == 2:
        rows, hidden[0] = np.vstack([moves[received], final]), False
    if model == 3:
        rows = final
    elif model < 2 and not leaves[-1]:
        rows = np.vstack([rows, final])  # not determined by what is sent: published, the default
    for loss in mfdl.privacy.sensitivity_by_victim(algorithm, MODELS[model]):
        unknown = hidden if model else np.arange(n) == loss.victim  # under LDP all others collude
        B = rows * np.tile(unknown, T)
        gram, leaks = pinv_gram(rows[:, loss.victim :: n], B)
        assert not leaks.any()
        signed = np.abs(gram).sum() if every else np.diagonal(gram).max(initial=0.0)
        assert loss.sensitivity_squared == pytest.approx(signed, rel=1e-7, abs=1e-9)


def test_a_token_is_calibrated_and_trained():
    graph, T = mfdl.graphs.load("ring:n=4"), 12
    walk = gossip.sampled_walk(RING, T, seed=3)
    algorithm = random_walk(mfdl.Dynamics(RING, 0.5), mfdl.EveryStep(T), walk=walk)
    visits = np.bincount(walk[:-1], minlength=4)
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(trust.Eavesdropper(), **ZERO_OUT), mu=1.0)
    assert mechanism.noise_std == pytest.approx(np.sqrt(visits.max()), rel=1e-6)  # each visit under its own noise
    run = mfdl.replay(mechanism, mfdl.tasks.least_squares(graph, dimension=2), seeds=[0])
    assert np.isfinite(run.final_test_losses).all()
    for loss in mfdl.privacy.sensitivity_by_victim(algorithm, trust.PNDP([2])):
        assert loss.adaptive_sensitivity_squared == pytest.approx(visits[loss.victim])


def test_what_is_no_walk_is_refused():
    dynamics, steps = mfdl.Dynamics(RING, 0.1), mfdl.EveryStep(3)
    for error, words, call in (
        (InvalidInput, "walk must hold 4 node indices", lambda: random_walk(dynamics, steps, walk=[0, 1, 2])),
        (InvalidInput, "below 4, got 0 to 4", lambda: random_walk(dynamics, steps, walk=[0, 1, 0, 4])),
        (InvalidInput, "from node 0 to node 2 after step 1", lambda: random_walk(dynamics, steps, walk=[0, 0, 2, 2])),
        (InvalidInput, "start must be a node", lambda: gossip.sampled_walk(RING, 3, 0, start="z")),
        (InvalidInput, "steps", lambda: gossip.sampled_walk(RING, 0, 0)),
    ):
        refuses(words, call, error=error)
    unsupported("neither momentum", random_walk, mfdl.Dynamics(RING, 0.1, momentum=0.5), steps, walk=[0, 1, 2, 3])


def taut_string(entering):
    """The least sum of squares of what is absorbed, never more in all than has entered: greatest convex minorant."""
    total, left = 0.0, np.array(entering, dtype=float)
    while left.sum() > 0:
        slopes = np.cumsum(left) / np.arange(1, left.size + 1)
        last = left.size - 1 - int(np.argmin(slopes[::-1]))
        total, left = total + slopes[last] ** 2 * (last + 1), left[last + 1 :]
    return total


@given(20, walks(max_steps=7), st.data())
def test_for_training_noise_since_the_visit_hides_it_where_steps_do_not_expand(case, data):
    """One number for each time that the attacker gets the token: 1 / t, t steps after a single visit."""
    W, rates, walk, _ = case
    T, attacker = len(rates), data.draw(st.integers(0, W.num_nodes - 1))
    algorithm = built((W, np.ones(T), walk, False))
    losses = mfdl.privacy.sensitivity_by_victim(algorithm, trust.PNDP([attacker]), release="none", lipschitz=1.0)
    for loss in losses:
        wanted, visits = 0.0, []
        for holder in walk:
            if holder == attacker:
                wanted, visits = wanted + taut_string(visits), []
            else:
                visits.append(holder == loss.victim)
        assert loss.adaptive_sensitivity_squared == pytest.approx(wanted, rel=2e-4, abs=1e-9)
        assert loss.adaptive_sensitivity_squared >= wanted * (1 - 1e-9)
        assert loss.sensitivity_squared <= loss.adaptive_sensitivity_squared * (1 + 1e-9)
