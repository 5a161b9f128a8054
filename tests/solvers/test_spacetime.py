"""The dense problem over time x nodes: its classes, its size limit, and the reference value."""

from __future__ import annotations

import re

import numpy as np
import pytest
from _modes import FLORENTINE, dense_gram, dense_loss, dense_problem, graph_problem, mode_problems
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mfdl.noise.joint import MAX_JOINT_SIZE
from mfdl.testing import optimal_loss_reference
from mfdl_solvers import ProblemError, joint_encoder


def test_the_solver_takes_what_the_library_forms():
    # `mfdl_solvers` imports nothing of mfdl, so the number stands twice
    assert joint_encoder.MAX_SIZE == MAX_JOINT_SIZE


@given(classes=st.lists(st.integers(-2, 3), min_size=1, max_size=6), n=st.integers(1, 4))
def test_classes_are_one_for_each_node_and_class_of_steps(classes, n):
    labels = joint_encoder.joint_classes(classes, n)
    for s, a in enumerate(classes):
        for t, b in enumerate(classes):
            for u in range(n):
                for w in range(n):
                    assert (labels[s * n + u] == labels[t * n + w]) == (a == b and u == w)


@examples(30)
@given(problem=mode_problems(ridges=(1.0, 1e-2), zero_modes=False))
def test_loss_is_that_of_the_gram_by_loops(problem):
    found = joint_encoder.solve_dense(dense_gram(problem), problem.classes, problem.num_nodes)
    assert found.status == "optimal"
    assert found.gap <= 1e-4
    assert_allclose(found.loss, dense_loss(problem, found.gram), rtol=1e-9)
    assert_array_equal(np.triu(found.encoder, 1), 0)
    assert_allclose(found.encoder.T @ found.encoder, found.gram, atol=1e-12)


@examples(10)
@given(problem=mode_problems(max_nodes=2, max_steps=3, ridges=(1.0,), zero_modes=False))
def test_agrees_with_the_semidefinite_program(problem):
    found = joint_encoder.solve_dense(dense_gram(problem), problem.classes, problem.num_nodes)
    assert_allclose(found.loss, optimal_loss_reference(dense_problem(problem)), rtol=2e-4)


@pytest.mark.slow
def test_florentine():
    problem = graph_problem(*FLORENTINE)
    found = joint_encoder.solve_dense(dense_gram(problem), problem.classes, problem.num_nodes)
    assert found.gap <= 1e-4
    assert found.lower_bound <= 1085.5275 * (1 + 1e-6)
    assert_allclose(found.loss, 1085.5275, rtol=1.1e-4)


@pytest.mark.parametrize(
    ("gram", "classes", "num_nodes", "message"),
    [
        (np.zeros((0, 0)), np.arange(2048), 3, "at most 4096 indices, got 2048 * 3 = 6144"),
        (np.eye(4), np.arange(2), 3, "shape (6, 6) for 2 steps and 3 nodes, got (4, 4)"),
        (np.eye(4), np.zeros(2), 2, "one integer label per step"),
        (np.eye(4), np.zeros((2, 1), dtype=int), 2, "one integer label per step"),
        (np.eye(4), np.arange(2), 0, "num_nodes must be at least 1"),
        (-np.eye(4), np.arange(2), 2, "positive semidefinite"),
    ],
)
def test_refused(gram, classes, num_nodes, message):
    with pytest.raises(ProblemError, match=re.escape(message)):
        joint_encoder.solve_dense(gram, classes, num_nodes)
