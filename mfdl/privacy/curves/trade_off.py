"""The trade-off between both errors of an attacker who decides which of two adjacent data sets was used.

In: delta at epsilon, in both directions. Out: the largest true positive rate at a false positive rate. For every
epsilon >= 0 an attacker with false positive rate a has a true positive rate of at most delta + e^epsilon a, and of at
most 1 - e^-epsilon (1 - a - delta); the least of all of them is the trade-off curve. A search looks at some epsilon,
and each of them is a bound, so the search decides how close the number is, not whether it holds.

Source: Dong, Roth, Su, arXiv:1905.02383, Proposition 6 (the dual of the trade-off curve).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .base import UP

PRECISION = 1e-4
"""Of epsilon in the search; the rate is flat there, so it is off by far less."""

FARTHEST = 700.0
"""Epsilon up to which e^epsilon is a float."""
RANGE = [2.0**k for k in range(-3, 10)]
"""Of epsilon, where a rate below 1 is looked for: e^-512 is the last that tells 1 from it."""


def true_positive_rate(delta: Callable[[float], float], false_positive_rate: float) -> float:
    """At most this, in (0, 1], for a false positive rate in (0, 1); delta at epsilon >= 0 is never below the true one.

    >>> from mfdl.privacy import gaussian
    >>> round(true_positive_rate(lambda epsilon: gaussian.delta_from_mu(1.0, epsilon), 0.01), 6)
    0.092362
    """
    a = false_positive_rate

    def small(epsilon: float) -> float:
        return delta(epsilon) + math.exp(epsilon) * a

    def large(epsilon: float) -> float:
        return math.exp(-epsilon) * (a + delta(epsilon)) - math.expm1(-epsilon)

    best = min(_least(small, min(-math.log(a), FARTHEST)), next(filter(lambda rate: rate < 1, map(large, RANGE)), 1.0))
    if best < 1:  # large(epsilon) >= 1 - e^-epsilon (1 - a), which is above it beyond
        best = min(best, _least(large, math.log((1 - a) / (1 - best))))
    return min(1.0, UP * best)


def _least(bound: Callable[[float], float], most: float) -> float:
    """The least value found on [0, most] of a function that falls and then rises."""
    from scipy.optimize import minimize_scalar  # a tenth of a second

    searched = minimize_scalar(bound, bounds=(0.0, most), method="bounded", options={"xatol": PRECISION})
    return min(bound(0.0), float(searched.fun))
