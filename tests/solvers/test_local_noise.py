"""Covariances of local noise and weights of edges: values of an independent solver, and certified bounds."""

import json
import os
from pathlib import Path

import cvxpy
import numpy as np
import pytest
from vocabulary import given, refuses, st

from mfdl_solvers import FactorizationProblem, ProblemError, Stopping, solve
from mfdl_solvers.local_noise import LeakWithoutNoise, LocalNoiseProblem, NoiseView, solve_local_noise

REFERENCE = Path(os.environ.get("MFDL_DATA", "shared/data")).parent / "reference" / "trust_noise.json"
GAP = 1e-4


def random_problem(seed, blocks, slots, views):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(blocks, slots, slots))
    costs = roots @ roots.transpose(0, 2, 1) / slots + 0.05 * np.eye(slots)
    seen = []
    for _ in range(views):
        rows, shifts = (int(rng.integers(1, top)) for top in (blocks * slots + 1, 4))
        V = rng.normal(size=(rows, blocks, slots)) * (rng.random((rows, blocks, 1)) < 0.7)
        a = V.reshape(rows, -1) @ rng.normal(size=(blocks * slots, shifts))  # in the range of V
        seen.append(NoiseView(V, a, rng.uniform(0.5, 2, shifts)))
    return LocalNoiseProblem(costs, seen)


def clarabel_objective(problem):
    n, L = problem.num_blocks, problem.num_slots
    S = [cvxpy.Variable((L, L), PSD=True) for _ in range(n)]
    constraints = []
    for view in problem.whitened:
        gram = sum(view.noise[:, v] @ S[v] @ view.noise[:, v].T for v in range(n))
        constraints += [cvxpy.matrix_frac(a, (gram + gram.T) / 2) <= 1 for a in view.shifts.T]
    total = sum(cvxpy.trace(H @ matrix) for H, matrix in zip(problem.costs, S, strict=True))
    return cvxpy.Problem(cvxpy.Minimize(total), constraints).solve(solver="CLARABEL")


@st.composite
def solvable(draw):
    sizes = [draw(st.integers(1, 3)) for _ in range(3)]
    try:
        return random_problem(draw(st.integers(0, 10**6)), *sizes)
    except ProblemError:  # no view sees any record
        return random_problem(1, 2, 2, 2)


@given(20, problem=solvable())
def test_objective_is_that_of_another_solver(problem):
    solved = solve_local_noise(problem, Stopping(GAP, 200))
    assert solved.status == "optimal"
    assert solved.objective == pytest.approx(clarabel_objective(problem), rel=1e-3)


@given(40, problem=solvable(), seed=st.integers(0, 10**6))
def test_no_feasible_covariances_cost_less_than_any_bound(problem, seed):
    rng, n, L = np.random.default_rng(seed), problem.num_blocks, problem.num_slots
    roots = rng.normal(size=(n, L, L))
    S = roots @ roots.transpose(0, 2, 1) + 1e-3 * np.eye(L)
    S *= problem.largest_ratio(S)
    solved = solve_local_noise(problem, Stopping(GAP, 200))
    weights = [rng.exponential(size=view.counts.size) for view in problem.whitened]
    duals = [rng.normal(size=view.shifts.shape) for view in problem.whitened]
    for bound in (problem.bound(weights, duals), solved.lower_bound):
        assert bound <= problem.cost(S)
        assert bound <= solved.objective
    assert problem.largest_ratio(solved.covariances) == pytest.approx(1, rel=1e-9)


@given(20, seed=st.integers(0, 10**6), size=st.integers(1, 5))
def test_everything_seen_is_the_factorization_problem(seed, size):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    H = root @ root.T + 0.1 * np.eye(size)
    view = NoiseView(np.eye(size)[:, None], np.eye(size), np.ones(size))
    local = solve_local_noise(LocalNoiseProblem(H[None], [view]), Stopping(GAP, 200))
    encoder = solve(FactorizationProblem(H, np.arange(size)), stopping=Stopping(GAP))
    assert local.objective == pytest.approx(encoder.objective, rel=3 * GAP)


def reference_cases():
    if not REFERENCE.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"{REFERENCE} is missing"))]
    return json.loads(REFERENCE.read_text(encoding="utf-8"))["cases"]


def curious_neighbours(case):
    """The problem of a reference case, from its definition and nothing of the library."""
    T, K, released = case["steps"], case["rounds"], case["models_released"]
    n = 1 + max(max(edge) for edge in case["edges"])
    adjacent = np.zeros((n, n), dtype=bool)
    for i, j in case["edges"]:
        adjacent[i, j] = adjacent[j, i] = True
    degree = adjacent.sum(axis=1)
    W = adjacent / (1 + np.maximum.outer(degree, degree))
    W += np.diag(1 - W.sum(axis=1))
    slots = K + released
    model, sent, models = np.zeros((n, T * n + n * T * slots)), [], []
    for t in range(T):
        for k in range(slots):
            noisy = model.copy()
            for v in range(n):
                noisy[v, t * n + v] += k == 0
                noisy[v, T * n + v * T * slots + t * slots + k] += 1
            sent.append(noisy)
            model = W @ noisy if k < K else noisy
        models.append(model[:, T * n :].reshape(n, n, -1))
    error = np.concatenate(models).transpose(1, 0, 2) / np.sqrt(n * T)
    costs = error.transpose(0, 2, 1) @ error + case["price"] * np.eye(T * slots)
    views = []
    for u in range(n):
        others = np.arange(n) != u
        rows = np.concatenate([m[others if i % slots == K else adjacent[u]] for i, m in enumerate(sent)])
        V = rows[:, T * n :].reshape(len(rows), n, -1).copy()
        V[:, u] = 0
        shifts = rows[:, : T * n][:, np.tile(others, T)]
        views.append(NoiseView(V, shifts, np.ones(shifts.shape[1])))
    return LocalNoiseProblem(costs, views), costs - case["price"] * np.eye(T * slots)


@pytest.mark.parametrize("case", reference_cases())
def test_reference_numbers(case):
    problem, error_costs = curious_neighbours(case)
    solved = solve_local_noise(problem, Stopping(2e-5, 200))
    tolerance = 1e-4 if case["status"] == "optimal" else 1e-3
    assert solved.objective == pytest.approx(case["objective"], rel=tolerance)
    assert solved.lower_bound <= case["objective"] * (1 + tolerance)
    assert solved.status == "optimal"
    assert (error_costs * solved.covariances).sum() == pytest.approx(case["error"], rel=1e-2)


def test_what_has_no_solution_is_refused():
    V, a = np.zeros((2, 1, 1)), np.ones((2, 1))
    V[0] = 1
    with pytest.raises(LeakWithoutNoise, match="without noise"):
        LocalNoiseProblem(np.ones((1, 1, 1)), [NoiseView(V, a, np.ones(1))])
    with pytest.raises(ProblemError, match="no attacker sees"):
        LocalNoiseProblem(np.ones((1, 1, 1)), [NoiseView(V, 0 * a, np.ones(1))])
    with pytest.raises(ProblemError, match="positive definite"):
        LocalNoiseProblem(np.zeros((1, 1, 1)), [NoiseView(V[:1], a[:1], np.ones(1))])
    refuses("budgets finite and > 0", NoiseView, V, a, np.zeros(1), error=ProblemError)
    eye = np.eye(150)
    large = LocalNoiseProblem(eye[None], [NoiseView(eye[:, None], eye, np.ones(150))])
    refuses("11,325 unknown entries", solve_local_noise, large, error=ProblemError)
