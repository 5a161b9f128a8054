"""Slow, obvious oracles for `privacy.gaussian` in mpmath, at a precision that leaves no doubt.

Every argument is taken as the exact binary number it is. Two-term formula as in the textbook; the number
of digits covers the worst cancellation instead of avoiding it.
"""

from __future__ import annotations

from typing import Any

import mpmath

DIGITS = 80  # the two terms of delta share at most about 20 digits for mu >= 1e-6 and epsilon / mu <= 1e5


def normal_cdf(x: Any) -> Any:
    """Phi(x), relative accuracy in both tails."""
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def exact_delta(mu: float, epsilon: float, *, digits: int = DIGITS) -> Any:
    """delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) for 0 < mu < inf."""
    with mpmath.workdps(digits):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return normal_cdf(-e / m + m / 2) - mpmath.exp(e) * normal_cdf(-e / m - m / 2)


def exact_log_delta(mu: float, epsilon: float, *, digits: int = DIGITS) -> Any:
    """Natural logarithm of `exact_delta`."""
    with mpmath.workdps(digits):
        return mpmath.log(exact_delta(mu, epsilon, digits=digits))


def exact_epsilon(mu: float, delta: float, *, digits: int = DIGITS) -> Any:
    """The root of delta(epsilon) = delta by bisection to 1e-25 relative; 0 where delta(0) <= delta."""
    if exact_delta(mu, 0.0, digits=digits) <= delta:
        return mpmath.mpf(0)
    with mpmath.workdps(digits):
        low, high = mpmath.mpf(0), mpmath.mpf(1)
        while exact_delta(mu, high, digits=digits) > delta:
            high *= 2
        while high - low > high * mpmath.mpf(10) ** -25:
            middle = (low + high) / 2
            if exact_delta(mu, middle, digits=digits) > delta:
                low = middle
            else:
                high = middle
        return high


def exact_mu(epsilon: float, delta: float, *, digits: int = DIGITS) -> Any:
    """The largest mu with delta(epsilon) <= delta, by bisection to 1e-25 relative."""
    with mpmath.workdps(digits):
        low, high = mpmath.mpf(10) ** -8, mpmath.mpf(1)
        while exact_delta(high, epsilon, digits=digits) <= delta:
            high *= 2
        while high - low > high * mpmath.mpf(10) ** -25:
            middle = (low + high) / 2
            if exact_delta(middle, epsilon, digits=digits) <= delta:
                low = middle
            else:
                high = middle
        return low


def mills_ratio(x: Any, *, digits: int = DIGITS) -> Any:
    """M(x) = (1 - Phi(x)) / phi(x)."""
    with mpmath.workdps(digits):
        y = mpmath.mpf(x)
        return normal_cdf(-y) * mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(y * y / 2)
