"""log delta of a mu-GDP Gaussian mechanism, rounded up: the one computation that every epsilon and delta rests on.

In: mu and epsilon, finite. Out: log delta plus a bound on its own error.

How delta is computed. With a = epsilon/mu - mu/2, b = a + mu, phi the normal density and M the Mills
ratio M(x) = (1 - Phi(x)) / phi(x) = sqrt(pi/2) erfcx(x / sqrt 2),

    delta = Phi(-a) - e^epsilon Phi(-b) = phi(a) D,      D = M(a) - M(b) = int_a^b K(x) dx,
    K(x) = -M'(x) = 1 - x M(x) = int_0^oo t e^(-x t - t^2/2) dt > 0,

since e^epsilon phi(b) = phi(a). Nothing overflows, and D is taken in the form that does not cancel:

- a >= 30: expand e^(-t^2/2) in D = int_0^oo e^(-a t) (1 - e^(-mu t)) e^(-t^2/2) dt. The series alternates
  and its remainder is below the first term left out: with 8 terms, 9e-17 of D.
- a < 30, mu < 1: eight-point Gauss-Legendre for int K. The remainder is at most
  (8!)^4 / (17 (16!)^3) K^(16)(xi) mu^17; K^(16)/K falls with x and K(a) <= 3.6 K(b) here, so it is below
  3e-15 of D (its value for a = -1/2, mu = 1).
- mu < m = 2^-100, where D may underflow: D(a, m) mu / m, in logarithms. D / mu is the mean of K over
  [a, a + mu], and 0 <= -K'/K <= 1.26, so D(a, m) / m is below it by 1e-30 of it at most.
- a > 1e10: phi(a) D <= e^(-a^2/2) / 2 stands for it. What is left out, |log D| < 800, is nothing beside the
  1e-14 of a^2/2 = 5e19 that `gaussian.log_delta_from_mu` states.
- a < 30, mu >= 1: M(a) - M(b). As M(x) <= 4 / (3 x + sqrt(x^2 + 8)) for x >= 0 (Sampford), K/M = 1/M - x
  >= 1 / (x + sqrt 2), so cancellation costs at most a factor (a + b + 2 sqrt 2) / mu <= 64. For a < 0 the
  complement 1 - delta = phi(a) (M(-a) + M(b)), a sum of positive terms.

Error budget, on the scale of log delta (u = 2^-53):

- erfcx is taken to be within 1e-14 (measured: 9e-16; a test holds it to 2e-15). The worst amplification is
  that of K at x = 31, x^2 + 2 < 1000: 1e-11. With the remainders above: `_KERNEL_ERROR` = 2e-11.
- a is computed within u (epsilon/mu + |a|), mu and b = a + mu staying exact, and
  0 <= -d log delta / d a = a + E[t] <= M(a)/K(a) <= max(a, 0) + 1.26, where E is the mean under the
  integrand of D (its weight (1 - e^(-mu t))/t falls with t, so E[t] is largest as mu -> 0, and at a = 0 it
  is M(0)/K(0) = 1.2533). The rounding of b changes M(b) by less than u, as x K(x) <= M(x).
- rounding of -a^2/2 - log sqrt(2 pi) + log D: 4 u (a^2/2 + 1 + |log D|).

The sum, called slack, is added to the computed log delta. So the value returned is at least the true one,
and above it by at most twice the slack: a relative 1e-9 of delta for every mu <= 1e5 and delta >= 1e-300
(there a <= 37.2, slack <= 38.5 u (mu/2 + 75) + 2e-11 + 2e-12 <= 2.4e-10). Outside that range it stays an
upper bound, with a slack that grows like a^2 u. Floating-point noise itself is not covered by any of this.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from scipy.special import erfcx

from ..floats import UNIT

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
    quotient = epsilon / mu
    a = quotient - 0.5 * mu
    if a > _TAIL_FROM:  # a^2 may overflow; delta < e^(-a^2/2), with a taken from below, and at least 0
        smaller = max(0.0, a - 4 * UNIT * quotient) if quotient < math.inf else 1e308
        return max(-0.5 * smaller * smaller * (1 - 4 * UNIT), -sys.float_info.max)
    half_square = 0.5 * a * a
    if a < 0 and mu >= 1:
        complement = math.exp(-half_square - _LOG_SQRT_2PI) * (_mills(-a) + _mills(a + mu))
        log_delta, log_kernel = math.log1p(-complement), 0.0
    else:
        least = max(mu, _LEAST_MU)
        log_kernel = math.log(mills_difference(a, least)) + math.log(mu / least)  # exact quotient: a power of two
        log_delta = log_kernel - half_square - _LOG_SQRT_2PI
    slack = (
        _KERNEL_ERROR
        + (max(a, 0.0) + 1.26) * UNIT * (quotient + abs(a))
        + 4 * UNIT * (half_square + 1 + abs(log_kernel))
    )
    return min(0.0, log_delta + slack)


def _mills(x: float) -> float:
    return _SQRT_HALF_PI * float(erfcx(x * _SQRT_HALF))


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
    kernel = 1 - x * (_SQRT_HALF_PI * erfcx(x * _SQRT_HALF))
    return mu * float(_WEIGHTS @ kernel)
