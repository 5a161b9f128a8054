"""What an audit shows: lower bounds of every canary beside the claim, in numbers, in words and as plain values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from mfdl_solvers.ties import first_maximum

from ..display import rounded_up, short, short_repr
from .bin_draws import TestedDraws


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
        """The largest bound on mu, >= 0."""
        return _largest(self.mu_gaussian, self.mu_binomial)

    @property
    def epsilon_audited(self) -> float:
        """The largest bound on epsilon, >= 0."""
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
        """Whether the claim is refuted."""
        return any(audited > claimed for audited, claimed in self._compared)

    @property
    def ratio(self) -> float:
        """The audited over the claimed mu, or delta where there is no mu."""
        audited, claimed = self._compared[0]
        return audited / claimed if claimed else math.inf

    def claim(self, delta: float) -> str:
        """What is claimed, in words. Args: delta: of the audit."""
        if self.mu_claimed is not None:
            return f"mu = {rounded_up(self.mu_claimed, 4)}"
        return f"epsilon = {rounded_up(self.epsilon_claimed, 4)} at delta = {delta:g}"

    def bounds(self) -> str:
        """What the runs show, in words."""
        if self.delta_audited is None or self.delta_claimed is None:
            return f"mu >= {self.mu_audited:.4g}"
        return (
            f"epsilon >= {self.epsilon_audited:.4g}, and at epsilon = {self.at_epsilon:.3g} delta >= "
            f"{self.delta_audited:.4g}, where {rounded_up(self.delta_claimed, 4)} is claimed"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, infinities as texts."""
        names = ("mu_audited", "epsilon_audited", "violated")
        return plain(**dataclasses.asdict(self), **{name: getattr(self, name) for name in names})


@dataclasses.dataclass(frozen=True)
class AuditCircumstances:
    """What ran in an audit, and how often.

    Attributes:
        mechanism, trust: names; adjacency: of the inputs that are run; delta: of every epsilon.
        level: probability, before the runs, that every bound holds; trials: runs per canary and input that measure.
    """

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
    """Claimed against audited privacy of one mechanism under one trust model.

    Attributes:
        canaries: one result each.
        draws: with balls-in-bins, what runs show of the sampler; None with public batches.
        bins_seen: the attacker knows the bins: a planted bug.
        notes: what was left out, in words.
    """

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
        """The largest lower bound on epsilon at delta."""
        return max(canary.epsilon_audited for canary in self.canaries)

    @property
    def violated(self) -> bool:
        """Whether any bound exceeds the claim for its victim, or draws are not those that the claim assumes."""
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
        """Plain values, infinities as texts; None where a number is not defined."""
        names = ("mu_claimed", "mu_audited", "epsilon_claimed", "epsilon_audited", "violated")
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["canaries"] = [canary.to_dict() for canary in self.canaries]
        values["draws"] = self.draws and self.draws.to_dict()
        values["notes"] = list(self.notes)
        return plain(**values, **{name: getattr(self, name) for name in names})


def plain(**values: Any) -> dict[str, Any]:
    """Infinities as texts."""
    return {name: str(x) if isinstance(x, float) and math.isinf(x) else x for name, x in values.items()}


def _largest(*numbers: float | None) -> float | None:
    """The largest of those that are defined; None where none is."""
    return max((number for number in numbers if number is not None), default=None)
