"""The factorization problem over time x nodes: given by modes (`ModeProblem`), or solved as one dense array.

    minimise  tr(H X^-1)  over X > 0 on time x nodes with unit sensitivity,    H = sum_k H_k (x) u_k u_k^T.

The flat index is t n + u, and a record belongs to one node: one class for each node and each class of steps. By modes,
the problem is a T x T Gram and a vector per mode and class labels of the steps; it is checked once, holds the square
roots of its Grams, and no array is larger than n T^2. `kronecker_encoder` and `per_mode_encoder` solve this form.

`solve_dense` takes noise of any correlation, as one dense array: for small problems, and to judge the other forms. Its
encoder is causal in the flat order, so within one step the noise of a node may use that of the nodes before it. Nothing
else in `mfdl_solvers` is dense in time x nodes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from . import dense_encoder
from .arithmetic import ITERATION, blas_threads
from .problem import (
    INPUT_TOLERANCE,
    USUAL,
    Array,
    Factorization,
    FactorizationProblem,
    GramProblem,
    ProblemError,
    Stopping,
    class_labels,
)

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


def joint_classes(classes: ArrayLike, num_nodes: int) -> NDArray[np.intp]:
    """The label of (class of the step, node) at t n + u, shape (T n,).

    >>> joint_classes([0, 1, 0], 2)
    array([0, 1, 2, 3, 0, 1])
    """
    _, labels = np.unique(np.asarray(classes), return_inverse=True)
    return (labels[:, None] * num_nodes + np.arange(num_nodes)).ravel()


def solve_dense(error_gram: ArrayLike, classes: ArrayLike, num_nodes: int, stopping: Stopping = USUAL) -> Factorization:
    """Minimises tr(H X^-1) over every X on time x nodes at unit sensitivity to a certified relative gap.

    Args:
        error_gram: H, shape (T n, T n), time-major.
        classes: integer label per step, shape (T,).
        num_nodes: n >= 1.
        stopping: as in `dense_encoder.solve`.

    Returns: a Factorization; its encoder is lower triangular in time-major order, status "optimal" or "stopped".
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
