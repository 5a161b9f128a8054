"""Encoders against the dense matrices that they stand for."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses

from mfdl_solvers.encoders import Banded, Buffered, Dense, Encoder, Inverse, PerColumn, Toeplitz
from mfdl_solvers.encoders.toeplitz_encoder import convolved, inverse_series
from mfdl_solvers.problem import ProblemError
from tests import exact
from tests.effort import examples
from tests.solvers._encoders import KINDS, dense, encoders


@examples(100)
@given(case=encoders(), seed=st.integers(0, 99), vector=st.booleans())
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


@examples(100)
@given(case=encoders())
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


@examples(60)
@given(case=encoders(), seed=st.integers(0, 99), stop=st.integers(0, 8), dim=st.integers(1, 3))
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


@examples(40)
@given(case=encoders(), seed=st.integers(0, 99))
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
@examples(60)
@given(data=st.data())
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
@examples(80)
@given(data=st.data(), num_bins=st.integers(1, 4))
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


@examples(40)
@given(data=st.data(), size=st.integers(1, 5), columns=st.integers(0, 3))
def test_one_encoder_for_each_column_is_that_of_each(data, size, columns):
    each = [data.draw(dense(size)) for _ in range(columns)]
    many = PerColumn(np.stack([C for _, C in each]) if each else np.zeros((0, size, size)))
    x = np.random.default_rng(0).standard_normal((size, columns, 2))
    stepper = many.stepper((columns, 2))
    steps = np.stack([stepper.step(row) for row in x])
    for k, (encoder, _) in enumerate(each):
        for product in ("times", "transposed_times", "solve", "transposed_solve", "absolute_times"):
            assert_allclose(getattr(many, product)(x)[:, k], getattr(encoder, product)(x[:, k]), atol=1e-12)
        assert_array_equal(many.of_columns(np.array([k])).array[0], encoder.array)
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


@pytest.mark.parametrize(
    ("make", "says"),
    [
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
    ],
)
def test_what_is_no_encoder_is_refused(make, says):
    refuses(says, make, error=ProblemError)


def test_of_nothing_the_solution_is_nothing():
    banded = Banded(np.tri(4, 2))
    for product in (banded.solve, banded.transposed_solve):
        assert product(np.zeros((4, 0))).shape == (4, 0)
