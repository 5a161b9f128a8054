"""Balls-in-bins with correlation that decays, or ends, along the bins: epsilon, delta and the least noise, never below.

Hockey sticks of the pair of a `BinChain` M' = f f^T + T K T^T + diag(alone) >= M in every entry
(`balls_in_bins.chain_above` finds one) come from atoms of the sum S of its likelihood ratios, or of S - e^epsilon S',
larger in convex order.

The log of L_r is f_r z + X_r + t_r X_{r-1} + y_r less half its variance, y_r of variance alone_r > 0 independent over
bins, z and the chain X too. The law of partial sums is carried over the bins with (z, X_r) as its state.

States are sums over lattices instead of integrals. Given all logs and the other states, the density is a Gaussian in
the state that is replaced, of variance w^2. By Poisson summation its sum over a lattice of step h is the integral times
a number from 1 - eta to 1 + eta, eta = 2 sum_j exp(-2 (pi j w / h)^2), wherever its centre lies. So the integral of any
function >= 0 of the logs is at most the sum over 1 - eta. States are replaced one after the other: z with the chain
integrated out, w^-2 = 1 + f^T (T K T^T + diag(alone))^-1 f; then X_1, X_2, .. given the state before and the logs from
there on, the later chain integrated out: w^2 is the first entry of the inverse of the information of X_r, .., X_b. What
lies beyond the ends of the lattices adds at most what S has there, or for "lost" its probability, both sums of normal
tails, as S is largest where one of its L_r is; the tails are sums over the lattices of other states too, so at most
1 + eta of them times their integrals.

L_r and its partial sums enter linearly, so spreads that preserve the mean onto grids raise the answer, as those of
random allocation do (`random_allocation`); log L_r is spread so that e^x keeps its mean, under "replaced" e^-x, in
which W = e^x - e^epsilon e^-x is convex. Sums have positive terms only.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from ... import check
from ...check import FloatArray
from ...errors import InvalidInput
from .base import UP, Pass, least_multiplier
from .random_allocation import between

PRECISION = 2e-3  # relative: how far calibrated noise may lie above the least that is certified
BETWEEN = ("links", "carried")  # what a chain has for each bin but the first
CLOSE = {False: 1e-7, True: 2e-3}
"""Relative: the same of epsilon, of a record that is left out or replaced, whose every epsilon has a law of its own."""


@dataclasses.dataclass(frozen=True)
class BinChain:
    """M' over max M_rr: f f^T + T K T^T + diag(alone), K the covariance of a Gauss-Markov chain over the bins.

    T = I with `carried` below its diagonal: bin r is correlated with the state of its own bin and of the one before.
    Without links, M' is then that of a moving average, whose correlation ends at neighbours.

    Attributes:
        shared: f_r >= 0, shape (b,).
        spread: std of the chain at each bin, > 0, shape (b,).
        links: correlation of the chain at neighbours, in (0, 1), shape (b - 1,).
        alone: variance of each bin by itself, > 0, shape (b,).
        carried: what each bin but the first takes of the state before its own, >= 0, shape (b - 1,); default nothing.
    Raises: InvalidInput: an entry out of range, or other shapes.
    """

    shared: tuple[float, ...]
    spread: tuple[float, ...]
    links: tuple[float, ...]
    alone: tuple[float, ...]
    carried: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.carried):
            object.__setattr__(self, "carried", (0.0,) * (len(self.shared) - 1))
        limits = {"shared": 0.0, "spread": 1e-6, "links": 1e-6, "alone": 1e-6, "carried": 0.0}
        for name, least in limits.items():
            values = check.finite_array(1, **{name: getattr(self, name)})
            size, most = len(self.shared) - (name in BETWEEN), 0.9999 if name == "links" else 10.0
            if values.size != size or size < 1 or not ((values >= least) & (values <= most)).all():
                raise InvalidInput(
                    f"{name} must be {size} numbers from {least:g} to {most:g}, got {check.brief(values)}."
                )
            object.__setattr__(self, name, tuple(float(x) for x in values))

    @property
    def bins(self) -> int:
        return len(self.shared)

    @functools.cached_property
    def mixing(self) -> FloatArray:
        return np.asarray(np.eye(self.bins) + np.diag(self.carried, -1))

    @functools.cached_property
    def covariance(self) -> FloatArray:
        u = np.array(self.spread)
        logs = np.concatenate([[0.0], np.cumsum(np.log(self.links))])
        return np.asarray(np.outer(u, u) * np.exp(-np.abs(logs[:, None] - logs)))

    @property
    def gram(self) -> FloatArray:
        T = self.mixing
        return np.asarray(np.outer(self.shared, self.shared) + T @ self.covariance @ T.T + np.diag(self.alone))

    def shortfall(self, M: FloatArray) -> float:
        """The least factor >= 1 that raises M' above M in every entry; inf where an entry of M' is zero below M."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(M > 0, M / self.gram, 0.0)
        return max(1.0, float(ratios.max()))

    def delta(self, noise_multiplier: float, adjacency: str, epsilon: float) -> float:
        """A delta at this epsilon >= 0, at least the true one."""
        return max(self.hockey_stick(noise_multiplier, way, epsilon, FINE) for way in _ways(adjacency))

    def epsilon(self, noise_multiplier: float, adjacency: str, delta: float, most: float) -> float:
        """The least epsilon up to `most`, a bound on it, at which delta is certified; `most` where none is."""

        def lowest(way: str, points: Resolution, low: float, high: float) -> float:
            def excess(epsilon: float) -> float:
                return math.log(max(self.hockey_stick(noise_multiplier, way, epsilon, points), 1e-300) / delta)

            return _lowest(excess, low, high, CLOSE[way == "replaced"])

        least = 0.0
        for way in _ways(adjacency):
            if way == "lost" and self.hockey_stick(noise_multiplier, way, least, COARSE) <= delta:
                continue
            if way == "replaced":
                near = min(most, lowest(way, COARSE, 0.6 * most, most))
                least = lowest(way, FINE, 0.95 * near, near)
            else:
                least = max(least, lowest(way, FINE, 0.0, most))
            if least >= most:
                return most
        return least

    def least_multiplier(self, known: float, adjacency: str, epsilon: float, delta: float) -> float:
        """The least noise multiplier up to `known`, to `PRECISION`, at which (epsilon, delta) is certified.

        The direction that loses more at `known` is searched, and both only if the other one loses more at its answer.

        Cost: some ten laws, half of them on coarse grids: 4 s of CPU for 16 bins, 25 s if states are carried.
        """

        def excess(multiplier: float, fine: int, ways: Sequence[str]) -> float:
            worst = 0.0
            for way in ways:
                value = self.hockey_stick(multiplier, way, epsilon, COARSE)
                if fine and value > max(worst, delta / 2):
                    value = self.hockey_stick(multiplier, way, epsilon, FINE)
                worst = max(worst, value)
            return math.log(max(worst, 1e-300) / delta)

        if math.isinf(known):
            return known
        coarse = {way: self.hockey_stick(known, way, epsilon, COARSE) for way in _ways(adjacency)}
        first = max(coarse, key=coarse.__getitem__)  # bound
        if excess(known, 1, [first]) > 0:
            return known
        for searched in ([first], list(coarse)):
            counted, passes = functools.partial(excess, ways=searched), (Pass(0, 1.1, 0.02), Pass(1, 1.01, PRECISION))
            least = least_multiplier(counted, known, passes)
            if excess(least, 1, list(coarse)) <= 0:
                return least
        return known

    def hockey_stick(self, noise_multiplier: float, way: str, epsilon: float, points: Resolution) -> float:
        """The divergence of one direction, "kept", "lost" or "replaced", at epsilon >= 0, at least.

        Cost: that of `sum_law`, once for all epsilons of "kept" and of "lost".
        """
        grown, replaced = math.exp(epsilon), way == "replaced"
        law = sum_law(self.times(UP / noise_multiplier**2), way, epsilon if replaced else 0.0, points)
        if way == "lost":
            total = grown * float(np.maximum(self.bins / grown - law.values * (1 - MEANS), 0.0) @ law.mass)
            return min(1.0, total * (1 + MEANS) / self.bins + law.cut)
        values = law.values if replaced else law.values * (1 + MEANS) - self.bins * grown
        return min(1.0, (float(np.maximum(values, 0.0) @ law.mass) * (1 + MEANS) + law.cut) / self.bins)

    def times(self, factor: float) -> BinChain:
        return _times(self, factor)


@functools.lru_cache(maxsize=64)
def _times(chain: BinChain, factor: float) -> BinChain:
    scaled, root = object.__new__(BinChain), math.sqrt(factor)
    for name, by in (("shared", root), ("spread", root), ("links", 1.0), ("alone", factor), ("carried", 1.0)):
        object.__setattr__(scaled, name, tuple(x * by for x in getattr(chain, name)))
    return scaled


def _ways(adjacency: str) -> tuple[str, ...]:
    return ("replaced",) if adjacency == "replace-one" else ("kept", "lost")


def _lowest(excess: Callable[[float], float], low: float, high: float, precision: float) -> float:
    """An epsilon in [low, high] whose excess is <= 0, the least to this precision; inf where that of `high` is not."""
    under = excess(high)
    if not under <= 0:
        return math.inf
    over = excess(low)
    if over <= 0:
        return low
    while high > low + precision * high + 1e-9:
        width = high - low
        aim = low + width * min(max(over / (over - under), 0.02), 0.98)
        for side in (precision / 3, -precision / 3):  # either side of where the root should be
            middle = min(max(aim + side * high, low + width / 50), high - width / 50)
            if not low < middle < high:
                continue
            value = excess(middle)
            if value <= 0:
                high, under = middle, value
            else:
                low, over = middle, value
                break
    return high


REACH = 7.5
"""Standard deviations up to which a state is resolved, beyond its mean under P above, under Q below."""
MEANS = 1e-10  # relative: what floating point may do to the mean of an atom, in all sums together
BLOCK = 128  # states whose sums are moved together: they stay in the cache

BIAS = 1e-12
"""Of a cell: far more than what floating point does to where a number lies in it; to the side that loses more."""


@dataclasses.dataclass(frozen=True)
class Resolution:
    """Steps of lattices of states over w, and of the grids of logs over their largest std; points of grids of sums."""

    lattice: float
    logs: float
    sums: int


COARSE, FINE = Resolution(1.6, 0.25, 160), Resolution(1.4, 0.15, 288)


@dataclasses.dataclass(frozen=True, eq=False)
class SumLaw:
    """S, or S - e^epsilon S', as atoms; `cut`: what they lack, at most, of its mean, for "lost" of probability."""

    values: FloatArray
    mass: FloatArray
    cut: float


# ---- the law of the sum ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def sum_law(chain: BinChain, way: str, epsilon: float, points: Resolution) -> SumLaw:
    """The law of the sum over all bins, noise of std 1; epsilon counts for "replaced" only.

    Cost: bins * (states of z) * (states of X) * (states of X + 2 sums) * sums multiplications; where states are
        carried, bins * (states of z) * (states of X)^2 * 2 sums^2.
    """
    walk = _Walk(chain, way, math.exp(epsilon) if way == "replaced" else 0.0, points)
    with threadpool_limits(1):  # the matrices are small
        for r in range(walk.bins):
            walk.move(r)
            walk.add(r)
    return SumLaw(walk.grid, walk.mass.sum(axis=0) * walk.inflation, walk.cut * walk.inflation * walk.most_ripple)


class _Walk:
    """The law of (z, X_r, partial sum): `mass`, shape (states of z * states of X_r, sums)."""

    def __init__(self, chain: BinChain, way: str, weight: float, points: Resolution) -> None:
        self.way, self.weight, self.points = way, weight, points
        self.f, self.u, self.alone = (np.array(x) for x in (chain.shared, chain.spread, chain.alone))
        self.carried = np.concatenate([[0.0], chain.carried])
        self.bins = self.f.size
        links = np.concatenate([[0.0], chain.links])
        self.alpha = links * self.u / np.roll(self.u, 1)
        self.innovation = self.u * np.sqrt((1 - links) * (1 + links))
        self.K, self.T, self.gram = chain.covariance, chain.mixing, chain.gram
        self.lost, self.root = way == "lost", math.sqrt(float(self.gram.diagonal().max()))
        self.top = self.bins * (1.0 if self.lost else math.exp(self.root**2 / 2 + (REACH + 1) * self.root))
        self.inflation = self.most_ripple = 1.0
        self.cut = 2 * self.bins * float(scipy.special.ndtr(-REACH))  # that of exp(y_r)
        self.x, self.grid = np.zeros(1), np.zeros(1)
        self.z, law = np.zeros(1), np.ones(1)
        if self.f.any():
            rest = self.T @ self.K @ self.T.T + np.diag(self.alone)
            width = 1 / math.sqrt(1 + float(self.f @ np.linalg.solve(rest, self.f)))  # given all logs, without chain
            self.z = self._lattice(1.0, self.f, width)
            law = np.exp(-(self.z**2) / 2) / math.sqrt(2 * math.pi) * (self.z[1] - self.z[0])
        self.mass = law[:, None]
        self.widths = self._widths()
        self.logs = np.zeros(0)

    def _widths(self) -> FloatArray:
        """w of X_r given X_{r-1}, z and the logs from r on, the later chain integrated out."""
        steps = np.eye(self.bins) - np.diag(self.alpha[1:], -1)  # innovations of X
        information = steps.T @ np.diag(self.innovation**-2.0) @ steps + self.T.T @ np.diag(1 / self.alone) @ self.T
        return np.array([math.sqrt(np.linalg.inv(information[r:, r:])[0, 0]) for r in range(self.bins)])

    def _lattice(self, std: float, means: FloatArray, width: float) -> FloatArray:
        """Points of a state of this std, whose means under P, bin by bin, are given; what is beyond is added."""
        step = self.points.lattice * width
        low, high = -REACH * std, REACH * std + float(means.max())
        count = max(2, math.ceil((high - low) / step) + 1)
        ripple = 2 * sum(math.exp(-2 * (math.pi * j * width / step) ** 2) for j in range(1, 8))
        self.inflation *= (1 + 1e-9) / (1 - ripple)
        self.most_ripple *= 1 + ripple
        tilts = np.zeros(1) if self.lost else means
        self.cut += float((scipy.special.ndtr((tilts - high) / std) + scipy.special.ndtr((low - tilts) / std)).sum())
        return np.asarray(low + step * np.arange(count), dtype=np.float64)

    def move(self, r: int) -> None:
        """From X_{r-1} to X_r: `mass` has a row for each z and X_r, and for each X_{r-1} if the log of L_r takes it."""
        std, z, before = float(self.innovation[r]), self.z, self.x
        nodes = self._lattice(float(self.u[r]), (self.K @ self.T.T)[r], float(self.widths[r]))
        off = (nodes[None, :] - self.alpha[r] * before[:, None]) / std
        law = np.exp(-(off**2) / 2) * ((nodes[1] - nodes[0]) / std / math.sqrt(2 * math.pi))
        mass = self.mass.reshape(z.size, before.size, self.grid.size)
        logs, carried = self.f[r] * z[:, None] + nodes, float(self.carried[r])
        if carried:
            logs = logs[:, None, :] + carried * before[:, None]
            mass = mass[:, :, None, :] * law[:, :, None]
        else:
            mass = np.matmul(law.T, mass)
        self.logs, self.mass, self.x = logs.ravel(), mass.reshape(-1, self.grid.size), nodes

    def add(self, r: int) -> None:
        """L_r: its log on an even grid, by spreads that preserve the mean, and the sum on its next grid."""
        logs = self.logs
        step, std, first = self.points.logs * self.root, math.sqrt(self.alone[r]), float(logs.min())
        at = np.floor((logs - first) / step).astype(int)
        sign = -1.0 if self.way == "replaced" else 1.0  # of the exponential that keeps its mean
        right = np.expm1(sign * (logs - first - at * step)) / math.expm1(sign * step)
        right = np.clip(right + (-BIAS if self.lost else BIAS), 0.0, 1.0)
        offsets = np.arange(-math.ceil(REACH * std / step), math.ceil((REACH + std) * std / step) + 2)
        nodes = first + step * np.arange(offsets[0], int(at.max()) + 2 + offsets[-1])
        half, grid = self.gram[r, r] / 2, self._grid(r)
        values = np.exp(nodes - half) - (self.weight * np.exp(-nodes - half) if self.weight else 0.0)
        sums = _Sums.from_grids(self.grid, values, grid, MEANS / 64 if self.way == "replaced" else 0.0)
        law, width = self._own_law(np.asarray(offsets * step, dtype=np.float64), std, half), offsets.size
        self._spread(at, right, sums, lambda k: law(values[k : k + width], first + k * step), width)
        self.grid = grid

    def _spread(self, at: Any, right: FloatArray, sums: _Sums, law: Callable[[int], FloatArray], width: int) -> None:
        """Mass of cell `at` and the next one, in parts 1 - right and right, moved by laws of so many sums."""
        states = self.z.size * self.x.size
        state = np.arange(at.size) // (at.size // self.z.size) * self.x.size + np.arange(at.size) % self.x.size
        order = np.argsort(at, kind="stable")  # exact: cells of the grid
        ends = [0, 0, *np.searchsorted(at[order], np.arange(1, int(at.max()) + 2)).tolist(), at.size]
        moved, kernel = np.zeros((states, sums.size)), sums.kernel(width)
        for k, (before, here, end) in enumerate(zip(ends, ends[1:], ends[2:], strict=False)):
            if before == end:
                continue
            columns, rows = slice(k, k + width), order[before:end]
            weights = np.concatenate([right[rows[: here - before]], 1 - right[rows[here - before :]]])
            into = np.argsort(state[rows], kind="stable")  # exact: integers
            reached, firsts = np.unique(state[rows[into]], return_index=True)
            mass = np.add.reduceat(self.mass[rows[into]] * weights[into, None], firsts)
            excess = sums.fill(kernel, columns, law(k))
            for i in range(0, reached.size, BLOCK):
                moved[reached[i : i + BLOCK]] += (kernel @ mass[i : i + BLOCK].T).T
            self.cut += 0.0 if self.lost else float((mass @ excess).sum())
        self.mass = moved

    def _own_law(self, y: FloatArray, std: float, half: float) -> Callable[[FloatArray, float], FloatArray]:
        """y_r of this std on a grid, the mean of values at log + y preserved: a function of values and of the log."""
        edges, half_variance = np.concatenate([[-np.inf], y, [np.inf]]) / std, std * std / 2
        cells, up, down = (between(edges, shift) for shift in (0.0, std, -std))
        inner = cells[1:-1]

        def law_at(values: FloatArray, log: float) -> FloatArray:
            moment = math.exp(log - half + half_variance) * up
            if self.weight:
                moment -= self.weight * math.exp(-log - half + half_variance) * down
            right = (moment[1:-1] - values[:-1] * inner) / np.diff(values)
            right = np.clip(right + (-BIAS if self.lost else BIAS) * inner, 0.0, inner)
            law = np.zeros(y.size)
            law[1:] += right
            law[:-1] += inner - right
            law[0] += cells[0]
            law[-1] += cells[-1]
            return law

        return law_at

    def _grid(self, r: int) -> FloatArray:
        """Grid of the sum up to bin r: even near its mean, then even in its logarithm."""
        so_far, count = np.minimum(self.gram[: r + 1, : r + 1], 50.0), self.points.sums
        std, mean, bottom = math.sqrt(float(np.expm1(so_far).sum())), float(r + 1), 0.0
        if self.lost:  # what is beyond the top is never below what is asked for
            even = np.linspace(max(0.0, mean - 8 * std), min(mean + 5 * std, self.top), 2 * count // 3)
            logs = np.exp(np.linspace(-self.root * (self.root / 2 + 4), math.log(self.top), count - even.size))
            return np.unique(np.concatenate([[0.0], even, logs]))
        scale = std / 2
        if self.way == "replaced":
            alike = math.sqrt(self.weight) * math.exp(-(self.root**2) / 2)  # L where it is weight L'
            bottom, mean, scale = -self.weight * self.top, 0.0, min(scale * math.sqrt(1 + self.weight), alike)
        ends = math.asinh((bottom - mean) / scale), math.asinh((self.top - mean) / scale)
        grid = mean + scale * np.sinh(np.linspace(*ends, count))
        grid[0], grid[-1] = bottom, self.top
        return grid


@dataclasses.dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of numbers on a grid with single values, spread on the next grid.

    Attributes:
        at: both ends of the cell of each sum, shape (grid, values, 2).
        right: the part of its mass that goes to the right end, shape (grid, values).
        excess: by how much a sum beyond the top is moved.
        size: points of the next grid.
    """

    at: np.ndarray[Any, np.dtype[np.int32]]
    right: FloatArray
    excess: FloatArray
    size: int

    @staticmethod
    def from_grids(before: FloatArray, values: FloatArray, grid: FloatArray, raised: float) -> _Sums:
        """Args: raised: relative, by how much sums are raised."""
        sums = before[:, None] + values
        if raised:
            sums += raised * (np.abs(before)[:, None] + np.abs(values))
        excess, sums = np.maximum(sums - grid[-1], 0.0), np.clip(sums, grid[0], grid[-1])
        at = np.clip(np.searchsorted(grid, sums.ravel(), side="right").reshape(sums.shape) - 1, 0, grid.size - 2)
        right = np.clip((sums - grid[at]) / (grid[at + 1] - grid[at]), 0.0, 1.0)
        return _Sums(np.stack([at, at + 1], axis=-1).astype(np.int32), right, excess, grid.size)

    def kernel(self, width: int) -> sp.csc_array:
        """Room for a matrix of so many neighbouring values, shape (next grid, grid)."""
        before = len(self.right)
        ends = np.arange(before + 1, dtype=np.int32) * (2 * width)
        at = np.zeros(ends[-1], dtype=np.int32)
        return sp.csc_array((np.zeros(at.size), at, ends), shape=(self.size, before))

    def fill(self, kernel: sp.csc_array, columns: slice, law: FloatArray) -> FloatArray:
        """Makes the kernel that of values with this law; the mean excess, shape (grid,)."""
        right = self.right[:, columns] * law
        kernel.indices.reshape(len(right), -1, 2)[:] = self.at[:, columns]
        entries = kernel.data.reshape(len(right), -1, 2)
        entries[..., 0], entries[..., 1] = law - right, right
        return self.excess[:, columns] @ law
