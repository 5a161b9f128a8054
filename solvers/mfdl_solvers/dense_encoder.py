"""The dense encoder of a problem with classes: `solve` takes every problem.

Classes of single indices go to `singletons`. Others go to their dual (`class_dual`) if H is regular; if that search
does not reach the tolerance, and for a singular H, L-BFGS minimises over X inside the affine set that keeps the
sensitivity at one (`FreeEntries`).

Within a class the off-diagonal entries of X may be zero without loss: at the optimum of that restricted
problem V = X^-1 H X^-1 vanishes off the restricted directions, so its class blocks have constant diagonal and
are positive semidefinite, i.e. dual feasible for the unrestricted problem, and the certificate is tight. What
is left is linear: X[s, t] = 0 for s != t in one class, and the diagonal sums to 1 on each class. The gradient
is -V projected on these directions; positive definiteness is kept by the line search.

A singular H is solved as H + rho I for falling rho (`falling_targets`), each from the solution before: L-BFGS is slow
for an ill-conditioned X, and at 1e-4 a large rho is often enough. Cost per iteration O(T^3), a few matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from . import class_dual, singletons
from .arithmetic import ITERATION, blas_threads
from .certificate import Best, RidgeTarget, falling_targets, lower_bound, smallest_ridge
from .iterations import minimise
from .problem import USUAL, Array, Factorization, FactorizationProblem, ProblemError, Stopping, relative_gap

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
        tolerance needs, with a note that names the largest noise eigenvalue; objective and lower bound are those of the
        H that was given. Float64 resolves rho down to 1e-16 of the largest eigenvalue of H, enough for a tolerance of
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

    def __init__(self, free: FreeEntries, aim: RidgeTarget, best: Best, before: int) -> None:
        self.free, self.aim, self.best, self.before = free, aim, best, before
        self.roots = [np.asfortranarray(aim.root)]
        self.ridge_bound = 0.0

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
        self.best.stopping.tell(self.before + iteration, self.best.objective, self.best.bound)
        if self.best.within_tolerance or self.aim.last:
            return self.best.within_tolerance
        bound = lower_bound(self.best.problem, X, dual_from=self.aim.gram, root=self.aim.root)
        self.ridge_bound = max(self.ridge_bound, bound)
        return value <= self.ridge_bound * (1 + RIDGE_SHARE * relative_gap(self.best.objective, self.best.bound))


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


class FreeEntries:
    """Vectors and blocks, for one label per step and one orthonormal basis (n, directions) per class."""

    def __init__(self, classes: NDArray[np.intp], kernels: Sequence[Array]) -> None:
        self.classes, self.kernels, self.n, self.T = classes, kernels, len(kernels[0]), classes.size
        self.sizes = np.bincount(classes) * self.n
        same = classes[:, None] == classes[None, :]
        self.between = self._places(~same)
        with_directions = [label for label, kernel in enumerate(kernels) if kernel.size]
        self.inside = [(kernels[label], self._places(same & (classes == label))) for label in with_directions]

    def _places(self, mask: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Flat indices of the entries above the diagonal, and of those opposite."""
        rows, columns = np.nonzero(np.triu(mask, 1))
        return rows * self.T + columns, columns * self.T + rows

    def vector(self, blocks: Array) -> Array:
        """From blocks, shape (n, T, T); entries that are not free are dropped."""
        flat = blocks.reshape(self.n, -1)
        inside = [(kernel.T @ flat.take(upper, axis=1)).ravel() for kernel, (upper, _) in self.inside]
        off = np.concatenate([flat.take(self.between[0], axis=1).ravel(), *inside])
        return np.concatenate([flat[:, :: self.T + 1].ravel(), 2**0.5 * off])

    def matrices(self, x: Array, *, feasible: bool = True) -> Array:
        """Blocks, shape (n, T, T); `feasible`: with class sums of 1 whatever x is, a drift would lower the value."""
        blocks = np.zeros((self.n, self.T, self.T))
        flat, rest = blocks.reshape(self.n, -1), x[self.n * self.T :] / 2**0.5
        diagonals = x[: self.n * self.T].reshape(self.n, self.T)
        if feasible:
            diagonals = self._without_class_means(diagonals) + (1.0 / self.sizes)[self.classes]
        flat[:, :: self.T + 1] = diagonals
        for kernel, (upper, lower) in [(None, self.between), *self.inside]:
            shape = (self.n if kernel is None else kernel.shape[1], upper.size)
            part, rest = rest[: shape[0] * shape[1]].reshape(shape), rest[shape[0] * shape[1] :]
            for block, values in zip(flat, part if kernel is None else kernel @ part, strict=True):
                block[upper] = block[lower] = values
        return blocks

    def feasible(self, blocks: Array) -> Array:
        """The free entries of blocks, rows and columns rescaled to class sums of 1; positive diagonals are needed."""
        free = self.matrices(self.vector(blocks), feasible=False)
        sums = np.bincount(self.classes, weights=free.diagonal(axis1=1, axis2=2).sum(axis=0))
        scale = 1 / np.sqrt(sums[self.classes])
        return free * np.outer(scale, scale)

    def value_and_gradient(self, x: Array, roots: Sequence[Array]) -> tuple[float, Array]:
        """sum_k tr(H_k X_k^-1) = ||M^-1 R||_F^2 and the projected -V_k = -(X^-1 R)(X^-1 R)^T, X = M M^T, H = R R^T.

        Infinite where a block is not positive definite. Triangular solves with the roots, in Fortran order, keep digits
        that a product with X^-1 loses when X is ill-conditioned, in the same time.
        """
        blocks, value = self.matrices(x), 0.0
        for X, root in zip(blocks, roots, strict=True):
            factor, info = scipy.linalg.lapack.dpotrf(X.T, lower=1)
            if info != 0:
                return np.inf, x
            whitened, _ = scipy.linalg.lapack.dtrtrs(factor, root, lower=1)
            value += float((whitened**2).sum())
            solved, _ = scipy.linalg.lapack.dtrtrs(factor, whitened, lower=1, trans=1)
            X[:] = solved @ solved.T
        slope = self.vector(blocks)
        diagonals = slope[: self.n * self.T].reshape(self.n, self.T)
        diagonals[:] = self._without_class_means(diagonals)
        return value, -slope

    def _without_class_means(self, diagonals: Array) -> Array:
        means = np.bincount(self.classes, weights=diagonals.sum(axis=0)) / self.sizes
        return np.asarray(diagonals - means[self.classes])
