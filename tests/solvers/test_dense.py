"""The dense solver: feasible, causal, optimal against cvxpy and closed forms, and honest when it is not."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal

from mfdl import gossip
from mfdl.dynamics import Dynamics
from mfdl.error_gram import error_gram
from mfdl.testing import factorization_problems, optimal_loss_reference
from mfdl_solvers import FactorizationProblem, NotConverged, ProblemError, Stopping, lower_bound, solve


def assert_feasible(problem, found):
    C, X = found.encoder, found.gram
    assert_array_equal(np.triu(C, 1), 0)  # causal, exactly
    assert (np.diagonal(C) > 0).all()
    assert_allclose(C.T @ C, X, atol=1e-13)
    assert_allclose((C**2).sum(axis=0), np.diagonal(X), rtol=1e-12)  # column norms: the orientation
    within = problem.same_class & ~np.eye(problem.size, dtype=bool)
    assert_array_equal(X[within], 0)
    assert_allclose(np.bincount(problem.classes, weights=np.diagonal(X)), 1, rtol=1e-12)
    assert_allclose(found.sensitivity, 1, rtol=1e-12)
    assert_allclose(problem.loss(C.T @ C), found.loss, rtol=1e-6)  # C^T C rounds X where X is nearly singular
    assert found.lower_bound <= found.loss


@examples(100)
@given(problem=factorization_problems(ridges=(1.0, 1e-2)))
def test_feasible_and_within_tolerance(problem):
    found = solve(problem, Stopping(1e-4))
    assert_feasible(problem, found)
    assert found.status == "optimal"
    assert found.gap <= 1e-4
    assert found.notes == ()


@examples(60)
@given(problem=factorization_problems(ridges=(1e-6, 0.0)))
def test_feasible_and_within_tolerance_when_nearly_singular(problem):
    found = solve(problem, Stopping(1e-4))
    assert_feasible(problem, found)
    assert (found.status == "optimal") == (found.gap <= 1e-4)
    assert found.gap <= 3e-4  # about one singular H in ten thousand stops a little above the tolerance
    singular = problem.eigenvalues[0] <= 1e-10 * problem.eigenvalues[-1]
    assert bool(found.notes) == singular


@examples(40)
@given(problem=factorization_problems(max_size=5, ridges=(1.0, 1e-2)))
def test_optimal_against_the_semidefinite_program(problem):
    found = solve(problem, Stopping(1e-7))
    assert found.status == "optimal"
    assert_allclose(found.loss, optimal_loss_reference(problem), rtol=2e-6)  # the program's own accuracy


@examples(60)
@given(problem=factorization_problems(ridges=(1.0, 1e-2)))
def test_one_class_has_a_closed_form(problem):
    # X is diagonal: min sum H_tt / x_t over sum x_t = 1 is (sum sqrt H_tt)^2
    user_level = FactorizationProblem(problem.error_gram, np.zeros(problem.size, dtype=int))
    found = solve(user_level, Stopping(1e-8))
    assert_allclose(found.loss, np.sqrt(np.diagonal(problem.error_gram)).sum() ** 2, rtol=1e-7)


@pytest.mark.parametrize(
    ("B", "labels"),
    [
        ([2.0, 3.0, 3.0, 1.0, 0.0], [2, 3, 1, 0, 1]),
        ([3.0, 0.0, 0.0, -3.0, 3.0], [3, 3, 1, 2, 0]),
    ],
)
def test_rank_one_and_a_little_reaches_the_tolerance(B, labels):
    # X is ill-conditioned: rounding ended the search at gap 1.05e-7, as the bound lost the error in X, not its square
    H = np.outer(B, B) + 0.01 * np.eye(5)
    found = solve(FactorizationProblem(H, np.array(labels)), Stopping(1e-7))
    assert found.status == "optimal"
    assert_allclose(found.loss, optimal_loss_reference(FactorizationProblem(H, np.array(labels))), rtol=2e-6)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6])
@pytest.mark.parametrize("classes", [1, 2, 4, 8])
def test_low_rank_gram_with_classes_comes_within_the_tolerance(classes, tolerance):
    # one ridge of 1e-10 left gaps of 4e-6 to 4e-5 at four classes and more
    B = np.random.default_rng(1).integers(-3, 4, (3, 8)).astype(float)
    found = solve(FactorizationProblem(B.T @ B, np.arange(8) % classes), Stopping(tolerance))
    assert found.status == "optimal"
    assert found.gap <= tolerance
    # at four classes 210 and 1120; with each rho solved to its last digit 2212 and 3636
    assert found.iterations <= (1000 if tolerance == 1e-4 else 3000)
    assert len(found.notes) == 1


def test_one_index():
    found = solve(FactorizationProblem(np.array([[3.0]]), np.array([0])))
    assert_array_equal(found.encoder, [[1.0]])
    assert_allclose(found.loss, 3.0)
    assert found.status == "optimal"
    assert found.iterations == 0


@pytest.mark.parametrize("factor", [1e-30, 1.0, 1e30])
def test_units_do_not_matter(factor):
    H = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])
    labels = np.array([0, 1, 0])
    found = solve(FactorizationProblem(factor * H, labels), Stopping(1e-6))
    assert found.status == "optimal"
    assert_allclose(found.loss / factor, solve(FactorizationProblem(H, labels), Stopping(1e-6)).loss, rtol=2e-6)


def test_class_sums_do_not_drift_once_there_is_nothing_left_to_gain():
    # rounding in the gradient along the class sum grew to a sum of 1.05 here, and the run stopped at gap 2e-4
    H = 4 * np.ones((3, 3)) + 0.01 * np.eye(3)
    problem = FactorizationProblem(H, np.array([1, 0, 0]))
    for tolerance in (1e-4, 1e-8, 1e-16):
        found = solve(problem, Stopping(tolerance))
        assert_feasible(problem, found)
        assert found.gap < max(tolerance, 1e-8)


def test_reference_optimum_of_florentine():
    H = error_gram(Dynamics(gossip.uniform("florentine")), 64)
    problem = FactorizationProblem(H, np.arange(64) % 16)
    found = solve(problem, Stopping(1e-6))
    assert found.status == "optimal"
    assert_feasible(problem, found)
    assert_allclose(found.loss, 3200.406114662085, rtol=1e-6)
    assert found.loss >= 3200.405970916417 * (1 - 1e-12)  # a certified bound, computed independently
    assert found.lower_bound <= 3200.406114662085 * (1 + 1e-12)
    assert_allclose(problem.loss(np.eye(64)), 11634.930488528153, rtol=1e-10)


def test_corn_is_the_same_problem_over_nodes():
    # min tr(W R W^T) with [R^-1]_uu <= 1: H = W^T W, X = R^-1, every node a class of its own
    W = gossip.metropolis_hastings("florentine").dense()
    found = solve(FactorizationProblem(W.T @ W, np.arange(15)), Stopping(1e-8))
    assert found.status == "optimal"
    assert_allclose(found.loss, 4.4637657923587675, rtol=1e-7)
    assert found.lower_bound <= 4.4637657923587675
    assert_allclose(np.trace(W.T @ W), 5.656961451247166, rtol=1e-12)  # independent noise at unit sensitivity
    # the nuclear norm bound ||W||_*^2 / n is never above
    assert np.linalg.norm(W, "nuc") ** 2 / 15 <= found.loss


# Singular H


def test_singular_gram_is_regularised_with_a_note():
    ring = gossip.metropolis_hastings("ring:n=6").dense()  # weights 1/3: singular for 3 m nodes
    problem = FactorizationProblem(ring.T @ ring, np.arange(6))
    found = solve(problem)
    assert len(found.notes) == 1
    assert "error_gram is singular to working precision" in found.notes[0]
    assert "was solved instead" in found.notes[0]
    assert found.status == "optimal"
    assert_feasible(problem, found)
    assert np.linalg.norm(ring, "nuc") ** 2 / 6 <= found.loss * (1 + 1e-9)
    assert np.linalg.eigvalsh(found.gram)[0] < 1e-2  # much noise where it costs nothing


def test_steps_that_cost_nothing_are_certified_too():
    # the dual made from H itself is loose here (gap 5e-3); the one from the regularised H is not
    H = np.zeros((6, 6))
    H[:4, :4] = [[14.0, 2.0, 6.0, 2.0], [2.0, 4.0, 0.0, -2.0], [6.0, 0.0, 9.0, -9.0], [2.0, -2.0, -9.0, 19.0]]
    found = solve(FactorizationProblem(H, np.array([1, 0, 2, 2, 1, 0])))
    assert found.status == "optimal"


def test_regular_gram_has_no_note():
    assert solve(FactorizationProblem(np.eye(2), np.arange(2))).notes == ()


def test_a_gram_that_is_indefinite_by_rounding_keeps_loss_above_the_bound():
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    H = Q @ np.diag([-9e-10, 1e-3, 0.1, 0.3, 0.5, 1.0]) @ Q.T  # within what the problem accepts
    found = solve(FactorizationProblem((H + H.T) / 2, np.arange(6)), Stopping(1e-9))
    assert found.lower_bound <= found.loss
    assert found.notes


# Not converged


def hard():
    T = 24
    H = error_gram(Dynamics(gossip.uniform("star:n=6")), T)
    return FactorizationProblem(H, np.arange(T) % 6)


def test_a_stopped_run_says_so_and_its_numbers_stay_valid():
    problem = hard()
    stopped = solve(problem, Stopping(max_iterations=1))
    assert stopped.status == "stopped"
    assert stopped.iterations == 1
    assert_feasible(problem, stopped)
    with pytest.raises(NotConverged, match="raise max_iterations or the tolerance") as caught:
        stopped.require_converged(1e-4)
    assert caught.value.factorization is stopped
    done = solve(problem)
    assert done.status == "optimal"
    assert stopped.lower_bound <= done.loss <= stopped.loss


def test_a_tolerance_below_rounding_ends_and_is_not_called_optimal():
    found = solve(hard(), Stopping(1e-16, 2000))
    assert found.status == "stopped"
    assert found.iterations < 2000  # the floating-point floor, not the limit
    assert found.gap < 1e-6


def test_more_tolerance_takes_fewer_iterations():
    iterations = [solve(hard(), Stopping(t)).iterations for t in (1e-1, 1e-4, 1e-7)]
    assert iterations == sorted(iterations)
    assert iterations[0] < iterations[-1]


# The bound near the optimum


def test_an_error_in_the_gram_costs_the_bound_its_square():
    problem = hard()
    found = solve(problem, Stopping(1e-9))
    rng = np.random.default_rng(0)
    wrong = rng.standard_normal(found.gram.shape)
    wrong = np.where(problem.same_class, 0.0, wrong + wrong.T) * np.linalg.eigvalsh(found.gram)[0] / 20
    losses = [1 - lower_bound(problem, found.gram + size * wrong) / found.loss for size in (1e-1, 1e-2)]
    assert 0 < losses[1] < losses[0] / 30  # a tenth of the error; without the raised diagonal a tenth of the loss


# Start


def test_start_from_the_solution_is_soon_over():
    problem = hard()
    cold = solve(problem, Stopping(1e-5))
    warm = solve(problem, Stopping(1e-5), start=cold.gram)
    assert warm.status == "optimal"
    assert warm.iterations <= 10 < cold.iterations


def test_start_is_made_feasible():
    problem = hard()
    C = np.tril(np.ones((problem.size, problem.size)))
    found = solve(problem, start=C.T @ C)
    assert found.status == "optimal"
    assert_feasible(problem, found)


@pytest.mark.parametrize("start", [np.eye(3), np.full((24, 24), np.nan), np.zeros((24, 24)), -np.eye(24)])
def test_bad_starts_are_refused(start):
    with pytest.raises(ProblemError, match=r"start must be finite with shape \(24, 24\) and a positive diagonal"):
        solve(hard(), start=start)
