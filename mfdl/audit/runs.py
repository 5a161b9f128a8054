"""The runs of an audit: pilots that choose what to look at, and runs of their own that measure it.

In: a system, canaries, and the probability with which a bound may fail. Out: one `CanaryResult` each. The pilot chooses
the statistic (the likelihood ratio of the claimed Gaussian, or a linear one learned from pilot runs, which needs no
claim to be true) and the threshold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..check import FloatArray
from ..privacy import gaussian
from ..training.keys import NoiseKey
from . import bounds
from .canaries import OVERSHOOT, Canary
from .results import CanaryResult, Settings
from .system import System

RIDGE = 1e-12  # of the largest eigenvalue: directions of less measured variance count as nearly free of noise

Pair = tuple[FloatArray, FloatArray]


@dataclasses.dataclass(frozen=True)
class Runs:
    """Runs of a system on neighbouring inputs; every call with another name has noise of its own.

    Attributes: failure: of each bound, its probability.
    """

    system: System
    settings: Settings
    failure: float

    @property
    def raw_norm(self) -> float:
        """Of a canary's gradients, before the system clips them."""
        return OVERSHOOT * self.settings.clip_norm

    def precisions(self, canaries: Sequence[Canary]) -> list[FloatArray]:
        """Inverse covariance of each canary's view along its direction, measured on one run without canary per view."""
        samples: dict[int, FloatArray] = {}
        made: dict[tuple[int, bytes], FloatArray] = {}
        for number, canary in enumerate(canaries):
            view, along = id(canary.view), (id(canary.view), canary.direction.tobytes())
            if view not in samples:
                samples[view] = self._rows(canary, 0.0, "noise", str(number))
            if along not in made:
                made[along] = _precision(samples[view] @ canary.direction, rounding=self._rounding(canary))
        return [made[id(canary.view), canary.direction.tobytes()] for canary in canaries]

    def result(self, canary: Canary, number: int, mu_claimed: float) -> CanaryResult:
        """What the canary shows, by a pilot and runs of its own number."""
        delta, failure = self.settings.delta, self.failure
        pilot, measured = self._pair(canary, f"pilot {number}"), self._pair(canary, f"measure {number}")
        half = len(pilot[0]) // 2
        first, second = (pilot[0][:half], pilot[1][:half]), (pilot[0][half:], pilot[1][half:])
        P = canary.view.whitener()
        difference = first[1].mean(axis=0) - first[0].mean(axis=0)
        statistics = {
            "claimed": P.T @ (P @ canary.shift),
            "learned": _precision(*first, rounding=self._rounding(canary)) @ difference,
        }
        name = max(statistics, key=lambda kind: _separation(second, statistics[kind]))
        threshold = bounds.choose_threshold(*(rows @ statistics[name] for rows in second), failure=failure)
        without, present = (rows @ statistics[name] for rows in measured)
        mu = bounds.gaussian_mu(without, present, failure=failure)
        shift = gaussian.record_shift(self.settings.adjacency, self.settings.clip_norm)
        return CanaryResult(
            canary=canary.name,
            victim=canary.victim,
            attacker=canary.attacker,
            statistic=name,
            mu_claimed=mu_claimed,
            mu_possible=canary.sensitivity() * shift / self.settings.noise_std,
            mu_gaussian=mu,
            mu_binomial=bounds.binomial_mu(without, present, threshold, failure=failure),
            epsilon_gaussian=bounds.epsilon_lower_bound(mu, delta),
            epsilon_binomial=bounds.binomial_epsilon(without, present, threshold, delta=delta, failure=failure),
        )

    def _rounding(self, canary: Canary) -> FloatArray:
        return canary.view.rounding(self.settings.noise_std, self.raw_norm)

    def _rows(self, canary: Canary, size: float, *name: str) -> FloatArray:
        """The attacker's rows, (trials, rows, COORDINATES)."""
        key, view = NoiseKey.from_seed(self.settings.seed).derive("audit", *name), canary.view
        transcript = self.system.run(canary.gradients(size), view.feedback, trials=self.settings.trials, key=key)
        return view.by_trial(view.rows(transcript, key, self.settings.noise_std))

    def _pair(self, canary: Canary, name: str) -> Pair:
        """Rows along the canary's direction, (trials, rows), on both inputs.

        Without and with the canary, or with its opposite and with it.
        """
        other = -self.raw_norm if self.settings.adjacency == "replace-one" else 0.0
        without = self._rows(canary, other, name, "without") @ canary.direction
        return without, self._rows(canary, self.raw_norm, name, "with") @ canary.direction


def _precision(*samples: FloatArray, rounding: FloatArray) -> FloatArray:
    """Inverse of the pooled covariance, its smallest eigenvalues raised to RIDGE of the largest, or of unit variance.

    Args: rounding: standard deviation of each row below which it is constant up to rounding, all > 0.
    """
    centred = np.concatenate([rows - rows.mean(axis=0) for rows in samples])
    scale = np.maximum(np.sqrt((centred**2).mean(axis=0)), rounding)
    scaled = centred / scale
    values, vectors = np.linalg.eigh(scaled.T @ scaled / (len(scaled) - len(samples)))
    inverse = (vectors / np.maximum(values, RIDGE * max(values[-1], 1.0))) @ vectors.T
    return np.asarray(inverse / np.outer(scale, scale))


def _separation(pair: Pair, weights: FloatArray) -> float:
    """Difference of the means in standard deviations."""
    without, present = (rows @ weights for rows in pair)
    difference = float(present.mean()) - float(without.mean())
    return difference / max(float(without.std()), float(present.std()), 1e-300)
