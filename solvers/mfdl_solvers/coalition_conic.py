"""The problem of `coalition_problem` as a semidefinite program, by cvxpy and Clarabel.

[M^-1]_ii <= 1 holds when [[M, e_i], [e_i^T, 1]] >= 0 (Schur complement). The dual of that block, [[Z, w], [w^T, lam]],
gives the certificate's weights: lam and y = -w / lam. Minutes where the Newton method takes seconds: a reference.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from .coalition_bound import lower_bound
from .coalition_problem import CoalitionProblem
from .problem import Array, Stopping


def solve_conic(
    problem: CoalitionProblem, costs: Sequence[Array], stopping: Stopping
) -> tuple[float, list[Array], float, int]:
    """(s, R_k, lower bound, iterations); feasible up to the solver's accuracy, so the result needs scaling."""
    import cvxpy as cp

    scale = float(problem.local_loss)
    n, blocks = problem.size, problem.blocks
    s: Any = cp.Variable(nonneg=True) if problem.private else 0.0
    parts = [cp.Variable((len(group), len(group)), PSD=True) for group in problem.groups]
    embeddings = [np.eye(n)[:, list(group)] for group in problem.groups]
    block_of, node_of = np.nonzero(blocks.constrained)
    constraints = []
    for block, node in zip(block_of, node_of, strict=True):
        nodes = np.flatnonzero(blocks.nodes[block])
        held = np.flatnonzero(blocks.groups[block])
        M = s * np.eye(len(nodes)) + sum(embeddings[k][nodes] @ parts[k] @ embeddings[k][nodes].T for k in held)
        unit = (nodes == node).astype(np.float64)[:, None]
        constraints.append(cp.bmat([[M, unit], [unit.T, np.ones((1, 1))]]) >> 0)
    objective = s * (problem.local_loss / scale) + sum(
        cp.trace((cost / scale) @ part) for cost, part in zip(costs, parts, strict=True)
    )
    program = cp.Problem(cp.Minimize(objective), constraints)
    with warnings.catch_warnings():  # an inaccurate solution is judged by the certificate, not by a warning
        warnings.simplefilter("ignore", UserWarning)
        program.solve(solver=cp.CLARABEL, max_iter=stopping.max_iterations)
    solution = [part.value for part in parts if part.value is not None]
    if len(solution) < len(parts):
        raise RuntimeError(f"the conic solver ended with status {program.status!r} and no point.")
    lam, vectors = np.zeros(len(block_of)), np.zeros((len(block_of), n))
    for j, constraint in enumerate(constraints):
        dual = np.asarray(constraint.dual_value)
        lam[j] = max(float(dual[-1, -1]), 0.0)
        if lam[j] > 0:
            vectors[j, np.flatnonzero(blocks.nodes[block_of[j]])] = -(dual[:-1, -1] + dual[-1, :-1]) / (2 * lam[j])
    bound = lower_bound(problem, lam, vectors, block_of, node_of)
    private_variance = max(float(s.value), 0.0) if problem.private else 0.0
    iterations = int(program.solver_stats.num_iters or 0)
    return private_variance, [_clipped(part) for part in solution], bound, iterations


def _clipped(part: Array) -> Array:
    """The nearest positive semidefinite matrix: what was negative is rounding of the solver."""
    values, vectors = np.linalg.eigh((part + part.T) / 2)
    clipped: Array = (vectors * np.clip(values, 0.0, None)) @ vectors.T
    return clipped
