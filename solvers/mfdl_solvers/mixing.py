"""Gossip weights of a graph that mix fastest, or leave least noise, with a certificate.

W = I - sum_e w_e b_e b_e^T, b_e = e_i - e_j for edge e = {i, j}, over w_e >= 0 with W_ii >= 0: every symmetric
matrix of a graph with rows that sum to 1 and entries >= 0. A = W - 11^T / n has the eigenvalues of W but the 1.

    fastest      min s,  -s I <= A <= s I           the second largest modulus of an eigenvalue (Boyd, Diaconis, Xiao)
    least noise  min sum_i g(lambda_i(A)),  g(x) = x^2K / (1 - x^2K)

The second is sum_a |W^(K a)|^2 over a >= 1 without the part of the average: the variance that fresh unit noise of every
step leaves in the n models after many steps of K rounds. g is a sum of even powers, so both are convex.

A primal-dual method solves the first, Newton steps along the log barrier of the weights the second. Beyond MAX_EDGES an
accelerated gradient method solves both; the first is then smoothed, mu log sum_i 2 cosh(lambda_i / mu) over the
eigenvalues that Lanczos finds at both ends.

Bounds are for any symmetric Y: <Y, W> = tr Y - sum_e w_e q_e for the weights of the graph, q_e = b_e^T Y b_e, and
sum_e w_e q_e <= sum_i y_i wherever y >= 0 and y_i + y_j >= q_e on every edge. The fastest uses |A|_2 >= <Y, A> / |Y|_*
(nuclear norm), least noise the tangent Y = g'(A). A bound holds however far the search went. With Lanczos Y is a sum of
c_k u_k u_k^T with sum_k |c_k| |u_k|^2 = 1, whose nuclear norm is at most 1 whatever the u_k are.

Source: Nesterov (2005), Smooth minimization of non-smooth functions; Beck, Teboulle (2009), FISTA.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from .arithmetic import ITERATION, Array, blas_threads
from .problem import ProblemError

MAX_EDGES = 4000  # unknowns of a dense Newton step: three arrays of 128 MB, seconds a step
TOLERANCE = 1e-4
MAX_STEPS = 200
FACTOR, CENTRED = 20.0, 1e-3  # by which t grows; half the squared Newton decrement at which it does
COARSE = 1e-2  # TOLERANCE beyond MAX_EDGES
ROUNDS = 40, 60, 90, 135, 200, 300  # steps of gradients, of which each round halves the smoothing
SMOOTH_ROUNDS = 20, 20, 40, 80, 160  # those where there is none
MODES, DENSE = 40, 500  # eigenvectors of the smoothed modulus; nodes up to which it has all of them
RESTARTS = 1000  # of Lanczos, which needs 200 on a path of 4200 nodes; with two vectors in place of MODES 1000 fail
MAX_NODES = 3000  # of least noise beyond MAX_EDGES: each step takes all eigenvectors
GRID = 2.0**-36  # weights are whole multiples, so that sums of rows and columns are exact


@dataclasses.dataclass(frozen=True, eq=False)
class MixingWeights:
    """Weights of edges with a certificate.

    Attributes: weights: w, shape (edges,), >= 0; objective: of these weights; lower_bound: of all weights of the graph.
    """

    weights: Array
    objective: float
    lower_bound: float


class _Edges:
    """A graph as its edges, shape (m, 2)."""

    def __init__(self, edges: Array, num_nodes: int) -> None:
        self.n, self.m = num_nodes, len(edges)
        self.a, self.b = np.asarray(edges, dtype=np.intp).reshape(-1, 2).T

    @functools.cached_property
    def incidence(self) -> Array:
        """Nodes by edges; sparse beyond MAX_EDGES."""
        ends, columns = np.concatenate([self.a, self.b]), np.tile(np.arange(self.m), 2)
        N = scipy.sparse.csr_array((np.ones(2 * self.m), (ends, columns)), shape=(self.n, self.m))
        return N.toarray() if self.m <= MAX_EDGES else N

    def slack(self, w: Array) -> Array:
        """W_ii."""
        return np.asarray(1.0 - self.incidence @ w)

    def matrix(self, w: Array) -> Array:
        A = np.diag(self.slack(w)) - 1.0 / self.n
        A[self.a, self.b] += w
        A[self.b, self.a] += w
        return A

    def ends_of_spectrum(self, w: Array, tolerance: float) -> tuple[Array, Array]:
        """MODES eigenvalues of A at both ends with eigenvectors, or all. Raises: ProblemError: Lanczos fails."""
        if self.n <= max(DENSE, MODES):
            lam, U = np.linalg.eigh(self.matrix(w))
            return lam, U
        both = scipy.sparse.coo_array((w, (self.a, self.b)), shape=(self.n, self.n)).tocsr()
        W = both + both.T + scipy.sparse.diags_array(self.slack(w))
        A = LinearOperator(W.shape, matvec=lambda x: W @ x - x.mean(), dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(self.n)
        try:
            lam, U = eigsh(A, k=MODES, which="BE", v0=start, tol=tolerance, maxiter=RESTARTS)
        except ArpackNoConvergence:
            raise ProblemError(
                f"the largest eigenvalues on {self.n:,} nodes are too close for {RESTARTS:,} restarts of Lanczos."
            ) from None
        return lam, U

    def feasible(self, w: Array) -> Array:
        """Positive parts, smaller on edges of nodes where they add up to more than 1."""
        w = np.maximum(w, 0.0)
        sums = np.maximum(1 - self.slack(w), 1.0)
        return np.asarray(w / np.maximum(sums[self.a], sums[self.b]))

    def projected(self, point: Array, y: Array) -> tuple[Array, Array]:
        """The nearest weights and multipliers >= 0 of W_ii >= 0, found from earlier ones."""

        def dual(y: Array) -> tuple[float, Array]:
            w = np.maximum(point - y[self.a] - y[self.b], 0.0)
            return float(w @ w) / 2 + float(y.sum()), self.slack(w)

        options = {"maxiter": 100, "ftol": 1e-14, "gtol": 1e-7}
        bounds = [(0, None)] * self.n
        ascent = scipy.optimize.minimize(dual, y, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return self.feasible(point - ascent.x[self.a] - ascent.x[self.b]), ascent.x

    def forms(self, M: Array) -> Array:
        """b_e^T M b_f, shape (m, m)."""
        columns = M[:, self.a] - M[:, self.b]
        return np.asarray(columns[self.a] - columns[self.b])

    @property
    def metropolis_hastings(self) -> Array:
        """1 / (1 + max(degree_i, degree_j)): inside all constraints."""
        degrees = self.incidence.sum(axis=1)
        return np.asarray(1 / (1 + np.maximum(degrees[self.a], degrees[self.b])))

    def form(self, M: Array) -> Array:
        """b_e^T M b_e, shape (m,), for symmetric M."""
        return np.asarray(M[self.a, self.a] + M[self.b, self.b] - 2 * M[self.a, self.b])

    def price(self, q: Array, y: Array) -> float:
        """sum_i y_i >= max over weights of sum_e w_e q_e, y raised where it lacks."""
        lacking = np.maximum(q - y[self.a] - y[self.b], 0.0) / 2
        np.maximum.at(more := np.zeros(self.n), np.concatenate([self.a, self.b]), np.tile(lacking, 2))
        return float((y + more).sum())


def fastest_mixing(edges: Array, num_nodes: int) -> MixingWeights:
    """Least second largest modulus; 1 minus it is within TOLERANCE of the largest possible, relatively.

    Beyond MAX_EDGES within COARSE, or what ROUNDS reach.

    Args: edges: pairs of nodes, shape (m, 2), each once, of a connected graph.
    Raises: ProblemError: beyond, on graphs that mix so slowly that Lanczos fails.
    Cost: some 20 steps of O(m^3 + m^2 n + n^3), memory 24 m^2 bytes; beyond, hundreds of steps with two
        runs of Lanczos, memory O(MODES (m + n)).
    """
    graph = _Edges(edges, num_nodes)
    if graph.m > MAX_EDGES:

        def largest(w: Array) -> float:
            return float(np.abs(graph.ends_of_spectrum(w, 1e-9)[0]).max())

        path = _accelerated(graph, _Modulus(graph), ROUNDS)
        return _solved(graph, largest, path, lambda value, bound: COARSE * (1 - value))

    def measured(w: Array) -> float:
        return float(np.abs(np.linalg.eigvalsh(graph.matrix(w))).max())

    return _solved(graph, measured, _PrimalDual(graph).iterates(), lambda value, bound: TOLERANCE * (1 - value))


def least_noise(edges: Array, num_nodes: int, rounds: int) -> MixingWeights:
    """Least noise left after steps of K rounds, within TOLERANCE of it and 1e-12 a node.

    Beyond MAX_EDGES within COARSE and 1e-6 a node, or what SMOOTH_ROUNDS reach. Args: those of `fastest_mixing`.

    Raises: ProblemError: more than MAX_EDGES edges between more than MAX_NODES nodes.
    Cost: some 50 steps of K + 1 times as much; beyond MAX_EDGES some 40 steps of O(n^3).
    """
    graph = _Edges(edges, num_nodes)
    if graph.m > MAX_EDGES and num_nodes > MAX_NODES:
        raise ProblemError(
            f"{graph.m:,} edges between {num_nodes:,} nodes take all eigenvectors in each of some 40 steps; beyond "
            f"{MAX_EDGES:,} edges at most {MAX_NODES:,} nodes are solved."
        )
    noise = _NoiseLeft(graph, 2 * rounds)
    if graph.m > MAX_EDGES:
        path = _accelerated(graph, noise, SMOOTH_ROUNDS)
        return _solved(graph, noise.value, path, lambda value, bound: COARSE * value + 1e-6 * num_nodes)
    path = noise.central_path()
    return _solved(graph, noise.value, path, lambda value, bound: TOLERANCE * value + 1e-12 * num_nodes)


Iterates: TypeAlias = Iterator[tuple[Array, float]]
"""Weights inside the constraints, and a lower bound."""


def _solved(
    graph: _Edges, measured: Callable[[Array], float], iterates: Iterates, allowed: Callable[[float, float], float]
) -> MixingWeights:
    """The best of the weights met, from Metropolis-Hastings on, until the gap is allowed."""
    weights, bound = graph.metropolis_hastings, 0.0
    objective = measured(weights)
    with blas_threads(weights.size, single_up_to=ITERATION):
        for w, lower in itertools.islice(iterates, MAX_STEPS):
            rounded = np.floor(w / GRID) * GRID
            if (value := measured(rounded)) < objective:
                weights, objective = rounded, value
            bound = max(bound, lower)
            if objective - bound <= allowed(objective, bound):
                break
    return MixingWeights(weights, objective, min(bound, objective))


class _Tangent(NamedTuple):
    """A smoothed objective at some weights, and a bound: the objective is at least constant + slope . w for all w."""

    value: float
    constant: float
    slope: Array


class _Smooth(Protocol):
    """A smoothed objective: its value, or inf, with its gradient; `sharpen` brings it closer to the objective."""

    def at(self, w: Array) -> _Tangent: ...

    def sharpen(self) -> None: ...


def _accelerated(graph: _Edges, smooth: _Smooth, rounds: Iterable[int]) -> Iterates:
    """Rounds of so many steps of Nesterov's method with restarts; bounds from the last tangent of each."""
    w, y, curvature = graph.metropolis_hastings, np.zeros(graph.n), 1.0
    for steps in rounds:
        ahead, last, t = w, np.inf, 1.0
        for _ in range(steps):
            here = smooth.at(ahead)
            if not np.isfinite(here.value):
                ahead, t, here = w, 1.0, smooth.at(w)
            while True:
                step, multipliers = graph.projected(ahead - here.slope / curvature, y / curvature)
                y, move, tangent = curvature * multipliers, step - ahead, smooth.at(step)
                expected = here.value + float(here.slope @ move) + curvature / 2 * float(move @ move)
                if tangent.value <= expected + 1e-9 * abs(here.value) or curvature > 1e12:
                    break
                curvature *= 2
            restart = tangent.value > last or float((ahead - step) @ (step - w)) > 0
            following = 1.0 if restart else (1 + np.sqrt(1 + 4 * t * t)) / 2
            ahead = step if restart else graph.feasible(step + (t - 1) / following * (step - w))
            w, t, last, curvature = step, following, tangent.value, 0.9 * curvature
        yield w, tangent.constant - graph.price(-tangent.slope, y)
        smooth.sharpen()


class _Modulus:
    """mu log sum_i 2 cosh(lambda_i / mu), between the second largest modulus and that and mu log 2 n."""

    def __init__(self, graph: _Edges) -> None:
        self.graph = graph
        gap = 1 - float(np.abs(graph.ends_of_spectrum(graph.metropolis_hastings, 1e-6)[0]).max())
        self.mu = 0.03 * max(gap, 2.0**-50)  # eigenvalues have rounding errors

    def sharpen(self) -> None:
        self.mu /= 2

    def at(self, w: Array) -> _Tangent:
        lam, U = self.graph.ends_of_spectrum(w, 1e-6)
        top = np.abs(lam).max()
        shares, squares = np.exp((np.abs(lam) - top) / self.mu), (U * U).sum(axis=0)
        weights = np.sign(lam) * shares / (shares @ squares)
        slope = -np.square(U[self.graph.a] - U[self.graph.b]) @ weights
        constant = float(weights @ (squares - U.sum(axis=0) ** 2 / self.graph.n))
        return _Tangent(float(top + self.mu * np.log(shares.sum())), constant, slope)


class _PrimalDual:
    """Mehrotra's method in the direction of Helmberg, Kojima and Monteiro.

    (w, s) are inside their constraints always; multipliers X of s I - A and s I + A, x of w and y of W_ii satisfy their
    equations in the end.
    """

    def __init__(self, graph: _Edges) -> None:
        n = graph.n
        self.graph, self.w, self.s = graph, 0.99 * graph.metropolis_hastings, 1.5
        self.X = [np.eye(n) / (2 * n)] * 2
        self.x, self.y = 0.75 / n / self.w, 0.75 / n / graph.slack(self.w)

    def iterates(self) -> Iterates:
        while True:
            self._derive()
            yield self.w, self._bound()
            self._factorize()
            plain = self._direction(0.0)
            primal, dual = self._lengths(plain)
            reached = min(1.0, max(self._complementarity(plain, primal, dual) / self.mu, 0.0))
            step = self._direction(self.mu * reached**3, plain)
            primal, dual = self._lengths(step)
            self.w, self.s = self.w + primal * step.w, self.s + primal * step.s
            self.X = [value + dual * more for value, more in zip(self.X, step.X, strict=True)]
            self.x, self.y = self.x + dual * step.x, self.y + dual * step.y

    def _derive(self) -> None:
        n = self.graph.n
        self.A, self.slack = self.graph.matrix(self.w), self.graph.slack(self.w)
        self.S = [self.s * np.eye(n) - self.A, self.s * np.eye(n) + self.A]
        self.inverses: list[Array] = [np.asarray(np.linalg.inv(part), dtype=np.float64) for part in self.S]
        size = 3 * n + self.w.size
        self.mu = float(sum(map(np.vdot, self.X, self.S)) + self.x @ self.w + self.y @ self.slack) / size

    def _bound(self) -> float:
        Y = self.X[0] - self.X[1]
        least = float(np.trace(Y) - Y.sum() / self.graph.n) - self.graph.price(self.graph.form(Y), self.y)
        return least / max(float(np.abs(np.linalg.eigvalsh(Y)).sum()), 1e-300)

    def _factorize(self) -> None:
        """The system of (dw, ds), positive definite."""
        graph, m, N = self.graph, self.w.size, self.graph.incidence
        products = [_symmetric(a @ b) for a, b in zip(self.X, self.inverses, strict=True)]
        system = np.empty((m + 1, m + 1))
        system[:m, :m] = N.T @ (N * (self.y / self.slack)[:, None])
        for a, b in zip(self.X, self.inverses, strict=True):
            system[:m, :m] += graph.forms(a) * graph.forms(b)
        system[np.arange(m), np.arange(m)] += self.x / self.w
        system[m, :m] = system[:m, m] = graph.form(products[0] - products[1])
        system[m, m] = sum(map(np.trace, products))
        self.solve = _solver(system)

    def _direction(self, target: float, plain: _Move | None = None) -> _Move:
        """To the point where products of slacks and multipliers are the target, with second order terms of `plain`."""
        N, w, slack = self.graph.incidence, self.w, self.slack
        R, r, q = [target * part for part in self.inverses], target / w, target / slack
        if plain is not None:
            parts = zip(R, plain.X, plain.S, self.inverses, strict=True)
            R = [value - _symmetric(dX @ dS @ inverse) for value, dX, dS, inverse in parts]
            r, q = r - plain.x * plain.w / w, q - plain.y * plain.slack / slack
        right = np.append(self.graph.form(R[0] - R[1]) + r - N.T @ q, np.trace(R[0]) + np.trace(R[1]) - 1)
        *_, ds = step = self.solve(right)
        dw = step[:-1]
        dA, eye = self.graph.matrix(w + dw) - self.A, ds * np.eye(self.graph.n)
        dS, dslack = [eye - dA, eye + dA], -(N @ dw)
        dX = [R[i] - self.X[i] - _symmetric(self.X[i] @ dS[i] @ self.inverses[i]) for i in (0, 1)]
        dx, dy = r - self.x - self.x * dw / w, q - self.y - self.y * dslack / slack
        return _Move(dw, float(ds), dS, dslack, dX, dx, dy)

    def _lengths(self, step: _Move) -> tuple[float, float]:
        """Of (w, s) and of the multipliers."""
        primal = _longest(self.S, step.S, (self.w, step.w), (self.slack, step.slack))
        return primal, _longest(self.X, step.X, (self.x, step.x), (self.y, step.y))

    def _complementarity(self, step: _Move, primal: float, dual: float) -> float:
        """The mean product of slacks and multipliers after a step."""
        pairs = [*zip(self.X, step.X, self.S, step.S, strict=True), (self.x, step.x, self.w, step.w)]
        pairs.append((self.y, step.y, self.slack, step.slack))
        products = (np.vdot(a + dual * da, b + primal * db) for a, da, b, db in pairs)
        return float(sum(products)) / (3 * self.graph.n + self.w.size)


@dataclasses.dataclass(frozen=True, eq=False)
class _Move:
    w: Array
    s: float
    S: list[Array]
    slack: Array
    X: list[Array]
    x: Array
    y: Array


def _solver(system: Array) -> Callable[[Array], Array]:
    """Solves with a positive definite matrix whose entries differ by many orders; overwrites it."""
    scale = 1 / np.sqrt(np.diagonal(system))
    system *= scale[:, None] * scale
    system[np.diag_indices_from(system)] += 1e-14
    factor = scipy.linalg.cho_factor(system, lower=True, overwrite_a=True, check_finite=False)
    return lambda right: scale * scipy.linalg.cho_solve(factor, scale * right)


def _symmetric(M: Array) -> Array:
    return np.asarray((M + M.T) / 2)


def _longest(matrices: list[Array], steps: list[Array], *vectors: tuple[Array, Array]) -> float:
    """95 % of the step to the boundary of the cones, at most 1."""
    lowest = [float((step / value).min(initial=0.0)) for value, step in vectors]
    for matrix, step in zip(matrices, steps, strict=True):
        lowest.append(float(scipy.linalg.eigh(step, matrix, eigvals_only=True, subset_by_index=(0, 0))[0]))
    return min(1.0, 0.95 / max(-min(lowest), 1e-300))


class _NoiseLeft:
    """sum_i g(lambda_i), which is a barrier of its own.

    1 / (1 - x^N) is the mean of 1 / (1 - zeta x) over the N-th roots of unity zeta, N = 2 K.
    """

    def __init__(self, graph: _Edges, N: int) -> None:
        self.graph, self.N = graph, N

    def value(self, w: Array) -> float:
        """inf where some difference never decays."""
        powers = np.abs(np.linalg.eigvalsh(self.graph.matrix(w))) ** self.N
        return float((powers / (1 - powers)).sum()) if powers.max() < 1 else np.inf

    def at(self, w: Array) -> _Tangent:
        lam, U = np.linalg.eigh(self.graph.matrix(w))
        powers = np.abs(lam) ** self.N
        if powers.max() >= 1:
            return _Tangent(np.inf, -np.inf, np.zeros_like(w))
        slopes = self.N * lam ** (self.N - 1) / (1 - powers) ** 2
        value, gradient = float((powers / (1 - powers)).sum()), -self.graph.form((U * slopes) @ U.T)
        return _Tangent(value, value - float(gradient @ w), gradient)

    def sharpen(self) -> None:
        """Nothing: it is smooth."""

    def hessian(self, w: Array) -> Array:
        A, half = self.graph.matrix(w), self.N // 2
        total = np.zeros((w.size, w.size))
        for k in range(half + 1):
            zeta = 1.0 - 2.0 * (k > 0) if k in (0, half) else np.exp(1j * np.pi * k / half)
            R = np.linalg.inv(np.eye(self.graph.n) - zeta * A)
            total += (1 if k in (0, half) else 2) * (zeta**2 * self.graph.forms(R) * self.graph.forms(R @ R)).real
        return total * (2 / self.N)

    def central_path(self) -> Iterates:
        """Minima of t value - sum_e log w_e - sum_i log W_ii for growing t."""
        w, t, length = 0.99 * self.graph.metropolis_hastings, 1.0, 1.0
        while True:
            decrement = np.inf
            while decrement > CENTRED:
                w, decrement = self._newton(w, t, length)
                length = 1.0
            tangent = self.at(w)
            yield w, tangent.constant - self.graph.price(-tangent.slope, 1 / (t * self.graph.slack(w)))
            t, length = t * FACTOR, 1 / FACTOR  # w(t) - w(inf) falls as 1 / t: there the central path is met

    def _newton(self, w: Array, t: float, length: float) -> tuple[Array, float]:
        """(w after a Newton step of at most that length, half the squared decrement before it)."""
        N, slack = self.graph.incidence, self.graph.slack(w)
        gradient = t * self.at(w).slope + N.T @ (1 / slack) - 1 / w
        hessian = t * self.hessian(w) + N.T @ (N / slack[:, None] ** 2) + np.diag(1 / w**2)
        step = -_solver(hessian)(gradient)
        decrement = float(-gradient @ step) / 2

        def merit(point: Array) -> float:
            left = self.graph.slack(point)
            if min(left.min(), point.min()) <= 0:
                return np.inf
            return t * self.value(point) - float(np.log(left).sum() + np.log(point).sum())

        now = merit(w)
        while merit(w + length * step) > now - 0.2 * length * decrement + 1e-12 * abs(now) and length > 1e-12:
            length /= 2
        return w + length * step, decrement
