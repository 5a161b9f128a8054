"""What an audit found: the bounds of every canary beside the claim, in numbers, one sentence and plain values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..privacy import gaussian
from ..shown import rounded_up, short_repr


@dataclasses.dataclass(frozen=True)
class CanaryResult:
    """What one canary showed.

    Attributes:
        canary, attacker: in words; victim: node index; statistic: "claimed" or "learned".
        mu_claimed: for this victim, adaptive; mu_possible: what the claimed mechanism loses to this very canary.
        mu_gaussian, mu_binomial: lower confidence bounds; epsilon_*: the same as epsilon at delta.
    """

    __repr__ = short_repr

    canary: str
    victim: int
    attacker: str
    statistic: str
    mu_claimed: float
    mu_possible: float
    mu_gaussian: float
    mu_binomial: float
    epsilon_gaussian: float
    epsilon_binomial: float

    @property
    def mu_audited(self) -> float:
        """The larger of the two bounds, >= 0."""
        return max(self.mu_gaussian, self.mu_binomial)

    @property
    def epsilon_audited(self) -> float:
        """The larger of the two bounds on epsilon, >= 0."""
        return max(self.epsilon_gaussian, self.epsilon_binomial)

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted."""
        return self.mu_audited > self.mu_claimed


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is audited, and how.

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
class AuditResult(Settings):
    """Claimed against audited privacy of one mechanism under one trust model.

    Attributes:
        mu_claimed: adaptive mu of the worst victim that was audited; canaries: one result each.
        notes: what was left out, in words.
    """

    mu_claimed: float
    canaries: tuple[CanaryResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> CanaryResult:
        """The canary closest to its claim, or furthest above it."""
        return max(self.canaries, key=lambda c: c.mu_audited / c.mu_claimed if c.mu_claimed else math.inf)

    @property
    def mu_audited(self) -> float:
        """The largest lower bound on mu."""
        return max(canary.mu_audited for canary in self.canaries)

    @property
    def epsilon_audited(self) -> float:
        """The largest lower bound on epsilon at delta."""
        return max(canary.epsilon_audited for canary in self.canaries)

    @property
    def epsilon_claimed(self) -> float:
        """epsilon at delta of the claimed mu."""
        return gaussian.epsilon_from_mu(self.mu_claimed, self.delta)

    @property
    def violated(self) -> bool:
        """Whether any bound exceeds the claim for its victim."""
        return any(canary.violated for canary in self.canaries)

    def sentence(self) -> str:
        """The outcome in one sentence."""
        worst = self.worst
        verdict = "REFUTED" if self.violated else "not refuted"
        return (
            f"{self.mechanism} under {self.trust} ({self.adjacency}): the claim mu = {rounded_up(worst.mu_claimed, 4)} "
            f"for node {worst.victim} is {verdict}; at level {self.level:g}, {self.trials} runs per input of the "
            f"canary '{worst.canary}' show mu >= {worst.mu_audited:.4g}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, infinities as texts."""
        names = ("mu_audited", "epsilon_claimed", "epsilon_audited", "violated")
        canaries = [plain(**dataclasses.asdict(c), mu_audited=c.mu_audited, violated=c.violated) for c in self.canaries]
        values = {**dataclasses.asdict(self), "canaries": canaries, "notes": list(self.notes)}
        return plain(**values, **{name: getattr(self, name) for name in names})


def plain(**values: Any) -> dict[str, Any]:
    """Infinities as texts."""
    return {name: str(x) if isinstance(x, float) and math.isinf(x) else x for name, x in values.items()}
