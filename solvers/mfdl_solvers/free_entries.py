"""Symmetric blocks X_1 .. X_n over the steps as one flat vector, and what they cost: what L-BFGS searches.

The vector holds the diagonals, then sqrt(2) x the entries between classes, then sqrt(2) x the coordinates of in-class
entries in the directions over the blocks that each class allows (none: they vanish). So its norm is the Frobenius norm,
and L-BFGS works in the matrix geometry. Feasible blocks: the diagonals of each class, over all blocks, sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from .problem import Array


class FreeEntries:
    """Vectors and blocks, for one label per step and one orthonormal basis (n, directions) per class."""

    def __init__(self, classes: NDArray[np.intp], kernels: Sequence[Array]) -> None:
        self.classes, self.kernels, self.n, self.T = classes, kernels, len(kernels[0]), classes.size
        self.sizes = np.bincount(classes) * self.n
        same = classes[:, None] == classes[None, :]
        self.between = self._places(~same)
        held = [label for label, kernel in enumerate(kernels) if kernel.size]
        self.inside = [(kernels[label], self._places(same & (classes == label))) for label in held]

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
        kept = self.matrices(self.vector(blocks), feasible=False)
        sums = np.bincount(self.classes, weights=kept.diagonal(axis1=1, axis2=2).sum(axis=0))
        scale = 1 / np.sqrt(sums[self.classes])
        return kept * np.outer(scale, scale)

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
