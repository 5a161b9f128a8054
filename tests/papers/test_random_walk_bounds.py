"""Random walks, Algorithm 3 and Zip-DL as published, against fractions, all walks and matrices written out."""

import functools
import itertools
import math

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import given, refuses, st, unsupported

from mfdl import Dynamics, EveryStep, algorithms, gossip, privacy, trust
from mfdl.privacy.gaussian import delta_from_mu
from mfdl.testing import gossip_matrices, gossip_messages, oracles, rational, received, strategies, without_noise
from mfdl_papers import greedy_rows, hitting_times, pn_f_dp, reduce_view, walk_known
from mfdl_papers.random_walk import WalkLosses, _over_walks, _visits_until, smallest_epsilon

GRID = 2 * 16 / 2**13  # of the smallest grid: how much one rounding may add
SMALL = gossip_matrices(min_nodes=2, max_nodes=3)


def lazy(q):
    return gossip.from_array([[1 - q, q], [q, 1 - q]])


def all_walks(W, T, start):
    P = W.dense()
    for walk in itertools.product(range(len(P)), repeat=T + 1):
        chance = start[walk[0]] * np.prod([P[a, b] for a, b in itertools.pairwise(walk)])
        if chance > 0:
            yield np.array(walk), float(chance)


def lost_by_visits(walk, victim, attacker):
    total, visits, noise = 0.0, 0, 0
    for holder in walk.tolist():
        if holder == attacker:
            total, visits, noise = total + (visits**2 / noise if noise else 0.0), 0, 0
        else:
            visits, noise = visits + (holder == victim), noise + 1
    return total


def mixed(epsilon, mus_and_weights):
    return sum(weight * delta_from_mu(mu, epsilon) for mu, weight in mus_and_weights if mu > 0)


def least(epsilon, roundings, exact, delta):
    """Whether what is lost is no less than that many points of the smallest grid below."""
    below = epsilon - roundings * GRID
    return below <= 0 or mixed(below, exact) > 0.99 * delta


@given(40, SMALL, st.integers(1, 4))
def test_hitting_times_are_those_of_all_walks(W, T):
    v = W.num_nodes - 1
    for u in range(W.num_nodes):
        first = np.zeros(T)
        for walk, chance in all_walks(W, T, np.arange(W.num_nodes) == u):
            if (later := np.flatnonzero(walk[1:] == v)).size:
                first[later[0]] += chance
        assert_allclose(hitting_times(W, W.labels[v], T)[:, u], first, atol=1e-12)


@given(40, st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 2)), min_size=1, max_size=3), st.integers(1, 3))
def test_losses_compose_and_mix_from_above(parts, count):
    weights = np.array([weight for weight, _ in parts]) / sum(weight for weight, _ in parts)
    mus = np.array([mu for _, mu in parts])

    def losses(reach):
        return functools.reduce(WalkLosses.times, [WalkLosses.gaussians(reach, weights, mus)] * count)

    epsilon = smallest_epsilon(losses, 1e-4)
    cases = itertools.product(range(len(parts)), repeat=count)
    exact = [(math.sqrt((mus[list(case)] ** 2).sum()), float(weights[list(case)].prod())) for case in cases]
    assert mixed(epsilon, exact) <= 1e-4
    assert least(epsilon, 8 * (count + 2), exact, 1e-4)


@given(20, SMALL, st.integers(1, 6))
def test_one_visit_loses_the_mixture_of_what_hides_it(W, T):
    v = W.num_nodes - 1
    bound = pn_f_dp(W, f"#{v}", num_steps=T, noise_multiplier=0.8, delta=1e-3, visits=1)
    assert bound.valid
    times = hitting_times(W, f"#{v}", T)
    for u in range(v):
        exact = [(1 / (0.8 * math.sqrt(t + 1)), times[t, u]) for t in range(T)]
        assert mixed(bound.value[u], exact) <= 1e-3
        assert least(bound.value[u], 4, exact, 1e-3)
    assert math.isinf(bound.value[v])


@given(20, SMALL, st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_over_the_draw_delta_is_the_mean_over_all_walks(W, T, seed):
    n, v = W.num_nodes, W.num_nodes - 1
    start = np.random.default_rng(seed).dirichlet(np.ones(n))
    bound = walk_known(W, f"#{v}", num_steps=T, noise_multiplier=1.0, delta=1e-3, start=start)
    assert bound.valid
    for u in range(v):
        exact = [(math.sqrt(lost_by_visits(walk, u, v)), chance) for walk, chance in all_walks(W, T, start)]
        assert mixed(bound.value[u], exact) <= 1e-3
        assert least(bound.value[u], 8 * (T + 1), exact, 1e-3)


@given(20, SMALL, st.integers(1, 6))
def test_every_walk_counts_once(W, T):
    n, v, P = W.num_nodes, W.num_nodes - 1, W.dense()
    before, between = (_visits_until(P, 0, v, of, T) for of in (np.full(n, 1 / n), P[v]))
    total = _over_walks(16.0, before, between, 1.0)
    assert total.mass == pytest.approx(1.0, abs=1e-12)
    assert total.transform[0].real + total.lost == pytest.approx(1.0, abs=1e-11)


def test_what_a_walk_loses_is_what_the_library_says_of_it():
    W = gossip.metropolis_hastings("path:n=3")
    for seed in range(4):
        walk = gossip.sampled_walk(W, 9, seed)
        algorithm = algorithms.random_walk(Dynamics(W), EveryStep(9), walk=walk, to_all=False)
        for loss in privacy.sensitivity_by_victim(algorithm, trust.PNDP([2]), release="none"):
            assert loss.sensitivity_squared == pytest.approx(lost_by_visits(walk, loss.victim, 2))


@pytest.mark.parametrize(("q", "T"), [(0.1, 2), (0.1, 4), (0.05, 6)])
def test_noise_between_visits_counts_once(q, T):
    """Two nodes: v sees all but u's steps. Composed over as many visits as there can be, PN-f-DP claims too little."""
    claimed = pn_f_dp(lazy(q), 1, num_steps=T, noise_multiplier=1.0, delta=1e-3, visits=T)
    assert claimed.valid is False
    walks = all_walks(lazy(q), T, [0.5, 0.5])
    exact = [(math.sqrt(lost_by_visits(walk, 0, 1)), chance) for walk, chance in walks]
    assert mixed(claimed.value[0], exact) > 1.3e-3
    bound = walk_known(lazy(q), 1, num_steps=T, noise_multiplier=1.0, delta=1e-3)
    assert bound.value[0] > claimed.value[0]
    assert mixed(bound.value[0], exact) <= 1e-3


def test_the_attackers_own_noise_hides_nothing():
    """A token that changes places in every step comes at once, under the noise of one step."""
    arguments = {"num_steps": 1, "noise_multiplier": 1.0, "delta": 1e-5, "visits": 1}
    late, right = (pn_f_dp(lazy(1.0), 1, **arguments, late=late).value[0] for late in (True, False))
    assert delta_from_mu(1.0, late) > 1e-3
    assert delta_from_mu(1.0, right) <= 1e-5


def test_the_published_numbers_are_met():
    """Hypercube of 32 nodes, T = 275, sigma = 1: public results of the paper's code, which states its error as 0.1."""
    W = gossip.metropolis_hastings(nx.convert_node_labels_to_integers(nx.hypercube_graph(5)))
    bounds = pn_f_dp(W, 0, num_steps=275, noise_multiplier=1.0, delta=1e-5, late=True).value[[1, 3, 7, 15, 31]]
    assert_allclose(bounds, [6.155, 3.995, 3.204, 2.834, 2.631], atol=0.03)


def test_noise_that_is_too_small_to_tell_is_infinite():
    assert math.isinf(pn_f_dp(lazy(0.5), 1, num_steps=4, noise_multiplier=1e-3, delta=1e-5).value[0])
    assert math.isinf(walk_known(lazy(0.5), 1, num_steps=4, noise_multiplier=1.0, delta=1e-12).value[0])


def test_what_is_no_walk_is_refused():
    arguments = {"num_steps": 3, "noise_multiplier": 1.0, "delta": 1e-3}
    changing = gossip.random_pairs("ring:n=3", 3, 0)
    refuses("attacker '7' is not a node", pn_f_dp, lazy(0.5), 7, **arguments)
    for wrong, words in (({"delta": 1.0}, "delta"), ({"noise_multiplier": 0.0}, "noise_multiplier")):
        refuses(words, pn_f_dp, lazy(0.5), 1, **arguments | wrong)
    refuses("start must be 2 probabilities", walk_known, lazy(0.5), 1, **arguments, start=[0.5, 0.6])
    unsupported("the same in every step", hitting_times, changing, 1, 3)


FULL = ("regular", "rank-deficient")


@given(150, strategies.integer_views(max_rows=7, max_noise=4, largest=1))
def test_rows_kept_by_any_time_are_a_basis_of_what_was_seen_by_then(case):
    _, B = case
    rows = greedy_rows(B)
    assert (np.diff(rows) > 0).all()
    for k in range(1, len(B) + 1):
        inside = rows[rows < k]
        assert len(inside) == oracles.rank(rational(B[:k]))
        assert not len(inside) or oracles.rank(rational(B[inside])) == len(inside)


@given(150, strategies.views(kinds=FULL, max_rows=5))
def test_what_is_left_has_the_gram_of_the_view_and_standard_noise(view):
    A, B = view.dense_gradients_by_time(), view.dense_noise()
    reduced = reduce_view(A, B)
    L, Q, S = reduced.triangle, reduced.projection, reduced.signal
    assert_allclose(L @ Q, B[reduced.rows], atol=1e-9)
    assert_allclose(L @ S, A[reduced.rows], atol=1e-9)
    assert_allclose(Q @ Q.T, np.eye(len(L)), atol=1e-12)
    assert not np.triu(L, 1).any()
    assert (np.diag(L) > 0).all()
    onto_rows = oracles.to_float(oracles.exact_view_gram(rational(B), rational(B)))  # B^T (B B^T)^+ B = B^+ B
    assert_allclose(Q.T @ Q, onto_rows, atol=1e-9)
    gram = oracles.to_float(oracles.exact_view_gram(rational(A), rational(B)))
    assert_allclose(S.T @ S, gram, rtol=1e-7, atol=1e-7 * max(1.0, np.abs(gram).max()))


@given(40, strategies.connected_graphs(min_nodes=2, max_nodes=5))
def test_what_one_node_hears_is_undone_in_the_order_of_time(graph):
    """Its messages depend on each other once its own noise is known; S of a step has nothing of later gradients."""
    W, n, T = gossip.metropolis_hastings(graph), len(graph), 3
    messages, _ = gossip_messages(W, T)
    seen = received(W, T, [0], self_messages=True)
    attacker_columns = {t * n for t in range(T)}
    rows = messages[seen.ravel()]
    A, B = without_noise(rows, attacker_columns), without_noise(rows, attacker_columns)
    reduced = reduce_view(A, B)
    assert len(reduced.rows) < len(B)
    time_of_row, time_of_column = np.nonzero(seen)[0][reduced.rows], np.arange(T * n) // n
    assert not reduced.signal[time_of_column[None, :] > time_of_row[:, None]].any()
    assert_allclose(reduced.signal, reduced.projection, atol=1e-9)  # C = I


@given(40, strategies.views(kinds=("leaking",), max_rows=5))
def test_a_view_that_leaks_has_no_reduction(view):
    A, B = view.dense_gradients_by_time(), view.dense_noise()
    leaks = np.array(oracles.exact_leaks(rational(A), rational(B)))
    refuses(f"got column {int(leaks.argmax())} outside of it", reduce_view, A, B)
    if not leaks.all():
        reduce_view(A[:, ~leaks], B)


def test_rows_that_nearly_depend_are_refused():
    refuses("rounding decides here", reduce_view, np.eye(2), [[2**0.5, 1.0], [2**0.5, 1.0 + 1e-12]])
    # weights of thirds stand for thirds: the second row is the first one's third, though no float is
    assert greedy_rows([[0.1, 1.0], [0.1 / 3, 1 / 3]]).tolist() == [0]


def test_no_noise_and_other_shapes():
    nothing = reduce_view(np.zeros((2, 3)), np.zeros((2, 4)))
    assert (nothing.signal.shape, nothing.projection.shape) == ((0, 3), (0, 4))
    refuses("as many rows", reduce_view, np.eye(2), np.eye(3))
    refuses("at most 500000 entries", greedy_rows, np.zeros((1000, 501)))
