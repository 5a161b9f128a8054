"""The dense solver: feasible, causal, optimal against cvxpy and closed forms, at the ends of the float range too."""

import dataclasses
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from _modes import mode_problems
from _solved import assert_feasible, averaging, one_of_both
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import assume, each, example, given, refuses, st

from mfdl import Dynamics, gossip
from mfdl.objective import NoiseObjective
from mfdl.testing import factorization_problems, optimal_loss_reference
from mfdl_solvers import (
    FactorizationProblem,
    ModeProblem,
    NotConverged,
    ProblemError,
    Stopping,
    autodiff,
    coalitions,
    dense_encoder,
    kronecker_encoder,
    lower_bound,
    per_mode_encoder,
    solve,
)
from mfdl_solvers.arithmetic import ORDINARY, even_exponent, scaled, scaled_down, scaled_up
from mfdl_solvers.certificate import weights_bound
from mfdl_solvers.coalition_problem import CoalitionProblem, outsider_bound
from mfdl_solvers.kronecker_encoder import joint_lower_bound


@given(120, problem=one_of_both(ridges=(1.0, 1e-2)))
def test_feasible_and_within_tolerance(problem):
    alone = problem.num_classes == problem.size
    for tolerance in (1e-4, 1e-7) if alone else (1e-4,):
        solved = solve(problem, Stopping(tolerance))
        assert_feasible(problem, solved)
        assert solved.status == "optimal"
        assert solved.gap <= tolerance
        assert solved.notes == ()
        assert solved.iterations <= 100 or not alone


@given(100, problem=one_of_both(ridges=(1e-6, 0.0)), tolerance=st.sampled_from([1e-4, 1e-6]))
def test_feasible_and_within_tolerance_when_nearly_singular(problem, tolerance):
    solved = solve(problem, Stopping(tolerance if problem.num_classes == problem.size else 1e-4))
    assert_feasible(problem, solved)
    # about one singular H in ten thousand, with rows that are equal, stops a little above the tolerance
    assert solved.gap <= 3e-4
    assert solved.status == "stopped" or solved.gap <= 1e-4
    singular = problem.eigenvalues[0] <= 1e-10 * problem.eigenvalues[-1]
    assert bool(solved.notes) == singular


@given(40, problem=one_of_both(max_size=5))
def test_optimal_against_the_semidefinite_program(problem):
    regular = problem.eigenvalues[0] > 1e-6 * problem.eigenvalues[-1]
    assume(regular or problem.num_classes == problem.size)
    solved = solve(problem, Stopping(1e-7 if regular else 1e-6))
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # "Solution may be inaccurate"
            reference = optimal_loss_reference(problem)
    except RuntimeError:  # the program gives up on a few singular H
        assume(regular)
        raise
    accuracy = 2e-6 if regular else 1e-5  # the accuracy of the program
    # for a singular H both approach an infimum: ours from above by at most its gap
    assert reference * (1 - accuracy) <= solved.objective <= reference * (1 + accuracy + solved.gap)
    assert solved.lower_bound <= reference * (1 + accuracy)


@given(60, problem=one_of_both(ridges=(1.0, 1e-2)), data=st.data(), factor=st.sampled_from([1e-30, 0.5, 1e30]))
def test_order_and_units_do_not_matter(problem, data, factor):
    order = np.array(data.draw(st.permutations(range(problem.size))), dtype=int)
    names = np.array(data.draw(st.permutations(range(problem.num_classes))), dtype=int)
    moved = FactorizationProblem(factor * problem.error_gram[np.ix_(order, order)], names[problem.classes[order]])
    tolerance = 1e-9 if problem.num_classes == problem.size else 1e-6
    here, other = solve(problem, Stopping(tolerance)), solve(moved, Stopping(tolerance))
    assert here.status == other.status == "optimal"
    assert_allclose(other.objective, factor * here.objective, rtol=2 * tolerance)
    # X to the root of the gap, and H's kernel
    assert_allclose(other.gram, here.gram[np.ix_(order, order)], atol=30 * tolerance**0.5)


@given(60, problem=factorization_problems(ridges=(1.0, 1e-2)))
def test_one_class_has_a_closed_form(problem):
    # X is diagonal: min sum H_tt / x_t over sum x_t = 1 is (sum sqrt H_tt)^2
    user_level = FactorizationProblem(problem.error_gram, np.zeros(problem.size, dtype=int))
    solved = solve(user_level, Stopping(1e-8))
    assert_allclose(solved.objective, np.sqrt(np.diagonal(problem.error_gram)).sum() ** 2, rtol=1e-7)


@each("B, labels", ([2.0, 3.0, 3.0, 1.0, 0.0], [2, 3, 1, 0, 1]), ([3.0, 0.0, 0.0, -3.0, 3.0], [3, 3, 1, 2, 0]))
def test_rank_one_and_a_little_reaches_the_tolerance(B, labels):
    # X is ill-conditioned: rounding ended the search at gap 1.05e-7, as the bound lost the error in X, not its square
    H = np.outer(B, B) + 0.01 * np.eye(5)
    solved = solve(FactorizationProblem(H, np.array(labels)), Stopping(1e-7))
    assert solved.status == "optimal"
    assert_allclose(solved.objective, optimal_loss_reference(FactorizationProblem(H, np.array(labels))), rtol=2e-6)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6])
@pytest.mark.parametrize("classes", [1, 2, 4, 8])
def test_low_rank_gram_with_classes_comes_within_the_tolerance(classes, tolerance):
    # one ridge of 1e-10 left gaps of 4e-6 to 4e-5 at four classes and more
    B = np.random.default_rng(1).integers(-3, 4, (3, 8)).astype(float)
    solved = solve(FactorizationProblem(B.T @ B, np.arange(8) % classes), Stopping(tolerance))
    assert solved.status == "optimal"
    assert solved.gap <= tolerance
    # at four classes 210 and 1120; with each rho solved to its last digit 2212 and 3636
    assert solved.iterations <= (1000 if tolerance == 1e-4 else 3000)
    assert len(solved.notes) == 1


def test_class_sums_do_not_drift_once_there_is_nothing_left_to_gain():
    # rounding in the gradient along the class sum grew to a sum of 1.05 here, and the run stopped at gap 2e-4
    H = 4 * np.ones((3, 3)) + 0.01 * np.eye(3)
    problem = FactorizationProblem(H, np.array([1, 0, 0]))
    for tolerance in (1e-4, 1e-8, 1e-16):
        solved = solve(problem, Stopping(tolerance))
        assert_feasible(problem, solved)
        assert solved.gap < max(tolerance, 1e-8)


# Singular H
@pytest.mark.parametrize("graph", ["ring:n=6", "ring:n=9", "ring:n=30", "star:n=12"])
@pytest.mark.parametrize("class_size", [1, 2, 3])
def test_singular_averaging_comes_within_the_tolerance(graph, class_size):
    # of the star's three eigenvalues one is small for many leaves, not zero; the ring's is zero for 3 m nodes
    problem = averaging(graph, class_size)
    for tolerance in (1e-4, 1e-6):
        solved = solve(problem, Stopping(tolerance))
        assert solved.status == "optimal"
        assert solved.gap <= tolerance
        assert_feasible(problem, solved)
        if graph != "star:n=12":
            (note,) = solved.notes
            assert "error_gram is singular to working precision" in note
            assert "was solved instead" in note
            assert np.linalg.eigvalsh(solved.gram)[0] < 1e-2  # much noise where it costs nothing
    assert np.linalg.norm(problem.root, "nuc") ** 2 / problem.num_classes <= solved.objective * (1 + 1e-9)


def test_steps_that_cost_nothing_are_certified_too():
    # the dual made from H itself is loose here (gap 5e-3); the one from the regularised H is not
    H = np.zeros((6, 6))
    H[:4, :4] = [[14.0, 2.0, 6.0, 2.0], [2.0, 4.0, 0.0, -2.0], [6.0, 0.0, 9.0, -9.0], [2.0, -2.0, -9.0, 19.0]]
    solved = solve(FactorizationProblem(H, np.array([1, 0, 2, 2, 1, 0])))
    assert solved.status == "optimal"


def test_a_gram_that_is_indefinite_by_rounding_keeps_loss_above_the_bound():
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    H = Q @ np.diag([-9e-10, 1e-3, 0.1, 0.3, 0.5, 1.0]) @ Q.T  # within what the problem accepts
    solved = solve(FactorizationProblem((H + H.T) / 2, np.arange(6)), Stopping(1e-9))
    assert solved.lower_bound <= solved.objective
    assert solved.notes


# Not converged
def hard():
    T = 24
    H = NoiseObjective(Dynamics(gossip.uniform("star:n=6")), T).over_steps()
    return FactorizationProblem(H, np.arange(T) % 6)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_stopped_run_says_so_and_its_numbers_stay_valid(alone, limit):
    problem = averaging("erdos-renyi:n=20,p=0.3,seed=1") if alone else hard()
    stopped = solve(problem, Stopping(1e-6, limit))
    assert (stopped.status, stopped.iterations) == ("stopped", limit)
    assert_feasible(problem, stopped)
    with pytest.raises(NotConverged, match="raise max_iterations or the tolerance") as caught:
        stopped.require_converged(1e-4)
    assert caught.value.factorization is stopped
    done = solve(problem, Stopping(1e-6))
    assert done.status == "optimal"
    assert stopped.lower_bound <= done.objective <= stopped.objective
    assert (
        done.lower_bound <= stopped.objective <= problem.objective(np.diag(1.0 / problem.class_sizes[problem.classes]))
    )


def test_a_tolerance_below_rounding_ends_and_is_not_called_optimal():
    solved = solve(hard(), Stopping(1e-16, 2000))
    assert solved.status == "stopped"
    assert solved.iterations < 2000  # the floating-point floor, not the limit
    assert solved.gap < 1e-6


# The bound near the optimum
def test_an_error_in_the_gram_costs_the_bound_its_square():
    problem = hard()
    solved = solve(problem, Stopping(1e-9))
    rng = np.random.default_rng(0)
    wrong = rng.standard_normal(solved.gram.shape)
    wrong = np.where(problem.same_class, 0.0, wrong + wrong.T) * np.linalg.eigvalsh(solved.gram)[0] / 20
    objectives = [1 - lower_bound(problem, solved.gram + size * wrong) / solved.objective for size in (1e-1, 1e-2)]
    assert (
        0 < objectives[1] < objectives[0] / 30
    )  # a tenth of the error; without the raised diagonal a tenth of the objective


# Start
def test_start_is_made_feasible_and_from_the_solution_is_soon_over():
    problem = hard()
    cold = solve(problem, Stopping(1e-5), start=np.tri(problem.size).T @ np.tri(problem.size))
    warm = solve(problem, Stopping(1e-5), start=cold.gram)
    for solved in (cold, warm):
        assert_feasible(problem, solved)
        assert solved.status == "optimal"
    assert warm.iterations <= 1 < cold.iterations


@pytest.mark.parametrize("start", [np.eye(3), np.full((24, 24), np.nan), np.zeros((24, 24)), -np.eye(24)])
def test_bad_starts_are_refused(start):
    refuses(r"start must be finite with shape \(24, 24\)", lambda: solve(hard(), start=start), error=ProblemError)


EXTREMES = st.sampled_from([-900, -600, 510, 900])  # even: 2^510 is 3e153, whose square is finite and its trace's not
LOWEST = 2.0**-1074


def of_gram(problem, k):
    return FactorizationProblem(scaled(problem.error_gram, k), problem.classes)


def of_modes(problem, k):
    return ModeProblem(scaled(problem.grams, k), problem.vectors, problem.classes)


def assert_moved(solved, here, k):
    """The answer `here` for a Gram 2^k times as large."""
    assert (solved.status, solved.iterations) == (here.status, here.iterations)
    assert solved.objective == math.ldexp(here.objective, k)
    assert solved.lower_bound == math.ldexp(here.lower_bound, k)
    assert 0 < solved.lower_bound <= solved.objective * (1 + 1e-12) < math.inf
    assert abs(solved.gap - here.gap) <= 1e-15


# The arithmetic
@given(value=st.floats(LOWEST, 1e300), k=st.integers(-2000, 0))
@example(value=3 * LOWEST, k=-1)
@example(value=1.0, k=-1075)
def test_rounding_is_to_the_safe_side_and_by_one_step(value, k):
    exact, up, down = Fraction(value) * Fraction(2) ** k, scaled_up(value, k), scaled_down(value, k)
    assert Fraction(down) <= exact <= Fraction(up)
    assert up == down or up == math.nextafter(down, math.inf)


@given(value=st.floats(1.0, 1e300), k=st.integers(1, 2000))
def test_no_loss_becomes_infinite(value, k):
    if Fraction(value) * 2**k > Fraction(2.0**1023) * 2:
        for times in (scaled_up, scaled_down):
            refuses(None, times, value, k, error=OverflowError)
    else:
        assert scaled_up(value, k) == scaled_down(value, k) == value * 2.0 ** (k / 2) * 2.0 ** (k / 2) or k % 2


@given(entries=st.lists(st.floats(-1.7e308, 1.7e308).filter(bool), min_size=1, max_size=4))
@example(entries=[LOWEST])
def test_the_exponent_is_even_and_leaves_the_largest_entry_near_one(entries):
    array = np.array(entries)
    k, largest = even_exponent(array), np.abs(array).max()
    assert k % 2 == 0
    if k:
        assert 1 <= np.abs(scaled(array, -k)).max() < 4
    else:
        assert 2.0 ** -(ORDINARY + 1) <= largest < 2.0**ORDINARY
    assert scaled(array, 0) is array


# Every solver
@given(25, problem=factorization_problems(), k=EXTREMES)
def test_the_same_factorization_at_any_scale(problem, k):
    far_problem = of_gram(problem, k)
    assert problem.exponent == 0
    assert problem.normalised is problem
    assert_array_equal(far_problem.normalised.error_gram, scaled(far_problem.error_gram, -far_problem.exponent))
    here, solved = dense_encoder.solve(far_problem.normalised), dense_encoder.solve(far_problem)
    assert_array_equal(solved.gram, here.gram)
    assert_moved(solved, here, far_problem.exponent)
    assert far_problem.objective(here.gram) == solved.objective


@given(8, problem=mode_problems(), k=EXTREMES)
def test_the_same_noise_over_time_and_nodes_at_any_scale(problem, k):
    far_problem = of_modes(problem, k)
    product, plain = kronecker_encoder.solve(far_problem), kronecker_encoder.solve(far_problem.normalised)
    form, near = per_mode_encoder.solve(far_problem), per_mode_encoder.solve(far_problem.normalised)
    assert_array_equal(product.time.gram, plain.time.gram)
    assert_array_equal(form.grams, near.grams)
    for solved, here in ((product, plain), (product.time, plain.time), (product.space, plain.space), (form, near)):
        assert_moved(solved, here, far_problem.exponent)
    begun = per_mode_encoder.solve(far_problem, start=product)
    assert begun.kronecker is product
    assert begun.objective <= product.objective * (1 + 1e-12)


@pytest.mark.parametrize("k", [-900, 900])
@pytest.mark.parametrize("private", [True, False])
def test_the_same_shared_seeds_at_any_scale(k, private):
    H = np.array([[3.0, 1.0, 0.5], [1.0, 2.0, 0.0], [0.5, 0.0, 1.0]])
    groups = ((0, 1), (1, 2), (0, 2))
    near, far = (CoalitionProblem(scaled(H, e), groups, 1, private=private) for e in (0, k))
    assert near.normalised is near
    here, solved = coalitions.solve(far.normalised), coalitions.solve(far)
    assert_array_equal(solved.covariance, here.covariance)
    assert_moved(solved, here, far.exponent)
    assert solved.status == "optimal"
    assert solved.objective == far.objective(solved.private_variance, solved.parts)
    assert outsider_bound(far) == math.ldexp(outsider_bound(far.normalised), far.exponent) > 0
    assert abs(solved.objective - math.ldexp(coalitions.solve(near).objective, k)) <= 2e-3 * solved.objective


@pytest.mark.parametrize("k", [-900, 900])
def test_the_same_encoder_by_automatic_differentiation(k):
    problem = FactorizationProblem(np.tri(4).T @ np.tri(4), np.arange(4) % 2)
    far_problem = of_gram(problem, k)
    solved = autodiff.solve(far_problem)
    assert solved.status == "optimal"
    assert_array_equal(solved.gram, autodiff.solve(far_problem.normalised).gram)

    def penalty(unit):
        return lambda C: (C[1, 0] ** 2) * unit * unit  # in units of the objective

    family = autodiff.lower_triangular(problem)
    plain = autodiff.solve(far_problem.normalised, family, penalty=penalty(2.0))
    moved = autodiff.solve(far_problem, family, penalty=penalty(2.0 ** (1 + far_problem.exponent // 2)))
    assert_array_equal(moved.gram, plain.gram)
    assert abs(moved.gram - solved.gram).max() > 1e-3


# Bounds alone
@given(25, problem=factorization_problems(), k=EXTREMES, x=st.sampled_from([-900, 0, 900]))
def test_bounds_are_finite_below_the_loss_and_do_not_depend_on_the_scale_of_their_dual(problem, k, x):
    far_problem, weights = of_gram(problem, k), np.arange(1.0, problem.size + 1)
    X = np.eye(problem.size) / problem.size
    bound = lower_bound(far_problem, scaled(X, x))
    assert 0 < bound <= far_problem.objective(X) < math.inf
    assert (
        bound == lower_bound(far_problem, X) == math.ldexp(lower_bound(far_problem.normalised, X), far_problem.exponent)
    )
    root = scaled(far_problem.normalised.root, far_problem.exponent // 2)
    assert 0 < weights_bound(far_problem, weights, root=root) <= far_problem.objective(X) * (1 + 1e-12)
    assert lower_bound(far_problem, X, dual_from=far_problem.error_gram, root=root) >= bound
    # eigenvalues that are zero but for rounding are subnormal numbers at the far scale, with fewer digits
    assert_allclose(far_problem.root, root, rtol=0, atol=1e-15 * abs(root).max())


@given(15, problem=mode_problems(), k=EXTREMES, x=st.sampled_from([-900, 0, 900]))
def test_joint_bounds_are_finite_and_do_not_depend_on_the_scale_of_their_dual(problem, k, x):
    far_problem, dual = of_modes(problem, k), np.eye(problem.num_steps)
    bound = joint_lower_bound(far_problem, scaled(dual, x))
    assert 0 < bound < math.inf
    assert bound == joint_lower_bound(far_problem, dual)
    assert bound == math.ldexp(joint_lower_bound(far_problem.normalised, dual), far_problem.exponent)


def test_joint_bounds_where_gram_and_dual_are_large_together():
    near = ModeProblem(2.0**120 * np.eye(3)[None], np.eye(1), np.zeros(3, dtype=int))
    assert joint_lower_bound(near, 2.0**1000 * np.eye(3)) == joint_lower_bound(near, np.eye(3)) < math.inf
    far = ModeProblem(1.5e307 * np.eye(5)[None], np.eye(1), np.arange(5))  # ||H^1/2||_*^2 is beyond float64
    assert 7.5e307 * (1 - 1e-3) <= joint_lower_bound(far, np.eye(5)) <= 7.5e307


@pytest.mark.parametrize("parts", [3, 5, 7, 11, 13])
def test_bounds_on_subnormal_grams_are_rounded_down(parts):
    problem = ModeProblem(parts * LOWEST * np.eye(3)[None], np.eye(1), np.array([0, 1, 1]))
    exact = joint_lower_bound(problem.normalised, np.eye(3))
    assert Fraction(joint_lower_bound(problem, np.eye(3))) <= Fraction(exact) * Fraction(2) ** problem.exponent
    assert joint_lower_bound(problem, np.eye(3)) == scaled_down(exact, problem.exponent)


def test_shared_seeds_just_below_the_end_of_the_range():
    H = np.array([[3.0, 1.0, 0.5], [1.0, 2.0, 0.0], [0.5, 0.0, 1.0]])
    problem = CoalitionProblem(2.8e307 * H, ((0, 1), (1, 2), (0, 2)), 1)
    solved = coalitions.solve(problem)  # the square of ||H^1/2||_* is beyond
    assert solved.status == "optimal"
    assert 0 < solved.lower_bound <= solved.objective <= problem.local_loss < math.inf


def test_what_is_no_number_proves_nothing():
    problem = FactorizationProblem(np.eye(2), np.array([0, 0]))
    assert lower_bound(problem, np.diag([1.0, 1e-170])) == 0.0  # X^-2 is beyond float64
    modes = ModeProblem(np.eye(2)[None], np.eye(1), np.array([0, 0]))
    for dual in (np.diag([1.0, np.inf]), np.zeros((2, 2))):
        assert joint_lower_bound(modes, dual) == 0.0


# Refusals
ONE_CLASS = np.zeros(3, dtype=int)
LARGE = 5e307 * np.eye(3)  # best objective 9 * 5e307


@each(
    "refused",
    lambda: dense_encoder.solve(FactorizationProblem(LARGE, ONE_CLASS)),
    lambda: FactorizationProblem(LARGE, ONE_CLASS).objective(np.eye(3)),
    lambda: FactorizationProblem(2 * LARGE, ONE_CLASS),  # the trace is
    lambda: ModeProblem(1e308 * np.array([np.eye(1), np.eye(1)]), np.eye(2), np.arange(1)),
    lambda: kronecker_encoder.solve(ModeProblem(LARGE[None], np.eye(1), ONE_CLASS)),
    lambda: CoalitionProblem(LARGE, ((0, 1, 2),), 0).objective(2.0, [np.eye(3)]),
)
def test_a_loss_beyond_float64_is_refused(refused):
    refuses("the objective of error_gram is beyond", refused, error=ProblemError)


def test_a_gram_that_is_none_is_refused_at_any_scale():
    for factor in (1.0, 1e300, 1e-300):
        with pytest.raises(ProblemError, match="positive semidefinite"):
            FactorizationProblem(factor * np.diag([1.0, -1.0]), np.arange(2))
        with pytest.raises(ProblemError, match="symmetric"):
            FactorizationProblem(factor * np.array([[1.0, -1.0], [1.0, 1.0]]), np.arange(2))


def test_notes_say_at_which_scale_they_were_measured():
    singular = FactorizationProblem(2.0**600 * np.ones((2, 2)), np.zeros(2, dtype=int))
    regular = FactorizationProblem(2.0**600 * np.eye(2), np.zeros(2, dtype=int))
    assert dense_encoder.solve(regular).notes == ()
    solved = dense_encoder.solve(singular)
    assert solved.notes[-1] == "what is said of the error Gram was measured on it times 2^-600"
    assert solved.shifted(0) is solved
    assert dataclasses.replace(solved, notes=()).shifted(2).objective == 4 * solved.objective
