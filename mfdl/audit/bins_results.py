"""What an audit of secret bins found: the bounds of every canary beside the claimed curve; there is no mu."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..shown import rounded_up, short_repr
from .bin_draws import Draws
from .results import Settings, plain


@dataclasses.dataclass(frozen=True)
class BinsCanaryResult:
    """What one canary showed.

    Attributes:
        canary, attacker: in words; victim: node index; statistic: "mixture over bins", or "own bin" if seen.
        epsilon_claimed, epsilon_audited: at the delta of the audit, and the lower confidence bound on it.
        at_epsilon: where delta_claimed and delta_audited, its lower confidence bound, are furthest apart, or closest.
    """

    __repr__ = short_repr

    canary: str
    victim: int
    attacker: str
    statistic: str
    epsilon_claimed: float
    epsilon_audited: float
    at_epsilon: float
    delta_claimed: float
    delta_audited: float

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted."""
        return self.delta_audited > self.delta_claimed or self.epsilon_audited > self.epsilon_claimed

    @property
    def ratio(self) -> float:
        """delta that was shown over the one claimed."""
        return self.delta_audited / self.delta_claimed if self.delta_claimed else math.inf


@dataclasses.dataclass(frozen=True)
class BinsAuditResult(Settings):
    """Claimed against audited privacy of one mechanism with secret bins under one trust model.

    Attributes: canaries: one result each; draws: what runs show of the sampler; bins_seen: the attacker was told the
        bins; notes: in words.
    """

    canaries: tuple[BinsCanaryResult, ...]
    draws: Draws
    bins_seen: bool = False
    notes: tuple[str, ...] = ()

    mu_claimed = None
    mu_audited = None

    @property
    def worst(self) -> BinsCanaryResult:
        """The canary closest to its claim, or furthest above it."""
        return max(self.canaries, key=lambda c: c.ratio)

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
        return self.draws.violated or any(canary.violated for canary in self.canaries)

    def sentence(self) -> str:
        """The outcome, in one sentence on the claim and one on the draws that it assumes."""
        worst = self.worst
        told = "to an attacker who is told the bins, " if self.bins_seen else ""
        return (
            f"{self.mechanism} under {self.trust} ({self.adjacency}, secret bins): the claim epsilon = "
            f"{rounded_up(worst.epsilon_claimed, 4)} at delta = {self.delta:g} for node {worst.victim} is "
            f"{'REFUTED' if self.violated else 'not refuted'}; "
            f"at level {self.level:g}, {self.trials} runs per input of the "
            f"canary '{worst.canary}' show {told}epsilon >= {worst.epsilon_audited:.4g}, and at epsilon = "
            f"{worst.at_epsilon:.3g} delta >= {worst.delta_audited:.4g}, where {rounded_up(worst.delta_claimed, 4)} is "
            f"claimed. {self.draws.sentence()}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, infinities as texts; no mu."""
        names = ("mu_claimed", "mu_audited", "epsilon_claimed", "epsilon_audited", "violated")
        canaries = [plain(**dataclasses.asdict(c), mu_claimed=None, violated=c.violated) for c in self.canaries]
        draws = {**dataclasses.asdict(self.draws), "violated": self.draws.violated}
        values = {**dataclasses.asdict(self), "canaries": canaries, "draws": draws, "notes": list(self.notes)}
        return plain(**values, **{name: getattr(self, name) for name in names})
