"""The one search for the least noise: the root of a decreasing function of the noise multiplier, from above.

In: an excess, the logarithm of what is lost at a noise multiplier over the target, and a multiplier that is known to
meet the target. Out: a multiplier at which the excess was computed and is at most 0, so the target is never missed;
where the excess decreases, the least such multiplier is below it by at most the precision of the last pass.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence

ROOM = 1.05
"""How far above the known multiplier a pass may end if a finer pass follows: its excess is coarse."""

Excess = Callable[[float, int], float]
"""From a noise multiplier and a resolution to the excess; may be infinite."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass of the search.

    Attributes:
        resolution: how the excess is computed.
        step: factor, > 1, between the multipliers that bracket the root.
        precision: relative: how far above the root of this excess the pass may end.
    """

    resolution: int
    step: float
    precision: float


def least_multiplier(excess: Excess, known: float, passes: Sequence[Pass]) -> float:
    """The least multiplier at which the excess of the last pass is <= 0; `known` where none below it is found.

    Args:
        known: a multiplier that meets the target, by this excess or by another argument; the first pass starts here.
        passes: coarse ones first; each starts where the one before ended.
    """
    near = known
    for number, each in enumerate(passes, 1):
        most = known if number == len(passes) else ROOM * known
        near = _crossing(excess, near, each, most)
        if near > most:
            return known
    return near


def raised(number: float, misses: Callable[[float], bool], step: float = 2.0**-52) -> float:
    """A noise that misses its target by little, by rounding for example, raised until it meets it.

    Args: step: relative, of the first increase; each later one is twice as large.
    """
    while misses(number):
        number, step = max(number * (1 + step), sys.float_info.min), 2 * step
    return number


def _crossing(excess: Excess, start: float, search: Pass, most: float) -> float:
    """Where the excess of one pass is <= 0, at most `precision` above where it is not; inf where `most` misses."""
    good, under = start, excess(start, search.resolution)
    bad, over = good, under
    while not under <= 0:
        if good >= most:
            return math.inf
        bad, over, good = good, under, good * search.step
        under = excess(good, search.resolution)
    while over <= 0:
        good, under, bad = bad, over, bad / search.step
        over = excess(bad, search.resolution)
    while good > bad * (1 + search.precision):
        ratio = math.log(good / bad)
        share = over / (over - under) if math.isfinite(over) and under < over else 0.5
        aim = ratio * min(max(share, 0.05), 0.95)
        for at in (aim + search.precision / 3, aim - search.precision / 3):  # either side of where the root should be
            middle = bad * math.exp(min(max(at, ratio / 20), ratio * 0.95))
            if not bad < middle < good:
                continue
            value = excess(middle, search.resolution)
            if not value <= 0:
                bad, over = middle, value
                break
            good, under = middle, value
            ratio = math.log(good / bad)
    return good
