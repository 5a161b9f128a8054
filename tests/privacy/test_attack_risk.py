"""What an attacker can decide: advantage and true positive rates follow from the privacy curve, and are never below."""

import math

import mpmath
import numpy as np
import pytest
from effort import examples
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refuses

import mfdl
from mfdl.privacy import BallsInBinsGaussian, Gaussian, MonteCarlo, PoissonGaussian
from mfdl.privacy.curves import Composed, MonteCarloCurve

RATES = (1e-6, 0.1, 0.9)
SAMPLED = PoissonGaussian(0.8, rate=0.02, steps=10, adjacency="add-remove")
BINS = BallsInBinsGaussian(1.0, 4, ((4, 0.2),), "zero-out")


def normal(x):
    return mpmath.ncdf(x)


def quantile(p):
    return mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(p) - 1)


@given(st.floats(1e-3, 30.0), st.floats(1e-9, 1 - 1e-9))
@example(4.0, 0.1)  # a threshold at a negative privacy loss
@example(6.0, 0.001)
def test_a_gaussian_curve_has_the_rates_of_the_likelihood_ratio_test(mu, rate):
    with mpmath.workdps(40):
        exact = normal(quantile(rate) + mpmath.mpf(mu))
        claimed = Gaussian(mu, "zero-out").true_positive_rate(rate)
        assert claimed >= exact
        assert claimed <= min(1.0, exact * (1 + 1e-6) + 1e-9)


@pytest.mark.slow
@examples(10)
@given(st.floats(1e-6, 1 - 1e-6), st.floats(0.3, 3.0), st.floats(0.05, 0.95), st.integers(1, 4))
def test_never_below_the_test_that_thresholds_the_likelihood_of_sampled_steps(rate, noise, sampled, steps):
    """One attacker: it adds up the outputs of all steps, and reports the record where the sum is large."""
    curve = PoissonGaussian(noise, rate=sampled, steps=steps, adjacency="zero-out")
    std = noise * math.sqrt(steps)
    threshold = std * float(quantile(1 - rate))
    share = [math.comb(steps, k) * sampled**k * (1 - sampled) ** (steps - k) for k in range(steps + 1)]
    attained = sum(p * float(normal((k - threshold) / std)) for k, p in enumerate(share))
    assert curve.true_positive_rate(rate) >= attained * (1 - 1e-9)


def test_the_least_false_positive_rates_do_not_overflow():
    assert Gaussian(math.inf, "zero-out").true_positive_rate(1e-320) == 1.0
    assert Gaussian(100.0, "zero-out").true_positive_rate(5e-324) <= 1.0


@pytest.mark.parametrize(
    "curve", [Gaussian(1.3, "replace-one"), SAMPLED, BINS, Composed((BINS, Gaussian(0.5, "zero-out")))]
)
def test_a_rate_grows_with_the_false_positive_rate_by_at_most_the_advantage(curve):
    rates = [curve.true_positive_rate(rate) for rate in RATES]
    assert rates == sorted(rates)
    gains = [true - false for true, false in zip(rates, RATES, strict=True)]
    assert all(gain >= 0 for gain in gains)
    assert max(gains) <= curve.delta(0.0) * (1 + 1e-9)


def test_without_noise_an_attacker_decides_without_error_and_without_loss_it_guesses():
    assert Gaussian(math.inf, "zero-out").true_positive_rate(0.01) == 1.0
    assert PoissonGaussian(0.0, 0.1, 5, "zero-out").true_positive_rate(0.01) == 1.0
    assert Gaussian(0.0, "zero-out").true_positive_rate(0.01) == pytest.approx(0.01, rel=1e-9)


def test_a_bound_by_samples_gives_the_certified_rate():
    sampled = MonteCarloCurve(BINS, tuple(map(tuple, np.eye(4) * 0.8 + 0.2)), MonteCarlo(samples=2**12))
    assert sampled.true_positive_rate(0.1) == BINS.true_positive_rate(0.1)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan, "half"])
def test_a_false_positive_rate_lies_strictly_between_0_and_1(rate):
    refuses("false_positive_rate must be a number", lambda: Gaussian(1.0, "zero-out").true_positive_rate(rate))


def test_a_guarantee_answers_by_its_curve():
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=4"))
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(2, 4))
    guarantee = mfdl.calibrate(
        algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0
    ).guarantee
    assert guarantee.advantage() == pytest.approx(float(2 * normal(guarantee.mu / 2) - 1), rel=1e-8)
    assert guarantee.true_positive_rate(0.05) == guarantee.curve.true_positive_rate(0.05)


@pytest.mark.peer
@pytest.mark.slow
def test_advantage_and_rates_beside_riskcal():
    analysis = pytest.importorskip("riskcal", reason="riskcal is of the extra risk").analysis
    for mu in (0.3, 1.0, 4.0):
        curve = Gaussian(mu, "zero-out")
        assert curve.delta(0.0) == pytest.approx(analysis.get_advantage_from_gdp(mu), rel=1e-8)
        theirs = 1 - analysis.get_beta_from_gdp(mu, np.array(RATES))
        assert [curve.true_positive_rate(rate) for rate in RATES] == pytest.approx(theirs.tolist(), rel=1e-6)
    losses = SAMPLED.losses(1e-9)
    assert SAMPLED.delta(0.0) == pytest.approx(analysis.get_advantage_from_pld(losses), rel=2e-3)
    theirs = 1 - analysis.get_beta_from_pld(losses, np.array(RATES))
    ours = np.array([SAMPLED.true_positive_rate(rate) for rate in RATES])
    assert (ours >= theirs * (1 - 1e-3)).all()  # theirs interpolates between the losses of the grid
    assert (ours <= theirs * (1 + 1e-2)).all()
