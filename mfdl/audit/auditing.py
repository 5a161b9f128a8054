"""audit: the privacy that training really has, measured, against the privacy that is claimed.

In: an algorithm, its noise, a trust model, and a system that runs it. Out: lower confidence bounds on mu for a few
canaries, each beside the mu claimed for its victim. The claim is refuted where a bound exceeds it.

A canary is one record with gradients chosen to show; it is sent raw and large through the system's own clipping.
As many runs choose (the pilot) as measure: which statistic (the likelihood ratio of the claimed Gaussian,
or a linear one learned from pilot runs, which needs no claim to be true), which threshold, and one more canary, where
the noise that was measured is weakest: whose record, which steps, and which direction over coordinates. Bonferroni over
canaries and estimators gives the level.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput
from ..mechanism import Mechanism, require_unit
from ..privacy import gaussian
from ..privacy.accounting import victim_losses
from ..privacy.sensitivity.patterns import MAX_ENUMERATED
from ..training.keys import NoiseKey
from ..trust import TrustModel
from . import _claims, bounds
from .canaries import DIRECTIONS, OVERSHOOT, Canary, candidates, learned
from .system import System, Training

ESTIMATORS = ("gaussian", "binomial")
MAX_CLAIM = 1e6
MAX_SAMPLES = 2**26  # rows x trials of one canary: 512 MiB, several times
RIDGE = 1e-12  # of the largest eigenvalue: directions of less measured variance count as nearly free of noise


@dataclasses.dataclass(frozen=True)
class CanaryResult:
    """What one canary showed.

    Attributes:
        canary, attacker: in words; victim: node index; statistic: "claimed" or "learned".
        mu_claimed: for this victim, adaptive; mu_possible: what the claimed mechanism loses to this very canary.
        mu_gaussian, mu_binomial: lower confidence bounds; epsilon_*: the same as epsilon at delta.
    """

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
class AuditResult:
    """Claimed against audited privacy of one mechanism under one trust model.

    Attributes:
        mu_claimed: adaptive mu of the worst victim that was audited; delta: of every epsilon.
        level: probability, before the runs, that every bound holds; trials: runs per canary and input that measured.
        adjacency: of the inputs that were run; canaries: one result each.
        notes: what was left out, in words.
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
    mu_claimed: float
    canaries: tuple[CanaryResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> CanaryResult:
        """The canary closest to its claim, or furthest above it."""
        return max(self.canaries, key=lambda one: one.mu_audited / one.mu_claimed if one.mu_claimed else math.inf)

    @property
    def mu_audited(self) -> float:
        """The largest lower bound on mu."""
        return max(one.mu_audited for one in self.canaries)

    @property
    def epsilon_audited(self) -> float:
        """The largest lower bound on epsilon at delta."""
        return max(one.epsilon_audited for one in self.canaries)

    @property
    def epsilon_claimed(self) -> float:
        """epsilon at delta of the claimed mu."""
        return gaussian.epsilon_from_mu(self.mu_claimed, self.delta)

    @property
    def violated(self) -> bool:
        """Whether any bound exceeds the claim for its victim."""
        return any(one.violated for one in self.canaries)

    def sentence(self) -> str:
        """The outcome in one sentence."""
        one = self.worst
        verdict = "REFUTED" if self.violated else "not refuted"
        return (
            f"{self.mechanism} under {self.trust} ({self.adjacency}): the claim mu = {one.mu_claimed:.4g} for node "
            f"{one.victim} is {verdict}; at level {self.level:g}, {self.trials} runs per input of the canary "
            f"'{one.canary}' show mu >= {one.mu_audited:.4g}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, infinities as texts."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "canaries"}
        own |= {name: getattr(self, name) for name in ("mu_audited", "epsilon_claimed", "epsilon_audited", "violated")}
        own["canaries"] = [
            {**dataclasses.asdict(one), "mu_audited": one.mu_audited, "violated": one.violated} for one in self.canaries
        ]
        own["notes"] = list(self.notes)
        plain: dict[str, Any] = _plain(own)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def audit(
    subject: Mechanism | LinearAlgorithm,
    *,
    trust: TrustModel,
    adjacency: str | None = None,
    clip_norm: float | None = None,
    noise_std: float | None = None,
    victim: int | None = None,
    release: str | None = None,
    unit: str | None = None,
    claimed_mu: float | None = None,
    system: System | None = None,
    trials: int = 2000,
    level: float = 0.95,
    delta: float = 1e-6,
    seed: int = 0,
) -> AuditResult:
    """Runs neighbouring inputs and bounds from below the privacy that the runs show.

    >>> from mfdl import algorithms, dynamics, gossip, participation, trust
    >>> ring = dynamics.Dynamics(gossip.metropolis_hastings("ring:n=4"))
    >>> fresh = algorithms.dp_dsgd(ring, participation.Cyclic(epochs=2, period=2))
    >>> found = audit(fresh, trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0, noise_std=1.0)
    >>> round(found.mu_claimed, 4), found.violated, bool(found.mu_audited > 1.1)
    (1.4142, False, True)

    Args:
        subject: a mechanism, which brings adjacency, clip_norm and noise_std; or an algorithm with all three.
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
        seed: of the noise; one seed gives one result.

    Guarantees: a claim that holds is refuted with probability at most 1 - level, whatever the statistic learned
        (`gaussian`: if the system's noise is normal; `binomial`: always).
    Raises:
        InvalidInput: nothing finite is claimed, nobody sees anything of the record, too few trials (and how many are
            needed), a view too large for dense matrices, a transcript without messages that the view sees.
    Cost: n + 5 canaries of 4 trials runs each; cubic in the rows of the view.
    """
    if not isinstance(trust, TrustModel):
        raise InvalidInput(f"trust must be a trust model such as LDP(), got {trust!r}.")
    algorithm, stated, clip, std, unit = _subject(subject, adjacency, clip_norm, noise_std, unit)
    if release is None and isinstance(subject, Mechanism) and trust.name == subject.guarantee.trust:
        release = subject.guarantee.release
    require_unit(unit, algorithm.participation)
    run_adjacency = stated if adjacency is None else adjacency
    shift = gaussian.record_shift(run_adjacency, clip)
    check.open_unit(level=level)
    check.open_unit(delta=delta)
    trials, seed = check.integer_at_least(2, trials=trials), check.integer_at_least(0, seed=seed)
    if victim is not None and check.integer_at_least(0, victim=victim) >= algorithm.num_nodes:
        raise InvalidInput(f"victim must be a node index below {algorithm.num_nodes}, got {victim}.")
    asked = None if victim is None else [victim]
    losses = victim_losses(algorithm, trust, victims=asked, release=release, unit=unit)
    accounted = {one.victim: _claims.accounted(one, gaussian.record_shift(stated, clip), std) for one in losses}
    notes: list[str] = []
    if claimed_mu is not None:
        claims = expected = dict.fromkeys(accounted, check.positive(claimed_mu=claimed_mu))
    else:
        guaranteed: dict[int, float] = {}
        if isinstance(subject, Mechanism):
            guaranteed, notes = _claims.guaranteed(subject, trust, losses, accounted, of_all=victim is None)
        claims, expected = _claims.refutable(accounted, guaranteed, losses, algorithm, trust)
        if unclaimed := sorted(accounted.keys() - claims.keys()):
            notes.append(f"not audited, since nothing finite is claimed: nodes {unclaimed}")
    chosen = candidates(algorithm, trust, list(claims), release=release, unit=unit)
    if unseen := sorted(claims.keys() - {one.victim for one in chosen}):
        notes.append(f"not audited, since they attack themselves or nothing of them is seen: nodes {unseen}")
    claims = {u: mu for u, mu in claims.items() if u not in unseen}
    if not claims:
        raise InvalidInput(
            f"{algorithm.name} has nothing to audit under {trust.name}: every victim attacks itself, or nothing of the "
            "record is seen; choose another victim, trust model or release."
        )
    if any(algorithm.participation.of_node(u).num_patterns > MAX_ENUMERATED for u in claims):
        notes.append(
            f"of more than {MAX_ENUMERATED} patterns of steps some were tried, with every step that a record can join"
        )
    failure = (1 - level) / ((len(chosen) + 1) * len(ESTIMATORS))
    if max(claims.values()) > MAX_CLAIM:
        raise InvalidInput(
            f"mu must be at most {MAX_CLAIM:g} to be audited, got a claim of {max(claims.values()):.4g}: runs in "
            "float64 cannot tell it from no privacy at all."
        )
    most_expected = max(expected[u] for u in claims)
    needed = max(bounds.trials_needed(most_expected, failure=failure), 4 * _rows(chosen))
    if trials < needed:
        raise InvalidInput(
            f"trials must be at least {needed} to show at level {level:g} that a loss is twice the claimed "
            f"mu={most_expected:.4g}, got {trials}; give more trials, a lower level or a larger mu."
        )
    if trials * _rows(chosen) > MAX_SAMPLES:
        most = MAX_SAMPLES // _rows(chosen)
        raise InvalidInput(f"trials must be at most {most} for views of {_rows(chosen)} rows, got {trials}.")
    runner = system if system is not None else Training(algorithm, noise_std=std, clip_norm=clip)
    runs = _Runs(runner, run_adjacency, std, OVERSHOOT * clip, NoiseKey.from_seed(seed))
    worst = chosen[: len(claims)]  # one of each victim
    looked_at = [dataclasses.replace(one, direction=along) for one in worst for along in DIRECTIONS]
    chosen.append(learned(looked_at, runs.precisions(looked_at, trials), claims))
    results = []
    for number, canary in enumerate(chosen):
        pilot, measured = runs.pair(canary, f"pilot {number}", trials), runs.pair(canary, f"measure {number}", trials)
        possible = canary.sensitivity() * shift / std
        rounding = canary.view.rounding(std, OVERSHOOT * clip)
        results.append(_result(canary, pilot, measured, claims[canary.victim], possible, rounding, failure, delta))
    return AuditResult(
        mechanism=algorithm.name,
        trust=trust.name,
        adjacency=run_adjacency,
        noise_std=std,
        clip_norm=clip,
        delta=delta,
        level=level,
        trials=trials,
        seed=seed,
        unit=unit,
        mu_claimed=max(claims.values()),
        canaries=tuple(results),
        notes=tuple(notes),
    )


def _subject(
    subject: Mechanism | LinearAlgorithm,
    adjacency: str | None,
    clip_norm: float | None,
    noise_std: float | None,
    unit: str | None,
) -> tuple[LinearAlgorithm, str, float, float, str]:
    """(algorithm, adjacency of the claim, clip_norm, noise_std, unit)."""
    if isinstance(subject, Mechanism):
        given = {"clip_norm": clip_norm, "noise_std": noise_std, "unit": unit}
        if twice := [name for name, value in given.items() if value is not None]:
            raise InvalidInput(f"a mechanism brings {' and '.join(twice)}; leave it out, or give its algorithm.")
        std = check.positive(noise_std=subject.noise_std)
        return subject.algorithm, subject.guarantee.adjacency, subject.clip_norm, std, subject.unit
    if adjacency is None or clip_norm is None or noise_std is None:
        raise InvalidInput("an algorithm needs adjacency, clip_norm and noise_std; give all three, or a Mechanism.")
    clip = check.positive(clip_norm=clip_norm)
    return subject, adjacency, clip, check.positive(noise_std=noise_std), unit or "record"


def _rows(canaries: Sequence[Canary]) -> int:
    return max(len(one.view.gradients) for one in canaries)


Pair = tuple[FloatArray, FloatArray]


@dataclasses.dataclass(frozen=True)
class _Runs:
    """Runs of a system on neighbouring inputs; every call with another name has noise of its own."""

    system: System
    adjacency: str
    noise_std: float
    raw_norm: float
    key: NoiseKey

    def _rows(self, canary: Canary, size: float, trials: int, *name: str) -> FloatArray:
        """The attacker's rows, (trials, rows, COORDINATES)."""
        key = self.key.derive("audit", *name)
        transcript = self.system.run(canary.gradients(size), canary.view.feedback, trials=trials, key=key)
        return canary.view.by_trial(canary.view.rows(transcript, key, self.noise_std))

    def pair(self, canary: Canary, name: str, trials: int) -> Pair:
        """Rows along the canary's direction, (trials, rows), on both inputs.

        Without and with the canary, or with its opposite and with it.
        """
        other = -self.raw_norm if self.adjacency == "replace-one" else 0.0
        without = self._rows(canary, other, trials, name, "without") @ canary.direction
        return without, self._rows(canary, self.raw_norm, trials, name, "with") @ canary.direction

    def precisions(self, canaries: Sequence[Canary], trials: int) -> list[FloatArray]:
        """Inverse covariance of each canary's view along its direction, measured on one run without canary per view."""
        samples: dict[int, FloatArray] = {}
        made: dict[tuple[int, bytes], FloatArray] = {}
        found = []
        for number, canary in enumerate(canaries):
            view = id(canary.view)
            if view not in samples:
                samples[view] = self._rows(canary, 0.0, trials, "noise", str(number))
            along = view, canary.direction.tobytes()
            if along not in made:
                rounding = canary.view.rounding(self.noise_std, self.raw_norm)
                made[along] = _precision(samples[view] @ canary.direction, rounding=rounding)
            found.append(made[along])
        return found


def _precision(*samples: FloatArray, rounding: FloatArray) -> FloatArray:
    """Inverse of the pooled covariance, its smallest eigenvalues raised to RIDGE of the largest, or of unit variance.

    Args: rounding: standard deviation of each row below which it is constant up to rounding, all > 0.
    """
    centred = np.concatenate([one - one.mean(axis=0) for one in samples])
    scale = np.maximum(np.sqrt((centred**2).mean(axis=0)), rounding)
    scaled = centred / scale
    values, vectors = np.linalg.eigh(scaled.T @ scaled / (len(scaled) - len(samples)))
    inverse = (vectors / np.maximum(values, RIDGE * max(values[-1], 1.0))) @ vectors.T
    return np.asarray(inverse / np.outer(scale, scale))


def _result(
    canary: Canary,
    pilot: Pair,
    measured: Pair,
    claimed: float,
    possible: float,
    rounding: FloatArray,
    failure: float,
    delta: float,
) -> CanaryResult:
    P = canary.view.whitener()
    half = len(pilot[0]) // 2
    first, second = (pilot[0][:half], pilot[1][:half]), (pilot[0][half:], pilot[1][half:])
    difference = first[1].mean(axis=0) - first[0].mean(axis=0)
    weights = {"claimed": P.T @ (P @ canary.shift), "learned": _precision(*first, rounding=rounding) @ difference}
    name = max(weights, key=lambda one: _separation(second, weights[one]))
    chosen = weights[name]
    threshold = bounds.choose_threshold(second[0] @ chosen, second[1] @ chosen, failure=failure)
    without, with_canary = measured[0] @ chosen, measured[1] @ chosen
    mu = bounds.gaussian_mu(without, with_canary, failure=failure)
    return CanaryResult(
        canary=canary.name,
        victim=canary.victim,
        attacker=canary.attacker,
        statistic=name,
        mu_claimed=claimed,
        mu_possible=possible,
        mu_gaussian=mu,
        mu_binomial=bounds.binomial_mu(without, with_canary, threshold, failure=failure),
        epsilon_gaussian=bounds.epsilon_lower_bound(mu, delta),
        epsilon_binomial=bounds.binomial_epsilon(without, with_canary, threshold, delta=delta, failure=failure),
    )


def _separation(pair: Pair, weights: FloatArray) -> float:
    """Difference of the means in standard deviations."""
    without, with_canary = (rows @ weights for rows in pair)
    difference = float(with_canary.mean()) - float(without.mean())
    return difference / max(float(without.std()), float(with_canary.std()), 1e-300)
