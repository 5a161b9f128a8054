"""Audits of secret bins: what runs show of a record whose bin nobody knows, against the claimed curve.

In: what `audit` is asked of an algorithm with `BallsInBins`, or of a `SampledMechanism`. Out: one
`BinsCanaryResult` for each canary. Bins are drawn as training draws them.
The loss is no Gaussian's, so nothing of one is assumed:
the statistic is
the likelihood ratio (1/b) sum_r L_r of the transcript, or the ratio of two of them where the record is replaced, the
threshold is chosen by pilot runs, and both error rates are bounded by Clopper and Pearson. With upper bounds (a, b) on
them every (epsilon, delta) that holds has 1 - b <= e^epsilon a + delta, and the other way round: the claim is refuted
where its delta is below, at any epsilon.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from .. import sampled
from ..check import FloatArray
from ..errors import InvalidInput
from ..participation import BallsInBins
from ..progress import shown
from ..training.keys import NoiseKey, words
from ..training.poisson import bins_of
from . import bounds
from .bins_results import BinsAuditResult, BinsCanaryResult
from .canaries import ALONG, OVERSHOOT, SPREAD, Canary, signs_of
from .observation import Observation
from .results import Settings
from .system import System, Training

if TYPE_CHECKING:
    from .auditing import AuditConfig

THRESHOLDS = 200
EPSILONS = np.array([0.0, *np.geomspace(0.05, 8.0, 23)])
FEWEST_TRIALS = 100


class Claim(Protocol):
    """A curve of epsilon and delta."""

    def epsilon(self, delta: float) -> float:
        """At this delta."""

    def delta(self, epsilon: float) -> float:
        """At this epsilon."""


def audited_bins(config: AuditConfig) -> BinsAuditResult:
    """`audit` of secret bins.

    Raises: InvalidInput: nothing finite is claimed, another claim than the library's, too few trials, a view too large.
    """
    settings, algorithm = config.settings(), config.algorithm
    if config.claimed_mu is not None:
        raise InvalidInput(f"claimed_mu={config.claimed_mu:g}: secret bins have no mu; leave it out.")
    if settings.trials < FEWEST_TRIALS:
        raise InvalidInput(f"trials must be at least {FEWEST_TRIALS} for secret bins, got {settings.trials}.")
    claims, notes = _claims(config, settings)
    canaries = _canaries(config, claims)
    if not canaries:
        raise InvalidInput(
            f"{algorithm.name} claims nothing that an audit could refute under {config.trust.name}: nothing finite is "
            "claimed of a victim of whom something is seen; choose another trust model."
        )
    failure = (1 - settings.level) / len(canaries)
    system = config.system or Training(algorithm, noise_std=settings.noise_std, clip_norm=settings.clip_norm)
    runs = BinRuns(system, settings, failure, config.bins_seen)
    results = []
    with shown(config.progress, words=0).bar(f"auditing {algorithm.name}", len(canaries)) as advance:
        for number, canary in enumerate(canaries):
            results.append(runs.result(canary, number, claims[canary.victim]))
            advance()
    return BinsAuditResult(**vars(settings), canaries=tuple(results), bins_seen=config.bins_seen, notes=notes)


def _claims(config: AuditConfig, settings: Settings) -> tuple[dict[int, Claim], tuple[str, ...]]:
    """The finite ones by victim, and in words where they are not those of the mechanism's guarantee."""
    algorithm, adjacency = config.algorithm, str(config.claimed_adjacency)
    how = {"clip_norm": settings.clip_norm, "noise_std": settings.noise_std}
    found = sampled.by_victim(algorithm, trust=config.trust, adjacency=adjacency, **how)
    claims: dict[int, Claim] = {
        u: accountant
        for u, accountant in found.items()
        if accountant.noise_multiplier > 0 and config.victim in (None, u)
    }
    if not isinstance(config.subject, sampled.SampledMechanism):
        return claims, ()
    stated = config.subject.guarantee
    if (stated.trust, stated.attacker) != (config.trust.name, config.trust.attacker):
        return claims, (f"the claim audited is accounted anew, as the guarantee is about {stated.attacker}",)
    return dict.fromkeys(claims, stated), ()


def _canaries(config: AuditConfig, claims: dict[int, Claim]) -> list[Canary]:
    """Of every victim the signs that show most of each bin, by the worst of the views; more of the worst victim."""
    b = _bins_of_algorithm(config)
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


def _bins_of_algorithm(config: AuditConfig) -> int:
    scheme = config.algorithm.participation
    assert isinstance(scheme, BallsInBins)
    return scheme.bins


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


@dataclasses.dataclass(frozen=True)
class BinRuns:
    """Runs of a system on neighbouring inputs whose record draws a bin for each run.

    Attributes: failure: probability of each bound; bins_seen: the attacker is told the bins.
    """

    system: System
    settings: Settings
    failure: float
    bins_seen: bool

    def result(self, canary: Canary, number: int, claim: Claim) -> BinsCanaryResult:
        """What the canary shows, by a pilot and runs of its own number."""
        claimed = np.array([claim.delta(float(epsilon)) for epsilon in EPSILONS])
        pilot, measured = self._pair(canary, f"pilot {number}"), self._pair(canary, f"measure {number}")
        tried = np.unique(np.quantile(np.concatenate(pilot), np.linspace(0.002, 0.998, THRESHOLDS)))
        ratios = [float((self._deltas(*pilot, float(t)) / claimed).max()) for t in tried]
        threshold = float(tried[int(np.argmax(ratios))])
        deltas = self._deltas(*measured, threshold)
        at = int((deltas / claimed).argmax())
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
        alpha, beta = bounds.error_rates(without, present, threshold, self.failure)
        grown = np.exp(EPSILONS)
        return np.maximum(0.0, np.maximum(1 - beta - grown * alpha, 1 - alpha - grown * beta))

    def _pair(self, canary: Canary, name: str) -> tuple[FloatArray, FloatArray]:
        """Log likelihood ratios (trials,) without and with the canary, or with its opposite and with it."""
        other = -1.0 if self.settings.adjacency == "replace-one" else 0.0
        return self._statistics(canary, other, name, "without"), self._statistics(canary, 1.0, name, "with")

    def _statistics(self, canary: Canary, size: float, *name: str) -> FloatArray:
        scheme, view = canary.view.algorithm.participation, canary.view
        assert isinstance(scheme, BallsInBins)
        key = NoiseKey.from_seed(self.settings.seed).derive("audit bins", *name)
        drawn = bins_of(words(key.derive("bins"), 0, canary.victim, self.settings.trials), scheme.bins)
        P, steps = view.whitener(), np.arange(scheme.num_steps) % scheme.bins
        seen = self._seen(canary, size, drawn, key) @ P.T / self.settings.noise_std
        per_bin = [P @ (view.columns_of(canary.victim) @ (canary.signs * (steps == r))) for r in range(scheme.bins)]
        shifts = np.array(per_bin) * (self.settings.clip_norm / self.settings.noise_std)
        toward, half = seen @ shifts.T, (shifts**2).sum(axis=1) / 2
        replaced = self.settings.adjacency == "replace-one"
        if self.bins_seen:
            chosen = np.arange(drawn.size), drawn
            return np.asarray(2 * toward[chosen] if replaced else (toward - half)[chosen])
        ratio = logsumexp(toward - half, axis=1) - math.log(scheme.bins)
        return np.asarray(ratio - (logsumexp(-toward - half, axis=1) - math.log(scheme.bins) if replaced else 0.0))

    def _seen(self, canary: Canary, size: float, drawn: NDArray[np.int64], key: NoiseKey) -> FloatArray:
        """The attacker's rows along the canary's direction, (trials, rows): one run of the system for each bin."""
        view, rows = canary.view, np.empty((drawn.size, len(canary.view.gradients)))
        raw = canary.gradients(size * OVERSHOOT * self.settings.clip_norm)
        bins = int(view.algorithm.participation.bins)  # type: ignore[attr-defined]
        for r in np.unique(drawn):
            joined, at, own = raw.copy(), np.flatnonzero(drawn == r), key.derive("bin", int(r))
            joined[np.arange(len(raw)) % bins != r] = 0.0
            transcript = self.system.run(joined, view.feedback, trials=at.size, key=own)
            rows[at] = view.by_trial(view.rows(transcript, own, self.settings.noise_std)) @ canary.direction
        return rows
