"""The attack on balls-in-bins: the likelihood ratio of a record whose bin is secret, and how many runs it takes.

In: how far each bin moves what is seen, per unit of whitened noise. Out: the statistic of each run, a threshold chosen
by pilot runs, and the trials after which a bug of known size is refuted. The loss is not Gaussian, so nothing of one is
assumed: error rates are counted (`bounds.ErrorRates`), and the claim is refuted where its delta, at any epsilon, is
below what they allow. Bins are drawn by the sampler that `replay` uses, or that of a system, and the draws are tested
themselves (`bin_draws`).
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .. import noise_scale
from ..check import FloatArray
from ..privacy.questions import Privacy
from ..training.keys import NoiseKey
from . import bounds
from .audit_results import AuditCircumstances
from .audited_claims import AuditedClaim
from .bin_draws import Counts, DrawnRuns, Replayed, Sampler, TestedDraws
from .canaries import Canary, bin_candidates
from .observation import Training
from .runs import Attack, CanaryTest, Demand, SeenPair, SeenRuns

NUM_THRESHOLDS, TAIL = 200, 0.002
SIMULATED, MAX_ENTRIES = 2**17, 2**22  # runs on each input; of them times bins
DEVIATIONS = 2.0  # by which the counts of both errors may be above what is expected
FEWEST, MOST = 100, 2**20
HALF = 0.5  # of the noise: what enough trials show
TRAINED = "zero-out"  # an adjacency that can be trained; draws are the same under each


@dataclasses.dataclass(frozen=True, eq=False)
class BinRatio:
    """log of S = (1/b) sum_r L_r, of S / S' where the record is replaced, or of the own bin's ratio if bins are public.

    Attributes: shifts: of each bin, shape (bins, rows), per unit noise; replaced: the other input has the opposite
        shifts, else none; bins_seen: the attacker knows the bins.
    """

    shifts: FloatArray
    replaced: bool
    bins_seen: bool

    def of(self, seen: FloatArray, drawn: NDArray[np.int64]) -> FloatArray:
        """Of runs, shape (runs,). Args: seen: whitened rows, shape (runs, rows); drawn: the bin of each run."""
        return self._of(seen @ self.shifts.T, drawn)

    def _of(self, toward: FloatArray, drawn: NDArray[np.int64]) -> FloatArray:
        half = (self.shifts**2).sum(axis=1) / 2
        if self.bins_seen:
            chosen = np.arange(drawn.size), drawn
            return np.asarray(2 * toward[chosen] if self.replaced else (toward - half)[chosen])
        other = special.logsumexp(-toward - half, axis=1) if self.replaced else math.log(len(half))
        return np.asarray(special.logsumexp(toward - half, axis=1) - other)

    def error_rates(self, noise: float) -> tuple[FloatArray, FloatArray]:
        """(alpha, beta) at some thresholds with `noise` times the noise that is claimed: exact if bins are public.

        Else at least the true ones but for three standard deviations of a simulation, whose seed is fixed.
        """
        if self.bins_seen:
            s = np.maximum((2 if self.replaced else 1) * np.linalg.norm(self.shifts, axis=1), 1e-150)
            largest = 4 * s.max() + s.max() ** 2
            t = np.linspace(-largest, largest, 8 * NUM_THRESHOLDS)[:, None]
            alpha, beta = special.ndtr(-(t + s**2 / 2) / (noise * s)), special.ndtr((t - s**2 / 2) / (noise * s))
            return alpha.mean(axis=1), beta.mean(axis=1)
        without, with_canary = (np.sort(samples) for samples in self.simulated(noise))
        t = bounds.candidate_thresholds(without, with_canary, count=NUM_THRESHOLDS, tail=TAIL)
        count = without.size
        errors = count - np.searchsorted(without, t, side="right"), np.searchsorted(with_canary, t, side="right")
        rates = np.maximum(np.stack(errors), 1) / count
        alpha, beta = rates + 3 * np.sqrt(rates * (1 - rates) / count)
        return alpha, beta

    def simulated(self, noise: float) -> tuple[FloatArray, FloatArray]:
        """Samples of the statistic on each input, with `noise` times the noise that is claimed."""
        rng, gram = np.random.default_rng(0), self.shifts @ self.shifts.T
        values, vectors = np.linalg.eigh(gram)
        root, count = vectors * np.sqrt(np.clip(values, 0.0, None)), min(SIMULATED, MAX_ENTRIES // len(gram))
        sides = []
        for size in (-1.0 if self.replaced else 0.0, 1.0):
            drawn = rng.integers(len(gram), size=count)
            toward = noise * rng.standard_normal((count, len(gram))) @ root.T + size * gram[drawn]
            sides.append(self._of(toward, drawn))
        return sides[0], sides[1]

    def trials_needed(self, noise: float, claimed: FloatArray, failure: float) -> float:
        """Runs on each input that refute the claim, nearly always, if there is `noise` times the noise claimed.

        Args: claimed: delta at EPSILONS; failure: of the bound.
        Returns: at least FEWEST; inf where MOST are not enough.
        """
        rates = np.minimum(np.stack(self.error_rates(noise)), 1.0)

        def enough(runs: int) -> bool:
            errors = runs * rates + DEVIATIONS * np.sqrt(runs * rates * (1 - rates))
            upper = special.betaincinv(errors + 1, np.maximum(runs - errors, 1e-9), 1 - failure / 2)
            return bool((bounds.least_deltas(*np.where(errors < runs, upper, 1.0)) > claimed).any())

        if not enough(MOST):
            return math.inf
        return float(FEWEST + bisect.bisect_left(range(FEWEST, MOST), True, key=enough))


def whitened(canary: Canary, circumstances: AuditCircumstances, *, bins_seen: bool) -> tuple[FloatArray, BinRatio]:
    """P of the view, (rank, rows), and the statistic of the claimed noise."""
    patterns = list(canary.view.algorithm.participation.public.patterns())
    P = canary.view.whitener()
    A = P @ canary.view.columns_of(canary.victim) * canary.signs
    shifts = np.array([A[:, steps].sum(axis=1) for steps in patterns])
    replaced = circumstances.adjacency == "replace-one"
    return P, BinRatio(shifts * (circumstances.clip_norm / circumstances.noise_std), replaced, bins_seen)


class BinsAttack(Attack):
    """On balls-in-bins, where a sampler draws the bin of the record in each run."""

    estimators, domain = 1, "audit bins"

    @property
    def _bins(self) -> int:
        assert self.settings.num_bins is not None
        return self.settings.num_bins

    def candidates(self, victims: Sequence[int]) -> list[Canary]:
        s = self.settings
        return bin_candidates(s.algorithm, s.trust, victims, self._bins, release=s.released)

    def demand(self, canaries: Sequence[Canary], claims: Mapping[int, AuditedClaim], failure: float) -> Demand:
        """Trials at which the worst canary of all refutes half the noise, or bins that are public."""
        seen, victim = self.settings.bins_seen, canaries[-1].victim  # canaries of the worst victim come last
        worst = next(canary for canary in canaries if canary.victim == victim)
        _, ratio = whitened(worst, self.settings.circumstances, bins_seen=seen)
        trials = ratio.trials_needed(1.0 if seen else HALF, claims[victim].deltas, failure)
        return Demand(trials, f"that {'public bins break' if seen else 'half the noise breaks'} the claim")

    @functools.cached_property
    def sampler(self) -> Sampler:
        """That of the system, or of the library."""
        algorithm, circumstances = self.settings.algorithm, self.settings.circumstances
        if (joined := getattr(self.system, "joined", None)) is None:
            trained = noise_scale.calibrate(
                algorithm,
                Privacy(self.settings.trust, adjacency=TRAINED, clip_norm=circumstances.clip_norm),
                noise_std=circumstances.noise_std,
            )
            joined = Replayed(trained).joined
        return Sampler(joined, algorithm.num_nodes, algorithm.num_steps, self._bins)

    def drawn(self, key: NoiseKey) -> tuple[Counts, list[DrawnRuns]]:
        return self.sampler.of_trials(self.settings.circumstances.trials, key)

    def tested_draws(self, failure: float) -> TestedDraws:
        return self.sampler.tested(seed=self.settings.circumstances.seed, failure=failure)

    def notes(self, victims: Sequence[int]) -> tuple[str, ...]:
        if isinstance(self.system, Training) or hasattr(self.system, "joined"):
            return ()
        return ("the draws are those of the sampler of the library, as the system has no method joined",)

    def test(self, canary: Canary, claim: AuditedClaim, pilot: SeenPair, failure: float) -> CanaryTest:
        """The ratio of the mixture over bins, or of the own bin, at the threshold that shows most against the claim."""
        seen, circumstances = self.settings.bins_seen, self.settings.circumstances
        P, ratio = whitened(canary, circumstances, bins_seen=seen)

        def statistic(runs: SeenRuns) -> FloatArray:
            return ratio.of(runs.rows @ P.T / circumstances.noise_std, runs.drawn)

        without, with_canary = (statistic(runs) for runs in pilot)
        threshold = bounds.best_threshold(
            without, with_canary, claim.strength, count=NUM_THRESHOLDS, tail=TAIL, failure=failure
        )
        return CanaryTest("own bin" if seen else "mixture over bins", statistic, threshold, normal=False)
