"""The lower bound is below every loss, below the semidefinite program, and tight at the optimum."""

from __future__ import annotations

import numpy as np
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from mfdl.testing import encoders, factorization_problems, optimal_loss_reference
from mfdl_solvers import FactorizationProblem, Stopping, lower_bound, solve


def unit_gram(problem, C):
    X = C.T @ C
    return X / problem.sensitivity_squared(X)


@examples(300)
@given(problem=factorization_problems(), data=st.data(), ridge=st.sampled_from([0.0, 1e-10, 1e-3, 10.0]))
def test_never_above_the_loss_of_any_encoder_whatever_the_dual_is_made_from(problem, data, ridge):
    X, other = (data.draw(encoders(size=problem.size)) for _ in range(2))
    dual_from = problem.error_gram + ridge * np.eye(problem.size) if ridge else None
    bound = lower_bound(problem, unit_gram(problem, X), dual_from=dual_from)
    assert 0 <= bound <= min(problem.loss(unit_gram(problem, C)) for C in (X, other))


@examples(40)
@given(problem=factorization_problems(max_size=5, ridges=(1.0, 1e-2)), data=st.data())
def test_never_above_the_optimum_of_the_semidefinite_program(problem, data):
    C = data.draw(encoders(size=problem.size))
    optimum = optimal_loss_reference(problem)
    assert lower_bound(problem, unit_gram(problem, C)) <= optimum * (1 + 1e-6)  # the program's own accuracy


@examples(40)
@given(problem=factorization_problems(max_size=5, ridges=(1.0, 1e-2)))
def test_zeros_within_classes_lose_nothing_against_the_exact_sensitivity(problem):
    restricted = optimal_loss_reference(problem)
    unrestricted = optimal_loss_reference(problem, restricted=False)
    assert_allclose(restricted, unrestricted, rtol=1e-5)  # two runs of an interior-point solver


@examples(60)
@given(problem=factorization_problems(ridges=(1.0, 1e-2)))
def test_tight_at_the_optimum(problem):
    found = solve(problem, Stopping(1e-7))
    assert found.status == "optimal"
    # at least as tight as what the solver reports, from its own point
    assert lower_bound(problem, found.gram) >= found.loss * (1 - 1e-4)


def test_by_hand_for_two_indices():
    # H = I, X = I, two classes: V = I, w = 2, trace norm 2, bound 2 = loss; one class: w = 1, bound 4 at X = I / 2
    apart = FactorizationProblem(np.eye(2), np.array([0, 1]))
    assert_allclose(lower_bound(apart, np.eye(2)), 2.0)
    together = FactorizationProblem(np.eye(2), np.array([0, 0]))
    assert_allclose(lower_bound(together, np.eye(2) / 2), 4.0)
    assert_allclose(together.loss(np.eye(2) / 2), 4.0)


def test_a_bad_gram_still_gives_a_valid_bound():
    rng = np.random.default_rng(0)
    B = rng.standard_normal((6, 6))
    problem = FactorizationProblem(B.T @ B, np.arange(6) % 2)
    optimum = solve(problem, Stopping(1e-8)).loss
    for exponent in range(0, 13, 3):
        Q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
        X = Q @ np.diag(np.logspace(-exponent, 0, 6)) @ Q.T
        assert lower_bound(problem, (X + X.T) / 2) <= optimum * (1 + 1e-12)
