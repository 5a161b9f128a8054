"""The dense solver: feasible, causal, optimal against cvxpy and closed forms, and honest when it is not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from _solved import assert_feasible, averaging, one_of_both
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses

from mfdl import Dynamics, gossip
from mfdl.objective import NoiseObjective
from mfdl.testing import factorization_problems, optimal_loss_reference
from mfdl_solvers import FactorizationProblem, NotConverged, ProblemError, Stopping, lower_bound, solve


@examples(120)
@given(problem=one_of_both(ridges=(1.0, 1e-2)))
def test_feasible_and_within_tolerance(problem):
    alone = problem.num_classes == problem.size
    for tolerance in (1e-4, 1e-7) if alone else (1e-4,):
        solved = solve(problem, Stopping(tolerance))
        assert_feasible(problem, solved)
        assert solved.status == "optimal"
        assert solved.gap <= tolerance
        assert solved.notes == ()
        assert solved.iterations <= 100 or not alone


@examples(100)
@given(problem=one_of_both(ridges=(1e-6, 0.0)), tolerance=st.sampled_from([1e-4, 1e-6]))
def test_feasible_and_within_tolerance_when_nearly_singular(problem, tolerance):
    solved = solve(problem, Stopping(tolerance if problem.num_classes == problem.size else 1e-4))
    assert_feasible(problem, solved)
    # about one singular H in ten thousand, with rows that are equal, stops a little above the tolerance
    assert solved.gap <= 3e-4
    assert solved.status == "stopped" or solved.gap <= 1e-4
    singular = problem.eigenvalues[0] <= 1e-10 * problem.eigenvalues[-1]
    assert bool(solved.notes) == singular


@examples(40)
@given(problem=one_of_both(max_size=5))
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


@examples(60)
@given(problem=one_of_both(ridges=(1.0, 1e-2)), data=st.data(), factor=st.sampled_from([1e-30, 0.5, 1e30]))
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


@examples(60)
@given(problem=factorization_problems(ridges=(1.0, 1e-2)))
def test_one_class_has_a_closed_form(problem):
    # X is diagonal: min sum H_tt / x_t over sum x_t = 1 is (sum sqrt H_tt)^2
    user_level = FactorizationProblem(problem.error_gram, np.zeros(problem.size, dtype=int))
    solved = solve(user_level, Stopping(1e-8))
    assert_allclose(solved.objective, np.sqrt(np.diagonal(problem.error_gram)).sum() ** 2, rtol=1e-7)


@pytest.mark.parametrize(
    ("B", "labels"), [([2.0, 3.0, 3.0, 1.0, 0.0], [2, 3, 1, 0, 1]), ([3.0, 0.0, 0.0, -3.0, 3.0], [3, 3, 1, 2, 0])]
)
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


@pytest.mark.parametrize("label", [0, 7])
def test_one_index(label):
    solved = solve(FactorizationProblem(np.array([[3.0]]), np.array([label])), Stopping(1e-12))
    assert_array_equal(solved.encoder, [[1.0]])
    assert solved.objective == pytest.approx(3.0, rel=1e-14)
    assert (solved.status, solved.iterations, solved.notes) == ("optimal", 0, ())


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
