"""Verdicts on orders of curves, from numbers made up on each side of every rule."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mfdl.errors import InvalidInput
from mfdl_papers.figures import verdicts

LOW, MIDDLE, HIGH = np.array([1.0, 1.1, 0.9]), np.array([2.0, 0.9, 1.2]), np.array([3.0, 3.3, 2.9])
ONE = np.array([1.0])


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ({3: (LOW, HIGH), 10: (LOW, HIGH)}, "confirmed"),
        ({3: (LOW, HIGH), 10: (LOW, MIDDLE)}, "direction only"),  # below in the mean, not surely
        ({3: (LOW, HIGH), 10: (HIGH, LOW)}, "direction only"),
        ({3: (LOW, HIGH), 10: (HIGH, LOW), 40: (HIGH, LOW)}, "refuted"),
        ({3: (ONE, 2 * ONE)}, "direction only"),  # one seed
        ({3: (LOW, LOW)}, "refuted"),
        ({3: (LOW, np.full(3, np.nan))}, "confirmed"),  # the other one diverged
        ({3: (np.full(3, np.nan), HIGH)}, "refuted"),
        ({3: (np.array([1.0, np.nan, 1.0]), np.array([np.nan, 2.0, 2.0]))}, "refuted"),
    ],
)
def test_ordered(points, verdict):
    assert verdicts.ordered(points) == verdict


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (LOW, LOW * np.array([1.05, 0.95, 1.0]), "confirmed"),
        (LOW, 1.5 * LOW, "direction only"),
        (LOW, 3 * LOW, "refuted"),
        (ONE, ONE, "direction only"),
        (np.array([1.0, 9.0]), np.array([9.0, 1.0]), "direction only"),  # an interval that says nothing
    ],
)
def test_tied(a, b, verdict):
    assert verdicts.tied(a, b) == verdict == verdicts.tied(b, a)


@given(st.lists(st.tuples(*[st.floats(1e-3, 1e3)] * 2), min_size=2, max_size=8))
def test_the_interval_is_that_of_the_paired_t_test(losses):
    a, b = np.array(losses).T
    mean, half = verdicts.mean_log_ratio(a, b)
    logs = np.log(a) - np.log(b)
    if np.ptp(logs) < 1e-12:
        assert half < 1e-9
        return
    low, high = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-9, abs=1e-12)
    swapped = verdicts.mean_log_ratio(b, a)
    assert swapped == pytest.approx((-mean, half))


def test_lowest_and_ratios_take_a_diverged_run_as_infinitely_bad():
    assert verdicts.lowest({"a": np.array([1.0, np.nan]), "b": HIGH}) == "b"
    assert verdicts.of_means(HIGH, LOW) == pytest.approx(9.2 / 3)
    assert verdicts.of_means(np.array([np.nan, 1.0]), np.array([1.0, 1.0])) == math.inf
    assert math.isnan(verdicts.of_means(np.array([np.nan]), np.array([np.nan])))


@pytest.mark.parametrize(("a", "b"), [(np.array([]), np.array([])), (LOW, ONE)])
def test_unpaired_losses_are_refused(a, b):
    with pytest.raises(InvalidInput, match="paired losses"):
        verdicts.mean_log_ratio(a, b)


def test_no_point_is_refused():
    with pytest.raises(InvalidInput, match="at least one point"):
        verdicts.ordered({})
