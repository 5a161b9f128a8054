"""Search by duals and L-BFGS on functions with known minima: classes of indices, singular H, domains."""

import re
from collections import deque

import mpmath
import numpy as np
import pytest
import torch
from _solved import assert_feasible, averaging, every_index_alone, one_of_both
from hypothesis import settings
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import given, refuses, st

from mfdl import Dynamics, gossip
from mfdl.objective import NoiseObjective
from mfdl.testing import encoders, factorization_problems
from mfdl_solvers import FactorizationProblem, ProblemError, Stopping, certificate, dense_encoder, singletons, solve
from mfdl_solvers.certificate import weights_bound
from mfdl_solvers.dense_encoder import ClassBlocks
from mfdl_solvers.iterations import minimise, two_loops


def of_gossip(steps, period):
    H = NoiseObjective(Dynamics(gossip.uniform("star:n=6")), steps).over_steps()
    return FactorizationProblem(H, np.arange(steps) % period)


@st.composite
def points(draw, ridges=(1.0, 1e-2), max_size=7):
    """A problem and a vector of the dual: random factors with equal row lengths within a class."""
    problem = draw(factorization_problems(max_size, ridges=ridges))
    blocks = ClassBlocks(problem)
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    duals = []
    for _, count, size in blocks.groups:
        rows = rng.standard_normal((count, size, size)) + draw(st.sampled_from([0.0, 3.0]))
        rows /= np.linalg.norm(rows, axis=2)[:, :, None] / np.exp(rng.standard_normal((count, 1, 1)))
        duals.append(rows @ rows.transpose(0, 2, 1) + 0.1 * np.eye(size))
    return problem, blocks, blocks.vector(duals)


@given(60, case=points(ridges=(1.0, 1e-2, 1e-9), max_size=5))
def test_the_rounded_bound_is_below_the_exact_one(case):
    problem, blocks, vector = case
    point = blocks.point(vector)
    with mpmath.workdps(60):
        W = mpmath.zeros(problem.size)
        for (rows, count, size), factor in zip(blocks.groups, point.factors, strict=True):
            for c, i, j in np.ndindex(count, size, size):
                W[rows.start + c * size + i, rows.start + c * size + j] = mpmath.mpf(float(factor[c, i, j]))
        squares = mpmath.eigsy(W.T * mpmath.matrix(blocks.H.tolist()) * W, eigvals_only=True)
        trace_norm = sum(mpmath.sqrt(max(square, mpmath.mpf(0))) for square in squares)
        V = W * W.T
        names = problem.classes[blocks.order]
        weights = sum(max(V[int(i), int(i)] for i in np.flatnonzero(names == c)) for c in range(problem.num_classes))
        exact = trace_norm**2 / weights
        assert 0 <= point.lower_bound() <= exact
    assert point.bound == pytest.approx(float(exact), rel=1e-3)
    if problem.eigenvalues[0] > 1e-4 * problem.eigenvalues[-1]:
        assert point.lower_bound() >= point.bound * (1 - 1e-8)


@given(100, case=points())
def test_a_plain_step_gains_at_least_what_it_promises(case):
    _, blocks, vector = case
    point = blocks.point(vector)
    assert point.promise >= -1e-12
    after = blocks.point(point.plain)
    assert after.bound >= point.bound * (1 + point.promise) * (1 - 1e-9)


@given(60, case=points())
def test_vectors_and_factors_are_each_others_inverse_and_the_gram_is_feasible(case):
    problem, blocks, vector = case
    point = blocks.point(vector)
    products = [factor @ factor.transpose(0, 2, 1) for factor in point.factors]
    assert_allclose(blocks.vector(products), vector, atol=1e-10)
    X = point.gram()
    assert_array_equal(X, X.T)
    assert_array_equal(X[problem.same_class & ~np.eye(problem.size, dtype=bool)], 0)
    assert_allclose(np.bincount(problem.classes, weights=np.diagonal(X)), 1, rtol=1e-12)


@given(40, problem=factorization_problems(ridges=(1.0, 1e-2)))
def test_descent_on_the_gram_ends_at_the_same_loss(problem):
    with pytest.MonkeyPatch.context() as patch:
        here = solve(problem, Stopping(1e-6))
        patch.setattr(dense_encoder, "search", lambda *_: 0)  # leaves all to L-BFGS on X
        other = solve(problem, Stopping(1e-6))
    assert here.status == other.status == "optimal"
    assert_allclose(other.objective, here.objective, rtol=2e-6)
    assert here.lower_bound <= other.objective
    assert other.lower_bound <= here.objective


@pytest.mark.parametrize("period", [8, 24, 32])
def test_a_few_decompositions_are_enough(period):
    problem = of_gossip(96, period)
    assert solve(problem, Stopping(1e-4)).iterations <= 6  # L-BFGS takes 40 to 60
    assert solve(problem, Stopping(1e-7)).iterations <= 30


def test_where_the_dual_stops_to_gain_the_other_method_goes_on(monkeypatch):
    monkeypatch.setattr(dense_encoder, "PATIENCE", 1)
    monkeypatch.setattr(dense_encoder, "GAIN", 1e-9)
    solved = solve(of_gossip(48, 8), Stopping(1e-6))
    assert solved.status == "optimal"
    assert solved.iterations > 5


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_decompositions_by_torch_end_at_the_same_encoder(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    problem = of_gossip(48, 8)
    here, other = solve(problem, Stopping(1e-6)), solve(problem, Stopping(1e-6), device=device)
    assert here.iterations == other.iterations
    assert other.status == "optimal"
    assert_allclose(other.encoder, here.encoder, atol=1e-8)
    assert_allclose([other.objective, other.lower_bound], [here.objective, here.lower_bound], rtol=1e-12)


def problems(**options):
    """H of integers and of any rank plus a ridge; every index a class of its own."""
    return one_of_both(**options).map(every_index_alone)


def weights(size):
    return st.lists(st.floats(1e-6, 1.0), min_size=size, max_size=size).map(np.array)


@given(100, a=st.floats(0.1, 10.0), c=st.floats(0.1, 10.0), share=st.floats(-1.0, 1.0))
def test_two_indices_have_a_closed_form(a, c, share):
    # X = [[1, x], [x, 1]]: (a + c - 2 b x) / (1 - x^2) is least at (s + sqrt(s^2 - 4 b^2)) / 2, s = a + c
    b = share * (a * c) ** 0.5
    optimum = (a + c + max((a + c) ** 2 - 4 * b * b, 0.0) ** 0.5) / 2
    solved = singletons.solve(FactorizationProblem(np.array([[a, b], [b, c]]), np.arange(2)), Stopping(1e-6))
    assert solved.status == "optimal"
    assert optimum * (1 - 1e-12) <= solved.objective <= optimum * (1 + 1e-6)
    assert solved.lower_bound <= optimum * (1 + 1e-12)


@given(120, problem=one_of_both(), data=st.data())
def test_any_weights_give_a_bound(problem, data):
    v = data.draw(weights(problem.size))
    C = data.draw(encoders(size=problem.size))
    bound = weights_bound(problem, v)
    assert 0 <= bound <= min(problem.objective(C.T @ C), solve(problem, Stopping(1e-2)).objective)
    for factor in (1e308, 1e-300):
        assert_allclose(weights_bound(problem, factor * v), bound, rtol=1e-12)
    if problem.num_classes == problem.size:
        half = np.sqrt(v)
        eigenvalues = np.linalg.eigvalsh(half[:, None] * problem.error_gram * half)  # the formula, another way
        assert_allclose(bound, np.sqrt(np.clip(eigenvalues, 0, None)).sum() ** 2 / v.sum(), rtol=1e-5)


@pytest.mark.parametrize("v", [[0.0, 0.0], [-1.0, -2.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_weights_that_prove_nothing_give_zero(v):
    assert weights_bound(FactorizationProblem(np.eye(2), np.arange(2)), np.array(v)) == 0.0


@given(100, problem=problems(ridges=(1.0, 1e-2)), data=st.data())
def test_a_plain_step_never_lowers_the_bound(problem, data):
    v = data.draw(weights(problem.size))
    here = singletons.SingletonPoint.at(v, problem.root)
    other = singletons.SingletonPoint.at(v * here.diagonal**2, problem.root)
    assert other.dual >= here.dual * (1 - 1e-12)


@given(60, problem=problems(ridges=(1.0, 1e-2)), data=st.data())
def test_the_point_solves_its_equation(problem, data):
    v = data.draw(weights(problem.size))
    point = singletons.SingletonPoint.at(v, problem.root)
    half = point.vectors * np.sqrt(point.singular_values) / np.sqrt(v)[:, None]
    X = half @ half.T
    scale = np.abs(problem.error_gram).max()
    assert_allclose(X @ np.diag(v) @ X, problem.error_gram, atol=1e-10 * scale)
    assert_allclose(np.diagonal(X), point.diagonal, rtol=1e-10)
    assert_allclose(point.objective(problem.root), problem.objective(point.gram()), rtol=1e-8)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6, 1e-14])
@pytest.mark.parametrize("n", [3, 5, 12])
def test_complete_graph_comes_within_the_tolerance_of_its_infimum(n, tolerance):
    # variance c on the complement of 1 costs (1/n) / (1 - (1 - 1/n) / c): 1/n is approached and never reached
    problem = averaging(f"complete:n={n}")
    solved = solve(problem, Stopping(tolerance))
    assert_feasible(problem, solved)
    assert 1 / n < solved.objective
    assert solved.lower_bound <= 1 / n * (1 + 1e-12)
    if tolerance < 1e-12:  # hopeless, which is said soon
        assert solved.status == "stopped"
        assert solved.iterations < 1000
        return
    assert solved.status == "optimal"
    assert solved.gap <= tolerance
    assert solved.objective <= (1 + tolerance) / n
    noise = 1 / np.linalg.eigvalsh(solved.gram)[0]
    assert_allclose(solved.objective, (1 / n) / (1 - (1 - 1 / n) / noise), rtol=1e-7)  # eps times noise
    assert noise <= 10 / tolerance  # no more than the tolerance asks for
    (note,) = solved.notes
    assert_allclose(float(re.search(r"lambda_min\(X\) is (\S+)", note).group(1)), noise, rtol=0.06)  # two digits


@given(40, problem=factorization_problems(), rho=st.sampled_from([1e-6, 1e-2, 1.0]))
def test_what_a_ridge_costs(problem, rho):
    # sqrt P(H + rho I) <= sqrt P(H) + sqrt(rho P(I)), P(I) = sum of squared class sizes
    T = problem.size
    identity = FactorizationProblem(np.eye(T), problem.classes)
    squares = float((problem.class_sizes**2).sum())
    assert_allclose(solve(identity).objective, squares, rtol=1e-12)
    raised = solve(FactorizationProblem(problem.error_gram + rho * np.eye(T), problem.classes))
    best = solve(problem)
    assert raised.lower_bound <= (best.objective**0.5 + (rho * squares) ** 0.5) ** 2
    assert raised.objective >= best.lower_bound


@given(60, problem=factorization_problems(ridges=(0.0,)), tolerance=st.sampled_from([1e-2, 1e-4, 1e-6]))
def test_the_ridge_is_no_larger_than_the_tolerance_allows(problem, tolerance):
    rho = certificate.smallest_ridge(problem, tolerance)
    smallest, largest = problem.eigenvalues[0], problem.eigenvalues[-1]
    if smallest > 1e-10 * largest:
        assert (rho, [aim.rho for aim in certificate.falling_targets(problem, tolerance)]) == (0, [0])
        return
    share = (rho * float((problem.class_sizes**2).sum()) / solve(problem).objective) ** 0.5
    assert 1 / (1 - share) ** 2 - 1 <= tolerance / 2 or rho <= 1e-16 * largest
    rhos = [aim.rho for aim in certificate.falling_targets(problem, tolerance)]
    assert rhos == sorted(rhos, reverse=True)
    assert rhos[-1] == rho
    for aim in certificate.falling_targets(problem, tolerance):
        assert_allclose(aim.gram, problem.error_gram + aim.rho * np.eye(problem.size), atol=1e-13 * largest)
        assert_allclose(np.linalg.svd(aim.root, compute_uv=False)[-1] ** 2, aim.rho, rtol=0.2, atol=2e-15 * largest)


def test_the_door_leads_here_and_takes_classes_of_two_too():
    problem = averaging("florentine")
    here, other = singletons.solve(problem), solve(problem, start=np.eye(15))
    assert here.iterations == other.iterations
    assert_array_equal(here.gram, other.gram)
    refuses("start must be finite", solve, problem, start=np.zeros((15, 15)), error=ProblemError)
    two = FactorizationProblem(np.eye(3), np.array([0, 1, 1]))
    refuses("one index each, got 2 classes for 3 indices", singletons.solve, two, error=ProblemError)
    assert solve(two).status == "optimal"


def never(iteration, x, value, gradient):
    return False


def flat(iteration, x, value, gradient):
    return float(np.abs(gradient).max()) < 1e-9


def test_rosenbrock_falls_all_the_way_and_leaves_its_start():
    def f(x):
        a, b = 1 - x[0], x[1] - x[0] ** 2
        return a * a + 100 * b * b, np.array([-2 * a - 400 * x[0] * b, 200 * b])

    values, start = [], np.array([-1.2, 1.0])

    def record(iteration, x, value, gradient):
        values.append(value)
        return flat(iteration, x, value, gradient)

    minimum = minimise(f, start, stop=record, max_iterations=500)
    assert minimum.stopped_by_rule
    assert_allclose(minimum.point, [1, 1], atol=1e-6)
    assert (np.diff(values) <= 0).all()
    assert start.tolist() == [-1.2, 1.0]


def test_what_ends_a_search():
    def f(x):
        return float(x @ x), 2 * x

    def ended(function=f, stop=never, most=100):
        return minimise(function, np.ones(2), stop=stop, max_iterations=most)

    limited, at_once = ended(most=2), ended(stop=lambda *_: True)
    assert (limited.iterations <= 2, limited.stopped_by_rule) == (True, False)
    assert (at_once.iterations, at_once.stopped_by_rule, at_once.point.tolist()) == (0, True, [1.0, 1.0])
    at_minimum, wrong = ended(lambda x: (0.0, np.zeros_like(x))), ended(lambda x: (float(x @ x), -2 * x))
    assert (at_minimum.iterations, at_minimum.stopped_by_rule) == (0, False)
    assert (wrong.iterations < 100, wrong.value) == (True, 2.0)


def test_an_open_domain_is_never_left():
    # sum(w / x + x) has its minimum at sqrt(w), close to the edge of x > 0
    w = np.array([1e-6, 1.0, 100.0])
    seen = []

    def f(x):
        if (x <= 0).any():
            return np.inf, x
        seen.append(x)
        return float((w / x + x).sum()), 1 - w / x**2

    minimum = minimise(f, np.full(3, 0.5), stop=flat, max_iterations=2000)
    assert_allclose(minimum.point, np.sqrt(w), rtol=1e-3)
    assert (np.array(seen) > 0).all()


@settings(deadline=None)
@given(size=st.integers(1, 6), count=st.integers(1, 5), seed=st.integers(0, 999))
def test_two_loops_are_the_inverse_bfgs_matrix(size, count, seed):
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((size, size))
    A = B.T @ B + np.eye(size)
    steps = rng.standard_normal((count, size))
    pairs = deque((s, A @ s, float(s @ A @ s)) for s in steps)
    _, y, curvature = pairs[-1]
    inverse = curvature / float(y @ y) * np.eye(size)
    for s, y, curvature in pairs:
        left = np.eye(size) - np.outer(s, y) / curvature
        inverse = left @ inverse @ left.T + np.outer(s, s) / curvature
    g = rng.standard_normal(size)
    scale = np.abs(inverse).max()
    assert_allclose(two_loops(g, pairs, g), inverse @ g, atol=1e-9 * scale)
    assert_allclose(two_loops(y, pairs, g), steps[-1], atol=1e-9 * scale)  # the secant equation of the last pair


@given(60, problem=problems())
def test_never_below_the_trace_norm_bound(problem):
    solved = singletons.solve(problem)
    trace_norm = np.linalg.svd(problem.root, compute_uv=False).sum()
    assert solved.objective >= trace_norm**2 / problem.size * (1 - 1e-12)
    # the first weights are equal: what is reported is at least as good
    assert solved.lower_bound >= trace_norm**2 / problem.size * (1 - 1e-6)
