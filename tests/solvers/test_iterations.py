"""L-BFGS on functions with known minima, with a domain, and with nothing left to gain."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from mfdl_solvers.iterations import minimise, two_loops


def never(iteration, x, value, gradient):
    return False


def flat(iteration, x, value, gradient):
    return float(np.abs(gradient).max()) < 1e-9


@settings(deadline=None)
@given(size=st.integers(1, 8), seed=st.integers(0, 999))
def test_quadratic_reaches_its_minimum(size, seed):
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((size, size))
    A, b = B.T @ B + np.eye(size), rng.standard_normal(size)
    minimum = minimise(lambda x: (x @ A @ x / 2 - b @ x, A @ x - b), np.ones(size), stop=flat, max_iterations=1000)
    assert_allclose(minimum.point, np.linalg.solve(A, b), atol=1e-7)  # gradient 1e-9 or the floor of the value
    assert minimum.value == pytest.approx(minimum.point @ A @ minimum.point / 2 - b @ minimum.point, abs=1e-12)


def test_rosenbrock():
    def f(x):
        a, b = 1 - x[0], x[1] - x[0] ** 2
        return a * a + 100 * b * b, np.array([-2 * a - 400 * x[0] * b, 200 * b])

    minimum = minimise(f, np.array([-1.2, 1.0]), stop=flat, max_iterations=500)
    assert minimum.stopped_by_rule
    assert_allclose(minimum.point, [1, 1], atol=1e-6)


def test_an_open_domain_is_never_left():
    # sum(w / x + x) has its minimum at sqrt(w), close to the edge of x > 0
    w = np.array([1e-6, 1.0, 100.0])
    seen = []

    def f(x):
        if (x <= 0).any():
            return np.inf, x
        seen.append(x)
        return float((w / x + x).sum()), 1 - w / x**2

    minimum = minimise(f, np.full(3, 0.5), stop=flat, max_iterations=2000)
    assert_allclose(minimum.point, np.sqrt(w), rtol=1e-3)
    assert (np.array(seen) > 0).all()


def test_values_never_rise():
    values = []

    def record(iteration, x, value, gradient):
        values.append(value)
        return False

    minimise(lambda x: (float((x**4).sum()), 4 * x**3), np.array([3.0, -2.0]), stop=record, max_iterations=60)
    assert (np.diff(values) <= 0).all()


def test_the_limit_and_the_rule():
    def f(x):
        return float(x @ x), 2 * x

    limited = minimise(f, np.ones(3), stop=never, max_iterations=2)
    assert limited.iterations <= 2
    assert not limited.stopped_by_rule
    at_once = minimise(f, np.ones(3), stop=lambda *_: True, max_iterations=5)
    assert at_once.iterations == 0
    assert at_once.stopped_by_rule
    assert_allclose(at_once.point, np.ones(3))


def test_a_start_at_the_minimum_ends_at_once():
    minimum = minimise(lambda x: (0.0, np.zeros_like(x)), np.ones(2), stop=never, max_iterations=100)
    assert minimum.iterations == 0
    assert not minimum.stopped_by_rule


def test_a_wrong_gradient_ends_and_does_not_loop():
    minimum = minimise(lambda x: (float(x @ x), -2 * x), np.ones(2), stop=never, max_iterations=100)
    assert minimum.iterations < 100
    assert minimum.value == 2.0


def test_the_start_is_not_changed():
    start = np.ones(3)
    minimise(lambda x: (float(x @ x), 2 * x), start, stop=flat, max_iterations=50)
    assert_allclose(start, 1)


@settings(deadline=None)
@given(size=st.integers(1, 6), count=st.integers(1, 5), seed=st.integers(0, 999))
def test_two_loops_are_the_inverse_bfgs_matrix(size, count, seed):
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((size, size))
    A = B.T @ B + np.eye(size)
    steps = rng.standard_normal((count, size))
    pairs = deque((s, A @ s, float(s @ A @ s)) for s in steps)
    _, y, curvature = pairs[-1]
    inverse = curvature / float(y @ y) * np.eye(size)
    for s, y, curvature in pairs:
        left = np.eye(size) - np.outer(s, y) / curvature
        inverse = left @ inverse @ left.T + np.outer(s, s) / curvature
    g = rng.standard_normal(size)
    scale = np.abs(inverse).max()
    assert_allclose(two_loops(g, pairs, g), inverse @ g, atol=1e-9 * scale)
    assert_allclose(two_loops(y, pairs, g), steps[-1], atol=1e-9 * scale)  # the secant equation of the last pair
