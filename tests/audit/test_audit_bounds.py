"""Bounds of audits: wrong as rarely as they say, by fractions, and close to the truth."""

import math
from fractions import Fraction
from math import comb
from statistics import NormalDist

import mpmath
import numpy as np
import pytest
from vocabulary import example, given, st

from mfdl.audit import bounds


@given(
    samples=st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=2, max_size=25),
    failure=st.sampled_from([0.4, 0.05, 1e-4]),
    delta=st.sampled_from([1e-6, 0.1]),
)
@example(samples=[(1, -1)] * 9, failure=0.05, delta=1e-6)  # all errors leave every rate possible
def test_binomial_bounds_rest_on_both_error_rates_each_at_half_the_failure(samples, failure, delta):
    without, with_canary = np.array(samples, dtype=float).T
    rates = bounds.ErrorRates.from_samples(without, with_canary, 0.0, failure=failure)
    errors = [(rates.alpha, sum(a > 0 for a, _ in samples)), (rates.beta, sum(b <= 0 for _, b in samples))]
    N = len(samples)
    for rate, count in errors:
        if count == N:
            assert rate == 1.0
            continue
        p = Fraction(rate)
        exact = sum(comb(N, j) * p**j * (1 - p) ** (N - j) for j in range(count + 1))
        assert float(exact) == pytest.approx(failure / 2, rel=1e-9)
    normal, possible = NormalDist(), rates.alpha < 1 and rates.beta < 1
    mu = max(0.0, -normal.inv_cdf(rates.alpha) - normal.inv_cdf(rates.beta)) if possible else 0.0
    assert rates.mu == pytest.approx(mu, abs=1e-9)
    ratios = [(1 - b - delta) / a for a, b in ((rates.alpha, rates.beta), (rates.beta, rates.alpha))]
    epsilon = max(0.0, *(math.log(ratio) for ratio in ratios if ratio > 0), 0.0)
    assert rates.epsilon(delta) == pytest.approx(epsilon, abs=1e-12)
    for epsilon, least in zip(bounds.EPSILONS, rates.deltas, strict=True):  # every (epsilon, delta) that holds
        grown = math.exp(epsilon)
        misses = 1 - rates.beta - grown * rates.alpha, 1 - rates.alpha - grown * rates.beta
        assert least == pytest.approx(max(0.0, *misses), abs=1e-12)


@given(
    samples=st.lists(st.integers(-50, 50), min_size=2, max_size=40).filter(lambda values: len(set(values)) > 1),
    failure=st.sampled_from([0.4, 0.05, 1e-4]),
)
def test_the_std_bound_is_the_one_at_which_so_small_a_variance_has_probability_failure(samples, failure):
    bound = bounds.std_upper_bound(np.array(samples, dtype=float), failure)
    squares = sum((x - Fraction(sum(samples), len(samples))) ** 2 for x in samples)
    ratio = float(squares) / bound**2  # chi-square with N - 1 degrees of freedom, at the bound
    assert float(mpmath.gammainc((len(samples) - 1) / 2, 0, ratio / 2, regularized=True)) == pytest.approx(failure)


def test_the_normal_bound_is_wrong_in_its_means_as_often_as_a_third_of_the_failure():
    rng, times, share = np.random.default_rng(5), 1000, 0.3
    wrong = sum(bounds.gaussian_mu(*rng.standard_normal((2, 2000)), failure=0.9) > 0 for _ in range(times))
    deviation = math.sqrt(times * share * (1 - share))
    assert (share - 0.02) * times - 4 * deviation < wrong < share * times + 3.5 * deviation


def test_bounds_approach_the_truth_and_the_normal_one_is_sharper():
    rng = np.random.default_rng(1)
    without, with_canary = rng.standard_normal(40_000), 1.5 + rng.standard_normal(40_000)
    gaussian = bounds.gaussian_mu(without, with_canary, failure=0.01)
    assert 1.4 < bounds.ErrorRates.from_samples(without, with_canary, 0.75, failure=0.01).mu < 1.5
    assert 1.44 < gaussian < 1.5
    assert 0 < bounds.epsilon_lower_bound(gaussian, 1e-6) < bounds.epsilon_lower_bound(1.5, 1e-6)


@pytest.mark.parametrize("spread", [0.05, 0.4, 1.0])
def test_unequal_variances_never_show_more_than_the_wider_one(spread):
    rng = np.random.default_rng(3)
    without, with_canary = spread * rng.standard_normal(4000), 1 + rng.standard_normal(4000)
    assert bounds.gaussian_mu(without, with_canary, failure=1e-6) < 1.0


def test_samples_without_noise_show_everything_or_nothing():
    zeros, ones = np.zeros(100), np.ones(100)
    assert bounds.gaussian_mu(zeros, ones, failure=0.05) > 1e12
    assert bounds.gaussian_mu(zeros, zeros, failure=0.05) == 0.0
    assert bounds.epsilon_lower_bound(np.inf, 1e-6) == np.inf


@given(st.floats(1e-15, 1e-12), st.integers(0, 2**32 - 1))
def test_noise_at_the_rounding_of_the_samples_shows_no_more_than_its_mu(std, seed):
    noise = std * np.random.default_rng(seed).standard_normal((2, 200))
    assert bounds.gaussian_mu(noise[0] - 1, noise[1] + 1, failure=1e-6) <= 2 / std


@pytest.mark.parametrize(("shift", "between"), [(3.0, (0.5, 2.5)), (-3.0, (-1.6, -1.4))])
def test_the_chosen_threshold_lies_between_the_means(shift, between):
    rng = np.random.default_rng(2)
    samples = rng.standard_normal(2000), shift + rng.standard_normal(2000)
    threshold = bounds.best_threshold(*samples, lambda rates: rates.mu, count=100, tail=0.005, failure=0.05)
    assert between[0] < threshold < between[1]


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


@given(trials=st.integers(1, 30), data=st.data(), failure=st.sampled_from([0.3, 0.05, 1e-3]))
def test_clopper_pearson_is_the_rate_at_which_so_few_errors_have_probability_failure(trials, data, failure):
    errors = data.draw(st.integers(0, trials - 1))
    rate = Fraction(bounds.clopper_pearson_upper_bound(errors, trials, failure))
    exact = sum(comb(trials, j) * rate**j * (1 - rate) ** (trials - j) for j in range(errors + 1))
    assert float(exact) == pytest.approx(failure, rel=1e-9)
