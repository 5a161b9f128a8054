"""Sensitivities of structured strategies against every pattern and every sign, and gradients of many coordinates."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfdl_solvers.problem import ProblemError
from mfdl_solvers.strategies import Inverse, Toeplitz
from tests.effort import examples
from tests.solvers._strategies import strategies


def by_signs(C, pattern):
    """The largest ||C g||^2 over gradients of one coordinate: at a corner of the cube."""
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(pattern)))).T
    return float(((C[:, list(pattern)] @ signs) ** 2).sum(axis=0).max())


def any_gradients(C, pattern):
    """No gradients of any dimension move C G further: sum of |X[s, t]|."""
    return float(np.abs(C[:, list(pattern)].T @ C[:, list(pattern)]).sum())


def separated_patterns(T, k, b):
    for size in range(1, k + 1):
        yield from (p for p in itertools.combinations(range(T), size) if (np.diff(p) >= b).all())


def assert_bounds(found, C, patterns):
    patterns = list(patterns)
    least = max(by_signs(C, p) for p in patterns)
    assert found.value >= least
    if found.exact:
        assert found.value <= max(least, max(any_gradients(C, p) for p in patterns)) * (1 + 1e-9)
        assert found.value <= least * (1 + 1e-9)


@examples(150)
@given(case=strategies(), data=st.data())
def test_cyclic_is_never_below_the_worst_class_and_signs(case, data):
    strategy, C = case
    T = len(C)
    period = data.draw(st.sampled_from([b for b in range(1, T + 1) if T % b == 0]))
    found = strategy.cyclic_sensitivity(T // period, period)
    assert_bounds(found, C, [range(r, T, period) for r in range(period)])
    if strategy.nonnegative or strategy.bandwidth <= period:
        assert found.exact


@examples(150)
@given(case=strategies(7), k=st.integers(1, 4), b=st.integers(1, 4))
def test_separated_is_never_below_the_worst_pattern_and_signs(case, k, b):
    strategy, C = case
    found = strategy.separated_sensitivity(k, b)
    assert_bounds(found, C, separated_patterns(len(C), k, b))
    if strategy.bandwidth <= b:
        assert found.exact


@examples(60)
@given(case=strategies(), data=st.data())
def test_single_and_given_patterns(case, data):
    strategy, C = case
    T = len(C)
    single = strategy.single_sensitivity()
    assert single.exact
    assert_bounds(single, C, [[t] for t in range(T)])
    pattern = data.draw(st.sets(st.integers(0, T - 1), min_size=1))
    assert_bounds(strategy.pattern_sensitivity(pattern), C, [sorted(pattern)])


def test_the_first_steps_are_not_the_worst_where_coefficients_rise():
    rising = Toeplitz([1.0, 0.0, 5.0], size=6)
    naive = float(((rising.dense()[:, [0, 1]].sum(axis=1)) ** 2).sum())
    found = rising.separated_sensitivity(2, 1)
    assert found.value >= by_signs(rising.dense(), (0, 2)) > naive
    assert not found.exact


def test_signs_that_cancel_for_equal_gradients_count():
    changing = Toeplitz([1.0, -0.9], size=4)
    naive = float((changing.dense().sum(axis=1) ** 2).sum())
    assert changing.cyclic_sensitivity(4, 1).value >= by_signs(changing.dense(), range(4)) > 3 * naive


@pytest.mark.parametrize("k", [1, 3, 20])
def test_falling_coefficients_have_their_worst_pattern_at_the_start(k):
    C = Inverse(Toeplitz([1.0, -0.5, -0.125, -0.0625], size=60))
    found = C.separated_sensitivity(k, 3)
    first = C.dense()[:, : 3 * k : 3].sum(axis=1)
    assert found.exact
    assert found.value == pytest.approx(float((first**2).sum()), rel=1e-9)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda C: C.cyclic_sensitivity(2, 2), "must be the 5 steps"),
        (lambda C: C.separated_sensitivity(0, 2), "at least 1"),
        (lambda C: C.pattern_sensitivity([1, 1]), "distinct"),
        (lambda C: C.pattern_sensitivity([5]), "distinct"),
    ],
)
def test_patterns_of_other_runs_are_refused(ask, says):
    with pytest.raises(ProblemError, match=says):
        ask(Toeplitz([1.0, 0.5], size=5))
