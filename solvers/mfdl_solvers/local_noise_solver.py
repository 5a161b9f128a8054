"""Interior-point method for covariances of local noise: a log barrier, Newton steps, and the dual it passes by.

    f_t(S) = t sum_v tr(H_v S_v) - sum_q log(1 - s_q(S)) - sum_v log det S_v

With z_qj = V_u^T (V_u S V_u^T)^-1 a_qj, the gradient of s_q in S_v is -sum_j z_qjv z_qjv^T. At the minimum of f_t the
weights w_q = 1 / (1 - s_q) satisfy sum w_q z_qjv z_qjv^T = t H_v - S_v^-1 <= t H_v, hence the lower bound of these w
and y_qj is within about (2 constraints + blocks L) / t of the objective. Each Newton step solves a dense system over
the L (L + 1) / 2 entries of each covariance.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.linalg

from .arithmetic import ITERATION, Array, blas_threads
from .local_noise import LocalCovariances, LocalNoiseProblem, WhitenedView
from .problem import OPTIMAL, STOPPED, ProblemError, Stopping

MAX_UNKNOWNS, MAX_BYTES = 6000, 4e9
FACTOR, CHUNK = 100.0, 2000  # by which t grows; constraints whose products are added at a time
CENTRED, EXACT = 1.0, 1e-4  # squared Newton decrement before the step at which t grows, and the bound is taken
USUAL = Stopping(tolerance=1e-3, max_iterations=200)


def solve_local_noise(problem: LocalNoiseProblem, stopping: Stopping = USUAL) -> LocalCovariances:
    """The cheapest covariances, to the tolerance of the certificate or for `max_iterations` Newton steps.

    Raises: ProblemError: more unknowns or memory than a dense Newton step takes; the message has the numbers.
    Cost: with N = blocks L (L + 1) / 2 unknowns and m constraints, O(N^3 + m N^2) and 8 N^2 bytes a step.
    """
    began = time.perf_counter()
    _require_size(problem)
    with blas_threads(len(problem.costs) * problem.num_slots**2, single_up_to=ITERATION):
        barrier = _Barrier(problem)
        S = np.tile(np.eye(problem.num_slots), (len(problem.costs), 1, 1))
        start = barrier.at(S * 4 * problem.largest_ratio(S))
        assert start is not None
        state, best, objective, bound, iterations, length, level = start, S, np.inf, 0.0, 0, 1.0, -1.0
        t = (S.shape[0] * S.shape[1] + sum(float((s / (1 - s)).sum()) for s in state.squares)) / problem.cost(state.S)
        while iterations < stopping.max_iterations:
            iterations += 1
            step, decrement = barrier.newton(state, t)
            state, moved = barrier.searched(state, step, decrement, t, length)
            length, scaled = 1.0, state.S * state.largest
            if (cost := problem.cost(scaled)) < objective:
                best, objective = scaled, cost
            last = 2 * barrier.size / (stopping.tolerance * objective)
            if t >= last:
                bound = max(bound, problem.bound(*state.dual()))
                stopping.tell(iterations, objective, bound)
                if stopping.reached(objective, bound):
                    break
            if moved and decrement > (CENTRED if t < last else EXACT):
                continue
            if t >= last and bound <= level:  # nothing is gained by centring at a larger t
                break
            level = bound
            raised_t = min(t * FACTOR, last) if t < last else 4 * t
            t, length = raised_t, t / raised_t  # S(t) - S(inf) falls as 1 / t: there the central path is met
    return LocalCovariances(
        covariances=best,
        objective=objective,
        lower_bound=bound,
        status=OPTIMAL if stopping.reached(objective, bound) else STOPPED,
        iterations=iterations,
        seconds=time.perf_counter() - began,
    )


def _require_size(problem: LocalNoiseProblem) -> None:
    n, L = problem.num_blocks, problem.num_slots
    unknowns, columns = len(problem.costs) * L * (L + 1) // 2, sum(view.shifts.shape[1] for view in problem.whitened)
    views = 2 * 8.0 * len(problem.views) * (n * L) ** 2
    memory = views + 8.0 * (3 * unknowns**2 + 3 * len(problem.costs) * L**4 + columns * n * L)
    if unknowns > MAX_UNKNOWNS or memory > MAX_BYTES:
        raise ProblemError(
            f"{n} blocks of {L} slots have {unknowns:,} unknown entries, and a Newton step takes {memory / 1e9:.2g} GB "
            f"with {len(problem.views)} attackers and {problem.num_constraints:,} constraints; at most "
            f"{MAX_UNKNOWNS:,} and {MAX_BYTES / 1e9:.2g} GB are solved. Take fewer nodes, steps, rounds or attackers."
        )


@dataclasses.dataclass
class _State:
    """Covariances inside the barrier, and what every view makes of them."""

    S: Array
    value: float  # of the barrier without t cost
    squares: list[Array]
    responses: list[Array]  # y of whitened views, (r, q)
    roots: list[Array]  # inverses of the Cholesky factors of V S V^T

    @property
    def largest(self) -> float:
        return max(float(s.max()) for s in self.squares)

    def dual(self) -> tuple[list[Array], list[Array]]:
        return [1 / (1 - s) for s in self.squares], self.responses


class _Barrier:
    """f_t, its derivatives in coordinates of symmetric matrices, and a line search."""

    def __init__(self, problem: LocalNoiseProblem) -> None:
        self.problem = problem
        self.views: Sequence[WhitenedView] = problem.whitened
        L = problem.num_slots
        self.size = problem.num_constraints + len(problem.costs) * L
        self.first, self.second = np.triu_indices(L)
        self.scale = np.where(self.first == self.second, 1.0, np.sqrt(2.0))  # orthonormal coordinates

    def at(self, S: Array) -> _State | None:
        """None outside the barrier."""
        try:
            value = -2 * float(np.log(np.diagonal(np.linalg.cholesky(S), axis1=1, axis2=2)).sum())
            squares, responses, roots = [], [], []
            for view in self.views:
                root, failed = scipy.linalg.lapack.dtrtri(np.linalg.cholesky(view.gram(S)), lower=True)
                if failed:
                    return None
                half = root @ view.shifts
                s = view.squares(half)
                if not (s < 1).all():
                    return None
                value -= float(np.log1p(-s).sum())
                squares.append(s)
                responses.append(root.T @ half)
                roots.append(root)
        except np.linalg.LinAlgError:
            return None
        return _State(S, value, squares, responses, roots)

    def coordinates(self, matrices: Array) -> Array:
        """(..., L, L) symmetric to (..., L (L + 1) / 2), with the same inner products."""
        return np.asarray(matrices[..., self.first, self.second] * self.scale)

    def matrices(self, coordinates: Array) -> Array:
        """The inverse of `coordinates`."""
        n, L = self.problem.costs.shape[:2]
        out = np.zeros((n, L, L))
        out[:, self.first, self.second] = coordinates.reshape(n, -1) / self.scale
        return out + np.triu(out, 1).transpose(0, 2, 1)

    def newton(self, state: _State, t: float) -> tuple[Array, float]:
        """The Newton step as matrices, and the square of the decrement."""
        n, together = len(self.problem.costs), self.problem.sum_by_covariance
        inverse = np.linalg.inv(state.S)
        inverse = (inverse + inverse.transpose(0, 2, 1)) / 2
        gradient = t * self.problem.costs - inverse
        size = self.first.size
        hessian = np.zeros((n * size, n * size))
        rows: list[Array] = []
        for u, (view, (z, c)) in enumerate(zip(self.views, self._loads(state), strict=True)):
            gradient -= together(np.matmul(z * c, z.transpose(0, 2, 1)))
            products = together(z[:, self.first] * z[:, self.second] * self.scale[:, None])
            rows.append(view.summed(products.reshape(n * size, -1) * c))
            if sum(part.shape[1] for part in rows) > CHUNK or u + 1 == len(self.views):
                gradients = np.concatenate(rows, axis=1)
                hessian += gradients @ gradients.T
                rows.clear()
        self._add_curvature(hessian, state, inverse)
        g = self.coordinates(gradient).ravel()
        ridge = 1e-14 * np.diagonal(hessian).max()
        hessian[np.diag_indices(n * size)] += ridge
        factor = scipy.linalg.cho_factor(hessian, lower=True, overwrite_a=True, check_finite=False)
        x = -scipy.linalg.cho_solve(factor, g, check_finite=False)
        return self.matrices(x), float(-g @ x)

    def _loads(self, state: _State) -> Iterator[tuple[Array, Array]]:
        """z (n, L, columns) and 1 / (1 - s_q) of each column of each view."""
        n, L = self.problem.num_blocks, self.problem.num_slots
        for view, y, s in zip(self.views, state.responses, state.squares, strict=True):
            yield (view.flat.T @ y).reshape(n, L, y.shape[1]), np.repeat(1 / (1 - s), view.counts)

    def _add_curvature(self, hessian: Array, state: _State, inverse: Array) -> None:
        """2 sum_q c_q z_q^T D P D z_q with P = V^T (V S V^T)^-1 V, and tr(S^-1 D S^-1 D); M = sum_q c_q z_q z_q^T."""
        n, L = self.problem.num_blocks, self.problem.num_slots
        size, count = self.first.size, len(self.views)
        M, P = np.empty((n, n, count, L, L)), np.empty((n, n, count, L, L))
        for u, ((z, c), view, root) in enumerate(zip(self._loads(state), self.views, state.roots, strict=True)):
            flat, half = z.reshape(n * L, -1), root @ view.flat
            for target, product in ((M, (flat * c) @ flat.T), (P, half.T @ half)):
                target[:, :, u] = product.reshape(n, L, n, L).transpose(0, 2, 1, 3)
        if len(inverse) < n:  # one covariance of all blocks: the sum over all pairs of them
            M, P, n = M.reshape(1, 1, -1, L, L), P.reshape(1, 1, -1, L, L), 1
        weighted, projected = (part.reshape(n, n, -1, L * L) for part in (M, P))
        for v in range(n):  # entries M[i, j] P[k, l] of coordinates (i, k) of v and (j, l) of w <= v: the lower half
            pairs = np.matmul(weighted[v, : v + 1].transpose(0, 2, 1), 2 * projected[v, : v + 1])
            pairs[v] += np.multiply.outer(inverse[v], inverse[v]).reshape(L * L, L * L)
            blocks = self._symmetrised(pairs.reshape(-1, L, L, L, L).transpose(0, 1, 3, 2, 4).reshape(-1, L * L, L * L))
            hessian[v * size : (v + 1) * size, : (v + 1) * size] += blocks.transpose(1, 0, 2).reshape(size, -1)

    def _symmetrised(self, blocks: Array) -> Array:
        """(n, (i, k), (j, l)) to the coordinates of symmetric matrices, (n, size, size)."""
        L, weight = self.problem.num_slots, self.scale / 2
        upper, lower = self.first * L + self.second, self.second * L + self.first
        rows = (blocks[:, upper] + blocks[:, lower]) * weight[:, None]
        return np.asarray((rows.take(upper, axis=2) + rows.take(lower, axis=2)) * weight)

    def searched(self, state: _State, step: Array, decrement: float, t: float, length: float) -> tuple[_State, bool]:
        """The state after a step that lowers f_t, and whether there is one."""
        slope = self.problem.cost(step)
        while length > 1e-8:
            after = self.at(state.S + length * step)
            if after is not None and t * length * slope + after.value - state.value < -1e-2 * length * decrement:
                return after, True
            length *= 0.5
        return state, False
