"""The elliptope maximum: upper never below, lower never above; both against a semidefinite program and brute force."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose
from vocabulary import each, given, refuses, st

from mfdl.sensitivity import elliptope
from mfdl.sensitivity.elliptope import TOLERANCE, close, closed_form_bounds, maximise
from mfdl.testing.oracles import ascended_value, elliptope_reference, largest_signed_sum

SOLVER = 2e-6  # relative accuracy of the reference solver


@st.composite
def integer_encoders(draw, max_size=6):
    """C of small integers with k columns and any rank, zero included."""
    k, rows = draw(st.integers(1, max_size)), draw(st.integers(1, max_size))
    return np.array(draw(st.lists(st.integers(-4, 4), min_size=k * rows, max_size=k * rows))).reshape(rows, k)


def certified_upper_bound(*grams):
    """(bounds, whether each is exact)."""
    upper, lower = closed_form_bounds(*grams)
    return upper, close(upper, lower, TOLERANCE)


def gram(C):
    return (C.T @ C).astype(float)


def random_grams(seed, count, size, rank, spread=0.0):
    rng = np.random.default_rng(seed)
    C = rng.standard_normal((count, rank, size)) * 10.0 ** rng.uniform(-spread, 0, (count, 1, size))
    return C.transpose(0, 2, 1) @ C


@given(40, C=integer_encoders())
def test_upper_never_below_and_lower_never_above_the_semidefinite_program(C):
    X = gram(C)
    reference, value = elliptope_reference(X), maximise(X[None])
    slack = SOLVER * max(reference, 1e-3)
    assert value.lower[0] <= value.upper[0]
    assert value.upper[0] >= reference - slack
    assert value.lower[0] <= reference + slack
    assert certified_upper_bound(X[None])[0][0] >= reference - slack
    assert value.converged[0]
    assert value.upper[0] <= value.lower[0] * (1 + 1e-6)


@given(40, C=integer_encoders(max_size=7))
def test_upper_never_below_the_exact_rational_maximum_over_signs(C):
    exact = largest_signed_sum((C.T.astype(object) @ C.astype(object)).tolist())
    X = gram(C)[None]
    assert Fraction(float(maximise(X).upper[0])) >= exact  # Fraction: no rounding in the comparison
    assert Fraction(float(certified_upper_bound(X)[0][0])) >= exact
    assert Fraction(float(closed_form_bounds(X)[1][0])) <= exact  # a sign vector's value


@given(20, C=integer_encoders(), seed=st.integers(0, 999))
def test_weights_dominate_the_gram_and_add_up_to_the_bound(C, seed):
    X = gram(C)
    value = maximise(X[None])
    lam = value.weights[0]
    assert (lam >= 0).all()
    assert np.linalg.eigvalsh(np.diag(lam) - X)[0] >= -1e-13 * max(1.0, lam.max())  # eigvalsh's own error
    assert Fraction(float(value.upper[0])) >= sum(map(Fraction, lam.tolist()))
    rng = np.random.default_rng(seed)
    g = rng.standard_normal((len(X), 3))
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    assert np.sum(X * (g @ g.T)) <= value.upper[0]


@each("size, rank, spread", (2, 1, 0), (5, 2, 0), (12, 12, 4), (20, 5, 0), (20, 20, 0), (20, 3, 2), (60, 8, 1))
def test_the_gap_closes_and_ascent_stays_between(size, rank, spread):
    X = random_grams(size + rank, 60 if size < 60 else 4, size, rank, spread)
    value = maximise(X)
    assert value.converged.all()
    assert (value.upper <= value.lower * (1 + 1e-6)).all()
    upper, exact = certified_upper_bound(X)
    assert (upper >= value.lower).all()
    assert (value.upper <= upper).all()
    assert (value.upper[exact] >= upper[exact] / (1 + 1e-6)).all()
    attained = ascended_value(X[0], dimension=math.isqrt(2 * size) + 2, starts=2, rounds=30)
    assert attained <= value.upper[0]


def test_a_batch_gives_each_matrix_its_own_value_and_stops_early_ones():
    X = np.stack([np.eye(4), np.ones((4, 4)), np.zeros((4, 4)), *random_grams(3, 2, 4, 2)])
    together = maximise(X)
    for index in range(len(X)):
        alone = maximise(X[index][None])
        assert_allclose(together.upper[index], alone.upper[0], rtol=1e-9)
        assert_allclose(together.lower[index], alone.lower[0], rtol=1e-9)
    assert_allclose(together.upper[:3], [4, 16, 0], rtol=1e-14)


def test_sign_consistency_needs_the_right_spanning_forest():
    # large entries are consistent, rounding noise of the wrong sign is not: still exact, since noise comes last
    X = np.array([[2.0, 1.0, -1e-14], [1.0, 2.0, 1.0], [-1e-14, 1.0, 2.0]])
    upper, exact = certified_upper_bound(X[None], np.full((1, 3, 3), 1e-13))
    assert exact[0]
    assert 10.0 < upper[0] < 10.0 + 1e-11
    frustrated = 1.5 * np.eye(3) - 0.5  # an odd cycle of negative signs
    assert not certified_upper_bound(frustrated[None])[1][0]


def test_signs_travel_along_paths_and_in_blocks_whatever_the_order_of_the_steps():
    blocks, path = scipy.linalg.block_diag([[1, -1], [-1, 1]], np.ones((3, 3))), 2.0 * np.eye(4)
    for s, t, link in ((0, 3, -1.0), (3, 2, 0.5), (2, 1, 0.25)):
        path[s, t] = path[t, s] = link
    for X, value in ((blocks, 13), (path, 11.5)):
        upper, exact = certified_upper_bound(X[None])
        assert exact[0]
        assert_allclose(upper, value, rtol=1e-14)


@given(30, C=integer_encoders(), proposal=st.lists(st.integers(-5, 60), min_size=6, max_size=6))
def test_any_proposal_is_raised_until_it_is_feasible(C, proposal):
    X = gram(C)
    lam, truth = np.array(proposal[: len(X)], dtype=float), maximise(X[None])
    raised = elliptope._certify(X[None], lam[None], np.zeros((1, len(X))))[0]
    scaled = elliptope.scale_to_feasible(X[None], np.maximum(lam, 0.0)[None])[0]
    for weights in (raised, scaled):
        assert weights.sum() >= truth.lower[0]
        assert np.linalg.eigvalsh(np.diag(weights) - X)[0] >= -1e-13 * max(1.0, np.abs(weights).max())


@given(25, C=integer_encoders(max_size=5), shift=st.lists(st.integers(-9, 9), min_size=25, max_size=25))
def test_entry_error_covers_every_matrix_within_it(C, shift):
    truth = gram(C)
    k = len(truth)
    offset = np.array(shift[: k * k], dtype=float).reshape(k, k) / 100
    offset = (offset + offset.T) / 2
    seen, error = (truth + offset)[None], np.abs(offset)[None] + 1e-15
    exact, value = maximise(truth[None]), maximise(seen, error)
    assert value.upper[0] >= exact.lower[0]
    assert value.lower[0] <= exact.upper[0]
    assert certified_upper_bound(seen, error)[0][0] >= exact.lower[0]


@pytest.mark.parametrize("exponent", [-1040, -600, 300, 1000])
def test_scaling_by_powers_of_two_changes_nothing(exponent):
    X = random_grams(5, 3, 6, 3)
    plain, scaled = maximise(X), maximise(np.ldexp(X, exponent))
    assert_allclose(np.ldexp(scaled.upper, -exponent), plain.upper, rtol=1e-6 if exponent > -1000 else 1e-3)
    assert (scaled.upper >= scaled.lower).all()


def test_sizes_zero_and_one():
    value = maximise(np.zeros((3, 0, 0)))
    assert value.upper.tolist() == value.lower.tolist() == [0, 0, 0]
    assert value.weights.shape == (3, 0)
    assert value.converged.all()
    value = maximise([[[2.5]], [[0.0]]])
    assert_allclose(value.upper, [2.5, 0], rtol=1e-14)
    assert value.converged.all()
    assert maximise(np.zeros((0, 4, 4))).upper.shape == (0,)


def test_infinity_stays_infinity_and_does_not_touch_the_others():
    X = np.stack([np.eye(3), np.eye(3), random_grams(1, 1, 3, 2)[0]])
    X[1, 0, 0] = math.inf
    value = maximise(X)
    assert value.upper[1] == value.lower[1] == math.inf
    assert value.converged.all()
    assert_allclose(value.upper[0], 3, rtol=1e-14)
    assert (value.weights[1] == math.inf).all()
    assert certified_upper_bound(X)[0][1] == math.inf
    error = np.zeros_like(X)
    error[0, 0, 1] = math.inf
    value = maximise(X, error)
    assert value.upper[0] == math.inf
    assert value.lower[0] == 0.0  # nothing is known of the truth
    assert not value.converged[0]


def test_slightly_indefinite_and_asymmetric_grams_are_taken_as_they_are():
    X = random_grams(2, 1, 5, 2)
    shaken = X + 1e-15 * np.random.default_rng(0).standard_normal(X.shape)
    value = maximise(shaken)
    assert value.converged[0]
    assert_allclose(value.upper, maximise(X).upper, rtol=1e-6)


def test_too_few_steps_leave_valid_bounds():
    X = random_grams(9, 20, 10, 4)
    truth = maximise(X)
    for steps in (0, 1, 3):
        value = maximise(X, max_iterations=steps)
        assert not value.converged.all()
        assert (value.upper >= truth.lower).all()
        assert (value.lower <= truth.upper).all()


@each(
    "grams, error, message",
    (np.eye(2), None, r"shape \(B, k, k\), got \(2, 2\)"),
    (np.full((1, 2, 2), math.nan), None, r"nan at index \(0, 0, 0\)"),
    (np.zeros((1, 2, 2)), np.zeros((1, 1, 1)), "entry_error must have the shape"),
    (np.zeros((1, 2, 2)), -np.ones((1, 2, 2)), "entry_error must be >= 0"),
    (np.zeros((1, 2, 2)), np.full((1, 2, 2), math.nan), "entry_error must be >= 0"),
)
def test_bad_input_is_refused(grams, error, message):
    for function in (maximise, certified_upper_bound):
        refuses(message, function, grams, error)
