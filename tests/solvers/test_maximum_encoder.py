"""The largest error of a step: bound, program and objective in order, published encoders, and what is refused."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl.factorization import square_root_encoder
from mfdl.testing.oracles.sensitivity_oracle import optimal_value
from mfdl_solvers import MaximumProblem, ProblemError, Stopping, maximum_encoder


def prefix_sums(T, classes=None):
    A = np.tril(np.ones((T, T)))
    return MaximumProblem(A[:, :, None] * A[:, None, :], np.arange(T) if classes is None else classes)


def program(problem):
    """min over every X of exact sensitivity at most 1 of the largest tr(H_r X^-1) (cvxpy)."""
    T, scale = problem.size, float(np.einsum("rtt->r", problem.error_grams).max())
    X, largest = cp.Variable((T, T), PSD=True), cp.Variable()
    constraints = []
    for label in np.unique(problem.classes):
        chosen = np.eye(T)[problem.classes == label]
        bound = cp.Variable(len(chosen))
        constraints += [cp.sum(bound) <= 1, cp.diag(bound) - chosen @ X @ chosen.T >> 0]
    for H in problem.error_grams:
        values, vectors = np.linalg.eigh(H / scale)
        constraints.append(cp.matrix_frac(vectors * np.sqrt(np.clip(values, 0, None)), X) <= largest)
    return scale * optimal_value(cp.Minimize(largest), constraints, inaccurate=True)


@pytest.mark.parametrize("T", [4, 8, 16, 32, 64])
def test_prefix_sums_beside_the_square_root(T):
    """The square root of the prefix sums has (1 + 1/4 + 9/64 + ...)^2, its row and column norms (arXiv:2202.11205)."""
    problem = prefix_sums(T)
    C = square_root_encoder(T)
    square_root = problem.objective(C.T @ C)
    assert_allclose(square_root, (C[-1] ** 2).sum() ** 2)
    best = maximum_encoder.solve(problem, Stopping(1e-4))
    assert best.status == "optimal"
    assert best.lower_bound <= best.objective <= best.lower_bound * (1 + 1e-4)
    assert 0.75 * square_root < best.objective < square_root
    assert_allclose(problem.errors(best.gram).max(), best.objective)
    assert_allclose(best.encoder.T @ best.encoder, best.gram, atol=1e-10)
    if T <= 8:
        assert_allclose(best.objective, program(problem), rtol=2e-4)
    # equal weights prove |A|_*^2 / T^2, the singular values of A being 1 / (2 sin((2 i - 1) pi / (4 T + 2)))
    singular_values = 0.5 / np.sin((2 * np.arange(1, T + 1) - 1) * np.pi / (4 * T + 2))
    assert best.lower_bound > (singular_values.sum() / T) ** 2


@st.composite
def problems(draw):
    T, b = draw(st.sampled_from([(2, 1), (3, 3), (4, 2), (4, 4), (6, 3)]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    steps, rank = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    R = rng.normal(size=(steps, T, rank)) * 10.0 ** draw(st.integers(-2, 2))
    ridge = 0.1 * np.abs(R).max() ** 2 * np.eye(T)  # else some noise may cost nothing
    return MaximumProblem(R @ R.swapaxes(1, 2) + ridge, np.arange(T) % b)


@examples(60)
@given(problems())
def test_bound_program_and_objective_in_order(problem):
    best = maximum_encoder.solve(problem, Stopping(1e-4))
    reference = program(problem)
    assert best.lower_bound <= reference * (1 + 1e-5)
    assert reference <= best.objective * (1 + 1e-5)
    assert best.status == "optimal"
    assert best.sensitivity <= 1 + 1e-12
    by_hand = max(np.trace(H @ np.linalg.inv(best.gram)) for H in problem.error_grams)
    assert_allclose(best.objective, by_hand, rtol=1e-8)


@examples(20)
@given(problems())
def test_one_error_is_the_usual_problem(problem):
    alone = MaximumProblem(problem.error_grams[:1], problem.classes)
    usual = maximum_encoder.dense_encoder.solve(alone.sum, Stopping(1e-6))
    assert_allclose(maximum_encoder.solve(alone, Stopping(1e-5)).objective, usual.objective, rtol=1e-5)


def test_a_limit_leaves_a_valid_certificate():
    best = maximum_encoder.solve(prefix_sums(16), Stopping(1e-6, 4))
    assert best.status == "stopped"
    assert best.lower_bound < 2.9055 < best.objective


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_any_scale(scale):
    problem = prefix_sums(4)
    best = maximum_encoder.solve(MaximumProblem(scale * problem.error_grams, problem.classes))
    assert_allclose(best.objective / scale, 1.7587, rtol=1e-4)


@pytest.mark.parametrize(
    ("grams", "message"),
    [
        (np.eye(2), "a stack of square matrices, got shape"),
        (np.ones((2, 2, 3)), "a stack of square matrices"),
        (np.full((1, 2, 2), np.nan), "must be finite"),
        (np.array([np.eye(2), [[1.0, 1.0], [0.0, 1.0]]]), "that of step 1 is not"),
        (np.array([np.eye(2), -np.eye(2)]), "that of step 1 is not"),
        (np.zeros((2, 2, 2)), "must not be zero"),
    ],
)
def test_arrays_that_are_no_problem(grams, message):
    refuses(message, MaximumProblem, grams, np.arange(2), error=ProblemError)


def test_no_error_of_a_singular_gram():
    assert prefix_sums(3).objective(np.ones((3, 3))) == np.inf
