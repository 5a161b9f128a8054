"""Seeds shared by groups of nodes, against coalitions that know some of them: the problem in arrays.

The noise of the n nodes has covariance R = s I + sum_k R_k: s >= 0 is the variance of what each node draws alone, R_k
>= 0 lives on group k (rows and columns H_k) and is drawn from a seed that its members share. A coalition I of q nodes
knows the seeds of the groups it meets, U(I) are the others, and

    minimise  tr(H R)   subject to   [(s I + sum of R_k over k in U(I))^-1]_ii <= 1   for all |I| = q, i not in I.

Smaller coalitions know less and are covered. For a bound r instead of 1 divide R and the objective by r. The noise
left, M, splits into the connected components of the groups in U(I); each is a `block` here: its groups and the nodes
they reach. Where one block is part of another only the smallest ones around each node are kept (M is smaller). A node
that no unknown seed reaches forces s >= 1, and then s = 1 without seeds (LDP) is optimal.

A lower bound on tr(H R) over every noise that withstands the coalitions, from any weights and vectors: constraint j,
[M_j^-1]_ii <= 1 at i = i_j with M_j = s I + sum of R_k over k in U_j, says 2 y_i - y^T M_j y <= 1 for all y (the
maximum over y is [M_j^-1]_ii). So for lam_j >= 0 and vectors y_j, wherever

    S_k = sum over j with k in U_j of lam_j (y_j y_j^T restricted to H_k)  <=  H restricted to H_k,  for each k, and
    sum_j lam_j |y_j|^2 <= tr H  (not needed without private noise, s = 0),

tr(H R) >= s sum_j lam_j |y_j|^2 + sum_k <S_k, R_k> = sum_j lam_j y_j^T M_j y_j >= sum_j lam_j (2 y_j[i_j] - 1). Given
any lam, y, let c be the largest factor by which all lam_j |y_j|^2 can be multiplied; then y -> a y and lam -> c lam /
a^2 with the best a give the bound c A^2 / Lam, A = sum lam_j y_j[i_j], Lam = sum lam_j.

Where H restricted to H_k has a kernel, y_j is first projected on the vectors that vanish there, for all k in U_j.
Eigenvalues of H below KERNEL of the largest count as zero, which lowers H and so the bound.

A second bound needs no weights: for every coalition R >= M, so [R^-1]_ii <= 1, i.e. R solves the problem of one outside
observer and one group of all nodes, whose objective is at least ||H^1/2||_*^2 / n.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from .arithmetic import EPS, AtAnyScale, scaled_down
from .problem import Array, FactorizationProblem, ProblemError, objective_in_range

MAX_COALITIONS = 20_000
MAX_COMPARED_BLOCKS = 3_000  # all pairs are compared to drop redundant constraints; beyond, none is dropped
_BATCH_ENTRIES = 2**20  # 8 MB of stacked n x n matrices at a time

Mask = NDArray[np.bool_]
Indices = NDArray[np.intp]


class InfeasibleCoalition(ProblemError):
    """Without private noise, `coalition` knows every seed of `node`, so no noise protects it (node indices)."""

    def __init__(self, coalition: tuple[int, ...], node: int) -> None:
        who = f"coalition {coalition} knows every seed of node {node}" if coalition else f"node {node} is in no group"
        super().__init__(
            f"private=False is infeasible: {who}, so no noise protects it; allow private noise, add a group, or "
            "take smaller coalitions."
        )
        self.coalition = coalition
        self.node = node


@dataclasses.dataclass(frozen=True, eq=False)
class CoalitionBlocks:
    """The distinct constraints. K blocks, m groups, n nodes.

    Attributes: groups: (K, m), those of each block; nodes: (K, n), those they reach; constrained: (K, n), those at
        which the constraint is kept; coalitions: for each block one that leaves it.
    """

    groups: Mask
    nodes: Mask
    constrained: Mask
    coalitions: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class CoalitionProblem(AtAnyScale):
    """Which noise costs what, who shares seeds, and how many nodes collude.

    Attributes:
        error_gram: H, shape (n, n), symmetric positive semidefinite, not zero (rounding below zero is cut off).
        groups: node indices of each group; groups may overlap and repeat.
        coalition_size: q, 0 <= q < n; 0 is an outside observer.
        private: whether nodes may add noise of their own; False forces s = 0.
        max_coalitions: refused beyond; each costs one n x n inverse per iteration.
    Raises: ProblemError: H as for FactorizationProblem, an empty group, an index out of range or twice in a group, q
        out of range, too many coalitions. InfeasibleCoalition: private=False and some coalition knows all seeds of a
        node outside it.
    """

    error_gram: Array
    groups: tuple[tuple[int, ...], ...]
    coalition_size: int
    private: bool = True
    max_coalitions: int = MAX_COALITIONS
    root: Array = dataclasses.field(init=False, repr=False)
    """L with L L^T = H, shape (n, n)."""

    def __post_init__(self) -> None:
        H = np.asarray(self.error_gram)
        plain = FactorizationProblem(H, np.arange(H.shape[0] if H.ndim else 0))
        n, q = plain.size, self.coalition_size
        groups = tuple(_group(k, group, n) for k, group in enumerate(self.groups))
        if isinstance(q, bool) or not isinstance(q, int | np.integer) or not 0 <= q < n:
            raise ProblemError(
                f"coalition_size q must be an integer from 0, and q must be below n = {n} nodes, got {q!r}; "
                "some node must be left to protect."
            )
        if (count := math.comb(n, int(q))) > self.max_coalitions:
            raise ProblemError(
                f"coalition_size={q} of {n} nodes makes {count} coalitions, more than max_coalitions="
                f"{self.max_coalitions}; take smaller coalitions or raise max_coalitions."
            )
        object.__setattr__(self, "error_gram", plain.error_gram)
        object.__setattr__(self, "root", plain.root)
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "coalition_size", int(q))
        if not self.private and self.exposed is not None:
            raise InfeasibleCoalition(*self.exposed)

    @property
    def size(self) -> int:
        return self.error_gram.shape[0]

    @property
    def local_loss(self) -> float:
        """tr H: the objective of s = 1 without seeds (LDP), feasible whenever private noise is allowed."""
        return float((self.root**2).sum())

    @cached_property
    def incidence(self) -> Mask:
        """(m, n): group k holds node i."""
        incidence = np.zeros((len(self.groups), self.size), dtype=bool)
        for k, group in enumerate(self.groups):
            incidence[k, list(group)] = True
        return incidence

    @property
    def exposed(self) -> tuple[tuple[int, ...], int] | None:
        """A coalition and a node outside it that none of the unknown seeds reaches; else None."""
        return self._constraints[0]

    @property
    def blocks(self) -> CoalitionBlocks:
        return self._constraints[1]

    @cached_property
    def _constraints(self) -> tuple[tuple[tuple[int, ...], int] | None, CoalitionBlocks]:
        coalitions = np.array(list(itertools.combinations(range(self.size), self.coalition_size)), dtype=np.intp)
        inside = np.zeros((len(coalitions), self.size), dtype=bool)
        np.put_along_axis(inside, coalitions, True, axis=1)
        known = np.zeros((len(coalitions), len(self.groups)), dtype=bool)
        for column in coalitions.T:
            known |= self.incidence[:, column].T
        unreached = ~_reached(~known, self.incidence) & ~inside
        exposed = None
        if unreached.any():
            which, node = np.argwhere(unreached)[0]
            exposed = (tuple(int(i) for i in coalitions[which]), int(node))
        unknown, first = np.unique(~known, axis=0, return_index=True)
        blocks, origin = _components(unknown, self.groups, self.size)
        nodes = _reached(blocks, self.incidence)
        constrained = nodes & ~_redundant(blocks, nodes)
        binding = constrained.any(axis=1)
        return exposed, CoalitionBlocks(
            blocks[binding],
            nodes[binding],
            constrained[binding],
            tuple(tuple(int(i) for i in coalitions[first[u]]) for u in origin[binding]),
        )

    def objective(self, private_variance: float, parts: Sequence[Array]) -> float:
        """tr(H R); raises ProblemError where that is beyond float64."""
        if self.exponent:
            return objective_in_range(self.normalised.objective(private_variance, parts), self.exponent)
        shared = sum(
            float(((part @ self.root[list(group)]) * self.root[list(group)]).sum())
            for group, part in zip(self.groups, parts, strict=True)
        )
        return private_variance * self.local_loss + shared

    def covariance(self, private_variance: float, parts: Sequence[Array]) -> Array:
        """R, shape (n, n)."""
        R = private_variance * np.eye(self.size)
        for group, part in zip(self.groups, parts, strict=True):
            R[np.ix_(group, group)] += part
        return R

    def noise_left(
        self, private_variance: float, parts: Sequence[Array], *, outside: float = 1.0
    ) -> Iterator[tuple[slice, Array]]:
        """M of each block, in batches: slices of blocks and arrays (b, n, n).

        Nodes outside a block couple to nothing; `outside` is their diagonal entry, so that M can be inverted.
        """
        n, blocks = self.size, self.blocks
        columns = [np.add.outer(np.multiply(group, n), group).ravel() for group in self.groups]
        pointers = np.concatenate([[0], np.cumsum([part.size for part in parts])])
        entries = np.concatenate([np.zeros(0), *(part.ravel() for part in parts)])
        indices = np.concatenate([np.zeros(0, dtype=np.intp), *columns])
        lifted = scipy.sparse.csr_array((entries, indices, pointers), shape=(len(parts), n * n))
        step = max(1, _BATCH_ENTRIES // (n * n))
        for start in range(0, len(blocks.groups), step):
            batch = slice(start, start + step)
            M = (lifted.T @ blocks.groups[batch].astype(np.float64).T).T.reshape(-1, n, n)
            M[:, range(n), range(n)] += np.where(blocks.nodes[batch], private_variance, outside)
            yield batch, M

    def inverse_diagonal_upper_bounds(self, private_variance: float, parts: Sequence[Array]) -> Array:
        """[M^-1]_ii for each block and constrained node, shape (K, n); -inf at the others.

        Rounded up: M is scaled to unit diagonal, and what is inverted is that up to relative errors of a few (n + m)
        eps, which move the inverse by at most cond times that. Infinite where this reaches 1. Cost: one n x n
        eigendecomposition per block.
        """
        blocks = self.blocks
        unit = 8 * (self.size + len(self.groups)) * EPS
        upper = np.full(blocks.nodes.shape, -np.inf)
        for batch, M in self.noise_left(private_variance, parts):
            diagonal = np.diagonal(M, axis1=1, axis2=2)
            if not (np.isfinite(M).all() and (diagonal > 0).all()):
                upper[batch] = np.inf
                continue
            scale = np.sqrt(diagonal)
            values, vectors = np.linalg.eigh(M / (scale[:, :, None] * scale[:, None, :]))
            with np.errstate(divide="ignore", invalid="ignore"):
                error = unit * values[:, -1] / values[:, 0]
                inverse = (vectors**2 / values[:, None, :]).sum(axis=2) / diagonal
            sound = (values[:, 0] > 0) & (error < 0.5)
            upper[batch] = np.where(sound[:, None], inverse * (1 + 2 * np.where(sound, error, 0.0)[:, None]), np.inf)
        return np.where(blocks.constrained, upper, -np.inf)


def _group(k: int, group: Sequence[int], n: int) -> tuple[int, ...]:
    if len(group) == 0:
        raise ProblemError(f"groups must not be empty, got no node in group {k}.")
    indices = tuple(int(i) for i in group)
    if any(i != j for i, j in zip(indices, group, strict=True)) or not all(0 <= i < n for i in indices):
        raise ProblemError(f"groups must hold node indices from 0 to {n - 1}, got {tuple(group)} in group {k}.")
    if len(set(indices)) != len(indices):
        raise ProblemError(f"groups must hold distinct nodes, got {indices} in group {k}.")
    return indices


def _reached(groups: Mask, incidence: Mask) -> Mask:
    return groups.astype(np.float64) @ incidence.astype(np.float64) > 0


def _components(unknown: Mask, groups: tuple[tuple[int, ...], ...], n: int) -> tuple[Mask, Indices]:
    """Distinct connected sets of groups among those of each row; and for each the first row it comes from."""
    first = np.array([group[0] for group in groups], dtype=np.intp)
    star = np.array([(k, i) for k, group in enumerate(groups) for i in group], dtype=np.intp).reshape(-1, 2)
    rows, picked = np.nonzero(unknown[:, star[:, 0]])
    total = len(unknown) * n
    ends = (rows * n + first[star[picked, 0]], rows * n + star[picked, 1])
    graph = scipy.sparse.coo_array((np.ones(rows.size, dtype=np.int8), ends), shape=(total, total))
    _, labels = connected_components(graph, directed=False)
    rows, columns = np.nonzero(unknown)
    names, component = np.unique(labels[rows * n + first[columns]], return_inverse=True)
    blocks = np.zeros((len(names), len(groups)), dtype=bool)
    blocks[component, columns] = True
    origin = np.zeros(len(names), dtype=np.intp)
    origin[component] = rows
    if not len(names):
        return blocks, origin
    blocks, representatives = np.unique(blocks, axis=0, return_index=True)
    return blocks, origin[representatives]


def _redundant(blocks: Mask, nodes: Mask) -> Mask:
    """(K, n): a strictly smaller block reaches the node too, so the constraint there is implied."""
    if len(blocks) > MAX_COMPARED_BLOCKS:
        return np.zeros_like(nodes)
    membership = blocks.astype(np.float64)
    missing = membership @ (1 - membership).T  # [u, v]: groups of u that v lacks
    inside = (missing == 0) & ~np.eye(len(blocks), dtype=bool)
    return inside.T.astype(np.float64) @ nodes.astype(np.float64) > 0


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
    return np.asarray(np.sqrt(np.clip(values**2 - error, 0.0, None)))


def lower_bound(
    problem: CoalitionProblem, weights: Array, vectors: Array, block_of: Indices, node_of: Indices
) -> float:
    """The better of the two bounds above on the optimum of the problem.

    Args:
        weights: lam_j, finite and >= 0 (below zero is cut off), shape (J,).
        vectors: y_j, shape (J, n); what lies outside the nodes of block j is cut off.
        block_of, node_of: the block and the node i_j of each constraint, shape (J,).
    Guarantees: never above the objective of a feasible R, up to rounding: sums and eigenvalues are rounded down by more
        than their own error; components of y in kernels of H stay below 1e-15 of it, so that R of norm up to 1e12
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
