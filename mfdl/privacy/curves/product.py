"""Privacy loss of secret patterns whose pair is a product: a Gaussian that all patterns share, and independent draws.

Draws are Poisson sampling of one step, or random allocation of one shift to one of b places. docs/sampling_theorem.md
proves that the pair of a scheme is dominated by such a product; which product comes from `mfdl.privacy.bin_gram`.
Privacy loss distributions compose, one direction after the other.

`LeastCurve`: the least of several certified curves of one run is an upper bound as well.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import check
from ...display import rounded_up
from ...errors import InvalidInput, require_known
from .. import gaussian
from .base import UP, Pass, least_multiplier, public_mu
from .composed import FINEST, LossCurve, certified_delta, certified_epsilon, gaussian_losses, require_same_adjacency

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

PRECISION = 1e-3  # relative: how far calibrated noise may lie above the least that is certified
MOST_POINTS = 2.0**21  # of the privacy losses of one part, so that a composition fits into memory
LEAST_DELTA = 1e-14  # for which parts are asked to resolve their tails
FAINTEST = 1e-9
"""Shared sensitivity over the noise that the grid of losses can hold; what is below counts as it."""


@dataclasses.dataclass(frozen=True)
class ProductGaussian(LossCurve):
    """Steps of Gaussian noise, of which a record joins a secret pattern: a bound that is a product of simple pairs.

    Attributes:
        noise_multiplier: s >= 0, std of the noise over (clipping norm * sensitivity of one step).
        common: sensitivity of the Gaussian that all patterns share, in units of that of one step.
        parts: curves of the draws, each with its noise multiplier at s = 1.
        counts: how often each of them is drawn.
        public_sensitivity: of a record whose pattern is known, in the same units.

    >>> from mfdl.privacy.curves import PoissonGaussian
    >>> step = PoissonGaussian(1.0, rate=0.05, steps=20, adjacency="zero-out")
    >>> curve = ProductGaussian(1.0, 0.0, (step,), (1,), 20**0.5, "zero-out")
    >>> round(curve.epsilon(1e-5), 2), round(step.epsilon(1e-5), 2), curve.at(0.0).epsilon(1e-5)
    (1.98, 1.98, inf)
    """

    noise_multiplier: float
    common: float
    parts: tuple[LossCurve, ...]
    counts: tuple[int, ...]
    public_sensitivity: float
    adjacency: str

    mu = None
    method = "certified"
    sampling_in_words = "secret batches"
    noise_on = "the sum of clipped gradients, in the sensitivity of a record that joins one step"

    def __post_init__(self) -> None:
        require_known("adjacency", str(self.adjacency), gaussian.ADJACENCIES)
        parts = tuple(check.listed("privacy curves", parts=self.parts))
        counts = tuple(check.integer_at_least(1, count=count) for count in check.listed("counts", counts=self.counts))
        if not parts or len(parts) != len(counts) or not all(isinstance(part, LossCurve) for part in parts):
            raise InvalidInput("parts must be curves of one draw, at least one, with as many counts.")
        require_same_adjacency(*parts, self)
        checked: dict[str, Any] = {
            "noise_multiplier": check.non_negative(noise_multiplier=self.noise_multiplier),
            "common": check.non_negative(common=self.common),
            "public_sensitivity": check.positive(public_sensitivity=self.public_sensitivity),
            "parts": parts,
            "counts": counts,
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    # ---- numbers -----------------------------------------------------------------------------------------

    @property
    def public_mu(self) -> float:
        return public_mu(self.adjacency, self.noise_multiplier) * self.public_sensitivity * UP

    def epsilon(self, delta: float) -> float:
        """Cost: seconds the first time, under replace-one with random allocation up to a minute."""
        delta, public = check.open_unit(delta=delta), self.public_epsilon(delta)
        if not self.fits or delta <= 2 * self.slack:
            return public
        return min(public, certified_epsilon(self.losses(delta), delta - self.slack))

    def delta(self, epsilon: float) -> float:
        epsilon = check.non_negative(epsilon=epsilon)
        public = self.public_delta(epsilon)
        return min(public, certified_delta(self.losses(FINEST), epsilon) + self.slack) if self.fits else public

    def _least_multiplier(self, epsilon: float, delta: float, by: str) -> float:
        return _least(self.at(1.0), epsilon, delta)

    # ---- composition -----------------------------------------------------------------------------------------

    @property
    def fits(self) -> bool:
        return self.noise_multiplier > 0 and all(part.fits for part in self._scaled)

    @property
    def slack(self) -> float:
        parts = sum(count * part.slack for part, count in zip(self._scaled, self.counts, strict=True))
        return float(parts + LossCurve.slack.__get__(self))

    @property
    def interval(self) -> float:
        """The finest discretization of its parts, unless losses of all of them would not fit into memory."""
        finest = min(part.interval for part in self._scaled)
        reach = self.public_mu * (self.public_mu + 20)
        return max(finest, 2.0 ** math.ceil(math.log2(reach / MOST_POINTS)))

    @property
    def coarsest(self) -> float:
        return self.interval

    def losses(self, delta: float, interval: float | None = None) -> PrivacyLossDistribution:
        return _composed(self, delta, interval or self.interval)

    @property
    def _scaled(self) -> tuple[LossCurve, ...]:
        return tuple(part.at(part.noise_multiplier * self.noise_multiplier / UP) for part in self.parts)

    # ---- words and files -----------------------------------------------------------------------------------

    def remark(self, delta: float) -> str:
        return f"an upper bound; with public batches epsilon is {rounded_up(self.public_epsilon(delta), 4)}"


@functools.lru_cache(maxsize=64)
def _composed(curve: ProductGaussian, delta: float, interval: float) -> PrivacyLossDistribution:
    least = max(delta / (10 * sum(curve.counts)), LEAST_DELTA)  # what tails of all parts add up to counts
    pairs = zip(curve._scaled, curve.counts, strict=True)
    parts = [part.losses(least, interval).self_compose(count) for part, count in pairs]
    if curve.common:
        shift = gaussian.record_shift(curve.adjacency, 1.0) * curve.common / curve.noise_multiplier
        parts.append(gaussian_losses(max(shift * UP, FAINTEST), interval))
    return functools.reduce(lambda a, b: a.compose(b), parts)


@functools.lru_cache(maxsize=64)
def _least(curve: ProductGaussian, epsilon: float, delta: float) -> float:
    def excess(multiplier: float, coarse: int) -> float:
        tried, bound = curve.at(multiplier), math.inf
        if tried.fits and delta > 2 * tried.slack:
            with np.errstate(all="ignore"):
                bound = certified_epsilon(tried.losses(delta, coarse * tried.interval), delta - tried.slack)
        return math.log(max(min(bound, tried.public_epsilon(delta)), 1e-12) / epsilon)

    public = curve.public_mu / gaussian.mu_from_epsilon(epsilon, delta) * UP
    return least_multiplier(excess, public, (Pass(4, 1.5, 0.02), Pass(1, 1.02, PRECISION)))


@dataclasses.dataclass(frozen=True)
class LeastCurve(LossCurve):
    """The least of several bounds on one run.

    Attributes:
        noise_multiplier: s >= 0, std of the noise over (clipping norm * the least sensitivity of the bounds).
        bounds: at least one curve, each with its noise multiplier at s = 1.

    >>> from mfdl.privacy.curves import BallsInBinsGaussian
    >>> flat, steep = (BallsInBinsGaussian(m, 4, ((4, rho),), "zero-out") for m, rho in ((0.5, 0.0), (1.0, 0.9)))
    >>> least = min(flat.at(1.0).epsilon(1e-5), steep.at(2.0).epsilon(1e-5))
    >>> abs(LeastCurve(2.0, (flat, steep)).epsilon(1e-5) / least - 1) < 1e-6
    True
    """

    noise_multiplier: float
    bounds: tuple[LossCurve, ...]

    mu = None
    method = "certified"
    sampling_in_words = "secret batches"
    accountings = ("tightest", "renyi")
    noise_on = "the sum of clipped gradients, in the sensitivity of a record whose steps were public"

    def __post_init__(self) -> None:
        bounds = tuple(check.listed("privacy curves", bounds=self.bounds))
        if not bounds or not all(isinstance(bound, LossCurve) and bound.noise_multiplier > 0 for bound in bounds):
            raise InvalidInput("bounds must be certified curves of secret sampling with noise, at least one.")
        require_same_adjacency(*bounds)
        object.__setattr__(self, "noise_multiplier", check.non_negative(noise_multiplier=self.noise_multiplier))
        object.__setattr__(self, "bounds", bounds)

    @classmethod
    def from_bounds(cls, bounds: list[tuple[float, LossCurve]]) -> tuple[float, LossCurve]:
        """(sensitivity, curve at noise multiplier 1) of the least of such pairs; of equal curves one stands for all."""
        least: dict[LossCurve, float] = {}
        for sensitivity, curve in bounds:
            least[curve] = min(sensitivity, least.get(curve, sensitivity))  # bound
        smallest = min(least.values())
        if len(least) == 1:
            return smallest, next(iter(least))
        scaled = (
            curve.at(curve.noise_multiplier * (smallest / sensitivity / UP)) for curve, sensitivity in least.items()
        )
        return smallest, cls(1.0, tuple(scaled))

    @property
    def adjacency(self) -> str:
        return self.bounds[0].adjacency

    @property
    def public_mu(self) -> float:
        return min(bound.public_mu for bound in self._scaled)

    def epsilon(self, delta: float) -> float:
        return min(bound.epsilon(delta) for bound in self._scaled)

    def delta(self, epsilon: float) -> float:
        return min(bound.delta(epsilon) for bound in self._scaled)

    def _least_multiplier(self, epsilon: float, delta: float, by: str) -> float:
        return min(
            bound.least_multiplier(epsilon, delta, by) / bound.noise_multiplier * UP * UP for bound in self.bounds
        )

    # ---- composition -----------------------------------------------------------------------------------------

    @property
    def fits(self) -> bool:
        return any(bound.fits for bound in self._scaled)

    @property
    def interval(self) -> float:
        return min(bound.interval for bound in self._scaled if bound.fits)

    @property
    def coarsest(self) -> float:
        return min(bound.coarsest for bound in self._scaled)

    @property
    def slack(self) -> float:
        return max(bound.slack for bound in self._scaled)

    def losses(self, delta: float, interval: float | None = None) -> PrivacyLossDistribution:
        best = min((bound for bound in self._scaled if bound.fits), key=lambda bound: bound.epsilon(delta))  # bound
        return best.losses(delta, interval)

    @property
    def _scaled(self) -> tuple[LossCurve, ...]:
        return tuple(bound.at(bound.noise_multiplier * self.noise_multiplier / UP) for bound in self.bounds)

    # ---- words and files -------------------------------------------------------------------------------------

    def remark(self, delta: float) -> str:
        return self._best(delta).remark(delta)

    def facts(self, delta: float) -> dict[str, Any]:
        return self._best(delta).facts(delta)

    def _best(self, delta: float) -> LossCurve:
        return min(self._scaled, key=lambda bound: bound.epsilon(delta))  # bound
