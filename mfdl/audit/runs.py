"""The runs of an audit: pilots that choose what to look at, and runs of their own that measure it.

In: a system, canaries, claims, and the probability with which a bound may fail. Out: one `CanaryResult` each. Who draws
the steps of the record, and which likelihood ratio is the statistic, is an `Attack`. With public batches
(`PublicAttack`) the canary fixes its steps; the pilot chooses between the ratio of the claimed Gaussian and a linear
statistic learned from pilot runs, which needs no claim to be true. The attack on balls-in-bins is in `auditing`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from mfdl_solvers.ties import first_maximum

from ..check import FloatArray
from ..errors import InvalidInput
from ..privacy import gaussian
from ..sensitivity.patterns import MAX_ENUMERATED
from ..training.keys import NoiseKey
from . import bounds
from .audited_claims import AuditCircumstances, AuditedClaim, AuditSettings, CanaryResult
from .bin_draws import Counts, DrawnRuns, TestedDraws
from .bounds import ErrorRates
from .canaries import DIRECTIONS, OVERSHOOT, Canary, candidates, learned
from .observation import AuditedSystem, Training

RIDGE = 1e-12  # of the largest eigenvalue: directions of less measured variance count as nearly free of noise
MAX_CLAIM = 1e6
NUM_THRESHOLDS, TAIL = 100, 0.005  # tried in pilot runs

Rows = tuple[FloatArray, FloatArray]


@dataclasses.dataclass(frozen=True, eq=False)
class SeenRuns:
    """Rows of an attacker's view along the canary's direction, (runs, rows), and the bin of each run, or zeros."""

    rows: FloatArray
    drawn: Counts


SeenPair = tuple[SeenRuns, SeenRuns]
"""On both inputs: without and with the canary, or with its opposite and with it."""


@dataclasses.dataclass(frozen=True)
class CanaryTest:
    """The test "there was a canary if the statistic exceeds the threshold"; `normal`: if the system's noise is."""

    name: str
    statistic: Callable[[SeenRuns], FloatArray]
    threshold: float
    normal: bool


@dataclasses.dataclass(frozen=True)
class Demand:
    """How many trials an audit needs. Attributes: trials: inf where no number is enough; shows: the bug, in words."""

    trials: float
    shows: str


@dataclasses.dataclass(frozen=True)
class Attack(abc.ABC):
    """What depends on who draws the batches: canaries, draws, the statistic, and how many trials it takes.

    Attributes: estimators: bounds of each canary, which share its probability of failure; domain: of the keys of runs.
    """

    settings: AuditSettings

    estimators: ClassVar[int]
    domain: ClassVar[str]

    @functools.cached_property
    def system(self) -> AuditedSystem:
        scales = self.settings.circumstances
        trained = Training(self.settings.algorithm, noise_std=scales.noise_std, clip_norm=scales.clip_norm)
        return self.settings.system or trained

    @abc.abstractmethod
    def candidates(self, victims: Sequence[int]) -> list[Canary]:
        """Canaries that look for these victims, by what is claimed of the noise; none where nothing is seen."""

    @abc.abstractmethod
    def demand(self, canaries: Sequence[Canary], claims: Mapping[int, AuditedClaim], failure: float) -> Demand:
        """Trials that show a large bug. Raises: InvalidInput: a claim that no run can refute."""

    @abc.abstractmethod
    def test(self, canary: Canary, claim: AuditedClaim, pilot: SeenPair, failure: float) -> CanaryTest:
        """The test at which the pilot runs show most."""

    def drawn(self, key: NoiseKey) -> tuple[Counts, list[DrawnRuns]]:
        """The bin of each trial, (trials,), and the runs that they take: here the steps are the canary's in all."""
        trials, joins = self.settings.circumstances.trials, np.ones(self.settings.algorithm.num_steps, dtype=bool)
        return np.zeros(trials, dtype=np.int64), [DrawnRuns(joins, np.arange(trials), key)]

    def tested_draws(self, failure: float) -> TestedDraws | None:
        """What runs show of the draws; None where there are none. Args: failure: probability of a false alarm."""
        return None

    def chosen_from_runs(
        self, runs: Runs, canaries: Sequence[Canary], claims: Mapping[int, AuditedClaim]
    ) -> list[Canary]:
        """Canaries that look where the measured noise is weak."""
        return []

    def notes(self, victims: Sequence[int]) -> tuple[str, ...]:
        return ()


@dataclasses.dataclass(frozen=True)
class Runs:
    """Runs of a system on neighbouring inputs; every call with another name has noise of its own."""

    attack: Attack
    failure: float

    @property
    def _circumstances(self) -> AuditCircumstances:
        return self.attack.settings.circumstances

    def result(self, canary: Canary, number: int, claim: AuditedClaim) -> CanaryResult:
        circumstances, failure = self._circumstances, self.failure
        test = self.attack.test(canary, claim, self._pair(canary, f"pilot {number}"), failure)
        without, with_canary = (test.statistic(seen) for seen in self._pair(canary, f"measure {number}"))
        rates = ErrorRates.from_samples(without, with_canary, test.threshold, failure=failure)
        numbers = claim.beside(rates)
        if test.normal:
            mu = bounds.gaussian_mu(without, with_canary, failure=failure)
            shift = gaussian.record_shift(circumstances.adjacency, circumstances.clip_norm)
            numbers |= {
                "mu_possible": canary.sensitivity() * shift / circumstances.noise_std,
                "mu_gaussian": mu,
                "epsilon_gaussian": bounds.epsilon_lower_bound(mu, circumstances.delta),
            }
        return CanaryResult(
            canary=canary.name,
            victim=canary.victim,
            attacker=canary.attacker,
            steps=canary.steps,
            statistic=test.name,
            epsilon_claimed=claim.epsilon(circumstances.delta),
            epsilon_binomial=rates.epsilon(circumstances.delta),
            **numbers,
        )

    def without_canary(self, canary: Canary, *name: str) -> FloatArray:
        """The attacker's rows, (trials, rows, COORDINATES)."""
        _, groups = self._drawn(*name)
        return np.concatenate([self._rows(canary, 0.0, group) for group in groups])

    def _pair(self, canary: Canary, name: str) -> SeenPair:
        size = OVERSHOOT * self._circumstances.clip_norm
        other = -size if self._circumstances.adjacency == "replace-one" else 0.0
        return self._seen(canary, other, name, "without"), self._seen(canary, size, name, "with")

    def _seen(self, canary: Canary, size: float, *name: str) -> SeenRuns:
        drawn, groups = self._drawn(*name)
        rows = np.empty((drawn.size, len(canary.view.gradients)))
        for group in groups:
            rows[group.trials] = self._rows(canary, size, group) @ canary.direction
        return SeenRuns(rows, drawn)

    def _drawn(self, *name: str) -> tuple[Counts, list[DrawnRuns]]:
        return self.attack.drawn(NoiseKey.from_seed(self._circumstances.seed).derive(self.attack.domain, *name))

    def _rows(self, canary: Canary, size: float, runs: DrawnRuns) -> FloatArray:
        """The attacker's rows of runs in which the record joins the same steps, (runs, rows, COORDINATES)."""
        view = canary.view
        raw = np.where(runs.joins[:, None, None], canary.gradients(size), 0.0)
        transcript = self.attack.system.run(raw, view.feedback, trials=runs.trials.size, key=runs.key)
        return view.by_trial(view.rows(transcript, runs.key, self._circumstances.noise_std))


# ---- public batches --------------------------------------------------------------------------------------------------


class PublicAttack(Attack):
    """On public batches: linear statistics, which are normal if noise is."""

    estimators, domain = 2, "audit"

    def candidates(self, victims: Sequence[int]) -> list[Canary]:
        s = self.settings
        return candidates(s.algorithm, s.trust, victims, release=s.released, unit=s.circumstances.unit)

    def demand(self, canaries: Sequence[Canary], claims: Mapping[int, AuditedClaim], failure: float) -> Demand:
        largest = max(claim.mu for claim in claims.values() if claim.mu is not None)
        if largest > MAX_CLAIM:
            raise InvalidInput(
                f"mu must be at most {MAX_CLAIM:g} to be audited, got a claim of {largest:.4g}: runs in float64 cannot "
                "tell it from no privacy at all."
            )
        expected = max(claim.expected_mu for claim in claims.values() if claim.expected_mu is not None)
        rows = max(len(canary.view.gradients) for canary in canaries)
        needed = max(bounds.trials_needed(expected, failure=failure), 4 * rows)
        return Demand(needed, f"that a loss is twice the claimed mu={expected:.4g}")

    def notes(self, victims: Sequence[int]) -> tuple[str, ...]:
        scheme = self.settings.algorithm.participation
        if all(scheme.at_node(u).num_patterns <= MAX_ENUMERATED for u in victims):
            return ()
        tried = f"of more than {MAX_ENUMERATED} patterns of steps some were tried"
        return (f"{tried}, with every step that a record can join",)

    def chosen_from_runs(
        self, runs: Runs, canaries: Sequence[Canary], claims: Mapping[int, AuditedClaim]
    ) -> list[Canary]:
        """The canary that shows most in measured noise, of the worst ones of all victims along several directions."""
        worst = canaries[: len(claims)]  # one of each victim comes first
        tried = [dataclasses.replace(canary, direction=along) for canary in worst for along in DIRECTIONS]
        mus = {u: claim.mu for u, claim in claims.items() if claim.mu is not None}
        return [learned(tried, self._precisions(runs, tried), mus)]

    def test(self, canary: Canary, claim: AuditedClaim, pilot: SeenPair, failure: float) -> CanaryTest:
        """The claimed Gaussian's ratio or that of the first half of the pilot, whichever separates its second half."""
        half = len(pilot[0].rows) // 2
        first, second = ((pilot[0].rows[part], pilot[1].rows[part]) for part in (slice(half), slice(half, None)))
        P = canary.view.whitener()
        difference = first[1].mean(axis=0) - first[0].mean(axis=0)
        statistics = {
            "claimed": P.T @ (P @ canary.shift),
            "learned": _precision(*first, rounding=self._rounding(canary)) @ difference,
        }
        name = first_maximum(list(statistics), lambda kind: _separation(second, statistics[kind]))
        weights = statistics[name]
        without, with_canary = (rows @ weights for rows in second)
        threshold = bounds.best_threshold(
            without, with_canary, claim.strength, count=NUM_THRESHOLDS, tail=TAIL, failure=failure
        )
        return CanaryTest(name, lambda seen: seen.rows @ weights, threshold, normal=True)

    def _precisions(self, runs: Runs, canaries: Sequence[Canary]) -> list[FloatArray]:
        """Inverse covariance of each canary's view along its direction, measured on one run without canary per view."""
        samples: dict[int, FloatArray] = {}
        precisions: dict[tuple[int, bytes], FloatArray] = {}
        for number, canary in enumerate(canaries):
            view, along = id(canary.view), (id(canary.view), canary.direction.tobytes())
            if view not in samples:
                samples[view] = runs.without_canary(canary, "noise", str(number))
            if along not in precisions:
                rows = samples[view] @ canary.direction
                precisions[along] = _precision(rows, rounding=self._rounding(canary))
        return [precisions[id(canary.view), canary.direction.tobytes()] for canary in canaries]

    def _rounding(self, canary: Canary) -> FloatArray:
        circumstances = self.settings.circumstances
        return canary.view.rounding(circumstances.noise_std, OVERSHOOT * circumstances.clip_norm)


def _precision(*samples: FloatArray, rounding: FloatArray) -> FloatArray:
    """Inverse of the pooled covariance, its smallest eigenvalues raised to RIDGE of the largest, or of unit variance.

    Args: rounding: standard deviation of each row below which it is constant up to rounding.
    """
    centred = np.concatenate([rows - rows.mean(axis=0) for rows in samples])
    scale = np.maximum(np.sqrt((centred**2).mean(axis=0)), rounding)
    scaled = centred / scale
    values, vectors = np.linalg.eigh(scaled.T @ scaled / (len(scaled) - len(samples)))
    inverse = (vectors / np.maximum(values, RIDGE * max(values[-1], 1.0))) @ vectors.T
    return np.asarray(inverse / np.outer(scale, scale))


def _separation(pair: Rows, weights: FloatArray) -> float:
    """Difference of the means in standard deviations."""
    without, with_canary = (rows @ weights for rows in pair)
    difference = float(with_canary.mean()) - float(without.mean())
    return difference / max(float(without.std()), float(with_canary.std()), 1e-300)
