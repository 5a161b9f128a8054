"""The privacy loss of balls-in-bins by samples: confidence bounds, closer than the certified ones for unequal bins.

From M whole, epsilon at delta and delta at epsilon that hold except with a stated probability over the samples; the
certified bound stands where it is smaller. One direction after the other, each with half the probability. What is
calibrated is chosen by samples of its own and stated by fresh ones: of try k = 0, 1, ... with 2^-(k + 1) of the failure
probability, so that all tries together have no more.

Hockey sticks by importance sampling. The pair of M (docs/balls_in_bins_theorem.md), noise of std 1: Q draws z from N(0,
I), L_r = exp(<m_r, z> - |m_r|^2 / 2), S their average over bins, S' that of exp(-<m_r, z> - |m_r|^2 / 2). A direction
is the mean under Q of (a - e^epsilon b)_+: "kept" a = S, b = 1; "lost" a = 1, b = S; "replaced" a = S, b = S', which is
its own converse.

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
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from ... import check
from ...check import FloatArray
from ...display import rounded_up
from ...errors import InvalidInput
from .balls_in_bins import BallsInBinsGaussian
from .base import Pass, PrivacyCurve, json_value, least_multiplier

SEARCH = 2**19  # samples at most that calibration looks at for each noise tried
MARGIN = 0.03  # of delta, that calibration leaves for samples to differ
STEP = 1 / 0.93  # factor between the noise multipliers that bracket the least one
PRECISION = 1e-3  # relative: how far calibrated noise may lie above the least that its samples allow
FEWEST, MOST = 2**12, 2**28
LEAST_DELTA = 1e-12
LARGEST_EPSILON = 100.0


@dataclasses.dataclass(frozen=True)
class MonteCarlo:
    """How balls-in-bins are accounted by samples.

    Attributes:
        samples: in each direction; a hundredth of a second for each 10^4 and 16 bins.
        failure: probability, over the samples, that a number asked for is below the true one.
        seed: of the samples: chosen before any number is seen, or the probability means nothing.
    """

    samples: int = 2**21
    failure: float = 1e-6
    seed: int = 0

    def __post_init__(self) -> None:
        samples = check.integer_at_least(FEWEST, samples=self.samples)
        if samples > MOST:
            raise InvalidInput(f"samples must be at most {MOST}, got {samples}.")
        check.open_unit(failure=self.failure)
        check.integer_at_least(0, seed=self.seed)


@dataclasses.dataclass(frozen=True)
class MonteCarloCurve(PrivacyCurve):
    """Bounds by samples for balls-in-bins, where below the certified ones; gram: M over its largest diagonal entry."""

    certified: BallsInBinsGaussian
    gram: tuple[tuple[float, ...], ...]
    sampling: MonteCarlo
    trial: int = 0

    mu = None
    bound = method = "monte-carlo"
    noise_on = BallsInBinsGaussian.noise_on
    retry_step = 2 * PRECISION

    def __post_init__(self) -> None:
        check.instance(BallsInBinsGaussian, certified=self.certified)
        if not isinstance(self.sampling, MonteCarlo):
            raise InvalidInput(f"sampling must be a MonteCarlo, got {check.brief(self.sampling)}.")
        check.integer_at_least(0, trial=self.trial)
        gram, bins = check.finite_array(2, gram=self.gram), self.certified.bins
        if gram.shape != (bins, bins) or (gram < 0).any() or (gram != gram.T).any() or gram.max() > 1:
            raise InvalidInput(f"gram must be symmetric of {bins} rows, entries in [0, 1], got {gram.shape}.")
        object.__setattr__(self, "gram", tuple(tuple(float(x) for x in row) for row in gram))

    @property
    def adjacency(self) -> str:
        return self.certified.adjacency

    @property
    def noise_multiplier(self) -> float:
        return self.certified.noise_multiplier

    @property
    def public_mu(self) -> float:
        return self.certified.public_mu

    def epsilon(self, delta: float) -> float:
        certified = self.certified.epsilon(delta)
        if not self.certified.fits or delta < LEAST_DELTA or certified > LARGEST_EPSILON:
            return certified
        return min(certified, max((self._direction(way, delta) for way in self._ways), default=0.0))

    def delta(self, epsilon: float) -> float:
        certified = self.certified.delta(epsilon)
        if not self.certified.fits or epsilon > LARGEST_EPSILON or certified < LEAST_DELTA:
            return certified
        return min(certified, max(self._upper(way, epsilon, epsilon) for way in self._ways))

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The certified one: samples bound one delta, not the least of many."""
        return self.certified.true_positive_rate(false_positive_rate)

    def at(self, noise_multiplier: float) -> MonteCarloCurve:
        return dataclasses.replace(self, certified=self.certified.at(noise_multiplier))

    def least_multiplier(self, epsilon: float, delta: float, by: str = "tightest") -> float:
        """To about `PRECISION`, by samples of its own. Cost: some ten evaluations of all samples."""
        certified = self.certified.least_multiplier(epsilon, delta, by)
        beyond = delta < LEAST_DELTA or epsilon > LARGEST_EPSILON
        return certified if beyond else _least(self.at(certified), epsilon, delta)

    def retried(self) -> MonteCarloCurve:
        """Fresh samples, and half the failure probability."""
        return dataclasses.replace(self, trial=self.trial + 1)

    def certified_runs(self) -> tuple[PrivacyCurve, ...]:
        return (self.certified,)

    def composed_with(self, other: PrivacyCurve) -> PrivacyCurve:
        return self.certified.composed_with(other)

    @property
    def bound_in_words(self) -> str:
        drawn = f"Monte Carlo, {self.sampling.samples} samples, seed {self.sampling.seed}"
        return f"{drawn}: fails with probability at most {self.sampling.failure:g}"

    def remark(self, delta: float) -> str:
        samples = self.sampling
        return (
            f"by Monte Carlo: except with probability {samples.failure:g} over {samples.samples} samples of seed "
            f"{samples.seed}, try {self.trial + 1}; certified is {rounded_up(self.certified.epsilon(delta), 4)}, "
            f"{self.certified.remark(delta)}"
        )

    def facts(self, delta: float) -> dict[str, Any]:
        return self.certified.facts(delta)

    def to_dict(self) -> dict[str, Any]:
        sampling = dataclasses.asdict(self.sampling)
        return {**self.certified.to_dict(), "gram": json_value(self.gram), "sampling": sampling, "trial": self.trial}

    @property
    def _ways(self) -> tuple[str, ...]:
        return ("replaced",) if self.adjacency == "replace-one" else ("kept", "lost")

    @property
    def _failure(self) -> float:
        return self.sampling.failure / len(self._ways) / 2 ** (self.trial + 1)

    def _direction(self, way: str, delta: float) -> float:
        """The least epsilon whose upper bound is at most delta."""
        start = self._guess(way, delta)
        if self._upper(way, 0.0, start) <= delta:
            return 0.0
        low, high = 0.0, max(start, 1e-3)
        while self._upper(way, high, start) > delta:
            low, high = high, 2 * high
            if high > 2 * LARGEST_EPSILON:
                return math.inf
        while high - low > 1e-5 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self._upper(way, middle, start) > delta else (low, middle)
        return high

    def _upper(self, way: str, epsilon: float, tuned_at: float) -> float:
        """Bound at an epsilon by samples whose mixture was made for another one."""
        pair, mixture, draws = _draws(self, way, tuned_at)
        return min(1.0, draws.upper(epsilon, pair.largest_value(way, mixture, epsilon), self._failure))

    def _guess(self, way: str, delta: float) -> float:
        """epsilon at delta by a pilot, for which a mixture is made."""
        guess = self.certified.epsilon(delta)
        pair, rng = _pair(self), _generator(self, "guess")
        draws = pair.draws(way, pair.mixture(way, guess, 2**20, 1e-3, rng), 2**15, rng)
        low, high = 0.0, guess
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if draws.moments(middle)[0] > delta else (low, middle)
        return high

    def searched(self, epsilon: float, delta: float) -> float:
        worst = 0.0
        for way in self._ways:
            pair, rng, count = _pair(self), _generator(self, "search"), self.sampling.samples
            mixture = pair.mixture(way, epsilon, count, self._failure, rng)
            draws = pair.draws(way, mixture, min(count, SEARCH), rng)
            worst = max(worst, draws.upper(epsilon, pair.largest_value(way, mixture, epsilon), self._failure, count))
        return math.log(max(worst, 1e-300) / delta)


def normalized(M: FloatArray) -> tuple[tuple[float, ...], ...]:
    scaled = np.minimum(1.0, np.maximum(M, M.T) / float(M.max()))
    return tuple(tuple(float(x) for x in row) for row in scaled)


STREAMS = {"guess": 1, "search": 2, "mixture": 3, "state": 4}


def _generator(curve: MonteCarloCurve, purpose: str) -> np.random.Generator:
    words = curve.sampling.seed, curve.trial, STREAMS[purpose]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def _pair(curve: MonteCarloCurve) -> Pair:
    return Pair.from_gram(np.array(curve.gram) / curve.noise_multiplier**2)


@functools.lru_cache(maxsize=4)
def _draws(curve: MonteCarloCurve, way: str, tuned_at: float) -> tuple[Pair, Mixture, Draws]:
    pair, count = _pair(curve), curve.sampling.samples
    mixture = pair.mixture(way, tuned_at, count, curve._failure, _generator(curve, "mixture"))
    return pair, mixture, pair.draws(way, mixture, count, _generator(curve, "state"))


@functools.lru_cache(maxsize=64)
def _least(curve: MonteCarloCurve, epsilon: float, delta: float) -> float:
    """The least multiplier that samples of its own allow; that of the curve where they allow no less."""
    aim = math.log1p(-MARGIN)

    def excess(multiplier: float, _: int) -> float:
        tried = curve.at(multiplier)
        return tried.searched(epsilon, delta) - aim if tried.certified.fits else math.inf

    return least_multiplier(excess, curve.noise_multiplier, (Pass(1, STEP, PRECISION),))


PILOT = 2**14  # samples that choose a mixture
CHUNK = 2**16
ROUNDING = 1e-9  # relative: far more than what floating point does to a sample
COMMON = (0.0, 0.25, 0.5, 0.75, 1.0)  # parts c of the shift that all bins share, tried for a mixture
RAISED = 1e-12  # of the largest entry of M, added to all: more than what its root loses
FAINTEST, STRONGEST = 1e-30, 1e3
"""Largest entry of M for which float64 holds likelihood ratios; `MonteCarloCurve` asks for less."""
MOST_EPSILON = 700.0  # e^epsilon fits into float64


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Weights that sum to one, and (t, c) of each part."""

    weights: tuple[float, ...]
    shifts: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """The pair of M over the variance of the noise: m_r, (bins, bins), whose Gram is at least M in every entry."""

    gram: FloatArray
    means: FloatArray

    @staticmethod
    def from_gram(M: FloatArray) -> Pair:
        """The pair of M >= 0, its diagonal raised until positive semidefinite. Raises: InvalidInput: M out of range."""
        if not FAINTEST <= float(M.max()) <= STRONGEST:
            raise InvalidInput(
                f"M over the variance of the noise must have a largest entry from {FAINTEST:g} to {STRONGEST:g}, got "
                f"{float(M.max()):g}; take what is certified (BallsInBinsGaussian)."
            )
        raised = M * (1 + RAISED) + RAISED * float(M.max())
        values, vectors = np.linalg.eigh(raised + max(0.0, -float(np.linalg.eigvalsh(raised)[0])) * np.eye(len(M)))
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
        size, parts = len(self.gram), np.array(mixture.shifts)
        chunks: list[tuple[FloatArray, ...]] = []
        for start in range(0, count, CHUNK):
            n = min(CHUNK, count - start)
            t, c = parts[rng.choice(len(parts), size=n, p=mixture.weights)].T
            bins, x = rng.integers(size, size=n), rng.standard_normal((n, size)) @ self.means.T
            x += (t * (1 - c))[:, None] * self.gram[bins] + np.outer(t * c, self.gram.mean(axis=0))
            chunks.append((*self._sides(direction, x), self.mixed(x, mixture)))
        a, b, density = (np.concatenate(part) for part in zip(*chunks, strict=True))
        return Draws(a, b, density)

    def mixed(self, x: FloatArray, mixture: Mixture) -> FloatArray:
        parts = (w * self.density(x, shift) for w, shift in zip(mixture.weights, mixture.shifts, strict=True) if w > 0)
        return np.asarray(sum(parts))

    def _sides(self, direction: str, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        with np.errstate(over="ignore"):  # inf stays inf in the bound
            S = np.exp(x - self.squares / 2).mean(axis=1)
            opposite = np.exp(-x - self.squares / 2).mean(axis=1) if direction == "replaced" else np.ones_like(S)
        return (opposite, S) if direction == "lost" else (S, opposite)

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
        each = (
            self.log_range(direction, shift, epsilon) - math.log(w)
            for w, shift in zip(mixture.weights, mixture.shifts, strict=True)
            if w > 0
        )
        return math.exp(min(700.0, min(each)))

    def mixture(self, direction: str, epsilon: float, count: int, failure: float, rng: np.random.Generator) -> Mixture:
        """A mixture that makes the bound small at this epsilon, chosen by samples that are used for nothing else.

        Raises: InvalidInput: an epsilon beyond `MOST_EPSILON`.
        """
        _require_in_range(epsilon)
        bounded = self.bounded(direction, epsilon)
        tried, size = [bounded, *self._candidates(direction, epsilon)], len(self.gram)
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
        weights = np.full(len(tried), 1 / len(tried))
        with np.errstate(all="ignore"):
            squares = gain[positive] ** 2 / densities.mean(axis=0)
            for _ in range(50):  # where the second moment is least, every part that is used has the same slope
                slopes = (squares * densities / (weights @ densities) ** 2).sum(axis=1)
                weights = weights * np.sqrt(slopes)
                weights /= weights.sum()
        if not np.isfinite(weights).all():  # beyond float64, where any mixture is as valid
            return Mixture((1.0,), (bounded,))
        weights = np.where(weights > 0.02, weights, 0.0)
        mixtures: list[tuple[float, Mixture]] = []
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
            largest = self.largest_value(direction, weighted, epsilon)
            mixtures.append((_bernstein(0.0, second, largest, count, failure), weighted))
        return min(mixtures, key=lambda bounded: bounded[0])[1]  # bound

    def _candidates(self, direction: str, epsilon: float) -> list[tuple[float, float]]:
        if direction == "lost":
            rows = self.gram.mean(axis=0)
            far = _zero(lambda t: float(np.logaddexp.reduce(-t * rows)) - math.log(len(rows)) + epsilon)
            return [(-far * part, 1.0) for part in (0.5, 1.0, 1.5) if far > 0]
        worst = int(self.squares.argmax())  # bound
        shifts, half = [], self.squares / 2
        for c in COMMON:
            row = (1 - c) * self.gram[worst] + c * self.gram.mean(axis=0)

            def short(t: float, row: FloatArray = row) -> float:
                if direction == "kept":
                    return epsilon - float(np.logaddexp.reduce(t * row - half)) + math.log(len(row))
                return epsilon - float(np.logaddexp.reduce(t * row - half) - np.logaddexp.reduce(-t * row - half))

            far = _zero(short)
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

        Raises: InvalidInput: an epsilon beyond `MOST_EPSILON`.
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
    if not 0 <= epsilon <= MOST_EPSILON:
        raise InvalidInput(f"epsilon must be from 0 to {MOST_EPSILON:g} for samples, got {epsilon!r}.")


def _bernstein(mean: float, second: float, range_: float, count: int, failure: float) -> float:
    """Maurer and Pontil (2009), Theorem 4, the second moment in place of the variance."""
    unit = math.log(2 / failure) / max(count - 1, 1)
    return (mean + math.sqrt(2 * second * unit) + 7 / 3 * range_ * unit) * (1 + ROUNDING)


def _zero(short: Callable[[float], float]) -> float:
    """The zero of a falling function, at least 0; about 1e6 if it has none."""
    if short(0.0) <= 0:
        return 0.0
    high = 1.0
    while short(high) > 0:
        if high > 1e6:
            return high
        high *= 2
    return float(scipy.optimize.brentq(short, 0.0, high))
