"""Encoders with structure for balls-in-bins: M against its definition in fractions, gradients, results of a search."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from _encoders import banded, toeplitz
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl_solvers import FactorizationProblem, ProblemError, Stopping
from mfdl_solvers.balls_in_bins_encoder import solve
from mfdl_solvers.encoders import Banded, Toeplitz, bins
from mfdl_solvers.structured import ModeCost, solve_form
from mfdl_solvers.structured import balls_in_bins_search as searched


def by_definition(C, num_bins):
    """M in fractions: sums over steps t of v_t[r] v_t[q], v_t[r] the |C_ts| of the steps s of bin r."""
    T = len(C)
    v = [[sum(abs(Fraction(C[t, s])) for s in range(r, T, num_bins)) for r in range(num_bins)] for t in range(T)]
    return [[sum(row[r] * row[q] for row in v) for q in range(num_bins)] for r in range(num_bins)]


@examples(60)
@given(data=st.data(), num_bins=st.integers(1, 4), epochs=st.integers(1, 3), kind=st.sampled_from([toeplitz, banded]))
def test_M_by_diagonals_is_that_of_the_definition_rounded_up(data, num_bins, epochs, kind):
    encoder, C = data.draw(kind(num_bins * epochs))
    M, true = encoder.bin_gram(num_bins), by_definition(C, num_bins)
    for r in range(num_bins):
        for q in range(num_bins):
            assert true[r][q] <= Fraction(M[r, q]) <= true[r][q] * (1 + Fraction(1, 10**12))


@examples(20)
@given(seed=st.integers(0, 999), correlation=st.sampled_from([0.05, 0.4]), p=st.sampled_from([2, 8]))
def test_gradients_of_the_norm_of_M(seed, correlation, p):
    rng, num_bins, T = np.random.default_rng(seed), 3, 9
    lags = searched._Lags(num_bins, correlation, p)
    c, way = rng.uniform(0.1, 1, T), rng.standard_normal(T)
    slope = (lags.of_series(c + 1e-6 * way)[0] - lags.of_series(c - 1e-6 * way)[0]) / 2e-6
    assert_allclose(lags.of_series(c)[1] @ way, slope, rtol=1e-5, atol=1e-7)
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


@pytest.mark.parametrize(
    ("form", "changing"),
    [
        pytest.param("toeplitz", False, marks=pytest.mark.slow),
        pytest.param("banded", False, marks=pytest.mark.slow),
        ("banded", True),
    ],
)
def test_what_is_found_is_what_it_says_and_no_encoder_is_below_the_bound(form, changing):
    T, num_bins, correlation = 12, 3, 0.2
    cost, H = cost_and_gram(T, changing)
    factorization = solve_form(cost, num_bins, correlation, form, bandwidth=4)
    assert isinstance(factorization.encoder, {"toeplitz": Toeplitz, "banded": Banded}[form])
    assert factorization.encoder.bandwidth == 4
    C = factorization.encoder.dense()
    assert (C >= 0).all()
    inverse = np.linalg.inv(C)
    assert_allclose(factorization.objective, np.trace(inverse.T @ H @ inverse), rtol=1e-9)
    assert_allclose(factorization.bin_gram, np.array(by_definition(C, num_bins), dtype=float), rtol=1e-12)
    assert_allclose(factorization.bin_gram.diagonal().max(), 1.0, rtol=1e-12)
    assert 0.5 * correlation < factorization.correlation <= 1.05 * correlation
    best = solve(FactorizationProblem(H, np.arange(T) % num_bins), factorization.correlation, Stopping(1e-5, 2000))
    assert factorization.lower_bound <= best.objective
    assert best.lower_bound <= factorization.objective <= 1.25 * best.objective
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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_bins": 5}, "bins must divide the 12 steps, got 5"),
        ({"correlation": 1.5}, r"must lie in \[0, 1\], got 1.5"),
        ({"form": "buffered"}, "form must be one of toeplitz, banded for balls-in-bins, got 'buffered'"),
    ],
)
def test_what_means_nothing_is_refused(changed, message):
    options = {"num_bins": 3, "correlation": 0.1, "form": "toeplitz"} | changed
    refuses(message, lambda: solve_form(cost_and_gram(12)[0], **options), error=ProblemError)


def test_a_toeplitz_form_of_changing_rates_and_bins_that_do_not_divide_are_refused():
    with pytest.raises(ProblemError, match="use form 'banded'"):
        solve_form(cost_and_gram(12, changing=True)[0], 3, 0.1, "toeplitz")
    for build in (lambda: bins.of_series(np.ones(4), 3), lambda: bins.of_rows(np.ones((4, 2)), 3)):
        refuses("bins must divide the 4 steps", build, error=ProblemError)
