"""The dense solver: one door to every problem. Classes of single indices go to `singletons`, others to their dual
(`class_dual`) where H is regular; where that does not end, and for a singular H, L-BFGS on X inside the affine set that
keeps the sensitivity at one.

Within a class the off-diagonal entries of X may be zero without loss: at the optimum of that restricted
problem V = X^-1 H X^-1 vanishes off the restricted directions, so its class blocks have constant diagonal and
are positive semidefinite, i.e. dual feasible for the unrestricted problem, and the certificate is tight. What
is left is linear: X[s, t] = 0 for s != t in one class, and the diagonal sums to 1 on each class. The gradient
is -V projected on these directions; positive definiteness is kept by the line search.

A singular H is solved as H + rho I for falling rho (`ridge`), each from the solution before: L-BFGS is slow for an
ill-conditioned X, and at 1e-4 a large rho is often enough. Cost per iteration O(T^3), a few matrix products.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from . import class_dual, singletons
from .certificate import Best, lower_bound
from .free_entries import FreeEntries
from .lbfgs import minimise
from .problem import USUAL, Array, Factorization, FactorizationProblem, ProblemError, Stopping, relative_gap
from .ridge import Target, falling_targets, smallest_ridge
from .threads import ITERATION, blas_threads

CHECK_EVERY = 10  # iterations between certificates: one costs about as much as ten iterations
MEMORY, MEMORY_SINGULAR = 10, 20  # pairs of L-BFGS: twice as many save half the iterations, where H is singular
RIDGE_SHARE = 0.1  # of the gap on H: once the gap on H + rho I is below that share, a smaller rho is due


def solve(
    problem: FactorizationProblem,
    stopping: Stopping = USUAL,
    *,
    start: Array | None = None,
    device: str | None = None,
) -> Factorization:
    """Minimises tr(H X^-1) at unit sensitivity to a certified relative gap.

    Args:
        problem: H and classes.
        stopping: wanted gap and number of iterations.
        start: a feasible X to start from (its in-class off-diagonal is dropped, its diagonal rescaled); checked, but
            not used, when every class holds one index: that method takes a few steps from anywhere.
        device: of torch, as "cuda": where the decompositions of a regular H with classes are made, in float64; default
            the CPU by LAPACK.

    Returns:
        A Factorization of sensitivity exactly 1 up to rounding; status "optimal" or "stopped". A singular H
        has no minimiser: X^-1 grows without bound on its kernel. Then H + rho I is solved instead, rho as small as the
        tolerance needs, with a note that names the largest noise eigenvalue; loss and lower bound are those of the H
        that was given. Float64 resolves rho down to 1e-16 of the largest eigenvalue of H, enough for a tolerance of
        1e-7 or so; X is then so ill-conditioned that a problem with large classes may stop earlier, and says so.
    """
    if problem.exponent:
        return solve(problem.normalised, stopping, start=start, device=device).shifted(problem.exponent)
    with blas_threads(problem.size):
        initial = _feasible(problem, start)
        if problem.num_classes == problem.size:
            return singletons.solve(problem, stopping)
        best, iterations = Best(problem, stopping, initial), 0
        if not smallest_ridge(problem, stopping.tolerance):
            decompose = class_dual.lapack if device is None else class_dual.on_device(device)
            iterations = class_dual.search(problem, stopping, best, None if start is None else initial, decompose)
            if best.within_tolerance or iterations >= stopping.max_iterations:
                return best.finished(iterations, 0.0)
    with blas_threads(problem.size, single_up_to=ITERATION):
        return _descent(problem, stopping, best, iterations)


def _descent(problem: FactorizationProblem, stopping: Stopping, best: Best, iterations: int) -> Factorization:
    """L-BFGS from the best X so far."""
    free = FreeEntries(problem.classes, [np.zeros((1, 0))] * problem.num_classes)  # in-class entries vanish
    x = free.vector(best.gram)
    for aim in falling_targets(problem, stopping.tolerance):
        stage = _Stage(free, aim, best, iterations)
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
    stage.update(free.matrices(x)[0])
    return best.finished(iterations, aim.rho)


class _Stage:
    """One H + rho I: its value and gradient in the free entries, and when to leave it."""

    def __init__(self, free: FreeEntries, aim: Target, best: Best, before: int) -> None:
        self.free, self.aim, self.best, self.before = free, aim, best, before
        self.roots = [np.asfortranarray(aim.root)]
        self.own_bound = 0.0

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        return self.free.value_and_gradient(x, self.roots)

    def update(self, gram: Array) -> None:
        """Offers an X, and what its dual for H + rho I proves of H."""
        self.best.offer(gram, lower_bound(self.best.problem, gram, dual_from=self.aim.gram))

    def is_over(self, iteration: int, x: Array, value: float, gradient: Array) -> bool:
        """The gap on H is within the tolerance, or most of it is due to rho."""
        if iteration % CHECK_EVERY:
            return False
        X = self.free.matrices(x)[0]
        self.update(X)
        self.best.stopping.tell(self.before + iteration, self.best.loss, self.best.bound)
        if self.best.within_tolerance or self.aim.last:
            return self.best.within_tolerance
        own = lower_bound(self.best.problem, X, dual_from=self.aim.gram, root=self.aim.root)
        self.own_bound = max(self.own_bound, own)
        return value <= self.own_bound * (1 + RIDGE_SHARE * relative_gap(self.best.loss, self.best.bound))


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
