"""A lower bound on tr(H R) over every noise that withstands the coalitions, from any weights and vectors.

Constraint j, [M_j^-1]_ii <= 1 at i = i_j with M_j = s I + sum of R_k over k in U_j, says 2 y_i - y^T M_j y <= 1 for
all y (the maximum over y is [M_j^-1]_ii). So for lam_j >= 0 and vectors y_j, wherever

    S_k = sum over j with k in U_j of lam_j (y_j y_j^T restricted to H_k)  <=  H restricted to H_k,  for each k, and
    sum_j lam_j |y_j|^2 <= tr H  (not needed without private noise, s = 0),

tr(H R) >= s sum_j lam_j |y_j|^2 + sum_k <S_k, R_k> = sum_j lam_j y_j^T M_j y_j >= sum_j lam_j (2 y_j[i_j] - 1).
Given any lam, y, let c be the largest factor by which all lam_j |y_j|^2 can be multiplied; then y -> a y and
lam -> c lam / a^2 with the best a give the bound c A^2 / Lam, A = sum lam_j y_j[i_j], Lam = sum lam_j.

Where H restricted to H_k has a kernel, y_j must vanish there: y_j is first projected on the vectors that do, for all
k in U_j. Eigenvalues of H below KERNEL of the largest count as zero, which lowers H and so the bound.

A second bound needs no weights: for every coalition R >= M, so [R^-1]_ii <= 1, i.e. R solves the problem of one
outside observer and one group of all nodes, whose objective is at least ||H^1/2||_*^2 / n.
"""

from __future__ import annotations

import numpy as np

from .arithmetic import EPS, scaled_down
from .coalition_problem import CoalitionProblem, Indices
from .problem import Array

KERNEL = 1e-10  # relative to the largest eigenvalue of H
DEPENDENT = 1e-12  # kernel directions this close to dependent count once


def group_kernels(problem: CoalitionProblem) -> list[Array]:
    """For each group an orthonormal basis of the kernel of H restricted to it, shape (|H_k|, rank deficit)."""
    floor = KERNEL * float(np.linalg.norm(problem.root, 2)) ** 2
    kernels = []
    for group in problem.groups:
        left, values, _ = np.linalg.svd(problem.root[list(group)], full_matrices=True)
        kernels.append(left[:, values**2 < floor])
    return kernels


def outsider_bound(problem: CoalitionProblem) -> float:
    """||H^1/2||_*^2 / n, rounded down."""
    if problem.exponent:
        return scaled_down(outsider_bound(problem.normalised), problem.exponent)
    values = np.asarray(np.linalg.svd(problem.root, compute_uv=False), dtype=np.float64)
    nuclear = float(_lowered(problem, values).sum())
    return nuclear**2 / problem.size * max(0.0, 1 - 4 * problem.size * EPS)


def _lowered(problem: CoalitionProblem, values: Array) -> Array:
    """Singular values of rows of the root, lowered by what rounding of H may add: sqrt(eps) of the largest at zero."""
    error = 8 * problem.size * EPS * float(np.linalg.norm(problem.root, 2)) ** 2
    lowered: Array = np.sqrt(np.clip(values**2 - error, 0.0, None))
    return lowered


def lower_bound(
    problem: CoalitionProblem, weights: Array, vectors: Array, block_of: Indices, node_of: Indices
) -> float:
    """The better of the two bounds above on the optimum of the problem.

    Args:
        weights: lam_j, finite and >= 0 (below zero is cut off), shape (J,).
        vectors: y_j, shape (J, n); what lies outside the nodes of block j is cut off.
        block_of, node_of: the block and the node i_j of each constraint, shape (J,).

    Guarantees:
        Never above the objective of a feasible R, up to rounding: sums and eigenvalues are rounded down by more than
        their own error; components of y in kernels of H stay below 1e-15 of it, so that R of norm up to 1e12
        cannot profit.
    Cost: O(J n m g^2) for m groups of size g, and a projection per block where H has kernels.
    """
    if problem.exponent:
        return scaled_down(lower_bound(problem.normalised, weights, vectors, block_of, node_of), problem.exponent)
    fallback = outsider_bound(problem)
    used = np.isfinite(weights) & (weights > 0) & np.isfinite(vectors).all(axis=1)
    if not used.any():
        return fallback
    lam, block_of, node_of = weights[used] / weights[used].max(), block_of[used], node_of[used]
    Y = np.where(problem.blocks.nodes[block_of], vectors[used], 0.0)
    kernels = group_kernels(problem)
    if any(kernel.size for kernel in kernels):
        Y = _without_kernels(problem, Y, block_of, kernels)
    seen = problem.blocks.groups[block_of]  # (J, m)
    spread = 0.0  # 1 / c
    if problem.private:
        spread = float((lam * (Y**2).sum(axis=1)).sum()) / problem.local_loss
    for k, (group, kernel) in enumerate(zip(problem.groups, kernels, strict=True)):
        rows = Y[np.ix_(np.flatnonzero(seen[:, k]), np.asarray(group))] * np.sqrt(lam[seen[:, k]])[:, None]
        left, values, _ = np.linalg.svd(problem.root[list(group)], full_matrices=False)
        rank = len(group) - kernel.shape[1]
        if not rows.size or not rank:
            continue
        whitened = (rows @ left[:, :rank]) / _lowered(problem, values[:rank])
        spread = max(spread, float(np.linalg.eigvalsh(whitened.T @ whitened)[-1]))
    gain = float((lam * Y[np.arange(len(lam)), node_of]).sum())
    if not (gain > 0 and spread > 0):
        return fallback
    rounding = 16 * (len(lam) + problem.size) * EPS  # of the sums over j and of the eigenvalues of the whitened
    bound = gain**2 / float(lam.sum()) / spread * (1 - rounding)
    return max(bound, fallback)


def _without_kernels(problem: CoalitionProblem, Y: Array, block_of: Indices, kernels: list[Array]) -> Array:
    Y = Y.copy()
    lifted = []
    for group, kernel in zip(problem.groups, kernels, strict=True):
        tall = np.zeros((problem.size, kernel.shape[1]))
        tall[list(group)] = kernel
        lifted.append(tall)
    for block in np.unique(block_of):
        stacked = np.concatenate([lifted[k] for k in np.flatnonzero(problem.blocks.groups[block])], axis=1)
        if not stacked.size:
            continue
        left, values, _ = np.linalg.svd(stacked, full_matrices=False)
        basis = left[:, values > DEPENDENT * values[0]]
        rows = block_of == block
        for _ in range(2):  # the second pass removes what rounding left
            Y[rows] -= (Y[rows] @ basis) @ basis.T
    return Y
