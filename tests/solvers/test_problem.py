"""The problem refuses what cannot be posed; lower bounds are below every objective, the largest error too."""

import cvxpy as cp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import each, given, refuses, st

from mfdl.factorization import square_root_encoder
from mfdl.testing import (
    brute_force_sensitivity,
    encoders,
    exact_gram,
    factorization_problems,
    optimal_loss_reference,
    participations,
    vector_sensitivity_lower_bound,
)
from mfdl.testing.oracles.sensitivity_oracle import optimal_value
from mfdl_solvers import (
    Factorization,
    FactorizationProblem,
    MaximumProblem,
    NotConverged,
    ProblemError,
    Stopping,
    causal_encoder,
    lower_bound,
    maximum_encoder,
    solve,
)


@given(C=encoders())
def test_causal_encoder_recovers_the_encoder_of_an_exact_gram(C):
    X = np.array([[float(entry) for entry in row] for row in exact_gram(8 * C)]) / 64
    encoder = causal_encoder(X)
    assert_array_equal(np.triu(encoder, 1), 0)
    assert (np.diagonal(encoder) > 0).all()
    # condition number of X below 3^16 for eight steps, in practice below 1e4
    assert_allclose(encoder, C, atol=1e-9)
    assert_allclose(encoder.T @ encoder, X, atol=1e-12)


def test_plain_cholesky_has_the_other_orientation_and_other_column_norms():
    C = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    X = C.T @ C

    def orientation_error(candidate):
        """What the sensitivity sees: squared column norms, which C^T C = X fixes to diag X."""
        return np.abs((candidate**2).sum(axis=0) - np.diagonal(X)).max()

    assert orientation_error(causal_encoder(X)) < 1e-14
    plain = np.linalg.cholesky(X)
    assert_allclose(plain @ plain.T, X)
    assert orientation_error(plain) > 0.5
    assert np.abs(plain.T @ plain - X).max() > 0.5


@given(60, part=participations(max_steps=7, disjoint=True), data=st.data())
def test_sensitivity_is_an_upper_bound_and_exact_for_a_non_negative_gram(part, data):
    T = part.num_steps
    problem = FactorizationProblem(np.eye(T), part.classes())
    C = data.draw(encoders(size=T))
    bound = problem.sensitivity_squared(C.T @ C) ** 0.5
    assert bound >= brute_force_sensitivity(C, part) - 1e-12
    assert bound >= vector_sensitivity_lower_bound(C, part, starts=2, rounds=20) - 1e-12
    exact = brute_force_sensitivity(abs(C), part)
    assert_allclose(problem.sensitivity_squared(abs(C).T @ abs(C)) ** 0.5, exact, rtol=1e-13)


@given(60, problem=factorization_problems(), data=st.data())
def test_loss_is_its_formula_and_does_not_depend_on_scale(problem, data):
    C = data.draw(encoders(size=problem.size))
    X = C.T @ C
    expected = problem.sensitivity_squared(X) * np.trace(problem.error_gram @ np.linalg.inv(X))
    assert_allclose(problem.objective(X), expected, rtol=1e-9)
    assert_allclose(problem.objective(7 * X), problem.objective(X), rtol=1e-12)


@pytest.mark.parametrize("X", [np.zeros((2, 2)), np.ones((2, 2)), -np.eye(2), [[1.0, 2.0], [2.0, 1.0]]])
def test_a_gram_that_is_not_positive_definite_costs_anything_and_proves_nothing(X):
    problem = FactorizationProblem(np.eye(2), np.arange(2))
    assert problem.objective(np.asarray(X)) == np.inf
    assert lower_bound(problem, np.asarray(X)) == 0.0


def test_labels_are_renumbered_and_the_own_arrays_read_only():
    H = np.eye(3)
    problem = FactorizationProblem(H, np.array([7, -2, 7]))
    H[0, 0] = 5
    assert (problem.error_gram[0, 0], problem.classes.tolist(), problem.num_classes) == (1, [1, 0, 1], 2)
    assert problem.class_sizes.tolist() == [1, 2]
    assert problem.same_class.tolist() == [[True, False, True], [False, True, False], [True, False, True]]
    for array in (problem.error_gram, problem.classes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@given(problem=factorization_problems())
def test_root_is_a_root(problem):
    scale = np.trace(problem.error_gram)
    assert_allclose(problem.root @ problem.root.T, problem.error_gram, atol=1e-13 * scale)


@each(
    "H, classes, message",
    (np.ones((2, 3)), [0, 0], r"non-empty square matrix, got shape \(2, 3\)"),
    (np.ones((0, 0)), [], "non-empty square matrix"),
    (np.ones(3), [0, 0, 0], r"non-empty square matrix, got shape \(3,\)"),
    ([[1.0, np.nan], [np.nan, 1.0]], [0, 1], "error_gram must be finite"),
    ([[1.0, 0.5], [0.0, 1.0]], [0, 1], "error_gram must be symmetric"),
    ([[1.0, 2.0], [2.0, 1.0]], [0, 1], "positive semidefinite, got smallest eigenvalue -1"),
    (-np.eye(2), [0, 1], "positive semidefinite"),
    (np.zeros((2, 2)), [0, 1], "must not be zero"),
    (np.eye(2), [0, 1, 2], r"one integer label per index, shape \(2,\), got shape \(3,\)"),
    (np.eye(2), [0.0, 1.0], r"one integer label per index, shape \(2,\), got shape \(2,\) of float64"),
    (np.eye(2), [[0, 1], [1, 0]], "patterns that overlap cannot be written as labels"),
)
def test_bad_problems_are_refused(H, classes, message):
    refuses(message, FactorizationProblem, np.array(H), np.array(classes), error=ProblemError)


def factorization(**changes):
    values = {"objective": 1.2, "lower_bound": 1.0, "status": "stopped", "iterations": 3, "seconds": 0.0}
    return Factorization(encoder=np.eye(2), gram=np.eye(2), **(values | changes))


def test_gap_is_relative_and_infinite_without_a_bound():
    assert_allclose(factorization().gap, 0.2)
    assert factorization(lower_bound=0.0).gap == np.inf
    assert not Stopping(0.19).reached(1.2, 1.0)
    assert Stopping(0.42).share(0.5).reached(1.2, 1.0)
    for tolerance in (0.0, -1.0, np.nan):
        refuses("tolerance must be > 0", Stopping, tolerance, error=ProblemError)


def test_stopped_raises_with_the_way_out_and_the_factorization():
    stopped = factorization()
    with pytest.raises(
        NotConverged, match=r"after 3 iterations, at most 20 % .* tolerance 0\.0001; raise max_"
    ) as caught:
        stopped.require_converged(1e-4)
    assert caught.value.factorization is stopped
    assert "its objective and lower bound are valid" in str(caught.value)


@pytest.mark.parametrize("status", ["optimal", "stationary", "fixed"])
def test_other_statuses_pass(status):
    done = factorization(status=status)
    assert done.require_converged(1e-4) is done


def test_the_loss_is_that_of_a_gram_of_the_size_of_the_problem():
    problem = FactorizationProblem(np.eye(3), np.zeros(3, dtype=int))
    assert problem.objective(np.eye(3)) == 9.0
    for wrong in (np.eye(2), np.ones(3), np.ones((3, 1))):
        refuses(r"gram must be X = C\^T C of shape \(3, 3\)", problem.objective, wrong, error=ProblemError)


def unit_gram(problem, C):
    X = C.T @ C
    return X / problem.sensitivity_squared(X)


@given(300, problem=factorization_problems(), data=st.data(), ridge=st.sampled_from([0.0, 1e-10, 1e-3, 10.0]))
def test_never_above_the_loss_of_any_encoder_whatever_the_dual_is_made_from(problem, data, ridge):
    X, other = (data.draw(encoders(size=problem.size)) for _ in range(2))
    dual_from = problem.error_gram + ridge * np.eye(problem.size) if ridge else None
    bound = lower_bound(problem, unit_gram(problem, X), dual_from=dual_from)
    assert 0 <= bound <= min(problem.objective(unit_gram(problem, C)) for C in (X, other))


@given(40, problem=factorization_problems(max_size=5, ridges=(1.0, 1e-2)), data=st.data())
def test_never_above_the_optimum_of_the_semidefinite_program(problem, data):
    C = data.draw(encoders(size=problem.size))
    optimum = optimal_loss_reference(problem)
    assert lower_bound(problem, unit_gram(problem, C)) <= optimum * (1 + 1e-6)  # the program's own accuracy


@given(40, problem=factorization_problems(max_size=5, ridges=(1.0, 1e-2)))
def test_zeros_within_classes_lose_nothing_against_the_exact_sensitivity(problem):
    restricted = optimal_loss_reference(problem)
    unrestricted = optimal_loss_reference(problem, restricted=False)
    assert_allclose(restricted, unrestricted, rtol=1e-5)  # two runs of an interior-point solver


def test_a_bad_gram_still_gives_a_valid_bound():
    rng = np.random.default_rng(0)
    B = rng.standard_normal((6, 6))
    problem = FactorizationProblem(B.T @ B, np.arange(6) % 2)
    optimum = solve(problem, Stopping(1e-8)).objective
    for exponent in range(0, 13, 3):
        Q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
        X = Q @ np.diag(np.logspace(-exponent, 0, 6)) @ Q.T
        assert lower_bound(problem, (X + X.T) / 2) <= optimum * (1 + 1e-12)


def prefix_sums(T, classes=None):
    A = np.tril(np.ones((T, T)))
    return MaximumProblem(A[:, :, None] * A[:, None, :], np.arange(T) if classes is None else classes)


def program(problem):
    """min over every X of exact sensitivity at most 1 of the largest tr(H_r X^-1) (cvxpy)."""
    T, scale = problem.size, float(np.einsum("rtt->r", problem.error_grams).max())
    X, largest = cp.Variable((T, T), PSD=True), cp.Variable()
    constraints = []
    for label in np.unique(problem.classes):
        chosen = np.eye(T)[problem.classes == label]
        bound = cp.Variable(len(chosen))
        constraints += [cp.sum(bound) <= 1, cp.diag(bound) - chosen @ X @ chosen.T >> 0]
    for H in problem.error_grams:
        values, vectors = np.linalg.eigh(H / scale)
        constraints.append(cp.matrix_frac(vectors * np.sqrt(np.clip(values, 0, None)), X) <= largest)
    return scale * optimal_value(cp.Minimize(largest), constraints, inaccurate=True)


@pytest.mark.parametrize("T", [4, 8, 16, 32, 64])
def test_prefix_sums_beside_the_square_root(T):
    """The square root of the prefix sums has (1 + 1/4 + 9/64 + ...)^2, its row and column norms (arXiv:2202.11205)."""
    problem = prefix_sums(T)
    C = square_root_encoder(T)
    square_root = problem.objective(C.T @ C)
    assert_allclose(square_root, (C[-1] ** 2).sum() ** 2)
    best = maximum_encoder.solve(problem, Stopping(1e-4))
    assert best.status == "optimal"
    assert best.lower_bound <= best.objective <= best.lower_bound * (1 + 1e-4)
    assert 0.75 * square_root < best.objective < square_root
    assert_allclose(problem.errors(best.gram).max(), best.objective)
    assert_allclose(best.encoder.T @ best.encoder, best.gram, atol=1e-10)
    if T <= 8:
        assert_allclose(best.objective, program(problem), rtol=2e-4)
    # equal weights prove |A|_*^2 / T^2, the singular values of A being 1 / (2 sin((2 i - 1) pi / (4 T + 2)))
    singular_values = 0.5 / np.sin((2 * np.arange(1, T + 1) - 1) * np.pi / (4 * T + 2))
    assert best.lower_bound > (singular_values.sum() / T) ** 2


@st.composite
def problems(draw):
    T, b = draw(st.sampled_from([(2, 1), (3, 3), (4, 2), (4, 4), (6, 3)]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    steps, rank = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    R = rng.normal(size=(steps, T, rank)) * 10.0 ** draw(st.integers(-2, 2))
    ridge = 0.1 * np.abs(R).max() ** 2 * np.eye(T)  # else some noise may cost nothing
    return MaximumProblem(R @ R.swapaxes(1, 2) + ridge, np.arange(T) % b)


@given(60, problems())
def test_bound_program_and_objective_in_order(problem):
    best = maximum_encoder.solve(problem, Stopping(1e-4))
    reference = program(problem)
    assert best.lower_bound <= reference * (1 + 1e-5)
    assert reference <= best.objective * (1 + 1e-5)
    assert best.status == "optimal"
    assert best.sensitivity <= 1 + 1e-12
    by_hand = max(np.trace(H @ np.linalg.inv(best.gram)) for H in problem.error_grams)
    assert_allclose(best.objective, by_hand, rtol=1e-8)


@given(20, problems())
def test_one_error_is_the_usual_problem(problem):
    alone = MaximumProblem(problem.error_grams[:1], problem.classes)
    usual = maximum_encoder.dense_encoder.solve(alone.sum, Stopping(1e-6))
    assert_allclose(maximum_encoder.solve(alone, Stopping(1e-5)).objective, usual.objective, rtol=1e-5)


def test_a_limit_leaves_a_valid_certificate():
    best = maximum_encoder.solve(prefix_sums(16), Stopping(1e-6, 4))
    assert best.status == "stopped"
    assert best.lower_bound < 2.9055 < best.objective


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_any_scale(scale):
    problem = prefix_sums(4)
    best = maximum_encoder.solve(MaximumProblem(scale * problem.error_grams, problem.classes))
    assert_allclose(best.objective / scale, 1.7587, rtol=1e-4)


@each(
    "grams, message",
    (np.eye(2), "a stack of square matrices, got shape"),
    (np.ones((2, 2, 3)), "a stack of square matrices"),
    (np.full((1, 2, 2), np.nan), "must be finite"),
    (np.array([np.eye(2), [[1.0, 1.0], [0.0, 1.0]]]), "that of step 1 is not"),
    (np.array([np.eye(2), -np.eye(2)]), "that of step 1 is not"),
    (np.zeros((2, 2, 2)), "must not be zero"),
)
def test_arrays_that_are_no_problem(grams, message):
    refuses(message, MaximumProblem, grams, np.arange(2), error=ProblemError)


def test_no_error_of_a_singular_gram():
    assert prefix_sums(3).objective(np.ones((3, 3))) == np.inf


@given(60, problem=factorization_problems(ridges=(1.0, 1e-2)))
def test_tight_at_the_optimum(problem):
    solved = solve(problem, Stopping(1e-7))
    assert solved.status == "optimal"
    # at least as tight as what the solver reports, from its own point
    assert lower_bound(problem, solved.gram) >= solved.objective * (1 - 1e-4)
