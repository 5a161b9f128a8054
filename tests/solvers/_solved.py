"""Problems for the door of both dense methods, and what every answer must satisfy."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mfdl import gossip
from mfdl.testing import factorization_problems
from mfdl_solvers import FactorizationProblem


def every_index_alone(problem):
    return FactorizationProblem(problem.error_gram, np.arange(problem.size))


@st.composite
def one_of_both(draw, max_size=8, ridges=(1.0, 1e-2, 1e-6, 0.0)):
    """H of integers and of any rank plus a ridge; classes as they come, or every index a class of its own."""
    drawn = draw(factorization_problems(max_size, ridges=ridges))
    return every_index_alone(drawn) if draw(st.booleans()) else drawn


def averaging(graph, class_size=1):
    """H = W^T W of Metropolis-Hastings weights, nodes in classes of one size."""
    W = gossip.metropolis_hastings(graph).dense()
    return FactorizationProblem(W.T @ W, np.arange(len(W)) // class_size)


def assert_feasible(problem, solved):
    C, X = solved.encoder, solved.gram
    assert_array_equal(np.triu(C, 1), 0)  # causal, exactly
    assert (np.diagonal(C) > 0).all()
    assert_allclose(C.T @ C, X, atol=1e-13)
    assert_allclose((C**2).sum(axis=0), np.diagonal(X), rtol=1e-12)  # column norms: the orientation
    within = problem.same_class & ~np.eye(problem.size, dtype=bool)
    assert_array_equal(X[within], 0)
    assert_array_equal(X, X.T)
    assert_allclose(np.bincount(problem.classes, weights=np.diagonal(X)), 1, rtol=1e-12)
    assert_allclose(solved.sensitivity, 1, rtol=1e-12)
    if problem.num_classes == problem.size:
        assert_array_equal(np.diagonal(X), 1.0)
        assert solved.sensitivity == 1.0
    assert_allclose(problem.objective(C.T @ C), solved.objective, rtol=1e-6)  # C^T C rounds nearly singular X
    assert solved.lower_bound <= solved.objective < np.inf
