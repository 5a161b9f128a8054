"""All blocks of `adapted` at once, under one weighted sum of the nodes' constraints per class: L-BFGS on the blocks.

In: `Blocks`, a multiplier per node and class, feasible X_k to begin with. Out: better X_k for these multipliers, and
the relaxed value they reach; then the multipliers are raised where a node's own constraint is broken.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from .adapted_blocks import Blocks
from .lbfgs import minimise
from .problem import Array, Stopping

CHECK_EVERY = 5  # iterations between looks at the progress
FLAT = 0.02  # of the tolerance: a relative decrease below it over CHECK_EVERY iterations ends one search
KERNEL = 1e-10  # of M: smaller singular values count as zero; what that adds to the sensitivity is counted
PAIR_BYTES = 6e8  # for the pairs of L-BFGS


class Relaxation:
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

    def raise_multipliers(self) -> None:
        self.multipliers = self.multipliers * self.blocks.class_sums(self.X) ** 2
        self.multipliers /= self.multipliers.sum(axis=0)
        self._weigh()

    def improve(self, rho: float, stopping: Stopping) -> tuple[float, int, bool]:
        """Goes on from X; the relaxed value reached (for H + rho I), iterations, and whether progress had ended."""
        # transposed, so that LAPACK takes them without a copy
        roots = np.stack([(self.D[k][:, None] * self.blocks.root(k, rho)).T for k in range(self.n)])
        values: list[float] = []
        share = self.flat_share * stopping.tolerance

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
        most = stopping.max_iterations
        minimum = minimise(value_and_gradient, x, stop=flat, max_iterations=most, memory=memory)
        self.X = self._matrices(minimum.point) / (self.D[:, :, None] * self.D[:, None, :])
        return minimum.value, minimum.iterations, minimum.iterations < most

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
