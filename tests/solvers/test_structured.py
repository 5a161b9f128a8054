"""Encoders with structure against the dense matrices that they stand for: the cost, gradients, certified bounds."""

import dataclasses
import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from drawn_encoders import KINDS, SHARES, banded, dense, encoders, toeplitz
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import each, given, refuses, st

from mfdl.participation import Cyclic, MinSeparation
from mfdl.sensitivity.encoder_bounds import structured_bound
from mfdl_solvers import FactorizationProblem, solve
from mfdl_solvers.certificate import weights_bound
from mfdl_solvers.encoders import Banded, Buffered, Dense, Encoder, Identity, Inverse, PerColumn, Toeplitz
from mfdl_solvers.encoders.structured_encoders import convolved, inverse_series
from mfdl_solvers.pattern_sets import SEPARATED, OnePerBlock, Periodic, Separated
from mfdl_solvers.problem import ProblemError, Stopping
from mfdl_solvers.structured import ModeCost, best_buffered, best_inverse, best_toeplitz, bound, lower_bound
from mfdl_solvers.structured.cost import gram_diagonals, noising_objective
from mfdl_solvers.structured.searches import at_unit_sensitivity, bands_objective, stationary_series
from tests import exact

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


@given(60, data=st.data())
def test_the_cost_of_any_strategy_is_that_of_the_dense_gram(data):
    encoder, C = data.draw(encoders(7))
    cost, H = data.draw(costs(len(C)))
    assert cost.encoder_objective(encoder) == pytest.approx(objective(H, C), rel=1e-9)
    assert bound.objective(cost, encoder) == pytest.approx(objective(H, C), rel=1e-8)
    for lam in cost.eigenvalues:
        assert np.isfinite(cost.inverse_bands(lam)).all()


@given(60, data=st.data())
def test_the_cost_of_a_toeplitz_strategy_and_its_gradient(data):
    encoder, C = data.draw(toeplitz(data.draw(st.integers(1, 7))))
    cost, H = data.draw(costs(len(C), by_age=True))
    d = encoder.inverse_series
    value, gradient = cost.series_objective(d)
    assert value == pytest.approx(objective(H, C), rel=1e-9)
    for j, unit in enumerate(np.eye(len(d))):  # quadratic: central differences of any size are exact
        assert gradient[j] == pytest.approx(
            (cost.series_objective(d + unit)[0] - cost.series_objective(d - unit)[0]) / 2, rel=1e-7
        )


@given(40, data=st.data(), count=st.integers(1, 3), gap=st.integers(1, 3))
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
    H = cost.encoder_objective  # the operator alone
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
    return squared(uses, encoder).upper * cost.encoder_objective(encoder)


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
    objectives = [squared(uses, each).upper * cost.series_objective(each.inverse_series)[0] for each in (few, blt)]
    assert objectives[0] <= objectives[1] * 1.001


@each(
    "make, says",
    (lambda: ModeCost([2.0], [1.0], np.ones(3)), r"\[-1, 1\]"),
    (lambda: ModeCost([1.0], [1.0, 2.0], np.ones(3)), "one for each"),
    (lambda: ModeCost([1.0], [0.0], np.ones(3)), "not all be 0"),
    (lambda: ModeCost([1.0], [1.0], np.ones(3), rates=[1.0]), "one for each of 3 steps"),
    (lambda: ModeCost([1.0], [1.0], np.ones(2), rates=[1.0, 2.0]).series_objective(np.ones(2)), "constant rates"),
    (lambda: Periodic(5, 2, 2), "k b = T"),
    (lambda: Separated(5, 0, 2), "k >= 1"),
    (lambda: OnePerBlock(5, 2, 1), "5 steps cannot be divided into 2 blocks"),
)
def test_costs_and_uses_that_are_none_are_refused(make, says):
    refuses(says, make, error=ProblemError)


@given(30, data=st.data())
def test_the_gram_near_its_diagonal_and_the_cost_of_a_banded_inverse(data):
    cost, H = data.draw(costs(data.draw(st.integers(1, 9))))
    (encoder, N), T = data.draw(banded(len(H))), len(H)
    diagonals = gram_diagonals(cost, T)
    for lag in range(T):
        assert_allclose(diagonals[: T - lag, lag], np.diagonal(H, lag), rtol=1e-9, atol=1e-12 * H.max())
    value, gradient = noising_objective(diagonals, encoder.columns)
    assert value == pytest.approx(np.trace(H @ N @ N.T), rel=1e-9)
    for j in range(encoder.bandwidth):
        assert_allclose(gradient[: T - j, j], np.diagonal(2 * H @ N, -j), rtol=1e-9, atol=1e-9 * H.max())


@given(30, data=st.data(), epochs=st.integers(1, 3), period=st.integers(1, 3))
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


@given(30, data=st.data())
def test_the_cost_of_a_banded_strategy_and_its_gradient(data):
    encoder, C = data.draw(banded(data.draw(st.integers(1, 9))))
    cost, H = data.draw(costs(len(C)))
    N = np.linalg.inv(C)
    exact = -2 * N.T @ H @ N @ N.T
    for steps in (0, 1024):  # by blocks of each mode, and by the Gram of all
        with mock.patch("mfdl_solvers.structured.searches.DENSE_STEPS", steps):
            value, gradient = bands_objective(cost, encoder.rows)
        assert value == pytest.approx(objective(H, C), rel=1e-8)
        for j in range(encoder.bandwidth):
            assert_allclose(gradient[j:, j], np.diagonal(exact, -j), rtol=1e-6, atol=1e-9 * np.abs(exact).max())


@given(100, case=encoders(), seed=st.integers(0, 99), vector=st.booleans())
def test_products_and_solutions_are_those_of_the_dense_matrix(case, seed, vector):
    encoder, C = case
    x = np.random.default_rng(seed).standard_normal((len(C), 2))
    x = x[:, 0] if vector else x
    N = np.linalg.inv(C)
    scale = 1e-12 * (1 + np.abs(N).max()) * (1 + np.abs(C).max())
    assert_allclose(encoder.dense(), C, atol=scale)
    assert_allclose(encoder.times(x), C @ x, atol=scale)
    assert_allclose(encoder.transposed_times(x), C.T @ x, atol=scale)
    assert_allclose(encoder.solve(x), N @ x, atol=scale)
    assert_allclose(encoder.transposed_solve(x), N.T @ x, atol=scale)
    assert_allclose(encoder.scaled(0.25).times(x), C @ x / 4, atol=scale)


@given(100, case=encoders())
def test_norms_and_bounds_are_those_of_the_dense_matrix(case):
    encoder, C = case
    T, N = len(C), np.linalg.inv(C)
    assert_allclose(encoder.noise_variances, (N**2).sum(axis=1), rtol=1e-9)
    scale = 1e-12 * (1 + np.abs(C).max()) ** 2 * (1 + np.abs(N).max())
    for lag in range(encoder.bandwidth, T):
        assert_array_equal(np.diagonal(C, -lag), 0)
    assert (encoder.absolute_times(np.eye(T)) >= np.abs(C) - scale).all()
    if encoder.nonnegative:
        assert (-scale <= C).all()
        assert_allclose(encoder.absolute_times(np.eye(T)), C, atol=scale)
    envelope = encoder.envelope()
    for lag, most in enumerate(envelope):
        assert np.abs(np.diagonal(C, -lag)).max() <= most * (1 + 1e-9) + scale


@given(60, case=encoders(), seed=st.integers(0, 99), stop=st.integers(0, 8), dim=st.integers(1, 3))
def test_noise_row_by_row_is_the_solution_and_goes_on_from_any_state(case, seed, stop, dim):
    encoder, C = case
    T = len(C)
    Z = np.random.default_rng(seed).standard_normal((T, dim))
    stop = min(stop, T)
    stepper = encoder.stepper((dim,))
    rows = [stepper.step(z) for z in Z[:stop]]
    assert stepper.state.shape == (encoder.memory, dim)
    later = encoder.stepper((dim,), state=stepper.state, position=stop)
    before = stepper.state.copy()
    rows += [later.step(z) for z in Z[stop:]]
    assert_array_equal(stepper.state, before)  # the later one has its own
    N = np.linalg.inv(C)
    assert_allclose(rows, N @ Z, atol=1e-12 * (1 + np.abs(N).max()) * (1 + np.abs(C).max()))
    refuses("no noise beyond", later.step, Z[0], error=ProblemError)


@given(40, case=encoders(), seed=st.integers(0, 99))
def test_states_of_rows_can_be_made_again_from_the_rows(case, seed):
    encoder, C = case
    if isinstance(encoder, Buffered):
        return
    T, memory = len(C), encoder.memory
    Z = np.random.default_rng(seed).standard_normal((T, 1))
    inputs = Z if encoder.keeps_fresh_rows else np.linalg.solve(C, Z)
    at = T - 1
    state = np.zeros((memory, 1))
    for step in range(max(0, at - memory), at):
        state[step % memory] = inputs[step]
    last = encoder.stepper((1,), state=state, position=at).step(Z[at])
    assert_allclose(last, np.linalg.solve(C, Z)[at], atol=1e-9 * (1 + np.abs(inputs).max()))
    if encoder.keeps_fresh_rows:
        weights = encoder.weights_of(at)
        assert_allclose(weights @ Z[at::-1][: weights.size], last, atol=1e-9 * (1 + np.abs(inputs).max()))


def fractions(C):
    return [[Fraction(x) for x in row] for row in np.asarray(C).tolist()]


def exact_encoder(encoder, C):
    """C in fractions: of dyadic numbers it is C itself, else the inverse of N, which has such."""
    return fractions(C) if not isinstance(encoder, Inverse) else exact.inverse(fractions(encoder.noising.dense()))


@pytest.mark.parametrize("kind", KINDS)
@given(60, data=st.data())
def test_the_defect_bounds_how_far_the_noise_is_from_the_inverse(kind, data):
    encoder, C = data.draw(encoders(kinds=[kind]))
    T, stepper = len(C), encoder.stepper((len(C),))
    C = exact_encoder(encoder, C)
    noise = encoder.solve(np.eye(T)) if encoder.in_blocks else np.stack([stepper.step(row) for row in np.eye(T)])
    N = fractions(noise)
    squares = sum((sum(C[t][r] * N[r][s] for r in range(T)) - (t == s)) ** 2 for t in range(T) for s in range(T))
    defect = encoder.defect()
    assert squares <= Fraction(defect) ** 2
    assert defect < 1e-10 or np.linalg.norm(noise) > 1e4
    assert encoder.inflation == (1 - defect) ** -2


@pytest.mark.parametrize("kind", KINDS)
@given(80, data=st.data(), num_bins=st.integers(1, 4))
def test_what_is_known_of_its_structure_is_true(kind, data, num_bins):
    encoder, C = data.draw(encoders(kinds=[kind]))
    T, absolute = len(C), np.abs(C)
    scale = 1e-11 * (1 + absolute.max()) ** 2
    if (c := encoder.certified_series()) is not None:
        column = [row[0] for row in exact_encoder(encoder, C)]
        off = [abs(Fraction(float(mine)) - true) for mine, true in zip(c.values, column, strict=True)]
        assert all(math.isinf(most) or gap <= Fraction(float(most)) for gap, most in zip(off, c.errors, strict=True))
    if (rows := encoder.diagonals()) is not None:
        for t in range(T):
            width = min(t + 1, rows.shape[1])
            assert_array_equal(rows[t, :width], C[t, t::-1][:width])
    if (rows := encoder.noise_diagonals()) is not None:
        assert_allclose(np.linalg.inv(Banded(rows).dense()), C, atol=scale)
    bins = np.arange(T) % num_bins
    sums = absolute @ np.eye(num_bins)[bins]
    if (class_sums := encoder.class_sums(num_bins, np.arange(num_bins))) is not None:
        rows = np.stack(list(class_sums))
        assert (rows >= sums - scale).all()
        assert not encoder.nonnegative or np.abs(rows - sums).max() <= scale
    if T % num_bins == 0 and (M := encoder.bin_gram(num_bins)) is not None:
        assert (sums.T @ sums - scale * T <= M).all()
        assert not encoder.nonnegative or np.abs(M - sums.T @ sums).max() <= scale * T


@given(40, data=st.data(), size=st.integers(1, 5), columns=st.integers(0, 3))
def test_one_encoder_for_each_column_is_that_of_each(data, size, columns):
    each = [data.draw(dense(size)) for _ in range(columns)]
    many = PerColumn(np.stack([C for _, C in each]) if each else np.zeros((0, size, size)))
    x = np.random.default_rng(0).standard_normal((size, columns, 2))
    stepper = many.stepper((columns, 2))
    steps = np.stack([stepper.step(row) for row in x])
    for k, (encoder, _) in enumerate(each):
        for product in ("times", "transposed_times", "solve", "transposed_solve", "absolute_times"):
            assert_allclose(getattr(many, product)(x)[:, k], getattr(encoder, product)(x[:, k]), atol=1e-12)
        assert_array_equal(many.select_columns(np.array([k])).array[0], encoder.array)
        assert_array_equal(many.noise_variances[k], encoder.noise_variances)
        assert_allclose(steps[:, k], encoder.solve(x[:, k]), atol=1e-9)
    assert many.defect() == max((encoder.defect() for encoder, _ in each), default=0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Mine(Toeplitz):
    """A class of one's own, whose products may be others."""


@pytest.mark.parametrize("encoder", [Mine([1.0, 0.5], 4), Inverse(Mine([1.0, -0.5], 4))])
def test_of_an_encoder_of_ones_own_no_structure_is_known(encoder):
    assert isinstance(encoder, Encoder)
    assert not encoder.shipped
    known = (encoder.certified_series(), encoder.diagonals(), encoder.noise_diagonals(), encoder.bin_gram(2))
    assert known == (None, None, None, None)


@pytest.mark.parametrize("width", [65, 300, 1000])
def test_long_series_by_transforms_are_those_by_sums(width):
    c = 1 / np.sqrt(1 + np.arange(width))
    encoder, x = Toeplitz(c, 1000), np.random.default_rng(0).standard_normal((1000, 2))
    C = encoder.dense()
    assert_allclose(encoder.times(x), np.tril(C) @ x, atol=1e-12)
    assert_allclose(C @ encoder.solve(x), x, atol=1e-12)
    assert_allclose(encoder.transposed_solve(x), np.linalg.solve(C.T, x), atol=1e-12)
    assert_allclose(convolved(inverse_series(c, 1000), C[:, 0]), np.eye(1000, 1)[:, 0], atol=1e-14)


@each(
    "make, says",
    (lambda: Toeplitz([1.0, 2.0, 3.0], size=2), "at most one for each of 2 steps"),
    (lambda: Toeplitz([0.0, 2.0], size=2), "number > 0"),
    (lambda: Toeplitz([1.0, np.nan], size=2), "finite"),
    (lambda: Banded([[1.0, 1.0], [1.0, 1.0]]), "no steps before step 0"),
    (lambda: Banded([[1.0], [-1.0]]), r"positive diagonal.*at 1"),
    (lambda: Banded([[1.0, 0.0]]), "at most one for each step"),
    (lambda: Buffered([1.0], [1.5], size=3), r"\[-1, 1\]"),
    (lambda: Buffered([1.0], [0.5, 0.25], size=3), "one for each scale"),
    (lambda: Inverse(np.eye(2)), "Toeplitz or Banded"),
    (lambda: Dense([[1.0, 0.5], [0.0, 1.0]]), "must be causal"),
    (lambda: Dense([[1.0, 0.0], [3.0, 0.0]]), r"positive diagonal, got 0 at index \(1, 1\)"),
    (lambda: Dense([[1.0, np.inf], [0.0, 1.0]]), "finite numbers of shape"),
    (lambda: Dense(np.eye(2) * 1e70), "scale is free"),
    (lambda: PerColumn(np.eye(2)), r"shape \(columns, T, T\)"),
    (lambda: Toeplitz([1.0], size=2).stepper((2,), state=np.zeros((1, 2))), r"shape \(0, 2\)"),
    (lambda: Toeplitz([1.0, 1.0], size=2).stepper(position=1), "only step 0 starts from nothing"),
    (lambda: Toeplitz([1e160, 0.5e160], 2), "scale of C is free"),
    (lambda: Toeplitz([1e-160], 2), "got 1e-160 and 1e-160"),
    (lambda: Banded([[1.0, 0.0], [1e160, 1e-160]]), "scale of C is free"),
    (lambda: Buffered([0.5], [0.5], 3, 1e160), "scale of C is free"),
    (lambda: Inverse(Toeplitz([1.0, -0.5], 3)).scaled(1e160), "scale of C is free"),
)
def test_what_is_no_encoder_is_refused(make, says):
    refuses(says, make, error=ProblemError)


def test_of_nothing_the_solution_is_nothing():
    banded = Banded(np.tri(4, 2))
    for product in (banded.solve, banded.transposed_solve):
        assert product(np.zeros((4, 0))).shape == (4, 0)
