"""Steps that never lower a bound, extrapolated: Anderson's combination, dropped where it lowers the bound too far."""

from __future__ import annotations

from collections import deque

import numpy as np

from .problem import Array

MEMORY = 10  # steps that are combined
DAMPING = 1e-8  # relative, in the small least-squares problem of the extrapolation
LARGEST_CHANGE = 3.0  # of a coordinate in one extrapolated step; coordinates are logarithms, or correlations
RECENT = 10  # an extrapolated step may lower the bound, not below the last ten: vanishing weights need the freedom
ROUNDING = 1e-15  # relative: what counts as equal


class Path:
    """The next point: Anderson's extrapolation of the plain steps, or the plain step it was made from.

    A point is a vector whose first `logs` entries are logarithms of weights of which only the ratios matter.
    """

    def __init__(self, start: Array, logs: int) -> None:
        self.at, self.logs = start, logs
        self.plain: Array | None = None  # what to fall back to; None after a plain step
        self.levels: deque[float] = deque(maxlen=RECENT)
        self.points: deque[Array] = deque(maxlen=MEMORY)
        self.steps: deque[Array] = deque(maxlen=MEMORY)

    def go_back(self, level: float) -> bool:
        """Where an extrapolation came out too low (nan: outside the domain), to its plain step instead; else False."""
        if self.plain is None or level >= min(self.levels) * (1 - ROUNDING):
            return False
        self.at, self.plain = self.plain, None
        self._forget()
        return True

    def go_on(self, level: float, step: Array, weights: Array, *, extrapolate: bool = True) -> None:
        """To the next point, given the bound and the plain step at this one, and what each coordinate counts."""
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
