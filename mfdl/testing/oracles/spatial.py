"""Oracles for noise from seeds shared in groups: every coalition tried, and a semidefinite program.

With R = s I + sum_k R_k, R_k on group k, a coalition I knows the seeds of the groups it meets; what is left is
M_I = s I + sum of the other R_k, and what one unit of signal at node i costs is [M_I^-1]_ii. Sizes: at most about
eight nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...check import FloatArray
from ._program import optimal_value


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
    import cvxpy as cp

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
        kept = np.eye(n)[rest]
        for i in range(len(rest)):
            if not private and not any(rest[i] in group and not set(group) & set(coalition) for group in groups):
                return float("inf")
            constraints.append(cp.matrix_frac(np.eye(len(rest))[i], kept @ M @ kept.T) <= 1)
    return scale * optimal_value(
        cp.Minimize(cp.trace((error_gram / scale) @ (s * np.eye(n) + sum(lifted)))), constraints
    )


def _coalitions(num_nodes: int, size: int) -> list[tuple[int, ...]]:
    return [c for q in range(min(size, num_nodes - 1) + 1) for c in itertools.combinations(range(num_nodes), q)]
