"""Encoders for balls-in-bins: their constraints, their objective, and that the lower bound is a bound."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl_solvers import FactorizationProblem, ProblemError, Stopping, lower_bound
from mfdl_solvers.balls_in_bins_encoder import bin_gram, solve

LOOSE = Stopping(tolerance=1e-3, max_iterations=400)


def problem(T, bins, seed=0, rank=None):
    rng = np.random.default_rng(seed)
    A = np.tri(T)[-(rank or T) :] * rng.uniform(0.5, 1.5, (rank or T, T))
    return FactorizationProblem(A.T @ A, np.arange(T) % bins)


def by_definition(C, bins):
    """M one entry at a time: sums over steps t of v_t[r] v_t[q], v_t[r] the |C_ts| of the steps s <= t of bin r."""
    b = int(bins.max()) + 1
    v = np.array([[sum(abs(C[t, s]) for s in range(t + 1) if bins[s] == r) for r in range(b)] for t in range(len(C))])
    return sum(np.outer(row, row) for row in v)


def objective_of(C, H):
    inverse = np.linalg.inv(C)
    return float(np.trace(inverse.T @ H @ inverse))


@examples(25)
@given(
    bins=st.integers(1, 3),
    epochs=st.integers(1, 3),
    correlation=st.sampled_from([0.0, 0.05, 0.3, 0.8, 1.0]),
    seed=st.integers(0, 99),
)
def test_no_encoder_of_any_signs_is_below_the_bound_and_the_answer_is_what_it_says(bins, epochs, correlation, seed):
    posed = problem(bins * epochs, bins, seed)
    solved = solve(posed, correlation, LOOSE)
    C, H, T = solved.encoder, posed.error_gram, posed.size
    assert (C >= 0).all()
    assert_allclose(C, np.tril(C))
    M = by_definition(C, posed.classes)
    assert (solved.bin_gram * (1 + 1e-12) >= M).all()
    assert_allclose(solved.bin_gram, M, rtol=1e-12)
    assert_allclose(np.diagonal(M).max(), 1.0, rtol=1e-12)
    assert_allclose(solved.objective, objective_of(C, H), rtol=1e-9)
    assert solved.correlation <= 1.15 * correlation + 1e-12
    assert solved.lower_bound <= solved.objective * (1 + 1e-9)
    rng = np.random.default_rng(seed)
    for _ in range(20):  # around the answer, and far from it
        other = C + rng.choice([1e-3, 0.1, 1.0]) * np.tril(rng.standard_normal((T, T))) * np.diagonal(C).mean()
        other[np.diag_indices(T)] = np.abs(np.diagonal(other)) + 1e-6
        N = by_definition(other, posed.classes)
        caps = np.where(np.eye(bins, dtype=bool), 1.0, max(solved.correlation, 1e-100))
        scale = (N / caps).max()
        if np.isfinite(scale):
            assert objective_of(other, H) * scale >= solved.lower_bound * (1 - 1e-9)


@pytest.mark.parametrize("bins", [2, 3])
@pytest.mark.parametrize("correlation", [0.1, 0.5])
def test_the_bound_is_nearly_the_optimum_of_the_relaxation(bins, correlation):
    posed = problem(6, bins)
    solved = solve(posed, correlation, Stopping(tolerance=1e-5, max_iterations=2000))
    X = cp.Variable((6, 6), PSD=True)
    L = np.linalg.cholesky(posed.error_gram)
    sums = [
        cp.sum(cp.abs(X[np.ix_(posed.classes == r, posed.classes == q)])) <= (1.0 if r == q else solved.correlation)
        for r in range(bins)
        for q in range(r, bins)
    ]
    cost = cp.Minimize(sum(cp.matrix_frac(L[:, i], X) for i in range(6)))
    optimum = cp.Problem(cost, sums).solve(solver="CLARABEL")
    assert 0.97 * optimum <= solved.lower_bound <= optimum * (1 + 1e-6)
    assert solved.objective <= 1.1 * optimum


def test_bins_that_must_not_meet_have_a_closed_form():
    posed = problem(12, 3)
    solved = solve(posed, 0.0)
    roots = np.sqrt(np.diagonal(posed.error_gram))
    assert_allclose(solved.objective, sum(roots[posed.classes == r].sum() ** 2 for r in range(3)), rtol=1e-12)
    assert solved.gap < 1e-9
    alone = problem(7, 1)
    assert_allclose(solve(alone, 0.4).objective, np.sqrt(np.diagonal(alone.error_gram)).sum() ** 2, rtol=1e-9)


def test_bins_that_may_meet_freely_cost_no_more_than_classes_of_a_public_map_bound():
    """M_rq <= 1 binds nothing that unit sensitivity does not: the published problem bounds this one."""
    posed = problem(12, 4)
    solved = solve(posed, 1.0, LOOSE)
    X = solved.encoder.T @ solved.encoder
    assert solved.objective >= lower_bound(posed, X) * (1 - 1e-9)
    less = [solve(posed, c, LOOSE).objective for c in (0.0, 0.1, 0.3, 1.0)]
    assert less == sorted(less, reverse=True)


def test_an_error_gram_of_low_rank_and_any_scale():
    posed = problem(12, 3, rank=4)
    solved = solve(posed, 0.2, LOOSE)
    assert 0 < solved.lower_bound <= solved.objective < np.inf
    huge = solve(FactorizationProblem(np.ldexp(posed.error_gram, 600), posed.classes), 0.2, LOOSE)
    assert_allclose(huge.objective / solved.objective, 2.0**600, rtol=1e-12)


def test_a_correlation_out_of_range_is_refused():
    refuses(r"must lie in \[0, 1\], got 1.5", lambda: solve(problem(4, 2), 1.5), error=ProblemError)


def test_signs_are_no_way_around_the_bins():
    C = np.array([[1.0, 0.0, 0.0], [-0.1, 1.0, 0.0], [1.0, 1.0, 1.0]])  # X >= 0, and M is not E^T X E
    assert_allclose(bin_gram(C, np.array([0, 1, 2]))[0, 1], 1.1)
