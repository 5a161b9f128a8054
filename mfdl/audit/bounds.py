"""Lower confidence bounds on mu from samples of one number under two neighbouring inputs.

In: samples of a test statistic, fixed before they were drawn, without and with the canary. Out: a mu that the mechanism
really has, except with probability `failure`. Any statistic gives a valid bound; a bad one gives a small bound.

- `binomial_mu`: counts at one threshold, nothing assumed about the distribution. If the test errs with
  (alpha, beta), no mu below Phi^-1(1 - alpha) - Phi^-1(beta) is possible; Clopper-Pearson bounds both errors exactly.
- `gaussian_mu`: sharper, for statistics that are normal, which linear functions of Gaussian noise are. For normal
  samples with means a < b and standard deviations s, s' the threshold between them shows mu >= (b - a) / max(s, s').
"""

from __future__ import annotations

import bisect
import math

import numpy as np
from scipy import special, stats

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..floats import EPS
from ..privacy import gaussian

MAX_TRIALS = 50 * 2**34
EPSILON_SLACK = 1e-9  # `gaussian.epsilon_from_mu` is above the truth by no more: a lower bound gives it back


def clopper_pearson_upper_bound(errors: int, trials: int, failure: float) -> float:
    """Largest error rate that `errors` of `trials` leave possible, except with probability `failure`.

    >>> round(clopper_pearson_upper_bound(0, 100, 0.05), 6)  # 1 - 0.05^(1/100)
    0.029513
    """
    if errors >= trials:
        return 1.0
    return float(special.betaincinv(errors + 1, trials - errors, 1 - failure))  # beta quantile


def binomial_mu(without: FloatArray, with_canary: FloatArray, threshold: float, *, failure: float) -> float:
    """mu shown by "there was a canary if the statistic exceeds `threshold`", >= 0.

    Args: without, with_canary: independent samples; threshold: chosen without looking at them; failure: probability
        that the bound is wrong, half for each kind of error.

    Guarantees: for independent samples of any distribution, above the true mu with probability at most `failure`.
    """
    alpha, beta = error_rates(without, with_canary, threshold, failure)
    return max(0.0, float(-special.ndtri(alpha) - special.ndtri(beta))) if alpha < 1 and beta < 1 else 0.0


def binomial_epsilon(
    without: FloatArray, with_canary: FloatArray, threshold: float, *, delta: float, failure: float
) -> float:
    """epsilon >= log((1 - beta - delta) / alpha) shown by the same test, >= 0."""
    alpha, beta = error_rates(without, with_canary, threshold, failure)
    shown = [math.log((1 - b - delta) / a) for a, b in ((alpha, beta), (beta, alpha)) if 1 - b - delta > 0]
    return max(0.0, *shown) if shown else 0.0


def error_rates(without: FloatArray, with_canary: FloatArray, threshold: float, failure: float) -> tuple[float, float]:
    """Upper bounds on (alpha, beta) that hold together except with probability `failure`."""
    alpha = clopper_pearson_upper_bound(int((without > threshold).sum()), without.size, failure / 2)
    beta = clopper_pearson_upper_bound(int((with_canary <= threshold).sum()), with_canary.size, failure / 2)
    return alpha, beta


def choose_threshold(without: FloatArray, with_canary: FloatArray, *, failure: float) -> float:
    """The threshold at which these samples, to be discarded afterwards, show most."""
    both = np.unique(np.quantile(np.concatenate([without, with_canary]), np.linspace(0.005, 0.995, 100)))
    shown = [binomial_mu(without, with_canary, float(t), failure=failure) for t in both]
    if max(shown) == 0:
        return float((without.mean() + with_canary.mean()) / 2)
    return float(both[int(np.argmax(shown))])


def gaussian_mu(without: FloatArray, with_canary: FloatArray, *, failure: float) -> float:
    """mu shown by means and variances of normal samples, >= 0; inf where both samples are constant and differ.

    Three events of probability failure / 3 each are excluded: either variance is above its chi-square bound, or the
    difference of the means is off by more than its normal bound. Then, with s the larger bound and N trials each,
    mu >= (b - a) / s - z sqrt(2 / N).

    Guarantees: for independent normal samples, above the true mu with probability at most `failure`.
    """
    trials, share = min(without.size, with_canary.size), failure / 3
    difference = float(with_canary.mean() - without.mean())
    spread = max(std_upper_bound(without, share), std_upper_bound(with_canary, share))
    if difference <= 0:
        return 0.0
    # a spread at rounding level is no noise at all
    if spread <= 64 * EPS * max(abs(float(without.mean())), abs(float(with_canary.mean()))):
        return math.inf
    return max(0.0, difference / spread - float(-special.ndtri(share)) * math.sqrt(2 / trials))


def std_upper_bound(samples: FloatArray, failure: float) -> float:
    freedom = samples.size - 1
    return math.sqrt(freedom * float(samples.var(ddof=1)) / float(stats.chi2.ppf(failure, freedom)))


def epsilon_lower_bound(mu: float, delta: float) -> float:
    """epsilon at delta that mu-Gaussian DP really loses, rounded down; inf for mu = inf."""
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
