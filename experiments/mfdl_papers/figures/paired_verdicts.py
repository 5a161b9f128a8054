"""Verdicts on orders of curves, from losses paired by seed, beside the rules of `verdicts`.

- `ordered`: a claim that one curve lies below another at every point. confirmed: at every point the mean over seeds of
  log(lower / upper) is below 0 by more than its 95 % interval; direction only: the mean is below 0 at no less than half
  of the points; else refuted.
- `tied`: a claim that two curves meet at a point. confirmed: the 95 % interval of the mean of log(a / b) holds 0 and
  reaches no further than a factor of two; direction only: the means are within a factor of two; else refuted.

A run that diverged counts as an infinite loss. One seed alone has no interval: it gives a direction at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import stats

from mfdl.errors import InvalidInput

from .verdicts import CONFIRMED, DIRECTION, LEVEL, REFUTED

Pair = tuple[np.ndarray, np.ndarray]
TIE = math.log(2.0)


def mean_log_ratio(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Mean over seeds of log(a / b) and half of its 95 % interval, inf for one seed; shapes (seeds,).

    >>> mean_log_ratio(np.array([1.0, 1.0]), np.array([1.0, 1.0]))
    (0.0, 0.0)

    Raises: InvalidInput: no seeds, or not as many of both.
    """
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise InvalidInput(f"paired losses must have one number for each seed, got shapes {a.shape} and {b.shape}.")
    a, b = (np.where(np.isnan(x), math.inf, x) for x in (a, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(a == b, 0.0, np.log(a) - np.log(b))
    mean = float(np.mean(logs)) if np.isfinite(logs).all() else _of_infinite(logs)
    if len(logs) == 1 or not np.isfinite(logs).all():
        return mean, 0.0 if math.isinf(mean) and (logs == logs[0]).all() and len(logs) > 1 else math.inf
    spread = float(np.std(logs, ddof=1))
    return mean, float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1)) * spread / math.sqrt(len(logs))


def _of_infinite(logs: np.ndarray) -> float:
    """Of both signs nothing is below anything."""
    signs = np.sign(logs[np.isinf(logs)])
    return float(signs[0]) * math.inf if (signs == signs[0]).all() else 0.0


def ordered(points: Mapping[Any, Pair]) -> str:
    """The verdict on "the first is below the second at every point".

    >>> low, high = np.array([1.0, 1.1, 0.9]), np.array([3.0, 3.2, 3.1])
    >>> ordered({3: (low, high)}), ordered({3: (low, high), 10: (high, low)}), ordered({3: (high, low)})
    ('confirmed', 'direction only', 'refuted')

    Raises: InvalidInput: no point, or losses that are not paired.
    """
    if not points:
        raise InvalidInput("a verdict needs at least one point.")
    means = [mean_log_ratio(lower, upper) for lower, upper in points.values()]
    if all(mean < 0 and mean + half <= 0 for mean, half in means):
        return CONFIRMED
    return DIRECTION if 2 * sum(mean < 0 for mean, _ in means) >= len(means) else REFUTED


def clear(points: Mapping[Any, Pair]) -> int:
    """At how many points the first is below the second by more than its 95 % interval."""
    return sum(mean < 0 and mean + half <= 0 for mean, half in (mean_log_ratio(*pair) for pair in points.values()))


def jackknifed(statistic: Callable[..., float], *losses: np.ndarray) -> np.ndarray:
    """Pseudo-values of a statistic of means over seeds, the last axis of every array, shape (seeds,).

    Their mean is the statistic, their deviation / sqrt(seeds) its standard error. The statistic alone, shape (1,),
    where there is one seed or a value is not finite.
    """
    count, whole = losses[0].shape[-1], statistic(*losses)
    rest = [statistic(*(np.delete(values, i, axis=-1) for values in losses)) for i in range(count if count > 1 else 0)]
    usable = rest and np.isfinite([whole, *rest]).all()
    return count * whole - (count - 1) * np.array(rest) if usable else np.array([whole])


def tied(a: np.ndarray, b: np.ndarray) -> str:
    """The verdict on "the two meet".

    >>> tied(np.array([1.0, 1.2, 0.9]), np.array([1.1, 1.1, 1.0])), tied(np.array([1.0]), np.array([4.0]))
    ('confirmed', 'refuted')
    """
    mean, half = mean_log_ratio(a, b)
    if abs(mean) <= half <= TIE:
        return CONFIRMED
    return DIRECTION if abs(mean) <= TIE else REFUTED


def lowest(curves: Mapping[Any, np.ndarray]) -> Any:
    """The name with the smallest mean over seeds; a run that diverged is infinitely bad."""
    return min(curves, key=lambda name: float(np.where(np.isnan(curves[name]), math.inf, curves[name]).mean()))


def of_means(a: np.ndarray, b: np.ndarray) -> float:
    """mean(a) / mean(b), a diverged run being infinitely bad; nan where both are."""
    above, below = (float(np.where(np.isnan(x), math.inf, x).mean()) for x in (a, b))
    return math.nan if math.isinf(below) and math.isinf(above) else above / below
