"""An encoder per direction over the nodes: never worse than a product, exact on graphs that look alike everywhere."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from _modes import (
    FLORENTINE,
    dense_gram,
    dense_problem,
    exact_loss,
    graph_problem,
    largest_class_sum,
    mode_problems,
    per_mode_gram,
)
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses

from mfdl.testing import encoders
from mfdl_solvers import ModeProblem, NotConverged, ProblemError, Stopping, kronecker_encoder, per_mode_encoder, solve


@examples(25)
@given(problem=mode_problems())
def test_loss_and_sensitivity_are_those_of_the_dense_gram(problem):
    solved = per_mode_encoder.solve(problem)
    X = per_mode_gram(solved)
    assert_allclose(solved.objective, exact_loss(problem, solved.grams, solved.basis), rtol=1e-9)
    assert_allclose(solved.sensitivity**2, largest_class_sum(problem, X), rtol=1e-9)
    assert_allclose(solved.sensitivity, 1.0, rtol=1e-9)
    assert_array_equal(np.triu(solved.encoders, 1), 0)
    C = sum(
        np.kron(C_k, np.outer(e, f))
        for C_k, e, f in zip(solved.encoders, np.eye(problem.num_nodes), solved.basis.T, strict=True)
    )
    assert_allclose(C.T @ C, X, atol=1e-9)


@examples(25)
@given(problem=mode_problems())
def test_between_the_product_and_the_best_of_any_form(problem):
    product = kronecker_encoder.solve(problem)
    solved = per_mode_encoder.solve(problem, start=product)
    joint = solve(dense_problem(problem))
    assert solved.kronecker is product
    assert solved.objective <= product.objective * (1 + 1e-7)  # the same blocks, in another basis
    assert solved.objective >= joint.lower_bound
    assert product.lower_bound <= solved.lower_bound <= joint.objective
    assert solved.status != "optimal" or solved.gap <= 1e-4


@examples(15)
@given(problem=mode_problems(max_nodes=3, max_steps=3, ridges=(1.0,), zero_modes=False))
def test_the_best_of_its_form_by_a_semidefinite_program(problem):
    solved = per_mode_encoder.solve(problem)
    n, T = problem.num_nodes, problem.num_steps
    inverse, M = np.linalg.inv(solved.basis), solved.basis**2
    X = [cp.Variable((T, T), PSD=True) for _ in range(n)]
    cost, constraints = 0.0, []
    for k in range(n):
        H = sum((inverse[k] @ problem.vectors[:, j]) ** 2 * problem.grams[j] for j in range(n))
        cost += cp.matrix_frac(np.linalg.cholesky(H), X[k])
    for u in range(n):
        block = sum(M[u, k] * X[k] for k in range(n))
        for c in np.unique(problem.classes):
            members = np.flatnonzero(problem.classes == c)
            constraints.append(sum(block[t, t] for t in members) <= 1)
            constraints += [block[s, t] == 0 for s in members for t in members if s < t]
    optimum = float(cp.Problem(cp.Minimize(cost), constraints).solve(solver=cp.CLARABEL))
    assert solved.objective >= optimum * (1 - 1e-5)
    # what `tolerance` promises, and twice that for searches that end at a decrease instead of a certificate
    assert solved.objective <= optimum * (1 + 2 * max(1e-4, 0.02 * solved.kronecker.gap) + 1e-5)


@pytest.mark.parametrize(
    ("graph", "num_steps", "period"),
    [("ring:n=4", 4, 2), ("ring:n=5", 4, 2), ("ring:n=6", 4, 4), ("complete:n=4", 6, 3), ("hypercube:dim=3", 4, 2)],
)
def test_exact_where_every_node_looks_alike(graph, num_steps, period):
    problem = graph_problem(graph, num_steps, period)
    solved = per_mode_encoder.solve(problem)
    assert solved.status == "optimal"
    assert solved.gap <= 1e-4
    joint = kronecker_encoder.solve_dense(dense_gram(problem), problem.classes, problem.num_nodes)
    assert solved.objective >= joint.lower_bound
    assert_allclose(solved.objective, joint.objective, rtol=2e-4)


def test_a_ring_of_eight_needs_blocks_whose_class_sums_differ():
    solved = per_mode_encoder.solve(graph_problem("ring:n=8", 8, 4), Stopping(1e-5))
    assert solved.status == "optimal"
    assert_allclose(solved.objective, 45.0623, rtol=1e-5)  # 45.857 with blocks solved one by one


def test_florentine():
    solved = per_mode_encoder.solve(graph_problem(*FLORENTINE))
    assert solved.status == "stationary"
    assert 1122.5 <= solved.objective <= 1123.5  # 1192.3 by a product; the optimum of any form is 1085.53
    assert solved.lower_bound <= 1085.528
    assert solved.require_converged(1e-4) is solved


def test_free_modes_are_said():
    problem = ModeProblem(np.array([np.eye(2), np.zeros((2, 2))]), np.eye(2), np.arange(2))
    solved = per_mode_encoder.solve(problem)
    assert_allclose(solved.objective, 2.0, rtol=1e-4)  # only the first node's noise counts
    assert any("singular" in note for note in solved.notes)
    regular = ModeProblem(np.array([np.eye(2), 2 * np.eye(2)]), np.eye(2), np.arange(2))
    assert per_mode_encoder.solve(regular).notes == ()


def test_a_limit_of_rounds_is_said():
    problem = graph_problem("path:n=4", 6, 3)
    solved = per_mode_encoder.solve(problem, max_rounds=1)
    assert solved.status == "stopped"
    refuses(r"stopped after .* above the optimum", solved.require_converged, 1e-4, error=NotConverged)
    assert solved.objective >= solved.lower_bound


# What any blocks cost


@examples(40)
@given(problem=mode_problems(ridges=(1.0,), zero_modes=False), data=st.data())
def test_blocks_of_any_sign_are_charged_in_full(problem, data):
    blocks = per_mode_encoder.ModeBlocks.of(problem, kronecker_encoder.solve(problem, max_rounds=1))
    C = [data.draw(encoders(size=problem.num_steps)) for _ in range(problem.num_nodes)]
    grams = np.stack([root.T @ root for root in C])
    X = sum(np.kron(X_k, np.outer(f, f)) for X_k, f in zip(grams, blocks.basis.T, strict=True))
    assert_allclose(blocks.class_sums(grams).max(), largest_class_sum(problem, X), rtol=1e-9)
    assert_allclose(blocks.block_objectives(grams).sum(), np.trace(np.linalg.inv(X) @ dense_gram(problem)), rtol=1e-6)


def test_the_basis_is_that_of_the_modes_where_their_costs_coincide():
    # H_s = 2 I leaves any basis equally good over the nodes, but only the modes themselves separate the H_k
    half = np.array([[1.0, 0.5], [0.5, 1.0]])
    grams = np.array([half, half * [[1, -1], [-1, 1]]] * 2)
    U = np.linalg.qr(np.array([[4.0, 1, 2, 0], [1, 5, 0, 3], [0, 2, 6, 1], [2, 0, 1, 4]]))[0]
    problem = ModeProblem(grams, U, np.arange(2))
    solved = per_mode_encoder.solve(problem)
    assert_allclose(solved.basis, U, atol=1e-12)
    assert solved.objective < solved.kronecker.objective * 0.99


# The scales


@examples(60)
@given(data=st.data(), n=st.integers(1, 5), m=st.integers(1, 6))
def test_scales_are_proved_optimal_by_their_multipliers(data, n, m):
    costs = np.array(data.draw(st.lists(st.floats(1e-3, 1e3), min_size=n, max_size=n)))
    weights = np.array(data.draw(st.lists(st.integers(0, 4), min_size=m * n, max_size=m * n)), dtype=float)
    weights = weights.reshape(m, n) / 4 + 0.01
    s, multipliers = per_mode_encoder.best_scales(costs, weights)
    assert (s > 0).all()
    assert (weights @ s <= 1).all()
    value = (costs / s).sum()
    # weak duality: the minimum over s of sum costs / s + <multipliers, weights s - 1> is below every feasible value
    bound = 2 * np.sqrt(costs * (weights.T @ multipliers)).sum() - multipliers.sum()
    assert bound <= value * (1 + 1e-12)
    assert value <= bound * (1 + 1e-6)
    # one constraint by hand: s_k ~ sqrt(cost_k / weight_k)
    s, _ = per_mode_encoder.best_scales(np.append(costs, 0.0), np.ones((1, n + 1)))
    assert_allclose(s, np.append(np.sqrt(costs), 0.0) / np.sqrt(costs).sum(), atol=1e-4)


# Bad input


@pytest.mark.parametrize(
    ("solver", "options", "message"),
    [
        (kronecker_encoder, {"max_rounds": 0}, "max_rounds must be at least 1"),
        (per_mode_encoder, {"max_rounds": 0}, "max_rounds must be at least 1"),
        (per_mode_encoder, {"start": 3}, "product over 2 steps and 1 nodes, got 3 and 1"),
    ],
)
def test_refused_options(solver, options, message):
    def one_mode(size):
        return ModeProblem(np.eye(size)[None], np.eye(1), np.arange(size))

    if "start" in options:
        options = {"start": kronecker_encoder.solve(one_mode(options["start"]))}
    refuses(message, lambda: solver.solve(one_mode(2), **options), error=ProblemError)
