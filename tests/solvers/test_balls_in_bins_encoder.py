"""Encoders for balls-in-bins, dense and with structure: M in fractions, constraints, gradients, lower bounds."""

from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
from drawn_encoders import banded, toeplitz
from numpy.testing import assert_allclose
from vocabulary import each, given, refuses, st

from mfdl_solvers import FactorizationProblem, ProblemError, Stopping, lower_bound
from mfdl_solvers.balls_in_bins_encoder import bin_gram, solve
from mfdl_solvers.encoders import Banded, Toeplitz, bins
from mfdl_solvers.structured import ModeCost, solve_form
from mfdl_solvers.structured import balls_in_bins_search as searched

LOOSE = Stopping(tolerance=1e-3, max_iterations=400)


def problem(T, bins, seed=0, rank=None):
    rng = np.random.default_rng(seed)
    A = np.tri(T)[-(rank or T) :] * rng.uniform(0.5, 1.5, (rank or T, T))
    return FactorizationProblem(A.T @ A, np.arange(T) % bins)


def gram_by_definition(C, num_bins):
    """M in fractions: sums over steps t of v_t[r] v_t[q], v_t[r] the |C_ts| of the steps s of bin r."""
    T = len(C)
    v = [[sum(abs(Fraction(C[t, s])) for s in range(r, T, num_bins)) for r in range(num_bins)] for t in range(T)]
    return [[sum(row[r] * row[q] for row in v) for q in range(num_bins)] for r in range(num_bins)]


def by_definition(C, num_bins):
    return np.array(gram_by_definition(C, num_bins), dtype=float)


def objective_of(C, H):
    inverse = np.linalg.inv(C)
    return float(np.trace(inverse.T @ H @ inverse))


@given(
    25, bins=st.integers(1, 3), epochs=st.integers(1, 3), correlation=st.sampled_from([0.0, 0.05, 0.3, 0.8, 1.0]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_no_encoder_of_any_signs_is_below_the_bound_and_the_answer_is_what_it_says(bins, epochs, correlation, seed):
    posed = problem(bins * epochs, bins, seed)
    solved = solve(posed, correlation, LOOSE)
    C, H, T = solved.encoder, posed.error_gram, posed.size
    assert (C >= 0).all()
    assert_allclose(C, np.tril(C))
    M = by_definition(C, bins)
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
        N = by_definition(other, bins)
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


def test_signs_are_no_way_around_the_bins():
    C = np.array([[1.0, 0.0, 0.0], [-0.1, 1.0, 0.0], [1.0, 1.0, 1.0]])  # X >= 0, and M is not E^T X E
    assert_allclose(bin_gram(C, np.array([0, 1, 2]))[0, 1], 1.1)


@given(
    60, data=st.data(), num_bins=st.integers(1, 4), epochs=st.integers(1, 3), kind=st.sampled_from([toeplitz, banded])
)
def test_M_by_diagonals_is_that_of_the_definition_rounded_up(data, num_bins, epochs, kind):
    encoder, C = data.draw(kind(num_bins * epochs))
    M, true = encoder.bin_gram(num_bins), gram_by_definition(C, num_bins)
    for r in range(num_bins):
        for q in range(num_bins):
            assert true[r][q] <= Fraction(M[r, q]) <= true[r][q] * (1 + Fraction(1, 10**12))


@given(20, seed=st.integers(0, 999), correlation=st.sampled_from([0.05, 0.4]), p=st.sampled_from([2, 8]))
def test_gradients_of_the_norm_of_M(seed, correlation, p):
    rng, num_bins, T = np.random.default_rng(seed), 3, 9
    lags = searched._Lags(num_bins, correlation, p)
    c, way = rng.uniform(0.1, 1, T), rng.standard_normal(T)
    slope = (lags.squared_size(c + 1e-6 * way)[0] - lags.squared_size(c - 1e-6 * way)[0]) / 2e-6
    assert_allclose(lags.squared_size(c)[1] @ way, slope, rtol=1e-5, atol=1e-7)
    rows, way = np.tril(np.ones((T, 4))) * rng.uniform(0.1, 1, (T, 4)), rng.standard_normal((T, 4))
    way *= rows > 0
    caps = np.where(np.eye(num_bins, dtype=bool), 1.0, correlation)
    ahead, behind = (searched._norm_of_rows(rows + h * way, caps, p)[0] for h in (1e-6, -1e-6))
    assert_allclose((searched._norm_of_rows(rows, caps, p)[1] * way).sum(), (ahead - behind) / 2e-6, rtol=1e-5)


def cost_and_gram(T, changing=False):
    """Two modes, and H from their recursions written out."""
    lam, m, rates = np.array([0.5, 1.0]), np.array([2.0, 1.0]), np.linspace(1.0, 0.5, T) if changing else np.ones(T)
    H = np.zeros((T, T))
    for value, weight in zip(lam, m, strict=True):
        R = np.array([[rates[s] * value ** (t - s) if s <= t else 0.0 for s in range(T)] for t in range(T)])
        H += weight * R.T @ R
    return ModeCost(lam, m, np.ones(T), rates=rates), H


@each(
    "form, changing",
    pytest.param("toeplitz", False, marks=pytest.mark.slow),
    pytest.param("banded", False, marks=pytest.mark.slow),
    ("banded", True),
)
def test_what_is_found_is_what_it_says_and_no_encoder_is_below_the_bound(form, changing):
    T, num_bins, correlation = 12, 3, 0.2
    cost, H = cost_and_gram(T, changing)
    factorization = solve_form(cost, num_bins, correlation, form, bandwidth=4)
    assert isinstance(factorization.encoder, {"toeplitz": Toeplitz, "banded": Banded}[form])
    assert factorization.encoder.bandwidth == 4
    C = factorization.encoder.dense()
    assert (C >= 0).all()
    assert_allclose(factorization.objective, objective_of(C, H), rtol=1e-9)
    assert_allclose(factorization.bin_gram, by_definition(C, num_bins), rtol=1e-12)
    assert_allclose(factorization.bin_gram.diagonal().max(), 1.0, rtol=1e-12)
    assert 0.5 * correlation < factorization.correlation <= 1.05 * correlation
    best = solve(FactorizationProblem(H, np.arange(T) % num_bins), factorization.correlation, Stopping(1e-5, 2000))
    # each bound is for its own correlation c; at c' > c the caps grow by c' / c at most, and the bound falls no more
    ratio = best.correlation / factorization.correlation
    assert factorization.lower_bound * min(1.0, 1 / ratio) <= best.objective
    assert best.lower_bound * min(1.0, ratio) <= factorization.objective <= 1.25 * best.objective
    alone = solve_form(cost, num_bins, 0.0, form)
    assert alone.correlation == 0
    assert alone.objective > factorization.objective
    again = solve_form(cost, num_bins, correlation, form, bandwidth=4, start=factorization)
    assert_allclose(again.objective, factorization.objective, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.02, 0.1, 0.5])
def test_a_band_as_wide_as_the_bins_is_as_good_as_any_encoder_and_bands_are_better_than_toeplitz(correlation):
    T, num_bins = 64, 8
    cost, H = cost_and_gram(T)
    dense = solve(FactorizationProblem(H, np.arange(T) % num_bins), correlation)
    of_bands = solve_form(cost, num_bins, correlation, "banded")
    alike = solve_form(cost, num_bins, correlation, "toeplitz")
    assert of_bands.objective < 1.03 * dense.objective
    assert of_bands.objective < alike.objective < 1.15 * dense.objective


@each(
    "changed, message",
    ({"num_bins": 5}, "bins must divide the 12 steps, got 5"),
    ({"correlation": 1.5}, r"must lie in \[0, 1\], got 1.5"),
    ({"form": "buffered"}, "form must be one of toeplitz, banded for balls-in-bins, got 'buffered'"),
)
def test_what_means_nothing_is_refused(changed, message):
    refuses(r"must lie in \[0, 1\], got 1.5", solve, problem(4, 2), 1.5, error=ProblemError)
    options = {"num_bins": 3, "correlation": 0.1, "form": "toeplitz"} | changed
    refuses(message, lambda: solve_form(cost_and_gram(12)[0], **options), error=ProblemError)


def test_a_toeplitz_form_of_changing_rates_and_bins_that_do_not_divide_are_refused():
    with pytest.raises(ProblemError, match="use form 'banded'"):
        solve_form(cost_and_gram(12, changing=True)[0], 3, 0.1, "toeplitz")
    for build in (lambda: bins.from_series(np.ones(4), 3), lambda: bins.from_rows(np.ones((4, 2)), 3)):
        refuses("bins must divide the 4 steps", build, error=ProblemError)
