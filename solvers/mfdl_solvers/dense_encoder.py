"""The dense encoder of a problem with classes: `solve` takes every problem.

Classes of single indices go to `singletons`, others to their dual (below) if H is regular; if that search does not
reach the tolerance, and for a singular H, L-BFGS minimises over X inside the affine set that keeps the sensitivity at
one (`FreeEntries`).

Within a class the off-diagonal entries of X may be zero without loss: at the optimum of that restricted problem
V = X^-1 H X^-1 vanishes off the restricted directions, so its class blocks have constant diagonal and are positive
semidefinite, i.e. dual feasible for the unrestricted problem, and the certificate is tight. What is left is linear; the
gradient is -V projected on these directions.

A singular H is solved as H + rho I for falling rho (`falling_targets`), each from the solution before. Cost per
iteration O(T^3), a few matrix products.

With V block diagonal over the classes, V_c > 0 with equal diagonal entries v_c, and V = W W^T, W block diagonal too:

    maximise  ||W^T H^1/2||_*^2 / sum(v),

the lower bound of `certificate`. With W^T H W = Q diag(s^2) Q^T and S = Q diag(s) Q^T, the bound at V is
tr(S)^2 / sum(v), and X(V) = W^-T S W^-1 solves X V X = H. The slope of the trace norm in W is X W: at the optimum the
blocks X_c are diagonal with sums 1. At any V, X(V) without the entries inside classes, scaled to sums of 1, is
feasible, with an objective above the bound by the square of what was dropped.

Plain step: every row of X W, scaled to one length within its class, is a row of the next W, and v_c is the square of
the sum of lengths that were in class c. It never lowers the bound: the trace norm is convex in W, so for every W'

    ||W'^T H^1/2||_* >= <W', X W>,

and of all W' with equal rows and one sum(v) the right side is largest there. The steps are extrapolated in log v and in
the correlations V_st / v_c. For classes of one index all this is `singletons`.

It takes about five decompositions where L-BFGS on X takes a hundred iterations of T^3. It works with H, so small s lose
half the digits: where it stops to gain, L-BFGS continues from its X.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from . import singletons
from .arithmetic import EPS, ITERATION, blas_threads
from .certificate import Best, RidgeTarget, falling_targets, lower_bound, smallest_ridge
from .iterations import ExtrapolatedPath, minimise
from .problem import USUAL, Array, Factorization, FactorizationProblem, ProblemError, Stopping, relative_gap

CHECK_EVERY = 10  # iterations between certificates: one costs about as much as ten iterations
MEMORY, MEMORY_SINGULAR = 10, 20  # pairs of L-BFGS: twice as many save half the iterations, where H is singular
RIDGE_SHARE = 0.1  # of the gap on H: once the gap on H + rho I is below that share, a smaller rho is due


def solve(
    problem: FactorizationProblem, stopping: Stopping = USUAL, *, start: Array | None = None, device: str | None = None
) -> Factorization:
    """Minimises tr(H X^-1) at unit sensitivity to a certified relative gap.

    Args:
        start: a feasible X to start from (its in-class off-diagonal is dropped, its diagonal rescaled); checked, but
            not used, when every class holds one index: that method takes a few steps from anywhere.
        device: of torch, as "cuda", for the decompositions of a regular H with classes, in float64; default the CPU.

    Returns:
        A Factorization of sensitivity exactly 1 up to rounding; status "optimal" or "stopped". A singular H
        has no minimiser: H + rho I is solved instead, rho as small as the tolerance needs, with a note that names the
        largest noise eigenvalue; objective and lower bound are those of the H that was given. Float64 resolves rho down
        to 1e-16 of the largest eigenvalue of H, enough for a tolerance of 1e-7 or so; X is then so ill-conditioned that
        a problem with large classes may stop earlier.
    """
    if problem.exponent:
        return solve(problem.normalised, stopping, start=start, device=device).shifted(problem.exponent)
    with blas_threads(problem.size):
        initial = _feasible(problem, start)
        if problem.num_classes == problem.size:
            return singletons.solve(problem, stopping)
        best, iterations = Best(problem, stopping, initial), 0
        if not smallest_ridge(problem, stopping.tolerance):
            decompose = lapack if device is None else on_device(device)
            iterations = search(problem, stopping, best, None if start is None else initial, decompose)
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
        memory = MEMORY_SINGULAR if aim.rho > 0 else MEMORY
        left = stopping.max_iterations - iterations
        minimum = minimise(stage.value_and_gradient, x, stop=stage.is_over, max_iterations=left, memory=memory)
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
            f"start must be finite with shape {problem.error_gram.shape} and a positive diagonal, got {start.shape}."
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


PATIENCE, GAIN = 8, 0.5  # the search ends where that many steps did not lower what a step promises by that factor


Decompose = Callable[[Array], tuple[Array, Array]]  # of a symmetric matrix: eigenvalues, ascending, and eigenvectors


def lapack(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors, on the CPU; the matrix is overwritten."""
    values, vectors = scipy.linalg.eigh(matrix.T, driver="evd", overwrite_a=True, check_finite=False)
    return values, vectors


def on_device(device: str) -> Decompose:
    """The same by torch, in float64, on a device as "cuda"."""
    import torch

    def decompose(matrix: Array) -> tuple[Array, Array]:
        values, vectors = torch.linalg.eigh(torch.as_tensor(matrix, device=device))
        return values.cpu().numpy(), np.ascontiguousarray(vectors.cpu().numpy())

    return decompose


def search(
    problem: FactorizationProblem, stopping: Stopping, best: Best, start: Array | None, decompose: Decompose = lapack
) -> int:
    """Searches the dual of a regular H, offers each X and bound to `best`, and returns the number of iterations.

    Args:
        stopping: iterations are eigendecompositions after the first.
        start: an X whose dual is the first, default V = I.
    """
    blocks = ClassBlocks(problem, decompose)
    path = ExtrapolatedPath(blocks.first(start), problem.num_classes)
    due = stopping.tolerance  # the promise at which X is looked at: the gap is a multiple of it, learned on the way
    promises: list[float] = []
    for iteration in range(stopping.max_iterations + 1):
        point = blocks.point(path.at)
        if point is not None:
            promises.append(point.promise)
            if point.promise <= due or iteration == stopping.max_iterations:
                best.offer(point.gram(), point.lower_bound())
                due = point.promise * min(stopping.tolerance / relative_gap(best.objective, best.bound), 0.5)
            stopping.tell(iteration, best.objective, best.bound)
            if best.within_tolerance or stagnates(promises):
                return iteration
        if path.go_back(np.nan if point is None else point.bound):
            continue
        if point is None:
            return iteration
        path.go_on(point.bound, point.plain - path.at, point.counts)
    return stopping.max_iterations


def stagnates(promises: list[float]) -> bool:
    past = promises[-PATIENCE - 1 :]
    return len(past) > PATIENCE and min(past[1:]) > GAIN * past[0]


class ClassBlocks:
    """Indices sorted by class, classes by size: those of one size are one array; points as flat vectors and back."""

    def __init__(self, problem: FactorizationProblem, decompose: Decompose = lapack) -> None:
        self.decompose = decompose
        sizes = problem.class_sizes
        self.order = np.lexsort((problem.classes, sizes[problem.classes]))  # exact: integers
        self.H = problem.error_gram[np.ix_(self.order, self.order)]
        self.eigen = problem.eigen  # of H, which is what V = I needs
        self.groups: list[tuple[slice, int, int]] = []  # rows, number of classes, size of each
        end = 0
        for size in np.unique(sizes):
            start, count = end, int((sizes == size).sum())
            end += count * int(size)
            self.groups.append((slice(start, end), count, int(size)))

    def first(self, gram: Array | None) -> Array:
        """V = I as a vector, or the blocks of X^-1 H X^-1 with equal diagonals."""
        if gram is None:
            return self.vector([np.repeat(np.eye(size)[None], count, axis=0) for _, count, size in self.groups])
        factor = scipy.linalg.cho_factor(gram[np.ix_(self.order, self.order)], lower=True)
        V = scipy.linalg.cho_solve(factor, scipy.linalg.cho_solve(factor, self.H).T)
        blocks = []
        for rows, count, size in self.groups:
            parts = V[rows, rows].reshape(count, size, count, size)[np.arange(count), :, np.arange(count)]
            parts = (parts + parts.transpose(0, 2, 1)) / 2
            diagonal = parts.diagonal(axis1=1, axis2=2)
            parts[:, np.arange(size), np.arange(size)] = diagonal.max(axis=1)[:, None]
            blocks.append(parts)
        return self.vector(blocks)

    def vector(self, blocks: list[Array]) -> Array:
        """log v_c of all classes, then the correlations inside them."""
        logs = [np.log(block[:, 0, 0]) for block in blocks]
        inside = [
            (block / block[:, :1, :1])[:, *np.triu_indices(size, 1)].ravel()
            for block, (_, _, size) in zip(blocks, self.groups, strict=True)
        ]
        return np.concatenate(logs + inside)

    def factors(self, vector: Array) -> list[Array]:
        """W of each group, (classes, size, size), lower triangular; raises LinAlgError outside the domain."""
        logs, inside = np.split(vector, [sum(count for _, count, _ in self.groups)])
        factors = []
        for _, count, size in self.groups:
            upper = np.triu_indices(size, 1)
            values, inside = np.split(inside, [count * upper[0].size])
            block = np.zeros((count, size, size))
            block[:, upper[0], upper[1]] = values.reshape(count, -1)
            block += block.transpose(0, 2, 1) + np.eye(size)
            group_logs, logs = np.split(logs, [count])
            factor = np.linalg.cholesky(block) * np.exp(group_logs / 2)[:, None, None]
            factors.append(np.asarray(factor, dtype=np.float64))
        return factors

    def counts(self, weights: Array) -> Array:
        """For every coordinate the weight v_c of its class."""
        inside, rest = [], weights
        for _, count, size in self.groups:
            inside.append(np.repeat(rest[:count], size * (size - 1) // 2))
            rest = rest[count:]
        return np.concatenate([weights, *inside])

    def times(self, factors: list[Array], matrix: Array) -> Array:
        """The block diagonal matrix of the factors, transposed, times another."""
        out = np.empty_like(matrix)
        for (rows, count, size), factor in zip(self.groups, factors, strict=True):
            part = matrix[rows].reshape(count, size, -1)
            out[rows] = (factor.transpose(0, 2, 1) @ part).reshape(count * size, -1)
        return out

    def point(self, vector: Array) -> ClassDualPoint | None:
        """The point of one decomposition at these coordinates; None outside the domain."""
        try:
            factors = self.factors(vector)
        except np.linalg.LinAlgError:
            return None
        if not vector.any():  # V = I
            values, Q = self.eigen[0], self.eigen[1][self.order]
        else:
            M = self.times(factors, self.times(factors, self.H).T)
            values, Q = self.decompose(M)
        return ClassDualPoint(self, factors, values, Q)


class ClassDualPoint:
    """What one decomposition gives for V: a bound, an X, and the plain step."""

    def __init__(self, blocks: ClassBlocks, factors: list[Array], squares: Array, vectors: Array) -> None:
        self.blocks, self.factors, self.squares, self.vectors = blocks, factors, squares, vectors
        self.singular_values = np.sqrt(np.clip(squares, 0.0, None))
        self.inverses = [np.asarray(np.linalg.inv(factor), dtype=np.float64) for factor in factors]
        self.weights = np.concatenate([(factor**2).sum(axis=2).max(axis=1) for factor in factors])
        self.bound = float(self.singular_values.sum()) ** 2 / float(self.weights.sum())
        slopes, lengths = [], []
        for (rows, count, size), inverse in zip(blocks.groups, self.inverses, strict=True):
            Q = vectors[rows].reshape(count, size, -1)
            slopes.append(inverse.transpose(0, 2, 1) @ ((Q * self.singular_values) @ Q.transpose(0, 2, 1)))
            lengths.append(np.linalg.norm(slopes[-1], axis=2))
        sums = [length.sum(axis=1) for length in lengths]
        gained = float((np.concatenate(sums) ** 2).sum())
        self.promise = gained / self.bound - 1  # least relative gain of a plain step
        # V is scaled to keep sum(v): otherwise the scale, which means nothing, would drift
        new = [(total**2 * (float(self.weights.sum()) / gained))[:, None, None] for total in sums]
        units = [slope / length[:, :, None] for slope, length in zip(slopes, lengths, strict=True)]
        duals = [unit @ unit.transpose(0, 2, 1) * weights for unit, weights in zip(units, new, strict=True)]
        self.plain = blocks.vector(duals)

    @property
    def counts(self) -> Array:
        """What each coordinate counts in an extrapolation."""
        return self.blocks.counts(self.weights / self.weights.max())

    def gram(self) -> Array:
        """X(V) without the entries inside classes, scaled to sums of 1; its definiteness is for others to check."""
        half = self.blocks.times(self.inverses, self.vectors * np.sqrt(self.singular_values))
        X = half @ half.T
        scale = np.empty(len(X))
        for rows, _, size in self.blocks.groups:
            for first in range(rows.start, rows.stop, size):
                within = slice(first, first + size)
                diagonal = X[within, within].diagonal().copy()
                X[within, within] = np.diag(diagonal)
                scale[within] = np.sqrt(diagonal.sum())
        X /= np.outer(scale, scale)
        gram = np.empty_like(X)
        gram[np.ix_(self.blocks.order, self.blocks.order)] = X
        return gram

    def lower_bound(self) -> float:
        """`bound`, lowered by more than the rounding of W^T H W, of its eigenvalues and of the sums."""
        T, largest = self.squares.size, max(group[2] for group in self.blocks.groups)
        widest = max(float((factor**2).sum(axis=(1, 2)).max()) for factor in self.factors)
        formed = 2 * largest * EPS * widest * float(np.linalg.norm(self.blocks.H))  # || |W^T| |H| |W| || at most
        lowered = self.squares - T * EPS * float(self.squares[-1]) - formed
        trace_norm = float(np.sqrt(np.clip(lowered, 0.0, None)).sum()) * (1 - (T + 8) * EPS)
        return max(trace_norm, 0.0) ** 2 / (float(self.weights.sum()) * (1 + 8 * T * EPS))
