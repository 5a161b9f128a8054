"""The factorization problem over time x nodes, given by modes.

    minimise  tr(H X^-1)  over X > 0 on time x nodes with unit sensitivity,    H = sum_k H_k (x) u_k u_k^T,

flat index t n + u; one class for each node and each class of steps, for a record belongs to one node. In: a T x T Gram
and a vector per mode, class labels of the steps. Out: the problem, checked once, and the square roots of its Grams. No
array is larger than n T^2; the solvers of this form are `time_space` and `adapted`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from .problem import INPUT_TOLERANCE, Array, GramProblem, ProblemError
from .threads import ITERATION, blas_threads


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
        """n, also the number of modes."""
        return self.grams.shape[0]

    @property
    def num_steps(self) -> int:
        """T."""
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
                costs[k] = (scipy.linalg.solve_triangular(factor, self.root_of(int(k)), lower=True) ** 2).sum()
        return costs
