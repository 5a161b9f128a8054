"""The curve of mu-Gaussian differential privacy: public batches, where mu says everything (Dong, Roth and Su)."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from ... import check
from ...check import FloatArray
from ...errors import InvalidInput, require_known
from .. import gaussian
from .base import PrivacyCurve, raised

if TYPE_CHECKING:
    from dp_accounting import DpEvent

BOUNDS = ("exact", "upper")


@dataclasses.dataclass(frozen=True)
class Gaussian(PrivacyCurve):
    """Runs whose batches are public, which are mu-GDP together.

    Attributes:
        mu: Gaussian DP parameter, >= 0; inf without a guarantee.
        adjacency: "zero-out", "add-remove" or "replace-one".
        bound: "exact" if mu is the parameter of the mechanism, "upper" if that may be smaller.
        runs: number of runs.

    >>> curve = Gaussian(1.0, "zero-out")
    >>> round(curve.epsilon(1e-6), 3), curve.composed_with(curve).mu, curve.at(4.0).mu
    (4.887, 1.4142135623730951, 0.25)
    """

    mu: float
    adjacency: str
    bound: str = "exact"
    runs: int = 1

    method = "exact"
    noise_on = "the sum of clipped gradients, in the sensitivity of a record"

    def __post_init__(self) -> None:
        require_known("adjacency", str(self.adjacency), gaussian.ADJACENCIES)
        require_known("bound", str(self.bound), BOUNDS)
        object.__setattr__(self, "mu", check.non_negative_or_inf(mu=self.mu))
        object.__setattr__(self, "runs", check.integer_at_least(1, runs=self.runs))

    @property
    def noise_multiplier(self) -> float:
        """record_shift / mu at clipping norm 1, rounded down: inf where nothing is lost, 0 where mu is infinite."""
        if self.mu == 0 or math.isinf(self.mu):
            return math.inf if self.mu == 0 else 0.0
        exact = Fraction(gaussian.record_shift(self.adjacency, 1.0)) / Fraction(self.mu)
        try:
            nearest = float(exact)
        except OverflowError:
            return math.nextafter(math.inf, 0.0)
        return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, 0.0)

    @property
    def public_mu(self) -> float:
        """mu itself: the batches are public."""
        return self.mu

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at this delta, rounded up; see `gaussian.epsilon_from_mu`."""
        return gaussian.epsilon_from_mu(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        """Smallest delta at this epsilon, rounded up; see `gaussian.delta_from_mu`."""
        return gaussian.delta_from_mu(self.mu, epsilon)

    def renyi_divergences(self, orders: FloatArray) -> FloatArray:
        """order * mu^2 / 2, rounded up; see `gaussian.renyi_epsilon`."""
        return np.array([gaussian.renyi_epsilon(self.mu, float(order)) for order in np.asarray(orders)])

    def dp_event(self) -> DpEvent:
        """A Gaussian event with noise multiplier 1 / mu, rounded down; none where nothing is lost, or everything."""
        import dp_accounting

        multiplier = dataclasses.replace(self, adjacency="zero-out").noise_multiplier
        if math.isinf(multiplier):
            return dp_accounting.NoOpDpEvent()
        return dp_accounting.GaussianDpEvent(multiplier) if multiplier else dp_accounting.NonPrivateDpEvent()

    def at(self, noise_multiplier: float) -> Gaussian:
        """mu at another noise multiplier, rounded up."""
        shift = gaussian.record_shift(self.adjacency, 1.0)
        return dataclasses.replace(self, mu=gaussian.mu_from_noise_std(1.0, shift, noise_multiplier))

    def least_multiplier(self, epsilon: float, delta: float, by: str = "tightest") -> float:
        """record_shift / mu at the largest mu that (epsilon, delta) allows, rounded up."""
        require_known("by", by, ("tightest",))
        multiplier = gaussian.record_shift(self.adjacency, 1.0) / gaussian.mu_from_epsilon(epsilon, delta)
        return raised(multiplier, lambda tried: self.at(tried).epsilon(delta) > epsilon)

    def certified_runs(self) -> tuple[PrivacyCurve, ...]:
        """Itself."""
        return (self,)

    def composed_with(self, other: PrivacyCurve) -> PrivacyCurve:
        """mu^2 adds up over Gaussian runs; with others, their privacy loss distributions compose."""
        if not isinstance(other, Gaussian):
            return other.composed_with(self)
        require_same_adjacency(self, other)
        return Gaussian(
            gaussian.compose([self.mu, other.mu]),
            self.adjacency,
            "exact" if self.bound == other.bound == "exact" else "upper",
            self.runs + other.runs,
        )

    def to_dict(self) -> dict[str, object]:
        """mu, adjacency and bound; runs are counted by what holds the curve."""
        fields = super().to_dict()
        del fields["runs"]
        return fields


def require_same_adjacency(*curves: PrivacyCurve) -> None:
    """Raises InvalidInput where curves of different adjacencies would be composed."""
    if len({curve.adjacency for curve in curves}) > 1:
        raise InvalidInput(
            f"privacy curves compose only for the same adjacency, got {[curve.adjacency for curve in curves]}."
        )
