"""What runs with secret bins of their own lose together: privacy loss distributions, one direction after the other.

In: the accountants of the runs, and the mu of runs whose batches are public. Out: epsilon at delta, delta at epsilon.
Each run's pair dominates it in either direction, also where a run is chosen after those before it were seen, so the
composition of the pairs dominates all of them; the larger of both directions is stated. Bins must be drawn anew: runs
that share them are one run, whose M is the sum of theirs (docs/secret_bins.md).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

from .. import check
from ..errors import InvalidInput
from ..shown import rounded_up
from . import gaussian
from .binned import FINEST, SLACK, UP, BinnedGaussian, delta_of, epsilon_of, gaussian_losses, interval_of

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


@dataclasses.dataclass(frozen=True)
class ComposedBins:
    """Runs with secret bins, drawn anew for each, and runs with public batches, all of one adjacency.

    Attributes: runs: at least one, certified; public: mu of runs with public batches; public_runs: how many runs those
        are, at least one for each mu.

    >>> run = BinnedGaussian(2.0, 4, ((4, 0.2),), "zero-out")
    >>> run.epsilon(1e-5) < ComposedBins((run, run)).epsilon(1e-5) < 2 * run.epsilon(1e-5)
    True
    """

    runs: tuple[BinnedGaussian, ...]
    public: tuple[float, ...] = ()
    public_runs: int = 0

    method = "certified"
    on = "the sum of clipped gradients, in the sensitivity of a record whose steps were public, in its weakest run"

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(check.listed("BinnedGaussian", runs=self.runs)))
        if not self.runs or any(type(run) is not BinnedGaussian for run in self.runs):
            raise InvalidInput("runs must be BinnedGaussian, at least one: bounds by samples do not compose.")
        if len({run.adjacency for run in self.runs}) > 1:
            raise InvalidInput(f"runs compose only for the same adjacency, got {[r.adjacency for r in self.runs]}.")
        public = check.listed("numbers >= 0, mu of each run", public=self.public)
        object.__setattr__(self, "public", tuple(check.non_negative_or_inf(public=mu) for mu in public))
        count = check.integer_at_least(0, public_runs=self.public_runs)
        object.__setattr__(self, "public_runs", max(count, len(self.public)))

    def with_public(self, mu: float, count: int = 1) -> ComposedBins:
        """These runs and more with public batches, which have this mu together."""
        return dataclasses.replace(self, public=(*self.public, mu), public_runs=self.public_runs + count)

    def with_runs(self, more: ComposedBins) -> ComposedBins:
        """These runs, then more."""
        public, count = self.public + more.public, self.public_runs + more.public_runs
        return dataclasses.replace(self, runs=self.runs + more.runs, public=public, public_runs=count)

    @property
    def composed(self) -> int:
        """How many runs, those with public batches counted."""
        return len(self.runs) + self.public_runs

    @property
    def adjacency(self) -> str:
        """That of every run."""
        return self.runs[0].adjacency

    @property
    def noise_multiplier(self) -> float:
        """The least one."""
        return min(run.noise_multiplier for run in self.runs)

    @property
    def other_mu(self) -> float:
        """Of all runs with public batches together."""
        return gaussian.compose(self.public)

    @property
    def public_mu(self) -> float:
        """Of all runs together if all bins were public: secrecy never costs."""
        return gaussian.compose([self.other_mu, *(run.public_mu for run in self.runs)])

    def epsilon(self, delta: float) -> float:
        """An epsilon at this delta in (0, 1), never below the true one; inf without noise."""
        public, slack = self.unsampled_epsilon(delta), SLACK * self.composed
        if math.isinf(public) or delta <= 2 * slack or not self._fits:
            return public
        return min(public, epsilon_of(_composed(self, delta), delta - slack))

    def delta(self, epsilon: float) -> float:
        """A delta at this epsilon >= 0, never below the true one; 1 without noise."""
        public = 1.0 if math.isinf(self.public_mu) else gaussian.delta_from_mu(self.public_mu, epsilon)
        if not self._fits or math.isinf(self.other_mu):
            return public
        return min(public, delta_of(_composed(self, FINEST), epsilon) + SLACK * self.composed)

    def unsampled_epsilon(self, delta: float) -> float:
        """That of public bins."""
        return gaussian.epsilon_from_mu(self.public_mu, check.open_unit(delta=delta))

    def remark(self, delta: float) -> str:
        """What stands beside epsilon in words: what was composed."""
        public = f", and runs of mu {rounded_up(self.other_mu, 4)} with public batches" if self.other_mu else ""
        count = f"{len(self.runs)} runs" if len(self.runs) > 1 else "1 run"
        each = ", ".join(rounded_up(run.epsilon(delta), 4) for run in self.runs)
        return (
            f"composed of {count} with secret bins, drawn anew for each (epsilon {each}){public}, by their "
            f"privacy loss distributions; with public bins {rounded_up(self.unsampled_epsilon(delta), 4)}"
        )

    @property
    def _fits(self) -> bool:
        return all(run.fits for run in self.runs)

    @property
    def _interval(self) -> float:
        """Discretization that is small against the losses of all runs: that of the one that loses most."""
        return max([*(run.interval for run in self.runs), *([interval_of(self.other_mu)] if self.other_mu else [])])


@functools.lru_cache(maxsize=32)
def _composed(runs: ComposedBins, delta: float) -> PrivacyLossDistribution:
    """Of all runs, in both directions: on the grid of the run that loses most, as pessimistic for the others."""
    interval = runs._interval
    losses = [run.losses(delta, interval) for run in runs.runs]
    if runs.other_mu:
        losses.append(gaussian_losses(runs.other_mu * UP, interval))
    return functools.reduce(lambda a, b: a.compose(b), losses)
