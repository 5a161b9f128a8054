"""Autodiff: agrees with the dense solver within the certificates, keeps families in shape, and takes a user's own."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import each, given, refuses

from mfdl import Dynamics, gossip
from mfdl.objective import NoiseObjective
from mfdl.testing import factorization_problems
from mfdl_solvers import FactorizationProblem, NotConverged, ProblemError, Stopping, autodiff, solve
from mfdl_solvers.autodiff import Parametrisation, banded, lower_triangular, toeplitz

SIZE = 8


@pytest.fixture(scope="module")
def problem():
    H = NoiseObjective(Dynamics(gossip.uniform("florentine")), SIZE).over_steps()
    return FactorizationProblem(H, np.arange(SIZE) % 4)


@pytest.fixture(scope="module")
def best(problem):
    return solve(problem, Stopping(1e-7))


def assert_valid(problem, solved):
    C = solved.encoder
    assert_array_equal(np.triu(C, 1), 0)
    assert (np.diagonal(C) > 0).all()
    assert_allclose(C.T @ C, solved.gram, atol=1e-12)
    assert_allclose(solved.sensitivity, 1, rtol=1e-12)
    assert_allclose(problem.objective(solved.gram), solved.objective, rtol=1e-12)
    assert solved.lower_bound <= solved.objective


@given(6, problem=factorization_problems(max_size=4, ridges=(1.0, 1e-1)))
def test_agrees_with_the_dense_solver_within_the_certificates(problem):
    dense, auto = solve(problem, Stopping(1e-5)), autodiff.solve(problem, stopping=Stopping(1e-4), device="cpu")
    assert_valid(problem, auto)
    assert dense.status == auto.status == "optimal"
    assert auto.objective >= dense.lower_bound
    assert dense.objective >= auto.lower_bound
    assert_allclose(auto.objective, dense.objective, rtol=2e-4)


def test_agrees_on_a_graph(problem, best):
    auto = autodiff.solve(problem, stopping=Stopping(1e-5), device="cpu")
    assert best.lower_bound <= auto.objective <= best.objective * (1 + 2e-5)
    within = problem.same_class & ~np.eye(SIZE, dtype=bool)
    assert_allclose(auto.gram[within], 0, atol=1e-15)
    family = lower_triangular(problem)  # it starts where the dense solver does
    C = family.encoder(torch.as_tensor(family.start)).numpy()
    assert_allclose(C.T @ C, np.eye(SIZE) / 2, atol=1e-15)


@pytest.mark.parametrize("bands", [1, 4, SIZE])
def test_banded_keeps_its_bands(problem, best, bands):
    solved = autodiff.solve(problem, banded(SIZE, bands), device="cpu")
    assert_valid(problem, solved)
    # re-encoded from X: the causal encoder is unique, so the bands come back up to rounding
    assert_allclose(np.tril(solved.encoder, -bands), 0, atol=1e-12)
    assert solved.status in ("stationary", "optimal")
    assert solved.objective >= best.lower_bound
    assert solved.lower_bound <= best.objective


def test_more_bands_cost_less(problem):
    objectives = [autodiff.solve(problem, banded(SIZE, bands), device="cpu").objective for bands in (1, 2, 4)]
    assert objectives == sorted(objectives, reverse=True)
    # up to the period, bands stay within the classes' zeros; the identity is one band
    assert objectives[0] <= problem.objective(np.eye(SIZE))
    # one band, diagonal X: class by class (sum sqrt H_tt)^2
    roots = np.sqrt(np.diagonal(problem.error_gram))
    assert_allclose(objectives[0], (np.bincount(problem.classes, weights=roots) ** 2).sum(), rtol=1e-5)


@pytest.mark.parametrize("bands", [None, 1, 3, 50])
def test_toeplitz_stays_toeplitz(problem, best, bands):
    solved = autodiff.solve(problem, toeplitz(SIZE, bands), device="cpu")
    assert_valid(problem, solved)
    for lag in range(SIZE):
        diagonal = np.diagonal(solved.encoder, -lag)
        assert_allclose(diagonal, diagonal[0], atol=1e-10)
        if bands is not None and lag >= bands:
            assert_allclose(diagonal, 0, atol=1e-12)
    assert solved.status in ("stationary", "optimal")
    assert solved.objective >= best.lower_bound
    assert solved.objective <= problem.objective(np.eye(SIZE)) * (1 + 1e-12)
    if bands == 1:
        assert (solved.status, solved.iterations) == ("stationary", 0)
        assert_allclose(solved.encoder, np.eye(SIZE) / np.sqrt(2), rtol=1e-14)


# A user's own
def two_parameters() -> Parametrisation:
    """C[t, s] = a^(t - s) + b below the diagonal, ones on it."""
    lag = torch.as_tensor(np.subtract.outer(np.arange(SIZE), np.arange(SIZE)))

    def encoder(theta):
        below = torch.where(lag > 0, theta[0] ** lag.clamp(min=1) + theta[1], torch.zeros_like(lag, dtype=theta.dtype))
        return below + torch.eye(SIZE, dtype=theta.dtype)

    return Parametrisation(encoder, np.array([0.1, 0.0]))


def test_a_users_callable_reaches_a_stationary_point(problem, best):
    solved = autodiff.solve(problem, two_parameters(), device="cpu")
    assert solved.status == "stationary"
    assert_valid(problem, solved)
    assert best.objective < solved.objective

    def objective(a, b):
        C = two_parameters().encoder(torch.tensor([a, b], dtype=torch.float64)).numpy()
        return problem.objective(C.T @ C)

    grid = min(objective(a, b) for a in np.linspace(0, 0.95, 39) for b in np.linspace(-0.2, 0.2, 21))
    assert solved.objective <= grid * (1 + 1e-3)


def test_a_penalty_is_obeyed_and_not_reported(problem, best):
    free = autodiff.solve(problem, device="cpu")
    weight = float(100 * best.objective)
    solved = autodiff.solve(problem, penalty=lambda C: weight * (torch.tril(C, -1) ** 2).sum(), device="cpu")
    assert solved.status == "stationary"
    assert_valid(problem, solved)
    assert np.abs(np.tril(solved.encoder, -1)).max() < 0.2 * np.abs(np.tril(free.encoder, -1)).max()
    assert solved.objective > free.objective * 1.01


def test_a_penalised_run_does_not_claim_the_optimum(problem, best):
    solved = autodiff.solve(problem, penalty=lambda C: 0.0 * C.sum(), device="cpu")
    assert solved.status == "stationary"
    assert_allclose(solved.objective, best.objective, rtol=1e-4)
    # nor an end: a start within tolerance says nothing about the penalised objective
    at_once = {"stopping": Stopping(1e3, 1), "device": "cpu"}
    early = autodiff.solve(problem, penalty=lambda C: 1e3 * (torch.tril(C, -1) ** 2).sum(), **at_once)
    assert early.gap <= 1e3
    assert early.status == "stopped"


# Refusals and the limit
@pytest.mark.parametrize("family", [None, banded(SIZE, 3), toeplitz(SIZE)], ids=["full", "banded", "toeplitz"])
def test_a_stopped_run_says_so(problem, best, family):
    stopped = autodiff.solve(problem, family, stopping=Stopping(max_iterations=1), device="cpu")
    assert stopped.status == "stopped"
    assert_valid(problem, stopped)
    assert stopped.lower_bound <= best.objective
    assert stopped.objective >= best.lower_bound
    refuses("after 1 iterations", stopped.require_converged, 1e-4, error=NotConverged)


@each(
    "encoder, message",
    (lambda theta: torch.zeros(SIZE, SIZE, dtype=theta.dtype), "finite, lower-triangular, invertible C"),
    (lambda theta: torch.full((SIZE, SIZE), torch.nan, dtype=theta.dtype), "finite, lower-triangular"),
    (lambda theta: torch.eye(SIZE, dtype=theta.dtype) + torch.ones(SIZE, SIZE) * 0.1, "lower-triangular"),
    (banded(3, 1).encoder, r"encoder\(theta\) must have shape \(8, 8\), got \(3, 3\)"),
    ids=["zero", "nan", "not lower triangular", "another size"],
)
def test_a_start_that_is_no_encoder_is_refused(problem, encoder, message):
    family = Parametrisation(encoder, np.ones(3))
    refuses(message, lambda: autodiff.solve(problem, family, device="cpu"), error=ProblemError)
    for make in (banded, toeplitz):
        refuses("bands must be an integer >= 1, got 0", make, 4, 0, error=ProblemError)


OTHER = torch.ones(1, dtype=torch.float64, requires_grad=True)


def triangular_at_the_start_alone(theta):
    upper = torch.zeros(SIZE, SIZE, dtype=theta.dtype)
    upper[0, 1] = 1.0
    below = torch.tril(torch.ones(SIZE, SIZE, dtype=theta.dtype), -1)
    return torch.eye(SIZE, dtype=theta.dtype) + (theta[0] - 1) * (below + upper)


EYE = torch.eye(SIZE, dtype=torch.float64)


@each(
    "encoder, why",
    (lambda theta: np.eye(SIZE), "must return a torch tensor, got ndarray; .*torch operations on theta"),
    (lambda theta: EYE * float(theta[0].detach()), "no gradient with respect to theta.*torch operations on theta"),
    (lambda theta: EYE * OTHER, "no gradient with respect to theta"),
    (lambda theta: EYE * theta[1], r"fails at theta of shape \(1,\): IndexError.*start must hold"),
    (lambda theta: EYE.float() * theta[0].float(), "must be of torch.float64, got torch.float32"),
    (triangular_at_the_start_alone, r"lower-triangular at every theta, got C\[0, 1\] = .*torch.tril"),
)
def test_families_that_are_no_functions_of_theta_to_causal_encoders_are_refused(problem, encoder, why):
    family = Parametrisation(encoder, np.ones(1))
    refuses(why, lambda: autodiff.solve(problem, family, device="cpu"), error=ProblemError)
