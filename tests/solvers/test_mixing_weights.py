"""Weights of edges that mix fastest or leave least noise: values of an independent solver, and certified bounds."""

import tracemalloc

import cvxpy
import numpy as np
import pytest
import scipy.sparse
from vocabulary import given, refuses, st

from mfdl.graphs import adjacency, load_sparse
from mfdl.testing.strategies import connected_graphs
from mfdl_solvers import ProblemError, mixing


def edges(graph):
    A = adjacency(load_sparse(graph)).toarray()
    return np.argwhere(np.triu(A)), len(A)


def matrix(ends, w, n):
    W = np.zeros((n, n))
    W[tuple(ends.T)] = w
    W += W.T
    return W + np.diag(1 - W.sum(axis=1))


def noise_left(W, rounds):
    lam = np.linalg.eigvalsh(W - 1 / len(W))
    return float(sum((lam ** (2 * rounds * age)).sum() for age in range(1, 4000)))


def solved(solve, most_edges, *args):
    """By the interior-point method up to so many edges, by gradients beyond."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "MAX_EDGES", most_edges)
        return solve(*args)


@pytest.mark.parametrize(("most_edges", "tolerance"), [(mixing.MAX_EDGES, mixing.TOLERANCE), (0, mixing.COARSE)])
@given(30, G=connected_graphs(min_nodes=2, max_nodes=7))
def test_the_fastest_weights_are_those_of_a_conic_solver(most_edges, tolerance, G):
    ends, n = edges(G)
    solution = solved(mixing.fastest_mixing, most_edges, ends, n)
    W = cvxpy.Variable((n, n), symmetric=True)
    absent = np.triu(1 - adjacency(load_sparse(G)).toarray(), 1)
    rules = [W >= 0, W @ np.ones(n) == 1, cvxpy.multiply(absent, W) == 0]
    value = cvxpy.Problem(cvxpy.Minimize(cvxpy.sigma_max(W - np.ones((n, n)) / n)), rules).solve(solver="CLARABEL")
    assert solution.lower_bound <= value + 1e-6
    assert solution.objective >= value - 1e-6
    assert solution.objective - solution.lower_bound <= 1.01 * tolerance * (1 - solution.objective)
    found = matrix(ends, solution.weights, n)
    assert found.min() >= 0
    assert np.abs(np.linalg.eigvalsh(found - 1 / n)).max() == pytest.approx(solution.objective, abs=1e-12)


@pytest.mark.parametrize(
    ("most_edges", "tolerance"), [(mixing.MAX_EDGES, (mixing.TOLERANCE, 1e-12)), (0, (mixing.COARSE, 1e-6))]
)
@given(60, G=connected_graphs(min_nodes=2, max_nodes=7), rounds=st.integers(1, 5), seed=st.integers(0, 99))
def test_no_weights_leave_less_noise_than_the_bound(most_edges, tolerance, G, rounds, seed):
    ends, n = edges(G)
    solution = solved(mixing.least_noise, most_edges, ends, n, rounds)
    assert noise_left(matrix(ends, solution.weights, n), rounds) == pytest.approx(solution.objective, abs=1e-9)
    gap = solution.objective - solution.lower_bound
    assert 0 <= gap <= 1.01 * (tolerance[0] * solution.objective + tolerance[1] * n)
    rng = np.random.default_rng(seed)
    for size in (1.0, 0.1, 0.01):
        w = np.clip(solution.weights + size * rng.normal(size=len(ends)), 0, None)
        w /= max(1.0, matrix(ends, w, n).sum(axis=1).max(), 1 - matrix(ends, w, n).diagonal().min())
        assert noise_left(matrix(ends, w, n), rounds) >= solution.lower_bound * (1 - 1e-9)


def test_too_many_nodes_are_refused_before_any_work():
    refuses("7,200 edges between 3,600 nodes", mixing.least_noise, *edges("torus:n=3600"), 1, error=ProblemError)


def test_gradients_meet_the_interior_point_method_without_an_array_of_nodes_by_nodes(monkeypatch):
    ends, n = edges("erdos-renyi:n=60,p=0.12,seed=1")
    precise = mixing.fastest_mixing(ends, n)
    for name, value in {"MAX_EDGES": 0, "DENSE": 0, "MODES": 20}.items():
        monkeypatch.setattr(mixing, name, value)
    monkeypatch.setattr(mixing._Edges, "matrix", None)
    solution = mixing.fastest_mixing(ends, n)
    assert solution.lower_bound <= precise.objective + 1e-9
    assert solution.objective >= precise.lower_bound - 1e-9
    assert solution.objective - solution.lower_bound <= mixing.COARSE * (1 - solution.objective)
    A = (scipy.sparse.random_array((4000, 4000), density=0.002, rng=0) + scipy.sparse.eye_array(4000, k=1)).tocoo()
    ends, n = np.stack([A.row, A.col], axis=1)[A.row < A.col], 4000
    graph = mixing._Edges(ends, n)
    tracemalloc.start()
    tangent = mixing._Modulus(graph).at(graph.metropolis_hastings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * n**2 / 4
    assert tangent.slope.shape == (len(ends),)
    monkeypatch.setattr(mixing, "RESTARTS", 1)
    refuses("on 200 nodes are too close", mixing.fastest_mixing, *edges("path:n=200"), error=ProblemError)
