"""Utility constants of correlated noise and one step of D-SGD with it: terms written out, where constants fail."""

import math

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import each, given, refuses, st

from mfdl import Dynamics, gossip, graphs, node_covariances
from mfdl.testing import connected_graphs, gossip_matrices, gossip_sequences
from mfdl_papers import (
    accumulated_error,
    average_error,
    decor_constant,
    decor_corollary,
    decor_descent,
    decor_disagreement,
    decor_rate,
    decor_rate_non_convex,
    decor_step_size,
    decor_step_sizes,
    decor_theorem_2,
    decor_theorem_2_non_convex,
    heterogeneity,
    one_step_error,
    pairwise_error,
)

CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def covariance_of(seed, n):
    F = np.random.default_rng(seed).integers(-2, 3, (n, n + 1)).astype(float)
    return F @ F.T


def edges_of(W):
    weights = W.dense()
    n = len(weights)
    return [(i, k) for i in range(n) for k in range(i + 1, n) if weights[i, k] or weights[k, i]]


# Variances
SOME_GOSSIP = st.one_of(gossip_matrices(max_nodes=5), gossip_sequences(max_nodes=4))


@given(W=SOME_GOSSIP, T=st.integers(1, 5), seed=st.integers(0, 99))
def test_accumulated_error_sums_over_every_earlier_step(W, T, seed):
    W = W if W.is_constant else gossip.sequence(W.matrices)
    R, expected = covariance_of(seed, W.num_nodes), 0.0
    for tau in range(T):
        for s in range(tau + 1):
            P = np.eye(W.num_nodes)
            for step in range(s, tau + 1):
                P = W.at(step).dense() @ P
            expected += np.trace(P @ R @ P.T)
    assert_allclose(accumulated_error(W, R, T), expected, **CLOSE)
    first = W.at(0)
    assert_allclose(one_step_error(first, R), np.trace(first.dense() @ R @ first.dense().T), **CLOSE)


@given(W=gossip_matrices(max_nodes=6), pair=st.sampled_from([0.0, 0.5, 2.0]))
def test_pairwise_error_is_lemma_8(W, pair):
    weights, edges = W.dense(), edges_of(W)
    columns = sum(np.sum((weights[:, i] - weights[:, k]) ** 2) for i, k in edges)
    L = np.zeros_like(weights)
    for i, k in edges:
        L[[i, k], [i, k]] += 1
        L[[i, k], [k, i]] -= 1
    computed = pairwise_error(W, pair)
    assert_allclose(computed, pair**2 * np.trace(weights @ L @ weights.T), **CLOSE)
    assert_allclose(computed, pair**2 * columns, **CLOSE)
    assert_allclose(computed, 2 * heterogeneity(W) * len(edges) * pair**2, **CLOSE)
    assert_allclose(computed, one_step_error(W, node_covariances.decor_covariance(L, 0.0, pair)), **CLOSE)


@given(W=gossip_matrices(max_nodes=6))
def test_heterogeneity_by_rows_is_that_of_the_transposed_product(W):
    weights, edges = W.dense(), edges_of(W)
    rows = sum(np.sum((weights[i] - weights[k]) ** 2) for i, k in edges) / max(1, 2 * len(edges))
    assert_allclose(heterogeneity(W, of="rows"), rows, **CLOSE)
    if W.is_symmetric:
        assert_allclose(heterogeneity(W), rows, **CLOSE)


@given(graph=connected_graphs(min_nodes=2, max_nodes=8))
def test_rows_of_uniform_weights_stay_below_the_published_claim(graph):
    least = min(degree for _, degree in graph.degree)
    W = gossip.uniform(graph)
    assert heterogeneity(W, of="rows") <= (1 + 1e-12) / (least + 1) < 2 / least


@each(
    "graph, make, value, least_degree",
    ("star:n=20", gossip.uniform, 2.25, 1),
    ("star:n=50", gossip.uniform, 6.0, 1),
    (nx.complete_bipartite_graph(5, 100), gossip.metropolis_hastings, 0.4474, 5),
)
def test_the_published_claim_fails_in_general(graph, make, value, least_degree):
    computed = heterogeneity(make(graph))
    assert_allclose(computed, value, rtol=1e-4)
    assert computed > 2 / least_degree


def test_the_printed_weights_without_self_weight_are_worse_still():
    """1 / (degree + 1) for neighbours only, rows below 1: no gossip matrix, so written out. 2.376 and 6.13."""
    for n, value in ((20, 2.376), (50, 6.13)):
        A = graphs.adjacency(graphs.load(f"star:n={n}")).toarray()
        W = A / (A.sum(axis=1, keepdims=True) + 1)
        columns = [np.sum((W[:, i] - W[:, k]) ** 2) for i, k in zip(*np.nonzero(np.triu(A)), strict=True)]
        assert_allclose(np.mean(columns) / 2, value, rtol=1e-3)


@each(
    "graph, edges, connectivity, after_one, H, p",
    ("ring:n=16", 16, 0.1522, 0.0437, 0.1111, 0.0989),
    ("torus:n=16", 32, 2.0, 1.657, 0.12, 0.64),
    ("complete:n=16", 120, 16.0, 15.0, 0.0, 1.0),
)
def test_published_constants_of_16_nodes(graph, edges, connectivity, after_one, H, p):
    W = gossip.metropolis_hastings(graph)
    assert len(edges_of(W)) == edges
    assert_allclose(np.linalg.eigvalsh(node_covariances.laplacian(graph).toarray())[1], connectivity, atol=5e-5)
    assert_allclose(node_covariances.algebraic_connectivity_after_deletion(graph, 1), after_one, atol=5e-4)
    assert_allclose(heterogeneity(W), H, atol=5e-5)
    assert_allclose(W.mixing_parameter, p, atol=5e-5)


# The average
@given(W=gossip_matrices(max_nodes=6), seed=st.integers(0, 99))
def test_average_error_is_the_variance_of_the_mean(W, seed):
    R = covariance_of(seed, W.num_nodes)
    a = W.dense().sum(axis=0) / W.num_nodes
    assert_allclose(average_error(W, R), a @ R @ a, **CLOSE)


@given(graph=connected_graphs(min_nodes=2, max_nodes=8))
def test_pairwise_noise_cancels_in_the_average_of_metropolis_hastings_only(graph):
    """1^T W N = 0 for every edge exactly when columns sum to 1; uniform weights do so on regular graphs only."""
    L, N = node_covariances.laplacian(graph).toarray(), node_covariances.incidence(graph).toarray()
    assert average_error(gossip.metropolis_hastings(graph), L) < 1e-14  # rounding of sums up to 8
    W = gossip.uniform(graph)
    regular = len({degree for _, degree in graph.degree}) == 1
    left = np.abs(np.ones(len(L)) @ W.dense() @ N).max()
    assert W.is_doubly_stochastic == regular
    # connected: column sums that differ somewhere differ along an edge, here by 1/840 at least
    assert (left < 1e-12) == regular
    assert (average_error(W, L) < 1e-14) == regular


# The published bound

RING = gossip.metropolis_hastings("ring:n=16")
PROBLEM = {"smoothness": 4.0, "pl_constant": 0.5}
FULL = {
    **PROBLEM, "sigma_ldp": 1.5, "sigma_cor": 3.0, "num_steps": 1000, "dimension": 10, "gradient_variance": 2.0,
    "gradient_divergence": 0.7, "growth_of_variance": 0.3, "growth_of_divergence": 0.2, "initial_loss": 5.0,
    "initial_disagreement": 0.1,
}  # fmt: skip


def test_decor_theorem_2_term_by_term():
    computed = decor_theorem_2(RING, **FULL)
    W, n, T, d, L, mu = RING.dense(), 16, 1000, 10, 4.0, 0.5
    p = 1 - (1 / 3 + 2 / 3 * math.cos(math.pi / 8)) ** 2
    c = max(4 * math.sqrt(3 * (1 - p) * (3 + p * 0.3)), mu / L, 2 * p, 4 * p * 0.3 / n)  # P = 0.2 counts as 1
    drift = L**2 * math.log(T) / (mu**3 * p * T**2)
    expected = {
        "average_noise": L * (2.0 + d * 1.5**2) / (mu**2 * n * T),
        "initial_loss": c**2 * L**2 * 5.0 / (mu**2 * p**2 * T**2),
        "initial_disagreement": c * L**3 * 0.1 / (mu**2 * p**2 * T**2),
        "gradient_disagreement": drift * (1 - p) * (0.7 / p + 2.0),
        "pairwise_disagreement": drift * (1 / 9) * 16 * d * 3.0**2 / n,  # H_G = 1/9 on a ring
        "local_disagreement": drift * (np.sum(W**2) - 1) * d * 1.5**2,  # ||W - J||^2 = ||W||^2 - 1
    }
    assert_allclose([computed._asdict()[name] for name in expected], list(expected.values()), rtol=1e-10)
    assert_allclose(computed.total, sum(expected.values()), rtol=1e-10)
    assert set(computed._fields) == set(expected)


def test_decor_step_sizes_start_where_the_lemmas_allow():
    """eta_0 = p / (c L); the published eta_0 is 16 p / (c L)."""
    given_ones = {**PROBLEM, "growth_of_variance": 0.3, "growth_of_divergence": 0.2}
    eta = decor_step_sizes(RING, 50, **given_ones)
    p, c = RING.mixing_parameter, decor_constant(RING, **given_ones)
    assert_allclose(eta[0], p / (c * 4.0), rtol=1e-12)
    assert_allclose(16 / 0.5 / eta, np.arange(50) + 16 / 0.5 / eta[0], rtol=1e-12)  # 1 / eta_t grows by mu / 16 a step
    assert_allclose(Dynamics(RING, eta).learning_rates(50), eta)


def test_decor_constant_takes_the_largest_of_four():
    p = RING.mixing_parameter
    assert_allclose(decor_constant(RING, smoothness=1.0, pl_constant=20.0), 20.0)
    assert_allclose(decor_constant(RING, **PROBLEM), 4 * math.sqrt(9 * (1 - p)))  # P counts as 1
    computed = decor_constant(RING, **PROBLEM, growth_of_divergence=2.0)
    assert_allclose(computed, 4 * math.sqrt(18 * (1 - p)))
    complete = gossip.metropolis_hastings("complete:n=16")  # p = 1: nothing under the root
    assert_allclose(decor_constant(complete, **PROBLEM), 2.0, rtol=1e-6)
    assert_allclose(decor_constant(complete, **PROBLEM, growth_of_variance=32.0), 8.0, rtol=1e-6)


@pytest.mark.parametrize("q", [0, 1])
def test_the_leading_error_is_n_minus_q_times_below_independent_noise(q):
    """At one epsilon pairwise noise needs s_local^2 = c / (n - q), independent noise c = 32 C^2 T L / eps^2."""
    epsilon, delta, T = 2.0, 1e-5, 1000
    noise = decor_corollary("ring:n=16", epsilon=epsilon, delta=delta, num_colluders=q, num_steps=T)
    alone = math.sqrt(32 * T * math.log(1 / delta)) / epsilon
    given_ones = {**PROBLEM, "num_steps": T, "dimension": 10}
    pairwise = decor_theorem_2(RING, sigma_ldp=noise.sigma_ldp, sigma_cor=noise.sigma_cor, **given_ones)
    independent = decor_theorem_2(RING, sigma_ldp=alone, sigma_cor=0.0, **given_ones)
    assert_allclose(independent.average_noise / pairwise.average_noise, 16 - q, rtol=1e-9)


# What is refused
STAR, ALONE = gossip.uniform("star:n=5"), gossip.from_array(np.eye(3))
KNOWN = {
    "smoothness": 4.0, "gradient_variance": 2.0, "gradient_divergence": 0.7, "growth_of_variance": 0.3,
    "growth_of_divergence": 1.2, "initial_loss": 5.0, "initial_disagreement": 0.1,
}  # fmt: skip
AT = {"loss": 0.0, "gradient_squared": 1.0, "disagreement": 0.0}
SHORT = {"delta": 1e-5, "num_steps": 5, "dimension": 1, "smoothness": 1.0}


@each(
    "call, message",
    (lambda: one_step_error(STAR, np.eye(4)), "covariance must be 5 x 5"),
    (lambda: accumulated_error(STAR, np.triu(np.ones((5, 5))), 2), "covariance must be symmetric"),
    (lambda: average_error(STAR, np.full((5, 5), np.nan)), "covariance must be finite"),
    (lambda: pairwise_error(STAR, -1.0), "sigma_cor must be a finite number >= 0"),
    (lambda: heterogeneity(STAR, of="row"), "unknown part of the gossip matrix 'row'; did you mean 'rows'"),
    (lambda: decor_theorem_2(STAR, **FULL), "doubly stochastic"),
    (lambda: decor_step_sizes(ALONE, 5, **PROBLEM), r"gossip must mix.*got p = 0"),
    (lambda: decor_descent(STAR, learning_rate=0.1, **AT, **KNOWN), "doubly stochastic"),
    (lambda: decor_descent(RING, learning_rate=0.3, **AT, **KNOWN), "learning_rate must be at most 1 / smoothness"),
    (lambda: decor_step_size(RING, 5, sigma_ldp=1, dimension=1, smoothness=1.0), "initial_loss must be"),
    (lambda: decor_rate_non_convex("ring:n=16", epsilon=2, **SHORT), "initial_loss must be"),
    (lambda: decor_rate("ring:n=16", epsilon=40, **SHORT, pl_constant=1.0), r"epsilon must be at most 2.343"),
    (lambda: decor_theorem_2(RING, **{**FULL, "num_steps": 0}), "num_steps must be"),
    (lambda: decor_theorem_2(RING, **{**FULL, "dimension": 0}), "dimension must be"),
    (lambda: decor_theorem_2(RING, **{**FULL, "smoothness": 0.0}), "smoothness must be"),
    (lambda: decor_theorem_2(RING, **{**FULL, "pl_constant": -1.0}), "pl_constant must be"),
    (lambda: decor_theorem_2(RING, **{**FULL, "initial_loss": -1.0}), "initial_loss must be"),
)
def test_bad_arguments_are_refused(call, message):
    refuses(message, call)


def test_sparse_covariances_and_graphs_without_edges():
    assert_allclose(one_step_error(RING, node_covariances.laplacian("ring:n=16")), pairwise_error(RING, 1.0))
    alone = gossip.from_array([[1.0]])
    assert heterogeneity(alone) == heterogeneity(alone, of="rows") == pairwise_error(alone, 1.0) == 0.0


NOISE = {"sigma_ldp": 1.5, "sigma_cor": 3.0, "dimension": 10}
P_RING = 1 - (1 / 3 + 2 / 3 * math.cos(math.pi / 8)) ** 2


def added():
    """What a step of rate 1 adds to the disagreement on the ring: by gradients, pairwise and local noise."""
    W = RING.dense()
    pairs = 2 * (1 / 9) * 16 * 10 * 3.0**2 / 16  # H_G = 1/9
    return (1 - P_RING) * (6 * 0.7 / P_RING + 2.0), pairs, (np.sum(W**2) - 1) * 10 * 1.5**2 / 16


def test_one_step_written_out():
    eta, f, g, Xi, n, p = 0.1, 3.0, 2.0, 0.5, 16, P_RING
    at = {"learning_rate": eta, "gradient_squared": g, "disagreement": Xi}
    descent = decor_descent(RING, loss=f, **at, sigma_ldp=1.5, dimension=10, **KNOWN)
    m = 2 * eta * 4 * 0.3 / n
    expected = f - eta / 2 * (1 - m) * g + eta * 16 / 2 * (1 + m) * Xi + 4 * eta**2 / 32 * (2 + 10 * 1.5**2)
    assert_allclose(descent, expected, rtol=1e-12)
    left = decor_disagreement(RING, **at, **NOISE, **KNOWN)
    factor = 1 - 2 * p / 3 + 2 * (1 - p) * (3 + p * 0.3) * eta**2 * 16 / p
    expected = factor * Xi + 2 * (1 - p) * (3 * 1.2 + p * 0.3) / p * eta**2 * g + eta**2 * sum(added())
    assert_allclose(left, expected, rtol=1e-10)
    for under_root, share in ((6, 3), (12, 2)):  # the contraction at the steps of the lemma, and at those it needs
        eta = p / (4 * math.sqrt(under_root * (1 - p) * (3 + p * 0.3)))
        at = {"learning_rate": eta, "gradient_squared": g, **NOISE, **KNOWN}
        difference = decor_disagreement(RING, disagreement=1.0, **at) - decor_disagreement(RING, disagreement=0.0, **at)
        assert_allclose(difference, 1 - p / share, rtol=1e-9)


def test_theorem_2_non_convex_term_by_term():
    T, p, L, variance = 1_000_000, P_RING, 4.0, 2 + 10 * 1.5**2
    computed = decor_theorem_2_non_convex(RING, num_steps=T, **NOISE, **KNOWN)
    eta = math.sqrt(2 * 16 * 5 / (L * T * variance))
    assert_allclose(decor_step_size(RING, T, sigma_ldp=1.5, dimension=10, **KNOWN), eta, rtol=1e-12)
    first = [3.2 * eta * L * variance / 16, 6.4 * 5 / (eta * T), 14.4 * L**2 * 0.1 / (p * T)]
    assert_allclose(list(computed), first + [14.4 * eta**2 * L**2 / p * part for part in added()], rtol=1e-10)
    # few steps: the largest that the lemmas allow, c = 4 sqrt(3 (1 - p) (3 P + p M)) here
    c = decor_constant(RING, **KNOWN)
    assert_allclose(c, 4 * math.sqrt(3 * (1 - p) * (3.6 + p * 0.3)))
    assert_allclose(decor_step_size(RING, 1, sigma_ldp=0.0, dimension=1, **KNOWN), p / (c * L), rtol=1e-12)
    for T in (1, 100, 10**6):
        bound = decor_theorem_2_non_convex(RING, num_steps=T, **NOISE, **KNOWN)
        leading = 6.4 * math.sqrt(2 * L * 5 * variance / (16 * T)) + 6.4 * c * L * 5 / (p * T)
        assert bound.average_noise + bound.initial_loss <= leading * (1 + 1e-12)
    noiseless = {**KNOWN, "gradient_variance": 0.0}
    assert_allclose(decor_step_size(RING, 9, sigma_ldp=0.0, dimension=1, **noiseless), p / (c * L), rtol=1e-12)


def test_the_non_convex_part_has_no_pl_constant():
    """mu / L, which may be 1, is at most 2 p where p is 1/2: only graphs of slow mixing show it, with small P and M."""
    steep = {**KNOWN, "pl_constant": 4000.0}
    assert_allclose(decor_constant(RING, **steep), 1000.0)
    first, second = (decor_theorem_2_non_convex(RING, num_steps=9, **NOISE, **known) for known in (steep, KNOWN))
    assert first == second
    refuses("pl_constant must be", decor_theorem_2, RING, num_steps=9, **NOISE, **KNOWN)


def test_nodes_of_one_loss_part_for_good_at_steps_that_ignore_mixing():
    """Three nodes on a path, W_ij = 1/10, loss 1 - cos x, so L = 1, M = P = zeta* = 0: in the valleys 0, 0 and 2 pi."""
    W = np.eye(3) - np.array([[1, -1, 0], [-1, 2, -1], [0, -1, 1]]) / 10
    path, start, T = gossip.from_array(W), np.array([0, 0, 2 * math.pi]), 20_000
    p = path.mixing_parameter
    known = {"smoothness": 1.0, "initial_loss": 1 - math.cos(start.mean()), "initial_disagreement": start.var()}

    def gradients(eta):
        x, squares = start, []
        for _ in range(T):
            squares.append(math.sin(x.mean()) ** 2)
            x = W @ (x - eta * np.sin(x))
        return np.array(squares), x

    squares, x = gradients(1 / 2)  # p / (c L) with c = 2 p
    assert_allclose(W @ (x - np.sin(x) / 2), x, atol=1e-12)  # they stay there
    assert_allclose(squares[-1], 0.894**2, rtol=1e-3)
    printed = 6.4 * 2 * known["initial_loss"] / T + 14.4 * known["initial_disagreement"] / (p * T)
    assert squares.mean() > 10 * printed
    eta = decor_step_size(path, T, sigma_ldp=0.0, dimension=1, **known)
    squares, x = gradients(eta)
    assert np.abs(x).max() < 1e-12
    bound = decor_theorem_2_non_convex(path, sigma_ldp=0, sigma_cor=0, num_steps=T, dimension=1, **known)
    assert squares.mean() <= bound.total < 0.3


@pytest.mark.parametrize("q", [0, 1])
def test_rates_are_the_leading_terms_of_theorem_2(q):
    budget = {"epsilon": 2.0, "delta": 1e-5, "num_colluders": q, "num_steps": 1000}
    known = {**KNOWN, "pl_constant": 0.5}
    local = decor_corollary("ring:n=16", **budget).sigma_ldp
    rate = decor_rate("ring:n=16", **budget, dimension=10, **known)
    theorem = decor_theorem_2(RING, sigma_ldp=local, sigma_cor=0, num_steps=1000, dimension=10, **known)
    assert_allclose(rate.total, theorem.average_noise, rtol=1e-12)
    assert_allclose(rate.sampling, 4 * 2 / (0.25 * 16 * 1000), rtol=1e-12)
    gradient = decor_rate_non_convex("ring:n=16", **budget, dimension=10, **known)
    assert_allclose(gradient.sampling, math.sqrt(4 * 5 * 2 / (16 * 1000)), rtol=1e-12)
    assert_allclose(gradient.privacy**2 / rate.privacy, 5 * 0.25, rtol=1e-12)
    # both with all steps: the price of privacy stays
    longer = {**budget, "num_steps": 4000}
    assert_allclose(decor_rate("ring:n=16", **longer, dimension=10, **known).privacy, rate.privacy, rtol=1e-12)
