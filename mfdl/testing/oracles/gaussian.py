"""Slow, obvious oracles for `privacy.gaussian` in mpmath, at a precision that leaves no doubt.

Every argument is taken as the exact binary number it is. Two-term formula as in the textbook; the number
of digits covers the worst cancellation instead of avoiding it. Rényi divergence and composition are integrals.
Domain: 0 < mu < inf, 0 < delta < 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath

from ... import check

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
    check.open_unit(delta=delta)  # 0 would be bisected for ever
    if exact_delta(mu, 0.0, digits=digits) <= delta:
        return mpmath.mpf(0)
    return _last_before(lambda epsilon: exact_delta(mu, epsilon, digits=digits) <= delta, 0, digits)[1]


def exact_mu(epsilon: float, delta: float, *, digits: int = DIGITS) -> Any:
    """The largest mu with delta(epsilon) <= delta, by bisection to 1e-25 relative."""
    check.open_unit(delta=delta)
    with mpmath.workdps(digits):
        low = mpmath.mpf(1)
        while exact_delta(low, epsilon, digits=digits) > delta:
            low /= 2
    return _last_before(lambda mu: exact_delta(mu, epsilon, digits=digits) > delta, low, digits)[0]


def _last_before(beyond: Callable[[Any], bool], low: Any, digits: int) -> tuple[Any, Any]:
    """Numbers 1e-25 apart, relative, between which a condition begins to hold; `low` is before it."""
    with mpmath.workdps(digits):
        low, high = mpmath.mpf(low), mpmath.mpf(1)
        while not beyond(high):
            high *= 2
        while high - low > high * mpmath.mpf(10) ** -25:
            middle = (low + high) / 2
            low, high = (low, middle) if beyond(middle) else (middle, high)
        return low, high


def exact_renyi(mu: float, order: float, *, digits: int = 20) -> Any:
    """D_order(N(mu, 1) || N(0, 1)) for order > 1 by integration of p^order q^(1 - order)."""
    with mpmath.workdps(digits + 10):
        m, a = mpmath.mpf(mu), mpmath.mpf(order)
        centre = a * m  # of the integrand, a normal curve of width 1
        height = -a * (centre - m) ** 2 / 2 + (a - 1) * centre**2 / 2
        integral = mpmath.quad(
            lambda x: mpmath.exp(-a * (x - m) ** 2 / 2 + (a - 1) * x**2 / 2 - height),
            [centre - 15, centre, centre + 15],
        )
        return (height + mpmath.log(integral / mpmath.sqrt(2 * mpmath.pi))) / (a - 1)


def composed_delta(first: float, second: float, epsilon: float, *, digits: int = 20) -> Any:
    """delta(epsilon) of two independent releases, first- and second-GDP: an integral over the loss of one.

    Its loss is N(mu^2 / 2, mu^2), and what that leaves of epsilon is for the other. The smaller mu is integrated
    over: the other's delta is smooth on its scale. The error is absolute, about 10^-digits.
    """
    with mpmath.workdps(digits + 10):
        m, other = sorted((mpmath.mpf(first), mpmath.mpf(second)))

        def at(z: Any) -> Any:
            return mpmath.npdf(z) * exact_delta(other, epsilon - m * z - m * m / 2, digits=mpmath.mp.dps)

        return mpmath.quad(at, [-15, -5, 0, 5, 15 + m])


def mills_ratio(x: Any, *, digits: int = DIGITS) -> Any:
    """M(x) = (1 - Phi(x)) / phi(x)."""
    with mpmath.workdps(digits):
        y = mpmath.mpf(x)
        return normal_cdf(-y) * mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(y * y / 2)
