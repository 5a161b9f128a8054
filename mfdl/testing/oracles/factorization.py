"""The optimal loss as a semidefinite program."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from ...factorization import FactorizationProblem
from ._program import optimal_value

if TYPE_CHECKING:
    from mfdl_solvers import FactorizationProblem


def optimal_loss_reference(problem: FactorizationProblem, *, restricted: bool = True) -> float:
    """min tr(H X^-1) at unit sensitivity as a semidefinite program (cvxpy, CLARABEL).

    Args:
        problem: H and classes.
        restricted: True for X with zero in-class off-diagonal entries and class diagonals that sum to at most 1;
            False for every X whose exact sensitivity, over vectors in any dimension, is at most 1: on each class
            max <X_c, G> over G >= 0 with diag G <= 1, written by its dual min sum(lam), diag(lam) >= X_c.

    Returns: the optimal value, accurate to about 1e-6 of itself when H is well conditioned.
    """
    import cvxpy as cp

    T = problem.size
    scale = float(np.trace(problem.error_gram))
    values, vectors = np.linalg.eigh(problem.error_gram / scale)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    X = cp.Variable((T, T), PSD=True)
    constraints: list[Any] = []
    for label in np.unique(problem.classes):
        members = np.flatnonzero(problem.classes == label)
        if restricted:
            constraints.append(sum(X[t, t] for t in members) <= 1)
            constraints += [X[s, t] == 0 for s, t in itertools.combinations(members, 2)]
        else:
            picked = np.eye(T)[members]
            bound = cp.Variable(members.size)
            constraints += [cp.sum(bound) <= 1, cp.diag(bound) - picked @ X @ picked.T >> 0]
    return scale * optimal_value(cp.Minimize(cp.matrix_frac(root, X)), constraints)
