"""Noise over time x nodes with an encoder per direction over the nodes: X = sum_k X_k (x) f_k f_k^T.

The directions come from the best product X_t (x) X_s (`kronecker_encoder`): F = X_s^1/2 E with E the eigenvectors of
X_s^-1/2 H_s X_s^-1/2. Equal blocks X_k = X_t give the product back, because F F^T = X_s; so the result is never worse.
On a graph that looks alike from every node F spans the modes themselves and the result is the best X of any form. With
H = sum_l H_l (x) u_l u_l^T,

    tr(H X^-1) = sum_k tr(Hhat_k X_k^-1),    Hhat_k = sum_l ((F^-1 u_l)_k)^2 H_l,

and the block of node u in X is sum_k M_uk X_k, M_uk = F_uk^2, every row of M summing to 1. Two steps:

1. Each block alone, X_k = s_k Xhat_k with Xhat_k the best of unit sensitivity for Hhat_k, and the best scales s
   (`best_scales`), a convex program with one constraint per node.
2. All blocks at once, the constraints of all nodes replaced by one weighted sum per class, sum_u lam_uc sum_k M_uk
   (diagonal sum of X_k over c) = 1 with sum_u lam_uc = 1: a relaxation for any lam >= 0, which `Relaxation` solves by
   L-BFGS on block-diagonal X. Where d_uc, the sum at node u itself, exceeds 1 the multiplier grows,
   lam_uc <- lam_uc d_uc^2 (the plain step of `singletons`). The best X scaled to be feasible is kept.

In-class off-diagonal entries vanish in every node's block: their vector over k lies in the kernel of M.
"""

from __future__ import annotations

import dataclasses
import time
from functools import cached_property, partial

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from . import dense_encoder, kronecker_encoder
from .arithmetic import EPS, ITERATION, blas_threads
from .certificate import CUT, FIRST, ridge_for
from .dense_encoder import FreeEntries
from .iterations import minimise
from .kronecker_encoder import KroneckerFactorization, ModeProblem, joint_lower_bound
from .problem import (
    OPTIMAL,
    STATIONARY,
    STOPPED,
    USUAL,
    Array,
    Certified,
    FactorizationProblem,
    ProblemError,
    Stopping,
    causal_encoder,
    eigen_stack,
    relative_gap,
)

SEPARATE_TOLERANCE = 1e-3  # of the blocks alone: they only begin the search
FLATTEST, NEAR, CLOSE = 2e-5, 100, 0.01  # the least flat share, tried where the gap is at most CLOSE and NEAR times the
# tolerance: the bound falls behind by the first order of what the search leaves, so that a gap that can close needs
# more iterations; a gap of percents is due to the form, and thousands of iterations would not close it
GAP_SHARE = 0.02  # of the known gap to the joint bound: once this form can gain no more, another round is not worth it
LOOK_EVERY = 5  # iterations between looks at the progress
FLAT = 0.02  # of the tolerance: a relative decrease below it over LOOK_EVERY iterations ends one search
KERNEL = 1e-10  # of M: smaller singular values count as zero; what that adds to the sensitivity is counted
PAIR_BYTES = 6e8  # for the pairs of L-BFGS


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PerModeFactorization(Certified):
    """C = sum_k C_k (x) e_k f_k^T with what it costs and how far that is from the best C on time x nodes.

    C is causal: every C_k is lower triangular. C^-1 = sum_k C_k^-1 (x) g_k e_k^T with g_k the columns of F^-T.

    Attributes:
        basis: F, shape (n, n), columns f_k; grams: X_k, shape (n, T, T).
        objective: sensitivity^2 tr(H X^-1); no C on time x nodes, of any form, has less than `lower_bound`.
        rounds: settings of the multipliers; iterations: of all solvers but `kronecker`, the product it began with.
        sensitivity: of X, an upper bound from the entries of sum_k M_uk X_k.
    """

    basis: Array
    grams: Array
    rounds: int
    kronecker: KroneckerFactorization
    sensitivity: float = 1.0

    @cached_property
    def encoders(self) -> Array:
        """C_k, lower triangular, C_k^T C_k = X_k; shape (n, T, T)."""
        return np.stack([causal_encoder(X) for X in self.grams])


def solve(
    problem: ModeProblem,
    stopping: Stopping = USUAL,
    *,
    max_rounds: int = 30,
    start: KroneckerFactorization | None = None,
) -> PerModeFactorization:
    """Minimises tr(H X^-1) over X = sum_k X_k (x) f_k f_k^T of unit sensitivity, F from the best product.

    Args:
        stopping: tolerance: relative; the search ends when no X with this F is better than the best found by more than
            that, or by more than a fiftieth of the certified gap of the best separate blocks. max_iterations: of L-BFGS
            in all rounds, and of each block alone before.
        max_rounds: settings of the multipliers; start: the product, where it has been solved already.
    Returns: Of sensitivity 1 up to rounding, never worse than `start`.
    Raises: ProblemError: max_rounds not positive; a start of another size.
    Cost: per iteration n Cholesky factorizations of T x T and twice as many triangular solves; memory about 6 n T^2 +
        PAIR_BYTES.
    """
    began = time.perf_counter()
    if max_rounds < 1:
        raise ProblemError(f"max_rounds must be at least 1, got {max_rounds!r}.")
    if k := problem.exponent:
        at_one = start and start.shifted(-k)
        solved = solve(problem.normalised, stopping, max_rounds=max_rounds, start=at_one).shifted(k)
        return dataclasses.replace(solved, kronecker=start) if start else solved
    product = start or kronecker_encoder.solve(problem, stopping)
    n, T = problem.num_nodes, problem.num_steps
    if product.space.gram.shape != (n, n) or product.time.gram.shape != (T, T):
        raise ProblemError(
            f"start must be a product over {T} steps and {n} nodes, got {product.time.gram.shape[0]} and "
            f"{product.space.gram.shape[0]}."
        )
    with blas_threads(T, single_up_to=ITERATION):
        search = _PerModeSearch(problem, product, stopping)
        settled = search.go_on(max_rounds)
    best, unfinished = search.best, STATIONARY if settled else STOPPED
    return PerModeFactorization(
        basis=search.blocks.basis,
        grams=best.grams,
        objective=best.objective,
        lower_bound=search.bound,
        status=OPTIMAL if stopping.reached(best.objective, search.bound) else unfinished,
        rounds=search.rounds,
        iterations=search.iterations,
        seconds=time.perf_counter() - began,
        kronecker=product,
        sensitivity=best.sensitivity,
        notes=_notes(problem, search.rho, best.grams),
    )


class _PerModeSearch:
    """Both steps: the blocks alone, then rounds of the relaxation; the best blocks and the best bound so far."""

    def __init__(self, problem: ModeProblem, product: KroneckerFactorization, stopping: Stopping) -> None:
        self.problem, self.stopping, self.bound, self.rounds = problem, stopping, product.lower_bound, 0
        self.blocks = ModeBlocks.from_product(problem, product)
        self.best = _BestBlocks(self.blocks, np.repeat(product.time.gram[None], problem.num_nodes, axis=0))
        separate, multipliers, self.iterations = _separate(self.blocks, product, stopping)
        self.most = self.iterations + stopping.max_iterations
        self.best.update(separate)
        per_class = np.repeat(multipliers[:, None], problem.num_classes, axis=1)
        self.relaxation = Relaxation(self.blocks, per_class, separate)
        sizes = np.tile(np.bincount(problem.classes), problem.num_nodes)
        self.rho = self.aim = ridge_for(problem.eigenvalues, product.lower_bound, sizes, stopping.tolerance)
        if self.rho > 0:
            self.aim = max(self.rho, FIRST * float(self.blocks.values.max()))

    def go_on(self, max_rounds: int) -> bool:
        """Runs rounds until the search settles or a limit is met; whether it settled."""
        settled = self.stopping.reached(self.best.objective, self.bound)
        enough = Stopping(max(self.stopping.tolerance, GAP_SHARE * relative_gap(self.best.objective, self.bound)))
        while self.rounds < max_rounds and self.iterations < self.most and not settled:
            self.rounds += 1
            relaxed, flat = self._relaxed()
            self.best.update(self.relaxation.X)
            settled = flat and enough.reached(self.best.objective, relaxed)
            if settled:
                self._prove()
                if self._near() and self.relaxation.flat_share > FLATTEST:
                    self.relaxation.flat_share, settled = self.relaxation.flat_share / 10, False
                    continue
            self.relaxation.raise_multipliers()
        if not settled:
            self._prove()
        return settled

    def _relaxed(self) -> tuple[float, bool]:
        """The relaxed value for these multipliers, rho falling to its least, and whether progress had ended."""
        while True:
            left = Stopping(self.stopping.tolerance, self.most - self.iterations)
            value, steps, flat = self.relaxation.improve(self.aim, left)
            self.iterations += steps
            if self.aim == self.rho or self.iterations >= self.most:
                return value, flat
            self.aim = max(self.aim / CUT, self.rho)

    def _near(self) -> bool:
        tolerance = self.stopping.tolerance
        return tolerance < relative_gap(self.best.objective, self.bound) <= min(NEAR * tolerance, CLOSE)

    def _prove(self) -> None:
        dual = self.blocks.dual_time_gram(self.relaxation.X, self.rho)
        half = self.stopping.share(1 / 2).tolerance
        self.bound = max(self.bound, joint_lower_bound(self.problem, dual, tolerance=half))


def _separate(blocks: ModeBlocks, product: KroneckerFactorization, stopping: Stopping) -> tuple[Array, Array, int]:
    """Each block alone with the best scales, the multipliers of the nodes (they sum to 1), and the iterations."""
    n = len(blocks.values)
    coarse = Stopping(max(SEPARATE_TOLERANCE, stopping.tolerance), stopping.max_iterations)
    grams, iterations = np.repeat(product.time.gram[None], n, axis=0), 0
    for k in range(n):
        if blocks.values[k, -1] > 1e-12 * blocks.values.max():  # one that costs nothing may be any X
            root = blocks.root(k, 0.0)
            alone = FactorizationProblem(root @ root.T, blocks.classes)
            solved = dense_encoder.solve(alone, coarse, start=product.time.gram)
            grams[k], iterations = solved.gram, iterations + solved.iterations
    scales, multipliers = best_scales(blocks.block_objectives(grams), blocks.weights)
    return scales[:, None, None] * grams, multipliers / multipliers.sum(), iterations


class _BestBlocks:
    """The best feasible blocks so far."""

    def __init__(self, blocks: ModeBlocks, grams: Array) -> None:
        self.blocks, self.objective = blocks, np.inf
        self.grams, self.sensitivity = grams, 1.0
        self._offer(grams)

    def update(self, grams: Array) -> None:
        """Makes the blocks feasible in two ways: class by class, and block by block first."""
        self._offer(self._scaled(grams))
        steps = grams.diagonal(axis1=1, axis2=2)
        labels = np.eye(int(self.blocks.classes.max()) + 1)[self.blocks.classes]
        sums = steps @ labels  # (n, classes)
        weights = (self.blocks.weights[:, None, :] * sums.T[None]).reshape(-1, len(grams))
        scales, _ = best_scales(self.blocks.block_objectives(grams), weights)
        self._offer(self._scaled(scales[:, None, None] * grams))

    def _scaled(self, grams: Array) -> Array:
        """All blocks scaled alike so that every class reaches 1 at its worst node."""
        scale = 1 / np.sqrt(self.blocks.class_sums(grams).max(axis=0))[self.blocks.classes]
        return grams * np.outer(scale, scale)

    def _offer(self, grams: Array) -> None:
        sensitivity = float(self.blocks.class_sums(grams).max()) ** 0.5
        objective = sensitivity**2 * float(self.blocks.block_objectives(grams).sum())
        if objective < self.objective:
            self.grams, self.objective, self.sensitivity = grams, objective, sensitivity


def _notes(problem: ModeProblem, rho: float, grams: Array) -> tuple[str, ...]:
    if rho == 0:
        return ()
    least = max(float(min(np.linalg.eigvalsh(X)[0] for X in grams)), EPS**2)
    note = (
        "the error Gram over time x nodes is singular to working precision: the best objective is not attained, so "
        f"rho = {rho:.2g} was added to its eigenvalues; where noise costs nothing it grows without bound as the "
        f"tolerance falls, the largest eigenvalue of a block's X_k^-1 is {1 / least:.2g} here"
    )
    return (note,)


class Relaxation:
    """X between multipliers: L-BFGS on Y_k = D_k X_k D_k, D_k[t]^2 = omega_kc = sum_u lam_uc M_uk for t of class c.

    In Y the relaxed constraints are plain: the diagonal sum over a class and all blocks is 1, and in-class entries off
    the diagonal lie in the kernel of M (`FreeEntries`).
    """

    def __init__(self, blocks: ModeBlocks, multipliers: Array, grams: Array) -> None:
        self.blocks, self.multipliers, self.X = blocks, multipliers, grams
        self.flat_share = FLAT
        _, s, Vt = np.linalg.svd(blocks.weights)
        self.kernel = Vt[s <= KERNEL * s[0]].T
        self._weigh()

    def _weigh(self) -> None:
        omega = self.blocks.weights.T @ self.multipliers  # (n, classes)
        self.D = np.sqrt(omega)[:, self.blocks.classes]
        # in Y the kernel is that of M diag(1 / omega_c)
        kernels = [np.linalg.qr(self.kernel * column[:, None])[0] for column in omega.T]
        self.free = FreeEntries(self.blocks.classes, kernels)

    def raise_multipliers(self) -> None:
        self.multipliers = self.multipliers * self.blocks.class_sums(self.X) ** 2
        self.multipliers /= self.multipliers.sum(axis=0)
        self._weigh()

    def improve(self, rho: float, stopping: Stopping) -> tuple[float, int, bool]:
        """Goes on from X; the relaxed value reached (for H + rho I), iterations, and whether progress had ended."""
        roots = [np.asfortranarray(D[:, None] * self.blocks.root(k, rho)) for k, D in enumerate(self.D)]
        values: list[float] = []
        share = self.flat_share * stopping.tolerance

        def flat(iteration: int, x: Array, value: float, gradient: Array) -> bool:
            values.append(value)
            return len(values) > LOOK_EVERY and values[-1 - LOOK_EVERY] <= value * (1 + share)

        left, right = self.D[:, :, None], self.D[:, None, :]
        x = self.free.vector(self.free.feasible(self.X * left * right))
        memory = max(2, min(10, int(PAIR_BYTES / (16 * x.size))))
        most, value_and_gradient = stopping.max_iterations, partial(self.free.value_and_gradient, roots=roots)
        minimum = minimise(value_and_gradient, x, stop=flat, max_iterations=most, memory=memory)
        self.X = self.free.matrices(minimum.point) / (left * right)
        return minimum.value, minimum.iterations, minimum.iterations < most


@dataclasses.dataclass(frozen=True, eq=False)
class ModeBlocks:
    """A ModeProblem in the directions F.

    Attributes: classes: label per step, shape (T,); basis: F; coordinates: (F^-1 u_l)_k at [k, l]; weights: M = F * F,
        each (n, n); values, vectors: eigenvalues (n, T) and eigenvectors (n, T, T) of Hhat_k; ridge_share: ||row k of
        F^-1||^2, shape (n,): Hhat_k of H = I is that times the identity.
    """

    classes: NDArray[np.intp]
    basis: Array
    weights: Array
    values: Array
    vectors: Array
    ridge_share: Array

    @classmethod
    def from_product(cls, problem: ModeProblem, product: KroneckerFactorization) -> ModeBlocks:
        n, T = problem.num_nodes, problem.num_steps
        F = per_mode_basis(problem, product)
        inverse = np.linalg.inv(F)
        shares = (inverse @ problem.vectors) ** 2
        values, vectors = eigen_stack((shares @ problem.grams.reshape(n, -1)).reshape(n, T, T))
        return cls(problem.classes, F, F**2, np.clip(values, 0.0, None), vectors, (inverse**2).sum(axis=1))

    @cached_property
    def same_class(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Rows, columns and class of the entries within classes, diagonal included, both triangles."""
        rows, columns = np.nonzero(self.classes[:, None] == self.classes[None, :])
        return rows, columns, self.classes[rows]

    def root(self, k: int, rho: float) -> Array:
        """R R^T = Hhat_k + rho ||row k of F^-1||^2 I."""
        return self.vectors[k] * np.sqrt(self.values[k] + rho * self.ridge_share[k])

    def class_sums(self, grams: Array) -> Array:
        """d_uc = sum over s, t of class c of |sum_k M_uk X_k[s, t]|, shape (n, classes).

        Its maximum bounds the squared sensitivity, and is exact where the in-class entries are not negative.
        """
        rows, columns, labels = self.same_class
        absolute = np.abs(self.weights @ grams[:, rows, columns])
        return np.asarray(absolute @ np.eye(int(self.classes.max()) + 1)[labels])

    def block_objectives(self, grams: Array) -> Array:
        """tr(Hhat_k X_k^-1), shape (n,); infinite where X_k is not positive definite."""
        objectives = np.empty(len(grams))
        for k, X in enumerate(grams):
            factor, info = scipy.linalg.lapack.dpotrf(X, lower=1)
            if info != 0:
                return np.full(len(grams), np.inf)
            whitened, _ = scipy.linalg.lapack.dtrtrs(factor, self.root(k, 0.0), lower=1)
            objectives[k] = (whitened**2).sum()
        return objectives

    def dual_time_gram(self, grams: Array, rho: float) -> Array:
        """V = X^-1 H X^-1, averaged over the nodes and without what couples two directions: a V_t for the joint bound.

        Node u sees (F^-T)_uk (F^-T)_ul X_k^-1 Hhat_kl X_l^-1; the sum over u of the terms k = l remains. Zero, which
        proves nothing, where rounding made a block indefinite.
        """
        dual = np.zeros(grams.shape[1:])
        for k, X in enumerate(grams):
            factor, info = scipy.linalg.lapack.dpotrf(X, lower=1)
            if info != 0:
                return np.zeros_like(dual)
            half, _ = scipy.linalg.lapack.dpotrs(factor, self.root(k, rho), lower=1)
            dual += self.ridge_share[k] * (half @ half.T)
        return dual


def per_mode_basis(problem: ModeProblem, product: KroneckerFactorization) -> Array:
    """F = X_s^1/2 E, F F^T = X_s; where the modes are such eigenvectors E = U, whatever eigenvalues coincide."""
    values, Q = np.linalg.eigh(product.space.gram)
    root, inverse_root = (Q * np.sqrt(values)) @ Q.T, (Q / np.sqrt(values)) @ Q.T
    in_modes = problem.vectors.T @ inverse_root @ problem.vectors
    d = problem.time_costs(product.time.gram)
    K = (in_modes * d) @ in_modes
    off = np.abs(in_modes - np.diag(np.diagonal(in_modes))).max()
    rotation = np.eye(len(K)) if off <= 1e-10 * np.abs(in_modes).max() else np.linalg.eigh((K + K.T) / 2)[1]
    return np.asarray(root @ problem.vectors @ rotation)


def best_scales(costs: Array, weights: Array, *, tolerance: float = 1e-8) -> tuple[Array, Array]:
    """Minimises sum_k costs_k / s_k subject to weights s <= 1, by a barrier and Newton's method in log s.

    >>> s, multipliers = best_scales(np.array([1.0, 4.0]), np.array([[1.0, 1.0]]))
    >>> np.round(s, 4)
    array([0.3333, 0.6667])

    Args: costs: >= 0, not all zero, shape (n,); a zero counts as a tiny one; weights: >= 0, no zero column, shape (m,
        n).
    Returns: s, and a multiplier > 0 per constraint; their gap, m times the barrier's weight, is about the tolerance.
    """
    phi = np.maximum(costs, 1e-14 * costs.sum())
    y = np.full(phi.size, -np.log(2 * weights.sum(axis=1).max()))
    mu = float((phi * np.exp(-y)).sum()) / len(weights)

    def value(at: Array) -> float:
        slack = 1 - weights @ np.exp(at)
        return float((phi * np.exp(-at)).sum() - mu * np.log(slack).sum()) if slack.min() > 0 else np.inf

    while True:
        for _ in range(50):
            s = np.exp(y)
            q = 1 / (1 - weights @ s)
            pull = mu * s * (weights.T @ q)
            gradient = pull - phi / s
            scaled = weights * s * q[:, None]
            hessian = mu * scaled.T @ scaled
            hessian[np.diag_indices(phi.size)] += pull + phi / s
            direction = -np.linalg.solve(hessian, gradient)
            decrement = float(-gradient @ direction)
            step, now = 1 / max(1.0, 0.5 * float(np.abs(direction).max())), value(y)
            # near the centre full steps converge, and rounding hides what they gain: only the domain is checked
            most = np.finfo(np.float64).max if decrement <= 1e-2 * mu else now
            while step > 1e-10 and not value(y + step * direction) <= most - 0.1 * step * decrement:
                step /= 2
            if step <= 1e-10:
                break
            y = y + step * direction
            if decrement <= 1e-10 * mu:
                break
        if mu * len(weights) <= tolerance * float((phi * np.exp(-y)).sum()):
            s = np.exp(y)
            return s, mu / (1 - weights @ s)
        mu /= 5
