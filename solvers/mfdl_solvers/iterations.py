"""Two iterations that the solvers share: L-BFGS, and steps that never lower a bound, extrapolated.

L-BFGS minimises a smooth function on an open domain: a point outside it has the value infinity. The step length starts
at 1 and is cut by 4 until the value is finite and falls enough; the line search of scipy extrapolates through infinite
values, so it is not used. Extrapolation is that of Anderson, dropped where it lowers the bound too far.
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
EXTRAPOLATION_MEMORY = 10  # steps that are combined
DAMPING = 1e-8  # relative, in the small least-squares problem of the extrapolation
LARGEST_CHANGE = 3.0  # of a coordinate in one extrapolated step; coordinates are logarithms, or correlations
RECENT = 10  # an extrapolated step may lower the bound, not below the last ten: vanishing weights need the freedom
ROUNDING = 1e-15  # relative: what counts as equal


@dataclasses.dataclass(frozen=True, eq=False)
class Minimum:
    """Where the search ended, and whether `stop` ended it."""

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
    """The best point met for a function of a flat vector.

    Args:
        value_and_gradient: x -> (value, gradient); the value is inf outside the domain (gradient unused).
        start: inside the domain.
        stop: called before each iteration with (iteration, x, value, gradient); True ends the search. Else
            `max_iterations` or the floating-point floor does (`stopped_by_rule` False).
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


class ExtrapolatedPath:
    """The next point: Anderson's extrapolation of the plain steps, or the plain step it was made from.

    A point is a vector whose first `logs` entries are logarithms of weights of which only the ratios matter.
    """

    def __init__(self, start: Array, logs: int) -> None:
        self.at, self.logs = start, logs
        self.plain: Array | None = None  # what to fall back to; None after a plain step
        self.levels: deque[float] = deque(maxlen=RECENT)
        self.points: deque[Array] = deque(maxlen=EXTRAPOLATION_MEMORY)
        self.steps: deque[Array] = deque(maxlen=EXTRAPOLATION_MEMORY)

    def go_back(self, level: float) -> bool:
        """Returns to the plain step if an extrapolation came out too low (nan: outside the domain); else False."""
        if self.plain is None or level >= min(self.levels) * (1 - ROUNDING):
            return False
        self.at, self.plain = self.plain, None
        self._forget()
        return True

    def go_on(self, level: float, step: Array, weights: Array, *, extrapolate: bool = True) -> None:
        """Moves on, given the bound and the plain step at this point, and the weight of each coordinate."""
        self.levels.append(level)
        self.points.append(self.at)
        self.steps.append(step)
        plain = self._normalised(self.at + step)
        if not extrapolate or len(self.points) == 1:
            self._forget()
            self.at, self.plain = plain, None
        else:
            change = np.clip(self._extrapolated(weights), -LARGEST_CHANGE, LARGEST_CHANGE)
            self.at, self.plain = self._normalised(self.at + change), plain

    def _forget(self) -> None:
        """Drops all past points but the latest."""
        while len(self.points) > 1:
            self.points.popleft()
            self.steps.popleft()

    def _extrapolated(self, weights: Array) -> Array:
        """The combination of past steps whose remainder is smallest."""
        moved, changed = np.diff(np.array(self.points), axis=0), np.diff(np.array(self.steps), axis=0)
        half = np.sqrt(weights)
        normal = (changed * half) @ (changed * half).T
        damping = DAMPING * np.trace(normal) + np.finfo(np.float64).tiny
        mix = np.linalg.solve(normal + damping * np.eye(len(normal)), (changed * half) @ (self.steps[-1] * half))
        return self.steps[-1] - mix @ (moved + changed)

    def _normalised(self, point: Array) -> Array:
        """The same point with the largest weight equal to 1."""
        return np.concatenate([point[: self.logs] - point[: self.logs].max(), point[self.logs :]])
