"""A lower bound on the best objective from any feasible X, and the ridge that makes a singular H regular.

For V_c >= 0 on each class and w = sum_c max diag(V_c), every X of unit sensitivity has
tr(V X) = sum_c <V_c, X_c> <= sum_c max diag(V_c) = w, because V_c / max diag(V_c) is a Gram matrix of admissible
gradients: diagonal <= 1, positive semidefinite. By the Cauchy-Schwarz inequality for the trace norm,

    (tr[(H^1/2 V H^1/2)^1/2])^2 = ||V^1/2 H^1/2||_*^2 <= tr(V X) tr(H X^-1) <= w tr(H X^-1).

So the left side over w bounds the optimum from below, over all C and with the exact sensitivity; V = X^-1 H X^-1
restricted to the classes makes it tight at an optimal X. Each V_c has a constant diagonal there. Elsewhere it is raised
to its largest entry, which leaves w and can only lift the left side; an error in X costs its square.

Small eigenvalues of H are only known to T eps of the largest, and their square roots enter: the bound is made for H
with all eigenvalues lowered by that much.

For singular H the best objective P(H) is an infimum: the noise X^-1 grows without bound on the kernel of H, where it
costs nothing. H + rho I has an optimum, and rho is as large as the tolerance allows. By the duality above P(H) is the
maximum of ||H^1/2 V^1/2||_*^2 / w over V, and ||(H + rho I)^1/2 V^1/2||_* <= ||H^1/2
V^1/2||_* + sqrt(rho) ||V^1/2||_* because the square root is concave, so

    sqrt P(H + rho I) <= sqrt P(H) + sqrt(rho P(I)),    P(I) = sum over classes of size^2.

The optimal X of H + rho I loses at most P(H + rho I) on H itself, and its V proves at least (sqrt P(H + rho I) -
sqrt(rho P(I)))^2. With sqrt(rho P(I) / P(H)) = tolerance / 8 the gap on H is about a quarter of the tolerance; P(H) >=
||H^1/2||_*^2 / number of classes (V = I) is known beforehand. Methods that are slow for ill-conditioned H lower rho.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from .arithmetic import EPS, even_exponent, scaled, scaled_down
from .problem import OPTIMAL, STOPPED, Array, Factorization, FactorizationProblem, Stopping, causal_encoder

SINGULAR = 1e-10  # smallest over largest eigenvalue of H below which H counts as singular
FLOOR = 1e-16  # least rho / largest eigenvalue: float64 does not resolve H below that
FIRST, CUT = 1e-6, 16.0  # first rho / largest eigenvalue of a falling sequence, and the factor between two


def lower_bound(
    problem: FactorizationProblem, gram: Array, *, dual_from: Array | None = None, root: Array | None = None
) -> float:
    """Certified lower bound on min tr(H X^-1) at unit sensitivity; 0 when X is not positive definite.

    `dual_from` takes the place of H in V = X^-1 H X^-1: any choice is valid for the problem's own H, and a regularised
    H that X minimises gives the tight bound. `root`, L with L L^T = H, says which H is bounded, default that one,
    rounded down.

    Rounding: the computed trace norm is lowered by T^2 eps of itself, above the backward error of the
    singular values; clipping negative rounding eigenvalues of V_c changes w and the trace norm consistently,
    since the V that is used is the clipped one. Cost: O(T^3).
    """
    if k := problem.exponent:
        dual_from = None if dual_from is None else scaled(dual_from, -k)
        root = None if root is None else scaled(root, -k // 2)
        return scaled_down(lower_bound(problem.normalised, gram, dual_from=dual_from, root=root), k)
    try:  # multiples of X and V prove the same
        factor = scipy.linalg.cho_factor(scaled(gram, -even_exponent(gram)), lower=True)
    except np.linalg.LinAlgError:
        return 0.0
    H = problem.error_gram if dual_from is None else dual_from
    V = scipy.linalg.cho_solve(factor, scipy.linalg.cho_solve(factor, H).T)
    if not np.isfinite(V).all():
        return 0.0
    if problem.num_classes == problem.size:
        return weights_bound(problem, np.diagonal(V), root=root)
    L = problem.gram_root(below=True) if root is None else root
    products, w = [], 0.0
    for members, root_of_dual, most in dual_roots(problem.classes, V):
        products.append(root_of_dual.T @ L[members])
        w += most
    return proven(np.concatenate(products), w)


def dual_roots(classes: NDArray[np.intp], dual: Array) -> Iterator[tuple[NDArray[np.intp], Array, float]]:
    """For each class its indices, a root of V_c and its largest diagonal entry, rounded up.

    V_c is the block of the dual, symmetrised, its diagonal raised to the largest entry; the root says which V_c it is.
    """
    for label in range(int(classes.max()) + 1):
        members = np.flatnonzero(classes == label)
        block = dual[np.ix_(members, members)]
        block = (block + block.T) / 2
        diagonal = np.diagonal(block)
        values, vectors = np.linalg.eigh(block + np.diag(diagonal.max() - diagonal))
        root = vectors * np.sqrt(np.clip(values, 0.0, None))
        yield members, root, float((root**2).sum(axis=1).max()) * (1 + 8 * members.size * EPS)


def weights_bound(problem: FactorizationProblem, weights: Array, *, root: Array | None = None) -> float:
    """The lower bound of V = diag(v), for any v >= 0 of shape (T,) (a negative entry counts as zero); 0 for v = 0.

    w is then the sum over classes of the largest weight. Cost: the singular values of a T x T matrix.
    """
    if k := problem.exponent:
        root = None if root is None else scaled(root, -k // 2)
        return scaled_down(weights_bound(problem.normalised, weights, root=root), k)
    v = np.clip(weights, 0.0, None)
    if not 0 < (largest := float(v.max())) < np.inf:
        return 0.0
    v = v / largest  # the bound does not depend on the scale of v, but v may be near the end of the float range
    top = np.zeros(problem.num_classes)
    np.maximum.at(top, problem.classes, v)
    L = problem.gram_root(below=True) if root is None else root
    w = float(top.sum()) * (1 + 8 * problem.size * EPS)
    return proven(np.sqrt(v)[:, None] * L, w)


def finished(
    problem: FactorizationProblem,
    gram: Array,
    bound: float,
    stopping: Stopping,
    iterations: int,
    began: float,
    notes: tuple[str, ...] = (),
    unfinished_status: str = STOPPED,
) -> Factorization:
    """The Factorization of a given X; where the known bound does not settle it, with the better of that and X's own."""
    objective = problem.objective(gram)
    if not stopping.reached(objective, bound):
        bound = max(bound, lower_bound(problem, gram))
    return Factorization(
        encoder=causal_encoder(gram),
        gram=gram,
        objective=objective,
        lower_bound=bound,
        status=OPTIMAL if stopping.reached(objective, bound) else unfinished_status,
        iterations=iterations,
        seconds=time.perf_counter() - began,
        sensitivity=problem.sensitivity_squared(gram) ** 0.5,
        notes=notes,
    )


class Best:
    """The best bound and the best X so far, both for the H that was given."""

    def __init__(self, problem: FactorizationProblem, stopping: Stopping, gram: Array) -> None:
        self.problem, self.stopping, self.began = problem, stopping, time.perf_counter()
        self.gram, self.objective, self.bound = gram, problem.objective(gram), 0.0

    @property
    def within_tolerance(self) -> bool:
        return self.stopping.reached(self.objective, self.bound)

    def offer(self, gram: Array, bound: float) -> None:
        """Keeps the better X and the better bound."""
        self.bound = max(self.bound, bound)
        if (objective := self.problem.objective(gram)) < self.objective:
            self.gram, self.objective = gram, objective

    def finished(self, iterations: int, rho: float) -> Factorization:
        """The answer, which H + rho I was solved for."""
        notes = notes_on_ridge(self.problem, rho, self.gram)
        return finished(self.problem, self.gram, self.bound, self.stopping, iterations, self.began, notes)


def proven(matrix: Array, w: float) -> float:
    """||M||_*^2 / w, rounded down by more than the backward error of the singular values; M is overwritten.

    0, which proves nothing, where w is 0 or an overflow left no number.
    """
    T = matrix.shape[0]
    if not (0 < w < np.inf and np.isfinite(matrix).all()):
        return 0.0
    trace_norm = float(scipy.linalg.svdvals(matrix, overwrite_a=True).sum())
    safe = max(trace_norm * (1 - (T * T + 4) * EPS), 0.0)
    bound = safe * safe / w
    return bound if bound < np.inf else 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class RidgeTarget:
    """H + rho I, solved in place of H.

    Attributes:
        rho: 0 for a regular H.
        gram: H + rho I, shape (T, T).
        root: R with R R^T = gram, accurate in its smallest singular values.
        last: no smaller rho follows.
    """

    rho: float
    gram: Array
    root: Array
    last: bool


def smallest_ridge(problem: FactorizationProblem, tolerance: float) -> float:
    """The rho that leaves a gap of a quarter of the tolerance on H itself (float64 permitting); 0 for a regular H."""
    least_loss = float(np.sqrt(np.clip(problem.eigenvalues, 0.0, None)).sum()) ** 2 / problem.num_classes
    return ridge_for(problem.eigenvalues, least_loss, problem.class_sizes, tolerance)


def ridge_for(eigenvalues: Array, least_loss: float, class_sizes: NDArray[np.intp], tolerance: float) -> float:
    """`smallest_ridge` from the eigenvalues of H, of any shape, and a bound on its least objective."""
    smallest, largest = float(eigenvalues.min()), float(eigenvalues.max())
    if smallest > SINGULAR * largest:
        return 0.0
    identity_loss = float((class_sizes.astype(np.float64) ** 2).sum())
    return max((tolerance / 8) ** 2 * least_loss / identity_loss, FLOOR * largest)


def target(problem: FactorizationProblem, rho: float, *, last: bool = True) -> RidgeTarget:
    """H + rho I with its root, from the eigenvectors of H; rho = 0 is H as it was given."""
    if rho == 0:
        return RidgeTarget(0.0, problem.error_gram, problem.root, last)
    root = problem.gram_root(plus=rho)
    return RidgeTarget(rho, root @ root.T, root, last)


def falling_targets(problem: FactorizationProblem, tolerance: float) -> Iterator[RidgeTarget]:
    """H alone when it is regular; else H + rho I for falling rho, down to `smallest_ridge`."""
    end = smallest_ridge(problem, tolerance)
    rho = max(FIRST * problem.eigenvalues[-1], end) if end > 0 else 0.0
    while rho > end:
        yield target(problem, rho, last=False)
        rho /= CUT
    yield target(problem, end)


def notes_on_ridge(problem: FactorizationProblem, rho: float, gram: Array) -> tuple[str, ...]:
    """What the reader of a solution for H + rho I must know; empty for rho = 0."""
    if rho == 0:
        return ()
    smallest, largest = problem.eigenvalues[0], problem.eigenvalues[-1]
    noise = 1 / max(float(np.linalg.eigvalsh(gram)[0]), np.finfo(np.float64).tiny)
    note = (
        f"error_gram is singular to working precision (smallest eigenvalue {smallest:.2g}, largest {largest:.2g}): "
        f"the best objective is not attained, so error_gram + {rho:.2g} I was solved instead; where noise costs "
        f"nothing it grows without bound with the tolerance; its largest eigenvalue 1 / lambda_min(X) is {noise:.2g}"
    )
    return (note,)
