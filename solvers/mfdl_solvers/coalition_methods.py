"""Two methods for noise that withstands coalitions: a primal-dual interior-point method, and a semidefinite program.

The problem of `coalition_problem` is convex in (s, R_k). With g_j = [M_j^-1]_ii and y_j = M_j^-1 e_i, so that the
derivative of g_j along a change D of M_j is -y_j^T D y_j, the optimum satisfies, with lam_j >= 0 and Z_k >= 0,

    H restricted to H_k - sum over j with k in U_j of lam_j (y_j y_j^T restricted to H_k) = Z_k,   R_k Z_k = 0,
    tr H - sum_j lam_j |y_j|^2 = z,   s z = 0,   lam_j (1 - g_j) = 0.

The first lines are what `coalition_problem` requires of lam and y: every iterate brings its own certificate. Newton's
method on these equations, with g_j + w_j = 1 for slacks w_j > 0 of their own, and t instead of 0 on the right (t I
for R_k Z_k); t is smaller the farther the direction for t = 0 reaches, and waits for the residuals. Changes of R_k
are written G_k X_k G_k^T with the Nesterov-Todd scaling G_k, in which R_k and Z_k become the same diagonal matrix;
X_k in an orthonormal basis of symmetric matrices, and s likewise. Iterates need not be feasible: scaling repairs the
primal side, the bound repairs the dual one. (Following the barrier of the primal problem alone stalls where many
constraints are almost tight and seeds help little.)

As a semidefinite program, by cvxpy and Clarabel, [M^-1]_ii <= 1 holds when [[M, e_i], [e_i^T, 1]] >= 0 (Schur
complement). The dual of that block, [[Z, w], [w^T, lam]], gives the weights of the certificate: lam and y = -w / lam.

In: the problem and a cost per group (H on the group and a projector where a ridge goes). Out: s, R_k, a lower bound.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.linalg

from .coalition_problem import CoalitionProblem, Indices, lower_bound
from .problem import Array, Stopping

FRACTION = 0.95  # of the way to the boundary
RESIDUAL_SHARE = 0.1  # t stays above this part of the residuals, which fall by the length of the step only
MIN_REDUCTION = 1e-3  # of t in one step
CHECK_BELOW = 10.0  # complementarity, in tolerances, below which certificates are worth their time


@dataclasses.dataclass(frozen=True, eq=False)
class _Iterate:
    """s and R_k, their duals z and Z_k, lam_j, w_j and g_j."""

    private_variance: float
    parts: list[Array]
    private_dual: float
    duals: list[Array]
    weights: Array
    slacks: Array
    left_sides: Array


@dataclasses.dataclass(frozen=True, eq=False)
class _Scaling:
    """G_k with R_k = G_k diag(d_k) G_k^T and Z_k = G_k^-T diag(d_k) G_k^-1; the last is that of s, if there is one."""

    factors: list[Array]
    inverses: list[Array]
    diagonals: list[Array]


@dataclasses.dataclass(frozen=True, eq=False)
class _Direction:
    """X_k (of s last), the scaled changes of Z_k (of z last), and the changes of s, R_k, lam_j and w_j."""

    scaled: list[Array]
    duals: list[Array]
    private_variance: float
    parts: list[Array]
    weights: Array
    slacks: Array


def interior_point(
    problem: CoalitionProblem, costs: Sequence[Array], ridges: Sequence[Array], stopping: Stopping
) -> tuple[float, list[Array], float, int]:
    """(s, R_k, lower bound, iterations); s > 0 and R_k > 0, so the result only needs scaling.

    Args:
        problem: every node outside a coalition is reached by an unknown seed.
        costs: positive definite cost of each R_k, shape (|H_k|, |H_k|).
        ridges: t times this is added to the costs, so that early iterates stay bounded where a cost is tiny.
        stopping: wanted gap of the scaled point, and Newton steps.
    """
    system = _System(problem, costs, ridges)
    point = system.start()
    bound, iterations = 0.0, 0
    while True:
        objective = problem.objective(point.private_variance, point.parts) * float(point.left_sides.max())
        if system.barrier_size * system.complementarity(point) <= CHECK_BELOW * stopping.tolerance * objective:
            bound = max(bound, system.lower_bound(point))
        if stopping.share(1 / 2).reached(objective, bound) or iterations == stopping.max_iterations:
            break
        advanced = system.advanced(point)
        if advanced is None:
            break
        point, iterations = advanced, iterations + 1
    return point.private_variance, point.parts, max(bound, system.lower_bound(point)), iterations


class _System:
    """The equations and their linearisation.

    X_k lie on the diagonal blocks of one N x N matrix, N the sum of the group sizes; a step changes R by B X B^T
    with B = [E_1 G_1, E_2 G_2, ...], E_k the embedding of group k, and s by G_s^2 times its own coordinate.
    """

    def __init__(self, problem: CoalitionProblem, costs: Sequence[Array], ridges: Sequence[Array]) -> None:
        self.problem, self.costs, self.ridges = problem, costs, ridges
        sizes = [len(group) for group in problem.groups]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
        self.spans = [slice(low, high) for low, high in itertools.pairwise(offsets)]
        self.group_of_row = np.repeat(np.arange(len(sizes)), sizes)
        corners = [np.triu_indices(size) for size in sizes]
        self.rows = np.concatenate([r + o for (r, _), o in zip(corners, offsets[:-1], strict=True)])
        self.columns = np.concatenate([c + o for (_, c), o in zip(corners, offsets[:-1], strict=True)])
        # basis element e of entry (a, b): norm_e (e_a e_b^T + e_b e_a^T), of Frobenius norm 1
        self.norms = np.where(self.rows == self.columns, 0.5, 0.5**0.5)
        self.num_entries = len(self.rows)
        diagonal = np.flatnonzero(self.rows == self.columns)
        self.on_diagonal = np.append(diagonal, self.num_entries) if problem.private else diagonal
        self.constraints = np.nonzero(problem.blocks.constrained)
        self.barrier_size = int(offsets[-1]) + int(problem.private) + len(self.constraints[0])

    def start(self) -> _Iterate:
        """Every M at least 2 I on its nodes; lam, z and Z at one complementarity t."""
        s, scale = (2.0, 0.5) if self.problem.private else (0.0, 2.0)
        parts = [scale * np.eye(len(group)) for group in self.problem.groups]
        t = self.problem.objective(s, parts) / self.barrier_size
        left_sides = self._left_sides(s, parts)
        duals = [t / scale * np.eye(len(part)) for part in parts]
        z, slacks = t / 2 if self.problem.private else 0.0, 1 - left_sides
        return _Iterate(s, parts, z, duals, t / slacks, slacks, left_sides)

    def complementarity(self, point: _Iterate) -> float:
        """Mean of the products that are zero at the optimum."""
        cones = sum(float((part * dual).sum()) for part, dual in zip(point.parts, point.duals, strict=True))
        private = point.private_variance * point.private_dual
        return (float(point.weights @ point.slacks) + cones + private) / self.barrier_size

    def lower_bound(self, point: _Iterate) -> float:
        """The certificate of lam_j and y_j."""
        vectors = [P[block, :, node] for _, P, block, node in self._inverses(point.private_variance, point.parts)]
        return lower_bound(self.problem, point.weights, np.concatenate(vectors), *self.constraints)

    def advanced(self, point: _Iterate) -> _Iterate | None:
        """One Newton step; None when rounding leaves no direction."""
        try:
            scaling = self._scaling(point)
            matrix, gradients = self._assembled(point, scaling)
            factor = scipy.linalg.cho_factor(matrix, lower=True, check_finite=True)
        except (np.linalg.LinAlgError, ValueError):  # not definite, or not finite
            return None
        reach = self._length(point, scaling, self._direction(point, scaling, factor, gradients, 0.0))
        mean = self.complementarity(point)
        reduced = max(MIN_REDUCTION, (1 - min(1.0, reach)) ** 2) * mean
        floor = RESIDUAL_SHARE * self._residual(point, scaling, gradients) / self.barrier_size
        direction = self._direction(point, scaling, factor, gradients, max(reduced, min(mean, floor)))
        length = min(1.0, FRACTION * self._length(point, scaling, direction))
        s = point.private_variance + length * direction.private_variance
        parts = [part + length * change for part, change in zip(point.parts, direction.parts, strict=True)]
        changes = [inverse.T @ dual @ inverse for inverse, dual in zip(scaling.inverses, direction.duals, strict=True)]
        z = point.private_dual
        if self.problem.private:
            z += length * float(changes.pop()[0, 0])
        duals = [dual + length * change for dual, change in zip(point.duals, changes, strict=True)]
        weights, slacks = point.weights + length * direction.weights, point.slacks + length * direction.slacks
        return _Iterate(s, parts, z, duals, weights, slacks, self._left_sides(s, parts))

    def _inverses(self, s: float, parts: Sequence[Array]) -> Iterator[tuple[slice, Array, Indices, Indices]]:
        """Batches: blocks, their M^-1, and the constraints as positions in the batch and nodes."""
        for batch, M in self.problem.noise_left(s, parts):
            block, node = np.nonzero(self.problem.blocks.constrained[batch])
            yield batch, np.asarray(np.linalg.inv(M), dtype=np.float64), block, node

    def _left_sides(self, s: float, parts: Sequence[Array]) -> Array:
        return np.concatenate([P[block, node, node] for _, P, block, node in self._inverses(s, parts)])

    def _scaling(self, point: _Iterate) -> _Scaling:
        pairs = list(zip(point.parts, point.duals, strict=True))
        if self.problem.private:
            pairs.append((np.array([[point.private_variance]]), np.array([[point.private_dual]])))
        scaling = _Scaling([], [], [])
        for part, dual in pairs:
            primal_factor, dual_factor = np.linalg.cholesky(part), np.linalg.cholesky(dual)
            U, d, Vt = np.linalg.svd(dual_factor.T @ primal_factor)
            scaling.factors.append(primal_factor @ Vt.T / np.sqrt(d))
            scaling.inverses.append((dual_factor @ U / np.sqrt(d)).T)
            scaling.diagonals.append(d)
        return scaling

    def _length(self, point: _Iterate, scaling: _Scaling, direction: _Direction) -> float:
        """How far the direction goes until something that must be positive is not."""
        return min(
            _length(point.slacks, direction.slacks),
            _length(point.weights, direction.weights),
            _cone_length(scaling.diagonals, direction.scaled),
            _cone_length(scaling.diagonals, direction.duals),
        )

    def _direction(
        self, point: _Iterate, scaling: _Scaling, factor: tuple[Array, bool], gradients: Array, t: float
    ) -> _Direction:
        """The solution of the linearised equations for complementarity t."""
        right = self._costs_in(scaling, t) + t * gradients[:, 0] + gradients[:, 1]
        right[self.on_diagonal] -= np.concatenate([t / d for d in scaling.diagonals])
        x = scipy.linalg.cho_solve(factor, -right)
        N = len(self.group_of_row)
        X = np.zeros((N, N))
        X[self.rows, self.columns] = self.norms * x[: self.num_entries]
        X += X.T
        scaled = [X[span, span] for span in self.spans]
        if self.problem.private:
            scaled.append(x[-1:, None])
        changes = [G @ X_k @ G.T for G, X_k in zip(scaling.factors, scaled, strict=True)]
        ds = float(changes.pop()[0, 0]) if self.problem.private else 0.0
        duals = [np.diag(t / d - d) - X_k for d, X_k in zip(scaling.diagonals, scaled, strict=True)]
        inverses = self._inverses(point.private_variance, point.parts)
        changed = self.problem.noise_left(ds, changes, outside=0.0)
        moves = [
            -((P @ change) * P).sum(axis=2)[block, node]
            for (_, P, block, node), (_, change) in zip(inverses, changed, strict=True)
        ]
        left_sides = np.concatenate(moves)
        slacks = 1 - point.left_sides - point.slacks - left_sides
        weights = (t - point.weights * slacks) / point.slacks - point.weights
        return _Direction(scaled, duals, ds, changes, weights, slacks)

    def _costs_in(self, scaling: _Scaling, t: float) -> Array:
        """The costs of R_k and s in the coordinates of a step."""
        lifted = [
            (factor.T @ (cost + t * ridge) @ factor)[np.triu_indices(len(cost))]
            for factor, cost, ridge in zip(scaling.factors, self.costs, self.ridges, strict=False)
        ]
        costs = 2 * self.norms * np.concatenate(lifted)
        if self.problem.private:
            costs = np.append(costs, scaling.factors[-1][0, 0] ** 2 * self.problem.local_loss)
        return costs

    def _residual(self, point: _Iterate, scaling: _Scaling, gradients: Array) -> float:
        """What the residuals may hide of the objective: scaling, and the size of the dual one times that of R."""
        dual = self._costs_in(scaling, 0.0) + gradients[:, 2]
        d = np.concatenate(scaling.diagonals)
        dual[self.on_diagonal] -= d
        excess = float(np.abs(point.left_sides + point.slacks - 1).max())
        hidden = float(np.linalg.norm(dual) * np.linalg.norm(d))
        return excess * self.problem.objective(point.private_variance, point.parts) + hidden

    def _assembled(self, point: _Iterate, scaling: _Scaling) -> tuple[Array, Array]:
        """Matrix (p, p) of the linearised equations; sums over j of the gradients of g_j with three weights, (p, 3).

        With P = M^-1 and Y = sum over the block's j of lam_j y_j y_j^T, each block adds for directions D, D' of its M
        2 tr(D P D' Y) and, for each j, lam_j / w_j (y^T D y) (y^T D' y); the cones add the identity. The weights are
        1 / w_j, lam_j (g_j + w_j - 1) / w_j, which is the part of lam_j's change that neither t nor D moves, and lam_j.
        """
        e, p = self.num_entries, self.num_entries + int(self.problem.private)
        matrix, gradients = np.eye(p), np.zeros((p, 3))
        B = np.zeros((self.problem.size, len(self.group_of_row)))
        for group, factor, span in zip(self.problem.groups, scaling.factors, self.spans, strict=False):
            B[list(group), span] = factor
        private = float(scaling.factors[-1][0, 0] ** 2) if self.problem.private else 0.0
        excess = point.left_sides + point.slacks - 1
        pulls = np.stack([1 / point.slacks, point.weights / point.slacks * excess, point.weights], axis=1)
        crossed, straight = np.zeros((2, e, e))  # sums over blocks of P_bc Y_ad and of P_bd Y_ac + P_ac Y_bd
        done = 0
        for batch, inverses, _, _ in self._inverses(point.private_variance, point.parts):
            for index, P in enumerate(inverses, start=batch.start):
                nodes = np.flatnonzero(self.problem.blocks.constrained[index])
                mine = slice(done, done + len(nodes))
                done = mine.stop
                lam, ratio = point.weights[mine], point.weights[mine] / point.slacks[mine]
                inside, y = B * self.problem.blocks.groups[index][self.group_of_row], P[:, nodes]
                V = inside.T @ y
                Va, Vb = V[self.rows], V[self.columns]
                P_in, Y_in = inside.T @ P @ inside, (V * lam) @ V.T
                self._add_products(P_in, Y_in, crossed, straight)
                slopes = np.empty((p, len(nodes)))  # gradients of g_j, one column per j
                slopes[:e] = -2 * self.norms[:, None] * Va * Vb
                if self.problem.private:
                    slopes[-1] = -private * (y**2).sum(axis=0)
                    Py = inside.T @ (P @ y)
                    mixed = 2 * private * self.norms * ((Py[self.rows] * Vb + Py[self.columns] * Va) @ lam)
                    matrix[:e, -1] += mixed
                    matrix[-1, :e] += mixed
                    matrix[-1, -1] += 2 * private**2 * float((y * (P @ y)).sum(axis=0) @ lam)
                matrix += (slopes * ratio) @ slopes.T
                gradients += slopes @ pulls[mine]
        straight += crossed
        straight += crossed.T
        straight *= 2 * self.norms[:, None] * self.norms
        matrix[:e, :e] += straight
        return matrix, gradients

    def _add_products(self, P: Array, Y: Array, crossed: Array, straight: Array) -> None:
        """tr(E P E' Y) for basis elements E of entry (a, b) and E' of entry (c, d), without their norms.

        It is the sum of P_bc Y_ad, its transpose P_ad Y_bc, P_bd Y_ac and P_ac Y_bd, since P and Y are symmetric.
        """
        P_a, P_b, Y_a, Y_b = P[self.rows], P[self.columns], Y[self.rows], Y[self.columns]
        crossed += P_b.take(self.rows, axis=1) * Y_a.take(self.columns, axis=1)
        straight += P_b.take(self.columns, axis=1) * Y_a.take(self.rows, axis=1)
        straight += P_a.take(self.rows, axis=1) * Y_b.take(self.columns, axis=1)


def _length(values: Array, changes: Array) -> float:
    """The largest step that keeps values + step * changes >= 0, at most 1e6."""
    return 1 / max(1e-6, float((-changes / values).max()))


def _cone_length(diagonals: Sequence[Array], changes: Sequence[Array]) -> float:
    """The same for diag(d) + step * change positive semidefinite."""
    pairs = zip(diagonals, changes, strict=True)
    worst = max(float(-np.linalg.eigvalsh(change / np.sqrt(np.outer(d, d)))[0]) for d, change in pairs)
    return 1 / max(1e-6, worst)


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
        unknown = np.flatnonzero(blocks.groups[block])
        M = s * np.eye(len(nodes)) + sum(embeddings[k][nodes] @ parts[k] @ embeddings[k][nodes].T for k in unknown)
        unit = (nodes == node).astype(np.float64)[:, None]
        constraints.append(cp.bmat([[M, unit], [unit.T, np.ones((1, 1))]]) >> 0)
    shared = sum(cp.trace((cost / scale) @ part) for cost, part in zip(costs, parts, strict=True))
    objective = s * (problem.local_loss / scale) + shared
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
    return np.asarray((vectors * np.clip(values, 0.0, None)) @ vectors.T)
