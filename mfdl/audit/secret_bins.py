"""Audits of secret bins: what runs show of a record whose bin nobody knows, against the claimed curve.

In: what `audit` is asked of an algorithm with `BallsInBins`, or of its mechanism. Out: one
`BinsCanaryResult` for each canary. Bins are drawn by the sampler that `replay` uses, or that of a system, and the
draws are tested themselves (`bin_draws`).
The loss is no Gaussian's, so nothing of one is assumed: the statistic is the likelihood ratio of the transcript
(`bin_ratio`), the threshold is chosen by pilot runs, and both error rates are bounded by Clopper and Pearson. With
upper bounds (a, b) on them every (epsilon, delta) that holds has 1 - b <= e^epsilon a + delta, and the other way
round: the claim is refuted where its delta is below, at any epsilon, as one event holds for all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import mechanism
from ..check import FloatArray
from ..errors import InvalidInput
from ..privacy import gaussian
from ..privacy.losses import PrivacyLosses
from ..privacy.question import Question
from ..progress import shown
from ..training.keys import NoiseKey
from . import bounds
from .bin_draws import Joined, Replayed, Sampler
from .bin_ratio import EPSILONS, MOST, BinRatio, deltas_shown, thresholds
from .bins_results import BinsAuditResult, BinsCanaryResult
from .canaries import ALONG, OVERSHOOT, SPREAD, Canary, signs_of
from .observation import Observation
from .results import Settings
from .system import System, Training

if TYPE_CHECKING:
    from ..algorithms import LinearAlgorithm
    from .auditing import AuditConfig

MAX_SAMPLES = 2**26  # rows x trials of one canary: 512 MiB, several times
HALF = 0.5  # of the noise: what enough trials show
TRAINED = "zero-out"  # an adjacency that can be trained; draws are the same under each
LEAST = 1e-300  # of a claimed delta, to divide by
SAME = 1e-9  # relative: two ways of rounding one epsilon differ by less


class Claim(Protocol):
    """A curve of epsilon and delta."""

    def epsilon(self, delta: float) -> float:
        """At this delta."""

    def delta(self, epsilon: float) -> float:
        """At this epsilon."""


@dataclasses.dataclass(frozen=True)
class Least:
    """The smaller of two claims, which both must hold."""

    claims: tuple[Claim, Claim]

    def epsilon(self, delta: float) -> float:
        """At this delta."""
        return min(claim.epsilon(delta) for claim in self.claims)

    def delta(self, epsilon: float) -> float:
        """At this epsilon."""
        return min(claim.delta(epsilon) for claim in self.claims)


@dataclasses.dataclass(frozen=True)
class BinsAudit:
    """An audit of secret bins before it runs.

    Attributes: canaries: none where there is nothing to refute, which `why` then says; claims: finite, by victim.
    """

    config: AuditConfig
    settings: Settings
    claims: dict[int, Claim]
    canaries: tuple[Canary, ...]
    notes: tuple[str, ...] = ()
    why: str = ""

    @staticmethod
    def of(config: AuditConfig) -> BinsAudit:
        """Raises: InvalidInput: another claim than the library's, too few or too many trials, a view too large."""
        settings = config.settings()
        gaussian.record_shift(settings.adjacency, settings.clip_norm)  # refuses another adjacency
        if config.claimed_mu is not None:
            raise InvalidInput(f"claimed_mu={config.claimed_mu:g}: secret bins have no mu; leave it out.")
        claims, notes = _claims(config, settings)
        canaries = tuple(_canaries(config, claims))
        if not canaries:
            why = "nothing finite is claimed of a victim of whom something is seen"
            return BinsAudit(config, settings, claims, (), notes, why)
        audit = BinsAudit(config, settings, claims, canaries, notes)
        needed = audit.runs_needed
        if math.isinf(needed):
            what = "bins that are told break" if config.bins_seen else "half the noise breaks"
            why = f"{what} the claim only after more than {MOST} runs, if at all"
            return BinsAudit(config, settings, claims, (), notes, why)
        _require_trials(settings, canaries, needed, told=config.bins_seen)
        return audit

    @property
    def runs_needed(self) -> float:
        """Trials at which the worst canary of all refutes half the noise, or bins that are told."""
        victim = self.canaries[-1].victim  # those made of the worst one come last
        worst = next(canary for canary in self.canaries if canary.victim == victim)
        _, ratio = _whitened(worst, self.settings, told=self.config.bins_seen)
        noise = 1.0 if self.config.bins_seen else HALF
        return ratio.runs_needed(noise, self.curves[victim], self.failure)

    @property
    def failure(self) -> float:
        """Of the bound of each canary, and of the tests of the draws together."""
        return (1 - self.settings.level) / (len(self.canaries) + 1)

    @functools.cached_property
    def curves(self) -> dict[int, FloatArray]:
        """delta at EPSILONS of each claim that a canary is for."""
        each: dict[int, FloatArray] = {}
        for claim in (self.claims[canary.victim] for canary in self.canaries):
            if id(claim) not in each:
                each[id(claim)] = np.array([claim.delta(float(epsilon)) for epsilon in EPSILONS])
        return {canary.victim: each[id(self.claims[canary.victim])] for canary in self.canaries}

    def result(self) -> BinsAuditResult:
        """What all canaries show."""
        config, settings, algorithm = self.config, self.settings, self.config.algorithm
        system = config.system or Training(algorithm, noise_std=settings.noise_std, clip_norm=settings.clip_norm)
        joined, notes = self._joined(system)
        sampler = Sampler(joined, algorithm.num_nodes, algorithm.num_steps, _num_bins(algorithm))
        draws = sampler.tested(seed=settings.seed, failure=self.failure)
        runs = BinRuns(system, sampler, settings, self.failure, config.bins_seen)
        results = []
        with shown(config.progress, words=0).bar(f"auditing {algorithm.name}", len(self.canaries)) as advance:
            for number, canary in enumerate(self.canaries):
                u = canary.victim
                results.append(runs.result(canary, number, self.claims[u], self.curves[u]))
                advance()
        return BinsAuditResult(
            **vars(settings), canaries=tuple(results), draws=draws, bins_seen=config.bins_seen, notes=notes
        )

    def _joined(self, system: System) -> tuple[Joined, tuple[str, ...]]:
        """Where draws come from, and the notes, with one where a system is not the source of its draws."""
        if (joined := getattr(system, "joined", None)) is not None:
            return joined, self.notes
        config, settings = self.config, self.settings
        trained = mechanism.with_noise(
            config.algorithm,
            trust=config.trust,
            adjacency=TRAINED,
            clip_norm=settings.clip_norm,
            noise_std=settings.noise_std,
        )
        notes = self.notes
        if not isinstance(system, Training):
            notes = (*notes, "the draws are those of the sampler of the library, as the system has no method joined")
        return Replayed(trained).joined, notes


def audited_bins(config: AuditConfig) -> BinsAuditResult:
    """`audit` of secret bins.

    Raises: InvalidInput: as `BinsAudit.of`, and where nothing that is claimed could be refuted.
    """
    audit = BinsAudit.of(config)
    if audit.why:
        raise InvalidInput(
            f"{config.algorithm.name} claims nothing that an audit could refute under {config.trust.name}: "
            f"{audit.why}; choose another trust model or noise."
        )
    return audit.result()


def _require_trials(settings: Settings, canaries: tuple[Canary, ...], needed: float, *, told: bool) -> None:
    trials, rows = settings.trials, max(len(canary.view.gradients) for canary in canaries)
    if trials < needed:
        what = "that bins which are told break the claim" if told else "that half the noise breaks the claim"
        raise InvalidInput(
            f"trials must be at least {needed:.0f} to show at level {settings.level:g} {what}, got {trials}; give more "
            "trials, a lower level or less noise."
        )
    if trials * rows > MAX_SAMPLES:
        raise InvalidInput(f"trials must be at most {MAX_SAMPLES // rows} for views of {rows} rows, got {trials}.")


def _claims(config: AuditConfig, settings: Settings) -> tuple[dict[int, Claim], tuple[str, ...]]:
    """The finite ones by victim, and in words where they are not those of the mechanism's guarantee."""
    algorithm, adjacency = config.algorithm, str(config.claimed_adjacency)
    losses = PrivacyLosses.of(algorithm, Question(config.trust, adjacency, settings.clip_norm))
    by_victim = losses.curves(settings.noise_std)
    claims: dict[int, Claim] = {
        u: curve for u, curve in by_victim.items() if curve.noise_multiplier > 0 and config.victim in (None, u)
    }
    if not isinstance(config.subject, mechanism.Mechanism) or not claims:
        return claims, ()
    stated, delta = config.subject.guarantee, settings.delta
    if (stated.trust, stated.attacker) != (config.trust.name, config.trust.attacker):
        return claims, (f"the claim audited is accounted anew, as the guarantee is about {stated.attacker}",)
    least: dict[Claim, Claim] = {claim: Least((stated, claim)) for claim in claims.values()}
    notes: tuple[str, ...] = ()
    if config.victim is None and stated.bound == "upper":
        says, anew = stated.epsilon(delta), max(claim.epsilon(delta) for claim in least)
        if abs(says - anew) > SAME * max(says, anew):
            both = f"states epsilon = {says:.6g} at delta = {delta:g}, accounted anew it is {anew:.6g}"
            notes = (f"the guarantee {both}; the smaller is audited",)
    return {u: least[claim] for u, claim in claims.items()}, notes


def _canaries(config: AuditConfig, claims: dict[int, Claim]) -> list[Canary]:
    """Of every victim the signs that show most of each bin, by the worst of the views; more of the worst victim."""
    b = _num_bins(config.algorithm)
    worst: dict[int, tuple[float, Canary]] = {}
    for model, victims in config.trust.members(config.algorithm):
        chosen = [u for u in victims if u in claims]
        if not chosen:
            continue
        view = Observation.of(config.algorithm, model, chosen[0], release=config.shown())
        for u in chosen if len(view.gradients) else ():
            signs, value = _signs(view.whitener() @ view.columns_of(u), b)
            if value > worst.get(u, (0.0,))[0]:
                worst[u] = value, Canary("worst gradients of every bin", u, model.attacker, signs, ALONG, view)
    if not worst:
        return []
    top = max(worst.values(), key=lambda pair: pair[0])[1]
    constant = dataclasses.replace(top, name="constant gradients", signs=np.ones_like(top.signs))
    spread = dataclasses.replace(top, name="spread over coordinates", direction=SPREAD)
    return [*(canary for _, canary in worst.values()), constant, spread]


def _num_bins(algorithm: LinearAlgorithm) -> int:
    bins = algorithm.participation.num_bins
    assert bins is not None
    return bins


def _signs(white: FloatArray, bins: int) -> tuple[FloatArray, float]:
    """The signs that shift each bin most, all in one half space, and their mean square. white: (rows, T)."""
    signs, value, first = np.zeros(white.shape[1]), 0.0, None
    for r in range(bins):
        part = white[:, r::bins]
        best, reached = signs_of((part.T @ part)[None])
        shift = part @ best[0]
        first = shift if first is None else first
        signs[r::bins] = best[0] * (-1.0 if shift @ first < 0 else 1.0)
        value += float(reached[0]) / bins
    return signs, value


def _whitened(canary: Canary, settings: Settings, *, told: bool) -> tuple[FloatArray, BinRatio]:
    """P of the view, (rank, rows), and the statistic of the claimed noise."""
    patterns = list(canary.view.algorithm.participation.public.patterns())
    P = canary.view.whitener()
    A = P @ canary.view.columns_of(canary.victim) * canary.signs
    shifts = np.array([A[:, steps].sum(axis=1) for steps in patterns])
    replaced = settings.adjacency == "replace-one"
    return P, BinRatio(shifts * (settings.clip_norm / settings.noise_std), replaced, told)


@dataclasses.dataclass(frozen=True)
class BinRuns:
    """Runs of a system on neighbouring inputs whose record draws a bin for each run.

    Attributes: sampler: of whose records each is one run's; failure: probability of each bound; bins_seen:
        the attacker is told the bins.
    """

    system: System
    sampler: Sampler
    settings: Settings
    failure: float
    bins_seen: bool

    def result(self, canary: Canary, number: int, claim: Claim, claimed: FloatArray) -> BinsCanaryResult:
        """What the canary shows, by a pilot and runs of its own number.

        Args: claimed: delta of the claim at EPSILONS.
        """
        P, ratio = _whitened(canary, self.settings, told=self.bins_seen)
        pilot, measured = (self._pair(canary, f"{name} {number}", P, ratio) for name in ("pilot", "measure"))
        tried = thresholds(*pilot)
        least = np.maximum(claimed, LEAST)
        ratios = [float((self._deltas(*pilot, float(t)) / least).max()) for t in tried]
        threshold = float(tried[int(np.argmax(ratios))])
        deltas = self._deltas(*measured, threshold)
        at = int((deltas / least).argmax())
        delta, failure = self.settings.delta, self.failure
        return BinsCanaryResult(
            canary=canary.name,
            victim=canary.victim,
            attacker=canary.attacker,
            statistic="own bin" if self.bins_seen else "mixture over bins",
            epsilon_claimed=claim.epsilon(delta),
            epsilon_audited=bounds.binomial_epsilon(*measured, threshold, delta=delta, failure=failure),
            at_epsilon=float(EPSILONS[at]),
            delta_claimed=float(claimed[at]),
            delta_audited=float(deltas[at]),
        )

    def _deltas(self, without: FloatArray, present: FloatArray, threshold: float) -> FloatArray:
        """Lower bounds on delta at EPSILONS, all of them except with probability `failure`."""
        return deltas_shown(*bounds.error_rates(without, present, threshold, self.failure))

    def _pair(self, canary: Canary, name: str, P: FloatArray, ratio: BinRatio) -> tuple[FloatArray, FloatArray]:
        """Log likelihood ratios (trials,) without and with the canary, or with its opposite and with it."""
        sides = []
        for size, side in ((-1.0 if ratio.replaced else 0.0, "without"), (1.0, "with")):
            key = NoiseKey.from_seed(self.settings.seed).derive("audit bins", name, side)
            drawn = self.sampler.bins_of_trials(self.settings.trials, key.derive("bins"))
            sides.append(ratio.of(self._seen(canary, size, drawn, key) @ P.T / self.settings.noise_std, drawn))
        return sides[0], sides[1]

    def _seen(self, canary: Canary, size: float, drawn: NDArray[np.int64], key: NoiseKey) -> FloatArray:
        """The attacker's rows along the canary's direction, (trials, rows): one run of the system for each bin."""
        view, rows = canary.view, np.empty((drawn.size, len(canary.view.gradients)))
        raw = canary.gradients(size * OVERSHOOT * self.settings.clip_norm)
        bins = _num_bins(view.algorithm)
        for r in np.unique(drawn):
            joined, at, noise = raw.copy(), np.flatnonzero(drawn == r), key.derive("bin", int(r))
            joined[np.arange(len(raw)) % bins != r] = 0.0
            transcript = self.system.run(joined, view.feedback, trials=at.size, key=noise)
            rows[at] = view.by_trial(view.rows(transcript, noise, self.settings.noise_std)) @ canary.direction
        return rows
