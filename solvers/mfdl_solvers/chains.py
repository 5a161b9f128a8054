"""The heaviest steps some gap apart, and at most k of them, in O(T) memory.

The best sum of weights, and of links between neighbours, over steps `gap` or more apart is a dynamic program over the
last step, and for at most k steps one over their number too, in k passes. Where these are too many, a price p >= 0 for
each step bounds how many there are: k p + the best priced sum bounds the best sum of at most k for every p, and is its
value where the best steps at p are k. (Without links the program has an interval matrix, so some p does.)

Of uses whose sums agree within `SAME` the first is taken, so that the steps do not depend on rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .arithmetic import UNIT, Array
from .ties import first_largest

COUNTED = 40  # steps that have links; more are priced
MAX_TABLE = 10**7  # entries of a table of steps and how many there are; larger ones are priced
PRICES = 40  # tried at most
CLOSE = 1e-9  # relative: prices this close are one
SAME = 1e-12  # relative: above the rounding of sums, and small enough to add up over a chain


def best_chain(weights: Array, linked: Sequence[Array], gap: int) -> tuple[float, tuple[int, ...]]:
    """The largest sum of weights and links of neighbours over steps `gap` or more apart, and such steps; at least 0.

    Args: linked: linked[i][t] >= 0 is added where t follows t - gap - i, 0 for larger lags.
    Cost: O(T (1 + len(linked))), in blocks of `gap` steps.
    """
    T, reach = len(weights), gap + len(linked)
    ending, before = np.zeros(T), np.full(T, -1, dtype=np.intp)  # best sum with its last use at t, and the use before
    best, where = np.zeros(T + 1), np.full(T + 1, -1, dtype=np.intp)  # best sum with all uses below t, and its last
    for start in range(0, T, gap):
        stop = min(start + gap, T)
        steps = np.arange(start, stop)
        earlier = np.maximum(steps - reach + 1, 0)
        value, last = best[earlier].copy(), where[earlier].copy()
        for i, link in enumerate(linked):
            low = max(start, gap + i)
            if low >= stop:
                break
            sums = ending[low - gap - i : stop - gap - i] + link[low:stop]
            better = np.flatnonzero(sums > value[low - start :] * (1 + SAME))
            last[low - start + better] = low - gap - i + better
            np.maximum(value[low - start :], sums, out=value[low - start :])
        ending[start:stop], before[start:stop] = weights[start:stop] + value, last
        ahead = np.maximum.accumulate(np.append(best[start], ending[start:stop]))
        first = np.searchsorted(ahead, ahead[1:] * (1 - SAME))
        best[start + 1 : stop + 1] = ahead[1:]
        where[start + 1 : stop + 1] = np.where(first == 0, where[start], start + first - 1)
    chain, at = [], int(where[T])
    while at >= 0:
        chain.append(at)
        at = int(before[at])
    return float(best[T]), tuple(reversed(chain))


def counted_chain(uses: int, weights: Array, linked: Sequence[Array], gap: int) -> tuple[float, tuple[int, ...]]:
    """`best_chain` of at most `uses` >= 1 steps, for weights >= 0.

    Cost: O(uses T (1 + len(linked))) time, O(uses T) memory.
    """
    T, reach = len(weights), gap + len(linked)
    ending, before = weights, [np.full(T, -1, dtype=np.intp)]  # the same for each number of steps
    for _ in range(1, uses):
        value, last = np.zeros(T), np.full(T, -1, dtype=np.intp)
        if reach < T:
            ahead = np.maximum.accumulate(ending)[: T - reach]
            value[reach:], last[reach:] = ahead, np.searchsorted(ahead, ahead * (1 - SAME))
        for i, link in enumerate(linked[: max(T - gap, 0)]):
            start = gap + i
            sums = ending[: T - start] + link[start:]
            better = np.flatnonzero(sums > value[start:] * (1 + SAME))
            last[start + better] = better
            np.maximum(value[start:], sums, out=value[start:])
        ending = weights + value
        before.append(last)
    chain, at = [], first_largest(ending, tolerance=SAME)
    while at >= 0:
        chain.append(at)
        at = int(before.pop()[at])
    return float(ending.max()), tuple(reversed(chain))


def at_most(uses: int, weights: Array, linked: Sequence[Array], gap: int) -> tuple[float, tuple[int, ...]]:
    """A bound on the sums of `best_chain` over at most `uses` steps, rounded up, and steps that come near it.

    Args: weights: >= 0; linked: entries may be sums of as many numbers as there can be steps.
    Guarantees: the sum of these steps, up to rounding, where they are counted or at most `uses` without a price.
    """
    most = -(-len(weights) // gap)
    uses = min(uses, most)
    if (uses <= COUNTED or not linked) and uses * len(weights) <= MAX_TABLE:
        value, chain = counted_chain(uses, weights, linked, gap)
        return value * (1 + 4 * (uses + 2 + (most if linked else 0)) * UNIT), chain
    rounding = 8 * (uses + most + 8) * UNIT
    largest = float(weights.max(initial=0.0) + max((link.max(initial=0.0) for link in linked), default=0.0))
    free, chain = best_chain(weights, linked, gap)
    if len(chain) <= uses:
        return free * (1 + rounding), chain
    allowed, low, high = chain[:uses], 0.0, largest
    upper = min(free, uses * largest) * (1 + rounding)
    for _ in range(PRICES):
        if len(chain) == uses or high - low <= CLOSE * largest or upper <= (1 + CLOSE) * weights[list(allowed)].sum():
            break
        price = (low + high) / 2
        value, chain = best_chain(weights - price, linked, gap)
        upper = min(upper, value + uses * price + rounding * (free + most * price))
        if len(chain) > uses:
            low = price
            continue
        high = price
        if len(chain) == uses or len(allowed) < uses:
            allowed = chain
    return upper, allowed
