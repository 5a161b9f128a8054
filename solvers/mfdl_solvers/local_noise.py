"""Covariances of node-local Gaussian noise under any linear views: the problem, its objective and its lower bound.

Block v of the noise (a node, or nodes that share a secret) has covariance S_v over its L slots, independent of the
other blocks. Attacker u sees A_u G + V_u Z without the noise that it knows, and record q moves what it sees by the
columns a_qj: one for a direction of the record's gradients, several for a correlation matrix of them (its factor):

    minimise   sum_v tr(H_v S_v)
    subject to s_q(S) = sum_j a_qj^T (V_u S V_u^T)^+ a_qj <= mu_q^2,  a_qj in range(V_u S V_u^T),   for all u and q

Lower bound, for any w_q >= 0 and y_qj: with z_qj = V_u^T y_qj and theta the largest number for which
theta sum_qj w_q z_qjv z_qjv^T <= H_v in every block v,

    (sum w_q a_qj^T y_qj)^2 <= (sum w_q z_qj^T S z_qj) (sum_q w_q s_q) <= (sum_v tr(H_v S_v) / theta) sum_q w_q mu_q^2,

because a^T y <= sqrt(z^T S z) sqrt(a^T (V S V^T)^+ a) for a in the range. Nothing is assumed of w and y, so rounding is
counted once: theta is verified by Cholesky factors with a shift beyond their backward error.

All blocks may share one covariance: costs have one block then, the cost of all of them together, and sums over v stand
in the place of single blocks. Where a group of symmetries moves every node to every other one, nothing is lost by that,
and the constraints of one attacker stand for all: the mean of a solution over the group costs the same (s_q is convex).

The method is a log barrier with Newton steps, and the dual it passes by:

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
from functools import cached_property

import numpy as np
import scipy.linalg

from .arithmetic import EPS, ITERATION, Array, blas_threads
from .problem import INPUT_TOLERANCE, OPTIMAL, STOPPED, Certified, ProblemError, Stopping

RANK = 1e-11  # singular values of V below that share of the largest are zeros; the caller's accounting decides ranks
LEAK = 1e-8  # share of a record's shift outside the range of V from which it counts as seen without noise


class LeakWithoutNoise(ProblemError):
    """A record that an attacker sees without noise: no covariance protects it."""


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseView:
    """What one attacker sees.

    Attributes:
        noise: V, shape (rows, blocks, L), columns of known noise zero.
        shifts: a_qj as columns, constraint after constraint, shape (rows, columns).
        budgets: mu_q > 0, shape (constraints,).
        name: of the attacker, for messages.
        counts: columns of each constraint, >= 1, shape (constraints,); default one each.
    """

    noise: Array
    shifts: Array
    budgets: Array
    name: str = "the attacker"
    counts: np.ndarray | None = None

    def __post_init__(self) -> None:
        V, a, mu = (np.asarray(part, dtype=np.float64) for part in (self.noise, self.shifts, self.budgets))
        counts = np.ones(mu.shape, dtype=np.intp) if self.counts is None else np.asarray(self.counts)
        fit = counts.shape == mu.shape and (counts >= 1).all() and a.shape[1:] == (counts.sum(),)
        if V.ndim != 3 or a.ndim != 2 or mu.ndim != 1 or not fit or len(a) != len(V):
            raise ProblemError(
                "noise, shifts and budgets must have shapes (rows, blocks, slots), (rows, columns) and (constraints,), "
                f"got {V.shape}, {a.shape} and {mu.shape}, with counts of the columns of each constraint."
            )
        if not (np.isfinite(V).all() and np.isfinite(a).all() and np.isfinite(mu).all() and (mu > 0).all()):
            raise ProblemError("noise and shifts must be finite, and budgets finite and > 0.")
        for name, value in (("noise", V), ("shifts", a), ("budgets", mu), ("counts", counts)):
            object.__setattr__(self, name, value)

    @property
    def num_rows(self) -> int:
        return len(self.noise)

    def whitened(self) -> WhitenedView:
        """The view in an orthonormal basis of the rows' span, budgets 1, without constraints of no shift.

        Raises: LeakWithoutNoise: a shift outside the range of V.
        """
        assert self.counts is not None
        of_column = np.repeat(np.arange(self.budgets.size), self.counts)
        moved = np.unique(of_column[np.abs(self.shifts).max(axis=0, initial=0.0) > 0])
        columns = np.flatnonzero(np.isin(of_column, moved))
        V, a = self.noise.reshape(self.num_rows, -1), self.shifts[:, columns] / self.budgets[of_column[columns]]
        U, values, basis = np.linalg.svd(V, full_matrices=False)
        rank = int((values > RANK * values.max(initial=0.0)).sum())
        U, values, basis = U[:, :rank], values[:rank], basis[:rank]
        outside = np.linalg.norm(a - U @ (U.T @ a), axis=0) > LEAK * np.linalg.norm(a, axis=0)
        if outside.any():
            raise LeakWithoutNoise(
                f"{self.name} sees constraint {int(of_column[columns][outside][0])} without noise: no covariance of "
                "this class meets its budget; give the noise more slots, or the attacker less."
            )
        unwhiten = U / values
        basis = basis.reshape(-1, *self.noise.shape[1:])
        return WhitenedView(basis, unwhiten.T @ a, unwhiten, a, self.counts[moved])


@dataclasses.dataclass(frozen=True, eq=False)
class WhitenedView:
    """A view with orthonormal rows: noise (r, blocks, L), shifts (r, columns), y = unwhiten y'; counts as before.

    Attributes: given_shifts: the same columns over the rows as they were given, at budget 1.
    """

    noise: Array
    shifts: Array
    unwhiten: Array
    given_shifts: Array
    counts: np.ndarray

    def summed(self, columns: Array) -> Array:
        """Sums over the columns of each constraint."""
        starts = np.cumsum(self.counts) - self.counts
        return columns if len(starts) == columns.shape[-1] else np.add.reduceat(columns, starts, axis=-1)

    def squares(self, half: Array) -> Array:
        """s_q, of columns times the inverse of a factor of V S V^T."""
        return self.summed((half**2).sum(axis=0))

    @cached_property
    def by_block(self) -> Array:
        """The noise, shape (blocks, r, L)."""
        return np.ascontiguousarray(self.noise.transpose(1, 0, 2))

    @cached_property
    def flat(self) -> Array:
        """The noise, shape (r, blocks L)."""
        return self.noise.reshape(self.noise.shape[0], self.noise.shape[1] * self.noise.shape[2])

    def gram(self, covariances: Array) -> Array:
        """V S V^T, shape (r, r)."""
        correlated = np.matmul(self.by_block, covariances).transpose(1, 0, 2)
        return np.asarray(correlated.reshape(self.flat.shape) @ self.flat.T)


@dataclasses.dataclass(frozen=True, eq=False)
class LocalNoiseProblem:
    """Which noise costs what, and what every attacker sees.

    Attributes:
        costs: H_v + rho I, symmetric positive definite, shape (blocks, L, L); a block with fewer slots has columns of
            zeros in every view. Or (1, L, L): one covariance that all blocks share, and what it costs in all of them.
        views: one `NoiseView` per attacker; those that show no record are left out.

    Raises: ProblemError: shapes, no constraint, costs that are not positive definite. LeakWithoutNoise.
    """

    costs: Array
    views: Sequence[NoiseView]

    def __post_init__(self) -> None:
        H = np.array(self.costs, dtype=np.float64)
        if H.ndim != 3 or H.shape[1] != H.shape[2] or not np.isfinite(H).all():
            raise ProblemError(f"costs must be finite, of shape (blocks, slots, slots), got {H.shape}.")
        if np.abs(H - H.transpose(0, 2, 1)).max(initial=0.0) > INPUT_TOLERANCE * np.abs(H).max(initial=0.0):
            raise ProblemError("costs must be symmetric.")
        H = (H + H.transpose(0, 2, 1)) / 2
        for block, matrix in enumerate(H):
            if not _positive_definite(matrix, 0.0):
                raise ProblemError(
                    f"costs must be positive definite, block {block} is not: the optimum would be an infimum that "
                    "unbounded noise approaches; raise rho, the price of noise."
                )
        for view in self.views:
            if view.noise.shape[2] != H.shape[1] or len(H) not in (1, view.noise.shape[1]):
                raise ProblemError(f"noise of {view.name} must cover {H.shape[:2]}, got {view.noise.shape[1:]}.")
        object.__setattr__(self, "costs", H)
        object.__setattr__(self, "views", tuple(view for view in self.views if view.shifts.any()))
        object.__setattr__(self, "whitened", tuple(view.whitened() for view in self.views))
        if not self.views:
            raise ProblemError("no attacker sees any record: no noise is needed, and there is nothing to minimise.")

    whitened: tuple[WhitenedView, ...] = dataclasses.field(init=False, repr=False)

    @property
    def num_blocks(self) -> int:
        return self.whitened[0].noise.shape[1]

    @property
    def num_slots(self) -> int:
        return self.costs.shape[1]

    @property
    def num_constraints(self) -> int:
        return sum(view.counts.size for view in self.whitened)

    def sum_by_covariance(self, blocks: Array) -> Array:
        """Sums over the blocks that share a covariance, along the first axis."""
        return blocks if len(blocks) == len(self.costs) else blocks.sum(axis=0, keepdims=True)

    def cost(self, covariances: Array) -> float:
        return float((self.costs * covariances).sum())

    def largest_ratio(self, covariances: Array) -> float:
        """max_q s_q(S) / mu_q^2; the covariances times this number meet every budget, up to rounding."""
        largest = 0.0
        for view in self.whitened:
            factor = np.linalg.cholesky(view.gram(covariances))
            largest = max(largest, float(view.squares(np.linalg.solve(factor, view.shifts)).max()))
        return largest

    def bound(self, weights: Sequence[Array], duals: Sequence[Array]) -> float:
        """The lower bound of w (one array per view) and y (columns, of whitened views), rounded down; 0 if none.

        Rounding: z = V^T y has an error below (rows + 2) eps |V|^T |y|, so N_v = sum w_q z_qjv z_qjv^T one in spectral
        norm below (2 rows + columns + 8) eps sum w_q |zbar_qjv|^2 with zbar = |V|^T |y|.
        """
        n, L = self.num_blocks, self.num_slots
        sums, margins, gain, spent, size = np.zeros((n, L, L)), np.zeros(n), 0.0, 0.0, 8 + n
        for view, small, weight, dual in zip(self.views, self.whitened, weights, duals, strict=True):
            V, a, y = view.noise.reshape(view.num_rows, -1), small.given_shifts, small.unwhiten @ dual
            if not (np.isfinite(y).all() and np.isfinite(weight).all() and (weight >= 0).all()):
                return 0.0
            w = np.repeat(weight, small.counts)
            size += 2 * view.num_rows + w.size
            z = (V.T @ y).reshape(n, L, w.size)
            sums += np.matmul(z * w, z.transpose(0, 2, 1))
            margins += ((np.abs(V).T @ np.abs(y)).reshape(n, L, w.size) ** 2).sum(axis=1) @ w
            products = a * y
            gain += float(w @ products.sum(axis=0) - size * EPS * (w @ np.abs(products).sum(axis=0)))
            spent += float(weight.sum())
        factor = 1 - 4 * size * EPS
        theta = self._theta(self.sum_by_covariance(sums), size * EPS * self.sum_by_covariance(margins))
        bound = theta * max(gain * factor, 0.0) ** 2 / spent * factor if spent > 0 else 0.0
        return bound if 0 < bound < np.inf else 0.0

    def _theta(self, sums: Array, margins: Array) -> float:
        """A number near the largest for which theta (N_v + margin_v I) <= H_v is verified in every block; or 0."""
        values = [
            np.linalg.eigvals(np.linalg.solve(H, N + margin * np.eye(len(N)))).real.max()
            for H, N, margin in zip(self.costs, sums, margins, strict=True)
        ]
        if not 0 < (largest := float(max(values))) < np.inf:
            return 0.0
        slack = 4 * self.num_slots**2 * EPS
        while slack < 1:
            theta = (1 - slack) / largest
            if all(
                _positive_definite(H - theta * N, theta * float(margin) + EPS * float(np.trace(H + theta * N)))
                for H, N, margin in zip(self.costs, sums, margins, strict=True)
            ):
                return theta
            slack *= 4
        return 0.0


def _positive_definite(matrix: Array, shift: float) -> bool:
    """Whether the matrix minus shift I is proven positive semidefinite by a Cholesky factor in floats."""
    size = len(matrix)
    lowered = shift + (size + 4) * EPS * float(np.abs(np.diagonal(matrix)).sum())
    try:
        np.linalg.cholesky(matrix - lowered * np.eye(size))
    except np.linalg.LinAlgError:
        return False
    return True


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LocalCovariances(Certified):
    """Covariances of local noise with what they cost and how far that is from the best.

    Attributes: covariances: S_v, shape (blocks, L, L), or (1, L, L) if the blocks share one; every budget is met up to
        rounding, the most expensive one exactly.
    """

    covariances: Array


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
