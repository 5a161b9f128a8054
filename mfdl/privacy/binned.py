"""What noise correlated in time loses where each record draws one secret bin: the hull and the stride lemma, certified.

In: a noise multiplier, the numbers of M = (|C| E)^T (|C| E) that count, an adjacency. Out: epsilon at delta, delta at
epsilon, and the privacy loss distribution that they are read off. That a decentralized algorithm is dominated by the
pair of M, and why each step here is an upper bound, is docs/secret_bins.md; M comes from `mfdl.sampled`.

Hull: with d = max M_rr and rho d = max M_rq, the pair is dominated by that of d ((1 - rho) I + rho J), a product of a
Gaussian of sensitivity sqrt(rho d), which every bin shares, and of random allocation of sqrt((1 - rho) d) to one of b.
Stride: the same of every b'-th part of the bins, the worst of its shifts. The least of all of them holds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, require_known
from ..shown import rounded_up
from . import allocation, gaussian, spread_atoms
from .unsampled import Unsampled

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

SLACK = 1e-11
"""Of delta, for each pair composed: what floating point may do to dp-accounting's sums."""
FAINT = 1e-18  # correlation: below it counts as it
PRECISION = 1e-4
"""Relative: how far calibrated noise may lie above the least that is certified."""
STRONGEST = {False: 16.0, True: 8.0}
"""1 / noise multiplier up to which laws fit floating point, kept or replaced: beyond, bins count as public."""
WEAKEST = 1e8
"""Noise multiplier up to which losses differ in float64: beyond, bins count as public, with mu below 1e-8."""
UP = 1 + 2.0**-40
"""Numbers that are rounded up before they are used: far more than their own roundoff."""


@dataclasses.dataclass(frozen=True)
class BinnedGaussian(Unsampled):
    """T steps of Gaussian noise correlated in time, each record in the steps of one of b bins, drawn secretly once.

    Attributes:
        noise_multiplier: s >= 0, std of the noise over (clipping norm * sqrt(max M_rr)): what it is for public bins.
        bins: b >= 1.
        correlations: pairs (b', rho): b' of the bins, evenly spread, have no two with M_rq > rho max M_rr, wherever
            they start; the first one is of all bins.
        adjacency: "zero-out", "add-remove" or "replace-one".

    >>> bound = BinnedGaussian(4.269 / 20**0.5, 16, ((16, 0.0),), "zero-out")
    >>> 1.990 < bound.epsilon(1e-5) < 1.996, BinnedGaussian(0.0, 16, ((16, 0.0),), "zero-out").epsilon(1e-5)
    (True, inf)
    """

    noise_multiplier: float
    bins: int
    correlations: tuple[tuple[int, float], ...]
    adjacency: str

    def __post_init__(self) -> None:
        require_known("adjacency", str(self.adjacency), gaussian.ADJACENCIES)
        bins = check.integer_at_least(1, bins=self.bins)
        try:
            pairs = tuple((int(kept), float(rho)) for kept, rho in self.correlations)
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput(
                f"correlations must be pairs of a number of bins and rho in [0, 1], got {self.correlations!r}."
            ) from None
        if not pairs or pairs[0][0] != bins or not all(1 <= kept <= bins and 0 <= rho <= 1 for kept, rho in pairs):
            raise InvalidInput(
                f"correlations must be pairs (b' <= {bins}, rho in [0, 1]), all bins first, got {pairs}."
            )
        multiplier = check.non_negative(noise_multiplier=self.noise_multiplier)
        for name, value in (("noise_multiplier", multiplier), ("bins", bins), ("correlations", pairs)):
            object.__setattr__(self, name, value)

    def epsilon(self, delta: float) -> float:
        """An epsilon at this delta in (0, 1), never below the true one; inf without noise."""
        return min(self.unsampled_epsilon(delta), *(self.hull_epsilon(delta, *pair) for pair in self.correlations))

    def delta(self, epsilon: float) -> float:
        """A delta at this epsilon >= 0, never below the true one; 1 without noise."""
        epsilon = check.non_negative(epsilon=epsilon)
        if not self.noise_multiplier:
            return 1.0
        public = gaussian.delta_from_mu(self.public_mu, epsilon)
        return min(public, *(self._hull_delta(epsilon, *pair) for pair in self.correlations))

    def _hull_delta(self, epsilon: float, kept: int, rho: float) -> float:
        """Of b' bins with correlations of at most rho."""
        bounds = [1.0]
        if self._direct(rho) and epsilon <= self.unsampled_epsilon(LEAST_DELTA):
            bounds.append(spread_atoms.delta_at(self._shifts(rho)[1], kept, self._doubled, epsilon))
        if self._composes(rho):
            bounds.append(delta_of(self._losses(kept, rho, FINEST), epsilon) + SLACK)
        return min(bounds)

    def hull_epsilon(self, delta: float, kept: int, rho: float) -> float:
        """Of b' bins with correlations of at most rho; inf where delta or noise is too small for floating point."""
        delta, bounds = check.open_unit(delta=delta), [math.inf]
        if self._direct(rho) and delta >= LEAST_DELTA:
            most = self.unsampled_epsilon(delta)
            bounds.append(spread_atoms.epsilon_at(self._shifts(rho)[1], kept, self._doubled, delta, most))
        if self._composes(rho) and delta > 2 * SLACK:
            bounds.append(epsilon_of(self._losses(kept, rho, _tail(delta)), delta - SLACK))
        return min(bounds)

    def _direct(self, rho: float) -> bool:
        """Whether the hull is random allocation alone, whose atoms need no composition."""
        return not rho and self.noise_multiplier > 0 and spread_atoms.fits(self._shifts(rho)[1], self._doubled)

    def _composes(self, rho: float) -> bool:
        """Whether the hull is worth a privacy loss distribution: of a replaced record atoms alone are closer."""
        return self.fits and not (self._doubled and self._direct(rho))

    def tight(self, delta: float) -> bool:
        """Whether epsilon at this delta is at most 2 % (and 1e-3) above the exact one where all M_rr are equal.

        It is where up to `MOST_TIGHT` bins are not correlated; else the hull and the strides are upper bounds of no
        stated precision.
        """
        if self.bins == 1:
            return True
        return self.bins <= MOST_TIGHT and self._direct(self.correlations[0][1]) and delta >= LEAST_DELTA

    method = "certified"
    retry_step = 2.0**-52
    """By what share calibration adds noise where its answer falls short: here by rounding only."""

    def retried(self) -> BinnedGaussian:
        """Itself: another try has no samples of its own."""
        return self

    @property
    def certified(self) -> BinnedGaussian:
        """The same without samples."""
        return BinnedGaussian(self.noise_multiplier, self.bins, self.correlations, self.adjacency)

    on = "the sum of clipped gradients, in the sensitivity of a record whose steps were public"

    def least_multiplier(self, epsilon: float, delta: float, by: str = "tightest") -> float:
        """The least noise multiplier, to `PRECISION`, at which these bins certify (epsilon, delta): never less.

        Raises: InvalidInput: epsilon not > 0, delta outside (0, 1), another `by`.
        Cost: some ten bounds for each pair of `correlations`: seconds, under replace-one up to a minute.
        """
        epsilon, delta = check.positive(epsilon=epsilon), check.open_unit(delta=delta)
        require_known("by", by, ("tightest",))
        least = gaussian.record_shift(self.adjacency, 1.0) / gaussian.mu_from_epsilon(epsilon, delta) * UP
        for pair in self.correlations:
            least = min(least, _least(epsilon, delta, self.bins, pair, self.adjacency, least))
        return least

    def remark(self, delta: float) -> str:
        """What stands beside epsilon in words: how close it is, and what the same noise gives where bins are public."""
        precision = (
            "at most 2 % above the exact value if all bins weigh the same"
            if self.tight(delta)
            else "an upper bound of no stated precision"
        )
        return f"{precision}; with public bins {rounded_up(self.unsampled_epsilon(delta), 4)}"

    def losses(self, delta: float, interval: float | None = None) -> PrivacyLossDistribution:
        """The privacy loss distribution of the bound that is least at this delta: for composition.

        Args: interval: its discretization; default the own one, `interval`.
        """
        if not self.fits:
            least = 1 / STRONGEST[self._doubled]
            raise InvalidInput(
                f"noise_multiplier must be >= {least} to compose, and <= {WEAKEST:g}, got {self.noise_multiplier:g}."
            )
        best = min(self.correlations, key=lambda pair: self.hull_epsilon(delta, *pair))
        return self._losses(*best, _tail(check.open_unit(delta=delta)), interval)

    @property
    def interval(self) -> float:
        """Discretization of the losses: a small part of their standard deviation."""
        return min(_interval(*self._shifts(rho), kept, self._doubled) for kept, rho in self.correlations)

    @property
    def fits(self) -> bool:
        """Whether there is noise enough, and not too much, for laws of secret bins in float64."""
        return 1 / STRONGEST[self._doubled] <= self.noise_multiplier <= WEAKEST

    @property
    def _doubled(self) -> bool:
        return self.adjacency == "replace-one"

    def _shifts(self, rho: float) -> tuple[float, float]:
        """Of all bins together and of each, over the std of the noise."""
        rho = max(rho, FAINT) if rho else 0.0  # M may be raised, and its grid cannot hold less
        return math.sqrt(rho) / self.noise_multiplier * UP, math.sqrt(1 - rho) / self.noise_multiplier * UP

    def _losses(self, kept: int, rho: float, tail: float, interval: float | None = None) -> PrivacyLossDistribution:
        common, apart = self._shifts(rho)
        interval = interval or _interval(common, apart, kept, self._doubled)
        return _composed(common, apart, kept, self._doubled, interval, tail)


FINEST = 1e-10
"""Tail of a law where no delta is given."""
LINEAR, FAINT_TAIL, CHORDS = 0.9, 1e-8, 33
"""Of a replaced record: the shift beyond which, and the tail below which, linear grids are coarse; atoms' epsilons."""
MOST_TIGHT = 256
"""Bins up to which the atoms of a law are enough for the stated precision: at 500 they miss it at delta 1e-10."""
LEAST_DELTA = 1e-15
"""Down to which atoms tell delta; below, bins count as public."""


def correlations(M: FloatArray) -> tuple[tuple[int, float], ...]:
    """The pairs (b', rho) of `BinnedGaussian` that are worth a look, from M or any matrix that is at least M.

    Args: M: shape (b, b), entries >= 0, symmetric.
    """
    bins, largest = len(M), float(M.diagonal().max())
    apart = np.array([max(M[r, (r + lag) % bins] for r in range(bins)) for lag in range(bins)]) / largest
    best: dict[int, float] = {}
    for stride in range(1, max(2, bins // 2 + 1)):
        rho = 0.0
        for kept in range(2, bins // math.gcd(bins, stride) + 1):
            lag = (kept - 1) * stride % bins
            rho = max(rho, float(apart[lag]), float(apart[-lag]))
            best[kept] = min(best.get(kept, 1.0), min(1.0, rho * UP))
    pairs = [(bins, best.get(bins, 0.0))]
    for kept in range(bins - 1, 1, -1):
        if kept in best and best[kept] < pairs[-1][1] * (1 - 1e-3):
            pairs.append((kept, best[kept]))
    return tuple(pairs)


@functools.lru_cache(maxsize=256)
def _least(epsilon: float, delta: float, bins: int, pair: tuple[int, float], adjacency: str, most: float) -> float:
    """The least multiplier by the hull of one pair; `most` where it needs more than that, or cannot tell."""
    kept, rho = pair
    if math.isinf(BinnedGaussian(most, kept, (pair,), adjacency).hull_epsilon(delta, *pair)):
        return most

    def exceeds(multiplier: float, coarse: int) -> float:
        """log of the epsilon of the hull over the one wanted."""
        bound = BinnedGaussian(multiplier, kept, (pair,), adjacency)
        if bound._direct(rho):
            return math.log(max(bound.hull_epsilon(delta, *pair), 1e-12) / epsilon)
        if not bound.fits:
            return math.inf
        interval = coarse * _interval(*bound._shifts(rho), kept, bound._doubled)
        losses = bound._losses(kept, rho, _tail(delta), interval)
        return math.log(max(epsilon_of(losses, delta - SLACK), 1e-12) / epsilon)

    near = _crossing(lambda s: exceeds(s, 4), most, 1.4, 0.02)
    if near > most * 1.05:
        return most
    precision = PRECISION if adjacency != "replace-one" else 10 * PRECISION
    good = _crossing(lambda s: exceeds(s, 1), near, 1.01, precision)
    return min(good, most)


def _crossing(f: Callable[[float], float], start: float, step: float, precision: float) -> float:
    """Where a falling function is <= 0, at most a relative `precision` above where it is not."""
    good, under = start, f(start)
    bad, over = good, under
    while under > 0:
        if good > 2 * start:
            return math.inf
        bad, over, good = good, under, good * step
        under = f(good)
    while over <= 0 and bad > start / 1e4:
        good, under, bad = bad, over, bad / step
        over = f(bad)
    while good > bad * (1 + precision):
        ratio = math.log(good / bad)
        share = over / (over - under) if math.isfinite(over) and under < over else 0.5
        aim = ratio * min(max(share, 0.05), 0.95)
        for at in (aim + precision / 3, aim - precision / 3):  # either side of where it should be
            tried = bad * math.exp(min(max(at, ratio / 20), ratio * 0.95))
            if not bad < tried < good:
                continue
            value = f(tried)
            if value > 0:
                bad, over = tried, value
                break
            good, under = tried, value
            ratio = math.log(good / bad)
    return good


def _tail(delta: float) -> float:
    """Of a law, for an answer at this delta: what it adds is no more than its hundredth part."""
    return 10.0 ** math.floor(math.log10(delta) - 2)


def interval_of(mu: float) -> float:
    """Of the losses of mu-Gaussian DP: a small part of their standard deviation."""
    return 2.0 ** round(math.log2(mu / 100))


def _interval(common: float, apart: float, bins: int, doubled: bool) -> float:
    spread = math.hypot(common, math.sqrt(math.expm1(min(apart * apart, 3.0)) / bins))
    fine = spread / (25 if doubled else 100)
    return 2.0 ** round(math.log2(fine * (2 if doubled else 1)))


# ---- privacy loss distributions --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _composed(
    common: float, apart: float, bins: int, doubled: bool, interval: float, tail: float
) -> PrivacyLossDistribution:
    """Of the product pair."""
    parts = []
    if common:
        shift = (2 if doubled else 1) * common
        parts.append(gaussian_losses(shift, interval))
    if apart:
        parts.append(_allocated(apart, bins, doubled, interval, tail))
    return functools.reduce(lambda a, b: a.compose(b), parts)


def gaussian_losses(mu: float, interval: float) -> PrivacyLossDistribution:
    """Of mu-Gaussian DP, mu > 0."""
    from dp_accounting.pld import privacy_loss_distribution

    std = 1 / mu * (1 - 2.0**-50)
    return privacy_loss_distribution.from_gaussian_mechanism(std, value_discretization_interval=interval)


def _allocated(shift: float, bins: int, doubled: bool, interval: float, tail: float) -> PrivacyLossDistribution:
    """Of random allocation, by connecting the dots of its curves."""
    from dp_accounting.pld import privacy_loss_distribution

    whole = (2 if doubled else 1) * shift
    reach = whole * whole / 2 + whole * 7.0
    amplified = math.log1p(allocation.largest(shift, tail) / bins) + (2 if doubled else 1) * 7 * shift / math.sqrt(bins)
    last = math.ceil(min(reach, amplified) / interval)
    above = np.asarray(interval * np.arange(last + 1), dtype=np.float64)
    unsampled = np.array([gaussian.delta_from_mu(whole, float(e)) for e in above])
    if doubled:
        curves = [_replaced_curve(shift, bins, above, unsampled, tail)] * 2
    else:
        bounds = [allocation.kept_curve(shift, bins, above, tail), np.stack([unsampled] * 2)]
        if spread_atoms.fits(shift, doubled):
            bounds.append(spread_atoms.kept_deltas(shift, bins, above))
        curves = list(np.min(bounds, axis=0))
    pmfs = [_connected(_both_sides(curve, other, above), interval, last) for curve, other in (curves, curves[::-1])]
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


def _replaced_curve(shift: float, bins: int, above: FloatArray, unsampled: FloatArray, tail: float) -> FloatArray:
    """The least of what is affordable: linear grids at every epsilon, atoms at some and chords in e^epsilon between."""
    strong, curve = shift > LINEAR, unsampled
    if not strong or not spread_atoms.fits(shift, True):
        curve = np.minimum(curve, allocation.replaced_curve(shift, bins, above, tail))
    if (strong or tail < FAINT_TAIL) and spread_atoms.fits(shift, True):
        last = int(np.flatnonzero(curve >= tail / 100).max(initial=0))
        at = np.unique(np.linspace(0, last, CHORDS).astype(int))
        knots = spread_atoms.replaced_deltas(shift, bins, above[at])
        chords = np.interp(np.exp(above[: last + 1]), np.exp(above[at]), knots)
        curve = np.concatenate([np.minimum(curve[: last + 1], chords), curve[last + 1 :]])
    return curve


def _both_sides(curve: FloatArray, other: FloatArray, above: FloatArray) -> FloatArray:
    """delta at epsilons of either sign from those >= 0, by delta_PQ(-e) = 1 - e^-e (1 - delta_QP(e))."""
    below = -np.expm1(-above[1:]) + np.exp(-above[1:]) * other[1:]
    return np.concatenate([below[::-1], curve])


def _connected(deltas: FloatArray, interval: float, last: int) -> Any:
    """The pessimistic losses of points above a curve that is convex in e^epsilon, on a grid from -last to last."""
    from dp_accounting.pld import pld_pmf

    at = np.concatenate([[0.0], np.exp(interval * np.arange(-last, last + 1))])
    convex = _convex_below(at, np.concatenate([[1.0], deltas]))
    falling = np.minimum.accumulate(np.clip(convex[1:], 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, falling)


def _convex_below(x: FloatArray, y: FloatArray) -> FloatArray:
    """The largest convex function below some points, at those points: above every convex function that they are."""
    kept: list[int] = []
    for i in range(x.size):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return np.asarray(np.interp(x, x[kept], y[kept]))


def delta_of(losses: PrivacyLossDistribution, epsilon: float) -> float:
    """The larger of both directions."""
    return min(1.0, max(0.0, float(losses.get_delta_for_epsilon(epsilon))))


def epsilon_of(losses: PrivacyLossDistribution, delta: float) -> float:
    """The larger of both directions; inf where there is none."""
    epsilon, more = float(losses.get_epsilon_for_delta(delta)), 1e-12
    while math.isfinite(epsilon) and not delta_of(losses, epsilon) <= delta:
        epsilon, more = epsilon + more * (1 + epsilon), 2 * more
    return epsilon if math.isfinite(epsilon) else math.inf
