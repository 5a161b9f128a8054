"""The privacy loss of balls-in-bins by samples: confidence bounds, closer than the certified ones for unequal bins.

From M whole, epsilon at delta and delta at epsilon that hold except with a stated probability over the samples; the
certified bound stands where it is smaller. One direction
after the other, each with half the probability. What is calibrated is chosen by samples of its own and stated by fresh
ones: of try k = 0, 1, ... with 2^-(k + 1) of the failure probability, so that all tries together have no more.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from ... import check
from ...check import FloatArray
from ...display import rounded_up
from ...errors import InvalidInput
from .balls_in_bins import BallsInBinsGaussian
from .base import Pass, PrivacyCurve, json_value, least_multiplier
from .importance import Draws, Mixture, Pair

SEARCH = 2**19
"""Samples at most that calibration looks at for each noise tried."""
MARGIN = 0.03
"""Of delta, that calibration leaves for samples to differ."""
STEP = 1 / 0.93
"""Factor between the noise multipliers that bracket the least one."""
PRECISION = 1e-3
"""Relative: how far calibrated noise may lie above the least that its samples allow."""
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
    """Bounds by samples for balls-in-bins, where they are below the certified ones.

    Attributes:
        certified: the curve without samples, which knows noise, bins and adjacency.
        gram: M over its largest diagonal entry, rows as tuples.
        sampling: how many samples, how sure; trial: how many tries calibration made before.
    """

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
        """An epsilon at this delta, below the true one with probability at most the failure stated."""
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
        if delta < LEAST_DELTA or epsilon > LARGEST_EPSILON:
            return certified
        return _least(self.at(certified), epsilon, delta)

    def retried(self) -> MonteCarloCurve:
        """Fresh samples, and half the failure probability."""
        return dataclasses.replace(self, trial=self.trial + 1)

    def certified_runs(self) -> tuple[PrivacyCurve, ...]:
        return (self.certified,)

    def composed_with(self, other: PrivacyCurve) -> PrivacyCurve:
        return self.certified.composed_with(other)

    # ---- words and files -----------------------------------------------------------------------------------

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

    # ---- one direction -----------------------------------------------------------------------------------

    @property
    def _ways(self) -> tuple[str, ...]:
        return ("replaced",) if self.adjacency == "replace-one" else ("kept", "lost")

    @property
    def _failure(self) -> float:
        """Failure probability of one direction, in this trial."""
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
        """log of the bound over the delta wanted, by samples that nothing is stated by."""
        worst = 0.0
        for way in self._ways:
            pair, rng = _pair(self), _generator(self, "search")
            count = self.sampling.samples
            mixture = pair.mixture(way, epsilon, count, self._failure, rng)
            draws = pair.draws(way, mixture, min(count, SEARCH), rng)
            worst = max(worst, draws.upper(epsilon, pair.largest_value(way, mixture, epsilon), self._failure, count))
        return math.log(max(worst, 1e-300) / delta)


def normalized(M: FloatArray) -> tuple[tuple[float, ...], ...]:
    """M over its largest entry, no entry too small: what `MonteCarloCurve` takes."""
    scaled = np.minimum(1.0, np.maximum(M, M.T) / float(M.max()))
    return tuple(tuple(float(x) for x in row) for row in scaled)


STREAMS = {"guess": 1, "search": 2, "mixture": 3, "state": 4}


def _generator(curve: MonteCarloCurve, purpose: str) -> np.random.Generator:
    """Independent for each purpose and trial."""
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
