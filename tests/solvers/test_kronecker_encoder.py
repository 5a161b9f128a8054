"""Products over time and nodes, and an encoder per direction: bounds, the reference value, the size limit."""

import re

import cvxpy as cp
import numpy as np
import pytest
from _modes import (
    FLORENTINE,
    dense_gram,
    dense_loss,
    dense_problem,
    exact_loss,
    graph_problem,
    largest_class_sum,
    mode_problems,
    per_mode_gram,
    product_gram,
)
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import each, given, refuses, st

from mfdl.noise.general import MAX_JOINT_SIZE
from mfdl.testing import encoders, optimal_loss_reference
from mfdl_solvers import ModeProblem, NotConverged, ProblemError, Stopping, kronecker_encoder, per_mode_encoder, solve
from mfdl_solvers.certificate import lower_bound
from mfdl_solvers.kronecker_encoder import joint_lower_bound


@given(30, problem=mode_problems())
def test_loss_and_sensitivity_are_those_of_the_dense_product(problem):
    solved = kronecker_encoder.solve(problem)
    X = product_gram(solved)
    assert_allclose(solved.objective, dense_loss(problem, X), rtol=1e-5)  # X^-1 of a singular H has entries of 1e5
    assert_allclose(solved.sensitivity, 1.0, rtol=1e-12)
    C = np.kron(solved.time.encoder, solved.space.encoder)
    assert_array_equal(np.triu(C, 1), 0)
    assert_allclose(C.T @ C, X, atol=1e-12)
    assert 0 < solved.lower_bound <= solved.objective


@given(40, problem=mode_problems(ridges=(1.0,), zero_modes=False), data=st.data())
def test_no_product_is_better(problem, data):
    # by the geodesic convexity of the objective; alternation could otherwise end anywhere
    solved = kronecker_encoder.solve(problem, Stopping(1e-6))
    assert solved.status in ("optimal", "stationary")
    for _ in range(5):
        C_t, C_s = data.draw(encoders(size=problem.num_steps)), data.draw(encoders(size=problem.num_nodes))
        other = np.kron(C_t.T @ C_t, C_s.T @ C_s)
        assert solved.objective <= dense_loss(problem, other) * (1 + 1e-5)
    # and near by: geodesic steps from the optimum, in both factors at once
    seed = np.random.default_rng(data.draw(st.integers(0, 99)))
    for size in (1e-1, 1e-2):
        moved = [C + size * np.tril(seed.standard_normal(C.shape)) for C in (solved.time.encoder, solved.space.encoder)]
        other = np.kron(*[C.T @ C for C in moved])
        if np.linalg.matrix_rank(other) == len(other):
            assert solved.objective <= dense_loss(problem, other) * (1 + 1e-5)


@given(40, problem=mode_problems(), data=st.data())
def test_the_joint_bound_is_below_the_loss_of_every_encoder(problem, data):
    C = data.draw(encoders(size=problem.num_steps * problem.num_nodes))
    dual_root = data.draw(encoders(size=problem.num_steps))
    bound = joint_lower_bound(problem, dual_root @ dual_root.T)
    X = C.T @ C
    assert bound > 0
    assert bound <= dense_loss(problem, X)
    assert bound <= dense_loss(problem, product_gram(kronecker_encoder.solve(problem))) * (1 + 1e-5)
    assert bound <= solve(dense_problem(problem)).objective


@pytest.mark.parametrize("sizes", [{"max_nodes": 1, "max_steps": 5}, {"max_nodes": 5, "max_steps": 1}])
@given(40, data=st.data())
def test_one_node_or_one_step_leaves_one_half(sizes, data):
    problem = data.draw(mode_problems(**sizes, ridges=(1.0, 1e-2), zero_modes=False))
    solved = kronecker_encoder.solve(problem)
    assert solved.status == "optimal"
    assert_allclose(solved.objective, solve(dense_problem(problem)).objective, rtol=2e-4)


@each(
    "gram, classes",
    ([[10.01, -7.0, 1.0], [-7.0, 5.01, -1.0], [1.0, -1.0, 1.01]], [1, 1, 0]),
    ([[0.01, 0, 0, 0], [0, 1.01, 2, 0], [0, 2, 5.01, 1], [0, 0, 1, 1.01]], [0, 0, 0, 1]),
)
def test_the_bound_is_that_of_the_half_where_the_dual_of_its_own_solution_is_worse(gram, classes):
    """The half is certified by a dual that its solution does not show: X^-1 H X^-1 proves 1e-3 and 1e-4 less."""
    problem = ModeProblem(np.array([gram], dtype=float), np.eye(1), np.array(classes))
    solved = kronecker_encoder.solve(problem)
    assert lower_bound(dense_problem(problem), solved.time.gram) < solved.objective * (1 - 1e-4)
    assert solved.status == "optimal"
    assert solved.lower_bound <= solve(dense_problem(problem), Stopping(1e-9)).objective


@pytest.mark.parametrize("factor", [1e-200, 1.0, 1e200])
def test_the_bound_by_hand(factor):
    # of one class of two steps, U = I: (sum_k sqrt(v_k) tr H_k^1/2)^2 / (v_1 + v_2) is 13 at v = (9, 4)
    two = ModeProblem(factor * np.array([np.diag([4.0, 1.0]), np.eye(2)]), np.eye(2), np.zeros(2, dtype=int))
    assert 13 * factor * (1 - 1e-4) <= joint_lower_bound(two, np.eye(2)) <= 13.0 * factor


def test_florentine_as_a_product():
    solved = kronecker_encoder.solve(graph_problem(*FLORENTINE), Stopping(1e-6))
    assert solved.status == "stationary"
    assert_allclose(solved.objective, 1192.3079, rtol=1e-5)
    assert 1078.6 <= solved.lower_bound <= 1085.528  # the joint optimum
    assert solved.gap == solved.objective / solved.lower_bound - 1


@each("solver, problem", (kronecker_encoder, ("path:n=3", 4, 2)), (per_mode_encoder, ("path:n=4", 6, 3)))
def test_a_limit_of_rounds_is_said(solver, problem):
    posed = graph_problem(*problem)
    solved, settled = solver.solve(posed, max_rounds=1), solver.solve(posed)
    assert (solved.status, solved.rounds) == ("stopped", 1)
    refuses(r"stopped after .* above the optimum", solved.require_converged, 1e-4, error=NotConverged)
    assert settled.require_converged(1e-4) is settled
    assert solved.lower_bound <= settled.objective <= solved.objective


@each(
    "change, message",
    ({"grams": np.eye(2)}, "shape (n, T, T)"), ({"grams": np.zeros((2, 2, 3))}, "shape (n, T, T)"),
    ({"grams": np.zeros((0, 2, 2))}, "shape (n, T, T)"), ({"grams": np.zeros((2, 2, 2))}, "nothing to minimise"),
    ({"grams": np.full((2, 2, 2), np.nan)}, "must be finite"),
    ({"grams": np.array([[[1.0, 2.0], [0.0, 1.0]]] * 2)}, "mode 0 is not"),
    ({"grams": np.array([np.eye(2), -np.eye(2)])}, "positive semidefinite"),
    ({"vectors": np.eye(3)}, "one column per mode"), ({"vectors": np.array([[1.0, 0.1], [0.0, 1.0]])}, "orthogonal"),
    ({"vectors": np.full((2, 2), np.inf)}, "must be finite"),
    ({"classes": np.arange(3)}, "one integer label per step"),
    ({"classes": np.zeros(2)}, "one integer label per step"),
)  # fmt: skip
def test_refused_problems(change, message):
    valid = {"grams": np.array([np.eye(2)] * 2), "vectors": np.eye(2), "classes": np.arange(2)}
    ModeProblem(**valid)
    refuses(re.escape(message), ModeProblem, **valid | change, error=ProblemError)


def test_the_solver_takes_what_the_library_forms():
    # `mfdl_solvers` imports nothing of mfdl, so the number stands twice
    assert kronecker_encoder.MAX_SIZE == MAX_JOINT_SIZE


@given(classes=st.lists(st.integers(-2, 3), min_size=1, max_size=6), n=st.integers(1, 4))
def test_classes_are_one_for_each_node_and_class_of_steps(classes, n):
    labels = kronecker_encoder.joint_classes(classes, n)
    for s, a in enumerate(classes):
        for t, b in enumerate(classes):
            for u in range(n):
                for w in range(n):
                    assert (labels[s * n + u] == labels[t * n + w]) == (a == b and u == w)


@given(30, problem=mode_problems(ridges=(1.0, 1e-2), zero_modes=False))
def test_loss_is_that_of_the_gram_by_loops(problem):
    solved = kronecker_encoder.solve_dense(dense_gram(problem), problem.classes, problem.num_nodes)
    assert solved.status == "optimal"
    assert solved.gap <= 1e-4
    assert_allclose(solved.objective, dense_loss(problem, solved.gram), rtol=1e-9)
    assert_array_equal(np.triu(solved.encoder, 1), 0)
    assert_allclose(solved.encoder.T @ solved.encoder, solved.gram, atol=1e-12)


@pytest.mark.slow
def test_florentine_dense():
    problem = graph_problem(*FLORENTINE)
    solved = kronecker_encoder.solve_dense(dense_gram(problem), problem.classes, problem.num_nodes)
    assert solved.gap <= 1e-4
    assert solved.lower_bound <= 1085.5275 * (1 + 1e-6)
    assert_allclose(solved.objective, 1085.5275, rtol=1.1e-4)


@each(
    "gram, classes, num_nodes, message",
    (np.zeros((0, 0)), np.arange(2048), 3, "at most 4096 indices, got 2048 * 3 = 6144"),
    (np.eye(4), np.arange(2), 3, "shape (6, 6) for 2 steps and 3 nodes, got (4, 4)"),
    (np.eye(4), np.zeros(2), 2, "one integer label per step"),
    (np.eye(4), np.zeros((2, 1), dtype=int), 2, "one integer label per step"),
    (np.eye(4), np.arange(2), 0, "num_nodes must be at least 1"),
    (-np.eye(4), np.arange(2), 2, "positive semidefinite"),
)
def test_refused(gram, classes, num_nodes, message):
    refuses(re.escape(message), kronecker_encoder.solve_dense, gram, classes, num_nodes, error=ProblemError)


@given(25, problem=mode_problems())
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


@given(25, problem=mode_problems())
def test_between_the_product_and_the_best_of_any_form(problem):
    product = kronecker_encoder.solve(problem)
    solved = per_mode_encoder.solve(problem, start=product)
    joint = solve(dense_problem(problem))
    assert solved.kronecker is product
    assert solved.objective <= product.objective * (1 + 1e-7)  # the same blocks, in another basis
    assert solved.objective >= joint.lower_bound
    assert product.lower_bound <= solved.lower_bound <= joint.objective
    assert solved.status != "optimal" or solved.gap <= 1e-4


@given(15, problem=mode_problems(max_nodes=3, max_steps=3, ridges=(1.0,), zero_modes=False))
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


@given(40, problem=mode_problems(ridges=(1.0,), zero_modes=False), data=st.data())
def test_blocks_of_any_sign_are_charged_in_full(problem, data):
    blocks = per_mode_encoder.ModeBlocks.from_product(problem, kronecker_encoder.solve(problem, max_rounds=1))
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


@given(60, data=st.data(), n=st.integers(1, 5), m=st.integers(1, 6))
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


@each(
    "solver, options, message",
    (kronecker_encoder, {"max_rounds": 0}, "max_rounds must be at least 1"),
    (per_mode_encoder, {"max_rounds": 0}, "max_rounds must be at least 1"),
    (per_mode_encoder, {"start": 3}, "product over 2 steps and 1 nodes, got 3 and 1"),
)
def test_refused_options(solver, options, message):
    def one_mode(size):
        return ModeProblem(np.eye(size)[None], np.eye(1), np.arange(size))

    if "start" in options:
        options = {"start": kronecker_encoder.solve(one_mode(options["start"]))}
    refuses(message, lambda: solver.solve(one_mode(2), **options), error=ProblemError)


@given(15, problem=mode_problems(max_nodes=2, max_steps=3, ridges=(1.0,), zero_modes=False))
def test_the_joint_bound_is_below_the_semidefinite_program(problem):
    solved = kronecker_encoder.solve(problem)
    optimum = optimal_loss_reference(dense_problem(problem), restricted=False)
    assert solved.lower_bound <= optimum * (1 + 1e-6)  # the program's own accuracy
    assert solved.objective >= optimum * (1 - 1e-6)


@given(10, problem=mode_problems(max_nodes=2, max_steps=3, ridges=(1.0,), zero_modes=False))
def test_agrees_with_the_semidefinite_program(problem):
    solved = kronecker_encoder.solve_dense(dense_gram(problem), problem.classes, problem.num_nodes)
    assert_allclose(solved.objective, optimal_loss_reference(dense_problem(problem)), rtol=2e-4)
