"""Choosing and comparing by seeds: which settings go on, which is best, how far apart two mechanisms are.

In: losses per seed, the same seeds for all; nan for a run that diverged. Out: keys, numbers and rows of text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from mfdl.sweeps.tuning import advancing, ordered

__all__ = ["Against", "Interval", "advancing", "against", "markdown", "of_mean", "of_ratio", "ordered"]

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with a Student t interval around it: middle +- half."""

    middle: float
    half: float

    def text(self, digits: int = 3) -> str:
        return f"{self.middle:.{digits}f} ± {self.half:.{digits}f}"


def of_mean(values: np.ndarray) -> Interval:
    """The mean of independent values; the interval is nan for fewer than two."""
    count = len(values)
    if count < 2:
        return Interval(float(np.mean(values)), math.nan)
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return Interval(float(values.mean()), quantile * float(values.std(ddof=1)) / math.sqrt(count))


def of_ratio(above: np.ndarray, below: np.ndarray) -> Interval:
    """The ratio of two paired means, its interval by linearisation: that of the mean of (a - r b) / mean(b)."""
    ratio = float(above.mean() / below.mean())
    return Interval(ratio, of_mean((above - ratio * below) / below.mean()).half)


@dataclass(frozen=True)
class Against:
    """A mechanism against a reference on the same seeds, of those the runs of both that did not diverge.

    Attributes:
        difference: loss minus the reference's, paired.
        reduction: (reference - loss) / reference, of the means.
        share: (reference - loss) / (reference - without noise), of the means; None without runs without noise.
        wins: seeds at which the loss is below the reference's; pairs: seeds compared.
    """

    difference: Interval
    reduction: Interval
    share: Interval | None
    wins: int
    pairs: int


def against(loss: np.ndarray, reference: np.ndarray, without_noise: np.ndarray | None) -> Against:
    """Paired comparison of losses per seed, shape (seeds,) each."""
    used = ~(np.isnan(loss) | np.isnan(reference))
    if without_noise is not None:
        used &= ~np.isnan(without_noise)
    x, m = loss[used], reference[used]
    share = None if without_noise is None else of_ratio(m - x, m - without_noise[used])
    return Against(of_mean(x - m), of_ratio(m - x, m), share, int((x < m).sum()), int(used.sum()))


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"
