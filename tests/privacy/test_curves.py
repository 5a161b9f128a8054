"""Laws of privacy curves and the search for the least noise; what attackers decide and dp-accounting makes of them."""

import json
import math
from fractions import Fraction

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from vocabulary import ZERO_OUT, dynamics_on, each, example, given, refuses, st, unsupported

import mfdl
from mfdl import BallsInBins, Cyclic, PoissonSampling, Privacy, account, algorithms, calibrate, trust
from mfdl.privacy import BallsInBinsGaussian, Gaussian, MonteCarlo, PoissonGaussian
from mfdl.privacy.curves import Composed, MonteCarloCurve, correlations, normalized
from mfdl.privacy.curves.base import Pass, least_multiplier

GRIDS = 2e-3
"""Relative: by what bounds on different grids may differ."""
TAILS = 0.1
"""Relative: by what deltas may differ that are read off laws with other tails, so on other grids: both are bounds."""
PRECISION = {"zero-out": 1e-4, "add-remove": 1e-4, "replace-one": 1e-3}
DELTAS = st.floats(-8, -2).map(lambda power: 10.0**power)
ADJACENCIES = st.sampled_from(sorted(PRECISION))
MULTIPLIERS = st.floats(0.5, 5)


def matrix(bins, seed):
    """M of some encoder of one epoch, and of some that correlate nothing."""
    rng = np.random.default_rng(seed)
    V = np.eye(bins) if seed % 2 else np.tril(rng.uniform(size=(bins, bins)) * 0.3) + np.eye(bins)
    return V.T @ V


@st.composite
def gaussians(draw, adjacencies=ADJACENCIES):
    return Gaussian(draw(st.floats(0.1, 4)), draw(adjacencies))


@st.composite
def poisson(draw, adjacencies=ADJACENCIES):
    rate, steps = draw(st.floats(0.01, 0.5)), draw(st.integers(1, 50))
    return PoissonGaussian(draw(MULTIPLIERS), rate, steps, draw(adjacencies))


@st.composite
def balls_in_bins(draw, adjacencies=ADJACENCIES):
    adjacency = draw(adjacencies)
    M = matrix(draw(st.integers(1, 2 if adjacency == "replace-one" else 4)), draw(st.integers(0, 5)))
    return BallsInBinsGaussian(draw(MULTIPLIERS), len(M), correlations(M), adjacency)


@st.composite
def by_samples(draw, adjacencies=ADJACENCIES):
    M = matrix(draw(st.integers(2, 3)), draw(st.integers(0, 5)))
    certified = BallsInBinsGaussian(draw(MULTIPLIERS), len(M), correlations(M), draw(adjacencies))
    return MonteCarloCurve(certified, normalized(M), MonteCarlo(samples=4096, failure=1e-3))


@st.composite
def composed(draw):
    same = st.just(draw(ADJACENCIES))
    return draw(balls_in_bins(same)).composed_with(draw(gaussians(same)))


OF_ONE_RUN = {"Gaussian": gaussians, "Poisson": poisson, "balls-in-bins": balls_in_bins, "Monte Carlo": by_samples}
CERTIFIED = [name for name in OF_ONE_RUN if name != "Monte Carlo"]
of_one_run = pytest.mark.parametrize("curves", OF_ONE_RUN.values(), ids=OF_ONE_RUN)
every_curve = pytest.mark.parametrize("curves", [*OF_ONE_RUN.values(), composed], ids=[*OF_ONE_RUN, "composed"])


@every_curve
@given(20, data=st.data(), delta=DELTAS, ratio=st.floats(2, 1e3))
def test_epsilon_falls_in_delta_and_each_is_the_inverse_of_the_other(curves, data, delta, ratio):
    curve = data.draw(curves())
    epsilon = curve.epsilon(delta)
    assert 0 <= epsilon < math.inf
    assert curve.epsilon(delta / ratio) >= epsilon
    if curve.bound != "monte-carlo":  # whose samples are other ones at each question
        assert curve.delta(epsilon) <= delta * (1 + TAILS)
    assert 0 <= curve.delta(epsilon + 0.1) <= curve.delta(epsilon) <= 1
    assert epsilon <= curve.public_epsilon(delta) * (1 + 1e-12)


@of_one_run
@given(20, data=st.data(), delta=DELTAS, more=st.floats(1, 3))
def test_more_noise_never_loses_more_and_none_loses_everything(curves, data, delta, more):
    curve = data.draw(curves())
    assert curve.at(curve.noise_multiplier * more).epsilon(delta) <= curve.epsilon(delta) * (1 + GRIDS)
    silent = curve.at(0.0)
    assert (silent.noise_multiplier, silent.public_mu) == (0.0, math.inf)
    assert (silent.epsilon(delta), silent.delta(3.0)) == (math.inf, 1.0)


@of_one_run
@given(100, data=st.data(), multiplier=st.floats(1e-3, 1e3))
def test_a_curve_at_a_noise_multiplier_has_it(curves, data, multiplier):
    curve = data.draw(curves())
    other = curve.at(multiplier)
    assert multiplier * (1 - 2.0**-51) <= other.noise_multiplier <= multiplier
    assert other == curve.at(1.0).at(multiplier)
    assert (other.adjacency, other.runs, other.bound) == (curve.adjacency, curve.runs, curve.bound)


@pytest.mark.parametrize("curves", [OF_ONE_RUN[name] for name in CERTIFIED], ids=CERTIFIED)
@given(8, data=st.data(), delta=DELTAS, epsilon=st.floats(0.3, 6))
def test_the_least_noise_meets_its_target_and_little_less_does_not(curves, data, delta, epsilon):
    curve = data.draw(curves())
    least = curve.least_multiplier(epsilon, delta)
    assert least == curve.at(7.0).least_multiplier(epsilon, delta)
    assert curve.at(least).epsilon(delta) <= epsilon
    assert curve.at(least * (1 - 2 * PRECISION[curve.adjacency])).epsilon(delta) > epsilon


@given(3, data=st.data(), epsilon=st.floats(0.5, 4))
@pytest.mark.slow
def test_the_least_noise_by_samples_meets_its_target_by_them(data, epsilon):
    curve = data.draw(by_samples())
    least, certified = (each.least_multiplier(epsilon, 1e-3) for each in (curve, curve.certified))
    assert least <= certified
    assert least == certified or curve.at(least).searched(epsilon, 1e-3) <= 0


@given(40, data=st.data(), delta=DELTAS)
def test_runs_together_lose_no_less_than_each(data, delta):
    same = st.just(data.draw(ADJACENCIES))
    kinds = st.sampled_from([gaussians, balls_in_bins, by_samples])
    first, second = (data.draw(data.draw(kinds)(same)) for _ in range(2))
    both = first.composed_with(second)
    assert both.runs == first.runs + second.runs
    assert both.bound != "monte-carlo"
    assert both.epsilon(delta) * (1 + GRIDS) >= max(first.epsilon(delta), second.epsilon(delta))
    assert both.public_mu >= max(first.public_mu, second.public_mu)
    assert (both.mu is None) == (not isinstance(both, Gaussian))
    assert both.composed_with(first).runs == 2 * first.runs + second.runs


@every_curve
@given(20, data=st.data(), delta=DELTAS)
def test_a_curve_is_a_value_with_words_and_json(curves, data, delta):
    curve = data.draw(curves())
    assert {curve: 1}[curve] == 1
    fields = {**curve.to_dict(), **curve.facts(delta)}
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields
    assert isinstance(curve.remark(delta), str)
    assert curve.retried().at(1.0) != curve.at(1.0) if isinstance(curve, MonteCarloCurve) else curve.retried() is curve
    assert curve.noise_on
    assert curve.bound_in_words


def test_what_does_not_compose_or_scale_is_refused():
    run = BallsInBinsGaussian(1.0, 2, ((2, 0.0),), "zero-out")
    for other in (Gaussian(1.0, "replace-one"), BallsInBinsGaussian(1.0, 2, ((2, 0.0),), "replace-one")):
        for first, second in ((run, other), (other, run), (other, PoissonGaussian(1.0, 0.1, 4, "zero-out"))):
            refuses("same adjacency", first.composed_with, second)
    for refused in (lambda: Composed((run,)).at(1.0), lambda: Composed((run,)).least_multiplier(1.0, 1e-5)):
        unsupported("calibrate each run", refused)
    for wrong in ({"mu": -1.0}, {"adjacency": "other"}, {"bound": "monte-carlo"}, {"runs": 0}):
        refuses(next(iter(wrong)), Gaussian, **{"mu": 1.0, "adjacency": "zero-out", **wrong})


# ---- the search ------------------------------------------------------------------------------------------------------
@given(
    300, root=st.floats(1e-6, 1e6), known=st.floats(1e-6, 1e6), power=st.floats(0.05, 20),
    infinite_below=st.floats(0, 1), coarse=st.floats(1, 1.2), precision=st.floats(1e-5, 1e-2)
)  # fmt: skip
def test_the_search_ends_where_the_target_is_met_and_close_above_the_root(
    root, known, power, infinite_below, coarse, precision
):
    seen = {}

    def excess(multiplier, factor):
        value = math.inf if multiplier < root * infinite_below else power * math.log(root * factor / multiplier)
        seen[multiplier, factor] = value
        return value

    least = least_multiplier(excess, known, (Pass(coarse, 1.4, 0.02), Pass(1.0, 1.01, precision)))
    assert least <= known
    if least < known:
        assert seen[least, 1.0] <= 0
        assert least <= root * (1 + precision) * (1 + 1e-12)
    else:  # known meets the target by another argument; the coarse pass saw no room below
        assert root * coarse * 1.02 >= known * (1 - 1e-12)


def test_a_value_that_is_not_a_number_is_no_success():
    least = least_multiplier(lambda s, _: math.log(1 / s) if s >= 1 else math.nan, 3.0, (Pass(1, 1.4, 1e-6),))
    assert 1 <= least <= 1 + 1e-6
    assert least_multiplier(lambda s, _: math.nan, 3.0, (Pass(1, 1.4, 1e-6),)) == 3.0


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
@given(10, st.floats(1e-6, 1 - 1e-6), st.floats(0.3, 3.0), st.floats(0.05, 0.95), st.integers(1, 4))
def test_never_below_the_test_that_thresholds_the_likelihood_of_sampled_steps(rate, noise, sampled, steps):
    curve = PoissonGaussian(noise, rate=sampled, steps=steps, adjacency="zero-out")
    std = noise * math.sqrt(steps)
    threshold = std * float(quantile(1 - rate))
    share = [math.comb(steps, k) * sampled**k * (1 - sampled) ** (steps - k) for k in range(steps + 1)]
    attained = sum(p * float(normal((k - threshold) / std)) for k, p in enumerate(share))
    assert curve.true_positive_rate(rate) >= attained * (1 - 1e-9)


@each("curve", Gaussian(1.3, "replace-one"), SAMPLED, BINS, Composed((BINS, Gaussian(0.5, "zero-out"))))
def test_a_rate_grows_with_the_false_positive_rate_by_at_most_the_advantage(curve):
    rates = [curve.true_positive_rate(rate) for rate in RATES]
    assert rates == sorted(rates)
    gains = [true - false for true, false in zip(rates, RATES, strict=True)]
    assert all(gain >= 0 for gain in gains)
    assert max(gains) <= curve.delta(0.0) * (1 + 1e-9)


def test_without_noise_an_attacker_decides_without_error_and_without_loss_it_guesses():
    for rate in (0.01, 1e-320):
        assert Gaussian(math.inf, "zero-out").true_positive_rate(rate) == 1.0
    assert Gaussian(100.0, "zero-out").true_positive_rate(5e-324) <= 1.0
    assert PoissonGaussian(0.0, 0.1, 5, "zero-out").true_positive_rate(0.01) == 1.0
    assert Gaussian(0.0, "zero-out").true_positive_rate(0.01) == pytest.approx(0.01, rel=1e-9)


def test_a_bound_by_samples_gives_the_certified_rate():
    sampled = MonteCarloCurve(BINS, tuple(map(tuple, np.eye(4) * 0.8 + 0.2)), MonteCarlo(samples=2**12))
    assert sampled.true_positive_rate(0.1) == BINS.true_positive_rate(0.1)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan, "half"])
def test_a_false_positive_rate_lies_strictly_between_0_and_1(rate):
    refuses("false_positive_rate must be a number", lambda: Gaussian(1.0, "zero-out").true_positive_rate(rate))


def test_a_guarantee_answers_by_its_curve():
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=4"), Cyclic(2, 4))
    guarantee = calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), mu=1.0).guarantee
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


DYNAMICS = dynamics_on("ring:n=4")
DELTA = 1e-5


def guarantee(participation, adjacency, noise=2.0):
    algorithm = algorithms.dp_dsgd(DYNAMICS, participation)
    question = {"trust": trust.LDP(), "adjacency": adjacency, "clip_norm": 1.0}
    return account(algorithm, Privacy(**question), noise_std=noise)


def epsilon(event, relation="ADD_OR_REMOVE_ONE"):
    accountant = PLDAccountant(dp_accounting.NeighboringRelation[relation], value_discretization_interval=1e-3)
    return accountant.compose(event).get_epsilon(DELTA)


@given(st.floats(1e-300, 1e300))
def test_the_noise_multiplier_is_one_over_mu_rounded_down(mu):
    multiplier = Gaussian(mu, "replace-one").dp_event().noise_multiplier
    assert Fraction(multiplier) * Fraction(mu) <= 1
    assert Fraction(math.nextafter(multiplier, math.inf)) * Fraction(mu) > 1


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
@pytest.mark.parametrize("relation", ["ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL", "REPLACE_ONE"])
def test_an_accountant_gives_at_least_the_epsilon_of_the_guarantee(adjacency, relation):
    accounted = guarantee(Cyclic(2, 4), adjacency)
    event = accounted.dp_event().event
    assert epsilon(event, relation) >= accounted.epsilon(DELTA)
    if relation != "REPLACE_ONE":
        assert epsilon(event, relation) == pytest.approx(accounted.epsilon(DELTA), rel=1e-3)
        twice = accounted.compose_with(accounted).epsilon(DELTA)
        assert epsilon(dp_accounting.SelfComposedDpEvent(event, 2), relation) == pytest.approx(twice, rel=1e-3)


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
def test_poisson_sampled_steps_are_sampled_events(adjacency):
    accounted = guarantee(PoissonSampling(0.1, 20), adjacency)
    event = accounted.dp_event().event
    assert (event.count, epsilon(event)) == (20, pytest.approx(accounted.epsilon(DELTA), rel=1e-2))


@each("participation, adjacency", (PoissonSampling(0.1, 20), "replace-one"), (BallsInBins(2, 4), "zero-out"))
def test_other_sampling_is_refused_and_bounded_by_public_batches(participation, adjacency):
    accounted = guarantee(participation, adjacency)
    unsupported("public_batches=True", accounted.dp_event)
    bound = accounted.dp_event(public_batches=True)
    assert epsilon(bound.event) >= accounted.epsilon(DELTA)
    assert "an upper bound: the event is that of the same noise with public batches" in bound.conditions


def test_no_noise_is_no_privacy_and_no_loss_is_no_event():
    assert epsilon(guarantee(Cyclic(2, 4), "zero-out", noise=0.0).dp_event().event) == math.inf
    assert epsilon(guarantee(PoissonSampling(0.1, 20), "zero-out", noise=0.0).dp_event().event) == math.inf
    assert Gaussian(0.0, "zero-out").dp_event() == dp_accounting.NoOpDpEvent()


def test_the_conditions_that_no_event_carries_stand_beside_it():
    event = guarantee(Cyclic(2, 4), "replace-one").dp_event()
    for condition in ("trust model: ldp", "adjacency: replace-one", "every node", "ADD_OR_REMOVE_ONE"):
        assert condition in event.conditions
    assert str(event).startswith("GaussianDpEvent(noise_multiplier=0.7071067")


def test_a_number_for_gradients_that_do_not_react_composes_with_nothing():
    algorithm = algorithms.dp_dsgd(DYNAMICS, Cyclic(2, 4))
    losses = mfdl.losses(algorithm, Privacy(trust.PNDP([0]), **ZERO_OUT))
    guarantee = next(each for each in losses.by_victim(2.0, adaptive=False) if not each.adaptive)
    unsupported("composed adaptively", guarantee.dp_event)
