"""The settings of an audit, the claim about each victim, and the result: lower bounds beside the claim.

The claims of a victim are the curve that the accountant finds now and the one that a guarantee states; both must hold.
An audit of the accountant's number alone would miss a guarantee that was computed wrongly from it, or long ago.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import Any, Self

import numpy as np

from mfdl_solvers.ties import first_largest, first_maximum

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..display import rounded_up, short, short_repr
from ..errors import InvalidInput
from ..mechanism import Mechanism, require_unit
from ..privacy import gaussian
from ..privacy.curves import Gaussian, PrivacyCurve
from ..privacy.guarantee_texts import EVERY_NODE
from ..privacy.losses import Losses
from ..privacy.questions import Privacy
from ..progress import Progress, reporter
from ..trust import TrustModel
from .bin_draws import TestedDraws
from .bounds import EPSILONS, ErrorRates
from .observation import AuditedSystem, anything_is_seen


@dataclasses.dataclass(frozen=True)
class CanaryResult:
    """Lower confidence bounds on what one canary shows of its victim, beside the claim. None: not defined there.

    Attributes:
        canary, attacker: in words; victim: node index; steps: in which the canary has a gradient.
        statistic: "claimed" or "learned"; with balls-in-bins "mixture over bins", or "own bin" where bins are public.
        epsilon_claimed: at the delta of the audit; epsilon_binomial: lower bound, whatever the distribution.
        mu_claimed: for this victim, adaptive; None where the claim is a curve that is not Gaussian.
        mu_possible: what the claimed mechanism loses to this very canary.
        mu_binomial: lower bound, whatever the distribution; mu_gaussian, epsilon_gaussian: for normal statistics.
        at_epsilon: where delta_claimed, of a curve, and its lower bound delta_audited are furthest apart, or closest.
    """

    __repr__ = short_repr

    canary: str
    victim: int
    attacker: str
    steps: tuple[int, ...]
    statistic: str
    epsilon_claimed: float
    epsilon_binomial: float
    epsilon_gaussian: float | None = None
    mu_claimed: float | None = None
    mu_possible: float | None = None
    mu_binomial: float | None = None
    mu_gaussian: float | None = None
    at_epsilon: float | None = None
    delta_claimed: float | None = None
    delta_audited: float | None = None

    @property
    def mu_audited(self) -> float | None:
        return _largest(self.mu_gaussian, self.mu_binomial)

    @property
    def epsilon_audited(self) -> float:
        return max(self.epsilon_gaussian or 0.0, self.epsilon_binomial)

    @property
    def _compared(self) -> tuple[tuple[float, float], ...]:
        """Pairs (audited, claimed): mu, which decides alone, or delta and epsilon where there is no mu."""
        if self.mu_claimed is not None and self.mu_audited is not None:
            return ((self.mu_audited, self.mu_claimed),)
        assert self.delta_audited is not None
        assert self.delta_claimed is not None
        return (self.delta_audited, self.delta_claimed), (self.epsilon_audited, self.epsilon_claimed)

    @property
    def violated(self) -> bool:
        return any(audited > claimed for audited, claimed in self._compared)

    @property
    def ratio(self) -> float:
        """The audited over the claimed mu, or delta where there is no mu."""
        audited, claimed = self._compared[0]
        return audited / claimed if claimed else math.inf

    def claim(self, delta: float) -> str:
        """The claim in words, with epsilon at the delta of the audit."""
        if self.mu_claimed is not None:
            return f"mu = {rounded_up(self.mu_claimed, 4)}"
        return f"epsilon = {rounded_up(self.epsilon_claimed, 4)} at delta = {delta:g}"

    def bounds(self) -> str:
        if self.delta_audited is None or self.delta_claimed is None:
            return f"mu >= {self.mu_audited:.4g}"
        return (
            f"epsilon >= {self.epsilon_audited:.4g}, and at epsilon = {self.at_epsilon:.3g} delta >= "
            f"{self.delta_audited:.4g}, where {rounded_up(self.delta_claimed, 4)} is claimed"
        )

    def to_dict(self) -> dict[str, Any]:
        names = ("mu_audited", "epsilon_audited", "violated")
        return plain(**dataclasses.asdict(self), **{name: getattr(self, name) for name in names})


@dataclasses.dataclass(frozen=True)
class AuditCircumstances:
    """The conditions of an audit; `trials` runs per canary and input measure, `level` holds for all bounds together."""

    mechanism: str
    trust: str
    adjacency: str
    noise_std: float
    clip_norm: float
    delta: float
    level: float
    trials: int
    seed: int
    unit: str


@dataclasses.dataclass(frozen=True)
class AuditResult(AuditCircumstances):
    """Claimed against audited privacy of one mechanism under one trust model; `draws` are None with public batches."""

    canaries: tuple[CanaryResult, ...]
    draws: TestedDraws | None = None
    bins_seen: bool = False
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> CanaryResult:
        """The canary closest to its claim, or furthest above it; the first of equal ones."""
        return first_maximum(self.canaries, lambda canary: canary.ratio)

    @property
    def mu_claimed(self) -> float | None:
        """Adaptive mu of the worst victim that was audited; None where the claim is no mu."""
        return _largest(*(canary.mu_claimed for canary in self.canaries))

    @property
    def mu_audited(self) -> float | None:
        """The largest lower bound on mu; None where the claim is no mu."""
        return _largest(*(canary.mu_audited for canary in self.canaries))

    @property
    def epsilon_claimed(self) -> float:
        """At delta, of the worst victim."""
        return max(canary.epsilon_claimed for canary in self.canaries)

    @property
    def epsilon_audited(self) -> float:
        return max(canary.epsilon_audited for canary in self.canaries)

    @property
    def violated(self) -> bool:
        """Whether any bound exceeds its claim, or draws are not those that the claim assumes."""
        draws_violated = self.draws is not None and self.draws.violated
        return draws_violated or any(canary.violated for canary in self.canaries)

    def sentence(self) -> str:
        """The outcome, in one sentence on the claim and, with balls-in-bins, one on the draws that it assumes."""
        worst, batches = self.worst, "" if self.draws is None else ", balls-in-bins"
        verdict = "REFUTED" if self.violated else "not refuted"
        attacker = " to an attacker who knows the bins" if self.bins_seen else ""
        claim = (
            f"{self.mechanism} under {self.trust} ({self.adjacency}{batches}): the claim {worst.claim(self.delta)} for "
            f"node {worst.victim} is {verdict}; at level {self.level:g}, {self.trials} runs per input of the canary "
            f"'{worst.canary}' in steps {short(list(worst.steps))} show{attacker} {worst.bounds()}."
        )
        return claim if self.draws is None else f"{claim} {self.draws.sentence()}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, infinities as texts."""
        names = ("mu_claimed", "mu_audited", "epsilon_claimed", "epsilon_audited", "violated")
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["canaries"] = [canary.to_dict() for canary in self.canaries]
        values["draws"] = self.draws and self.draws.to_dict()
        values["notes"] = list(self.notes)
        return plain(**values, **{name: getattr(self, name) for name in names})


def plain(**values: Any) -> dict[str, Any]:
    return {name: str(x) if isinstance(x, float) and math.isinf(x) else x for name, x in values.items()}


def _largest(*numbers: float | None) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


SAME = 1e-9  # relative: two ways of rounding one mu, or one epsilon, differ by less
LEAST = 1e-300  # of a claimed delta, to divide by
NOTHING_IS_SEEN = "nothing of the record is seen"


@dataclasses.dataclass(frozen=True, eq=False)
class AuditSettings:
    """The arguments of `audit`.

    Attributes:
        subject: a mechanism, which brings clip_norm, noise_std and unit; or an algorithm with adjacency and these.
        trust: who sees and knows what; the claim is the adaptive mu of every victim under it, or with `BallsInBins` the
            privacy curve. Of a mechanism, under its guarantee's own trust model, it is the guarantee's where that is
            smaller; a difference is noted.
        adjacency: of the inputs that are run; of a mechanism, another one than it was accounted for keeps its claim.
        victim: node index; None: every node whose claim is finite.
        release: as for `account`; default that of the mechanism's guarantee under this trust model.
        unit: "record" or "user"; of a mechanism its own; default "record". A user is all gradients of the victim.
        claimed_mu: another claim for every victim, instead of the library's own.
        system: what runs; default the library's training path.
        trials: runs that measure, per canary and input; as many more choose.
        level: of all bounds together, in (0, 1).
        delta: of every epsilon; seed: of the noise; one seed gives one result.
        bins_seen: of `BallsInBins`: the attacker knows the bins. A planted bug, which refutes the amplified claim.
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
    system: AuditedSystem | None = None
    trials: int = 2000
    level: float = 0.95
    delta: float = 1e-6
    seed: int = 0
    bins_seen: bool = False
    progress: Progress = "auto"

    def __post_init__(self) -> None:
        check.instance(Mechanism, LinearAlgorithm, subject=self.subject)
        check.instance(TrustModel, trust=self.trust)

    @property
    def mechanism(self) -> Mechanism | None:
        return self.subject if isinstance(self.subject, Mechanism) else None

    @property
    def algorithm(self) -> LinearAlgorithm:
        return self.subject if isinstance(self.subject, LinearAlgorithm) else self.subject.algorithm

    @property
    def draws_bins(self) -> bool:
        """Whether batches are those of `BallsInBins`, which have no mu."""
        return self.algorithm.participation.num_bins is not None

    @property
    def claimed_adjacency(self) -> str:
        return str(self.adjacency) if self.mechanism is None else self.mechanism.guarantee.adjacency

    @property
    def released(self) -> str | None:
        if self.release is None and self.mechanism is not None:
            return self.mechanism.released_to(self.trust)
        return self.release

    @functools.cached_property
    def circumstances(self) -> AuditCircumstances:
        """Checked settings. Raises: InvalidInput: given twice, missing or out of range."""
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
        circumstances = AuditCircumstances(
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
        gaussian.record_shift(circumstances.adjacency, circumstances.clip_norm)  # refuses another adjacency
        if self.bins_seen and not self.draws_bins:
            raise InvalidInput("bins_seen=True: batches are public; leave it out, or audit BallsInBins.")
        if self.claimed_mu is not None and self.draws_bins:
            raise InvalidInput(f"claimed_mu={self.claimed_mu:g}: balls-in-bins have no mu; leave it out.")
        return circumstances

    @functools.cached_property
    def losses(self) -> Losses:
        """The losses of the audited victims, for any noise."""
        clip_norm = self.clip_norm if self.mechanism is None else self.mechanism.clip_norm
        unit = str(self.unit or "record") if self.mechanism is None else self.mechanism.unit
        release = None if self.draws_bins else self.released
        privacy = Privacy(
            self.trust, adjacency=self.claimed_adjacency, clip_norm=float(clip_norm or 0), release=release, unit=unit
        )
        victims = None if self.victim is None else [self.victim]
        progress = reporter(self.progress).within()
        return Losses.from_algorithm(self.algorithm, privacy, victims=victims, progress=progress)

    def refusal(self, why: str) -> InvalidInput:
        return InvalidInput(
            f"{self.algorithm.name} claims nothing that an audit could refute under {self.trust.name}: {why}; choose "
            "another victim, trust model, release or noise (`mfdl mechanisms` lists trust models)."
        )

    def with_noise(self, noise_std: float) -> Self:
        other = dataclasses.replace(self, noise_std=noise_std)
        vars(other)["losses"] = self.losses
        return other


@dataclasses.dataclass(frozen=True)
class AuditedClaim:
    """What is claimed of one victim: curves that must all hold, first the accounted one, or that of `claimed_mu`."""

    curves: tuple[PrivacyCurve, ...]

    @property
    def mu(self) -> float | None:
        return min((curve.mu for curve in self.curves if curve.mu is not None), default=None)

    @property
    def expected_mu(self) -> float | None:
        """mu that runs should show: a guarantee below what is accounted needs no more trials than that."""
        accounted = self.curves[0].mu
        return self.mu if accounted == math.inf else accounted

    @property
    def finite(self) -> bool:
        """Whether runs could exceed it."""
        return min(curve.public_mu for curve in self.curves) < math.inf

    def epsilon(self, delta: float) -> float:
        return min(curve.epsilon(delta) for curve in self.curves)

    @functools.cached_property
    def deltas(self) -> FloatArray:
        """The smallest of the curves at each of EPSILONS."""
        return np.array([min(curve.delta(float(epsilon)) for curve in self.curves) for epsilon in EPSILONS])

    def strength(self, rates: ErrorRates) -> float:
        """The mu that error rates show, or of a curve their delta over the claimed one."""
        return rates.mu if self.mu is not None else float((rates.deltas / np.maximum(self.deltas, LEAST)).max())

    def beside(self, rates: ErrorRates) -> dict[str, float]:
        """What is claimed and what error rates show of it, as fields of a `CanaryResult`."""
        if self.mu is not None:
            return {"mu_claimed": self.mu, "mu_binomial": rates.mu}
        columns = {"at_epsilon": EPSILONS, "delta_claimed": self.deltas, "delta_audited": rates.deltas}
        at = first_largest(rates.deltas / np.maximum(self.deltas, LEAST))
        return {name: float(values[at]) for name, values in columns.items()}


@dataclasses.dataclass(frozen=True)
class AuditedClaims:
    """The claims that runs could refute, by node index; `notes`: what is not audited; `why` there is no claim."""

    by_victim: dict[int, AuditedClaim]
    notes: tuple[str, ...] = ()
    why: str = ""

    @staticmethod
    def from_settings(settings: AuditSettings) -> AuditedClaims:
        """The accounted claims and those of the mechanism's guarantee, or `claimed_mu` for every victim."""
        circumstances, losses = settings.circumstances, settings.losses  # the first refuses arguments before any work
        claim = functools.cache(lambda *curves: AuditedClaim(tuple(dict.fromkeys(curves))))  # one object where equal
        if settings.claimed_mu is not None:
            curve = Gaussian(check.positive(claimed_mu=settings.claimed_mu), circumstances.adjacency, "upper")
            return AuditedClaims({loss.node: claim(curve) for loss in losses.sensitivities})
        curves = losses.curves(circumstances.noise_std)
        accounted = {loss.node: curves[loss.victim] for loss in losses.sensitivities}
        guaranteed, notes = _guaranteed(settings, accounted)
        claims = {u: claim(curve, guaranteed.get(u, curve)) for u, curve in accounted.items()}
        exposed = {loss.node for loss in losses.sensitivities if loss.adaptive_sensitivity_squared > 0}
        audited = [u for u in claims if u in exposed and claims[u].finite]
        if not audited:
            return AuditedClaims({}, notes, _why_nothing(settings))
        return AuditedClaims(claims, notes).restricted_to(audited, "no finite privacy loss is claimed")

    def restricted_to(self, victims: Collection[int], why: str) -> AuditedClaims:
        if not (others := sorted(self.by_victim.keys() - set(victims))):
            return self
        claims = {u: claim for u, claim in self.by_victim.items() if u in victims}
        return AuditedClaims(claims, (*self.notes, f"not audited, since {why}: nodes {others}"))


def _why_nothing(settings: AuditSettings) -> str:
    if anything_is_seen(settings.algorithm, settings.trust, release=settings.released):
        for loss in settings.losses.sensitivities:
            if math.isinf(loss.adaptive_sensitivity_squared):
                return f"infinite loss is claimed: {loss.adaptive_why or loss.non_adaptive_sensitivity.why}"
    return NOTHING_IS_SEEN


def _guaranteed(
    settings: AuditSettings, accounted: dict[int, PrivacyCurve]
) -> tuple[dict[int, PrivacyCurve], tuple[str, ...]]:
    """The curve that a mechanism's guarantee states for each of its victims, and where it is not what is audited."""
    mechanism, trust = settings.mechanism, settings.trust
    if mechanism is None:
        return {}, ()
    if mechanism.lipschitz is not None:
        why = f"the claim audited does not rest on lipschitz={mechanism.lipschitz:g}, the mechanism's own does"
        return {}, (why,)
    guarantee, labels = mechanism.guarantee, settings.algorithm.labels
    if guarantee.owners.shared:
        return {}, ("the claim audited is for records of one node, the mechanism's own for records of several",)
    about = (guarantee.trust, guarantee.attacker, guarantee.release, guarantee.adaptive)
    if about != (trust.name, trust.attacker, settings.losses.sensitivities[0].release, True):
        model = guarantee.trust if guarantee.adaptive else f"{guarantee.trust}, for non-adaptive gradients"
        why = f"the audited claim is recomputed, because the guarantee is for {guarantee.attacker} ({model})"
        return {}, (f"{why}, released models: {guarantee.release}",)
    each, covers_all = dict(guarantee.victims), guarantee.victim == EVERY_NODE
    names = {u: str(labels[u]) for u in accounted if covers_all or guarantee.victim == str(labels[u])}
    covered = {u: each.get(name, guarantee.curve) for u, name in names.items()}
    of_all = settings.victim is None or not covers_all  # of its own victims
    curves = [accounted[u] for u in covered]
    return covered, _difference(guarantee.curve, curves, settings.circumstances.delta, of_all=of_all)


def _difference(
    guaranteed: PrivacyCurve, accounted: Collection[PrivacyCurve], delta: float, *, of_all: bool
) -> tuple[str, ...]:
    """A note where a guarantee and what is accounted for its victims differ; of all of them, also where it is less."""
    if guaranteed.bound == "monte-carlo" or not accounted:
        return ()

    def number(curve: PrivacyCurve) -> float:
        return curve.epsilon(delta) if curve.mu is None else curve.mu

    name, at = ("epsilon", f" at delta = {delta:g}") if guaranteed.mu is None else ("mu", "")
    states, anew = number(guaranteed), max(number(curve) for curve in dict.fromkeys(accounted))
    if anew <= states * (1 + SAME) and not (of_all and anew < states * (1 - SAME)):
        return ()
    return (f"the guarantee states {name} = {states:.6g}{at}, accounted anew it is {anew:.6g}; the smaller is audited",)
