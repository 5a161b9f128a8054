"""Optimal losses by semidefinite programs (cvxpy, Clarabel): encoders, and noise from seeds shared in groups.

Groups: with R = s I + sum_k R_k, R_k on group k, a coalition I knows the seeds of the groups that it meets. What is
left is M_I = s I + sum of the other R_k, and one unit of signal at node i costs [M_I^-1]_ii. Every coalition is tried.
Sizes: at most about eight nodes.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import extras
from ...check import FloatArray
from ...factorization import FactorizationProblem


def optimal_value(objective: Any, constraints: list[Any], *, inaccurate: bool = False) -> float:
    """Optimum of `cvxpy.Minimize` or `Maximize`, accurate to about 1e-7 of its scale.

    Raises: RuntimeError: the solver ends otherwise; inaccurate solutions count only with `inaccurate`.
    """
    cp = extras.imported("cvxpy", "this oracle")  # a second, which `import mfdl.testing` need not take

    program = cp.Problem(objective, constraints)
    with warnings.catch_warnings():  # the status says it
        warnings.simplefilter("ignore", UserWarning)
        program.solve(solver=cp.CLARABEL)
    if program.status not in ((cp.OPTIMAL, cp.OPTIMAL_INACCURATE) if inaccurate else (cp.OPTIMAL,)):
        raise RuntimeError(f"the reference solver ended with status {program.status!r}.")
    return float(program.value)


def optimal_loss_reference(problem: FactorizationProblem, *, restricted: bool = True) -> float:
    """min tr(H X^-1) at unit sensitivity as a semidefinite program (cvxpy, CLARABEL).

    Args:
        problem: H and classes.
        restricted: True for X with zero in-class off-diagonal entries and class diagonals that sum to at most 1;
            False for every X whose exact sensitivity, over vectors in any dimension, is at most 1: on each class
            max <X_c, G> over G >= 0 with diag G <= 1, written by its dual min sum(lam), diag(lam) >= X_c.

    Returns: the optimal value, accurate to about 1e-6 of itself when H is well conditioned.
    """
    cp = extras.imported("cvxpy", "this oracle")

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


def coalition_inverse_diagonal(
    private_variance: float, parts: Sequence[FloatArray], groups: Sequence[Sequence[int]], num_nodes: int, size: int
) -> float:
    """max [M_I^-1]_ii over all coalitions I of at most `size` nodes and all i outside, one by one; inf if singular.

    Nodes of the coalition are left out of M_I: they are independent of the others given what the coalition knows.

    >>> coalition_inverse_diagonal(0.5, [np.eye(2)], [(0, 1)], 2, 0)
    0.6666666666666666
    >>> coalition_inverse_diagonal(0.5, [np.eye(2)], [(0, 1)], 2, 1)
    2.0
    """
    worst = 0.0
    for coalition in _coalitions(num_nodes, size):
        rest = [i for i in range(num_nodes) if i not in coalition]
        M = private_variance * np.eye(num_nodes)
        for group, part in zip(groups, parts, strict=True):
            if not set(group) & set(coalition):
                M[np.ix_(group, group)] += part
        left = M[np.ix_(rest, rest)]
        if rest and np.linalg.matrix_rank(left, tol=1e-14 * np.abs(left).max(initial=0.0)) < len(rest):
            return float("inf")
        worst = max(worst, float(np.linalg.inv(left).diagonal().max(initial=0.0)))
    return worst


def coalition_loss_reference(
    error_gram: FloatArray, groups: Sequence[Sequence[int]], size: int, *, private: bool = True
) -> float:
    """min tr(H R) with max [M_I^-1]_ii <= 1 over all coalitions of at most `size` nodes (cvxpy, CLARABEL).

    Written with e_i^T M^-1 e_i as cvxpy's `matrix_frac`, and with every subset, none left out.

    Args:
        error_gram: H, positive definite, shape (n, n).
        groups: node indices of each group; size: largest coalition, below n.
        private: whether s > 0 is allowed.

    Returns: the optimal value, accurate to about 1e-6 of itself; inf when there is no such noise.
    Raises: RuntimeError: the solver reports an inaccurate solution, as it may for nearly singular H.
    """
    cp = extras.imported("cvxpy", "this oracle")

    n = len(error_gram)
    scale = float(np.trace(error_gram))
    s: Any = cp.Variable(nonneg=True) if private else 0.0
    parts = [cp.Variable((len(group), len(group)), PSD=True) for group in groups]
    lifted = [
        np.eye(n)[:, list(group)] @ part @ np.eye(n)[list(group)] for group, part in zip(groups, parts, strict=True)
    ]
    constraints = []
    for coalition in _coalitions(n, size):
        unknown = [part for group, part in zip(groups, lifted, strict=True) if not set(group) & set(coalition)]
        M = s * np.eye(n) + sum(unknown)
        rest = np.array([i for i in range(n) if i not in coalition])
        selection = np.eye(n)[rest]
        for i in range(len(rest)):
            if not private and not any(rest[i] in group and not set(group) & set(coalition) for group in groups):
                return float("inf")
            constraints.append(cp.matrix_frac(np.eye(len(rest))[i], selection @ M @ selection.T) <= 1)
    return scale * optimal_value(
        cp.Minimize(cp.trace((error_gram / scale) @ (s * np.eye(n) + sum(lifted)))), constraints
    )


def _coalitions(num_nodes: int, size: int) -> list[tuple[int, ...]]:
    return [c for q in range(min(size, num_nodes - 1) + 1) for c in itertools.combinations(range(num_nodes), q)]
