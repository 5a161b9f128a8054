"""Statistics of a comparison over scenes and seeds: paired log ratios, shares of a gap, intervals and tests.

In: losses of every scene, one for each seed, the same seeds for all rows; inf for a run that diverged. Out: numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL, RESAMPLES = 0.95, 4000
Array = NDArray[np.float64]
Losses = Mapping[str, Array]
"""Of one scene: losses by name, shape (seeds,) each, or (..., seeds) of resamples."""


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its interval."""

    middle: float
    low: float
    high: float


def log_ratio(losses: Losses) -> Array:
    """log(loss / reference), mean over seeds: below 0 is better."""
    return np.log(losses["loss"] / losses["reference"]).mean(axis=-1)


def share(losses: Losses) -> Array:
    """How much of the way from the reference to no noise: (reference - loss) / (reference - no noise), of the means."""
    reference = losses["reference"].mean(axis=-1)
    return (reference - losses["loss"].mean(axis=-1)) / (reference - losses["none"].mean(axis=-1))


def over_scenes(statistic: Callable[[Losses], Array], scenes: Sequence[Losses], *, seed: int = 0) -> Estimate:
    """The mean of a statistic over scenes, with an interval at `LEVEL` for scenes and seeds like these.

    Bootstrap: scenes with replacement, then in each the seeds, the same for all its losses. So few scenes make plain
    percentiles too narrow; they are taken further out by what Student's t and the bias of a variance ask for, which is
    right for means of normal variables (Hesterberg 2015, "What teachers should know about the bootstrap"). Of one scene
    the interval is for its seeds alone.
    """
    rng = np.random.default_rng(seed)
    count, totals = len(scenes), np.zeros(RESAMPLES)
    for _ in range(count):
        picks = rng.integers(count, size=RESAMPLES)
        for k, losses in enumerate(scenes):
            drawn = np.flatnonzero(picks == k)
            size = len(next(iter(losses.values())))
            rows = rng.integers(size, size=(len(drawn), size))
            totals[drawn] += statistic({name: values[rows] for name, values in losses.items()})
    units = count if count > 1 else len(next(iter(scenes[0].values())))
    tail = expanded_tail(units)
    # no interpolation, as totals may be infinite
    low, high = np.quantile(totals / count, [tail, 1 - tail], method="closest_observation")
    return Estimate(float(np.mean([statistic(losses) for losses in scenes])), float(low), float(high))


def expanded_tail(units: int) -> float:
    """The share of resamples beyond each end of an interval of level `LEVEL` for the mean of so many units.

    >>> round(expanded_tail(1000), 4), expanded_tail(5) < 0.002
    (0.0248, True)
    """
    if units < 2:
        return 0.0
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, units - 1))
    return float(stats.norm.cdf(-math.sqrt(units / (units - 1)) * quantile))


def signed_rank(loss: Array, reference: Array) -> float:
    """p of Wilcoxon's signed-rank test of paired losses, two-sided; 1 where all pairs are equal."""
    difference = np.log(loss / reference)
    return float(stats.wilcoxon(difference).pvalue) if difference.any() else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for how many they are (Holm 1979): to reject below alpha errs, even once, with at most alpha.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order, corrected, largest = np.argsort(p_values, kind="stable"), [1.0] * len(p_values), 0.0
    for place, k in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[k]))
        corrected[k] = largest
    return corrected
