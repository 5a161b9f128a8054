"""Privacy loss of noise correlated in time under balls-in-bins, each record in one secret bin: certified upper bounds.

docs/balls_in_bins_theorem.md proves that a decentralized algorithm is dominated by the pair of M = (|C| E)^T (|C| E)
(`mfdl.privacy.bin_gram`), and that each step here is an upper bound. The least of three kinds of bounds holds.

Hull: with d = max M_rr and rho d = max M_rq, the pair of d ((1 - rho) I + rho J).
Stride: the hull of every b'-th part of the bins, for the worst of its shifts.
Chain (`bin_chain`): a matrix at least M that follows its entries, a common part and a Gauss-Markov chain.

The pair of d ((1 - rho) I + rho J) is a product of a Gaussian of sensitivity sqrt(rho d), which every bin shares, and
of random allocation of sqrt((1 - rho) d) to one of b. Without correlation only the random allocation is left, and its
atoms answer; otherwise the privacy loss distributions of both compose, random allocation by connecting the dots.

`chain_above` fits f f^T + T K T^T + diag(alone), K_rq = u_r u_q c_r .. c_{q-1}, little above M: the sum of the entries
off the diagonal is least, by sequential quadratic programming. T is the identity, or where that is not close carries
states to the next bin. What the search finds is raised until it is at least M: nothing rests on its convergence.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from ... import check
from ...check import FloatArray
from ...display import rounded_up
from ...errors import InvalidInput, require_known
from .. import gaussian
from . import random_allocation
from .base import UP, Pass, least_multiplier, public_mu
from .bin_chain import BinChain
from .composed import FINEST, SLACK, LossCurve, certified_delta, certified_epsilon, gaussian_losses, law_tail

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


MOST_TIGHT = 256
"""Bins up to which the atoms of a law are enough for the stated precision: at 500 they miss it at delta 1e-10."""


@dataclasses.dataclass(frozen=True)
class BallsInBinsGaussian(LossCurve):
    """T steps of Gaussian noise correlated in time, each record in the steps of one of b bins, drawn secretly once.

    Attributes:
        noise_multiplier: s >= 0, std of the noise over (clipping norm * sqrt(max M_rr)): what it is for public bins.
        correlations: pairs (b', rho): b' of the bins, evenly spread, have no two with M_rq > rho max M_rr, wherever
            they start; the first one is of all bins.
        chain: a matrix that is at least M over max M_rr; None where the hull is as close (`chain_above`).

    >>> curve = BallsInBinsGaussian(4.269 / 20**0.5, 16, ((16, 0.0),), "zero-out")
    >>> 1.990 < curve.epsilon(1e-5) < 1.996, curve.at(0.0).epsilon(1e-5)
    (True, inf)
    """

    noise_multiplier: float
    bins: int
    correlations: tuple[tuple[int, float], ...]
    adjacency: str
    chain: BinChain | None = None

    mu = None
    method = "certified"
    sampling_in_words = "balls-in-bins"
    noise_on = "the sum of clipped gradients, in the sensitivity of a record whose steps were public"

    def __post_init__(self) -> None:
        require_known("adjacency", str(self.adjacency), gaussian.ADJACENCIES)
        bins = check.integer_at_least(1, bins=self.bins)
        try:
            pairs = tuple((int(count), float(rho)) for count, rho in self.correlations)
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput(
                f"correlations must be pairs of a number of bins and rho in [0, 1], got {self.correlations!r}."
            ) from None
        if not pairs or pairs[0][0] != bins or not all(1 <= count <= bins and 0 <= rho <= 1 for count, rho in pairs):
            raise InvalidInput(
                f"correlations must be pairs (b' <= {bins}, rho in [0, 1]), all bins first, got {pairs}."
            )
        multiplier = check.non_negative(noise_multiplier=self.noise_multiplier)
        if self.chain is not None and (not isinstance(self.chain, BinChain) or self.chain.bins != bins):
            raise InvalidInput(f"chain must be a BinChain of {bins} bins, got {check.brief(self.chain)}.")
        for name, value in (("noise_multiplier", multiplier), ("bins", bins), ("correlations", pairs)):
            object.__setattr__(self, name, value)

    def epsilon(self, delta: float) -> float:
        least = min(self.public_epsilon(delta), *(hull.epsilon(delta) for hull in self._hulls))
        if self.chain is not None and self.fits:
            least = self.chain.epsilon(self.noise_multiplier, self.adjacency, check.open_unit(delta=delta), least)
        return least

    def delta(self, epsilon: float) -> float:
        epsilon = check.non_negative(epsilon=epsilon)
        if not self.noise_multiplier:
            return 1.0
        least = min(self.public_delta(epsilon), *(hull.delta(epsilon) for hull in self._hulls))
        if self.chain is not None and self.fits:
            least = min(least, self.chain.delta(self.noise_multiplier, self.adjacency, epsilon))
        return least

    @property
    def public_mu(self) -> float:
        return public_mu(self.adjacency, self.noise_multiplier)

    @property
    def _hulls(self) -> tuple[Hull, ...]:
        return tuple(Hull(self.noise_multiplier, count, rho, self.adjacency) for count, rho in self.correlations)

    def tight(self, delta: float) -> bool:
        """Whether epsilon at this delta is known to be at most 2 % (and 1e-3) above the exact one for equal M_rr."""
        if self.bins == 1:
            return True
        return self.bins <= MOST_TIGHT and self._hulls[0].direct and delta >= LEAST_DELTA

    def _least_multiplier(self, epsilon: float, delta: float, by: str) -> float:
        """Cost: some ten bounds for each pair of `correlations`: seconds, under replace-one up to a minute."""
        least = gaussian.record_shift(self.adjacency, 1.0) / gaussian.mu_from_epsilon(epsilon, delta) * UP
        for count, rho in self.correlations:
            least = _least(Hull(least, count, rho, self.adjacency), epsilon, delta)
        if self.chain is not None:
            least = self.chain.least_multiplier(least, self.adjacency, epsilon, delta)
        return least

    @property
    def fits(self) -> bool:
        return self._hulls[0].fits

    @property
    def interval(self) -> float:
        return min(hull.interval for hull in self._hulls)

    def losses(self, delta: float, interval: float | None = None) -> PrivacyLossDistribution:
        if not self.fits:
            least = least_noise(self.adjacency)
            raise InvalidInput(
                f"noise_multiplier must be >= {least} to compose, and <= {WEAKEST:g}, got {self.noise_multiplier:g}."
            )
        best = min(self._hulls, key=lambda hull: hull.epsilon(delta))  # bound
        return best.losses(law_tail(check.open_unit(delta=delta)), interval)

    def remark(self, delta: float) -> str:
        words = "an upper bound of no stated precision", "at most 2 % above the exact value if all bins weigh the same"
        public = rounded_up(self.public_epsilon(delta), 4)
        return f"{words[self.tight(delta)]}; the same noise with public bins has epsilon = {public}"

    def facts(self, delta: float) -> dict[str, Any]:
        return {"tight_for_equal_bins": self.tight(delta)}


def correlations(M: FloatArray) -> tuple[tuple[int, float], ...]:
    """Pairs (b', rho) of `BallsInBinsGaussian` that are worth a look, from a matrix (b, b) that is at least M."""
    bins, largest = len(M), float(M.diagonal().max())
    apart = np.array([max(M[r, (r + lag) % bins] for r in range(bins)) for lag in range(bins)]) / largest
    best: dict[int, float] = {}
    for stride in range(1, max(2, bins // 2 + 1)):
        rho = 0.0
        for count in range(2, bins // math.gcd(bins, stride) + 1):
            lag = (count - 1) * stride % bins
            rho = max(rho, float(apart[lag]), float(apart[-lag]))
            best[count] = min(best.get(count, 1.0), min(1.0, rho * UP))
    pairs = [(bins, best.get(bins, 0.0))]
    for count in range(bins - 1, 1, -1):
        if count in best and best[count] < pairs[-1][1] * (1 - 1e-3):
            pairs.append((count, best[count]))
    return tuple(pairs)


FAINT = 1e-18  # correlation: below it counts as it
PRECISION = 1e-4
"""Relative: how far calibrated noise may lie above the least that is certified; ten times that under replace-one."""
STRONGEST = {False: 16.0, True: 8.0}
"""1 / noise multiplier up to which laws fit floating point, left out or replaced: beyond, bins count as public."""
WEAKEST = 1e8
"""Noise multiplier up to which losses differ in float64: beyond, bins count as public, with mu below 1e-8."""
LINEAR, FAINT_TAIL, CHORDS = 0.9, 1e-8, 33
"""Of a replaced record: the shift beyond which, and the tail below which, linear grids are coarse; atoms' epsilons."""
LEAST_DELTA = 1e-15  # down to which atoms tell delta; below, bins count as public


@dataclasses.dataclass(frozen=True)
class Hull:
    """Bins of equal weight, any two with correlation rho in [0, 1]; the others as in `BallsInBinsGaussian`."""

    noise_multiplier: float
    bins: int
    rho: float
    adjacency: str

    def epsilon(self, delta: float) -> float:
        """An epsilon at this delta; inf where delta or noise is too small for floating point."""
        delta, bounds = check.open_unit(delta=delta), [math.inf]
        if self.direct and delta >= LEAST_DELTA:
            most = self._public_epsilon(delta)
            bounds.append(random_allocation.epsilon_at(self._shifts[1], self.bins, self._doubled, delta, most))
        if self._composes and delta > 2 * SLACK:
            bounds.append(certified_epsilon(self.losses(law_tail(delta)), delta - SLACK))
        return min(bounds)

    def delta(self, epsilon: float) -> float:
        """A delta at this epsilon >= 0; 1 where noise is too small for floating point."""
        bounds = [1.0]
        if self.direct and epsilon <= self._public_epsilon(LEAST_DELTA):
            bounds.append(random_allocation.delta_at(self._shifts[1], self.bins, self._doubled, epsilon))
        if self._composes:
            bounds.append(certified_delta(self.losses(FINEST), epsilon) + SLACK)
        return min(bounds)

    def losses(self, tail: float, interval: float | None = None) -> PrivacyLossDistribution:
        """The privacy loss distribution, up to tails of this mass."""
        return _composed(*self._shifts, self.bins, self._doubled, interval or self.interval, tail)

    @property
    def interval(self) -> float:
        common, apart = self._shifts
        spread = math.hypot(common, math.sqrt(math.expm1(min(apart * apart, 3.0)) / self.bins))
        fine = spread / (25 if self._doubled else 100)
        return 2.0 ** round(math.log2(fine * (2 if self._doubled else 1)))

    @property
    def direct(self) -> bool:
        """Whether the hull is random allocation alone, whose atoms need no composition."""
        return not self.rho and self.noise_multiplier > 0 and random_allocation.fits(self._shifts[1], self._doubled)

    @property
    def fits(self) -> bool:
        """Whether float64 holds the laws of balls-in-bins at this noise."""
        return least_noise(self.adjacency) <= self.noise_multiplier <= WEAKEST

    @property
    def _composes(self) -> bool:
        """Whether the hull is worth a privacy loss distribution: of a replaced record atoms alone are closer."""
        return self.fits and not (self._doubled and self.direct)

    @property
    def _doubled(self) -> bool:
        return self.adjacency == "replace-one"

    @property
    def _shifts(self) -> tuple[float, float]:
        rho = max(self.rho, FAINT) if self.rho else 0.0  # M may be raised, and its grid cannot hold less
        return math.sqrt(rho) / self.noise_multiplier * UP, math.sqrt(1 - rho) / self.noise_multiplier * UP

    def _public_epsilon(self, delta: float) -> float:
        return gaussian.epsilon_from_mu(public_mu(self.adjacency, self.noise_multiplier), delta)


def least_noise(adjacency: str) -> float:
    """Noise multiplier from which laws of balls-in-bins fit floating point."""
    return 1 / STRONGEST[adjacency == "replace-one"]


@functools.lru_cache(maxsize=256)
def _least(hull: Hull, epsilon: float, delta: float) -> float:
    """The least multiplier, to `PRECISION`, at which the target is certified; that of the hull where none is."""
    if math.isinf(hull.epsilon(delta)):
        return hull.noise_multiplier

    def excess(multiplier: float, coarse: int) -> float:
        tried = dataclasses.replace(hull, noise_multiplier=multiplier)
        if tried.direct:
            return math.log(max(tried.epsilon(delta), 1e-12) / epsilon)
        if not tried.fits:
            return math.inf
        losses = tried.losses(law_tail(delta), coarse * tried.interval)
        return math.log(max(certified_epsilon(losses, delta - SLACK), 1e-12) / epsilon)

    precision = PRECISION if hull.adjacency != "replace-one" else 10 * PRECISION
    return least_multiplier(excess, hull.noise_multiplier, (Pass(4, 1.4, 0.02), Pass(1, 1.01, precision)))


# ---- privacy loss distributions --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _composed(
    common: float, apart: float, bins: int, doubled: bool, interval: float, tail: float
) -> PrivacyLossDistribution:
    parts = []
    if common:
        parts.append(gaussian_losses((2 if doubled else 1) * common, interval))
    if apart:
        parts.append(_allocated(apart, bins, doubled, interval, tail))
    return functools.reduce(lambda a, b: a.compose(b), parts)


def _allocated(shift: float, bins: int, doubled: bool, interval: float, tail: float) -> PrivacyLossDistribution:
    """Random allocation, by connecting the dots of its curves."""
    from dp_accounting.pld import privacy_loss_distribution

    factor = 2 if doubled else 1
    whole = factor * shift
    reach = whole * whole / 2 + whole * 7.0
    amplified = math.log1p(random_allocation.largest(shift, tail) / bins) + factor * 7 * shift / math.sqrt(bins)
    last = math.ceil(min(reach, amplified) / interval)
    above = np.asarray(interval * np.arange(last + 1), dtype=np.float64)
    unsampled = np.array([gaussian.delta_from_mu(whole, float(e)) for e in above])
    if doubled:
        curves = [_replaced_curve(shift, bins, above, unsampled, tail)] * 2
    else:
        bounds = [random_allocation.kept_curve(shift, bins, above, tail), np.stack([unsampled] * 2)]
        if random_allocation.fits(shift, doubled):
            bounds.append(random_allocation.kept_deltas(shift, bins, above))
        curves = list(np.min(bounds, axis=0))
    pmfs = [_connected(_both_sides(curve, other, above), interval, last) for curve, other in (curves, curves[::-1])]
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


def _replaced_curve(shift: float, bins: int, above: FloatArray, unsampled: FloatArray, tail: float) -> FloatArray:
    """The least of what is affordable: linear grids at every epsilon, atoms at some and chords in e^epsilon between."""
    strong, curve = shift > LINEAR, unsampled
    if not strong or not random_allocation.fits(shift, True):
        curve = np.minimum(curve, random_allocation.replaced_curve(shift, bins, above, tail))
    if (strong or tail < FAINT_TAIL) and random_allocation.fits(shift, True):
        last = int(np.flatnonzero(curve >= tail / 100).max(initial=0))
        at = np.unique(np.linspace(0, last, CHORDS).astype(int))
        knots = random_allocation.replaced_deltas(shift, bins, above[at])
        chords = np.interp(np.exp(above[: last + 1]), np.exp(above[at]), knots)
        curve = np.concatenate([np.minimum(curve[: last + 1], chords), curve[last + 1 :]])
    return curve


def _both_sides(curve: FloatArray, other: FloatArray, above: FloatArray) -> FloatArray:
    """delta at epsilons of either sign from those >= 0, by delta_PQ(-e) = 1 - e^-e (1 - delta_QP(e))."""
    return np.concatenate([(-np.expm1(-above[1:]) + np.exp(-above[1:]) * other[1:])[::-1], curve])


def _connected(deltas: FloatArray, interval: float, last: int) -> Any:
    """The pessimistic losses of points above a curve that is convex in e^epsilon, on a grid from -last to last."""
    from dp_accounting.pld import pld_pmf

    at = np.concatenate([[0.0], np.exp(interval * np.arange(-last, last + 1))])
    falling = np.minimum.accumulate(np.clip(_convex_below(at, np.concatenate([[1.0], deltas]))[1:], 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, falling)


def _convex_below(x: FloatArray, y: FloatArray) -> FloatArray:
    """The largest convex function below some points, at those points: above every convex function that they are."""
    corners: list[int] = []
    for i in range(x.size):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            corners.pop()
        corners.append(i)
    return np.asarray(np.interp(x, x[corners], y[corners]))


MOST_BINS = 32
"""Up to which a chain is sought: the search costs the fourth power of bins, the law bins times its states."""
WORTH = 0.01
"""Relative: by how much the mean of M is to be below that of the hull for a chain to be sought."""
LEAST_OWN = {False: 0.01, True: 0.06}
"""Of the largest M_rr: variance that each bin has alone, which sets the step of the chain's lattice; if states are
carried, a law costs the square of the lattice."""
CLOSE_ENOUGH = 0.03  # relative excess of the sum of entries up to which a chain that carries nothing is taken
GAIN = 0.25
"""Part of the excess that carried states must remove: their law costs some ten times as much."""
PLAIN_LINK, END_LINK, SLIGHTLY = None, 0.02, 0.01
"""Links to start from, without and with carried states; what is carried below the last counts as nothing."""
FAINT_SHARE = 1e-6
"""Weight of the shared part below which a bin has none of it: without any, a law has one state of z."""
MARGIN = 1e-7  # what entries are to be above M, for rounding of the search


def chain_above(M: FloatArray) -> BinChain | None:
    """A chain that is at least M over max M_rr; None where the hull of M is as close, or for more than `MOST_BINS`.

    Cost: 0.3 s for 16 bins.
    """
    scaled = np.maximum(M, M.T) / float(M.diagonal().max())
    bins = len(scaled)
    off = scaled[~np.eye(bins, dtype=bool)]
    if not 2 <= bins <= MOST_BINS or off.max() * (bins - 1) + 1 < (1 + WORTH) * float(scaled.sum()) / bins:
        return None
    return _fitted(tuple(tuple(float(x) for x in row) for row in scaled))


@functools.lru_cache(maxsize=64)
def _fitted(rows: tuple[tuple[float, ...], ...]) -> BinChain | None:
    M = np.array(rows)
    plain = _Search(M, carries=False)
    best = plain.best(plain.start(PLAIN_LINK))
    if plain.excess(best) > CLOSE_ENOUGH:
        wider = _Search(M, carries=True)
        starts = [wider.start(END_LINK), np.concatenate([best, np.full(len(M) - 1, SLIGHTLY)])]
        carried = min((wider.best(start) for start in starts), key=wider.excess)  # bound
        if wider.excess(carried) < (1 - GAIN) * plain.excess(best):
            plain, best = wider, carried
    chain = plain.chain(best)
    raised = chain.times(chain.shortfall(M) * UP)
    try:
        return BinChain(raised.shared, raised.spread, raised.links, raised.alone, raised.carried)
    except InvalidInput:  # a search that ended far below M; hull and strides are left
        return None


class _Search:
    """Numbers (f, u, c) of a chain, with t of what is carried (f, u, c, t), and how its entries change with them."""

    def __init__(self, M: FloatArray, *, carries: bool) -> None:
        self.M, self.bins, self.carries, self.least_own = M, len(M), carries, LEAST_OWN[carries]
        self.rows, self.columns = np.triu_indices(self.bins, 1)
        self.off = ~np.eye(self.bins, dtype=bool)

    def best(self, start: FloatArray) -> FloatArray:
        solution = scipy.optimize.minimize(
            self.sum, start, jac=self.slope, method="SLSQP", bounds=self.bounds(),
            constraints={"type": "ineq", "fun": self.above, "jac": self.slopes},
            options={"maxiter": 200, "ftol": 1e-7},
        )  # fmt: skip
        return np.asarray(solution.x)

    def excess(self, x: FloatArray) -> float:
        chain = self.chain(x)
        return float(chain.gram.sum() * chain.shortfall(self.M) / self.M.sum()) - 1

    def start(self, link: float | None) -> FloatArray:
        """The least entry is common; neighbours correlate as in M on average, at a given link if bins carry states."""
        d, least = self.M.diagonal(), float(self.M[self.off].min())
        shared = np.sqrt(max(least, 0.02) * d)
        near = float(np.mean(np.diagonal(self.M, 1))) - least
        if link is None:
            far = (float(np.mean(np.diagonal(self.M, 2))) if self.bins > 2 else 0.0) - least
            link = float(np.clip(far / near, 0.05, 0.95)) if near > 0 else 0.5
        left, links = np.sqrt(np.maximum(d - shared**2, 0.01)), np.full(self.bins - 1, link)
        if not self.carries:
            return np.concatenate([shared, 0.9 * left, links])
        carried = np.full(self.bins - 1, float(np.clip(near / 0.7, 0.05, 0.8)))
        return np.concatenate([shared, 0.8 * left, links, carried])

    def bounds(self) -> list[tuple[float, float]]:
        b = self.bins
        carried = [(0.0, 3.0)] * (b - 1) * self.carries
        return [(0.0, 3.0)] * b + [(0.02, 3.0)] * b + [(1e-3, 0.999)] * (b - 1) + carried

    def parts(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        b = self.bins
        f, u, c, t = np.split(x, [b, 2 * b, 3 * b - 1])
        logs = np.concatenate([[0.0], np.cumsum(np.log(np.maximum(c, 1e-6)))])
        T = np.eye(b) + (np.diag(t, -1) if t.size else 0.0)
        return f, u, c, T, np.outer(u, u) * np.exp(-np.abs(logs[:, None] - logs))

    def entries(self, x: FloatArray) -> FloatArray:
        f, _, _, T, K = self.parts(x)
        return np.asarray(np.outer(f, f) + T @ K @ T.T)

    def sum(self, x: FloatArray) -> float:
        return float(self.entries(x)[self.rows, self.columns].sum())

    def above(self, x: FloatArray) -> FloatArray:
        X = self.entries(x)
        off = (X - self.M)[self.rows, self.columns] - MARGIN
        return np.concatenate([off, self.M.diagonal() - X.diagonal() - self.least_own])

    def moved(self, x: FloatArray) -> FloatArray:
        f, u, c, T, K = self.parts(x)
        unit, KT = np.eye(self.bins), K @ T.T
        halves = [
            unit[:, :, None] * f,
            T.T[:, :, None] * (KT / u[:, None])[:, None, :],
            *([unit[1:, :, None] * KT[:-1, None, :]] if self.carries else []),
        ]
        both = [half + half.transpose(0, 2, 1) for half in halves]
        at, links = np.arange(self.bins), np.arange(self.bins - 1)[:, None, None]
        low, high = np.minimum(at[:, None], at), np.maximum(at[:, None], at)
        across = T @ (K * ((low <= links) & (links < high)) / c[:, None, None]) @ T.T
        return np.concatenate([*both[:2], across, *both[2:]])

    def slope(self, x: FloatArray) -> FloatArray:
        return np.asarray(self.moved(x)[:, self.rows, self.columns].sum(axis=1))

    def slopes(self, x: FloatArray) -> FloatArray:
        moved, at = self.moved(x), np.arange(self.bins)
        return np.concatenate([moved[:, self.rows, self.columns].T, -moved[:, at, at].T])

    def chain(self, x: FloatArray) -> BinChain:
        f, u, c, T, K = self.parts(np.clip(x, *np.array(self.bounds()).T))
        alone = np.maximum(self.M.diagonal() - (np.outer(f, f) + T @ K @ T.T).diagonal(), self.least_own)
        t = np.diag(T, -1) * (np.diag(T, -1) > SLIGHTLY)
        return BinChain(tuple(f * (f > FAINT_SHARE)), tuple(u), tuple(c), tuple(alone), tuple(t))
