"""audit: the privacy that training really has, measured, against the privacy that is claimed.

In: an algorithm, its noise, a trust model, and a system that runs it. Out: lower confidence bounds on what a few
canaries show, each beside the claim for its victim. The claim is refuted where a bound exceeds it.

A canary is one record with gradients chosen to show; it is sent raw and large through the system's own clipping. An
`AuditPlan` is an attack, the claims that it could refute, and canaries. As many runs choose (the pilot) as measure:
which statistic, which threshold, and with public batches one more canary, where the noise that was measured is weakest:
whose record, which steps, and which direction over coordinates. Bonferroni over canaries and estimators gives the
level.
"""

from __future__ import annotations

import dataclasses
import math

from ..errors import InvalidInput
from ..progress import reporter
from ..spec import takes_fields_of
from .audit_results import AuditResult
from .audited_claims import NOTHING_IS_SEEN, AuditedClaims, AuditSettings
from .bin_ratio import MOST, BinsAttack
from .canaries import Canary
from .observation import anything_is_seen
from .runs import Attack, Demand, PublicAttack, Runs

MAX_SAMPLES = 2**26  # rows x trials of one canary: 512 MiB, several times
UNSEEN = "they attack themselves or nothing of them is seen"


@takes_fields_of(AuditSettings)
def audit(settings: AuditSettings) -> AuditResult:
    """Runs neighbouring inputs and bounds from below the privacy that the runs show; arguments: `AuditSettings`.

    >>> from mfdl import algorithms, dynamics, gossip, participation, trust
    >>> ring = dynamics.Dynamics(gossip.metropolis_hastings("ring:n=4"))
    >>> fresh = algorithms.dp_dsgd(ring, participation.Cyclic(epochs=2, period=2))
    >>> result = audit(fresh, trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0, noise_std=1.0)
    >>> round(result.mu_claimed, 4), result.violated, bool(result.mu_audited > 1.1)
    (1.4142, False, True)

    Guarantees: a claim that holds is refuted with probability at most 1 - level, whatever the statistic learned
        (`gaussian`: if the system's noise is normal; `binomial`: always).
    Raises:
        InvalidInput: no finite privacy loss is claimed, nothing of the record is seen, too few trials (and how many are
            needed), a view too large for dense matrices, a transcript without messages that the view sees.
    Cost: n + 5 canaries of 4 trials runs each; cubic in the rows of the view.
    """
    plan = AuditPlan.of(settings)
    if plan.why:
        raise settings.refusal(plan.why)
    return plan.result()


@dataclasses.dataclass(frozen=True)
class AuditPlan:
    """An audit before it runs: an attack, what it could refute, and with which canaries.

    Attributes: canaries: none where nothing could be refuted, which `why` then says.
    """

    attack: Attack
    claims: AuditedClaims
    canaries: tuple[Canary, ...] = ()
    why: str = ""

    @staticmethod
    def of(settings: AuditSettings) -> AuditPlan:
        """Raises: InvalidInput: arguments out of range, too few or too many trials, a view too large."""
        attack = (PublicAttack if settings.num_bins is None else BinsAttack)(settings)
        claims = AuditedClaims.of(settings)
        canaries = attack.candidates(list(claims.by_victim)) if claims.by_victim else []
        if not canaries:
            seen = anything_is_seen(settings.algorithm, settings.trust, release=settings.released)
            unseen = f"every victim attacks itself, or {NOTHING_IS_SEEN}" if seen else NOTHING_IS_SEEN
            return AuditPlan(attack, claims, why=claims.why or unseen)
        claims = claims.of_victims({canary.victim for canary in canaries}, UNSEEN)
        plan = AuditPlan(attack, claims, tuple(canaries))
        demand = attack.demand(canaries, claims.by_victim, plan.failure)
        if math.isinf(demand.trials):
            return AuditPlan(attack, claims, why=f"no number of runs up to {MOST} shows {demand.shows}")
        plan._require_trials(demand)
        return plan

    @property
    def failure(self) -> float:
        """Of each bound: of all canaries, and of one more canary or of the tests of the draws."""
        return (1 - self.attack.settings.circumstances.level) / ((len(self.canaries) + 1) * self.attack.estimators)

    def _require_trials(self, demand: Demand) -> None:
        """Refuses another number of trials than can be afforded and is enough."""
        circumstances = self.attack.settings.circumstances
        trials, level = circumstances.trials, circumstances.level
        rows = max(len(canary.view.gradients) for canary in self.canaries)
        if trials < demand.trials:
            raise InvalidInput(
                f"trials must be at least {demand.trials:.0f} to show at level {level:g} {demand.shows}, got {trials}; "
                "give more trials, a lower level or less noise."
            )
        if trials * rows > MAX_SAMPLES:
            raise InvalidInput(f"trials must be at most {MAX_SAMPLES // rows} for views of {rows} rows, got {trials}.")

    def result(self) -> AuditResult:
        """What all canaries show."""
        attack, settings, claims = self.attack, self.attack.settings, self.claims.by_victim
        draws = attack.tested_draws(self.failure)
        runs = Runs(attack, self.failure)
        canaries = [*self.canaries, *attack.chosen_from_runs(runs, self.canaries, claims)]
        results = []
        with reporter(settings.progress, words=0).bar(f"auditing {settings.algorithm.name}", len(canaries)) as advance:
            for number, canary in enumerate(canaries):
                results.append(runs.result(canary, number, claims[canary.victim]))
                advance()
        return AuditResult(
            **vars(settings.circumstances),
            canaries=tuple(results),
            draws=draws,
            bins_seen=settings.bins_seen,
            notes=(*self.claims.notes, *attack.notes(list(claims))),
        )
