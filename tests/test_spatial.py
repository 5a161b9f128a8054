"""Node covariances: known spectra, closed forms, and what is refused."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl import graphs, node_covariances
from mfdl.node_covariances import (
    algebraic_connectivity_after_deletion,
    decor_covariance,
    incidence,
    inverse_diagonal,
    inverse_diagonal_by_node,
    laplacian,
)
from mfdl.testing import connected_graphs


@given(graph=connected_graphs(), data=st.data())
def test_laplacian_is_incidence_times_its_transpose_for_every_orientation(graph, data):
    m = graph.number_of_edges()
    signs = data.draw(st.lists(st.sampled_from([-1, 1]), min_size=m, max_size=m))
    L = nx.laplacian_matrix(graph, nodelist=graphs.labels(graph)).toarray()
    N = incidence(graph, signs).toarray()
    assert N.shape == (len(graph), m)
    assert_allclose(N @ N.T, L, atol=0)
    assert_allclose(laplacian(graph).toarray(), L, atol=0)
    assert_allclose(decor_covariance(laplacian(graph), 0.5, 2.0), 0.25 * np.eye(len(L)) + 4 * N @ N.T, atol=1e-14)


@examples(40)
@given(graph=connected_graphs(min_nodes=2, max_nodes=6), q=st.integers(0, 4))
def test_algebraic_connectivity_is_the_minimum_over_all_deletions_rounded_down(graph, q):
    n = len(graph)
    if q >= n:
        refuses("below the number of nodes", algebraic_connectivity_after_deletion, graph, q)
        return
    connectivity = algebraic_connectivity_after_deletion(graph, q)
    if n - q == 1:
        assert connectivity == math.inf
        return
    true = min(
        np.linalg.eigvalsh(nx.laplacian_matrix(graph.subgraph(set(graph) - set(out))).toarray())[1]
        for out in itertools.combinations(graph, q)
    )
    assert max(0.0, true) - 1e-12 <= connectivity <= max(0.0, true) + 1e-14


def test_a_cut_vertex_leaves_no_connectivity():
    assert algebraic_connectivity_after_deletion("path:n=5", 1) == 0
    assert algebraic_connectivity_after_deletion("path:n=5", 0) == pytest.approx(2 - 2 * math.cos(math.pi / 5))


def test_inverse_diagonal_against_the_dense_inverse(monkeypatch):
    rng = np.random.default_rng(0)
    M = rng.standard_normal((6, 6))
    R = M @ M.T + 0.1 * np.eye(6)
    assert_allclose(inverse_diagonal_by_node(R), np.linalg.inv(R).diagonal(), rtol=1e-10)
    assert_allclose(inverse_diagonal(R), np.linalg.inv(R).diagonal().max(), rtol=1e-10)
    # batches do not change the deletions
    whole = algebraic_connectivity_after_deletion("florentine", 2)
    monkeypatch.setattr(node_covariances, "_BATCH_ENTRIES", 1)
    assert algebraic_connectivity_after_deletion("florentine", 2) == whole


def test_the_honest_part_conditions_on_what_colluders_know_of_their_own_noise():
    """Given the colluders' noise z_I, the honest covariance is the Schur complement, smaller than the submatrix."""
    R = decor_covariance(laplacian("ring:n=6"), 0.5, 2.0)
    H, I = [1, 2, 3, 5], [0, 4]
    schur = R[np.ix_(H, H)] - R[np.ix_(H, I)] @ np.linalg.inv(R[np.ix_(I, I)]) @ R[np.ix_(I, H)]
    inverse_diagonal = inverse_diagonal_by_node(R, H)
    assert_allclose(inverse_diagonal, np.linalg.inv(schur).diagonal(), rtol=1e-12)
    assert (inverse_diagonal > np.linalg.inv(R[np.ix_(H, H)]).diagonal() + 0.01).all()
    # with known seeds taken out, colluders are uncorrelated and may even be left without noise
    left = R.copy()
    left[I, :] = left[:, I] = 0.0
    assert_allclose(inverse_diagonal_by_node(left, H), np.linalg.inv(R[np.ix_(H, H)]).diagonal(), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inverse_diagonal([[1.0, 0.5], [0.0, 1.0]]), "covariance must be symmetric"),
        (lambda: inverse_diagonal(np.ones((2, 3))), "covariance must be square"),
        (lambda: inverse_diagonal(np.zeros((0, 0))), "at least one node"),
        (lambda: inverse_diagonal([[math.nan]]), "covariance must be finite"),
        (lambda: inverse_diagonal(np.eye(2), []), "honest must name at least one node"),
        (lambda: inverse_diagonal(np.eye(2), [0, 2]), "indices below 2"),
        (lambda: inverse_diagonal(np.eye(2), [1, 1]), "distinct"),
        (lambda: incidence("path:n=3", [1]), "one entry per edge, got 1 for 2"),
        (lambda: incidence("path:n=3", [1, 0]), r"\+1 or -1, got 0 at edge 1"),
        (lambda: decor_covariance(np.eye(2), -1.0, 1.0), "sigma_ldp"),
        (lambda: algebraic_connectivity_after_deletion("ring:n=5", -1), "q must be an integer >= 0"),
        (lambda: algebraic_connectivity_after_deletion("ring:n=100", 3), "161700 coalitions, more than the 20000"),
        (lambda: inverse_diagonal(laplacian("ring:n=5").toarray()), r"definite, got the smallest eigenvalue -?\d"),
        (lambda: inverse_diagonal(np.diag([3.0, -2.0])), "smallest eigenvalue -2 "),
        (lambda: inverse_diagonal(np.zeros((1, 1))), "smallest eigenvalue 0 "),
    ],
)
def test_bad_input(call, message):
    refuses(message, call)
