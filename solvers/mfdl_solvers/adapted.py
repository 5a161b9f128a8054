"""Noise over time x nodes with an encoder of its own per direction over the nodes: X = sum_k X_k (x) f_k f_k^T.

The directions come from the best product X_t (x) X_s (`time_space`): F = X_s^1/2 E with E the eigenvectors of
X_s^-1/2 H_s X_s^-1/2. Equal blocks X_k = X_t give the product back, because F F^T = X_s; so the result is never worse.
On a graph that looks alike from every node F spans the modes themselves and the result is the best X of any form.
With H = sum_l H_l (x) u_l u_l^T,

    tr(H X^-1) = sum_k tr(Hhat_k X_k^-1),    Hhat_k = sum_l ((F^-1 u_l)_k)^2 H_l,

and the block of node u in X is sum_k M_uk X_k, M_uk = F_uk^2, every row of M summing to 1. Two steps:

1. Each block alone, X_k = s_k Xhat_k with Xhat_k the best of unit sensitivity for Hhat_k, and the best scales s
   (`best_scales`), a convex program with one constraint per node.
2. All blocks at once, the constraints of all nodes replaced by one weighted sum per class,
   sum_u lam_uc sum_k M_uk (diagonal sum of X_k over c) = 1 with sum_u lam_uc = 1: a relaxation for any lam >= 0, which
   the L-BFGS of `lbfgs` solves on block-diagonal X. Where d_uc, the sum at node u itself, exceeds 1 the multiplier
   grows, lam_uc <- lam_uc d_uc^2 (the plain step of `singletons`). Each X is then scaled to be feasible, and the best
   is kept.

In-class off-diagonal entries vanish in every node's block: their vector over k lies in the kernel of M.
"""

from __future__ import annotations

import dataclasses
import time
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from . import dense, time_space
from .lbfgs import minimise
from .modes_problem import EPS, ModeProblem, eigen_stack
from .problem import (
    OPTIMAL,
    STATIONARY,
    STOPPED,
    Array,
    Certified,
    FactorizationProblem,
    ProblemError,
    causal_encoder,
    relative_gap,
)
from .ridge import CUT, FIRST, FLOOR, SINGULAR
from .threads import ITERATION, blas_threads
from .time_space import TimeSpaceFactorization, joint_lower_bound

SEPARATE_TOLERANCE = 1e-3  # of the blocks alone: they only begin the search
CHECK_EVERY = 5  # iterations between looks at the progress
FLAT = 0.02  # of the tolerance: a relative decrease below it over CHECK_EVERY iterations ends one search
FLATTEST, NEAR, CLOSE = 2e-5, 100, 0.01  # the least such share, tried where the gap is at most CLOSE and NEAR times the
# tolerance: the bound falls behind by the first order of what the search leaves, so that a gap that can close asks for
# more of it; one of percents is the form's own, and thousands of iterations would not close it
GAP_SHARE = 0.02  # of the known gap to the joint bound: once this form can gain no more, another round is not worth it
KERNEL = 1e-10  # of M: smaller singular values count as zero; what that adds to the sensitivity is counted
PAIR_BYTES = 6e8  # for the pairs of L-BFGS


@dataclasses.dataclass(frozen=True, eq=False)
class AdaptedFactorization(Certified):
    """C = sum_k C_k (x) e_k f_k^T with what it costs and how far that is from the best C on time x nodes.

    C is causal: every C_k is lower triangular. C^-1 = sum_k C_k^-1 (x) g_k e_k^T with g_k the columns of F^-T.

    Attributes:
        basis: F, shape (n, n), columns f_k.
        grams: X_k, shape (n, T, T).
        loss: sensitivity^2 tr(H X^-1), per unit noise variance and coordinate.
        lower_bound: no C on time x nodes, of any form, has a smaller loss.
        status: "optimal" (gap within the tolerance), "stationary" (the best of this form up to the tolerance, and the
            gap says what another form can save at most) or "stopped".
        rounds: settings of the multipliers.
        iterations: of all solvers but `time_space`.
        time_space: the product it began with.
        sensitivity: of X, an upper bound from the entries of sum_k M_uk X_k.
        notes: what the reader must know, e.g. that H was regularised.
    """

    basis: Array
    grams: Array
    loss: float
    lower_bound: float
    status: str
    rounds: int
    iterations: int
    seconds: float
    time_space: TimeSpaceFactorization
    sensitivity: float = 1.0
    notes: tuple[str, ...] = ()

    def shifted(self, k: int) -> AdaptedFactorization:
        """As for `Certified`; the product it began with too."""
        return dataclasses.replace(super().shifted(k), time_space=self.time_space.shifted(k))

    @cached_property
    def encoders(self) -> Array:
        """C_k, lower triangular, C_k^T C_k = X_k; shape (n, T, T)."""
        return np.stack([causal_encoder(X) for X in self.grams])


def solve(
    problem: ModeProblem,
    *,
    tolerance: float = 1e-4,
    max_rounds: int = 30,
    max_iterations: int = 5000,
    start: TimeSpaceFactorization | None = None,
) -> AdaptedFactorization:
    """Minimises tr(H X^-1) over X = sum_k X_k (x) f_k f_k^T of unit sensitivity, F from the best product.

    Args:
        problem: modes and classes of steps.
        tolerance: relative; the search ends when no X with this F is better than the best found by more than that,
            or by more than a fiftieth of the certified gap of the best separate blocks.
        max_rounds: settings of the multipliers, hard limit.
        max_iterations: of L-BFGS in all rounds, and of each block alone before.
        start: the product, where it has been solved already; else it is.

    Returns: an AdaptedFactorization of sensitivity 1 up to rounding, never worse than `start`.
    Raises: ProblemError: tolerance or max_rounds not positive; a start of another size.
    Cost: per iteration n Cholesky factorizations of T x T and twice as many triangular solves; memory about
        6 n T^2 + PAIR_BYTES.
    """
    began = time.perf_counter()
    if not tolerance > 0:
        raise ProblemError(f"tolerance must be > 0, got {tolerance!r}.")
    if max_rounds < 1:
        raise ProblemError(f"max_rounds must be at least 1, got {max_rounds!r}.")
    if k := problem.exponent:
        found = solve(
            problem.normalised,
            tolerance=tolerance,
            max_rounds=max_rounds,
            max_iterations=max_iterations,
            start=start and start.shifted(-k),
        ).shifted(k)
        return dataclasses.replace(found, time_space=start) if start else found
    product = start or time_space.solve(problem, tolerance=tolerance, max_iterations=max_iterations)
    n, T = problem.num_nodes, problem.num_steps
    if product.space.gram.shape != (n, n) or product.time.gram.shape != (T, T):
        raise ProblemError(
            f"start must be a product over {T} steps and {n} nodes, got {product.time.gram.shape[0]} and "
            f"{product.space.gram.shape[0]}."
        )
    with blas_threads(T, single_up_to=ITERATION):
        blocks = Blocks.of(problem, product)
        best = _Best(blocks, np.repeat(product.time.gram[None], n, axis=0))
        rho = _smallest_ridge(problem, product.lower_bound, tolerance)
        separate, multipliers, begun = _separate(blocks, product, tolerance, max_iterations)
        iterations, most = begun, begun + max_iterations
        best.update(separate)
        search = _Search(blocks, np.repeat(multipliers[:, None], problem.num_classes, axis=1), separate)
        enough = max(tolerance, GAP_SHARE * relative_gap(best.loss, product.lower_bound))
        bound, rounds, aim = product.lower_bound, 0, max(rho, FIRST * float(blocks.values.max())) if rho > 0 else 0.0
        settled = best.loss <= product.lower_bound * (1 + tolerance)
        while rounds < max_rounds and iterations < most and not settled:
            rounds += 1
            while True:
                relaxed, steps, flat = search.improve(aim, tolerance, most - iterations)
                iterations += steps
                if aim == rho or iterations >= most:
                    break
                aim = max(aim / CUT, rho)
            best.update(search.grams())
            settled = flat and best.loss <= relaxed * (1 + enough)
            if settled:
                bound = max(bound, _joint_bound(problem, blocks, search.grams(), rho, tolerance))
                near = tolerance < relative_gap(best.loss, bound) <= min(NEAR * tolerance, CLOSE)
                if near and search.flat_share > FLATTEST:
                    search.flat_share, settled = search.flat_share / 10, False
                    continue
            search.raise_multipliers()
        if not settled:
            bound = max(bound, _joint_bound(problem, blocks, search.grams(), rho, tolerance))
    unfinished = STATIONARY if settled else STOPPED
    return AdaptedFactorization(
        basis=blocks.basis,
        grams=best.grams,
        loss=best.loss,
        lower_bound=bound,
        status=OPTIMAL if best.loss <= bound * (1 + tolerance) else unfinished,
        rounds=rounds,
        iterations=iterations,
        seconds=time.perf_counter() - began,
        time_space=product,
        sensitivity=best.sensitivity,
        notes=_notes(problem, rho, best.grams),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """What one choice of F makes of a ModeProblem.

    Attributes:
        classes: label per step, shape (T,).
        basis: F; coordinates: (F^-1 u_l)_k at [k, l]; weights: M = F * F; each (n, n).
        values, vectors: eigenvalues (n, T) and eigenvectors (n, T, T) of Hhat_k.
        ridge_share: ||row k of F^-1||^2, shape (n,): Hhat_k of H = I is that times the identity.
    """

    classes: NDArray[np.intp]
    basis: Array
    weights: Array
    values: Array
    vectors: Array
    ridge_share: Array

    @classmethod
    def of(cls, problem: ModeProblem, product: TimeSpaceFactorization) -> Blocks:
        n, T = problem.num_nodes, problem.num_steps
        F = adapted_basis(problem, product)
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
        of_class = np.zeros((labels.size, int(self.classes.max()) + 1))
        of_class[np.arange(labels.size), labels] = 1.0
        return np.asarray(absolute @ of_class)

    def block_losses(self, grams: Array) -> Array:
        """tr(Hhat_k X_k^-1), shape (n,); infinite where X_k is not positive definite."""
        losses = np.empty(len(grams))
        for k, X in enumerate(grams):
            factor, info = scipy.linalg.lapack.dpotrf(X, lower=1)
            if info != 0:
                return np.full(len(grams), np.inf)
            whitened, _ = scipy.linalg.lapack.dtrtrs(factor, self.root(k, 0.0), lower=1)
            losses[k] = (whitened**2).sum()
        return losses

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


def adapted_basis(problem: ModeProblem, product: TimeSpaceFactorization) -> Array:
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

    Args:
        costs: >= 0, not all zero, shape (n,); a zero counts as a tiny one, for the infimum is not attained.
        weights: >= 0, no zero column, shape (m, n).

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


def _separate(
    blocks: Blocks, product: TimeSpaceFactorization, tolerance: float, max_iterations: int
) -> tuple[Array, Array, int]:
    """Each block alone with the best scales, the multipliers of the nodes (they sum to 1), and the iterations."""
    n = len(blocks.values)
    grams, iterations = np.repeat(product.time.gram[None], n, axis=0), 0
    for k in range(n):
        if blocks.values[k, -1] > 1e-12 * blocks.values.max():  # one that costs nothing may be any X
            root = blocks.root(k, 0.0)
            found = dense.solve(
                FactorizationProblem(root @ root.T, blocks.classes),
                tolerance=max(SEPARATE_TOLERANCE, tolerance),
                max_iterations=max_iterations,
                start=product.time.gram,
            )
            grams[k], iterations = found.gram, iterations + found.iterations
    scales, multipliers = best_scales(blocks.block_losses(grams), blocks.weights)
    return scales[:, None, None] * grams, multipliers / multipliers.sum(), iterations


class _Best:
    """The best feasible blocks so far."""

    def __init__(self, blocks: Blocks, grams: Array) -> None:
        self.blocks, self.loss = blocks, np.inf
        self.grams, self.sensitivity = grams, 1.0
        self._offer(grams)

    def update(self, grams: Array) -> None:
        """Makes the blocks feasible in two ways: class by class, and block by block first."""
        self._offer(self._scaled(grams))
        steps = grams.diagonal(axis1=1, axis2=2)
        labels = np.eye(int(self.blocks.classes.max()) + 1)[self.blocks.classes]
        sums = steps @ labels  # (n, classes)
        weights = (self.blocks.weights[:, None, :] * sums.T[None]).reshape(-1, len(grams))
        scales, _ = best_scales(self.blocks.block_losses(grams), weights)
        self._offer(self._scaled(scales[:, None, None] * grams))

    def _scaled(self, grams: Array) -> Array:
        """All blocks scaled alike so that every class reaches 1 at its worst node."""
        scale = 1 / np.sqrt(self.blocks.class_sums(grams).max(axis=0))[self.blocks.classes]
        return grams * np.outer(scale, scale)

    def _offer(self, grams: Array) -> None:
        sensitivity = float(self.blocks.class_sums(grams).max()) ** 0.5
        loss = sensitivity**2 * float(self.blocks.block_losses(grams).sum())
        if loss < self.loss:
            self.grams, self.loss, self.sensitivity = grams, loss, sensitivity


class _Search:
    """X between multipliers: L-BFGS on Y_k = D_k X_k D_k, D_k[t]^2 = omega_kc = sum_u lam_uc M_uk for t of class c.

    In Y the relaxed constraints are plain: the diagonal sum over a class and all blocks is 1. The vector is the
    diagonals, then sqrt(2) x the entries between classes, then sqrt(2) x the coordinates of in-class entries in the
    kernel of M, so that its norm is the Frobenius norm.
    """

    def __init__(self, blocks: Blocks, multipliers: Array, grams: Array) -> None:
        self.blocks, self.multipliers, self.X = blocks, multipliers, grams
        self.n, self.T = blocks.values.shape
        self.flat_share = FLAT
        labels = blocks.classes
        same = labels[:, None] == labels[None, :]
        rows, columns = np.nonzero(np.triu(~same, 1))
        self.upper, self.lower = rows * self.T + columns, columns * self.T + rows
        rows, columns = np.nonzero(np.triu(same, 1))
        self.in_upper, self.in_lower, self.in_labels = rows * self.T + columns, columns * self.T + rows, labels[rows]
        _, s, Vt = np.linalg.svd(blocks.weights)
        self.kernel = Vt[s <= KERNEL * s[0]].T
        self._weigh()

    def _weigh(self) -> None:
        omega = self.blocks.weights.T @ self.multipliers  # (n, classes)
        self.D = np.sqrt(omega)[:, self.blocks.classes]
        # in Y the kernel is that of M diag(1 / omega_c)
        self.kernels = [np.linalg.qr(self.kernel * column[:, None])[0] for column in omega.T]
        self.sizes = np.bincount(self.blocks.classes) * self.n

    def grams(self) -> Array:
        return self.X

    def raise_multipliers(self) -> None:
        self.multipliers = self.multipliers * self.blocks.class_sums(self.X) ** 2
        self.multipliers /= self.multipliers.sum(axis=0)
        self._weigh()

    def improve(self, rho: float, tolerance: float, max_iterations: int) -> tuple[float, int, bool]:
        """Goes on from X; the relaxed value reached (for H + rho I), iterations, and whether progress had ended."""
        # transposed, so that LAPACK takes them without a copy
        roots = np.stack([(self.D[k][:, None] * self.blocks.root(k, rho)).T for k in range(self.n)])
        values: list[float] = []
        share = self.flat_share * tolerance

        def value_and_gradient(x: Array) -> tuple[float, Array]:
            Y, total = self._matrices(x), 0.0
            for k in range(self.n):
                factor, info = scipy.linalg.lapack.dpotrf(Y[k].T, lower=1)
                if info != 0:
                    return np.inf, x
                whitened, _ = scipy.linalg.lapack.dtrtrs(factor, roots[k].T, lower=1)
                total += float((whitened**2).sum())
                solved, _ = scipy.linalg.lapack.dtrtrs(factor, whitened, lower=1, trans=1)
                Y[k] = solved @ solved.T
            return total, -self._without_class_means(self._vector(Y))

        def flat(iteration: int, x: Array, value: float, gradient: Array) -> bool:
            values.append(value)
            return len(values) > CHECK_EVERY and values[-1 - CHECK_EVERY] <= value * (1 + share)

        x = self._inside(self._vector(self.X * self.D[:, :, None] * self.D[:, None, :]))
        memory = max(2, min(10, int(PAIR_BYTES / (16 * x.size))))
        found = minimise(value_and_gradient, x, stop=flat, max_iterations=max_iterations, memory=memory)
        self.X = self._matrices(found.point) / (self.D[:, :, None] * self.D[:, None, :])
        return found.value, found.iterations, found.iterations < max_iterations

    def _inside(self, x: Array) -> Array:
        """x with its diagonals rescaled to the constraints; entries off the diagonal move along, and keep X > 0."""
        Y = self._matrices(x, constrained=False)
        steps = Y.diagonal(axis1=1, axis2=2).sum(axis=0)
        scale = 1 / np.sqrt(np.bincount(self.blocks.classes, weights=steps)[self.blocks.classes])
        return self._vector(Y * np.outer(scale, scale))

    def _vector(self, Y: Array) -> Array:
        flat = Y.reshape(self.n, -1)
        inside = [
            (self.kernels[c].T @ flat[:, self.in_upper[self.in_labels == c]]).ravel() for c in range(len(self.kernels))
        ]
        diagonals = flat[:, :: self.T + 1].ravel()
        return np.concatenate([diagonals, 2**0.5 * flat[:, self.upper].ravel(), 2**0.5 * np.concatenate(inside)])

    def _matrices(self, x: Array, *, constrained: bool = True) -> Array:
        """Y, shape (n, T, T); `constrained`: with class sums of exactly 1 whatever x is."""
        n, T = self.n, self.T
        Y = np.zeros((n, T, T))
        flat = Y.reshape(n, -1)
        between = n * T + n * self.upper.size
        off = x[n * T : between].reshape(n, -1) / 2**0.5
        flat[:, self.upper] = flat[:, self.lower] = off
        if self.kernel.shape[1]:
            rest = x[between:] / 2**0.5
            for c, kernel in enumerate(self.kernels):
                mine = self.in_labels == c
                size = kernel.shape[1] * int(mine.sum())
                inside = kernel @ rest[:size].reshape(kernel.shape[1], -1)
                flat[:, self.in_upper[mine]] = flat[:, self.in_lower[mine]] = inside
                rest = rest[size:]
        diagonals = x
        if constrained:
            diagonals = self._without_class_means(x)
        flat[:, :: T + 1] = diagonals[: n * T].reshape(n, T)
        if constrained:
            flat[:, :: T + 1] += (1.0 / self.sizes)[self.blocks.classes]
        return Y

    def _without_class_means(self, x: Array) -> Array:
        """x with the sum of every class's diagonals, over all blocks, removed."""
        x = x.copy()
        diagonals = x[: self.n * self.T].reshape(self.n, self.T)
        means = np.bincount(self.blocks.classes, weights=diagonals.sum(axis=0)) / self.sizes
        diagonals -= means[self.blocks.classes]
        return x


def _joint_bound(problem: ModeProblem, blocks: Blocks, grams: Array, rho: float, tolerance: float) -> float:
    return joint_lower_bound(problem, blocks.dual_time_gram(grams, rho), tolerance=tolerance / 2)


def _smallest_ridge(problem: ModeProblem, least_loss: float, tolerance: float) -> float:
    """rho of H + rho I as in `ridge`, over time x nodes; 0 for a regular H."""
    largest = float(problem.eigenvalues.max())
    if float(problem.eigenvalues.min()) > SINGULAR * largest:
        return 0.0
    identity_loss = problem.num_nodes * float((np.bincount(problem.classes).astype(np.float64) ** 2).sum())
    return max((tolerance / 8) ** 2 * least_loss / identity_loss, FLOOR * largest)


def _notes(problem: ModeProblem, rho: float, grams: Array) -> tuple[str, ...]:
    if rho == 0:
        return ()
    least = max(float(min(np.linalg.eigvalsh(X)[0] for X in grams)), EPS**2)
    note = (
        f"the error Gram over time x nodes is singular to working precision: the best loss is not attained, so rho = "
        f"{rho:.2g} was added to its eigenvalues; where noise costs nothing it grows without bound as the tolerance "
        f"falls, the largest eigenvalue of a block's X_k^-1 is {1 / least:.2g} here"
    )
    return (note,)
