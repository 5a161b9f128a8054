"""The dual over classes: its bound is below the exact one, its steps never lose, and both methods end at one loss."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mfdl import gossip
from mfdl.dynamics import Dynamics
from mfdl.objective import NoiseObjective
from mfdl.testing import factorization_problems
from mfdl_solvers import FactorizationProblem, Stopping, class_dual, solve
from mfdl_solvers.class_dual import ClassBlocks


def of_gossip(steps, period):
    H = NoiseObjective(Dynamics(gossip.uniform("star:n=6")), steps).over_steps()
    return FactorizationProblem(H, np.arange(steps) % period)


@st.composite
def points(draw, ridges=(1.0, 1e-2), max_size=7):
    """A problem and a vector of the dual: random factors with equal row lengths within a class."""
    problem = draw(factorization_problems(max_size, ridges=ridges))
    blocks = ClassBlocks(problem)
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    duals = []
    for _, count, size in blocks.groups:
        rows = rng.standard_normal((count, size, size)) + draw(st.sampled_from([0.0, 3.0]))
        rows /= np.linalg.norm(rows, axis=2)[:, :, None] / np.exp(rng.standard_normal((count, 1, 1)))
        duals.append(rows @ rows.transpose(0, 2, 1) + 0.1 * np.eye(size))
    return problem, blocks, blocks.vector(duals)


@examples(60)
@given(case=points(ridges=(1.0, 1e-2, 1e-9), max_size=5))
def test_the_rounded_bound_is_below_the_exact_one(case):
    problem, blocks, vector = case
    point = blocks.point(vector)
    with mpmath.workdps(60):
        W = mpmath.zeros(problem.size)
        for (rows, count, size), factor in zip(blocks.groups, point.factors, strict=True):
            for c, i, j in np.ndindex(count, size, size):
                W[rows.start + c * size + i, rows.start + c * size + j] = mpmath.mpf(float(factor[c, i, j]))
        squares = mpmath.eigsy(W.T * mpmath.matrix(blocks.H.tolist()) * W, eigvals_only=True)
        trace_norm = sum(mpmath.sqrt(max(square, mpmath.mpf(0))) for square in squares)
        V = W * W.T
        names = problem.classes[blocks.order]
        weights = sum(max(V[int(i), int(i)] for i in np.flatnonzero(names == c)) for c in range(problem.num_classes))
        exact = trace_norm**2 / weights
        assert 0 <= point.lower_bound() <= exact
    assert point.bound == pytest.approx(float(exact), rel=1e-3)
    if problem.eigenvalues[0] > 1e-4 * problem.eigenvalues[-1]:
        assert point.lower_bound() >= point.bound * (1 - 1e-8)


@examples(100)
@given(case=points())
def test_a_plain_step_gains_at_least_what_it_promises(case):
    _, blocks, vector = case
    point = blocks.point(vector)
    assert point.promise >= -1e-12
    after = blocks.point(point.plain)
    assert after.bound >= point.bound * (1 + point.promise) * (1 - 1e-9)


@examples(60)
@given(case=points())
def test_vectors_and_factors_are_each_others_inverse_and_the_gram_is_feasible(case):
    problem, blocks, vector = case
    point = blocks.point(vector)
    products = [factor @ factor.transpose(0, 2, 1) for factor in point.factors]
    assert_allclose(blocks.vector(products), vector, atol=1e-10)
    X = point.gram()
    assert_array_equal(X, X.T)
    assert_array_equal(X[problem.same_class & ~np.eye(problem.size, dtype=bool)], 0)
    assert_allclose(np.bincount(problem.classes, weights=np.diagonal(X)), 1, rtol=1e-12)


@examples(40)
@given(problem=factorization_problems(ridges=(1.0, 1e-2)))
def test_descent_on_the_gram_ends_at_the_same_loss(problem):
    with pytest.MonkeyPatch.context() as patch:
        here = solve(problem, Stopping(1e-6))
        patch.setattr(class_dual, "search", lambda *_: 0)  # leaves all to L-BFGS on X
        there = solve(problem, Stopping(1e-6))
    assert here.status == there.status == "optimal"
    assert_allclose(there.loss, here.loss, rtol=2e-6)
    assert here.lower_bound <= there.loss
    assert there.lower_bound <= here.loss


@pytest.mark.parametrize("period", [8, 24, 32])
def test_a_few_decompositions_are_enough(period):
    problem = of_gossip(96, period)
    assert solve(problem, Stopping(1e-4)).iterations <= 6  # L-BFGS takes 40 to 60
    assert solve(problem, Stopping(1e-7)).iterations <= 30


def test_classes_of_unlike_sizes_in_any_order():
    H = of_gossip(24, 5).error_gram
    labels = np.random.default_rng(3).permutation([0, 1, 1, 2, 2, 2] + [3] * 9 + [4] * 9)
    found = solve(FactorizationProblem(H, labels), Stopping(1e-6))
    assert found.status == "optimal"
    assert found.iterations <= 40


def test_where_the_dual_stops_to_gain_the_other_method_goes_on(monkeypatch):
    monkeypatch.setattr(class_dual, "PATIENCE", 1)
    monkeypatch.setattr(class_dual, "GAIN", 1e-9)
    found = solve(of_gossip(48, 8), Stopping(1e-6))
    assert found.status == "optimal"
    assert found.iterations > 5


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_decompositions_by_torch_end_at_the_same_encoder(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    problem = of_gossip(48, 8)
    here, there = solve(problem, Stopping(1e-6)), solve(problem, Stopping(1e-6), device=device)
    assert here.iterations == there.iterations
    assert there.status == "optimal"
    assert_allclose(there.encoder, here.encoder, atol=1e-8)
    assert_allclose([there.loss, there.lower_bound], [here.loss, here.lower_bound], rtol=1e-12)
