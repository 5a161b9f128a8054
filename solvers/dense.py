"""The dense solver: L-BFGS on X inside the affine set that keeps the sensitivity at one.

Within a class the off-diagonal entries of X may be zero without loss: at the optimum of that restricted
problem V = X^-1 H X^-1 vanishes off the restricted directions, so its class blocks have constant diagonal and
are positive semidefinite, i.e. dual feasible for the unrestricted problem, and the certificate is tight. What
is left is linear: X[s, t] = 0 for s != t in one class, and the diagonal sums to 1 on each class. The gradient
is -V projected on these directions; positive definiteness is kept by the line search.

Cost per iteration O(T^3), a few matrix products.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_limits

from .certificate import lower_bound
from .lbfgs import minimise
from .problem import OPTIMAL, STOPPED, Array, Factorization, FactorizationProblem, ProblemError, causal_encoder

CHECK_EVERY = 10  # iterations between certificates: one costs about as much as ten iterations
RIDGE = 1e-10  # relative to the largest eigenvalue of H
SINGLE_THREAD_SIZE = 512


def solve(
    problem: FactorizationProblem,
    *,
    tolerance: float = 1e-4,
    max_iterations: int = 5000,
    start: Array | None = None,
) -> Factorization:
    """Minimises tr(H X^-1) at unit sensitivity to a certified relative gap.

    Args:
        problem: H and classes.
        tolerance: wanted gap loss / lower_bound - 1, > 0.
        max_iterations: hard limit.
        start: a feasible X to start from (its in-class off-diagonal is dropped, its diagonal rescaled).

    Returns:
        A Factorization of sensitivity exactly 1 up to rounding; status "optimal" or "stopped". A singular H
        has no minimiser: X^-1 grows without bound on its kernel. Then H + RIDGE * lambda_max(H) I is solved
        instead, with a note; loss and lower bound are those of the H that was given.
    """
    began = time.perf_counter()
    target, notes = _regularised(problem)
    free = _FreeEntries(problem)
    best = {"bound": 0.0}

    def value_and_gradient(x: Array) -> tuple[float, Array]:
        factor, info = scipy.linalg.lapack.dpotrf(free.matrix(x), lower=1)
        if info != 0:
            return np.inf, x
        inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        HX = target @ inverse
        return float(np.trace(HX)), -free.projected(inverse @ HX)

    def within_tolerance(iteration: int, x: Array, value: float, gradient: Array) -> bool:
        if iteration % CHECK_EVERY:
            return False
        X = free.matrix(x)
        best["bound"] = max(best["bound"], lower_bound(problem, X, dual_from=target))
        return problem.loss(X) <= best["bound"] * (1 + tolerance)

    with threads_for(problem.size):
        minimum = minimise(
            value_and_gradient,
            free.vector(_feasible(problem, start)),
            stop=within_tolerance,
            max_iterations=max_iterations,
        )
        gram = free.matrix(minimum.point)
        return finished(
            problem,
            gram,
            known_bound=max(best["bound"], lower_bound(problem, gram, dual_from=target)),
            tolerance=tolerance,
            iterations=minimum.iterations,
            began=began,
            notes=notes,
        )


def finished(
    problem: FactorizationProblem,
    gram: Array,
    *,
    known_bound: float,
    tolerance: float,
    iterations: int,
    began: float,
    notes: tuple[str, ...] = (),
    unfinished_status: str = STOPPED,
) -> Factorization:
    """The Factorization of a given X: causal encoder, loss, the better of two lower bounds, status."""
    bound = max(known_bound, lower_bound(problem, gram))
    loss = problem.loss(gram)
    return Factorization(
        encoder=causal_encoder(gram),
        gram=gram,
        loss=loss,
        lower_bound=bound,
        status=OPTIMAL if loss <= bound * (1 + tolerance) else unfinished_status,
        iterations=iterations,
        seconds=time.perf_counter() - began,
        sensitivity=problem.sensitivity_squared(gram) ** 0.5,
        notes=notes,
    )


def threads_for(size: int) -> AbstractContextManager[object]:
    """One BLAS thread for small matrices: below about 500 the second thread costs more than it brings
    (T = 320: 4 ms against 9 ms per iteration on two cores)."""
    return threadpool_limits(1 if size <= SINGLE_THREAD_SIZE else None, user_api="blas")


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


def _regularised(problem: FactorizationProblem) -> tuple[Array, tuple[str, ...]]:
    smallest, largest = problem.eigenvalues[0], problem.eigenvalues[-1]
    if smallest > RIDGE * largest:
        return problem.error_gram, ()
    note = (
        f"error_gram is singular to working precision (smallest eigenvalue {smallest:.2g}, largest {largest:.2g}): "
        f"the best loss is not attained, so error_gram + {RIDGE * largest:.2g} I was solved instead"
    )
    return problem.root @ problem.root.T + RIDGE * largest * np.eye(problem.size), (note,)


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
