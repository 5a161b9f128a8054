"""The dense solver: one door to every problem. Classes of single indices go to `singletons`; for the rest, L-BFGS on
X inside the affine set that keeps the sensitivity at one.

Within a class the off-diagonal entries of X may be zero without loss: at the optimum of that restricted
problem V = X^-1 H X^-1 vanishes off the restricted directions, so its class blocks have constant diagonal and
are positive semidefinite, i.e. dual feasible for the unrestricted problem, and the certificate is tight. What
is left is linear: X[s, t] = 0 for s != t in one class, and the diagonal sums to 1 on each class. The gradient
is -V projected on these directions; positive definiteness is kept by the line search.

A singular H is solved as H + rho I for falling rho (`ridge`), each from the solution before: L-BFGS is slow for an
ill-conditioned X, and at 1e-4 a large rho is often enough. Cost per iteration O(T^3), a few matrix products.
"""

from __future__ import annotations

import time

import numpy as np
import scipy.linalg

from . import singletons
from .certificate import finished, lower_bound
from .lbfgs import minimise
from .problem import USUAL, Array, Factorization, FactorizationProblem, ProblemError, Stopping, relative_gap
from .ridge import Target, falling_targets, notes
from .threads import ITERATION, blas_threads

CHECK_EVERY = 10  # iterations between certificates: one costs about as much as ten iterations
MEMORY, MEMORY_SINGULAR = 10, 20  # pairs of L-BFGS: twice as many save half the iterations, where H is singular
RIDGE_SHARE = 0.1  # of the gap on H: once the gap on H + rho I is below that share, a smaller rho is due


def solve(problem: FactorizationProblem, stopping: Stopping = USUAL, *, start: Array | None = None) -> Factorization:
    """Minimises tr(H X^-1) at unit sensitivity to a certified relative gap.

    Args:
        problem: H and classes.
        stopping: wanted gap and number of iterations.
        start: a feasible X to start from (its in-class off-diagonal is dropped, its diagonal rescaled); checked, but
            not used, when every class holds one index: that method takes a few steps from anywhere.

    Returns:
        A Factorization of sensitivity exactly 1 up to rounding; status "optimal" or "stopped". A singular H
        has no minimiser: X^-1 grows without bound on its kernel. Then H + rho I is solved instead, rho as small as the
        tolerance needs, with a note that names the largest noise eigenvalue; loss and lower bound are those of the H
        that was given. Float64 resolves rho down to 1e-16 of the largest eigenvalue of H, enough for a tolerance of
        1e-7 or so; X is then so ill-conditioned that a problem with large classes may stop earlier, and says so.
    """
    if problem.exponent:
        return solve(problem.normalised, stopping, start=start).shifted(problem.exponent)
    began = time.perf_counter()
    initial = _feasible(problem, start)
    if problem.num_classes == problem.size:
        return singletons.solve(problem, stopping)
    free = _FreeEntries(problem)
    best = _Best(problem, stopping, initial)
    iterations = 0
    with blas_threads(problem.size, single_up_to=ITERATION):
        x = free.vector(initial)
        for aim in falling_targets(problem, stopping.tolerance):
            stage = _Stage(free, aim, best)
            minimum = minimise(
                stage.value_and_gradient,
                x,
                stop=stage.is_over,
                max_iterations=stopping.max_iterations - iterations,
                memory=MEMORY_SINGULAR if aim.rho > 0 else MEMORY,
            )
            x, iterations = minimum.point, iterations + minimum.iterations
            if best.within_tolerance or iterations >= stopping.max_iterations:
                break
        best.update(free.matrix(x), aim)
        return finished(
            problem,
            best.gram,
            known_bound=best.bound,
            stopping=stopping,
            iterations=iterations,
            began=began,
            notes=notes(problem, aim.rho, best.gram),
        )


class _Best:
    """The best bound and the best X so far, both for the H that was given."""

    def __init__(self, problem: FactorizationProblem, stopping: Stopping, gram: Array) -> None:
        self.problem, self.stopping = problem, stopping
        self.gram, self.loss, self.bound = gram, problem.loss(gram), 0.0

    @property
    def gap(self) -> float:
        return relative_gap(self.loss, self.bound)

    @property
    def within_tolerance(self) -> bool:
        return self.stopping.reached(self.loss, self.bound)

    def update(self, gram: Array, aim: Target) -> None:
        self.bound = max(self.bound, lower_bound(self.problem, gram, dual_from=aim.gram))
        if (loss := self.problem.loss(gram)) < self.loss:
            self.gram, self.loss = gram, loss


class _Stage:
    """One H + rho I: its value and gradient in the free entries, and when to leave it."""

    def __init__(self, free: _FreeEntries, aim: Target, best: _Best) -> None:
        self.free, self.aim, self.best = free, aim, best
        self.root = np.asfortranarray(aim.root)
        self.own_bound = 0.0

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """tr(H X^-1) = ||M^-1 R||_F^2 and -V = -(X^-1 R)(X^-1 R)^T, X = M M^T, H = R R^T.

        Triangular solves with the root keep digits that a product with X^-1 loses when X is ill-conditioned, in the
        same time.
        """
        factor, info = scipy.linalg.lapack.dpotrf(self.free.matrix(x), lower=1)
        if info != 0:
            return np.inf, x
        whitened, _ = scipy.linalg.lapack.dtrtrs(factor, self.root, lower=1)
        solved, _ = scipy.linalg.lapack.dtrtrs(factor, whitened, lower=1, trans=1)
        return float((whitened**2).sum()), -self.free.projected(solved @ solved.T)

    def is_over(self, iteration: int, x: Array, value: float, gradient: Array) -> bool:
        """The gap on H is within the tolerance, or most of it is due to rho."""
        if iteration % CHECK_EVERY:
            return False
        X = self.free.matrix(x)
        self.best.update(X, self.aim)
        if self.best.within_tolerance or self.aim.last:
            return self.best.within_tolerance
        own = lower_bound(self.free.problem, X, dual_from=self.aim.gram, root=self.aim.root)
        self.own_bound = max(self.own_bound, own)
        return value <= self.own_bound * (1 + RIDGE_SHARE * self.best.gap)


class _FreeEntries:
    """Symmetric matrices that vanish off-diagonal within classes, as vectors: diagonal, then sqrt(2) x upper.

    The sqrt(2) makes the vector norm the Frobenius norm, so L-BFGS works in the matrix geometry.
    """

    def __init__(self, problem: FactorizationProblem) -> None:
        self.problem = problem
        self.rows, self.columns = np.nonzero(np.triu(~problem.same_class, 1))
        self.upper = self.rows * problem.size + self.columns
        self.lower = self.columns * problem.size + self.rows

    def vector(self, X: Array) -> Array:
        return np.concatenate([np.diagonal(X), 2**0.5 * X.ravel()[self.upper]])

    def matrix(self, x: Array) -> Array:
        """X with class diagonals that sum to 1 whatever x is: a sum that drifts by rounding would lower the value."""
        T = self.problem.size
        X = np.zeros((T, T))
        flat = X.ravel()
        flat[self.upper] = flat[self.lower] = x[T:] / 2**0.5
        flat[:: T + 1] = self._without_class_means(x[:T]) + (1.0 / self.problem.class_sizes)[self.problem.classes]
        return X

    def projected(self, V: Array) -> Array:
        """The vector of symmetric V with each class's diagonal sum removed."""
        x, T = self.vector(V), self.problem.size
        x[:T] = self._without_class_means(x[:T])
        return x

    def _without_class_means(self, diagonal: Array) -> Array:
        classes = self.problem.classes
        return diagonal - (np.bincount(classes, weights=diagonal) / self.problem.class_sizes)[classes]


def _feasible(problem: FactorizationProblem, start: Array | None) -> Array:
    if start is None:
        return np.diag(1.0 / problem.class_sizes[problem.classes])
    if start.shape != problem.error_gram.shape or not (np.isfinite(start).all() and (np.diagonal(start) > 0).all()):
        raise ProblemError(
            f"start must be finite with shape {problem.error_gram.shape} and a positive diagonal, "
            f"got shape {start.shape}."
        )
    X = np.where(problem.same_class & ~np.eye(problem.size, dtype=bool), 0.0, (start + start.T) / 2)
    scale = np.sqrt(np.bincount(problem.classes, weights=np.diagonal(X))[problem.classes])
    X = X / np.outer(scale, scale)
    while scipy.linalg.lapack.dpotrf(X, lower=1)[1] != 0:  # dropping entries may cost definiteness
        X = np.where(np.eye(problem.size, dtype=bool), X, X / 2)
    return X
