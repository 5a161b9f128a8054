"""audit: the privacy that training really has, measured, against the privacy that is claimed.

In: an algorithm, its noise, a trust model, and a system that runs it. Out: lower confidence bounds on mu for a few
canaries, each beside the mu claimed for its victim. The claim is refuted where a bound exceeds it.

A canary is one record with gradients chosen to show; it is sent raw and large through the system's own clipping.
As many runs choose (the pilot) as measure: which statistic, which threshold, and one more canary, where the noise that
was measured is weakest: whose record, which steps, and which direction over coordinates. Bonferroni over canaries and
estimators gives the level.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from .. import check
from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput
from ..keywords import takes_fields_of
from ..mechanism import Mechanism, require_unit
from ..privacy import gaussian
from ..privacy.accounting import VictimLoss, victim_losses
from ..progress import Progress, shown
from ..sensitivity.patterns import MAX_ENUMERATED
from ..trust import TrustModel
from . import bounds, claims
from .bins_results import BinsAuditResult
from .canaries import DIRECTIONS, Canary, candidates, learned
from .results import AuditResult, Settings
from .runs import Runs
from .secret_bins import audited_bins
from .system import System, Training

ESTIMATORS = ("gaussian", "binomial")
MAX_CLAIM = 1e6
MAX_SAMPLES = 2**26  # rows x trials of one canary: 512 MiB, several times


@dataclasses.dataclass(frozen=True, eq=False)
class AuditConfig:
    """What `audit` is asked.

    Attributes:
        subject: a mechanism, of secret bins too: it brings adjacency, clip_norm and noise_std; or an
            algorithm with all three.
        trust: who sees and knows what; the claim is the adaptive mu of every victim under it. Of a mechanism, under
            its guarantee's own trust model, it is the guarantee's mu where that is smaller; a difference is noted.
        adjacency: of the inputs that are run; of a mechanism, another one than it was accounted for keeps its claim.
        victim: node index; None: every node whose claim is finite.
        release: as for `account`; default that of the mechanism's guarantee under this trust model.
        unit: "record" or "user"; of a mechanism its own; default "record". A user is all gradients of the victim.
        claimed_mu: a claim of somebody else, for every victim, instead of the library's own.
        system: what runs; default the library's training path.
        trials: runs that measure, per canary and input; as many more choose.
        level: of all bounds together, in (0, 1).
        delta: of every epsilon; seed: of the noise; one seed gives one result.
        bins_seen: of `BallsInBins`: the attacker is told the bins. A planted bug, which refutes the amplified claim.
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called after each canary.
    """

    subject: Mechanism | LinearAlgorithm
    _: dataclasses.KW_ONLY
    trust: TrustModel
    adjacency: str | None = None
    clip_norm: float | None = None
    noise_std: float | None = None
    victim: int | None = None
    release: str | None = None
    unit: str | None = None
    claimed_mu: float | None = None
    system: System | None = None
    trials: int = 2000
    level: float = 0.95
    delta: float = 1e-6
    seed: int = 0
    bins_seen: bool = False
    progress: Progress = "auto"

    @property
    def mechanism(self) -> Mechanism | None:
        """The subject, if it is one."""
        return self.subject if isinstance(self.subject, Mechanism) else None

    @property
    def algorithm(self) -> LinearAlgorithm:
        """What runs."""
        return self.subject if isinstance(self.subject, LinearAlgorithm) else self.subject.algorithm

    @property
    def claimed_adjacency(self) -> str | None:
        """That of the claim."""
        return self.adjacency if self.mechanism is None else self.mechanism.guarantee.adjacency

    def settings(self) -> Settings:
        """All that a mechanism brings or the caller gives, checked."""
        check.instance(Mechanism, LinearAlgorithm, subject=self.subject)
        check.instance(TrustModel, trust=self.trust)
        given = {"clip_norm": self.clip_norm, "noise_std": self.noise_std, "unit": self.unit}
        if self.mechanism is not None:
            if twice := [name for name, value in given.items() if value is not None]:
                raise InvalidInput(f"a mechanism brings {' and '.join(twice)}; leave it out, or give its algorithm.")
            given = {name: getattr(self.mechanism, name) for name in given}
        elif None in (self.adjacency, self.clip_norm, self.noise_std):
            raise InvalidInput("an algorithm needs adjacency, clip_norm and noise_std; give all three, or a Mechanism.")
        unit, n = str(given["unit"] or "record"), self.algorithm.num_nodes
        require_unit(unit, self.algorithm.participation)
        if self.victim is not None and check.integer_at_least(0, victim=self.victim) >= n:
            raise InvalidInput(f"victim must be a node index below {n}, got {self.victim}.")
        return Settings(
            mechanism=self.algorithm.name,
            trust=self.trust.name,
            adjacency=str(self.adjacency or self.claimed_adjacency),
            noise_std=check.positive(noise_std=given["noise_std"]),
            clip_norm=check.positive(clip_norm=given["clip_norm"]),
            delta=check.open_unit(delta=self.delta),
            level=check.open_unit(level=self.level),
            trials=check.integer_at_least(2, trials=self.trials),
            seed=check.integer_at_least(0, seed=self.seed),
            unit=unit,
        )

    @functools.cached_property
    def losses(self) -> list[VictimLoss]:
        """Of the victims asked for; their noise has no part in them."""
        asked = None if self.victim is None else [self.victim]
        unit = str(self.unit or "record") if self.mechanism is None else self.mechanism.unit
        how: dict[str, Any] = {"victims": asked, "release": self.shown(), "unit": unit}
        return victim_losses(self.algorithm, self.trust, **how, progress=shown(self.progress).within())

    def with_noise(self, noise_std: float) -> AuditConfig:
        """The same for another noise, and so with the same losses."""
        other = dataclasses.replace(self, noise_std=noise_std)
        vars(other)["losses"] = self.losses
        return other

    def shown(self) -> str | None:
        """The final models that the view holds; None: the default."""
        if self.release is None and isinstance(self.subject, Mechanism) and self.subject.sampling is None:
            stated = self.subject.guarantee
            return stated.release if self.trust.name == stated.trust else None
        return self.release


@takes_fields_of(AuditConfig)
def audit(config: AuditConfig) -> AuditResult | BinsAuditResult:
    """Runs neighbouring inputs and bounds from below the privacy that the runs show; `AuditConfig` has the arguments.

    >>> from mfdl import algorithms, dynamics, gossip, participation, trust
    >>> ring = dynamics.Dynamics(gossip.metropolis_hastings("ring:n=4"))
    >>> fresh = algorithms.dp_dsgd(ring, participation.Cyclic(epochs=2, period=2))
    >>> found = audit(fresh, trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0, noise_std=1.0)
    >>> round(found.mu_claimed, 4), found.violated, bool(found.mu_audited > 1.1)
    (1.4142, False, True)

    Guarantees: a claim that holds is refuted with probability at most 1 - level, whatever the statistic learned
        (`gaussian`: if the system's noise is normal; `binomial`: always).
    Raises:
        InvalidInput: nothing finite is claimed, nobody sees anything of the record, too few trials (and how many are
            needed), a view too large for dense matrices, a transcript without messages that the view sees.
    Cost: n + 5 canaries of 4 trials runs each; cubic in the rows of the view.
    """
    return audited(config)


def audited(config: AuditConfig) -> AuditResult | BinsAuditResult:
    """`audit` of a config, whose losses are accounted once."""
    check.instance(Mechanism, LinearAlgorithm, subject=config.subject)
    if config.algorithm.participation.num_bins is not None:
        return audited_bins(config)
    if config.bins_seen:
        raise InvalidInput("bins_seen=True: only secret bins can be told; leave it out, or audit BallsInBins.")
    settings, algorithm, release = config.settings(), config.algorithm, config.shown()
    gaussian.record_shift(settings.adjacency, settings.clip_norm)  # refuses another adjacency
    stated = _claims(config, settings)
    chosen = candidates(algorithm, config.trust, list(stated.mu), release=release, unit=settings.unit)
    stated = stated.kept({c.victim for c in chosen}, "they attack themselves or nothing of them is seen")
    if not stated.mu:
        raise InvalidInput(
            f"{algorithm.name} has nothing to audit under {config.trust.name}: every victim attacks itself, or nothing "
            "of the record is seen; choose another victim, trust model or release."
        )
    notes = stated.notes
    if any(algorithm.participation.of_node(u).num_patterns > MAX_ENUMERATED for u in stated.mu):
        some = (
            f"of more than {MAX_ENUMERATED} patterns of steps some were tried, with every step that a record can join"
        )
        notes = (*notes, some)
    failure = (1 - settings.level) / ((len(chosen) + 1) * len(ESTIMATORS))
    _require_trials(settings, stated, chosen, failure)
    trained = config.system or Training(algorithm, noise_std=settings.noise_std, clip_norm=settings.clip_norm)
    runs = Runs(trained, settings, failure)
    worst = chosen[: len(stated.mu)]  # one of each victim
    looked_at = [dataclasses.replace(canary, direction=along) for canary in worst for along in DIRECTIONS]
    chosen.append(learned(looked_at, runs.precisions(looked_at), stated.mu))
    results = []
    with shown(config.progress, words=0).bar(f"auditing {algorithm.name}", len(chosen)) as advance:
        for number, canary in enumerate(chosen):
            results.append(runs.result(canary, number, stated.mu[canary.victim]))
            advance()
    return AuditResult(**vars(settings), mu_claimed=max(stated.mu.values()), canaries=tuple(results), notes=notes)


def _claims(config: AuditConfig, settings: Settings) -> claims.Claims:
    """The library's own where runs could refute them, or that of somebody else for every victim."""
    losses = config.losses
    if config.claimed_mu is not None:
        mus = dict.fromkeys((loss.victim for loss in losses), check.positive(claimed_mu=config.claimed_mu))
        return claims.Claims(mus, mus)
    shift = gaussian.record_shift(str(config.claimed_adjacency), settings.clip_norm)
    mus = {  # as the accountant finds them now, rounded up; 0 where the record changes nothing
        x.victim: x.mu(record_shift=shift, noise_std=settings.noise_std) if x.trained.squared > 0 else 0.0
        for x in losses
    }
    of_all = config.victim is None
    subject = config.subject if isinstance(config.subject, Mechanism) else None
    return claims.refutable(subject, settings.mechanism, config.trust, losses, mus, of_all=of_all)


def _require_trials(settings: Settings, stated: claims.Claims, chosen: Sequence[Canary], failure: float) -> None:
    """Refuses a claim that no run can refute, and another number of trials than can be afforded and is enough."""
    trials, largest, rows = settings.trials, max(stated.mu.values()), max(len(c.view.gradients) for c in chosen)
    if largest > MAX_CLAIM:
        raise InvalidInput(
            f"mu must be at most {MAX_CLAIM:g} to be audited, got a claim of {largest:.4g}: runs in float64 cannot "
            "tell it from no privacy at all."
        )
    expected = max(stated.expected[u] for u in stated.mu)
    needed = max(bounds.trials_needed(expected, failure=failure), 4 * rows)
    if trials < needed:
        raise InvalidInput(
            f"trials must be at least {needed} to show at level {settings.level:g} that a loss is twice the claimed "
            f"mu={expected:.4g}, got {trials}; give more trials, a lower level or a larger mu."
        )
    if trials * rows > MAX_SAMPLES:
        raise InvalidInput(f"trials must be at most {MAX_SAMPLES // rows} for views of {rows} rows, got {trials}.")
