"""Privacy loss of several runs together: privacy loss distributions, one direction after the other.

Each run's pair dominates it in either direction, also where a run is chosen after those before it were seen, so the
composition of the pairs dominates all of them; the larger of both directions is returned. Batches must be drawn anew:
runs that share bins are one run, whose M is the sum of theirs (docs/balls_in_bins_theorem.md). Where delta is too small
for the floating point of distributions, Renyi divergences of runs that have them add up.

`Gaussian` is the curve of public batches, where mu says everything (Dong, Roth and Su).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np

from ... import check
from ...check import FloatArray
from ...display import rounded_up
from ...errors import InvalidInput, UnsupportedMechanism, require_known
from .. import gaussian
from .base import UP, PrivacyCurve, json_value, raised

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


SLACK = 1e-11  # of delta, for each pair composed: what floating point may do to dp-accounting's sums
FINEST = 1e-10  # tail of a law where no delta is given
MOST_POINTS = 2.0**21  # of the privacy losses of a run, so that a composition fits into memory


@dataclasses.dataclass(frozen=True)
class LossCurve(PrivacyCurve):
    """A certified curve of one run with a privacy loss distribution; `accountings`: what `least_multiplier` takes."""

    sampling_in_words: ClassVar[str]
    accountings: ClassVar[tuple[str, ...]] = ("tightest",)

    @property
    @abc.abstractmethod
    def fits(self) -> bool:
        """Whether floating point holds its privacy loss distribution."""

    @property
    @abc.abstractmethod
    def interval(self) -> float:
        """Discretization of its privacy losses."""

    @property
    def coarsest(self) -> float:
        """Coarsest discretization at which its losses stay tight: that of one step, for a run of many steps."""
        return math.inf

    @property
    def slack(self) -> float:
        """Error of delta by floating point in its privacy loss distribution when it is composed."""
        return SLACK

    @abc.abstractmethod
    def losses(self, delta: float, interval: float | None = None) -> PrivacyLossDistribution:
        """Its privacy loss distribution, for answers at this delta; `interval` may be another discretization."""

    def at(self, noise_multiplier: float) -> Self:
        return dataclasses.replace(self, noise_multiplier=noise_multiplier)  # type: ignore[call-arg]

    def least_multiplier(self, epsilon: float, delta: float, by: str = "tightest") -> float:
        epsilon, delta = check.positive(epsilon=epsilon), check.open_unit(delta=delta)
        require_known("by", by, self.accountings)
        return self._least_multiplier(epsilon, delta, by)

    @abc.abstractmethod
    def _least_multiplier(self, epsilon: float, delta: float, by: str) -> float:
        """`least_multiplier` of checked arguments."""

    def certified_runs(self) -> tuple[PrivacyCurve, ...]:
        return (self,)

    def composed_with(self, other: PrivacyCurve) -> PrivacyCurve:
        return Composed((self, *other.certified_runs()))


@dataclasses.dataclass(frozen=True)
class Composed(PrivacyCurve):
    """Runs with secret sampling, drawn anew for each, and runs with public batches, all of one adjacency.

    >>> from mfdl.privacy.curves import BallsInBinsGaussian
    >>> run = BallsInBinsGaussian(2.0, 4, ((4, 0.2),), "zero-out")
    >>> run.epsilon(1e-5) < run.composed_with(run).epsilon(1e-5) < 2 * run.epsilon(1e-5)
    True
    """

    curves: tuple[PrivacyCurve, ...]

    mu = None
    method = "certified"
    noise_on = (
        "the sum of clipped gradients, in the sensitivity of a record whose steps were public, in its weakest run"
    )

    def __post_init__(self) -> None:
        curves = tuple(check.listed("privacy curves", curves=self.curves))
        if not all(isinstance(curve, LossCurve | Gaussian) for curve in curves):
            raise InvalidInput("curves must be certified ones of single runs: bounds by samples do not compose.")
        object.__setattr__(self, "curves", curves)
        if not self.secret_runs:
            raise InvalidInput("curves must have at least one with secret sampling; Gaussian curves compose by mu.")
        require_same_adjacency(*curves)
        object.__setattr__(self, "curves", (*self.secret_runs, *self.public_runs))  # their order does not matter

    @property
    def secret_runs(self) -> tuple[LossCurve, ...]:
        return tuple(curve for curve in self.curves if isinstance(curve, LossCurve))

    @property
    def public_runs(self) -> tuple[Gaussian, ...]:
        return tuple(curve for curve in self.curves if isinstance(curve, Gaussian))

    @property
    def runs(self) -> int:
        return sum(curve.runs for curve in self.curves)

    @property
    def adjacency(self) -> str:
        return self.curves[0].adjacency

    @property
    def noise_multiplier(self) -> float:
        return min(curve.noise_multiplier for curve in self.secret_runs)

    @property
    def other_mu(self) -> float:
        """mu of all runs with public batches together."""
        return gaussian.compose([curve.mu for curve in self.public_runs])

    @property
    def public_mu(self) -> float:
        return gaussian.compose([self.other_mu, *(curve.public_mu for curve in self.secret_runs)])

    def epsilon(self, delta: float) -> float:
        public, slack = self.public_epsilon(delta), self._slack
        if math.isinf(public):
            return public
        public = min(public, self.renyi_epsilon(delta))
        losses = _composed(self, delta) if delta > 2 * slack and self._fits else None
        return public if losses is None else min(public, certified_epsilon(losses, delta - slack))

    def delta(self, epsilon: float) -> float:
        public = self.public_delta(epsilon)
        losses = _composed(self, FINEST) if self._fits and math.isfinite(self.other_mu) else None
        return public if losses is None else min(public, certified_delta(losses, epsilon) + self._slack)

    def renyi_divergences(self, orders: FloatArray) -> FloatArray:
        return np.asarray(UP * sum(run.renyi_divergences(orders) for run in self.curves))

    def at(self, noise_multiplier: float) -> NoReturn:
        raise _without_one_noise()

    def least_multiplier(self, epsilon: float, delta: float, by: str = "tightest") -> NoReturn:
        raise _without_one_noise()

    def certified_runs(self) -> tuple[PrivacyCurve, ...]:
        return self.curves

    def composed_with(self, other: PrivacyCurve) -> PrivacyCurve:
        return Composed((*self.curves, *other.certified_runs()))

    def remark(self, delta: float) -> str:
        public = f", and runs of mu {rounded_up(self.other_mu, 4)} with public batches" if self.other_mu else ""
        count = f"{len(self.secret_runs)} runs" if len(self.secret_runs) > 1 else "1 run"
        each = ", ".join(rounded_up(run.epsilon(delta), 4) for run in self.secret_runs)
        kinds = " and ".join(dict.fromkeys(run.sampling_in_words for run in self.secret_runs))
        return (
            f"composed of {count} with {kinds}, drawn anew for each (epsilon {each}){public}, by their "
            f"privacy loss distributions; with public batches {rounded_up(self.public_epsilon(delta), 4)}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs": [run.to_dict() for run in self.secret_runs],
            "public": [json_value(run.mu) for run in self.public_runs],
            "public_runs": sum(run.runs for run in self.public_runs),
        }

    @property
    def _fits(self) -> bool:
        return all(run.fits for run in self.secret_runs)

    @property
    def _slack(self) -> float:
        return sum(run.slack for run in self.secret_runs) + SLACK * sum(run.runs for run in self.public_runs)

    @property
    def _interval(self) -> float:
        """Discretization of the run that loses most; finer where a run has many steps, as far as memory allows."""
        largest = max(
            [*(run.interval for run in self.secret_runs), *([loss_interval(self.other_mu)] if self.other_mu else [])]
        )
        affordable = self.public_mu * (self.public_mu + 20) / MOST_POINTS
        return min(largest, max(affordable, min(run.coarsest for run in self.secret_runs)))


def _without_one_noise() -> UnsupportedMechanism:
    return UnsupportedMechanism(
        "runs that are composed have a noise each, and no noise multiplier in common; calibrate each run."
    )


@functools.lru_cache(maxsize=32)
def _composed(curve: Composed, delta: float) -> PrivacyLossDistribution | None:
    """Losses of all runs on the grid of the run that loses most; None where dp-accounting cannot make them."""
    try:
        interval = curve._interval
        losses = [run.losses(delta, interval) for run in curve.secret_runs]
        if curve.other_mu:
            losses.append(gaussian_losses(curve.other_mu * UP, interval))
        return functools.reduce(lambda a, b: a.compose(b), losses)
    except (ValueError, ArithmeticError):
        return None


# ---- privacy loss distributions of dp-accounting, rounded pessimistically --------------------------------------------


def gaussian_losses(mu: float, interval: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution

    std = 1 / mu * (1 - 2.0**-50)
    return privacy_loss_distribution.from_gaussian_mechanism(std, value_discretization_interval=interval)


def loss_interval(mu: float) -> float:
    """Discretization for mu-Gaussian DP: a small part of the standard deviation of its losses."""
    return 2.0 ** round(math.log2(mu / 100))


def certified_delta(losses: PrivacyLossDistribution, epsilon: float) -> float:
    """The larger delta of both directions; 1 where floating point cannot tell."""
    with np.errstate(all="ignore"):
        delta = float(losses.get_delta_for_epsilon(epsilon))
    return 1.0 if math.isnan(delta) else min(1.0, max(0.0, delta))


def certified_epsilon(losses: PrivacyLossDistribution, delta: float) -> float:
    """The larger epsilon of both directions; inf where there is none."""
    epsilon, more = float(losses.get_epsilon_for_delta(delta)), 1e-12
    while math.isfinite(epsilon) and not certified_delta(losses, epsilon) <= delta:
        epsilon, more = epsilon + more * (1 + epsilon), 2 * more
    return epsilon if math.isfinite(epsilon) else math.inf


def law_tail(delta: float) -> float:
    """Tail of a law, for an answer at this delta: it adds no more than the hundredth part."""
    return 10.0 ** math.floor(math.log10(delta) - 2)


BOUNDS = ("exact", "upper")


@dataclasses.dataclass(frozen=True)
class Gaussian(PrivacyCurve):
    """Runs whose batches are public, which are mu-GDP together.

    Attributes:
        mu: Gaussian DP parameter, >= 0; inf without a guarantee.
        bound: "exact" if mu is the parameter of the mechanism, "upper" if that may be smaller.

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
        return self.mu

    def epsilon(self, delta: float) -> float:
        return gaussian.epsilon_from_mu(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        return gaussian.delta_from_mu(self.mu, epsilon)

    def renyi_divergences(self, orders: FloatArray) -> FloatArray:
        return np.array([gaussian.renyi_epsilon(self.mu, float(order)) for order in np.asarray(orders)])

    def dp_event(self) -> DpEvent:
        """A Gaussian event with noise multiplier 1 / mu, rounded down; none where nothing is lost, or everything."""
        import dp_accounting

        multiplier = dataclasses.replace(self, adjacency="zero-out").noise_multiplier
        if math.isinf(multiplier):
            return dp_accounting.NoOpDpEvent()
        return dp_accounting.GaussianDpEvent(multiplier) if multiplier else dp_accounting.NonPrivateDpEvent()

    def at(self, noise_multiplier: float) -> Gaussian:
        shift = gaussian.record_shift(self.adjacency, 1.0)
        return dataclasses.replace(self, mu=gaussian.mu_from_noise_std(1.0, shift, noise_multiplier))

    def least_multiplier(self, epsilon: float, delta: float, by: str = "tightest") -> float:
        require_known("by", by, ("tightest",))
        multiplier = gaussian.record_shift(self.adjacency, 1.0) / gaussian.mu_from_epsilon(epsilon, delta)
        return raised(multiplier, lambda tried: self.at(tried).epsilon(delta) > epsilon)

    def certified_runs(self) -> tuple[PrivacyCurve, ...]:
        return (self,)

    def composed_with(self, other: PrivacyCurve) -> PrivacyCurve:
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
        """Without runs, which are counted by what holds the curve."""
        return {name: value for name, value in super().to_dict().items() if name != "runs"}


def require_same_adjacency(*curves: PrivacyCurve) -> None:
    """Raises: InvalidInput: curves of different adjacencies."""
    if len({curve.adjacency for curve in curves}) > 1:
        raise InvalidInput(
            f"privacy curves compose only for the same adjacency, got {[curve.adjacency for curve in curves]}."
        )
