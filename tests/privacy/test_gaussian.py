"""Conversions of Gaussian mechanisms, delta among them, against mpmath: never unsafe, never looser than stated."""

import math
import sys
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from loss_numbers import EXTRA_DIGITS, SLACK, deltas, epsilons, exact_a, log_uniform, mu_and_epsilon, mus
from scipy.special import erfcx
from vocabulary import assume, each, example, given, refuses, st

from mfdl.privacy import gaussian
from mfdl.privacy.gaussian import (
    delta_from_mu,
    epsilon_from_mu,
    epsilon_from_renyi,
    log_delta_from_mu,
    mu_from_epsilon,
    mu_from_noise_std,
)
from mfdl.testing import DIGITS, exact_delta, exact_epsilon, exact_log_delta, exact_mu, mills_ratio

INF = math.inf
NAN = math.nan


@example(1e-6, 1e-300)
@example(1e-6, 0.5)
@example(100.0, 1e-300)
@example(1.0, 0.5)
@given(mus, deltas)
def test_epsilon_is_safe_and_smallest(mu, delta):
    epsilon = epsilon_from_mu(mu, delta)
    assert exact_delta(mu, epsilon, digits=EXTRA_DIGITS) <= delta
    lower = epsilon - 1e-9 * (mu + epsilon)  # documented: slack 2e-11 over d log delta / d epsilon > 0.8 / mu
    if lower > 0:
        assert exact_delta(mu, lower, digits=EXTRA_DIGITS) > delta


@example(500.0, 1e-300)
@example(500.0, 1e-5)
@example(5000.0, 0.5)
@example(1e-8, 1e-300)
@given(epsilons, deltas)
def test_calibrated_mu_is_safe_and_largest(epsilon, delta):
    mu = mu_from_epsilon(epsilon, delta)
    assert exact_delta(mu, epsilon, digits=EXTRA_DIGITS) <= delta
    assert exact_delta(mu * (1 + 1e-9), epsilon, digits=EXTRA_DIGITS) > delta  # documented tightness


@given(epsilons, deltas)
def test_round_trips_never_overshoot(epsilon, delta):
    mu = mu_from_epsilon(epsilon, delta)
    back = epsilon_from_mu(mu, delta)
    # Both ends of the search stop within 4 u of a test that is monotone up to its rounding, a few
    # (a^2 + 1) u in log delta; 1e-11 covers that for every a <= 37.
    assert back <= epsilon + 1e-11 * (mu + epsilon)
    assert exact_delta(mu, back, digits=EXTRA_DIGITS) <= delta
    assert delta_from_mu(mu, epsilon) <= delta * (1 + 1e-12)  # 1e-12: log and exp of a log up to 691


@given(mus, deltas, log_uniform(1e-6, 1.0))
def test_epsilon_grows_with_mu_and_falls_with_delta(mu, delta, step):
    epsilon = epsilon_from_mu(mu, delta)
    assert epsilon_from_mu(mu * (1 + step), delta) >= epsilon
    assert epsilon_from_mu(mu, min(delta * (1 + step), 0.9)) <= epsilon
    if epsilon > 0:
        assert epsilon_from_mu(mu * (1 + step), delta) > epsilon


@given(epsilons, deltas, log_uniform(1e-6, 1.0))
def test_mu_grows_with_epsilon_and_delta(epsilon, delta, step):
    mu = mu_from_epsilon(epsilon, delta)
    assert mu_from_epsilon(epsilon * (1 + step), delta) >= mu
    assert mu_from_epsilon(epsilon, min(delta * (1 + step), 0.9)) >= mu


@pytest.mark.parametrize("delta", [5e-324, 1e-310, 0.9, 1 - 1e-12, math.nextafter(1.0, 0.0)])
def test_extreme_delta_is_safe(delta):
    for epsilon in (1e-3, 1.0, 700.0):
        mu = mu_from_epsilon(epsilon, delta)
        assert mu > 0
        assert exact_delta(mu, epsilon, digits=EXTRA_DIGITS) <= delta
        assert exact_delta(mu, epsilon_from_mu(mu, delta), digits=EXTRA_DIGITS) <= delta


def test_limits_of_epsilon_and_mu():
    assert epsilon_from_mu(0.0, 0.0) == epsilon_from_mu(0.0, 1e-5) == 0.0
    assert epsilon_from_mu(INF, 1e-5) == epsilon_from_mu(1e-6, 0.0) == INF
    assert epsilon_from_mu(0.1, 0.5) == 0.0  # total variation 0.04 is below delta
    # Noise to infinity: mu and epsilon go to 0. Noise to 0: both go to infinity.
    for small in (1e-3, 1e-6, 1e-9):
        assert epsilon_from_mu(small, 1e-12) < 10 * small
        assert mu_from_epsilon(1 / small, 1e-5) > 1 / math.sqrt(small)
    assert mu_from_epsilon(1e-300, 1e-5) > 0


@pytest.mark.parametrize("delta", [5e-324, 1e-300, 1e-5, 0.5, 1 - 1e-12])
@pytest.mark.parametrize("epsilon", [1e300, 1.2e308, 1.7e308, sys.float_info.max])
def test_the_largest_epsilon_is_calibrated_for_and_met(epsilon, delta):
    mu = mu_from_epsilon(epsilon, delta)
    with mpmath.workdps(1000):
        a = exact_a(mu, epsilon)
        assert a > 1e5  # delta(epsilon) <= e^(-a^2/2) / 2 < 1e-2000000000
        assert mu == pytest.approx(float(mpmath.sqrt(2 * mpmath.mpf(epsilon))), rel=1e-9)  # a = 0


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.1, 0.5, 0.9])
def test_the_smallest_epsilon_is_calibrated_for_and_met(delta):
    mu = mu_from_epsilon(5e-324, delta)
    with mpmath.workdps(350):  # delta(0) = erf(mu / sqrt 8), and epsilon takes at most 5e-324 off
        assert mpmath.erf(mpmath.mpf(mu) / mpmath.sqrt(8)) <= delta + 5e-324
        above = mpmath.erf(mpmath.mpf(mu) * (1 + mpmath.mpf(SLACK)) / mpmath.sqrt(8))
        assert above > delta


def test_the_smallest_epsilon_and_delta_of_all_are_met():
    mu = mu_from_epsilon(5e-324, 5e-324)
    assert mu > 0
    with mpmath.workdps(700):
        a = exact_a(mu, 5e-324)
        highest = mpmath.mpf(mu) * (1 - a * mills_ratio(a, digits=700))  # mu K(a), as K falls
        assert highest * mpmath.npdf(a) <= mpmath.mpf(5e-324)


def test_a_published_conversion_that_fails_for_large_epsilon_is_not_ours():
    # mu^2 = 2 (epsilon/ (2 sqrt(L)))^2 certifies 41.76 where 40 is claimed; the exact mu is smaller.
    claimed = 5.8944
    assert epsilon_from_mu(claimed, 1e-5) == pytest.approx(41.76, abs=5.1e-3)  # printed digits
    assert mu_from_epsilon(40.0, 1e-5) < claimed


@given(log_uniform(1e-6, 100.0), log_uniform(1.0, 1e6))
def test_renyi_epsilon_is_rounded_up_by_one_float_at_most(mu, order):
    true = Fraction(order) * Fraction(mu) ** 2 / 2
    value = gaussian.renyi_epsilon(mu, order)
    assert true <= Fraction(value)
    assert Fraction(math.nextafter(value, 0.0)) < true


@given(mus, deltas)
def test_epsilon_from_renyi_is_the_best_order_and_never_below_the_exact_epsilon(mu, delta):
    value = gaussian.epsilon_from_renyi(mu, delta)
    with mpmath.workdps(50):
        rho, log_inverse = mpmath.mpf(mu) ** 2 / 2, -mpmath.log(mpmath.mpf(delta))
        true = rho + 2 * mpmath.sqrt(rho * log_inverse)
        best = 1 + mpmath.sqrt(log_inverse / rho)
        at_best_order = best * rho + log_inverse / (best - 1)
        assert abs(at_best_order / true - 1) < mpmath.mpf(10) ** -40  # 50 digits, a few operations
    assert true <= value <= true * (1 + 1e-14)  # seven roundings and a margin of 8 u: below 30 u = 4e-15
    assert epsilon_from_mu(mu, delta) <= value


@given(200, epsilon=epsilons, delta=deltas)
def test_mu_from_renyi_is_the_largest_mu_whose_renyi_epsilon_is_at_most_the_target(epsilon, delta):
    def renyi(mu):
        rho = mpmath.mpf(mu) ** 2 / 2
        return rho + 2 * mpmath.sqrt(rho * -mpmath.log(delta))

    with mpmath.workdps(DIGITS):
        mu = gaussian.mu_from_renyi(epsilon, delta)
        assert renyi(mu) <= epsilon < renyi(mu * (1 + 4e-15))


def test_limits_of_renyi():
    assert gaussian.renyi_epsilon(0.0, 2.0) == gaussian.epsilon_from_renyi(0.0, 0.0) == 0.0
    assert gaussian.epsilon_from_renyi(INF, 1e-5) == gaussian.epsilon_from_renyi(1.0, 0.0) == INF
    assert gaussian.renyi_epsilon(INF, 2.0) == gaussian.renyi_epsilon(1e200, 2.0) == INF
    assert gaussian.renyi_epsilon(1e-200, 2.0) == 5e-324


@example([1e-200, 1e-200])
@example([1e200] * 3)
@example([0.1] * 7)
@given(st.lists(st.one_of(st.just(0.0), log_uniform(1e-6, 100.0)), max_size=12))
def test_compose_is_the_root_of_the_sum_of_squares_rounded_up(values):
    total = sum((Fraction(mu) ** 2 for mu in values), Fraction(0))
    composed = gaussian.compose(values)
    assert Fraction(composed) ** 2 >= total
    assert Fraction(composed * (1 - 4e-16)) ** 2 <= total  # hypot is within one float, 2.3e-16


def test_limits_of_compose():
    assert gaussian.compose([]) == gaussian.compose([0.0]) == 0.0
    assert gaussian.compose(iter([0.1])) == 0.1
    assert gaussian.compose([1.0, INF]) == gaussian.compose([1.7e308] * 2) == INF


@given(log_uniform(1e-3, 1e3), log_uniform(1e-3, 1e3), log_uniform(1e-3, 1e3))
def test_the_three_adjacencies_against_the_closed_form(multiplier, sensitivity, clip_norm):
    shifts = {adjacency: gaussian.record_shift(adjacency, clip_norm) for adjacency in gaussian.ADJACENCIES}
    assert shifts == {"zero-out": clip_norm, "add-remove": clip_norm, "replace-one": 2 * clip_norm}
    for shift in shifts.values():
        std = gaussian.noise_std(multiplier, sensitivity, shift)
        assert std == pytest.approx(multiplier * sensitivity * shift, rel=1e-15)  # two roundings
        # mu = 1 / noise_multiplier under every adjacency; three more roundings
        assert mu_from_noise_std(sensitivity, shift, std) == pytest.approx(1 / multiplier, rel=1e-15)
    # Noise chosen for one adjacency gives twice the mu under replace-one: factor 2 in mu, 4 in Rényi.
    std = gaussian.noise_std(multiplier, sensitivity, shifts["zero-out"])
    mu = mu_from_noise_std(sensitivity, shifts["zero-out"], std)
    twice = mu_from_noise_std(sensitivity, shifts["replace-one"], std)
    assert twice == pytest.approx(2 * mu, rel=1e-15)
    assert gaussian.renyi_epsilon(twice, 3.0) == pytest.approx(4 * gaussian.renyi_epsilon(mu, 3.0), rel=2e-15)


@example(1e-200, 1e-200, 1e-300)
@given(log_uniform(1e-9, 1e9), log_uniform(1e-9, 1e9), log_uniform(1e-9, 1e9))
def test_mu_from_noise_std_is_the_smallest_float_that_is_safe(sensitivity, shift, std):
    true = Fraction(sensitivity) * Fraction(shift) / Fraction(std)
    value = mu_from_noise_std(sensitivity, shift, std)
    assert Fraction(value) >= true
    assert Fraction(math.nextafter(value, 0.0)) < true


def test_limits_of_noise():
    assert mu_from_noise_std(1.0, 1.0, 0.0) == mu_from_noise_std(INF, 1.0, 1.0) == INF
    assert mu_from_noise_std(0.0, 1.0, 0.0) == gaussian.noise_std(0.0, 1.0, 1.0) == 0.0
    assert mu_from_noise_std(1e300, 1e300, 1e-300) == INF
    assert mu_from_noise_std(1e-300, 1e-300, 1e300) == 5e-324
    # More noise, less loss, down to nothing.
    assert [mu_from_noise_std(1.0, 2.0, s) for s in (0.5, 1.0, 4.0, 2e300)] == [4.0, 2.0, 0.5, 1e-300]


@each(
    "call, message",
    (lambda: delta_from_mu(-1.0, 1.0), r"^mu must be a finite number >= 0, got -1.0"),
    (lambda: delta_from_mu(NAN, 1.0), r"^mu must be .* got nan"),
    (lambda: log_delta_from_mu(1.0, NAN), r"^epsilon must be .* got nan"),
    (lambda: epsilon_from_mu(NAN, 1e-5), r"^mu must be .* got nan"),
    (lambda: epsilon_from_mu(1.0, 1.0), r"^delta must be a number in \[0, 1\), got 1.0"),
    (lambda: mu_from_epsilon(0.0, 1e-5), r"^epsilon must be a finite number > 0, got 0.0"),
    (lambda: mu_from_epsilon(1.0, 0.0), r"^delta must be a number strictly between 0 and 1, got 0.0"),
    (lambda: gaussian.renyi_epsilon(1.0, 0.5), r"^order must be a finite number >= 1, got 0.5"),
    (lambda: gaussian.renyi_epsilon(-1.0, 2.0), r"^mu must be .* got -1.0"),
    (lambda: gaussian.mu_from_renyi(0.0, 0.1), r"^epsilon must be .* got 0"),
    (lambda: gaussian.mu_from_renyi(1.0, 0.0), r"^delta must .* got 0"),
    (lambda: gaussian.epsilon_from_renyi(NAN, 0.1), r"^mu must be .* got nan"),
    (lambda: gaussian.compose([1.0, NAN]), r"^mus must be .* got nan"),
    (lambda: gaussian.record_shift("replace", 1.0), r"^unknown adjacency 'replace'; did you mean 'replace-one'\?"),
    (lambda: gaussian.record_shift("zero-out", 0.0), r"^clip_norm must be a finite number > 0, got 0.0"),
    (lambda: gaussian.record_shift("replace-one", 1e308), r"^record_shift must be .* got inf"),
    (lambda: gaussian.noise_std(-1.0, 1.0, 1.0), r"^noise_multiplier must be .* got -1.0"),
    (lambda: gaussian.noise_std(1.0, INF, 1.0), r"^sensitivity must be .* got inf"),
    (lambda: gaussian.noise_std(1.0, 1.0, 0.0), r"^record_shift must be .* got 0.0"),
    (lambda: gaussian.noise_std(1e200, 1e200, 1.0), r"^noise_std must be .* got inf"),
    (lambda: mu_from_noise_std(-1.0, 1.0, 1.0), r"^sensitivity must be .* got -1.0"),
    (lambda: mu_from_noise_std(1.0, 0.0, 1.0), r"^record_shift must be .* got 0.0"),
    (lambda: mu_from_noise_std(1.0, 1.0, NAN), r"^noise_std must be .* got nan"),
)
def test_bad_input_names_the_argument(call, message):
    refuses(message, call)


def test_numpy_scalars_are_numbers_and_results_are_plain_floats():
    single, double, delta = np.float32(1.0), np.float64(1.0), np.float64(1e-5)
    values = (
        delta_from_mu(double, double), delta_from_mu(np.float32(INF), 1), epsilon_from_mu(single, delta),
        mu_from_epsilon(np.int64(3), delta), gaussian.compose(np.ones(3)), mu_from_noise_std(double, double, double),
    )  # fmt: skip
    assert {type(value) for value in values} == {float}


# The three forms of D and their borders: mu = 1 and a = 30, and the two far ends of a.
@example((1.0, 30.5))
@example((math.nextafter(1.0, 0.0), 0.0))
@example((1.0, 0.0))
@example((0.5, 15.125))
@example((1e-6, 0.0))
@example((1e-6, 3.7e-5))
@example((100.0, 8700.0))
@example((20.0, 1.0))
@given(mu_and_epsilon())
def test_delta_is_never_below_the_true_value_nor_above_it_by_more_than_the_slack(pair):
    mu, epsilon = pair
    assume(epsilon >= 0)
    true = exact_delta(mu, epsilon, digits=EXTRA_DIGITS)
    value = delta_from_mu(mu, epsilon)
    assert true <= value <= true * (1 + mpmath.mpf(SLACK))


@example((1e-6, 500.0))
@example((0.3, 700.0))
@example((100.0, 1e6))
@given(st.tuples(mus, log_uniform(1e-8, 1e6)))
def test_log_delta_does_not_underflow_and_is_never_below_the_true_value(pair):
    mu, epsilon = pair
    a = epsilon / mu
    assume(a < 1e5)  # beyond, mpmath needs more digits than a test can wait for
    true = exact_log_delta(mu, epsilon, digits=EXTRA_DIGITS)
    value = log_delta_from_mu(mu, epsilon)
    assert true <= value <= true + SLACK + 1e-14 * abs(true)  # 1e-14: documented, about 90 u


def test_the_mills_ratio_underneath_is_as_accurate_as_the_proof_needs():
    # The proof allows 1e-14; 2e-15 leaves a factor 5 for other builds of scipy.
    for x in np.concatenate([np.linspace(-0.5, 31.0, 400), np.geomspace(31.0, 200.0, 50)]):
        # M = sqrt(pi/2) erfcx(x / sqrt 2); rounding the argument moves M by x K / M <= 1 roundoff, so the
        # oracle is asked at the rounded argument.
        argument = float(x) * math.sqrt(0.5)
        with mpmath.workdps(40):
            exact = mills_ratio(mpmath.mpf(argument) * mpmath.sqrt(2), digits=40) / mpmath.sqrt(mpmath.pi / 2)
            assert abs(mpmath.mpf(float(erfcx(argument))) / exact - 1) < 2e-15


def test_the_difference_of_mills_ratios_stays_within_its_part_of_the_budget():
    # Proved: 2e-11 if erfcx is within 1e-14. At the measured 9e-16 it must be ten times better.
    below_30 = math.nextafter(30.0, 0.0)
    for mu in (1e-12, 1e-6, 2e-4, 0.03, 0.5, math.nextafter(1.0, 0.0), 1.0, 1.5, 29.0, 31.0, 100.0, 1e20):
        for a in (-min(0.5, mu / 2) if mu < 1 else 0.0, 0.0, 0.7, 3.0, 20.0, 29.3, below_30, 30.0, 40.0, 1e3):
            with mpmath.workdps(DIGITS):
                exact = mills_ratio(mpmath.mpf(a)) - mills_ratio(mpmath.mpf(a) + mpmath.mpf(mu))
                assert abs(gaussian.mills_difference(a, mu) / exact - 1) < 2e-12


@each("mu, epsilon", (1e-6, 500.0), (1e-300, 1.0), (5e-324, 1e308), (1e5, 1e308), (1e-160, 1e-5))
def test_delta_far_below_the_smallest_float_stays_positive(mu, epsilon):
    assert 0 < delta_from_mu(mu, epsilon) <= 1e-322
    assert math.isfinite(log_delta_from_mu(mu, epsilon))


@pytest.mark.parametrize("mu", [1e3, 1e8, 1e20, 1e200, sys.float_info.max])
def test_huge_mu_gives_an_upper_bound_and_no_error(mu):
    assert delta_from_mu(mu, 1.0) == 1.0
    epsilon = epsilon_from_mu(mu, 1e-5)
    assert epsilon >= min(0.5 * mu * mu, INF)
    if mu <= 1e8:
        assert exact_delta(mu, epsilon, digits=60) <= 1e-5


def log_delta_between(mu, epsilon):
    """Proven bounds of log delta for a >= 2: K falls, and 1/x^2 - 3/x^4 <= K(x) <= 1/x^2 as 1 - s <= e^-s <= 1.

    D = int K over [a, a + mu] is at least w K(a + w) with w = min(mu, 1/a), and at most mu / a^2 or 1/a.
    """
    with mpmath.workdps(1000):
        a, m = exact_a(mu, epsilon), mpmath.mpf(mu)
        width = min(m, 1 / a)
        end = a + width
        log_phi = -a * a / 2 - mpmath.log(2 * mpmath.pi) / 2
        low = mpmath.log(width * (1 / end**2 - 3 / end**4))
        return log_phi + low, log_phi + mpmath.log(min(m / a**2, 1 / a))


positive = st.floats(5e-324, sys.float_info.max)
POWERS = st.integers(-1074, 1023).map(lambda k: math.ldexp(1.0, k))


# Kernels that underflow; mu and epsilon of one size; a = 1e10 and the cancellation in a beyond it.
@example(1e-160, 1e-20)
@example(1e-150, 1.0)
@example(1e-308, 1e-300)
@example(5e-324, 1e-320)
@example(1e-323, 1e-322)
@example(1e-315, 1e-312)
@example(1e-20, 1e130)
@example(2.0**-100, 2.0**-90)
@example(1.0, 1e10)
@example(1.3e154, 0.5 * 1.3e154**2)
@example(1e20, 0.5e40 * (1 + 1e-15))
@example(1e30, 0.5e60 * (1 + 2.0**-52))
@example(1e30, 0.5e60 * (1 + 2.0**-51))
@example(1e150, 0.5e300 * (1 + 1e-15))
@given(400, st.one_of(positive, POWERS), st.one_of(positive, POWERS))
def test_log_delta_is_safe_over_the_whole_range_of_floats(mu, epsilon):
    value = log_delta_from_mu(mu, epsilon)
    assert -INF < value <= 0
    assert 0 < delta_from_mu(mu, epsilon) <= 1
    with mpmath.workdps(1000):
        a = exact_a(mu, epsilon)
    if a < 2:  # then delta is not small beside mu, or mu is not small
        assert value > -2 - math.sqrt(2 * math.pi) + min(0.0, math.log(mu)) - 2
        return
    low, high = log_delta_between(mu, epsilon)
    if low > -sys.float_info.max:
        assert value >= low
    if mu <= 1e5:
        assert value <= high + SLACK + 1e-14 * abs(high) or value == -sys.float_info.max


@pytest.mark.parametrize("mu", [5e-324, 1.5e-323, 1e-320, 3e-310, 1e-300, 1e-60, 2.0**-100, 1e-30, 1e-29])
def test_log_delta_of_the_smallest_mu_is_as_tight_as_of_any(mu):
    """Where D itself would be a subnormal of few digits, or 0: delta = phi(a) mu K(a), up to mu of it."""
    for ratio in (0, 1, 3, 25, 1000):
        epsilon = mu * ratio  # exact for a subnormal mu
        with mpmath.workdps(400):
            a = exact_a(mu, epsilon)
            kernel = 1 - a * mills_ratio(a, digits=400)
            true = mpmath.log(mu * kernel) - a * a / 2 - mpmath.log(2 * mpmath.pi) / 2
        assert true - 1e-28 <= log_delta_from_mu(mu, epsilon) <= true + SLACK + 1e-14 * abs(true)


def test_limits_of_delta():
    assert (delta_from_mu(0.0, 0.0), delta_from_mu(0.0, 3.0)) == (0.0, 0.0)
    assert delta_from_mu(INF, 3.0) == delta_from_mu(INF, INF) == 1.0
    assert delta_from_mu(2.0, INF) == 0.0
    assert log_delta_from_mu(0.0, 1.0) == log_delta_from_mu(2.0, INF) == -INF
    assert log_delta_from_mu(INF, 1.0) == 0.0


# Neighbouring floats may swap by the slack (2e-11); a relative step of 1e-6 in the argument must not. delta
# itself is only tested where it is not 1 to the last digit.
@given(mu_and_epsilon(), log_uniform(1e-6, 1.0))
def test_delta_grows_with_mu_and_falls_with_epsilon(pair, step):
    mu, epsilon = pair
    value = log_delta_from_mu(mu, epsilon)
    assert log_delta_from_mu(mu * (1 + step), epsilon) >= value
    assert log_delta_from_mu(mu, epsilon + mu * step) <= value
    if value < -0.1:
        assert log_delta_from_mu(mu * (1 + step), epsilon) > value
        assert log_delta_from_mu(mu, epsilon + mu * step) < value


@each("epsilon, exact, via_renyi", (3, 0.7191, 0.5890), (10, 2.0004, 1.7609), (40, 5.7191, 5.3516))
def test_reference_values_of_mu(epsilon, exact, via_renyi):
    mu = mu_from_epsilon(epsilon, 1e-5)
    assert mu == pytest.approx(exact, abs=5.1e-5)  # half a unit of the last printed digit
    assert float(exact_mu(epsilon, 1e-5)) == pytest.approx(mu, rel=1e-9)  # the documented tightness
    # d epsilon / d mu = mu + sqrt(2 L) < 11: half a printed digit of mu is below 6e-4 of epsilon
    assert epsilon_from_renyi(via_renyi, 1e-5) == pytest.approx(epsilon, abs=6e-4)


@each("mu, epsilon", (0.1, 0.397), (0.2, 0.834), (0.5, 2.254), (1, 4.887), (2, 10.997), (5, 35.566), (10, 96.717))
def test_reference_values_of_epsilon(mu, epsilon):
    value = epsilon_from_mu(mu, 1e-6)
    assert value == pytest.approx(epsilon, abs=5.1e-4)  # half a unit of the last printed digit
    assert 0 <= value - exact_epsilon(mu, 1e-6) <= 1e-9 * (mu + value)  # the documented tightness
