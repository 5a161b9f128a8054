"""The likelihood ratio of a record whose bin is secret, what its error rates show, and how many runs they take.

In: how far each bin moves what is seen, per unit of whitened noise. Out: the statistic of each run; from error rates
lower bounds on delta at EPSILONS; and the runs after which a bug of known size is refuted.
"""

from __future__ import annotations

import bisect
import dataclasses
import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ..check import FloatArray

EPSILONS = np.array([0.0, *np.geomspace(0.05, 8.0, 23)])
THRESHOLDS = 200
SIMULATED, MAX_ENTRIES = 2**17, 2**22  # runs on each input; of them times bins
DEVIATIONS = 2.0  # by which the counts of both errors may be above what is expected
FEWEST, MOST = 100, 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class BinRatio:
    """log of S = (1/b) sum_r L_r, of S / S' where the record is replaced, or of the own bin's ratio if that is told.

    Attributes: shifts: of each bin, shape (bins, rows), per unit noise; replaced: the other input has the opposite
        shifts, else none; told: the attacker is told the bins.
    """

    shifts: FloatArray
    replaced: bool
    told: bool

    def of(self, seen: FloatArray, drawn: NDArray[np.int64]) -> FloatArray:
        """Of runs, shape (runs,). Args: seen: whitened rows, shape (runs, rows); drawn: the bin of each run."""
        return self._of(seen @ self.shifts.T, drawn)

    def _of(self, toward: FloatArray, drawn: NDArray[np.int64]) -> FloatArray:
        half = (self.shifts**2).sum(axis=1) / 2
        if self.told:
            chosen = np.arange(drawn.size), drawn
            return np.asarray(2 * toward[chosen] if self.replaced else (toward - half)[chosen])
        other = special.logsumexp(-toward - half, axis=1) if self.replaced else math.log(len(half))
        return np.asarray(special.logsumexp(toward - half, axis=1) - other)

    def error_rates(self, noise: float) -> tuple[FloatArray, FloatArray]:
        """(alpha, beta) at some thresholds with `noise` times the noise that is claimed: exact if bins are told.

        Else at least the true ones but for three standard deviations of a simulation, whose seed is fixed.
        """
        if self.told:
            s = np.maximum((2 if self.replaced else 1) * np.linalg.norm(self.shifts, axis=1), 1e-150)
            t = np.linspace(-4 * s.max() - s.max() ** 2, 4 * s.max() + s.max() ** 2, 8 * THRESHOLDS)[:, None]
            alpha, beta = special.ndtr(-(t + s**2 / 2) / (noise * s)), special.ndtr((t - s**2 / 2) / (noise * s))
            return alpha.mean(axis=1), beta.mean(axis=1)
        without, present = (np.sort(samples) for samples in self.simulated(noise))
        t, count = thresholds(without, present), without.size
        errors = count - np.searchsorted(without, t, side="right"), np.searchsorted(present, t, side="right")
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

    def runs_needed(self, noise: float, claimed: FloatArray, failure: float) -> float:
        """Runs on each input that refute the claim, nearly always, if there is `noise` times the noise claimed.

        Args: claimed: delta at EPSILONS; failure: of the bound.
        Returns: at least FEWEST; inf where MOST are not enough.
        """
        rates = np.minimum(np.stack(self.error_rates(noise)), 1.0)

        def enough(runs: int) -> bool:
            errors = runs * rates + DEVIATIONS * np.sqrt(runs * rates * (1 - rates))
            upper = special.betaincinv(errors + 1, np.maximum(runs - errors, 1e-9), 1 - failure / 2)
            return bool((deltas_shown(*np.where(errors < runs, upper, 1.0)) > claimed).any())

        if not enough(MOST):
            return math.inf
        return float(FEWEST + bisect.bisect_left(range(FEWEST, MOST), True, key=enough))


def thresholds(without: FloatArray, present: FloatArray) -> FloatArray:
    """Those worth a look, for samples of both inputs."""
    return np.unique(np.quantile(np.concatenate([without, present]), np.linspace(0.002, 0.998, THRESHOLDS)))


def deltas_shown(alpha: FloatArray | float, beta: FloatArray | float) -> FloatArray:
    """Least delta at EPSILONS of a test that errs with at most (alpha, beta), shape (*alpha.shape, EPSILONS.size)."""
    a, b, grown = np.asarray(alpha)[..., None], np.asarray(beta)[..., None], np.exp(EPSILONS)
    return np.maximum(0.0, np.maximum(1 - b - grown * a, 1 - a - grown * b))
