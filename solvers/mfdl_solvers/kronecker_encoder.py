"""Noise correlated over time and over nodes by a Kronecker product: X = X_t (x) X_s.

With H = sum_k H_k (x) u_k u_k^T the objective is

    tr(H X^-1) = sum_k c_k d_k,    c_k = u_k^T X_s^-1 u_k,    d_k = tr(H_k X_t^-1),

so for fixed X_s the best X_t solves the T x T problem of sum_k c_k H_k, and for fixed X_t the best X_s the n x n
problem of sum_k d_k u_k u_k^T where every node is its own class. The two are solved in turn, each with its certificate.

That finds the best product: along the geodesics of positive definite matrices the objective is convex, and so is the
set of unit sensitivity (a maximum over positive linear functions of X_t, times one of X_s). A point that neither half
improves is stationary for both, hence a minimum. `joint_lower_bound` bounds what the product form itself may cost.

`ModeProblem` gives H by modes, a T x T Gram and a vector for each, with class labels of the steps; a record belongs to
one node: one class for each node and each class of steps. No array is larger than n T^2. `solve_dense` takes noise of
any correlation, as one dense array of flat index t n + u; its encoder is causal in the flat order.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from . import dense_encoder, singletons
from .arithmetic import EPS, ITERATION, blas_threads, even_exponent, scaled, scaled_down
from .certificate import dual_roots, lower_bound, smallest_ridge, target, weights_bound
from .problem import (
    INPUT_TOLERANCE,
    OPTIMAL,
    STATIONARY,
    STOPPED,
    USUAL,
    Array,
    Certified,
    Factorization,
    FactorizationProblem,
    GramProblem,
    ProblemError,
    Stopping,
    class_labels,
)

HALF_SHARE = 0.5  # of the tolerance is the wanted gap of one half
SETTLED = 0.1  # of the tolerance: a round that gains less is the last
MAX_ROUNDS = 50  # pairs of halves
DUAL_SHARES = (1.0, 1e-2, 1e-4)  # of a half's tolerance: gaps of the X whose dual is tried for the bound

Space = TypeVar("Space", bound=Certified)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class KroneckerFactorization(Certified):
    """C = C_t (x) C_s with what it costs and how far that is from the best C on time x nodes.

    Attributes:
        time: the encoder over steps, X_t of unit sensitivity on the classes of steps; space: that over nodes, X_s of
            unit diagonal. Their objectives and lower bounds are those of the half solved last.
        objective: sensitivity^2 tr(H X^-1), per unit noise variance and coordinate.
        lower_bound: no C on time x nodes, of any form, has a smaller objective.
        rounds: pairs of halves that were solved.
        status: "stopped" where a half or the alternation did not settle.
        sensitivity: of X_t (x) X_s, an upper bound.
    """

    time: Factorization
    space: Factorization
    rounds: int
    sensitivity: float = 1.0


def solve(problem: ModeProblem, stopping: Stopping = USUAL, *, max_rounds: int = MAX_ROUNDS) -> KroneckerFactorization:
    """Minimises tr(H X^-1) over products X_t (x) X_s of unit sensitivity.

    >>> pair = ModeProblem(np.array([[[4.0, 2.0], [2.0, 1.0]], np.eye(2)]), np.eye(2), np.array([0, 0]))
    >>> round(solve(pair).objective, 2)  # independent noise costs 2 * (5 + 2)
    13.32

    Args:
        stopping: tolerance: relative; each half is certified within half of it, the alternation ends when a round
            gains less than a tenth of it; max_iterations: of each half.

    Returns: a KroneckerFactorization; up to the tolerance never worse than the best noise over time alone or over nodes
        alone. A singular half is regularised as its solver says, with a note.
    Raises: ProblemError: max_rounds not positive.
    Cost: n T^3 once and for the lower bound; per round one problem over T and one over n. Memory: about 3 n T^2.
    """
    began = time.perf_counter()
    if max_rounds < 1:
        raise ProblemError(f"max_rounds must be at least 1, got {max_rounds!r}.")
    if problem.exponent:
        return solve(problem.normalised, stopping, max_rounds=max_rounds).shifted(problem.exponent)
    singles = np.arange(problem.num_nodes)

    def over_nodes(node_gram: Array) -> tuple[Factorization, Array, float]:
        half = singletons.solve(FactorizationProblem(node_gram, singles), stopping.share(HALF_SHARE))
        return half, problem.node_costs(half.gram), half.sensitivity

    best, rounds, certificate = alternate(problem, over_nodes, stopping, max_rounds=max_rounds)
    took = time.perf_counter() - began
    return KroneckerFactorization(time=best.time, space=best.space, rounds=rounds, seconds=took, **certificate)


@dataclasses.dataclass(frozen=True, eq=False)
class Product(Generic[Space]):
    """Two halves with c and d; `space_sensitivity` is that of the half over nodes, of any class."""

    time: Factorization
    space: Space
    space_sensitivity: float
    node_costs: Array
    time_costs: Array

    @property
    def sensitivity(self) -> float:
        return self.time.sensitivity * self.space_sensitivity

    @property
    def objective(self) -> float:
        return self.sensitivity**2 * float(self.node_costs @ self.time_costs)

    def certificate_fields(self, problem: ModeProblem, stopping: Stopping, *, settled: bool) -> dict[str, Any]:
        """Fields of its `Certified`: bound by the dual of the half over time, notes of both halves by axis."""
        dual = dual_time_gram(problem, self.node_costs, self.time.gram, stopping)
        bound = joint_lower_bound(problem, dual, tolerance=HALF_SHARE * stopping.tolerance)
        unfinished = STATIONARY if settled and STOPPED not in (self.time.status, self.space.status) else STOPPED
        halves = (("time", self.time.notes), ("nodes", self.space.notes))
        return {
            "objective": self.objective,
            "lower_bound": bound,
            "status": OPTIMAL if stopping.reached(self.objective, bound) else unfinished,
            "sensitivity": self.sensitivity,
            "notes": tuple(f"over {axis}: {note}" for axis, notes in halves for note in notes),
        }


def alternate(
    problem: ModeProblem,
    over_nodes: Callable[[Array], tuple[Space, Array, float]],
    stopping: Stopping,
    *,
    max_rounds: int = MAX_ROUNDS,
) -> tuple[Product[Space], int, dict[str, Any]]:
    """(the best product, rounds, fields of its `Certified` without the seconds): each half in turn for the other.

    Args:
        problem: one whose exponent is 0 (`normalised`).
        over_nodes: sum_k d_k u_k u_k^T, shape (n, n) -> the half over nodes within HALF_SHARE of the tolerance, its c
            and its sensitivity.
    """
    best: Product[Space] | None = None
    c, iterations, rounds, settled = np.ones(problem.num_nodes), 0, 0, False
    while rounds < max_rounds and not settled:
        rounds += 1
        in_time = dense_encoder.solve(
            FactorizationProblem(problem.time_gram(c), problem.classes),
            stopping.share(HALF_SHARE),
            start=best.time.gram if best else None,
        )
        d = problem.time_costs(in_time.gram)
        in_space, costs, sensitivity = over_nodes(problem.node_gram(d))
        iterations += in_time.iterations + in_space.iterations
        product = Product(in_time, in_space, sensitivity, costs, d)
        settled = best is not None and product.objective >= best.objective * (1 - SETTLED * stopping.tolerance)
        if best is None or product.objective < best.objective:
            best = product
        c = best.node_costs
    assert best is not None  # max_rounds >= 1
    return best, rounds, {**best.certificate_fields(problem, stopping, settled=settled), "iterations": iterations}


def joint_lower_bound(problem: ModeProblem, dual: Array, *, tolerance: float = 1e-4) -> float:
    """Certified lower bound on min tr(H X^-1) over every X on time x nodes of unit sensitivity.

    For V = V_t (x) diag(v) with V_t >= 0 supported on the classes of steps and v >= 0, every such X has
    tr(V X) = sum_u v_u <V_t, X_uu> <= w_t sum(v) with w_t = sum_c max diag V_t,c, and so, as in `certificate`,

        tr(H X^-1) >= ||A||_*^2 / (w_t sum(v)),    A = V^1/2 H^1/2 for any roots.

    With H_k = R_k R_k^T a root of H is sum_k R_k (x) u_k e_k^T, hence A = sum_k V_t^1/2 R_k (x) diag(v)^1/2 u_k e_k^T.
    Let O_k be the orthogonal polar factor of V_t^1/2 R_k, p_k orthonormal vectors and O = sum_k O_k (x) p_k e_k^T. Then
    O^T O = sum_k I (x) e_k e_k^T = I, so that with nu_k = ||V_t^1/2 R_k||_*

        ||A||_* >= tr(O^T A) = sum_k nu_k <p_k, diag(v)^1/2 u_k>.

    The largest right side over orthonormal p_k is ||diag(v)^1/2 U diag(nu)||_*. Its square over sum(v) is the bound of
    `certificate` for the problem over nodes with error Gram U diag(nu^2) U^T and single classes; v is that problem's
    dual optimum. No array of (n T)^2 is formed, and U need not be exactly orthogonal.

    Rounding: the H_k are lowered by the rounding of their eigenvalues and nu_k by T^2 eps of itself; the last trace
    norm is that of U diag(nu) itself, lowered in its turn.

    Args: dual: V_t before it is restricted to the classes and its diagonal raised to the maximum of each; symmetric
        positive semidefinite, shape (T, T). Any choice is valid; X_t^-1 H_t X_t^-1 is a good one. tolerance: of the
        problem over nodes.
    Cost: n singular value decompositions of T x T and a problem over n.
    """
    if problem.exponent:
        return scaled_down(joint_lower_bound(problem.normalised, dual, tolerance=tolerance), problem.exponent)
    if not np.isfinite(dual).all():
        return 0.0
    n, T = problem.num_nodes, problem.num_steps
    root, w = np.zeros((T, T)), 0.0
    for members, block_root, most in dual_roots(problem.classes, scaled(dual, -even_exponent(dual))):
        root[np.ix_(members, members)] = block_root  # multiples of the dual prove the same
        w += most
    if not 0 < w < np.inf:
        return 0.0
    nu = np.zeros(n)
    with blas_threads(T):
        for k in np.flatnonzero(problem.eigenvalues[:, -1] > 0):
            nu[k] = np.linalg.svd(root.T @ problem.gram_root(int(k), below=True), compute_uv=False).sum()
    nu *= max(1 - (T * T + 4) * EPS, 0.0)
    if not 0 < (scale := float(nu.max())) < np.inf:
        return 0.0
    nu /= scale
    nodes = FactorizationProblem(problem.node_gram(nu**2), np.arange(n))
    X = singletons.solve(nodes, Stopping(tolerance)).gram
    inverse = np.linalg.inv(X)
    solved_for = target(nodes, smallest_ridge(nodes, tolerance)).gram
    v = np.einsum("ui,ij,ju->u", inverse, solved_for, inverse)
    # four roundings: the scale's product, its square, the quotient, and nu / scale
    return weights_bound(nodes, v, root=problem.vectors * nu) * (scale * scale / w) * (1 - 8 * EPS)


def dual_time_gram(problem: ModeProblem, node_costs: Array, X_t: Array, stopping: Stopping) -> Array:
    """X^-1 H_t X^-1, H_t = sum_k c_k H_k: a dual that proves the half over time within HALF_SHARE of the tolerance.

    X is X_t where that is enough: its certificate may come from another dual, and X^-1 H_t X^-1 may prove less. Then X
    is solved for again, to a smaller tolerance. Of the normalised problem: multiples prove the same.
    """
    problem = problem.normalised
    posed = FactorizationProblem(problem.time_gram(node_costs), problem.classes)
    wanted, best, proven, X = stopping.share(HALF_SHARE), X_t, -np.inf, X_t
    for share in DUAL_SHARES:
        ends = wanted.share(share)
        X = X if share == 1 else dense_encoder.solve(posed, ends, start=X).gram
        aim = target(posed, smallest_ridge(posed, ends.tolerance))
        if (bound := lower_bound(posed, X, dual_from=aim.gram)) > proven:
            half = np.linalg.solve(X, aim.root)
            best, proven = half @ half.T, bound
        if wanted.reached(posed.objective(X), proven):
            break
    return best


MAX_SIZE = 4096
"""n T up to which arrays of (n T)^2 are formed: 128 MiB each, and minutes of factorization."""


@dataclasses.dataclass(frozen=True, eq=False)
class ModeProblem(GramProblem):
    """Which noise costs what over time x nodes, and what one record can reach.

    Attributes:
        grams: H_k, shape (n, T, T), symmetric positive semidefinite; some may be singular or zero.
        vectors: U, shape (n, n), orthogonal; column k is u_k.
        classes: integer label per step, shape (T,); the steps of one label, at one node, form one class.

    Raises: ProblemError: shapes, non-finite entries, an H_k not symmetric or not positive semidefinite, all H_k zero, U
        not orthogonal, tr H beyond float64.
    """

    _costs = "grams"

    grams: Array
    vectors: Array
    classes: NDArray[np.intp]

    def __post_init__(self) -> None:
        H, U = np.array(self.grams, dtype=np.float64), np.array(self.vectors, dtype=np.float64)
        if H.ndim != 3 or H.shape[1] != H.shape[2] or H.size == 0:
            raise ProblemError(f"grams must be one square matrix per mode, shape (n, T, T), got shape {H.shape}.")
        n = len(H)
        if U.shape != (n, n):
            raise ProblemError(f"vectors must have one column per mode, shape ({n}, {n}), got shape {U.shape}.")
        self._keep(H, "step", vectors=U)
        if np.abs(U.T @ U - np.eye(n)).max() > INPUT_TOLERANCE:
            raise ProblemError("vectors must be orthogonal (U^T U = I), e.g. the eigenvectors of a symmetric matrix.")

    @property
    def num_nodes(self) -> int:
        return self.grams.shape[0]

    @property
    def num_steps(self) -> int:
        return self.grams.shape[1]

    def time_gram(self, node_costs: Array) -> Array:
        """sum_k c_k H_k, the error Gram of the steps when mode k counts c_k; shape (T, T)."""
        return np.tensordot(node_costs, self.grams, axes=1)

    def node_gram(self, time_costs: Array) -> Array:
        """sum_k d_k u_k u_k^T, the error Gram of the nodes when mode k counts d_k; shape (n, n)."""
        return (self.vectors * time_costs) @ self.vectors.T

    def node_costs(self, node_gram: Array) -> Array:
        """c_k = u_k^T X_s^-1 u_k, shape (n,)."""
        factor = np.linalg.cholesky(node_gram)
        return (scipy.linalg.solve_triangular(factor, self.vectors, lower=True) ** 2).sum(axis=0)

    def time_costs(self, time_gram: Array) -> Array:
        """d_k = tr(H_k X_t^-1), from the roots: no digits are lost where X_t is ill-conditioned; shape (n,)."""
        factor = np.linalg.cholesky(time_gram)
        costs = np.zeros(self.num_nodes)
        with blas_threads(self.num_steps, single_up_to=ITERATION):
            for k in np.flatnonzero(self.eigenvalues[:, -1] > 0):
                costs[k] = (scipy.linalg.solve_triangular(factor, self.gram_root(int(k)), lower=True) ** 2).sum()
        return costs


def joint_classes(classes: ArrayLike, num_nodes: int) -> NDArray[np.intp]:
    """The label of (class of the step, node) at t n + u, shape (T n,).

    >>> joint_classes([0, 1, 0], 2)
    array([0, 1, 2, 3, 0, 1])
    """
    _, labels = np.unique(np.asarray(classes), return_inverse=True)
    return (labels[:, None] * num_nodes + np.arange(num_nodes)).ravel()


def solve_dense(error_gram: ArrayLike, classes: ArrayLike, num_nodes: int, stopping: Stopping = USUAL) -> Factorization:
    """Minimises tr(H X^-1) over every X on time x nodes at unit sensitivity to a certified relative gap.

    Args: error_gram: H, shape (T n, T n), time-major; classes: integer label per step, shape (T,).
    Returns: a Factorization, its encoder lower triangular in time-major order, status "optimal" or "stopped".
    Raises: ProblemError: T n above MAX_SIZE, shapes that do not fit, or an H that `FactorizationProblem` refuses.
    Cost: O((T n)^3) per iteration, about a hundred of them.
    """
    labels = class_labels(classes, np.size(classes), "step")
    if num_nodes < 1:
        raise ProblemError(f"num_nodes must be at least 1, got {num_nodes!r}.")
    if (size := labels.size * num_nodes) > MAX_SIZE:
        raise ProblemError(
            f"time x nodes must hold at most {MAX_SIZE} indices, got {labels.size} * {num_nodes} = {size}; the "
            "per-mode and Kronecker solvers scale further."
        )
    H = np.asarray(error_gram, dtype=np.float64)
    if H.shape != (size, size):
        raise ProblemError(
            f"error_gram must have shape ({size}, {size}) for {labels.size} steps and {num_nodes} nodes, got {H.shape}."
        )
    return dense_encoder.solve(FactorizationProblem(H, joint_classes(labels, num_nodes)), stopping)
