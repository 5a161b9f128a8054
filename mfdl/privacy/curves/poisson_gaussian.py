"""What the Poisson-sampled Gaussian loses over T steps, as (epsilon, delta): the least of three upper bounds.

That one step of a decentralized algorithm is dominated by this pair of distributions is docs/sampling_theorem.md.

The pair of one step, with R = N(0, s^2) and s the multiplier: (1 - q) R + q N(1, s^2) against R, in both directions,
where a record vanishes; against (1 - q) R + q N(-1, s^2) where it is replaced. The bounds are the privacy loss
distribution of dp-accounting, rounded pessimistically, with a slack for its floating point; Renyi divergences; and the
Gaussian without sampling, which loses more.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import check
from ...check import FloatArray
from ...display import rounded_up
from ...errors import require_known
from .. import gaussian
from .base import UP, Pass, least_multiplier, public_mu
from .composed import LossCurve, certified_delta, certified_epsilon

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


GRID, COARSE, COARSEST = 2**14, 2**12, 2**10
"""Grid points over the privacy losses of one step; fewer are another upper bound, larger and sooner."""
ERROR = 1e-12
"""Of one step: how far rounding may move the computed delta, per `LOSSES` of range (docs/sampling_theorem.md)."""
LOSSES = 50.0
FITS = 0.05, 1e6  # noise multipliers of parts of a product: beyond, batches count as public
PRECISION = 1e-4  # relative: how far calibrated noise may lie above the least that is certified
MOST = 1024  # largest order of Renyi divergences that is computed
REACH = 10.1  # standard deviations beyond which dp-accounting counts the loss as infinite (a mass of e^-50)
NEIGHBOURS = {"zero-out": "REPLACE_SPECIAL", "add-remove": "ADD_OR_REMOVE_ONE", "replace-one": "REPLACE_ONE"}


@dataclasses.dataclass(frozen=True)
class PoissonGaussian(LossCurve):
    """T steps of the Gaussian mechanism, each record in each step with probability q, composed adaptively.

    Attributes:
        noise_multiplier: s >= 0, std of the noise over the clipping norm, under every adjacency (not over twice the
            norm under replace-one: the pair of distributions has both shifts); 0 is no noise, and loses everything.
        rate: q in (0, 1); steps: T >= 1.

    >>> curve = PoissonGaussian(1.0, rate=0.01, steps=100, adjacency="zero-out")
    >>> round(curve.epsilon(1e-5), 2), PoissonGaussian(0.0, 0.01, 100, "zero-out").epsilon(1e-5)
    (0.72, inf)
    """

    noise_multiplier: float
    rate: float
    steps: int
    adjacency: str

    mu = None
    method = "certified"
    sampling_in_words = "Poisson sampling"
    accountings = ("tightest", "renyi")
    noise_on = "the sum of clipped gradients, fresh in every step"

    def __post_init__(self) -> None:
        require_known("adjacency", str(self.adjacency), gaussian.ADJACENCIES)
        checked: dict[str, Any] = {
            "noise_multiplier": check.non_negative(noise_multiplier=self.noise_multiplier),
            "rate": check.open_unit(rate=self.rate),
            "steps": check.integer_at_least(1, steps=self.steps),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def epsilon(self, delta: float) -> float:
        """Cost: a second the first time, for imports too, then milliseconds."""
        return min(bound(delta) for bound in (self.loss_epsilon, self.renyi_epsilon, self.public_epsilon))

    def delta(self, epsilon: float) -> float:
        epsilon = check.non_negative(epsilon=epsilon)
        if not self.noise_multiplier:
            return 1.0
        public, losses = self.public_delta(epsilon), _losses(self, GRID)
        return public if losses is None else min(public, 1.0, certified_delta(losses, epsilon) + self.slack)

    @property
    def public_mu(self) -> float:
        return public_mu(self.adjacency, self.noise_multiplier, self.steps)

    def _least_multiplier(self, epsilon: float, delta: float, by: str) -> float:
        """Args: by: "tightest" of all bounds, or "renyi" for that of the papers. Cost: seconds, once per target."""
        return _least(self.at(1.0), epsilon, delta, by)

    def dp_event(self) -> DpEvent:
        """T Poisson-sampled Gaussian events; none of replace-one, where default relations would lose too little.

        Raises: UnsupportedMechanism: replace-one, for which an accountant's default relation would lose too little.
        """
        import dp_accounting

        if self.adjacency == "replace-one":
            super().dp_event()
        if not self.noise_multiplier:
            return dp_accounting.NonPrivateDpEvent()
        step = dp_accounting.PoissonSampledDpEvent(self.rate, dp_accounting.GaussianDpEvent(self.noise_multiplier))
        return dp_accounting.SelfComposedDpEvent(step, self.steps)

    def remark(self, delta: float) -> str:
        return f"Renyi accounting gives {rounded_up(self.renyi_epsilon(delta), 4)}"

    @property
    def fits(self) -> bool:
        return FITS[0] <= self.noise_multiplier <= FITS[1]

    @property
    def coarsest(self) -> float:
        return self.interval

    @property
    def interval(self) -> float:
        spread = self.rate * math.sqrt(math.expm1(min(self.noise_multiplier**-2, 3.0)))
        whole = _range(self)
        return min(whole / COARSEST, max(whole / GRID, spread / 30))

    def losses(self, delta: float, interval: float | None = None) -> PrivacyLossDistribution:
        return _on_grid(self, interval or self.interval)

    def loss_epsilon(self, delta: float, grid: int = GRID) -> float:
        """An epsilon by the privacy loss distribution; inf where floating point cannot tell so small a delta."""
        delta = check.open_unit(delta=delta)
        target = delta - self.slack
        losses = _losses(self, grid) if self.noise_multiplier and target > 0 else None
        return math.inf if losses is None else certified_epsilon(losses, target)

    def renyi_divergences(self, orders: FloatArray) -> FloatArray:
        """Renyi divergences of all steps: exact but for rounding up at integer orders, upper bounds between them.

        Between integer orders (order - 1) D is convex, so its chord is above it; under replace-one D is a bound by
        the pair without the record. Never above those with public batches.
        Source: Mironov, Talwar, Zhang, arXiv:1908.10530, Theorem 5 and Section 3.3 for one step.
        """
        orders = np.asarray(orders, dtype=np.float64)
        public = super().renyi_divergences(orders)
        if not self.noise_multiplier:
            return public
        low, high = (np.clip(whole, 2, MOST) for whole in (np.floor(orders), np.ceil(orders)))  # D increases with order
        whole, place = np.unique(np.concatenate([low, high]), return_inverse=True)
        at_low, at_high = self._integer_orders(tuple(map(int, whole)))[place].reshape(2, -1)
        with np.errstate(divide="ignore", invalid="ignore"):
            chord = ((high - orders) * (low - 1) * at_low + (orders - low) * (high - 1) * at_high) / (orders - 1)
        lost = np.where(low == high, at_low, chord) * (1 + 1e-9) + self.slack  # its sums have far fewer roundings
        return np.where((orders <= MOST) & ~np.isnan(lost), np.minimum(lost, public), public)

    def _integer_orders(self, orders: tuple[int, ...]) -> FloatArray:
        if self.adjacency != "replace-one":
            return _renyi(self, orders)
        # P against Q by way of R: D_a(P||Q) <= (a - 1/2) / (a - 1) D_2a(P||R) + D_(2a-1)(R||Q)
        double, odd = (_renyi(self, tuple(2 * order - less for order in orders)) for less in (0, 1))
        whole = np.asarray(orders)
        return (whole - 0.5) / (whole - 1) * double + odd

    @property
    def slack(self) -> float:
        return ERROR * self.steps * max(1.0, _range(self) / LOSSES) if self.noise_multiplier else 0.0


@functools.lru_cache(maxsize=64)
def _least(curve: PoissonGaussian, epsilon: float, delta: float, by: str) -> float:
    def excess(multiplier: float, grid: int) -> float:
        tried = curve.at(multiplier)
        least = tried.loss_epsilon(delta, grid) if by == "tightest" else math.inf
        if math.isinf(least):  # of a delta that floating point cannot tell, too
            least = tried.renyi_epsilon(delta)
        return math.log(max(min(least, tried.public_epsilon(delta)), 1e-12) / epsilon)

    public = curve.public_mu / gaussian.mu_from_epsilon(epsilon, delta) * UP
    return least_multiplier(excess, public, (Pass(COARSE, 2.0, 1e-3), Pass(GRID, 1 + 1e-3, PRECISION)))


# ---- dp-accounting ---------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=32)
def _losses(curve: PoissonGaussian, grid: int) -> PrivacyLossDistribution | None:
    try:
        return _on_grid(curve, _range(curve) / grid)
    except (ValueError, ArithmeticError):
        return None


def _on_grid(curve: PoissonGaussian, interval: float) -> PrivacyLossDistribution:
    """Losses of all steps. Raises: ValueError, ArithmeticError: dp-accounting cannot make them."""
    import dp_accounting  # a second
    from dp_accounting.pld import privacy_loss_distribution

    with np.errstate(all="ignore"):
        single = privacy_loss_distribution.from_gaussian_mechanism(
            curve.noise_multiplier,
            sampling_prob=curve.rate,
            neighboring_relation=dp_accounting.NeighboringRelation[NEIGHBOURS[curve.adjacency]],
            value_discretization_interval=interval,
            pessimistic_estimate=True,
        )
        return single.self_compose(curve.steps)


def _range(curve: PoissonGaussian) -> float:
    """At least the privacy losses of one step, from smallest to largest, that are no tail."""
    s, q = curve.noise_multiplier, curve.rate
    largest = float(np.logaddexp(math.log1p(-q), math.log(q) + (REACH + 0.5 / s) / s)) - math.log1p(-q)
    return 2 * largest


@functools.lru_cache(maxsize=256)
def _renyi(curve: PoissonGaussian, orders: tuple[int, ...]) -> FloatArray:
    """Divergences of all steps of the sampled Gaussian from the one without the record, at least the converse ones."""
    import dp_accounting
    from dp_accounting import rdp

    event = dp_accounting.PoissonSampledDpEvent(curve.rate, dp_accounting.GaussianDpEvent(curve.noise_multiplier))
    try:
        with np.errstate(all="ignore"):
            accountant = rdp.RdpAccountant(orders=[int(order) for order in orders])
            divergences = np.asarray(accountant.compose(event, curve.steps).rdp, dtype=np.float64)
    except ArithmeticError:  # the square of a multiplier that no float64 holds
        return np.full(len(orders), math.inf)
    return np.where(np.isfinite(divergences) & (divergences >= 0), divergences, math.inf)
