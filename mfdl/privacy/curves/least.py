"""The least of several certified curves of one mechanism: each of them is an upper bound, so their minimum is one.

In: curves of secret sampling for one and the same run, each at the noise multiplier that it has where that of the whole
is 1. Out: epsilon at delta and delta at epsilon.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ... import check
from ...errors import InvalidInput
from .base import UP
from .composed import LossCurve, require_same_adjacency

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


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
        """That of every bound."""
        return self.bounds[0].adjacency

    @property
    def public_mu(self) -> float:
        """Of the same noise with public batches, by the bound that is least."""
        return min(bound.public_mu for bound in self._scaled)

    def epsilon(self, delta: float) -> float:
        """An epsilon at this delta in (0, 1), never below the true one; inf without noise."""
        return min(bound.epsilon(delta) for bound in self._scaled)

    def delta(self, epsilon: float) -> float:
        """A delta at this epsilon >= 0, never below the true one; 1 without noise."""
        return min(bound.delta(epsilon) for bound in self._scaled)

    def at(self, noise_multiplier: float) -> LeastCurve:
        """The same bounds at another noise multiplier."""
        return dataclasses.replace(self, noise_multiplier=noise_multiplier)

    def least_multiplier(self, epsilon: float, delta: float, by: str = "tightest") -> float:
        """The least noise multiplier of any bound that certifies (epsilon, delta). Raises: as theirs."""
        return min(
            bound.least_multiplier(epsilon, delta, by) / bound.noise_multiplier * UP * UP for bound in self.bounds
        )

    # ---- composition -----------------------------------------------------------------------------------------

    @property
    def fits(self) -> bool:
        """Whether floating point holds the privacy loss distribution of a bound."""
        return any(bound.fits for bound in self._scaled)

    @property
    def interval(self) -> float:
        """The finest discretization of its bounds."""
        return min(bound.interval for bound in self._scaled if bound.fits)

    @property
    def coarsest(self) -> float:
        """The least of its bounds."""
        return min(bound.coarsest for bound in self._scaled)

    @property
    def slack(self) -> float:
        """The largest of its bounds."""
        return max(bound.slack for bound in self._scaled)

    def losses(self, delta: float, interval: float | None = None) -> PrivacyLossDistribution:
        """Privacy loss distribution of the bound that is least at this delta."""
        best = min((bound for bound in self._scaled if bound.fits), key=lambda bound: bound.epsilon(delta))  # bound
        return best.losses(delta, interval)

    @property
    def _scaled(self) -> tuple[LossCurve, ...]:
        return tuple(bound.at(bound.noise_multiplier * self.noise_multiplier / UP) for bound in self.bounds)

    # ---- words and files -------------------------------------------------------------------------------------

    def remark(self, delta: float) -> str:
        """That of the bound that is least at this delta."""
        return self._best(delta).remark(delta)

    def facts(self, delta: float) -> dict[str, Any]:
        """Those of the bound that is least at this delta."""
        return self._best(delta).facts(delta)

    def _best(self, delta: float) -> LossCurve:
        return min(self._scaled, key=lambda bound: bound.epsilon(delta))  # bound
