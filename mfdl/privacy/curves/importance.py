"""Hockey sticks of balls-in-bins by importance sampling: confidence bounds from above, at any epsilon.

The pair of M (docs/balls_in_bins_theorem.md), noise of std 1: Q draws z from N(0, I), L_r = exp(<m_r, z> - |m_r|^2 /
2), S their average over bins, S' that of exp(-<m_r, z> - |m_r|^2 / 2). A direction is the mean under Q of (a -
e^epsilon b)_+: "kept" a = S, b = 1; "lost" a = 1, b = S; "replaced" a = S, b = S', which is its own converse.

z is drawn from a mixture of Gaussians with density R over that of Q, and X = (a - e^epsilon b)_+ / R has the mean that
is asked for. A part (t, c) of the mixture shifts z by t ((1 - c) m_r + c m), m the mean of the m_r, r uniform. Averages
are bounded by Maurer and Pontil (2009, Theorem 4), for which X must have a range: with d = max |m_r|^2,

    kept      (t, 0), t >= 1: R >= S^t e^(-(t^2 - t) d / 2), by Jensen, and X is largest at S = e^epsilon t / (t - 1)
    lost      (-c, 1): S < e^-epsilon has <m, z> < (mean |m_r|^2) / 2 - epsilon, by Jensen, which bounds 1 / R
    replaced  (t, 0), t >= 1: the same as kept, with S' >= e^-d / S, as L_r L'_r = e^-|m_r|^2, again by Jensen

X falls in epsilon, and so does the bound, as its range does and it takes the mean of squares for the variance. So the
least epsilon at which it is <= delta is below the true one only if the bound fails at the true one: one event.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

from ...check import FloatArray
from ...errors import InvalidInput

DIRECTIONS = ("kept", "lost", "replaced")
PILOT = 2**14
"""Samples that choose a mixture."""
CHUNK = 2**16
ROUNDING = 1e-9
"""Relative: far more than what floating point does to a sample."""
COMMON = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Parts c of the shift that all bins share, tried for a mixture."""
RAISED = 1e-12
"""Of the largest entry of M, added to all: more than what its root loses."""
FAINTEST, STRONGEST = 1e-30, 1e3
"""Largest entry of M for which float64 holds likelihood ratios; `MonteCarloCurve` asks for less."""
LARGEST_EPSILON = 700.0
"""e^epsilon fits into float64."""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Weights that sum to one, and (t, c) of each part."""

    weights: tuple[float, ...]
    shifts: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """The pair of M over the variance of the noise.

    Attributes: gram: the Gram of `means`, at least M in every entry; means: m_r, shape (bins, bins).
    """

    gram: FloatArray
    means: FloatArray

    @staticmethod
    def from_gram(M: FloatArray) -> Pair:
        """The pair of M, its diagonal raised until it is positive semidefinite.

        Args: M: entries >= 0, shape (bins, bins). Raises: InvalidInput: its largest entry is out of range.
        """
        if not FAINTEST <= float(M.max()) <= STRONGEST:
            raise InvalidInput(
                f"M over the variance of the noise must have a largest entry from {FAINTEST:g} to {STRONGEST:g}, got "
                f"{float(M.max()):g}; take what is certified (BallsInBinsGaussian)."
            )
        raised = M * (1 + RAISED) + RAISED * float(M.max())
        least = float(np.linalg.eigvalsh(raised)[0])
        values, vectors = np.linalg.eigh(raised + max(0.0, -least) * np.eye(len(M)))
        means = vectors * np.sqrt(np.clip(values, 0.0, None))
        return Pair(means @ means.T, means)

    @property
    def squares(self) -> FloatArray:
        return np.asarray(self.gram.diagonal())

    def density(self, x: FloatArray, shift: tuple[float, float]) -> FloatArray:
        """Density of one part of a mixture over Q, at samples with x_r = <m_r, z>, shape (samples,)."""
        t, c = shift
        along = t * (c * x.mean(axis=1, keepdims=True) + ((1 - c) * x if c < 1 else 0.0))
        common = self.gram.mean(axis=1)
        norms = (1 - c) ** 2 * self.squares + 2 * c * (1 - c) * common + c * c * common.mean()
        with np.errstate(over="ignore"):  # inf: X is 0 there, by less than 1e-300
            return np.asarray(np.exp(along - t * t * norms / 2).mean(axis=1))

    def draws(self, direction: str, mixture: Mixture, count: int, rng: np.random.Generator) -> Draws:
        size = len(self.gram)
        parts = np.array(mixture.shifts)
        chunks: list[tuple[FloatArray, ...]] = []
        for start in range(0, count, CHUNK):
            n = min(CHUNK, count - start)
            t, c = parts[rng.choice(len(parts), size=n, p=mixture.weights)].T
            bins = rng.integers(size, size=n)
            x = rng.standard_normal((n, size)) @ self.means.T
            x += (t * (1 - c))[:, None] * self.gram[bins] + np.outer(t * c, self.gram.mean(axis=0))
            chunks.append((*self._sides(direction, x), self.mixed(x, mixture)))
        a, b, density = (np.concatenate(part) for part in zip(*chunks, strict=True))
        return Draws(a, b, density)

    def mixed(self, x: FloatArray, mixture: Mixture) -> FloatArray:
        """R at samples."""
        parts = (w * self.density(x, shift) for w, shift in zip(mixture.weights, mixture.shifts, strict=True) if w > 0)
        return np.asarray(sum(parts))

    def _sides(self, direction: str, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        with np.errstate(over="ignore"):  # inf stays inf in the bound
            S = np.exp(x - self.squares / 2).mean(axis=1)
            opposite = np.exp(-x - self.squares / 2).mean(axis=1) if direction == "replaced" else np.ones_like(S)
        return (opposite, S) if direction == "lost" else (S, opposite)

    # ---- range -------------------------------------------------------------------------------------------

    def bounded(self, direction: str, epsilon: float) -> tuple[float, float]:
        """The part (t, c) whose range is least."""
        d, common = float(self.squares.max()), float(self.gram.mean())
        if direction == "lost":
            return -max(0.0, (epsilon - float(self.squares.mean()) / 2) / common), 1.0
        return max(1.0, epsilon / d + 0.5 if direction == "kept" else epsilon / (2 * d)), 0.0

    def log_range(self, direction: str, shift: tuple[float, float], epsilon: float) -> float:
        """log of the largest X where the mixture is this part alone; inf of a part that bounds nothing."""
        (t, c), d = shift, float(self.squares.max())
        if direction == "lost":
            if c != 1 or t > 0:
                return math.inf
            return -t * (float(self.squares.mean()) / 2 - epsilon) + t * t * float(self.gram.mean()) / 2
        if c != 0 or t < 1:
            return math.inf
        if t == 1:
            return 0.0
        spread = (t * t - t) * d / 2
        if direction == "kept":
            return spread - epsilon * (t - 1) + (t - 1) * math.log(t - 1) - t * math.log(t)
        return spread + (1 - t) / 2 * (epsilon - d + math.log((t + 1) / (t - 1))) + math.log(2 / (t + 1))

    def largest_value(self, direction: str, mixture: Mixture, epsilon: float) -> float:
        """An upper bound on X."""
        each = (
            self.log_range(direction, shift, epsilon) - math.log(w)
            for w, shift in zip(mixture.weights, mixture.shifts, strict=True)
            if w > 0
        )
        return math.exp(min(700.0, min(each)))

    # ---- mixtures ----------------------------------------------------------------------------------------

    def mixture(self, direction: str, epsilon: float, count: int, failure: float, rng: np.random.Generator) -> Mixture:
        """A mixture that makes the bound small at this epsilon, chosen by samples that are used for nothing else.

        Raises: InvalidInput: an epsilon beyond `LARGEST_EPSILON`.
        """
        _require_in_range(epsilon)
        bounded = self.bounded(direction, epsilon)
        tried = [bounded, *self._candidates(direction, epsilon)]
        even = Mixture((1 / len(tried),) * len(tried), tuple(tried))
        size = len(self.gram)
        parts = np.array(tried)
        t, c = parts[rng.integers(len(tried), size=PILOT)].T
        x = rng.standard_normal((PILOT, size)) @ self.means.T
        x += (t * (1 - c))[:, None] * self.gram[rng.integers(size, size=PILOT)]
        x += np.outer(t * c, self.gram.mean(axis=0))
        a, b = self._sides(direction, x)
        with np.errstate(invalid="ignore", over="ignore"):
            gain = np.clip(a - math.exp(epsilon) * b, 0.0, None)
        positive = gain > 0
        if not positive.any():
            return Mixture((1.0,), (bounded,))
        densities = np.stack([self.density(x[positive], shift) for shift in tried])
        weights = np.array(even.weights)
        with np.errstate(all="ignore"):
            squares = gain[positive] ** 2 / densities.mean(axis=0)
            for _ in range(50):  # where the second moment is least, every part that is used has the same slope
                slopes = (squares * densities / (weights @ densities) ** 2).sum(axis=1)
                weights = weights * np.sqrt(slopes)
                weights /= weights.sum()
        if not np.isfinite(weights).all():  # beyond float64, where any mixture is as valid
            return Mixture((1.0,), (bounded,))
        weights = np.where(weights > 0.02, weights, 0.0)
        best: tuple[float, Mixture] | None = None
        for share in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8):
            mixed = (1 - share) * weights / weights.sum()
            mixed[0] += share
            used = mixed > 0
            weighted = Mixture(
                tuple(float(w) for w in mixed[used] / mixed[used].sum()),
                tuple(shift for shift, k in zip(tried, used, strict=True) if k),
            )
            with np.errstate(all="ignore"):
                second = float((squares / (mixed @ densities)).sum()) / PILOT
            bound = _bernstein(0.0, second, self.largest_value(direction, weighted, epsilon), count, failure)
            if best is None or bound < best[0]:
                best = bound, weighted
        assert best is not None
        return best[1]

    def _candidates(self, direction: str, epsilon: float) -> list[tuple[float, float]]:
        """Shifts to where what is asked about begins, and halfway there."""
        if direction == "lost":
            rows = self.gram.mean(axis=0)
            far = _least(lambda t: float(np.logaddexp.reduce(-t * rows)) - math.log(len(rows)) + epsilon)
            return [(-far * part, 1.0) for part in (0.5, 1.0, 1.5) if far > 0]
        worst = int(self.squares.argmax())  # bound
        shifts = []
        for c in COMMON:
            row = (1 - c) * self.gram[worst] + c * self.gram.mean(axis=0)
            half = self.squares / 2

            def short(t: float, row: FloatArray = row, half: FloatArray = half) -> float:
                if direction == "kept":
                    return epsilon - float(np.logaddexp.reduce(t * row - half)) + math.log(len(row))
                return epsilon - float(np.logaddexp.reduce(t * row - half) - np.logaddexp.reduce(-t * row - half))

            far = _least(short)
            shifts += [(far * part, c) for part in (0.5, 0.75, 1.0)]
        return shifts


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """Samples of (a, b) and of the density R that they were drawn with over Q."""

    a: FloatArray
    b: FloatArray
    density: FloatArray

    def moments(self, epsilon: float) -> tuple[float, float]:
        """Mean of X and of its square; inf where float64 cannot tell, never nan.

        Raises: InvalidInput: an epsilon beyond `LARGEST_EPSILON`.
        """
        _require_in_range(epsilon)
        with np.errstate(all="ignore"):
            gain = np.clip(self.a - math.exp(epsilon) * self.b, 0.0, None)
            X = np.where(gain > 0, gain / self.density, 0.0)
            X = np.where(np.isnan(gain) | np.isnan(X), np.inf, X)
            return float(X.mean()), float((X * X).mean())

    def upper(self, epsilon: float, range_: float, failure: float, count: int | None = None) -> float:
        """Above the mean but with probability `failure`; count: as if there were that many samples."""
        mean, second = self.moments(epsilon)
        return _bernstein(mean, second, range_, count or self.a.size, failure)


def _require_in_range(epsilon: float) -> None:
    if not 0 <= epsilon <= LARGEST_EPSILON:
        raise InvalidInput(f"epsilon must be from 0 to {LARGEST_EPSILON:g} for samples, got {epsilon!r}.")


def _bernstein(mean: float, second: float, range_: float, count: int, failure: float) -> float:
    """Maurer and Pontil (2009), Theorem 4, the second moment in place of the variance."""
    unit = math.log(2 / failure) / max(count - 1, 1)
    return (mean + math.sqrt(2 * second * unit) + 7 / 3 * range_ * unit) * (1 + ROUNDING)


def _least(short: Callable[[float], float]) -> float:
    """The zero of a falling function, at least 0; about 1e6 if it has none."""
    if short(0.0) <= 0:
        return 0.0
    high = 1.0
    while short(high) > 0:
        if high > 1e6:
            return high
        high *= 2
    return float(scipy.optimize.brentq(short, 0.0, high))
