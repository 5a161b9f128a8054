"""Exact conversions for a mu-GDP Gaussian mechanism, rounded toward safety.

Privacy losses (delta, epsilon, mu of a mechanism) are never below the true value, calibrated budgets (the mu allowed by
epsilon and delta) never above it.

How log delta is computed, which every epsilon and delta rests on. With a = epsilon/mu - mu/2, b = a + mu, phi the
normal density and M the Mills ratio M(x) = (1 - Phi(x)) / phi(x) = sqrt(pi/2) erfcx(x / sqrt 2),

    delta = Phi(-a) - e^epsilon Phi(-b) = phi(a) D,      D = M(a) - M(b) = int_a^b K(x) dx,
    K(x) = -M'(x) = 1 - x M(x) = int_0^oo t e^(-x t - t^2/2) dt > 0,

since e^epsilon phi(b) = phi(a). Nothing overflows, and D is taken in the form that does not cancel:

- a >= 30: expand e^(-t^2/2) in D = int_0^oo e^(-a t) (1 - e^(-mu t)) e^(-t^2/2) dt. The series alternates and its
  remainder is below the first term left out: with 8 terms, 9e-17 of D.
- a < 30, mu < 1: eight-point Gauss-Legendre for int K. The remainder is at most (8!)^4 / (17 (16!)^3) K^(16)(xi) mu^17;
  K^(16)/K falls with x and K(a) <= 3.6 K(b) here, so it is below 3e-15 of D (its value for a = -1/2, mu = 1).
- mu < m = 2^-100, where D may underflow: D(a, m) mu / m, in logarithms. D / mu is the mean of K over [a, a + mu], and 0
  <= -K'/K <= 1.26, so D(a, m) / m is below it by 1e-30 of it at most.
- a > 1e10: phi(a) D <= e^(-a^2/2) / 2 stands for it. What is left out, |log D| < 800, is nothing beside the 1e-14 of
  a^2/2 = 5e19 that `gaussian.log_delta_from_mu` states.
- a < 30, mu >= 1: M(a) - M(b). As M(x) <= 4 / (3 x + sqrt(x^2 + 8)) for x >= 0 (Sampford), K/M = 1/M - x >= 1 / (x +
  sqrt 2), so cancellation costs at most a factor (a + b + 2 sqrt 2) / mu <= 64. For a < 0 the complement 1 - delta =
  phi(a) (M(-a) + M(b)), a sum of positive terms.

Error budget, on the scale of log delta (u = 2^-53):

- erfcx is taken to be within 1e-14 (measured: 9e-16; a test holds it to 2e-15). The worst amplification is that of K at
  x = 31, x^2 + 2 < 1000: 1e-11. With the remainders above: `_KERNEL_ERROR` = 2e-11.
- a is computed within u (epsilon/mu + |a|), mu and b = a + mu staying exact, and 0 <= -d log delta / d a = a + E[t] <=
  M(a)/K(a) <= max(a, 0) + 1.26, where E is the mean under the integrand of D (its weight (1 - e^(-mu t))/t falls with
  t, so E[t] is largest as mu -> 0, and at a = 0 it is M(0)/K(0) = 1.2533). The rounding of b changes M(b) by less than
  u, as x K(x) <= M(x).
- rounding of -a^2/2 - log sqrt(2 pi) + log D: 4 u (a^2/2 + 1 + |log D|).

The sum, called slack, is added to the computed log delta. So the value returned is at least the true one,
and above it by at most twice the slack: a relative 1e-9 of delta for every mu <= 1e5 and delta >= 1e-300
(there a <= 37.2, slack <= 38.5 u (mu/2 + 75) + 2e-11 + 2e-12 <= 2.4e-10). Outside that range it stays an
upper bound, with a slack that grows like a^2 u. Floating-point noise itself is not covered by any of this.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import scipy

from .. import check
from ..errors import InvalidInput, require_known
from ..floats import UNIT

ADJACENCIES = ("zero-out", "add-remove", "replace-one")

_SMALLEST = math.ulp(0.0)


def log_delta_from_mu(mu: float, epsilon: float) -> float:
    """log delta(epsilon) <= 0 of a mu-GDP mechanism, rounded up; it does not underflow.

    Args: mu >= 0, epsilon >= 0; either may be inf. -inf when mu = 0 or (mu finite and epsilon = inf), 0 when mu = inf.

    Guarantees: never below the true value; above it by at most 1e-9 when mu <= 1e5 and delta >= 1e-300, and by at most
        1e-9 + 1e-14 |log delta| when mu <= 1e5.
    Raises: InvalidInput: an argument is negative, nan or not a number.
    """
    mu = check.non_negative_or_inf(mu=mu)
    epsilon = check.non_negative_or_inf(epsilon=epsilon)
    if mu == math.inf:
        return 0.0
    if mu == 0 or epsilon == math.inf:
        return -math.inf
    return log_delta_upper_bound(mu, epsilon)


def delta_from_mu(mu: float, epsilon: float) -> float:
    """Smallest delta for which a mu-GDP mechanism is (epsilon, delta)-DP, rounded up.

    Raises: InvalidInput: mu or epsilon is negative, nan or not a number.

    >>> round(delta_from_mu(1.0, 1.0), 6)
    0.126937
    >>> delta_from_mu(0.0, 1.0), delta_from_mu(float("inf"), 1.0)
    (0.0, 1.0)

    Guarantees: never below the true value, so never 0 when the true value is positive. Above it by a relative 1e-9 at
        most when mu <= 1e5 and delta >= 1e-300.
    """
    log_delta = log_delta_from_mu(mu, epsilon)
    if log_delta == -math.inf:
        return 0.0
    return min(1.0, _next_up(math.exp(log_delta), 2))  # exp is within one unit in the last place


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Smallest epsilon for which a mu-GDP mechanism is (epsilon, delta)-DP, rounded up.

    Raises: InvalidInput: mu is negative or nan, or delta is outside [0, 1).

    >>> round(epsilon_from_mu(1.0, 1e-6), 3)
    4.887

    Args: mu >= 0; delta: in [0, 1). 0 when mu = 0, inf when mu = inf, or when delta = 0 < mu.

    Guarantees: the mechanism is (epsilon, delta)-DP at the float returned. No epsilon below it by more than 1e-9 of mu
        + epsilon is, when mu <= 1e5 and 1e-300 <= delta <= 1/2.
    """
    return _epsilon(mu, delta, _least_epsilon)


def _least_epsilon(mu: float, target: float) -> float:
    if log_delta_upper_bound(mu, 0.0) <= target:
        return 0.0
    epsilon = mu * (0.5 * mu + math.sqrt(-2 * target))  # a = sqrt(2 log 1/delta): delta <= e^(-a^2/2) / 2
    while epsilon < math.inf and log_delta_upper_bound(mu, epsilon) > target:
        epsilon *= 2
    if epsilon == math.inf:
        return math.inf
    return _bisect(epsilon, 0.0, lambda trial: log_delta_upper_bound(mu, trial) <= target)


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """Largest mu > 0 whose mechanism is (epsilon, delta)-DP, rounded down: calibration that never overshoots.

    Raises: InvalidInput: epsilon is not a finite number > 0, or delta is outside (0, 1).

    >>> round(mu_from_epsilon(3.0, 1e-5), 4)
    0.7191

    Guarantees: the mechanism is (epsilon, delta)-DP at the float returned. No mu above it by a relative 1e-9 is, when
        mu <= 1e5 and 1e-300 <= delta <= 1/2.
    """
    epsilon = check.positive(epsilon=epsilon)
    delta = check.open_unit(delta=delta)
    target = _log_rounded_down(delta)

    def allowed(mu: float) -> bool:
        return log_delta_upper_bound(mu, epsilon) <= target

    # The mu of the Rényi bound: there a = sqrt(2 log 1/delta), hence delta(epsilon) <= delta / 2. It does not overflow;
    # if it underflows, the smallest float has a >= 1, hence delta(epsilon) <= phi(1) K(1) mu < mu / 10.
    good = max(math.sqrt(2) * (epsilon / (math.sqrt(epsilon - target) + math.sqrt(-target))), _SMALLEST)
    while not allowed(good):
        good *= 0.5
    bad = 2 * good
    while allowed(bad):
        good, bad = bad, 2 * bad
    return _bisect(good, bad, allowed)


def _bisect(good: float, bad: float, holds: Callable[[float], bool]) -> float:
    """The last point between `good` (holds) and `bad` at which `holds` was checked to be true, even if not quite
    monotone.
    """
    while abs(good - bad) > 4 * UNIT * abs(good):
        middle = 0.5 * (good + bad)
        if middle in (good, bad):
            break
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def _log_rounded_down(delta: float) -> float:
    """A float strictly below log delta, by at most 8 u |log delta|; < 0 for delta in (0, 1)."""
    return math.log(delta) * (1 + 4 * UNIT)


def renyi_epsilon(mu: float, order: float) -> float:
    """Rényi divergence bound order * mu^2 / 2 of a mu-GDP Gaussian mechanism, order >= 1, rounded up.

    Raises: InvalidInput: mu is negative or nan, or order is not a finite number >= 1 (1 is the KL divergence).
    """
    mu = check.non_negative_or_inf(mu=mu)
    order = check.positive(order=order)
    if order < 1:
        raise InvalidInput(f"order must be a finite number >= 1, got {order!r}.")
    if mu == math.inf:
        return math.inf
    return _rounded_up(Fraction(order) * Fraction(mu) ** 2 / 2)


def epsilon_from_renyi(mu: float, delta: float) -> float:
    """The looser epsilon of Rényi accounting, rho + 2 sqrt(rho log(1/delta)) with rho = mu^2 / 2, rounded up.

    Papers that account by Rényi DP report it, at the best order 1 + sqrt(log(1/delta) / rho).

    Raises: InvalidInput: mu is negative or nan, or delta is outside [0, 1).
    """
    # seven roundings at most, each within u
    return _epsilon(mu, delta, lambda mu, log: _next_up(mu * (0.5 * mu + math.sqrt(-2 * log)) * (1 + 8 * UNIT)))


def mu_from_renyi(epsilon: float, delta: float) -> float:
    """The mu whose `epsilon_from_renyi` is epsilon, rounded down: what papers that account by Rényi DP allow.

    sqrt(2) (sqrt(L + epsilon) - sqrt(L)) with L = log(1/delta); `mu_from_epsilon` allows more.

    Raises: InvalidInput: epsilon is not positive and finite, or delta is outside (0, 1).

    >>> round(mu_from_renyi(3.0, 1e-5), 4)
    0.589
    """
    epsilon = check.positive(epsilon=epsilon)
    L = -math.log(check.open_unit(delta=delta))
    return math.sqrt(2) * epsilon / (math.sqrt(L + epsilon) + math.sqrt(L)) * (1 - 1e-15)


def compose(mus: Iterable[float]) -> float:
    """mu of independent Gaussian releases seen together, sqrt(sum of mu^2), rounded up; 0 for no release.

    Raises: InvalidInput: some mu is negative or nan.

    >>> compose([3.0, 4.0]), compose([]), compose([0.5])
    (5.0, 0.0, 0.5)

    Guarantees: the square of the float returned, taken exactly, is at least the exact sum. A single release keeps its
        mu, and inf stays inf.
    """
    values = [check.non_negative_or_inf(mus=mu) for mu in check.listed("numbers >= 0", mus=mus)]
    composed = math.hypot(*values)
    if composed == math.inf:
        return math.inf
    total = sum((Fraction(mu) ** 2 for mu in values), Fraction(0))
    while composed < math.inf and Fraction(composed) ** 2 < total:
        composed = _next_up(composed)
    return composed


def record_shift(adjacency: str, clip_norm: float) -> float:
    """How far one record can move a sum of clipped gradients: clip_norm, or 2 * clip_norm under replace-one.

    Raises: InvalidInput: unknown adjacency, or clip_norm not a finite number > 0.

    >>> [record_shift(adjacency, 1.0) for adjacency in ADJACENCIES]
    [1.0, 1.0, 2.0]
    """
    require_known("adjacency", adjacency, ADJACENCIES)
    clip_norm = check.positive(clip_norm=clip_norm)
    return check.positive(record_shift=2 * clip_norm if adjacency == "replace-one" else clip_norm)


def noise_std(noise_multiplier: float, sensitivity: float, record_shift: float) -> float:
    """Standard deviation of the noise on the sum of clipped gradients: the product of the three.

    Accountant, calibration and executor all call this one function, so mu is 1 / noise_multiplier under every
    adjacency.

    Raises: InvalidInput: an argument is out of range, or the product is not finite.
    """
    product = (
        check.non_negative(noise_multiplier=noise_multiplier)
        * check.non_negative(sensitivity=sensitivity)
        * check.positive(record_shift=record_shift)
    )
    return check.non_negative(noise_std=product)


def mu_from_noise_std(sensitivity: float, record_shift: float, noise_std: float) -> float:
    """mu = sensitivity * record_shift / noise_std: the smallest float that is not below the exact quotient.

    Raises: InvalidInput: an argument is out of range or nan.
    Guarantees: the smallest float that is not below the exact quotient of the three floats given.

    >>> mu_from_noise_std(3.0, 2.0, 1.5), mu_from_noise_std(3.0, 2.0, 0.0), mu_from_noise_std(0.0, 2.0, 0.0)
    (4.0, inf, 0.0)

    Args: sensitivity: >= 0, per unit record_shift; inf where a noiseless combination of gradients is seen.
    """
    sensitivity = check.non_negative_or_inf(sensitivity=sensitivity)
    record_shift = check.positive(record_shift=record_shift)
    noise_std = check.non_negative(noise_std=noise_std)
    if sensitivity == 0:
        return 0.0
    if sensitivity == math.inf or noise_std == 0:
        return math.inf
    return _rounded_up(Fraction(sensitivity) * Fraction(record_shift) / Fraction(noise_std))


def noise_multiplier(noise_std: float, clip_norm: float, sensitivity: float) -> float:
    """noise_std / (clip_norm * sensitivity), rounded down; 0 where the sensitivity is infinite."""
    mu = mu_from_noise_std(sensitivity, check.positive(clip_norm=clip_norm), noise_std)
    if mu == 0:
        raise InvalidInput("sensitivity must be > 0: a node's own injected sum always shows its gradient.")
    return 0.0 if math.isinf(mu) else math.nextafter(math.nextafter(1 / mu, 0.0), 0.0)


def _next_up(number: float, steps: int = 1) -> float:
    for _ in range(steps):
        number = math.nextafter(number, math.inf)
    return number


def _rounded_up(exact: Fraction) -> float:
    try:
        nearest = float(exact)
    except OverflowError:
        return math.inf
    return nearest if nearest == math.inf or Fraction(nearest) >= exact else _next_up(nearest)


def _epsilon(mu: float, delta: float, finite: Callable[[float, float], float]) -> float:
    """`finite(mu, log delta)`, or its limits: 0 where nothing is lost, inf where no epsilon is enough."""
    mu, number = check.non_negative_or_inf(mu=mu), check.non_negative(delta=delta)
    if number >= 1:
        raise InvalidInput(f"delta must be a number in [0, 1), got {delta!r}.")
    if mu == 0:
        return 0.0
    if mu == math.inf or number == 0:
        return math.inf
    return finite(mu, _log_rounded_down(number))


_KERNEL_ERROR = 2e-11
_SERIES_FROM = 30.0
_TAIL_FROM = 1e10
_LEAST_MU = 2.0**-100
_SERIES = tuple((-1.0) ** k * math.prod(range(1, 2 * k, 2)) for k in range(8))  # (-1)^k (2k - 1)!!
_LEGENDRE_NODES, _LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(8)
_NODES, _WEIGHTS = (_LEGENDRE_NODES + 1) / 2, _LEGENDRE_WEIGHTS / 2  # on [0, 1]
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_SQRT_HALF, _SQRT_HALF_PI = math.sqrt(0.5), math.sqrt(0.5 * math.pi)


def log_delta_upper_bound(mu: float, epsilon: float) -> float:
    """log delta plus its slack for 0 < mu < inf and 0 <= epsilon < inf (module head)."""
    ratio = epsilon / mu
    a = ratio - 0.5 * mu
    if a > _TAIL_FROM:  # a^2 may overflow; delta < e^(-a^2/2), with a taken from below, and at least 0
        smaller = max(0.0, a - 4 * UNIT * ratio) if ratio < math.inf else 1e308
        return max(-0.5 * smaller * smaller * (1 - 4 * UNIT), -sys.float_info.max)
    half = 0.5 * a * a
    if a < 0 and mu >= 1:
        complement = math.exp(-half - _LOG_SQRT_2PI) * (_mills(-a) + _mills(a + mu))
        log_delta, log_kernel = math.log1p(-complement), 0.0
    else:
        least = max(mu, _LEAST_MU)
        log_kernel = math.log(mills_difference(a, least)) + math.log(mu / least)  # exact quotient: a power of two
        log_delta = log_kernel - half - _LOG_SQRT_2PI
    slack = _KERNEL_ERROR + (max(a, 0.0) + 1.26) * UNIT * (ratio + abs(a)) + 4 * UNIT * (half + 1 + abs(log_kernel))
    return min(0.0, log_delta + slack)


def _mills(x: float) -> float:
    return _SQRT_HALF_PI * float(scipy.special.erfcx(x * _SQRT_HALF))


def mills_difference(a: float, mu: float) -> float:
    """D = M(a) - M(a + mu) without cancellation; a >= -1/2 when mu < 1, a >= 0 otherwise."""
    b = a + mu
    if a >= _SERIES_FROM:
        ratio = a / b
        total = 0.0
        for k, coefficient in enumerate(_SERIES):
            power = 2 * k + 1
            # 1 - (a/b)^power; through log1p where the difference would cancel
            gap = 1 - ratio**power if ratio < 0.5 else -math.expm1(power * math.log1p(-mu / b))
            total += coefficient * a**-power * gap
        return total
    if mu >= 1:
        return _mills(a) - _mills(b)
    x = a + mu * _NODES
    kernel = 1 - x * (_SQRT_HALF_PI * scipy.special.erfcx(x * _SQRT_HALF))
    return mu * float(_WEIGHTS @ kernel)
