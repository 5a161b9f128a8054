"""L-BFGS for smooth functions on an open domain: a point outside it has the value infinity.

The step length starts at 1 and is cut by 4 until the value is finite and falls enough; scipy's line search
extrapolates through infinite values, so it is not used.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable

import numpy as np

from .problem import Array

SUFFICIENT_DECREASE = 1e-4
CUT = 0.25
MAX_CUTS = 30


@dataclasses.dataclass(frozen=True, eq=False)
class Minimum:
    """Where the search ended: point, value, iterations, and whether `stop` said so."""

    point: Array
    value: float
    iterations: int
    stopped_by_rule: bool


def minimise(
    value_and_gradient: Callable[[Array], tuple[float, Array]],
    start: Array,
    *,
    stop: Callable[[int, Array, float, Array], bool],
    max_iterations: int,
    memory: int = 10,
) -> Minimum:
    """Minimises a function of a flat vector.

    Args:
        value_and_gradient: x -> (value, gradient); the value is inf outside the domain (gradient unused).
        start: inside the domain.
        stop: called before each iteration with (iteration, x, value, gradient); True ends the search.
        max_iterations: hard limit.

    Returns: the best point; `stopped_by_rule` is False when the limit or the floating-point floor ended it.
    """
    x = start.copy()
    value, gradient = value_and_gradient(x)
    pairs: deque[tuple[Array, Array, float]] = deque(maxlen=memory)
    for iteration in range(max_iterations):
        if stop(iteration, x, value, gradient):
            return Minimum(x, value, iteration, True)
        direction = -two_loops(gradient, pairs, x)
        slope = float(direction @ gradient)
        if not slope < 0:
            if not pairs:
                return Minimum(x, value, iteration, False)
            pairs.clear()
            continue
        step = 1.0
        for _ in range(MAX_CUTS):
            candidate = x + step * direction
            new_value, new_gradient = value_and_gradient(candidate)
            # strictly less: below rounding the second test alone passes for a step that changes nothing
            if new_value < value and new_value <= value + SUFFICIENT_DECREASE * step * slope:
                break
            step *= CUT
        else:
            if not pairs:
                return Minimum(x, value, iteration, False)
            pairs.clear()  # a stale curvature estimate: try plain descent once before giving up
            continue
        s, y = candidate - x, new_gradient - gradient
        if (curvature := float(s @ y)) > 1e-14 * float(y @ y) ** 0.5 * float(s @ s) ** 0.5:
            pairs.append((s, y, curvature))
        x, value, gradient = candidate, new_value, new_gradient
    return Minimum(x, value, max_iterations, stop(max_iterations, x, value, gradient))


def two_loops(gradient: Array, pairs: deque[tuple[Array, Array, float]], x: Array) -> Array:
    """The L-BFGS inverse Hessian times the gradient."""
    q = gradient.copy()
    used = []
    for s, y, curvature in reversed(pairs):
        a = float(s @ q) / curvature
        q -= a * y
        used.append(a)
    if pairs:
        _, y, curvature = pairs[-1]
        q *= curvature / float(y @ y)
    else:  # a first step of a tenth of the size of x
        q *= 0.1 * max(float(np.linalg.norm(x)), 1e-8) / max(float(np.linalg.norm(gradient)), 1e-300)
    for (s, y, curvature), a in zip(pairs, reversed(used), strict=True):
        q += (a - float(y @ q) / curvature) * s
    return q
