"""Bounds of audits: wrong as rarely as they say, by fractions, and close to the truth."""

import math
from fractions import Fraction
from math import comb
from statistics import NormalDist

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfdl.audit import bounds


@given(trials=st.integers(1, 30), data=st.data(), failure=st.sampled_from([0.3, 0.05, 1e-3]))
def test_clopper_pearson_is_the_rate_at_which_so_few_errors_have_probability_failure(trials, data, failure):
    errors = data.draw(st.integers(0, trials - 1))
    rate = Fraction(bounds.clopper_pearson_upper_bound(errors, trials, failure))
    exact = sum(comb(trials, j) * rate**j * (1 - rate) ** (trials - j) for j in range(errors + 1))
    assert float(exact) == pytest.approx(failure, rel=1e-9)


def test_all_errors_leave_every_rate_possible():
    assert bounds.clopper_pearson_upper_bound(7, 7, 0.05) == 1.0
    assert bounds.binomial_mu(np.ones(9), np.ones(9), 0.0, failure=0.05) == 0.0
    assert bounds.binomial_epsilon(np.ones(9), np.ones(9), 0.0, delta=1e-6, failure=0.05) == 0.0


@given(
    samples=st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=2, max_size=25),
    failure=st.sampled_from([0.4, 0.05, 1e-4]),
    delta=st.sampled_from([1e-6, 0.1]),
)
def test_binomial_bounds_rest_on_both_error_rates_each_at_half_the_failure(samples, failure, delta):
    without, with_canary = np.array(samples, dtype=float).T
    alpha, beta = bounds.error_rates(without, with_canary, 0.0, failure)
    errors = [(alpha, sum(a > 0 for a, _ in samples)), (beta, sum(b <= 0 for _, b in samples))]
    N = len(samples)
    for rate, count in errors:
        if count == N:
            assert rate == 1.0
            continue
        p = Fraction(rate)
        exact = sum(comb(N, j) * p**j * (1 - p) ** (N - j) for j in range(count + 1))
        assert float(exact) == pytest.approx(failure / 2, rel=1e-9)
    normal, possible = NormalDist(), alpha < 1 and beta < 1
    shown = max(0.0, -normal.inv_cdf(alpha) - normal.inv_cdf(beta)) if possible else 0.0
    assert bounds.binomial_mu(without, with_canary, 0.0, failure=failure) == pytest.approx(shown, abs=1e-9)
    ratios = [(1 - b - delta) / a for a, b in ((alpha, beta), (beta, alpha))]
    epsilon = max(0.0, *(math.log(ratio) for ratio in ratios if ratio > 0), 0.0)
    found = bounds.binomial_epsilon(without, with_canary, 0.0, delta=delta, failure=failure)
    assert found == pytest.approx(epsilon, abs=1e-12)


@given(
    samples=st.lists(st.integers(-50, 50), min_size=2, max_size=40).filter(lambda one: len(set(one)) > 1),
    failure=st.sampled_from([0.4, 0.05, 1e-4]),
)
def test_the_std_bound_is_the_one_at_which_so_small_a_variance_has_probability_failure(samples, failure):
    bound = bounds.std_upper_bound(np.array(samples, dtype=float), failure)
    squares = sum((x - Fraction(sum(samples), len(samples))) ** 2 for x in samples)
    ratio = float(squares) / bound**2  # chi-square with N - 1 degrees of freedom, at the bound
    assert float(mpmath.gammainc((len(samples) - 1) / 2, 0, ratio / 2, regularized=True)) == pytest.approx(failure)


def test_the_normal_bound_is_wrong_in_its_means_as_often_as_a_third_of_the_failure():
    """With 2,000 samples both deviations are known to 3 %, so that nearly all that goes wrong is the means."""
    rng, times, share = np.random.default_rng(5), 1000, 0.3
    wrong = sum(bounds.gaussian_mu(*rng.standard_normal((2, 2000)), failure=0.9) > 0 for _ in range(times))
    deviation = math.sqrt(times * share * (1 - share))
    assert (share - 0.02) * times - 4 * deviation < wrong < share * times + 3.5 * deviation


def test_bounds_approach_the_truth_and_the_normal_one_is_sharper():
    rng = np.random.default_rng(1)
    without, with_canary = rng.standard_normal(40_000), 1.5 + rng.standard_normal(40_000)
    gaussian = bounds.gaussian_mu(without, with_canary, failure=0.01)
    binomial = bounds.binomial_mu(without, with_canary, 0.75, failure=0.01)
    assert 1.4 < binomial < 1.5
    assert 1.44 < gaussian < 1.5
    assert 0 < bounds.epsilon_lower_bound(gaussian, 1e-6) < bounds.epsilon_lower_bound(1.5, 1e-6)


@pytest.mark.parametrize("spread", [0.05, 0.4, 1.0])
def test_unequal_variances_never_show_more_than_the_wider_one(spread):
    rng = np.random.default_rng(3)
    without, with_canary = spread * rng.standard_normal(4000), 1 + rng.standard_normal(4000)
    assert bounds.gaussian_mu(without, with_canary, failure=1e-6) < 1.0


def test_samples_without_noise_show_everything_or_nothing():
    zeros, ones = np.zeros(100), np.ones(100)
    assert bounds.gaussian_mu(zeros, ones, failure=0.05) == np.inf
    assert bounds.gaussian_mu(zeros, zeros, failure=0.05) == 0.0
    assert bounds.epsilon_lower_bound(np.inf, 1e-6) == np.inf


def test_the_chosen_threshold_lies_between_the_means():
    rng = np.random.default_rng(2)
    threshold = bounds.choose_threshold(rng.standard_normal(2000), 3 + rng.standard_normal(2000), failure=0.05)
    assert 0.5 < threshold < 2.5


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_the_needed_trials_are_enough_and_one_less_is_not(mu):
    needed = bounds.trials_needed(mu, failure=0.01)
    base = np.linspace(-1, 1, needed)
    base /= base.std(ddof=1)
    assert bounds.gaussian_mu(base, 2 * mu + base, failure=0.01) > mu
    if needed > 50:
        fewer = base[:-1] - base[:-1].mean()
        fewer /= fewer.std(ddof=1)
        assert bounds.gaussian_mu(fewer, 2 * mu + fewer, failure=0.01) <= mu
