"""Lower confidence bounds on privacy loss from samples of one number under two neighbouring inputs.

In: samples of a test statistic, fixed before they were drawn, without and with the canary. Out: a loss that the
mechanism really has, except with probability `failure`. Any statistic gives a valid bound; a bad one a small bound.

- `ErrorRates`: counts at one threshold, nothing assumed about the distribution. Clopper-Pearson bounds both errors of
  the test exactly. If it errs with (alpha, beta), no mu below Phi^-1(1 - alpha) - Phi^-1(beta) is possible, and every
  (epsilon, delta) that holds has 1 - beta <= e^epsilon alpha + delta, and the same with both rates exchanged: all of
  these bounds rest on one event.
- `gaussian_mu`: sharper, for statistics that are normal, which linear functions of Gaussian noise are. For normal
  samples with means a < b and standard deviations s, s' the threshold between them shows mu >= (b - a) / max(s, s').
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import special, stats

from mfdl_solvers.ties import first_largest

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..floats import EPS
from ..privacy import gaussian

MAX_TRIALS = 50 * 2**34
ROUNDING = 64 * EPS  # of a sample, relative to its mean
EPSILON_SLACK = 1e-9  # `gaussian.epsilon_from_mu` is above the truth by no more: a lower bound gives it back
EPSILONS = np.array([0.0, *np.geomspace(0.05, 8.0, 23)])
"""At which delta of a privacy curve is compared."""


def clopper_pearson_upper_bound(errors: int, trials: int, failure: float) -> float:
    """Largest error rate that `errors` of `trials` leave possible, except with probability `failure`.

    >>> round(clopper_pearson_upper_bound(0, 100, 0.05), 6)  # 1 - 0.05^(1/100)
    0.029513
    """
    if errors >= trials:
        return 1.0
    return float(special.betaincinv(errors + 1, trials - errors, 1 - failure))  # beta quantile


@dataclasses.dataclass(frozen=True)
class ErrorRates:
    """Upper bounds on error rates of a threshold test: alpha where no canary is there, beta where one is missed."""

    alpha: float
    beta: float

    @staticmethod
    def from_samples(without: FloatArray, with_canary: FloatArray, threshold: float, *, failure: float) -> ErrorRates:
        """Of independent samples, at a threshold chosen without them; both hold but with probability `failure`."""
        alpha = clopper_pearson_upper_bound(int((without > threshold).sum()), without.size, failure / 2)
        beta = clopper_pearson_upper_bound(int((with_canary <= threshold).sum()), with_canary.size, failure / 2)
        return ErrorRates(alpha, beta)

    @property
    def mu(self) -> float:
        """The least mu that allows such a test, >= 0."""
        if self.alpha >= 1 or self.beta >= 1:
            return 0.0
        return max(0.0, float(-special.ndtri(self.alpha) - special.ndtri(self.beta)))

    def epsilon(self, delta: float) -> float:
        """The least epsilon at delta: log((1 - beta - delta) / alpha), or with both exchanged, >= 0."""
        pairs = (self.alpha, self.beta), (self.beta, self.alpha)
        return max([0.0, *(math.log((1 - b - delta) / a) for a, b in pairs if 1 - b - delta > 0)])

    @property
    def deltas(self) -> FloatArray:
        return least_deltas(self.alpha, self.beta)


def least_deltas(alpha: FloatArray | float, beta: FloatArray | float) -> FloatArray:
    """Least delta at EPSILONS of a test that errs with at most (alpha, beta), shape (*alpha.shape, EPSILONS.size)."""
    a, b, grown = np.asarray(alpha)[..., None], np.asarray(beta)[..., None], np.exp(EPSILONS)
    return np.maximum(0.0, np.maximum(1 - b - grown * a, 1 - a - grown * b))


def candidate_thresholds(without: FloatArray, with_canary: FloatArray, *, count: int, tail: float) -> FloatArray:
    """Quantiles of both samples together, of at most `count` different values, without a share `tail` at each end."""
    return np.unique(np.quantile(np.concatenate([without, with_canary]), np.linspace(tail, 1 - tail, count)))


def best_threshold(
    without: FloatArray, with_canary: FloatArray, strength: Callable[[ErrorRates], float], *,
    count: int, tail: float, failure: float,
) -> float:  # fmt: skip
    """The candidate at which these samples, to be discarded afterwards, show most; between the means if none does."""
    tried = candidate_thresholds(without, with_canary, count=count, tail=tail)
    rates = (ErrorRates.from_samples(without, with_canary, float(threshold), failure=failure) for threshold in tried)
    strengths = [strength(each) for each in rates]
    if max(strengths) == 0:
        return float((without.mean() + with_canary.mean()) / 2)
    return float(tried[first_largest(strengths)])


def gaussian_mu(without: FloatArray, with_canary: FloatArray, *, failure: float) -> float:
    """mu shown by means and variances of normal samples, >= 0 and at most 2^47.

    Three events of probability failure / 3 each are excluded: either variance is above its chi-square bound, or the
    difference of the means is off by more than its normal bound. Then, with s the larger bound and N trials each,
    mu >= (b - a) / s - z sqrt(2 / N). A deviation below the rounding of float64 counts as that rounding.

    Guarantees: for independent normal samples, above the true mu with probability at most `failure`; 0 for a sample
        of fewer than two.
    """
    trials, share = min(without.size, with_canary.size), failure / 3
    if trials < 2:
        return 0.0
    difference = float(with_canary.mean() - without.mean())
    spread = max(std_upper_bound(without, share), std_upper_bound(with_canary, share))
    if difference <= 0:
        return 0.0
    spread = max(spread, ROUNDING * max(abs(float(without.mean())), abs(float(with_canary.mean()))))
    return max(0.0, difference / spread - float(-special.ndtri(share)) * math.sqrt(2 / trials))


def std_upper_bound(samples: FloatArray, failure: float) -> float:
    freedom = samples.size - 1
    return math.sqrt(freedom * float(samples.var(ddof=1)) / float(stats.chi2.ppf(failure, freedom)))


def epsilon_lower_bound(mu: float, delta: float) -> float:
    """epsilon at delta that mu-Gaussian DP really loses, rounded down."""
    return max(0.0, gaussian.epsilon_from_mu(mu, delta) - EPSILON_SLACK)


def trials_needed(mu: float, *, failure: float) -> int:
    """Trials per input after which a loss of 2 mu is, on average, shown to be above mu.

    The least N with 2 mu / c_N - z sqrt(2 / N) > mu, c_N the factor of the chi-square bound; at least 50.

    >>> trials_needed(1.0, failure=0.01), trials_needed(0.1, failure=0.01)
    (58, 1781)
    """
    mu = check.positive(mu=mu)
    if not 0 < failure < 1:
        raise InvalidInput(f"failure must be a probability strictly between 0 and 1, got {failure!r}.")
    share = failure / 3
    z = float(-special.ndtri(share))

    def enough(trials: int) -> bool:
        factor = math.sqrt((trials - 1) / float(stats.chi2.ppf(share, trials - 1)))
        return 2 * mu / factor - z * math.sqrt(2 / trials) > mu

    if not enough(MAX_TRIALS):
        raise InvalidInput(f"mu={mu:g} is too small for any audit; claim a larger loss, i.e. use less noise.")
    return 50 + bisect.bisect_left(range(50, MAX_TRIALS), True, key=enough)
