"""Encoders for balls-in-bins: least error under bounds on M = (|C| E)^T (|C| E), E the 0/1 matrix of bins.

    minimise  tr(H X^-1),  X = C^T C,   over causal C with  M_rr <= 1  and  M_rq <= c  for r != q.

Each record draws one bin secretly. Its privacy loss grows in every entry of M, and M is bounded by its largest diagonal
entry and the ratio c; so c is given, and the caller searches over it.

The search is over C >= 0 (entries are squares), by L-BFGS on the scale-free log tr(H X^-1) + log ||M_rq / cap_rq||_p
for growing p. It is not convex: `status` is "stationary", and the lower bound says how far the best of all C, of any
signs, can be. It is made by the convex relaxation to X:

    sum over s in r, t in q of |X_st|  <=  M_rq  <=  cap_rq,

and for any V >= 0 with largest |V_st| of y_rq over the entries of a pair of bins, as in `certificate`,

    (tr[(H^1/2 V H^1/2)^1/2])^2  <=  tr(V X) tr(H X^-1)  <=  (sum_rq y_rq cap_rq) tr(H X^-1).

V = X^-1 H X^-1 at a solution of the relaxation. Its entries within a bin are at most those on its diagonal.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from .arithmetic import EPS, ITERATION, blas_threads
from .certificate import proven
from .iterations import minimise
from .problem import STATIONARY, Array, Certified, FactorizationProblem, ProblemError, Stopping

Labels: TypeAlias = NDArray[np.intp]

NORMS = (32, 128)  # p of the norms that stand for the largest entry of M, one stage each
RELAXED_NORMS = (16, 64, 256)
LOOK_EVERY = 25  # iterations between two looks at how much was won
MEMORY = 20  # pairs of L-BFGS
USUAL = Stopping(tolerance=1e-4, max_iterations=1200)
FAINT = 1e-12  # diagonal of H, relative to the largest, below which a step counts as that
BESIDE = 0.1  # first entries below the diagonal, relative to it: squares that start at 0 stay there


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BinFactorization(Certified):
    """A causal C >= 0 for balls-in-bins.

    Attributes:
        encoder: C, shape (T, T), lower triangular, no entry negative.
        bin_gram: M, shape (b, b), its largest diagonal entry 1.
        objective: tr(H X^-1); lower_bound: no causal C of any signs with M_rr <= 1 and M_rq <= `correlation` has less.
    """

    encoder: Array
    bin_gram: Array
    bound_over: ClassVar[str] = "encoder whose bins are correlated no more than this one's"

    @property
    def correlation(self) -> float:
        """The largest M_rq of two bins."""
        return largest_beside(self.bin_gram)


def solve(
    problem: FactorizationProblem, correlation: float, stopping: Stopping = USUAL, *, start: Array | None = None
) -> BinFactorization:
    """C for bins that are the classes of the problem, M_rq at most about `correlation` times M_rr.

    Args:
        correlation: c in [0, 1].
        stopping: tolerance: a stage ends when iterations win less than that each, relatively; max_iterations: of all
            stages, those for the lower bound too.
        start: an encoder to start from, such as that of another correlation.

    Returns: BinFactorization, scaled to max M_rr = 1; its own correlation may be a few percents off the one asked for.
    Raises: ProblemError: a correlation out of [0, 1].
    Cost: an iteration is four products of T x T matrices and one triangular inverse; some hundred of each.
    """
    if not 0 <= correlation <= 1:
        raise ProblemError(f"correlation must lie in [0, 1], got {correlation!r}.")
    if problem.exponent:
        return solve(problem.normalised, correlation, stopping, start=start).shifted(problem.exponent)
    began = time.perf_counter()
    with blas_threads(problem.size, single_up_to=ITERATION):
        C, iterations = _independent(problem), 0
        if correlation > 0 and problem.num_classes > 1:
            C, iterations = _searched(problem, correlation, stopping, C if start is None else start)
        M = bin_gram(C, problem.classes)
        scale = float(np.diagonal(M).max())
        C, M = C / scale**0.5, M / scale
        caps = _caps(problem.num_classes, largest_beside(M))
        bound, more = _bound(problem, caps, C, stopping, iterations)
        objective = problem.objective(C.T @ C)
    return BinFactorization(
        encoder=C,
        bin_gram=M,
        objective=objective,
        lower_bound=min(bound, objective),
        status=STATIONARY,
        iterations=iterations + more,
        seconds=time.perf_counter() - began,
    )


def bin_gram(encoder: Array, bins: Labels) -> Array:
    """M = (|C| E)^T (|C| E), shape (b, b), rounded up, of any C, shape (T, T), and the bin of each step, shape (T,)."""
    sums = _over_bins(np.abs(encoder), bins)
    return np.asarray((sums.T @ sums) * (1 + 4 * len(encoder) * EPS))  # no term is negative


def _over_bins(columns: Array, bins: Labels) -> Array:
    """Sums of columns over each bin, shape (T, b)."""
    return np.stack([columns[:, bins == r].sum(axis=1) for r in range(int(bins.max()) + 1)], axis=1)


def largest_beside(M: Array) -> float:
    return float((M - np.diag(np.diagonal(M))).max(initial=0.0)) if len(M) > 1 else 0.0


def _caps(bins: int, correlation: float) -> Array:
    return np.where(np.eye(bins, dtype=bool), 1.0, correlation)


def _independent(problem: FactorizationProblem) -> Array:
    """The best C for c = 0, which is diagonal: X_tt in proportion to sqrt(H_tt) within each bin."""
    H = np.diagonal(problem.error_gram)
    weights = np.sqrt(np.maximum(H, FAINT * H.max()))
    return np.diag(np.sqrt(weights / np.bincount(problem.classes, weights=weights)[problem.classes]))


def _searched(problem: FactorizationProblem, correlation: float, stopping: Stopping, start: Array) -> tuple[Array, int]:
    """(C >= 0 by squares of its entries, iterations)."""
    T, H, bins, caps = problem.size, problem.error_gram, problem.classes, _caps(problem.num_classes, correlation)
    lower, at = np.tril_indices(T), np.diagonal(start)
    near = np.subtract.outer(np.arange(T), np.arange(T))
    floor = np.where(near > 0, BESIDE * np.exp(-np.maximum(near, 0) / 20.0), 0.0) * np.sqrt(np.outer(at, at))
    x = np.sqrt(np.maximum(np.abs(start), floor if not np.tril(start, -1).any() else 1e-3 * floor)[lower])

    def value_and_gradient(x: Array, p: int) -> tuple[float, Array]:
        C = np.zeros((T, T))
        C[lower] = x**2
        inverse, singular = scipy.linalg.lapack.dtrtri(C, lower=1)
        if singular:
            return np.inf, x
        inverse = np.tril(inverse)
        with np.errstate(over="ignore", invalid="ignore"):  # a point next to singular: no point at all
            K = inverse.T @ (H @ inverse)
        objective = float(np.trace(K))
        if not 0 < objective < np.inf:
            return np.inf, x
        sums = _over_bins(C, bins)
        size, slope = norm(sums.T @ sums / caps, p)
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = 2 * (sums @ (slope / caps))[:, bins] - 2 * (K @ inverse.T) / objective
        return float(np.log(objective)) + size, gradient[lower] * 2 * x

    x, iterations = _in_stages(value_and_gradient, x, NORMS, stopping, 0)
    C = np.zeros((T, T))
    C[lower] = x**2
    return C, iterations


def _bound(problem: FactorizationProblem, caps: Array, C: Array, stopping: Stopping, before: int) -> tuple[float, int]:
    """(the lower bound, iterations): of an X >= 0 near an optimum, entries of one bin beside the diagonal zero."""
    T, H, bins, steps = problem.size, problem.error_gram, problem.classes, np.arange(problem.size)
    first = proven_by(problem, C.T @ C, caps)
    if problem.num_classes == 1 or not caps[0, 1] > 0:
        return first, 0
    below = np.tril_indices(T, -1)
    across = bins[below[0]] != bins[below[1]]
    below = below[0][across], below[1][across]
    X = _definite(np.maximum(C.T @ C, 0.0), problem.same_class)
    x = np.sqrt(np.concatenate([np.diagonal(X), np.maximum(X[below], 1e-6 * X.max())]))

    def gram(x: Array) -> Array:
        X = np.zeros((T, T))
        X[below] = x[T:] ** 2
        X += X.T
        X[steps, steps] = x[:T] ** 2
        return X

    def value_and_gradient(x: Array, p: int) -> tuple[float, Array]:
        X = gram(x)
        factor, indefinite = scipy.linalg.lapack.dpotrf(X, lower=1)
        if indefinite:
            return np.inf, x
        inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        with np.errstate(over="ignore", invalid="ignore"):
            objective = float((inverse * H).sum())
        if not 0 < objective < np.inf:
            return np.inf, x
        sums = _over_bins(_over_bins(X, bins).T, bins)
        size, slope = norm(sums / caps, p)
        gradient = (slope / caps)[np.ix_(bins, bins)] - inverse @ H @ inverse / objective
        slopes = gradient[steps, steps] * 2 * x[:T], gradient[below] * 4 * x[T:]
        return float(np.log(objective)) + size, np.concatenate(slopes)

    x, iterations = _in_stages(value_and_gradient, x, RELAXED_NORMS, stopping, before)
    return max(first, proven_by(problem, gram(x), caps)), iterations


def proven_by(problem: FactorizationProblem, gram: Array, caps: Array) -> float:
    """The lower bound of V = X^-1 H X^-1 for these caps; 0 where X is not positive definite."""
    try:
        factor = scipy.linalg.cho_factor(gram, lower=True)
    except np.linalg.LinAlgError:
        return 0.0
    root = scipy.linalg.cho_solve(factor, problem.root)  # V is what this is a root of
    V = np.abs(root @ root.T)
    most = np.array([[V[np.ix_(r, q)].max() for q in _members(problem)] for r in _members(problem)])
    # V is positive semidefinite: within a bin no entry is larger than the largest of the diagonal
    most[np.diag_indices(len(most))] = [np.diagonal(V)[r].max() for r in _members(problem)]
    weight = float((most * caps).sum()) * (1 + 8 * problem.size * EPS)
    return proven(root.T @ problem.gram_root(below=True), weight)


def _members(problem: FactorizationProblem) -> list[Labels]:
    return [np.flatnonzero(problem.classes == r) for r in range(problem.num_classes)]


def _definite(X: Array, same_class: NDArray[np.bool_]) -> Array:
    """X without the entries of one bin beside the diagonal, others halved until it is positive definite."""
    eye = np.eye(len(X), dtype=bool)
    X = np.where(same_class & ~eye, 0.0, X)
    while scipy.linalg.lapack.dpotrf(X, lower=1)[1] != 0:
        X = np.where(eye, X, X / 2)
    return X


def norm(sums: Array, p: int) -> tuple[float, Array]:
    """(log of the p-norm of positive entries, its derivative by each)."""
    largest = float(sums.max())
    shares = (sums / largest) ** p
    total = float(shares.sum())
    return float(np.log(largest) + np.log(total) / p), shares / np.maximum(sums, 1e-300) / total


def _in_stages(
    function: Callable[[Array, int], tuple[float, Array]],
    x: Array,
    norms: tuple[int, ...],
    stopping: Stopping,
    before: int,
) -> tuple[Array, int]:
    iterations = 0
    for p in norms:
        left = max(stopping.max_iterations - before - iterations, 0)
        slows = Slows(stopping.tolerance * LOOK_EVERY)

        def at_norm(x: Array, p: int = p) -> tuple[float, Array]:
            return function(x, p)

        minimum = minimise(at_norm, x, stop=slows, max_iterations=left, memory=MEMORY)
        x, iterations = minimum.point, iterations + minimum.iterations
    return x, iterations


@dataclasses.dataclass
class Slows:
    """Whether LOOK_EVERY iterations won less than `least`."""

    least: float
    before: float = np.inf

    def __call__(self, iteration: int, x: Array, value: float, gradient: Array) -> bool:
        if iteration % LOOK_EVERY:
            return False
        won, self.before = self.before - value, value
        return won < self.least
