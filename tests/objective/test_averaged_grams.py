"""H averaged over gossip drawn anew in each round, against sums over every draw of a tiny graph."""

import dataclasses
import itertools

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import each, example, given, refuses, st

from mfdl import Cyclic, Dynamics, ErrorWeights, algorithms, factorization, gossip
from mfdl.gossip import randomized
from mfdl.objective import NoiseObjective, Probes
from mfdl.objective.estimated_grams import EstimatedGram
from mfdl.testing import gossip_matrices

GRAPHS = {
    "path": nx.path_graph(3), "triangle": nx.complete_graph(3), "pair": nx.path_graph(2), "four": nx.cycle_graph(4),
}  # fmt: skip


def averages(n, ends):
    """The round in which these pairs average."""
    W = np.eye(n)
    for u, v in ends:
        W[np.ix_([u, v], [u, v])] = 0.5
    return W


def without(W, lost):
    """W with the links (i, j) of `lost` down, their weight at home."""
    left = W.copy()
    for i, j in lost:
        left[i, i] += left[i, j]
        left[i, j] = 0
    return left


def outcomes_of_links(W, rate):
    dense = W.dense()
    ways = [(i, j) for i, j in zip(*np.nonzero(dense), strict=True) if i != j]
    links = sorted({tuple(sorted((int(i), int(j)))) for i, j in ways})
    for down in itertools.product((False, True), repeat=len(links)):
        lost = [pair for link, gone in zip(links, down, strict=True) if gone for pair in (link, link[::-1])]
        yield rate ** sum(down) * (1 - rate) ** (len(down) - sum(down)), without(dense, lost), np.eye(len(dense))


def outcomes_of_nodes(W, rate):
    n, dense = W.num_nodes, W.dense()
    for present in itertools.product((0.0, 1.0), repeat=n):
        lost = [(i, j) for i in range(n) for j in range(n) if i != j and not present[i] * present[j]]
        yield rate ** (n - sum(present)) * (1 - rate) ** sum(present), without(dense, lost), np.diag(present)


def outcomes_of_pairs(graph):
    n, edges = len(graph), list(graph.edges)
    return [(1 / len(edges), averages(n, [edge]), np.eye(n)) for edge in edges]


def outcomes_of_matchings(n):
    pairings = [[(0, 1)]] if n == 2 else [[(0, k), tuple({1, 2, 3} - {k})] for k in (1, 2, 3)]
    return [(1 / len(pairings), averages(n, ends), np.eye(n)) for ends in pairings]


def outcomes_of_peers(n, count):
    rows = [list(itertools.combinations([j for j in range(n) if j != i], count)) for i in range(n)]
    for chosen in itertools.product(*rows):
        W = np.eye(n)
        for i, others in enumerate(chosen):
            W[i, list(others)] = 1
        yield 1 / np.prod([len(r) for r in rows]), W / (count + 1), np.eye(n)


def cases():
    rates = st.sampled_from([0.0, 0.2, 0.5])
    small = gossip_matrices(min_nodes=1, max_nodes=3)
    return st.one_of(
        st.tuples(small, rates).map(lambda c: (randomized.links(*c), list(outcomes_of_links(*c)))),
        st.tuples(small, rates).map(lambda c: (randomized.nodes(*c), list(outcomes_of_nodes(*c)))),
        st.sampled_from(sorted(GRAPHS)).map(lambda g: (randomized.pairs(GRAPHS[g]), outcomes_of_pairs(GRAPHS[g]))),
        st.sampled_from([2, 4]).map(lambda n: (randomized.matchings(nx.complete_graph(n)), outcomes_of_matchings(n))),
        st.sampled_from([(2, 1), (3, 1), (3, 2)]).map(lambda c: (randomized.peers(*c), list(outcomes_of_peers(*c)))),
    )


@given(100, cases(), st.integers(0, 2**32 - 1))
def test_moments_are_the_mean_over_all_outcomes_of_a_round(case, seed):
    random, outcomes = case
    n, moments = random.num_nodes, random.moments
    X = np.random.default_rng(seed).standard_normal((n, n))
    assert sum(p for p, _, _ in outcomes) == pytest.approx(1)
    for got, of in (
        (moments.mean.toarray(), lambda W, P: W),
        (moments.mean_online.toarray(), lambda W, P: W @ P),
        (moments.around(X), lambda W, P: W.T @ X @ W),
        (moments.around_online(X), lambda W, P: W.T @ X @ W @ P),
        (moments.back_online(X), lambda W, P: W.T @ X @ P),
    ):
        assert_allclose(got, sum(p * of(W, P) for p, W, P in outcomes), atol=1e-12)


@given(60, cases(), st.integers(0, 2**32 - 1))
def test_what_is_drawn_is_one_of_the_outcomes(case, seed):
    random, outcomes = case
    drawn = random.draw(2, seed)
    for r in range(2):
        P = np.eye(random.num_nodes) if drawn.present is None else np.diag(drawn.present[r].astype(float))
        W = drawn.gossip.at(r).dense()
        assert any(p > 0 and np.allclose(W, V) and np.allclose(P, Q) for p, V, Q in outcomes)


PATH = gossip.metropolis_hastings("path:n=2")
NODES_OF_A_PATH = randomized.nodes(PATH, 0.5), list(outcomes_of_nodes(PATH, 0.5))


def gram_of(rounds, T, K, dynamics, weights, after, F):
    """H of one sequence of (W, P), by following each injection."""
    rates = dynamics.learning_rates(T) / dynamics.learning_rates(T)[0]
    shrink, n = 1 - dynamics.weight_decay * dynamics.learning_rates(T), len(rounds[0][0])
    counted = np.zeros((T, T, *F.shape))
    for s in range(T):
        theta = v = np.zeros((n, n))
        for t in range(s, T):
            v = dynamics.momentum * v + (rounds[t * K][1] if t == s else 0)
            mu = shrink[t] * theta + rates[t] * v
            theta = mu
            for W, _ in rounds[t * K : (t + 1) * K]:
                theta = W @ theta
            counted[s, t] = np.sqrt(weights[t]) * F @ (theta if after else mu)
    return np.einsum("sriu,triu->st", counted, counted)


BOTH = {"momentum": 0.5, "weight_decay": 0.3, "learning_rate": [0.5, 1.0, 0.25]}
DYNAMICS = st.sampled_from([{}, {"momentum": 0.6}, BOTH, {"weight_decay": 0.2}])
TARGETS = st.sampled_from(["nodes", "average"])


def rows_of(target, n):
    """F with F^T F = Q."""
    return np.eye(n) if target == "nodes" else np.full((1, n), n**-0.5)


@example(NODES_OF_A_PATH, {"momentum": 0.6}, "post-average", "nodes", False)
@given(60, cases(), DYNAMICS, st.sampled_from(["post-average", "message"]), TARGETS, st.booleans())
def test_the_average_is_that_over_all_sequences_of_outcomes(case, settings, counted_models, target, twice):
    random, outcomes = case
    outcomes = [outcome for outcome in outcomes if outcome[0] > 0]
    n, T = random.num_nodes, 3 if len(outcomes) <= 8 else 2
    K = 2 if twice and not random.node_dropout and len(outcomes) <= 3 else 1
    if "learning_rate" in settings:
        settings = settings | {"learning_rate": settings["learning_rate"][:T]}
    dynamics = Dynamics(gossip.from_array(np.eye(n)), gossip_rounds=K, **settings)
    weights = ErrorWeights([1.0, 0.5, 2.0][:T], target)
    after, F = counted_models == "post-average", rows_of(target, n)
    expected = sum(
        np.prod([p for p, _, _ in sequence])
        * gram_of([(W, P) for _, W, P in sequence], T, K, dynamics, weights.weights_by_step(T), after, F)
        for sequence in itertools.product(outcomes, repeat=T * K)
    )
    assert_allclose(NoiseObjective(dynamics, T, weights, counted_models).averaged(random), expected, atol=1e-12)


@given(30, cases(), TARGETS, st.integers(0, 2**32 - 1))
def test_the_gram_of_one_draw_counts_those_who_are_present(case, target, seed):
    random, _ = case
    drawn, n = random.draw(3, seed), random.num_nodes
    present = np.ones((3, n)) if drawn.present is None else drawn.present
    counted = NoiseObjective(Dynamics(drawn.gossip, momentum=0.3), 3, ErrorWeights([1.0, 0.5, 2.0], target))
    rounds = [(drawn.gossip.at(t).dense(), np.diag(present[t].astype(float))) for t in range(3)]
    expected = gram_of(rounds, 3, 1, counted.dynamics, counted.step_weights, True, rows_of(target, n))
    assert_allclose(counted.over_steps(present=present.astype(bool)), expected, atol=1e-12)


def test_draws_with_error_bars_are_near_the_closed_form_where_there_is_one():
    ring, T = gossip.metropolis_hastings("ring:n=6"), 5
    counted = NoiseObjective(Dynamics(ring), T)
    for random in (randomized.nodes(ring, 0.3), randomized.pairs("ring:n=6")):
        exact = counted.averaged(random)
        drawn = counted.averaged(dataclasses.replace(random, moments=None), Probes(24, seed=1))
        assert np.linalg.eigvalsh(exact)[0] > 0
        assert drawn.gram.shape == (T, T)
        assert abs(drawn.trace.value - np.trace(exact)) < 1.5 * drawn.trace.error < 0.2 * np.trace(exact)
        assert_allclose(drawn.gram, exact, atol=0.1 * exact.max())
    assert isinstance(counted.averaged(randomized.matchings("ring:n=6")), EstimatedGram)
    released = dataclasses.replace(counted, weights=ErrorWeights("released:average:2"))
    assert isinstance(released.averaged(randomized.nodes(ring, 0.3)), EstimatedGram)


def test_the_encoder_for_the_average_is_the_best_for_all_draws_together():
    path, participation = gossip.metropolis_hastings("path:n=3"), Cyclic(epochs=2, period=2)
    outcomes = [gossip.from_array(W) for _, W, _ in outcomes_of_pairs(GRAPHS["path"])]
    sequences = [gossip.sequence(s, repeat=False) for s in itertools.product(outcomes, repeat=4)]
    posed = [factorization.problem(Dynamics(s), participation) for s in sequences]
    random, tight = randomized.pairs("path:n=3"), {"tolerance": 1e-8}
    algorithm = algorithms.mafalda(Dynamics(sequences[5]), participation, averaged_over=random, **tight)
    solved = algorithm.factorization
    X = solved.encoder.T @ solved.encoder
    assert np.mean([p.objective(X) for p in posed]) == pytest.approx(solved.objective, rel=1e-9)
    assert solved.gap < 1e-8
    for p in posed[::5]:  # made for one draw, so worse for all together
        other = factorization.solve_problem(p, **tight).encoder
        assert np.mean([q.objective(other.T @ other) for q in posed]) > solved.lower_bound * (1 + 1e-6)
    drawn = dataclasses.replace(random, moments=None)
    estimated = factorization.factorize(Dynamics(path), participation, averaged_over=drawn, **tight)
    assert isinstance(estimated, factorization.temporal.EstimatedFactorization)
    assert abs(estimated.objective - solved.objective) < 2 * estimated.objective_error
    assert "8 draws of random pairs" in estimated.notes[0]


RING = gossip.metropolis_hastings("ring:n=4")
ON_RING = NoiseObjective(Dynamics(RING), 2)
TWICE = NoiseObjective(Dynamics(RING, gossip_rounds=2), 2)


@each(
    "call, message",
    (lambda: ON_RING.averaged(randomized.peers(5, 2)), "the 4 nodes of dynamics"),
    (lambda: TWICE.averaged(randomized.nodes(RING, 0.1)), "one gossip round in each step, got gossip_rounds=2"),
    (lambda: randomized.links(RING, 1.0), r"rate must lie in \[0, 1\), got 1"),
    (lambda: randomized.peers(3, 3), "count must be below the number of nodes, 3"),
    (lambda: ON_RING.averaged(RING), "random must be"),
    (lambda: ON_RING.over_steps(np.ones((3, 4), dtype=bool)), "each of 2 steps, got 3"),
)
def test_arguments_that_do_not_fit_are_refused(call, message):
    refuses(message, call)
