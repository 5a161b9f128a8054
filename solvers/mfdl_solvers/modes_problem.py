"""The factorization problem over time x nodes, given by modes.

    minimise  tr(H X^-1)  over X > 0 on time x nodes with unit sensitivity,    H = sum_k H_k (x) u_k u_k^T,

flat index t n + u; one class for each node and each class of steps, for a record belongs to one node. In: a T x T Gram
and a vector per mode, class labels of the steps. Out: the problem, checked once, and the square roots of its Grams. No
array is larger than n T^2; the solvers of this form are `time_space` and `adapted`.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from .problem import Array, ProblemError, class_labels, loss_in_range
from .scale import EPS, AtAnyScale, even_exponent, scaled
from .threads import ITERATION, blas_threads

INPUT_TOLERANCE = 1e-9  # relative: asymmetry, negative eigenvalues and departure from orthogonality of what is given


@dataclasses.dataclass(frozen=True, eq=False)
class ModeProblem(AtAnyScale):
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
        n, T = H.shape[:2]
        if U.shape != (n, n):
            raise ProblemError(f"vectors must have one column per mode, shape ({n}, {n}), got shape {U.shape}.")
        if not (np.isfinite(H).all() and np.isfinite(U).all()):
            raise ProblemError("grams and vectors must be finite, got a nan or infinite entry.")
        labels = class_labels(self.classes, T, "step")
        if np.abs(U.T @ U - np.eye(n)).max() > INPUT_TOLERANCE:
            raise ProblemError("vectors must be orthogonal (U^T U = I), e.g. the eigenvectors of a symmetric matrix.")
        H = scaled(H, -(exponent := even_exponent(H)))
        scale = np.abs(H).max()
        if scale == 0:
            raise ProblemError("grams must not all be zero: no noise costs anything, so there is nothing to minimise.")
        for k in range(n):  # one by one: a second array of all modes is not needed
            if np.abs(H[k] - H[k].T).max() > INPUT_TOLERANCE * scale:
                raise ProblemError(f"grams must be symmetric, mode {k} is not; use (H + H.T) / 2 if you mean that.")
            H[k] = (H[k] + H[k].T) / 2
        loss_in_range(float(np.einsum("ktt->", H)), exponent)
        H = scaled(H, exponent)
        for name, array in (("grams", H), ("vectors", U), ("classes", labels)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if (least := float(self.eigenvalues.min())) < -INPUT_TOLERANCE * float(self.eigenvalues.max()):
            raise ProblemError(f"grams must be positive semidefinite, got an eigenvalue {least:.3g}.")

    @property
    def num_nodes(self) -> int:
        """n, also the number of modes."""
        return self.grams.shape[0]

    @property
    def num_steps(self) -> int:
        """T."""
        return self.grams.shape[1]

    @property
    def num_classes(self) -> int:
        """Number of classes of steps."""
        return int(self.classes.max()) + 1

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        values, vectors = eigen_stack(scaled(self.grams, -self.exponent))
        return scaled(values, self.exponent), vectors

    @property
    def eigenvalues(self) -> Array:
        """Of each H_k, ascending, shape (n, T)."""
        return self._eigen[0]

    def root(self, mode: int) -> Array:
        """R_k with R_k R_k^T = H_k after negative rounding eigenvalues are set to zero, shape (T, T)."""
        values, vectors = self._eigen
        return vectors[mode] * np.sqrt(np.clip(values[mode], 0.0, None))

    def root_below(self, mode: int) -> Array:
        """R_k with R_k R_k^T <= H_k in spite of the rounding of its eigenvalues."""
        values, vectors = self._eigen
        lowered = values[mode] - self.num_steps * EPS * values[mode, -1]
        return vectors[mode] * np.sqrt(np.clip(lowered, 0.0, None))

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
                costs[k] = (scipy.linalg.solve_triangular(factor, self.root(int(k)), lower=True) ** 2).sum()
        return costs


def eigen_stack(matrices: Array) -> tuple[Array, Array]:
    """Eigenvalues (n, T), ascending, and eigenvectors (n, T, T) of n symmetric matrices."""
    values, vectors = np.empty(matrices.shape[:2]), np.empty(matrices.shape)
    with blas_threads(matrices.shape[1]):
        for k, matrix in enumerate(matrices):
            values[k], vectors[k] = scipy.linalg.eigh(matrix, driver="evd")
    return values, vectors
