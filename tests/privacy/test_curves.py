"""Laws of privacy curves, over all of them, and of the one search for the least noise."""

import json
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses, unsupported

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
@examples(20)
@given(data=st.data(), delta=DELTAS, ratio=st.floats(2, 1e3))
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
@examples(20)
@given(data=st.data(), delta=DELTAS, more=st.floats(1, 3))
def test_more_noise_never_loses_more_and_none_loses_everything(curves, data, delta, more):
    curve = data.draw(curves())
    assert curve.at(curve.noise_multiplier * more).epsilon(delta) <= curve.epsilon(delta) * (1 + GRIDS)
    silent = curve.at(0.0)
    assert (silent.noise_multiplier, silent.public_mu) == (0.0, math.inf)
    assert (silent.epsilon(delta), silent.delta(3.0)) == (math.inf, 1.0)


@of_one_run
@examples(100)
@given(data=st.data(), multiplier=st.floats(1e-3, 1e3))
def test_a_curve_at_a_noise_multiplier_has_it(curves, data, multiplier):
    """That of a Gaussian is read off mu, which is rounded up, and is rounded down itself."""
    curve = data.draw(curves())
    other = curve.at(multiplier)
    assert multiplier * (1 - 2.0**-51) <= other.noise_multiplier <= multiplier
    assert other == curve.at(1.0).at(multiplier)
    assert (other.adjacency, other.runs, other.bound) == (curve.adjacency, curve.runs, curve.bound)


@pytest.mark.parametrize("curves", [OF_ONE_RUN[name] for name in CERTIFIED], ids=CERTIFIED)
@examples(8)
@given(data=st.data(), delta=DELTAS, epsilon=st.floats(0.3, 6))
def test_the_least_noise_meets_its_target_and_little_less_does_not(curves, data, delta, epsilon):
    curve = data.draw(curves())
    least = curve.least_multiplier(epsilon, delta)
    assert least == curve.at(7.0).least_multiplier(epsilon, delta)
    assert curve.at(least).epsilon(delta) <= epsilon
    assert curve.at(least * (1 - 2 * PRECISION[curve.adjacency])).epsilon(delta) > epsilon


@examples(3)
@given(data=st.data(), epsilon=st.floats(0.5, 4))
@pytest.mark.slow
def test_the_least_noise_by_samples_meets_its_target_by_them(data, epsilon):
    curve = data.draw(by_samples())
    least, certified = (each.least_multiplier(epsilon, 1e-3) for each in (curve, curve.certified))
    assert least <= certified
    assert least == certified or curve.at(least).searched(epsilon, 1e-3) <= 0


@examples(40)
@given(data=st.data(), delta=DELTAS)
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
@examples(20)
@given(data=st.data(), delta=DELTAS)
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


@examples(300)
@given(
    root=st.floats(1e-6, 1e6), known=st.floats(1e-6, 1e6), power=st.floats(0.05, 20), infinite_below=st.floats(0, 1),
    coarse=st.floats(1, 1.2), precision=st.floats(1e-5, 1e-2),
)  # fmt: skip
def test_the_search_ends_where_the_target_is_met_and_close_above_the_root(
    root, known, power, infinite_below, coarse, precision
):
    """Of a power of the multiplier, infinite below some multiplier, whose coarse values are too large."""
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
