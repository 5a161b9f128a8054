"""The dual of a problem with classes: a few numbers per class, one eigendecomposition per step, where H is regular.

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

It takes about five decompositions where L-BFGS on X takes a hundred iterations of T^3: it sees b k (k - 1) / 2 numbers
instead of T^2 / 2, in coordinates that scale with X. It works with H, so small s lose half the digits: where the search
stops to gain, `dense_encoder` continues from its X.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg

from .arithmetic import EPS
from .certificate import Best
from .iterations import ExtrapolatedPath
from .problem import Array, FactorizationProblem, Stopping, relative_gap

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
    problem: FactorizationProblem,
    stopping: Stopping,
    best: Best,
    start: Array | None,
    decompose: Decompose = lapack,
) -> int:
    """Searches the dual, offers each X and bound to `best`, and returns the number of iterations.

    Args:
        problem: of a regular H.
        stopping: iterations are eigendecompositions after the first.
        best: X and bound so far; if it does not reach the tolerance, another method must continue.
        start: an X whose dual is the first, default V = I.
        decompose: what takes most of the time.
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
    """Whether the last steps gained too little to continue."""
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
            factors.append(
                np.asarray(np.linalg.cholesky(block) * np.exp(group_logs / 2)[:, None, None], dtype=np.float64)
            )
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
