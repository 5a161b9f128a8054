"""audit: the privacy that training really has, measured, against the privacy that is claimed.

A canary is one record with gradients chosen to show; it is sent raw and large through the system's own clipping. As
many runs choose (the pilot) as measure: which statistic, which threshold, and with public batches one more canary,
where the noise that was measured is weakest: whose record, which steps, and which direction over coordinates.
Bonferroni over canaries and estimators gives the level.

The attack on balls-in-bins, whose loss is not Gaussian, counts error rates of the likelihood ratio of a record in a
secret bin (`bounds.ErrorRates`): the claim is refuted where its delta, at any epsilon, is below what they allow.
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
from ..errors import InvalidInput
from ..privacy.questions import Privacy
from ..progress import reporter
from ..spec import takes_fields_of
from ..training.keys import NoiseKey
from . import bounds
from .audited_claims import NOTHING_IS_SEEN, AuditCircumstances, AuditedClaim, AuditedClaims, AuditResult, AuditSettings
from .bin_draws import Counts, DrawnRuns, Replayed, Sampler, TestedDraws
from .canaries import Canary, bin_candidates
from .observation import Training, anything_is_seen
from .runs import Attack, CanaryTest, Demand, PublicAttack, Runs, SeenPair, SeenRuns

MAX_SAMPLES = 2**26  # rows x trials of one canary: 512 MiB, several times
UNSEEN = "they attack themselves or nothing of them is seen"


@takes_fields_of(AuditSettings)
def audit(settings: AuditSettings) -> AuditResult:
    """Runs neighbouring inputs and bounds from below the privacy that the runs show; arguments: `AuditSettings`.

    >>> from mfdl import algorithms, dynamics, gossip, participation, trust
    >>> ring = dynamics.Dynamics(gossip.metropolis_hastings("ring:n=4"))
    >>> fresh = algorithms.dp_dsgd(ring, participation.Cyclic(epochs=2, period=2))
    >>> result = audit(fresh, trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0, noise_std=1.0)
    >>> round(result.mu_claimed, 4), result.violated, bool(result.mu_audited > 1.1)
    (1.4142, False, True)

    Guarantees: a claim that holds is refuted with probability at most 1 - level, whatever the statistic learned
        (`gaussian`: if the system's noise is normal; `binomial`: always).
    Raises:
        InvalidInput: no finite privacy loss is claimed, nothing of the record is seen, too few trials (and how many are
            needed), a view too large for dense matrices, a transcript without messages that the view sees.
    Cost: n + 5 canaries of 4 trials runs each; cubic in the rows of the view.
    """
    plan = AuditPlan.from_settings(settings)
    if plan.why:
        raise settings.refusal(plan.why)
    return plan.result()


@dataclasses.dataclass(frozen=True)
class AuditPlan:
    """An audit before it runs: an attack, what it could refute, and canaries; none where `why` says that nothing is."""

    attack: Attack
    claims: AuditedClaims
    canaries: tuple[Canary, ...] = ()
    why: str = ""

    @staticmethod
    def from_settings(settings: AuditSettings) -> AuditPlan:
        """Raises: InvalidInput: arguments out of range, too few or too many trials, a view too large."""
        attack = (BinsAttack if settings.draws_bins else PublicAttack)(settings)
        claims = AuditedClaims.from_settings(settings)
        canaries = attack.candidates(list(claims.by_victim)) if claims.by_victim else []
        if not canaries:
            seen = anything_is_seen(settings.algorithm, settings.trust, release=settings.released)
            unseen = f"every victim attacks itself, or {NOTHING_IS_SEEN}" if seen else NOTHING_IS_SEEN
            return AuditPlan(attack, claims, why=claims.why or unseen)
        claims = claims.restricted_to({canary.victim for canary in canaries}, UNSEEN)
        plan = AuditPlan(attack, claims, tuple(canaries))
        demand = attack.demand(canaries, claims.by_victim, plan.failure)
        if math.isinf(demand.trials):
            return AuditPlan(attack, claims, why=f"no number of runs up to {MOST} shows {demand.shows}")
        plan._require_trials(demand)
        return plan

    @property
    def failure(self) -> float:
        """Of each bound: of all canaries, and of one more canary or of the tests of the draws."""
        return (1 - self.attack.settings.circumstances.level) / ((len(self.canaries) + 1) * self.attack.estimators)

    def _require_trials(self, demand: Demand) -> None:
        circumstances = self.attack.settings.circumstances
        trials, level = circumstances.trials, circumstances.level
        rows = max(len(canary.view.gradients) for canary in self.canaries)
        if trials < demand.trials:
            raise InvalidInput(
                f"trials must be at least {demand.trials:.0f} to show at level {level:g} {demand.shows}, got {trials}; "
                "give more trials, a lower level or less noise."
            )
        if trials * rows > MAX_SAMPLES:
            raise InvalidInput(f"trials must be at most {MAX_SAMPLES // rows} for views of {rows} rows, got {trials}.")

    def result(self) -> AuditResult:
        attack, settings, claims = self.attack, self.attack.settings, self.claims.by_victim
        draws, runs = attack.tested_draws(self.failure), Runs(attack, self.failure)
        canaries = [*self.canaries, *attack.chosen_from_runs(runs, self.canaries, claims)]
        results = []
        with reporter(settings.progress, words=0).bar(f"auditing {settings.algorithm.name}", len(canaries)) as advance:
            for number, canary in enumerate(canaries):
                results.append(runs.result(canary, number, claims[canary.victim]))
                advance()
        return AuditResult(
            **vars(settings.circumstances),
            canaries=tuple(results),
            draws=draws,
            bins_seen=settings.bins_seen,
            notes=(*self.claims.notes, *attack.notes(list(claims))),
        )


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
        shifts, else none.
    """

    shifts: FloatArray
    replaced: bool
    bins_seen: bool

    def ratios(self, seen: FloatArray, drawn: NDArray[np.int64]) -> FloatArray:
        return self._ratios(seen @ self.shifts.T, drawn)

    def _ratios(self, toward: FloatArray, drawn: NDArray[np.int64]) -> FloatArray:
        half = (self.shifts**2).sum(axis=1) / 2
        if self.bins_seen:
            chosen = np.arange(drawn.size), drawn
            return np.asarray(2 * toward[chosen] if self.replaced else (toward - half)[chosen])
        other = special.logsumexp(-toward - half, axis=1) if self.replaced else math.log(len(half))
        return np.asarray(special.logsumexp(toward - half, axis=1) - other)

    def error_rates(self, noise: float) -> tuple[FloatArray, FloatArray]:
        """(alpha, beta) at some thresholds with `noise` times the claimed noise: exact if bins are public, else at
        least the true ones but for three standard deviations of a simulation, whose seed is fixed.
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
        rng, gram = np.random.default_rng(0), self.shifts @ self.shifts.T
        values, vectors = np.linalg.eigh(gram)
        root, count = vectors * np.sqrt(np.clip(values, 0.0, None)), min(SIMULATED, MAX_ENTRIES // len(gram))
        sides = []
        for size in (-1.0 if self.replaced else 0.0, 1.0):
            drawn = rng.integers(len(gram), size=count)
            toward = noise * rng.standard_normal((count, len(gram))) @ root.T + size * gram[drawn]
            sides.append(self._ratios(toward, drawn))
        return sides[0], sides[1]

    def trials_needed(self, noise: float, claimed: FloatArray, failure: float) -> float:
        """Runs on each input, at least FEWEST, that nearly always refute the claim at `noise` times its noise."""
        rates = np.minimum(np.stack(self.error_rates(noise)), 1.0)

        def enough(runs: int) -> bool:
            errors = runs * rates + DEVIATIONS * np.sqrt(runs * rates * (1 - rates))
            upper = special.betaincinv(errors + 1, np.maximum(runs - errors, 1e-9), 1 - failure / 2)
            return bool((bounds.least_deltas(*np.where(errors < runs, upper, 1.0)) > claimed).any())

        if not enough(MOST):
            return math.inf
        return float(FEWEST + bisect.bisect_left(range(FEWEST, MOST), True, key=enough))


def whitened(canary: Canary, circumstances: AuditCircumstances, *, bins_seen: bool) -> tuple[FloatArray, BinRatio]:
    patterns = list(canary.view.algorithm.participation.public.patterns())
    P = canary.view.whitener()
    A = P @ canary.view.victim_columns(canary.victim) * canary.signs
    shifts = np.array([A[:, steps].sum(axis=1) for steps in patterns])
    replaced = circumstances.adjacency == "replace-one"
    return P, BinRatio(shifts * (circumstances.clip_norm / circumstances.noise_std), replaced, bins_seen)


class BinsAttack(Attack):
    estimators, domain = 1, "audit bins"

    @property
    def _bins(self) -> int:
        return int(self.settings.algorithm.participation.public.num_patterns)

    def candidates(self, victims: Sequence[int]) -> list[Canary]:
        s = self.settings
        return bin_candidates(s.algorithm, s.trust, victims, self._bins, release=s.released)

    def demand(self, canaries: Sequence[Canary], claims: Mapping[int, AuditedClaim], failure: float) -> Demand:
        seen, victim = self.settings.bins_seen, canaries[-1].victim  # canaries of the worst victim come last
        worst = next(canary for canary in canaries if canary.victim == victim)
        _, ratio = whitened(worst, self.settings.circumstances, bins_seen=seen)
        trials = ratio.trials_needed(1.0 if seen else HALF, claims[victim].deltas, failure)
        return Demand(trials, f"that {'public bins break' if seen else 'half the noise breaks'} the claim")

    @functools.cached_property
    def sampler(self) -> Sampler:
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
        return self.sampler.draw_trials(self.settings.circumstances.trials, key)

    def tested_draws(self, failure: float) -> TestedDraws:
        return self.sampler.tested(seed=self.settings.circumstances.seed, failure=failure)

    def notes(self, victims: Sequence[int]) -> tuple[str, ...]:
        if isinstance(self.system, Training) or hasattr(self.system, "joined"):
            return ()
        return ("the draws are those of the sampler of the library, as the system has no method joined",)

    def test(self, canary: Canary, claim: AuditedClaim, pilot: SeenPair, failure: float) -> CanaryTest:
        seen, circumstances = self.settings.bins_seen, self.settings.circumstances
        P, ratio = whitened(canary, circumstances, bins_seen=seen)

        def statistic(runs: SeenRuns) -> FloatArray:
            return ratio.ratios(runs.rows @ P.T / circumstances.noise_std, runs.drawn)

        without, with_canary = (statistic(runs) for runs in pilot)
        threshold = bounds.best_threshold(
            without, with_canary, claim.strength, count=NUM_THRESHOLDS, tail=TAIL, failure=failure
        )
        return CanaryTest("own bin" if seen else "mixture over bins", statistic, threshold, normal=False)
