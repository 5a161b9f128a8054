"""Structured encoders for long runs against dense matrices: the cost, gradients, and the certified lower bound."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl.participation import Cyclic, MinSeparation
from mfdl.sensitivity.encoder_bounds import structured_bound
from mfdl_solvers import FactorizationProblem, solve
from mfdl_solvers.certificate import weights_bound
from mfdl_solvers.encoders import Identity, Inverse
from mfdl_solvers.pattern_sets import SEPARATED, OnePerBlock, Periodic, Separated
from mfdl_solvers.problem import ProblemError, Stopping
from mfdl_solvers.structured import (
    ModeCost,
    best_buffered,
    best_inverse,
    best_toeplitz,
    bound,
    lower_bound,
    stationary_series,
)
from mfdl_solvers.structured.banded_search import at_unit_sensitivity, of_bands
from mfdl_solvers.structured.cost import gram_diagonals, of_noising
from tests.effort import examples
from tests.solvers._encoders import SHARES, banded, encoders, toeplitz

UNIT = st.integers(-8, 8).map(lambda k: k / 8)


@st.composite
def costs(draw, size, by_age=False):
    """(ModeCost, H): the recursion of every mode written out as a matrix."""
    modes = draw(st.integers(1, 3))
    lam, m = ([draw(kind) for _ in range(modes)] for kind in (UNIT, st.integers(1, 4)))
    steps = 1 if by_age else size
    rates, shrink = (
        [draw(kind) / 4 for _ in range(steps)] * (size // steps) for kind in (st.integers(1, 8), st.integers(1, 4))
    )
    w, beta = [draw(st.integers(1, 4)) for _ in range(size)], draw(st.integers(0, 3)) / 4
    H = np.zeros((size, size))
    for eigenvalue, weight in zip(lam, m, strict=True):
        R = np.zeros((size, size))
        for s in range(size):
            y = v = 0.0
            for t in range(size):
                v = beta * v + (t == s)
                y = shrink[t] * eigenvalue * y + rates[t] * v
                R[t, s] = y
        H += weight * R.T @ np.diag(w) @ R
    return ModeCost(lam, m, w, rates=rates, shrink=shrink, momentum=beta), H


def objective(H, C):
    N = np.linalg.inv(C)
    return float(np.trace(H @ N @ N.T))


@examples(60)
@given(data=st.data())
def test_the_cost_of_any_strategy_is_that_of_the_dense_gram(data):
    encoder, C = data.draw(encoders(7))
    cost, H = data.draw(costs(len(C)))
    assert cost.of_columns(encoder) == pytest.approx(objective(H, C), rel=1e-9)
    assert bound.objective(cost, encoder) == pytest.approx(objective(H, C), rel=1e-8)
    for lam in cost.eigenvalues:
        assert np.isfinite(cost.inverse_bands(lam)).all()


@examples(60)
@given(data=st.data())
def test_the_cost_of_a_toeplitz_strategy_and_its_gradient(data):
    encoder, C = data.draw(toeplitz(data.draw(st.integers(1, 7))))
    cost, H = data.draw(costs(len(C), by_age=True))
    d = encoder.inverse_series
    value, gradient = cost.of_series(d)
    assert value == pytest.approx(objective(H, C), rel=1e-9)
    for j, unit in enumerate(np.eye(len(d))):  # quadratic: central differences of any size are exact
        assert gradient[j] == pytest.approx((cost.of_series(d + unit)[0] - cost.of_series(d - unit)[0]) / 2, rel=1e-7)


@examples(40)
@given(data=st.data(), count=st.integers(1, 3), gap=st.integers(1, 3))
def test_the_lower_bound_is_that_of_the_dense_certificate_and_below_it(data, count, gap):
    T = count * gap
    cost, H = data.draw(costs(T))
    v = np.array([data.draw(st.integers(1, 4)) / 4 for _ in range(T)])
    dense = weights_bound(FactorizationProblem(H, np.arange(T) % gap), v)
    weighted = bound.weights_bound(cost, Periodic(T, count, gap), v)
    assert weighted <= dense * (1 + 1e-9)
    # a singular H has eigenvalues beyond the ends of the integral, and those of the dense bound are lowered
    assert weighted >= dense * (1 - 2e-3)


@pytest.mark.parametrize(("count", "gap"), [(1, 96), (4, 24), (12, 8)])
@pytest.mark.parametrize("prefix", [True, False])
def test_bounds_where_innovations_settle_are_those_of_all_steps(count, gap, prefix):
    T = count * gap
    cost = ModeCost([1.0], [1.0], np.ones(T)) if prefix else ModeCost([0.5, -0.2], [1.0, 3.0], np.ones(T))
    H = cost.of_columns  # the operator alone
    R = [np.linalg.inv(_dense(cost.inverse_bands(lam))) for lam in cost.eigenvalues]
    H = sum(m * r.T @ r for m, r in zip(cost.weights, R, strict=True))
    dense = weights_bound(FactorizationProblem(H, np.arange(T) % gap), np.ones(T))
    weighted = bound.weights_bound(cost, Periodic(T, count, gap), np.ones(T))
    assert dense * (1 - 1e-4) < weighted < dense * (1 + 1e-9)


def _dense(bands):
    return sum(np.diag(bands[j:, j], -j) for j in range(bands.shape[1]))


UNIFORM = ModeCost([1.0, 0.6, 0.1], [1.0, 2.0, 3.0], np.ones(48))


def squared(uses, encoder):
    k, b, T = uses.uses, uses.gap, uses.num_steps
    return structured_bound(encoder, MinSeparation(T, k, b) if uses.kind == SEPARATED else Cyclic(k, b))


def value(cost, uses, encoder):
    return squared(uses, encoder).upper * cost.of_columns(encoder)


@pytest.mark.parametrize(("count", "gap", "at_least"), [(1, 48, False), (4, 12, False), (3, 12, True)])
def test_found_strategies_lie_between_the_optimum_and_where_they_began(count, gap, at_least):
    uses = (Separated if at_least else Periodic)(48, count, gap)
    R = [np.linalg.inv(_dense(UNIFORM.inverse_bands(lam))) for lam in UNIFORM.eigenvalues]
    H = sum(m * r.T @ r for m, r in zip(UNIFORM.weights, R, strict=True))
    best = 0.0 if at_least else solve(FactorizationProblem(H, np.arange(48) % gap), Stopping(1e-3)).lower_bound
    objectives = {}
    for name, solution in {
        "banded": best_toeplitz(UNIFORM, uses),
        "narrow": best_toeplitz(UNIFORM, uses, bandwidth=3),
        "buffered": best_buffered(UNIFORM, uses, buffers=3),
        "inverse": best_inverse(UNIFORM, uses, bandwidth=4),
        "two": best_inverse(UNIFORM, uses, bandwidth=2),
    }.items():
        assert squared(uses, solution.encoder).exact or at_least
        objectives[name] = value(UNIFORM, uses, solution.encoder)
        assert objectives[name] >= max(best, lower_bound(UNIFORM, uses, Identity(UNIFORM.size))) * (1 - 1e-9)
    assert objectives["banded"] <= objectives["narrow"] * (1 + 1e-6)
    assert objectives["inverse"] <= objectives["two"] * (1 + 1e-6)
    if not at_least:
        assert objectives["banded"] <= 1.25 * best


def test_no_near_toeplitz_strategy_is_better():
    uses = Periodic(48, 4, 12)
    c = best_toeplitz(UNIFORM, uses, max_iterations=2000).encoder
    least = value(UNIFORM, uses, c)
    rng = np.random.default_rng(0)
    for _ in range(20):
        moved = c.series * np.exp(1e-3 * rng.standard_normal(c.series.size))
        assert value(UNIFORM, uses, type(c)(moved, 48)) >= least * (1 - 1e-9)


def test_the_least_lambda_is_that_of_a_scan():
    uses = Periodic(48, 4, 12)
    factorization = best_inverse(UNIFORM, uses, bandwidth=2).encoder
    n = factorization.noising.series
    scan = [value(UNIFORM, uses, Inverse(type(factorization.noising)([1.0, -x], 48))) for x in np.arange(0.01, 1, 0.01)]
    assert -n[1] / n[0] == pytest.approx(0.01 * (1 + int(np.argmin(scan))), abs=0.01)


def test_without_end_prefix_sums_take_their_square_root():
    c = stationary_series(ModeCost([1.0], [1.0], np.ones(200)), 6)
    assert_allclose(c, [1, 1 / 2, 3 / 8, 5 / 16, 35 / 128, 63 / 256], rtol=2e-3)


def test_knots_of_long_series_lose_little():
    T = 2048
    cost, uses = ModeCost([1.0, 0.3], [1.0, 2.0], np.ones(T)), Periodic(T, 1, T)
    few = best_toeplitz(cost, uses, max_iterations=60).encoder
    blt = best_buffered(cost, uses, buffers=5, max_iterations=120).encoder
    assert few.bandwidth == T
    objectives = [squared(uses, each).upper * cost.of_series(each.inverse_series)[0] for each in (few, blt)]
    assert objectives[0] <= objectives[1] * 1.001


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ModeCost([2.0], [1.0], np.ones(3)), r"\[-1, 1\]"),
        (lambda: ModeCost([1.0], [1.0, 2.0], np.ones(3)), "one for each"),
        (lambda: ModeCost([1.0], [0.0], np.ones(3)), "not all be 0"),
        (lambda: ModeCost([1.0], [1.0], np.ones(3), rates=[1.0]), "one for each of 3 steps"),
        (lambda: ModeCost([1.0], [1.0], np.ones(2), rates=[1.0, 2.0]).of_series(np.ones(2)), "constant rates"),
        (lambda: Periodic(5, 2, 2), "k b = T"),
        (lambda: Separated(5, 0, 2), "k >= 1"),
        (lambda: OnePerBlock(5, 2, 1), "5 steps cannot be divided into 2 blocks"),
    ],
)
def test_costs_and_uses_that_are_none_are_refused(make, says):
    refuses(says, make, error=ProblemError)


@examples(30)
@given(data=st.data())
def test_the_gram_near_its_diagonal_and_the_cost_of_a_banded_inverse(data):
    cost, H = data.draw(costs(data.draw(st.integers(1, 9))))
    (encoder, N), T = data.draw(banded(len(H))), len(H)
    diagonals = gram_diagonals(cost, T)
    for lag in range(T):
        assert_allclose(diagonals[: T - lag, lag], np.diagonal(H, lag), rtol=1e-9, atol=1e-12 * H.max())
    value, gradient = of_noising(diagonals, encoder.columns)
    assert value == pytest.approx(np.trace(H @ N @ N.T), rel=1e-9)
    for j in range(encoder.bandwidth):
        assert_allclose(gradient[: T - j, j], np.diagonal(2 * H @ N, -j), rtol=1e-9, atol=1e-9 * H.max())


@examples(30)
@given(data=st.data(), epochs=st.integers(1, 3), period=st.integers(1, 3))
def test_a_banded_inverse_at_unit_sensitivity_and_its_gradient(data, epochs, period):
    T = epochs * period
    cost, H = data.draw(costs(T))
    encoder, _ = data.draw(banded(T, SHARES.map(lambda x: -x)))
    columns, classes = encoder.columns, np.arange(T) % period

    def by_hand(columns):
        C = np.linalg.inv(sum(np.diag(columns[: T - j, j], -j) for j in range(columns.shape[1])))
        sigma = np.array([np.linalg.norm(C[:, classes == r].sum(axis=1)) for r in range(period)])[classes]
        return objective(H, C / sigma)

    diagonals = gram_diagonals(cost, encoder.bandwidth)
    value, gradient = at_unit_sensitivity(diagonals, columns, period)
    assert value == pytest.approx(by_hand(columns), rel=1e-9)
    for s, j in np.argwhere(np.arange(T)[:, None] + np.arange(encoder.bandwidth) < T):
        step = np.zeros(columns.shape)
        step[s, j] = 1e-6
        difference = (by_hand(columns + step) - by_hand(columns - step)) / 2e-6
        assert gradient[s, j] == pytest.approx(difference, rel=1e-4, abs=1e-6 * value)


@examples(30)
@given(data=st.data())
def test_the_cost_of_a_banded_strategy_and_its_gradient(data):
    encoder, C = data.draw(banded(data.draw(st.integers(1, 9))))
    cost, H = data.draw(costs(len(C)))
    N = np.linalg.inv(C)
    exact = -2 * N.T @ H @ N @ N.T
    for steps in (0, 1024):  # by blocks of each mode, and by the Gram of all
        with mock.patch("mfdl_solvers.structured.banded_search.DENSE_STEPS", steps):
            value, gradient = of_bands(cost, encoder.rows)
        assert value == pytest.approx(objective(H, C), rel=1e-8)
        for j in range(encoder.bandwidth):
            assert_allclose(gradient[j:, j], np.diagonal(exact, -j), rtol=1e-6, atol=1e-9 * np.abs(exact).max())
