"""The largest error of a step instead of the sum: min over X of max_r tr(H_r X^-1) at unit sensitivity, certified.

The maximum is one over weights p of the steps, p >= 0 and sum p = 1, and the order may be exchanged: tr(H X^-1) is
linear in H and convex in X, and the set of unit sensitivity is convex. So

    min_X max_r tr(H_r X^-1) = max_p g(p),    g(p) = min_X tr(H_p X^-1),    H_p = sum_r p_r H_r,

g(p) the usual problem, whose lower bound at any p bounds the maximum from below. g is concave, homogeneous of degree 1,
and its slope in p_r is f_r = tr(H_r X^-1), X the one that solves H_p. At the optimum f_r is the maximum wherever
p_r > 0.

Step: p_r <- p_r (f_r / max f)^power, which leaves the optimum where it is; the power falls from 2 to 1 where a step
lowers the bound. Errors are convex in X, so running averages of X are tried too: they damp what the steps swing.
"""

from __future__ import annotations

import dataclasses
import time
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from . import dense_encoder
from .arithmetic import EPS, blas_threads
from .problem import (
    INPUT_TOLERANCE,
    OPTIMAL,
    STOPPED,
    USUAL,
    Array,
    Factorization,
    FactorizationProblem,
    ProblemError,
    Stopping,
    causal_encoder,
)

INNER_SHARE = 0.02  # of the tolerance: an X with a gap has errors that are off by its root
MAX_ROUNDS = 500
FLOOR = 1e-9  # of the weights, spread over all steps: a weight of 0 could not come back
MAX_POWER, FALL = 2.0, 0.8


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MaximumProblem:
    """Errors of which the largest counts, and what one record can reach.

    Attributes: error_grams: H_r, shape (steps, T, T), symmetric positive semidefinite, own and read-only; classes:
        integer label per index, shape (T,).
    Raises: ProblemError: shapes, non-finite entries, a Gram that is not symmetric or has a negative diagonal; as a
        `FactorizationProblem` of their sum.
    """

    error_grams: Array
    classes: NDArray[np.intp]

    def __post_init__(self) -> None:
        grams = np.array(self.error_grams, dtype=np.float64)
        if grams.ndim != 3 or grams.shape[1] != grams.shape[2] or grams.size == 0:
            raise ProblemError(f"error_grams must be a stack of square matrices, got shape {grams.shape}.")
        if not np.isfinite(grams).all():
            raise ProblemError("error_grams must be finite, got a nan or infinite entry.")
        largest = np.abs(grams).max(axis=(1, 2))
        uneven = np.abs(grams - grams.swapaxes(1, 2)).max(axis=(1, 2)) > INPUT_TOLERANCE * largest
        negative = np.einsum("rtt->rt", grams).min(axis=1) < -INPUT_TOLERANCE * largest
        if uneven.any() or negative.any():
            step = int(np.argmax(uneven | negative))  # exact: booleans
            raise ProblemError(f"error_grams must be symmetric positive semidefinite, that of step {step} is not.")
        grams.setflags(write=False)
        object.__setattr__(self, "error_grams", grams)
        object.__setattr__(self, "classes", self.sum.classes)

    def __repr__(self) -> str:
        steps, classes = self.size, self.sum.num_classes
        return f"MaximumProblem({len(self.error_grams)} errors over {steps} steps in {classes} classes)"

    @property
    def size(self) -> int:
        return self.error_grams.shape[1]

    @cached_property
    def sum(self) -> FactorizationProblem:
        """The problem of the mean error."""
        return self.weighted(np.full(len(self.error_grams), 1 / len(self.error_grams)))

    def weighted(self, weights: Array) -> FactorizationProblem:
        """That of H_p, p of shape (steps,)."""
        with np.errstate(over="ignore"):
            return FactorizationProblem(np.tensordot(weights, self.error_grams, 1), self.classes)

    def sensitivity_squared(self, gram: Array) -> float:
        return self.sum.sensitivity_squared(gram)

    def errors(self, gram: Array) -> Array:
        """sensitivity^2 tr(H_r X^-1) of each step, shape (steps,); infinite where X is not positive definite.

        Raises: ProblemError: an error beyond float64.
        """
        try:
            factor = np.linalg.cholesky(gram)
        except np.linalg.LinAlgError:
            return np.full(len(self.error_grams), np.inf)
        inverse = scipy.linalg.solve_triangular(factor, np.eye(self.size), lower=True)
        with np.errstate(over="ignore", invalid="ignore"):
            value = self.sensitivity_squared(gram) * np.tensordot(self.error_grams, inverse.T @ inverse, 2)
        if not np.isfinite(value).all():
            raise ProblemError("the objective of error_grams is beyond float64; take smaller error weights.")
        return np.asarray(value)

    def objective(self, gram: Array) -> float:
        return float(self.errors(gram).max())


def solve(problem: MaximumProblem, stopping: Stopping = USUAL) -> Factorization:
    """Minimises the largest error at unit sensitivity to a certified relative gap.

    >>> prefix_sums = np.tril(np.ones((4, 4)))
    >>> best = solve(MaximumProblem(prefix_sums[:, :, None] * prefix_sums[:, None, :], np.arange(4)))
    >>> round(best.objective, 3)  # the square root of the prefix sums has 2.215
    1.759

    Args: stopping: wanted gap, and iterations of all inner problems together.
    Returns: a Factorization whose objective is the maximum; "stopped" where the limit came first.
    Cost: ten to a hundred inner problems, each from the solution before it, and steps x T^2 for each.
    Source: arXiv:2202.11205 and arXiv:2306.08153 for the error of the worst step (MaxSE) of prefix sums.
    """
    began = time.perf_counter()
    steps = len(problem.error_grams)
    p, power, average, half = np.full(steps, 1 / steps), MAX_POWER, None, None
    gram, objective, bound, iterations = np.eye(problem.size), np.inf, 0.0, 0
    for _ in range(MAX_ROUNDS):
        left = stopping.max_iterations - iterations
        inner = dataclasses.replace(stopping.share(INNER_SHARE), max_iterations=left, report=None)
        weights = (1 - FLOOR) * p + FLOOR / steps
        half = dense_encoder.solve(problem.weighted(weights), inner, start=None if half is None else half.gram)
        iterations += max(half.iterations, 1)
        average = half.gram if average is None else (average + half.gram) / 2
        with blas_threads(problem.size):
            candidates = [(X, problem.errors(X)) for X in (half.gram, average)]
            for X, errors in candidates:
                if (largest := float(errors.max())) < objective:
                    gram, objective = X / problem.sensitivity_squared(X), largest
        # proportional to the sum of the weights, which is 1 but for rounding
        bound = max(bound, half.lower_bound * (1 - 4 * steps * EPS))
        stopping.tell(iterations, objective, bound)
        if stopping.reached(objective, bound) or iterations >= stopping.max_iterations:
            break
        if half.lower_bound < bound * (1 - inner.tolerance):
            power = max(1.0, FALL * power)
        errors = candidates[0][1]
        p = p * (errors / errors.max()) ** power
        p /= p.sum()
    assert half is not None
    return Factorization(
        encoder=causal_encoder(gram),
        gram=gram,
        objective=objective,
        lower_bound=bound,
        status=OPTIMAL if stopping.reached(objective, bound) else STOPPED,
        iterations=iterations,
        seconds=time.perf_counter() - began,
        sensitivity=problem.sensitivity_squared(gram) ** 0.5,
        notes=half.notes,
    )
