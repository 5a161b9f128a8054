"""The problem whose classes are single indices: one weight per index, one singular value decomposition per step.

minimise tr(H X^-1) over diag X <= 1 is problem (9) of CorN-DSGD (arXiv:2501.14644v2; X = R^-1 / r, H = W^T W) and
single participation. Its dual has one weight v_i > 0 per index, with H = L L^T:

    maximise  ||V^1/2 L||_*^2 / sum(v),    V = diag(v).

The singular values s and left vectors Q of V^1/2 L give, at any v, the bound and X(v) = V^-1/2 Q diag(s) Q^T V^-1/2,
the X that solves X V X = H; its diagonal d is the slope of ||V^1/2 L||_* in v, times two. At the optimum d = 1.
Scaling rows and columns of X(v) by d^-1/2 makes it feasible, with an objective above the bound by second order in d -
1.

Plain step: v <- v d^2. It never lowers the bound. In u = sqrt(v) the trace norm is convex, so for every u'

    ||diag(u') L||_* >= sum_i u'_i u_i d_i,

and of all u' of one length the right side is largest for u' ~ u d. The steps are extrapolated (Anderson, in log v).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.linalg

from .arithmetic import blas_threads
from .certificate import Best, smallest_ridge, target, weights_bound
from .iterations import ROUNDING, ExtrapolatedPath
from .problem import USUAL, Array, Factorization, FactorizationProblem, ProblemError, Stopping

IDLE = 20  # steps without gain after which plain steps are taken until one gains: extrapolations may run in a circle
PATIENCE, GAIN = 200, 0.01  # the search ends after this many steps that gained less: of the gap; of the tolerance


def solve(problem: FactorizationProblem, stopping: Stopping = USUAL) -> Factorization:
    """Minimises tr(H X^-1) subject to diag X <= 1 to a certified relative gap.

    Args: stopping: wanted gap, and singular value decompositions after the first.
    Returns: a Factorization with diag X = 1, "stopped" at the limit or where rounding leaves nothing to gain; for a
        singular H see `certificate`.
    Raises: ProblemError: a class with two indices.
    Cost: O(n^3) per iteration; 5 to 10 of them for a regular H, tens to a hundred for one of low rank.
    Source: arXiv:2501.14644v2, problem (9), by its dual.
    """
    if problem.num_classes != problem.size:
        raise ProblemError(
            f"classes must hold one index each, got {problem.num_classes} classes for {problem.size} indices; "
            "use mfdl_solvers.solve, which takes any disjoint classes."
        )
    if problem.exponent:
        return solve(problem.normalised, stopping).shifted(problem.exponent)
    with blas_threads(problem.size):
        aim = target(problem, smallest_ridge(problem, stopping.tolerance))
        best = _BestPoint(problem, stopping)
        path = ExtrapolatedPath(np.zeros(problem.size), problem.size)
        iterations = 0
        point = SingletonPoint.at(np.exp(path.at), aim.root)
        while not (within := best.reached(point)) and iterations < stopping.max_iterations and not best.idle():
            if not path.go_back(point.dual):
                path.go_on(point.dual, point.step, point.weights, extrapolate=best.idle_steps < IDLE)
            point = SingletonPoint.at(np.exp(path.at), aim.root)
            iterations += 1
            stopping.tell(iterations, best.estimate, best.dual)
        if not within:
            best.certified()
        return best.finished(iterations, aim.rho)


@dataclasses.dataclass(frozen=True, eq=False)
class SingletonPoint:
    """What one decomposition gives at weights v: s, Q, and d = diag X(v), each of length n (Q: n x n)."""

    weights: Array
    singular_values: Array
    vectors: Array
    diagonal: Array

    @staticmethod
    def at(weights: Array, root: Array) -> SingletonPoint:
        # of V^1/2 L itself: the eigenvalues of V^1/2 H V^1/2 lose half the digits of small s, 1e-8 of the largest
        Q, s, _ = scipy.linalg.svd(np.sqrt(weights)[:, None] * root, overwrite_a=True, check_finite=False)
        return SingletonPoint(weights, s, Q, (Q**2) @ s / weights)

    @property
    def dual(self) -> float:
        """||V^1/2 L||_*^2 / sum(v)."""
        return float(self.singular_values.sum()) ** 2 / float(self.weights.sum())

    @property
    def step(self) -> Array:
        """The plain step of log v, v scaled to keep its sum: otherwise the scale, which means nothing, would drift."""
        return 2 * np.log(self.diagonal * (self.weights.sum() / self.singular_values.sum()))

    def objective(self, root: Array) -> float:
        """tr(H X^-1) of `gram`, H = root root^T, from the factors and without an inverse."""
        scaled = np.sqrt(self.weights * self.diagonal)[:, None] * root
        return float((((self.vectors / np.sqrt(self.singular_values)).T @ scaled) ** 2).sum())

    def gram(self) -> Array:
        """X(v) scaled to diag X = 1."""
        half = self.vectors * np.sqrt(self.singular_values) / np.sqrt(self.weights * self.diagonal)[:, None]
        X = half @ half.T
        np.fill_diagonal(X, 1.0)
        return X


class _BestPoint(Best):
    """The best point so far, from X = I, which is feasible for every H."""

    def __init__(self, problem: FactorizationProblem, stopping: Stopping) -> None:
        super().__init__(problem, stopping, np.eye(problem.size))
        self.point: SingletonPoint | None = None  # of the smallest estimated objective
        self.estimate = np.inf
        self.weights: Array | None = None  # of the largest bound on H + rho I
        self.dual = 0.0
        self.gap, self.settled_dual, self.idle_steps = np.inf, 0.0, 0

    def reached(self, point: SingletonPoint) -> bool:
        """Takes note of the point; True when the certified gap, on the problem's own H, is within the tolerance."""
        if (estimate := point.objective(self.problem.root)) < self.estimate:
            self.point, self.estimate = point, estimate
        if point.dual > self.dual:
            self.weights, self.dual = point.weights, point.dual
        gap = self.estimate / self.dual - 1
        # against a bound on H + rho I the objective on H may come out below: a gap < 0
        lower = not np.isfinite(self.gap) or gap < self.gap - GAIN * abs(self.gap) - ROUNDING
        higher = self.dual > self.settled_dual * (1 + max(GAIN * self.stopping.tolerance, ROUNDING))
        self.idle_steps = 0 if lower or higher else self.idle_steps + 1
        if lower or higher:
            self.gap, self.settled_dual = gap, self.dual
        # the bound on H is below that on H + rho I, and takes another decomposition: only when it may be the last
        return gap <= self.stopping.tolerance and self.certified()

    def idle(self) -> bool:
        """No gain for so long that rounding or a very slow rate must be the reason."""
        return self.idle_steps >= PATIENCE

    def certified(self) -> bool:
        """The best point as an X and a bound on H; True when their gap is within the tolerance."""
        if self.point is not None and self.weights is not None:
            self.offer(self.point.gram(), weights_bound(self.problem, self.weights))
        return self.within_tolerance
