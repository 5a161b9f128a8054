"""What a gradient shows beside the noise of all nodes, in parts and between certified ends, as by the whole matrix."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import mfdl
from mfdl import Cyclic, Dynamics, gossip, graphs, node_covariances
from mfdl.algorithms import decor
from mfdl.privacy import sensitivity_by_victim
from mfdl.privacy.forms import noise_of_nodes
from mfdl.privacy.forms.noise_of_nodes import enclosed, inverse_diagonal, node_noise
from mfdl.testing import connected_graphs, gossip_matrices


def pairwise(graph, local, pair):
    return sp.csr_array(sp.hstack([sp.diags_array(local), pair * node_covariances.incidence(graph)]))


@st.composite
def factors(draw):
    """Noise of each node's own, here and there none, and of pairs on a graph that may have several parts."""
    parts = [draw(connected_graphs(max_nodes=5)) for _ in range(draw(st.integers(1, 3)))]
    blocks = []
    for graph in parts:
        n = graph.number_of_nodes()
        local = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0, 0.0]), min_size=n, max_size=n))
        blocks.append(pairwise(graph, np.array(local), draw(st.sampled_from([0.25, 1.0, 10.0]))))
    return sp.csr_array(sp.block_diag(blocks))


def test_noise_of_sizes_far_apart_has_ends_around_the_truth():
    """A system for the coefficients is singular here; any coefficients are a certificate. By Schur complements."""
    local, pairs = (
        np.array([0.008191426185143454, 1.6839003889407265e-05, 0.00429649632556976]),
        (1.9359782984572276, 0.0023355723519906104),
    )
    F = np.zeros((3, 5))
    F[:, :3], F[0, 3:] = np.diag(local), pairs
    F[1, 3], F[2, 4] = -pairs[0], -pairs[1]
    left = enclosed(sp.csr_array(F), np.arange(3))
    squares = [Fraction(value) ** 2 for value in (*local, *pairs)]
    true = 1 / (squares[0] + sum(p * o / (p + o) for o, p in zip(squares[1:3], squares[3:], strict=True)))
    assert not left.undecided[0]
    assert Fraction(left.inverse[0]) + Fraction(left.errors[0]) >= true
    assert left.upper[0] or Fraction(left.inverse[0]) - Fraction(left.errors[0]) <= true


def test_noise_shared_at_a_size_next_to_nothing_is_shared(monkeypatch):
    """Products of the entries underflow: the parts are those of the pattern."""
    monkeypatch.setattr(noise_of_nodes, "DENSE_ROWS", 1)
    F = sp.csr_array(np.array([[1e-5, 1.0, 0.0], [1e-320, 0.0, 1.0]]))
    requested = []
    monkeypatch.setattr(
        noise_of_nodes, "enclosed", lambda F, victims: requested.append(F.shape) or enclosed(F, victims)
    )
    node_noise(F, np.zeros(3, dtype=bool), np.arange(2))
    assert requested == [(2, 3)]


@examples(150)
@given(data=st.data(), F=factors(), rows=st.sampled_from([1, 3]))
def test_parts_and_ends_hold_what_the_whole_matrix_says(data, F, rows):
    known = np.array(data.draw(st.lists(st.booleans(), min_size=F.shape[1], max_size=F.shape[1])), dtype=bool)
    victims = np.arange(F.shape[0])
    whole = node_noise(F, known, victims)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise_of_nodes, "DENSE_ROWS", rows)
        parts = node_noise(F, known, victims)
    decided = ~parts.undecided
    assert_array_equal(parts.open[decided], whole.open[decided])
    finite = decided & ~whole.open
    most, least = parts.inverse + parts.errors, parts.inverse - parts.errors
    assert (most[finite] >= whole.inverse[finite] * (1 - 1e-9)).all()
    exact = finite & ~parts.upper
    assert (least[exact] <= whole.inverse[exact] * (1 + 1e-9)).all()
    assert (parts.errors[exact] <= 1e-6 * parts.inverse[exact]).all()


def test_a_part_without_noise_of_its_own_at_some_node_is_not_told():
    F = pairwise("ring:n=6", np.array([1.0, 0, 1, 1, 1, 1]), 1.0)
    assert enclosed(F, np.arange(6)).undecided.all()


@examples(100)
@given(graph=connected_graphs(max_nodes=9), seed=st.integers(0, 99), pair=st.sampled_from([0.1, 1.0, 30.0]))
def test_both_ends_hold_the_inverse_and_meet_on_small_graphs(graph, seed, pair):
    rng = np.random.default_rng(seed)
    R = node_covariances.incidence(graph) * rng.uniform(0.5, 2, graph.number_of_edges()) * pair
    P = sp.csr_array(R @ R.T)
    lower, upper = inverse_diagonal(P, np.arange(P.shape[0]))
    exact = np.diagonal(np.linalg.inv(np.eye(P.shape[0]) + P.toarray()))
    assert (lower <= exact * (1 + 1e-9)).all()
    assert (upper >= exact * (1 - 1e-9)).all()
    assert pair > 1 or (upper - lower <= 1e-3 * upper).all()  # degree 40 on at most 9 eigenvalues, up to rounding


def test_who_looks_further_encloses_more_tightly(monkeypatch):
    L = node_covariances.laplacian("regular:n=200,degree=6,seed=1")
    exact, apart = np.diagonal(np.linalg.inv(np.eye(200) + L.toarray())), []
    for ball in (1, 100, 10_000):
        monkeypatch.setattr(noise_of_nodes, "BALL_ENTRIES", ball)
        lower, upper = inverse_diagonal(L, np.arange(200))
        assert (lower <= exact).all()
        assert (exact <= upper).all()
        apart.append((1 - lower / upper).max())
    assert 0.5 > apart[0] > 3 * apart[1] > 1e3 * apart[2]


@pytest.mark.parametrize("trust", ["eavesdropper", "ldp"])
def test_decor_is_accounted_in_parts_as_by_the_whole_matrix(trust, monkeypatch):
    algorithm = decor(Dynamics(gossip.metropolis_hastings("ring:n=30")), Cyclic(2, 2), sigma_cor=0.7)
    model = mfdl.trust.named(trust)
    whole = sensitivity_by_victim(algorithm, model)
    monkeypatch.setattr(noise_of_nodes, "DENSE_ROWS", 5)
    for in_parts, wanted in zip(sensitivity_by_victim(algorithm, model), whole, strict=True):
        assert in_parts.bound == wanted.bound == "exact"
        assert_allclose(in_parts.sensitivity_squared, wanted.sensitivity_squared, rtol=1e-8)
        assert in_parts.sensitivity_squared >= wanted.sensitivity_squared * (1 - 1e-9)
    silent = decor(Dynamics(gossip.metropolis_hastings("ring:n=30")), Cyclic(2, 2), sigma_ldp=0.0)
    assert np.isinf([loss.sensitivity_squared for loss in sensitivity_by_victim(silent, model)]).all()


def test_memory_grows_with_the_edges(monkeypatch):
    monkeypatch.setattr(noise_of_nodes, "DENSE_ROWS", 100)
    peaks = []
    for n in (1_000, 4_000):
        F = pairwise(graphs.load_sparse(f"regular:n={n},degree=4"), np.ones(n), 1.0)
        known = np.arange(F.shape[1]) >= n
        tracemalloc.start()
        try:
            node_noise(F, known, range(n))  # every node for itself
            node_noise(F, ~known & False, range(20))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0]
    assert peaks[1] < 4_000**2  # bytes: an eighth of an array n x n


@given(gossip_matrices())
def test_links_are_the_edges_of_the_graph(W):
    links, graph = W.links(), W.graph()
    assert graphs.labels(links) == tuple(graph)
    assert [tuple(e) for e in links.edges.tolist()] == sorted(tuple(sorted(e)) for e in graph.edges)
