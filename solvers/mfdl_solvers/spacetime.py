"""Noise of any correlation over time and nodes, as one dense array: for small problems, and to judge the other forms.

The flat index is t n + u, and a record belongs to one node: one class for each node and each class of steps. The
encoder is causal in that order, so within one step a node's noise may use that of the nodes before it. Nothing else in
`mfdl_solvers` is dense in time x nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import dense
from .problem import USUAL, Factorization, FactorizationProblem, ProblemError, Stopping, class_labels

MAX_SIZE = 4096
"""n T up to which arrays of (n T)^2 are formed: 128 MiB each, and minutes of factorization."""


def joint_classes(classes: ArrayLike, num_nodes: int) -> NDArray[np.intp]:
    """The label of (class of the step, node) at t n + u, shape (T n,).

    >>> joint_classes([0, 1, 0], 2)
    array([0, 1, 2, 3, 0, 1])
    """
    _, labels = np.unique(np.asarray(classes), return_inverse=True)
    return (labels[:, None] * num_nodes + np.arange(num_nodes)).ravel()


def solve(error_gram: ArrayLike, classes: ArrayLike, num_nodes: int, stopping: Stopping = USUAL) -> Factorization:
    """Minimises tr(H X^-1) over every X on time x nodes at unit sensitivity to a certified relative gap.

    Args:
        error_gram: H, shape (T n, T n), time-major.
        classes: integer label per step, shape (T,).
        num_nodes: n >= 1.
        stopping: as in `dense.solve`.

    Returns: a Factorization; its encoder is lower triangular in time-major order, status "optimal" or "stopped".
    Raises: ProblemError: T n above MAX_SIZE, shapes that do not fit, or an H that `FactorizationProblem` refuses.
    Cost: O((T n)^3) per iteration, about a hundred of them.
    """
    labels = class_labels(classes, np.size(classes), "step")
    if num_nodes < 1:
        raise ProblemError(f"num_nodes must be at least 1, got {num_nodes!r}.")
    if (size := labels.size * num_nodes) > MAX_SIZE:
        raise ProblemError(
            f"time x nodes must hold at most {MAX_SIZE} indices, got {labels.size} * {num_nodes} = {size}; the adapted "
            "and time-space solvers scale further."
        )
    H = np.asarray(error_gram, dtype=np.float64)
    if H.shape != (size, size):
        raise ProblemError(
            f"error_gram must have shape ({size}, {size}) for {labels.size} steps and {num_nodes} nodes, got {H.shape}."
        )
    return dense.solve(FactorizationProblem(H, joint_classes(labels, num_nodes)), stopping)
