"""audit_one_run: lower bounds on a pairwise privacy loss from a single run with many canaries.

Canaries are different records of one node. Each takes part in one pattern of steps that its participation allows, with
a gradient of its own direction, so that the attacker's rows along that direction tell of it alone. The guess is the
sign of the claimed Gaussian's likelihood ratio; the surest ones are counted (`Guesses`). Where noise is normal and
independent over directions, means and variances of the ratios bound mu more sharply (`bounds.gaussian_mu`).

In: m canaries, each included by a fair coin of its own, and an attacker who guesses r of the coins. Out: bounds on mu,
or on epsilon at delta, that exceed the truth with probability at most `failure`. Nothing is assumed of the noise.

Let f be a trade-off function of the mechanism for a change of any one canary, h(x) = 1 - f(x), N the number of right
guesses and p_j = P(N = j). The event "guess i is right and N >= k" becomes, if coin i alone is turned, "guess i is
wrong and N >= k - 1". So its probability is at most h of the latter's; the average over i and coins gives, as h is
concave,

    A_k = sum_{j >= k} (j / m) p_j  <=  h(B_{k-1}),    B_k = sum_{j >= k} ((r - j) / m) p_j.

If P(N >= v) = t, the least total probability that these inequalities allow has all of t at v, and B_{k-1} =
max(B_k, h^{-1}(A_k)) for k = v, ..., 1. Where that exceeds 1, no such mechanism has P(N >= v) >= t.
docs/howto_audit.md has the proof.

Source: Steinke, Nasr, Jagielski, arXiv:2305.08846 (one run); Mahloujifar, Melis, Chaudhuri, arXiv:2410.22235 (f-DP).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Self, cast

import numpy as np
from scipy import fft, special

from mfdl_solvers.ties import first_maximum, ranking

from .. import check
from ..check import FloatArray
from ..display import rounded_up, short, short_repr
from ..errors import InvalidInput, UnsupportedMechanism
from ..privacy import gaussian
from ..spec import takes_fields_of
from ..training.keys import NoiseKey
from . import bounds
from .audited_claims import NOTHING_IS_SEEN, AuditCircumstances, AuditedClaim, AuditedClaims, AuditSettings, plain
from .canaries import OVERSHOOT, Canary, heaviest, worst_of_each
from .observation import CanaryRecords, OneRunSystem, Training

LEAST_OF_A_PATTERN = 10
LEAST_CANARIES, MOST_CANARIES = 50, 4096  # a dense basis of as many directions: 128 MiB


@dataclasses.dataclass(frozen=True, eq=False)
class OneRunSettings(AuditSettings):
    """The arguments of `audit_one_run`: those of `audit`, with two meant for one run.

    Attributes:
        trials: canaries of the run, 50 to 4096, each with a coin of its own.
        patterns: of steps, the most revealing ones, which the canaries take in turn.
        victim: None: the one of the largest finite claim.
        noise_halved: the library's training path adds half of the noise. A planted bug, which refutes the claim.
    """

    trials: int = 1000
    patterns: int = 1
    noise_halved: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check.integer_at_least(1, patterns=self.patterns)
        if not LEAST_CANARIES <= check.integer_at_least(1, trials=self.trials) <= MOST_CANARIES:
            raise InvalidInput(
                f"trials must be from {LEAST_CANARIES} to {MOST_CANARIES} canaries of one run, got {self.trials}; "
                "audit(...) takes more trials, over several runs."
            )
        if self.trials < LEAST_OF_A_PATTERN * self.patterns:
            raise InvalidInput(
                f"patterns must be at most a {LEAST_OF_A_PATTERN}th of the trials, got {self.patterns} patterns for "
                f"{self.trials} canaries: each pattern takes a share of the level."
            )
        self.algorithm.participation.require_public(
            "audit_one_run guesses records of public batches, and here they are drawn secretly; use audit(...)."
        )
        if (self.unit if self.mechanism is None else self.mechanism.unit) == "user":
            raise UnsupportedMechanism("a node is one user, and one run needs many canaries; use audit(...).")
        if self.noise_halved and self.system is not None:
            raise InvalidInput("noise_halved=True plants a bug in the library's system; leave it or system out.")
        if not hasattr(self.system or Training, "run_once"):
            raise InvalidInput("system must have run_once(records, *, key) for an audit of one run; see Training.")


@dataclasses.dataclass(frozen=True)
class OneRunResult(AuditCircumstances):
    """What one run shows of one victim, beside the claim; `trials` are its canaries.

    Attributes:
        patterns: the steps of the canaries, which take them in turn; guesses: their number, `right` of them rightly.
        mu_guesses, epsilon_guesses: lower bounds whatever the distribution of the noise; epsilon at delta.
        mu_gaussian: lower bound if noise is normal and independent over directions.
    """

    __repr__ = short_repr

    victim: int
    attacker: str
    patterns: tuple[tuple[int, ...], ...]
    guesses: int
    right: int
    mu_claimed: float
    epsilon_claimed: float
    mu_guesses: float
    epsilon_guesses: float
    mu_gaussian: float
    notes: tuple[str, ...] = ()

    draws: ClassVar[None] = None  # batches are public

    @property
    def worst(self) -> Self:
        """Itself: all canaries are of one victim, and bound its loss together."""
        return self

    @property
    def mu_audited(self) -> float:
        return max(self.mu_guesses, self.mu_gaussian)

    @property
    def epsilon_audited(self) -> float:
        return max(self.epsilon_guesses, bounds.epsilon_lower_bound(self.mu_gaussian, self.delta))

    @property
    def violated(self) -> bool:
        return self.mu_audited > self.mu_claimed

    def sentence(self) -> str:
        verdict = "REFUTED" if self.violated else "not refuted"
        first, *others = [list(steps) for steps in self.patterns]
        steps = short([first, *others] if others else first)
        return (
            f"{self.mechanism} under {self.trust} ({self.adjacency}): the claim mu = {rounded_up(self.mu_claimed, 4)} "
            f"for node {self.victim} is {verdict}; at level {self.level:g}, one run with {self.trials} canaries in "
            f"steps {steps} shows mu >= {self.mu_guesses:.4g} by {self.right} of {self.guesses} guesses, and mu >= "
            f"{self.mu_gaussian:.4g} if its noise is normal."
        )

    def to_dict(self) -> dict[str, Any]:
        names = ("mu_audited", "epsilon_audited", "violated")
        return plain(**dataclasses.asdict(self), **{name: getattr(self, name) for name in names})


@takes_fields_of(OneRunSettings)
def audit_one_run(settings: OneRunSettings) -> OneRunResult:
    """Bounds the privacy loss of one node to one attacker from a single run; arguments: `OneRunSettings`.

    >>> from mfdl import algorithms, dynamics, gossip, participation, trust
    >>> ring = dynamics.Dynamics(gossip.metropolis_hastings("ring:n=4"))
    >>> fresh = algorithms.dp_dsgd(ring, participation.Cyclic(epochs=2, period=2))
    >>> scales = {"adjacency": "replace-one", "clip_norm": 1.0, "noise_std": 2.0}
    >>> result = audit_one_run(fresh, trust=trust.PNDP([1]), victim=0, **scales)
    >>> result.violated, result.mu_gaussian > 0.7 * result.mu_claimed, result.mu_guesses > 0.4 * result.mu_claimed
    (False, True, True)

    Guarantees: a claim that holds is refuted with probability at most 1 - level over coins and noise. `mu_guesses` and
        `epsilon_guesses` need no more than that the claim covers every record of the victim; `mu_gaussian` needs noise
        that is normal and independent over directions.
    Raises:
        InvalidInput: no finite privacy loss is claimed, nothing of the victim is seen, or a view too large.
        UnsupportedMechanism: secret batches, or user level.
    Cost: one run in as many dimensions as canaries, m^2 T for their gradients; cubic in the rows of the view.
    """
    plan = OneRunPlan.from_settings(settings)
    if plan.chosen is None:
        raise settings.refusal(plan.why)
    return plan.result()


@dataclasses.dataclass(frozen=True)
class OneRunPlan:
    """An audit of one run before it runs: the victim's canary and claim; None where nothing is refutable (`why`)."""

    settings: OneRunSettings
    chosen: tuple[Canary, AuditedClaim] | None
    notes: tuple[str, ...]
    why: str

    @staticmethod
    def from_settings(settings: OneRunSettings) -> OneRunPlan:
        """Raises: InvalidInput: arguments out of range, or a view too large."""
        claims = AuditedClaims.from_settings(settings)
        finite = {u: claim for u, claim in claims.by_victim.items() if claim.mu}
        worst = worst_of_each(settings.algorithm, settings.trust, list(finite), release=settings.released)
        if not worst:
            return OneRunPlan(settings, None, claims.notes, claims.why or NOTHING_IS_SEEN)
        victim = first_maximum(list(worst), lambda u: finite[u].mu or 0.0)
        return OneRunPlan(settings, (worst[victim][1], finite[victim]), claims.notes, "")

    def result(self) -> OneRunResult:
        assert self.chosen is not None
        (canary, claim), settings = self.chosen, self.settings
        circumstances, mu = settings.circumstances, float(claim.mu or 0.0)
        classes = heaviest(canary, settings.patterns)
        coins, ratios = _ratios(settings, classes)
        share = (1 - circumstances.level) / (1 + len(classes))  # one for the guesses, one for each pattern's samples
        count = best_number_of_guesses(settings.trials, 2 * mu, share)  # shows best a loss of twice the claim
        surest = ranking(np.abs(ratios), descending=True)[:count]
        guesses = Guesses(settings.trials, count, int(((ratios > 0) == (coins > 0))[surest].sum()))
        samples = [(ratios[number :: len(classes)], coins[number :: len(classes)]) for number in range(len(classes))]
        return OneRunResult(
            **vars(circumstances),
            victim=canary.victim,
            attacker=canary.attacker,
            patterns=tuple(each.steps for each in classes),
            guesses=guesses.guesses,
            right=guesses.right,
            mu_claimed=mu,
            epsilon_claimed=claim.epsilon(circumstances.delta),
            mu_guesses=guesses.mu(share),
            epsilon_guesses=guesses.epsilon(circumstances.delta, share),
            mu_gaussian=max(bounds.gaussian_mu(z[on < 0], z[on > 0], failure=share) for z, on in samples),
            notes=self.notes,
        )


def _ratios(settings: OneRunSettings, classes: list[Canary]) -> tuple[FloatArray, FloatArray]:
    """Coins +-1 of the canaries, and log likelihood ratios of the claimed noise, both (m,)."""
    circumstances, m = settings.circumstances, settings.trials
    victim, view = classes[0].victim, classes[0].view
    key = NoiseKey.from_seed(circumstances.seed).derive("audit", "one run")
    entropy = int.from_bytes(key.derive("coins").reveal_secret(), "big")
    coins = np.random.default_rng(entropy).choice([-1.0, 1.0], m)
    replaced = circumstances.adjacency == "replace-one"
    present = coins if replaced else (coins + 1) / 2
    signs = np.array([classes[i % len(classes)].signs for i in range(m)]).T
    # directions of a cosine basis: all but the first are orthogonal to noise that coordinates share
    directions = np.asarray(fft.dct(np.eye(m), norm="ortho", axis=0))
    size = OVERSHOOT * circumstances.clip_norm
    noise_std = circumstances.noise_std / (2 if settings.noise_halved else 1)
    trained = Training(settings.algorithm, noise_std=noise_std, clip_norm=circumstances.clip_norm)
    system = cast(OneRunSystem, settings.system or trained)
    secret = key.derive("noise")
    transcript = system.run_once(CanaryRecords(victim, size * signs * present, directions), key=secret)
    rows = view.rows(transcript, secret, circumstances.noise_std) @ directions.T
    P = view.whitener()
    white = P @ view.victim_columns(victim) @ signs  # signal of each canary in units of the noise, (rank, m)
    shift = gaussian.record_shift(circumstances.adjacency, circumstances.clip_norm)
    scale = shift / circumstances.noise_std
    ratios = scale * (white * (P @ rows)).sum(0) / circumstances.noise_std
    return coins, ratios if replaced else ratios - (scale**2) / 2 * (white**2).sum(0)


ROUNDING = 1e-9  # by which the total must exceed 1; the recursion's rounding is below
GRID, ROUNDS = 33, 4  # each round narrows the bracket of a bound 32 times
MAX_LOSS = 64.0  # of mu and epsilon: more than any number of guesses shows

InverseBlowUp = Callable[[FloatArray, FloatArray], FloatArray]
"""h^{-1} of a family of trade-off functions: (losses, values y) -> the least x with h(x) >= y."""


def gaussian_inverse(mu: FloatArray, y: FloatArray) -> FloatArray:
    """h^{-1} of mu-Gaussian DP, h(x) = Phi(Phi^-1(x) + mu)."""
    return np.asarray(special.ndtr(special.ndtri(y) - mu))


def approximate_inverse(delta: float) -> InverseBlowUp:
    """h^{-1} of (epsilon, delta)-DP, h(x) = min(delta + e^epsilon x, 1 - e^-epsilon (1 - delta - x))."""

    def inverse(epsilon: FloatArray, y: FloatArray) -> FloatArray:
        by_slope = np.maximum(np.exp(-epsilon) * (y - delta), 1 - delta - np.exp(epsilon) * (1 - y))
        return np.maximum(0.0, by_slope)

    return inverse


@dataclasses.dataclass(frozen=True)
class Guesses:
    """What an attacker guessed in one run.

    Attributes: canaries: m, each with a fair coin of its own; guesses: r, fixed before the run; right: of the guesses.

    >>> round(Guesses(canaries=1000, guesses=250, right=214).mu(0.05), 2)  # of a truth of 1, at 95 %
    0.59
    """

    canaries: int
    guesses: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= check.integer_at_least(0, right=self.right) <= self.guesses <= self.canaries:
            raise InvalidInput(
                "right, guesses and canaries must satisfy 0 <= right <= guesses <= canaries, got "
                f"{self.right}, {self.guesses} and {self.canaries}."
            )

    def mu(self, failure: float) -> float:
        """The largest mu of Gaussian DP that these guesses refute, >= 0."""
        return self._largest_refuted(gaussian_inverse, failure)

    def epsilon(self, delta: float, failure: float) -> float:
        """The largest epsilon at delta that they refute, >= 0; it holds together with `mu`, of one failure."""
        return self._largest_refuted(approximate_inverse(check.open_unit(delta=delta)), failure)

    def refuted(self, losses: FloatArray, inverse: InverseBlowUp, failure: float) -> FloatArray:
        """Whether mechanisms of these losses have as many right guesses with a probability below `failure`; bool."""
        m, r, v = self.canaries, self.guesses, self.right
        A, B = np.full_like(losses, failure * v / m), np.full_like(losses, failure * (r - v) / m)
        for k in range(v, 0, -1):
            least = np.maximum(B, inverse(losses, np.minimum(A, 1.0)))
            A, B = A + (k - 1) / (r - k + 1) * (least - B), least
        return np.asarray((A + B) * m > r * (1 + ROUNDING))

    def _largest_refuted(self, inverse: InverseBlowUp, failure: float) -> float:
        failure = check.open_unit(failure=failure)
        if not self.right:
            return 0.0
        low, high = 0.0, MAX_LOSS
        for _ in range(ROUNDS):
            tried = np.linspace(low, high, GRID)
            refuted = self.refuted(tried, inverse, failure)
            if not refuted[0]:
                return 0.0
            if refuted.all():
                return high
            last = int(np.argmin(refuted)) - 1  # exact: booleans; a larger loss allows more
            low, high = float(tried[last]), float(tried[last + 1])
        return low


def best_number_of_guesses(canaries: int, mu: float, failure: float) -> int:
    """How many of m canaries to guess so that guesses at mu are expected to show most; m, m / 2, m / 4, ..."""
    counts = [canaries >> shift for shift in range(canaries.bit_length()) if canaries >> shift >= 8] or [canaries]
    return first_maximum(
        counts, lambda r: Guesses(canaries, r, math.floor(r * chance_of_right(r / canaries, mu))).mu(failure)
    )


def chance_of_right(share: float, mu: float) -> float:
    """Probability that a guess is right if the surest share is guessed, in (0, 1]; coins shift N(0, 1) by +-mu / 2.

    >>> round(chance_of_right(1.0, 1.0), 4)  # Phi(1 / 2)
    0.6915
    """
    low, high = 0.0, mu / 2 + 40.0
    for _ in range(100):
        middle = (low + high) / 2
        guessed = special.ndtr(mu / 2 - middle) + special.ndtr(-mu / 2 - middle)
        low, high = (middle, high) if guessed > share else (low, middle)
    right, wrong = special.ndtr(mu / 2 - low), special.ndtr(-mu / 2 - low)
    return float(right / (right + wrong))
