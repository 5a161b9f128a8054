"""What secret bins lose, by samples: confidence bounds beside the certified ones, closer where correlations differ.

In: M whole, not its largest entries alone, and a number of samples. Out: epsilon at delta and delta at epsilon that
hold except with a stated probability over the samples; the certified bound stands where it is smaller. One direction
after the other, each with half the probability. What is calibrated is chosen by samples of its own and stated by fresh
ones: of try k = 0, 1, ... with 2^-(k + 1) of the failure probability, so that all tries together have no more.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..shown import rounded_up
from .binned import BinnedGaussian
from .importance import Draws, Mixture, Pair

SEARCH = 2**19
"""Samples at most that calibration looks at for each noise tried."""
MARGIN = 0.03
"""Of delta, that calibration leaves for samples to differ."""
PRECISION = 1e-3
"""Relative: how far calibrated noise may lie above the least that its samples allow."""
FEWEST, MOST = 2**12, 2**28
LEAST_DELTA = 1e-12
LARGEST_EPSILON = 100.0


@dataclasses.dataclass(frozen=True)
class MonteCarlo:
    """How secret bins are accounted by samples.

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
class MonteCarloBins(BinnedGaussian):
    """`BinnedGaussian` with M, and bounds by samples.

    Attributes:
        gram: M over its largest diagonal entry, rows as tuples.
        sampling: how many samples, how sure; trial: how many tries calibration made before.
    """

    gram: tuple[tuple[float, ...], ...]
    sampling: MonteCarlo
    trial: int = 0

    method = "monte-carlo"
    retry_step = 2 * PRECISION

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.sampling, MonteCarlo):
            raise InvalidInput(f"sampling must be a MonteCarlo, got {check.said(self.sampling)}.")
        check.integer_at_least(0, trial=self.trial)
        gram = check.finite_array(2, gram=self.gram)
        if gram.shape != (self.bins, self.bins) or (gram < 0).any() or (gram != gram.T).any() or gram.max() > 1:
            raise InvalidInput(f"gram must be symmetric of {self.bins} rows, entries in [0, 1], got {gram.shape}.")
        object.__setattr__(self, "gram", tuple(tuple(float(x) for x in row) for row in gram))

    def epsilon(self, delta: float) -> float:
        """An epsilon at this delta, below the true one with probability at most the failure stated."""
        certified = super().epsilon(delta)
        if not self.fits or delta < LEAST_DELTA or certified > LARGEST_EPSILON:
            return certified
        return min(certified, max((self._direction(way, delta) for way in self._ways), default=0.0))

    def delta(self, epsilon: float) -> float:
        """A delta at this epsilon, below the true one with probability at most the failure stated."""
        certified = super().delta(epsilon)
        if not self.fits or epsilon > LARGEST_EPSILON or certified < LEAST_DELTA:
            return certified
        return min(certified, max(self._upper(way, epsilon, epsilon) for way in self._ways))

    def least_multiplier(self, epsilon: float, delta: float, by: str = "tightest") -> float:
        """The least noise multiplier, to about `PRECISION`, at which samples of its own certify (epsilon, delta).

        Raises: as `BinnedGaussian`. Cost: some ten evaluations of all samples.
        """
        certified = super().least_multiplier(epsilon, delta, by)
        if delta < LEAST_DELTA or epsilon > LARGEST_EPSILON:
            return certified
        return _least(self._at(certified), epsilon, delta)

    def remark(self, delta: float) -> str:
        """What stands beside epsilon in words: how it was found, and what is certified."""
        samples = self.sampling
        return (
            f"by Monte Carlo: except with probability {samples.failure:g} over {samples.samples} samples of seed "
            f"{samples.seed}, try {self.trial + 1}; certified is {rounded_up(BinnedGaussian.epsilon(self, delta), 4)}, "
            f"{super().remark(delta)}"
        )

    def retried(self) -> MonteCarloBins:
        """The same with fresh samples, and half the failure probability."""
        return dataclasses.replace(self, trial=self.trial + 1)

    # ---- one direction -----------------------------------------------------------------------------------

    def _at(self, multiplier: float) -> MonteCarloBins:
        return dataclasses.replace(self, noise_multiplier=multiplier)

    @property
    def _ways(self) -> tuple[str, ...]:
        return ("replaced",) if self._doubled else ("kept", "lost")

    @property
    def _failure(self) -> float:
        """Of one direction, in this trial."""
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
        """The bound at an epsilon of samples whose mixture was made for another one."""
        pair, mixture, draws = _draws(self, way, tuned_at)
        return min(1.0, draws.upper(epsilon, pair.range_of(way, mixture, epsilon), self._failure))

    def _guess(self, way: str, delta: float) -> float:
        """epsilon at delta by a pilot: where a mixture is made for."""
        guess = BinnedGaussian.epsilon(self, delta)
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
            worst = max(worst, draws.upper(epsilon, pair.range_of(way, mixture, epsilon), self._failure, count))
        return math.log(max(worst, 1e-300) / delta)


def normalized(M: FloatArray) -> tuple[tuple[float, ...], ...]:
    """M over its largest entry, no entry too small: what `MonteCarloBins` takes."""
    scaled = np.minimum(1.0, np.maximum(M, M.T) / float(M.max()))
    return tuple(tuple(float(x) for x in row) for row in scaled)


STREAMS = {"guess": 1, "search": 2, "mixture": 3, "state": 4}


def _generator(bins: MonteCarloBins, purpose: str) -> np.random.Generator:
    """Independent for each purpose and trial."""
    words = bins.sampling.seed, bins.trial, STREAMS[purpose]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def _pair(bins: MonteCarloBins) -> Pair:
    return Pair.of(np.array(bins.gram) / bins.noise_multiplier**2)


@functools.lru_cache(maxsize=4)
def _draws(bins: MonteCarloBins, way: str, tuned_at: float) -> tuple[Pair, Mixture, Draws]:
    pair, count = _pair(bins), bins.sampling.samples
    mixture = pair.mixture(way, tuned_at, count, bins._failure, _generator(bins, "mixture"))
    return pair, mixture, pair.draws(way, mixture, count, _generator(bins, "state"))


@functools.lru_cache(maxsize=64)
def _least(most: MonteCarloBins, epsilon: float, delta: float) -> float:
    """The least multiplier by a search in its logarithm; that of `most` where samples allow no less."""
    aim = math.log1p(-MARGIN)
    good, under = most.noise_multiplier, most.searched(epsilon, delta) - aim
    if under > 0:
        return good
    bad, over = good, under
    floor = 1 / 8
    while over <= 0 and bad > floor * most.noise_multiplier:
        good, under, bad = bad, over, bad * 0.93
        tried = most._at(bad)
        over = tried.searched(epsilon, delta) - aim if tried.fits else math.inf
    while good > bad * (1 + PRECISION):
        share = over / (over - under) if math.isfinite(over) else 0.5
        middle = bad * (good / bad) ** min(max(share, 0.1), 0.9)
        value = most._at(middle).searched(epsilon, delta) - aim
        bad, over, good, under = (middle, value, good, under) if value > 0 else (bad, over, middle, value)
    return good
