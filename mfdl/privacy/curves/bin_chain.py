"""Balls-in-bins with correlation that decays, or ends, along the bins: epsilon, delta and the least noise, never below.

In: a `BinChain` M' >= M in every entry (`chain_fit.chain_above` finds one), a noise multiplier, an adjacency. Out:
hockey sticks of the pair of M', from the law of the sum of its likelihood ratios (`chain_sums`), on coarse grids where
they suffice.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from ... import check
from ...check import FloatArray
from ...errors import InvalidInput
from .base import UP, Pass, least_multiplier
from .chain_sums import COARSE, FINE, MEANS, Resolution, sum_law

PRECISION = 2e-3
"""Relative: how far calibrated noise may lie above the least that is certified."""
BETWEEN = ("links", "carried")
"""What a chain has for each bin but the first."""
CLOSE = {False: 1e-7, True: 2e-3}
"""Relative: the same of epsilon, of a record that is left out or replaced, whose every epsilon has a law of its own."""


@dataclasses.dataclass(frozen=True)
class BinChain:
    """M' over max M_rr: f f^T + T K T^T + diag(alone), K the covariance of a Gauss-Markov chain over the bins.

    T = I with `carried` below its diagonal: bin r is correlated with the state of its own bin and of the one before.
    Without links, M' is then that of a moving average, whose correlation ends at neighbours.

    Attributes:
        shared: f_r >= 0, shape (b,).
        spread: std of the chain at each bin, > 0, shape (b,).
        links: correlation of the chain at neighbours, in (0, 1), shape (b - 1,).
        alone: variance of each bin by itself, > 0, shape (b,).
        carried: what each bin but the first takes of the state before its own, >= 0, shape (b - 1,); default nothing.

    Raises: InvalidInput: an entry out of range, or other shapes.
    """

    shared: tuple[float, ...]
    spread: tuple[float, ...]
    links: tuple[float, ...]
    alone: tuple[float, ...]
    carried: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.carried):
            object.__setattr__(self, "carried", (0.0,) * (len(self.shared) - 1))
        limits = {"shared": 0.0, "spread": 1e-6, "links": 1e-6, "alone": 1e-6, "carried": 0.0}
        for name, least in limits.items():
            values = check.finite_array(1, **{name: getattr(self, name)})
            size, most = len(self.shared) - (name in BETWEEN), 0.9999 if name == "links" else 10.0
            if values.size != size or size < 1 or not ((values >= least) & (values <= most)).all():
                raise InvalidInput(
                    f"{name} must be {size} numbers from {least:g} to {most:g}, got {check.brief(values)}."
                )
            object.__setattr__(self, name, tuple(float(x) for x in values))

    @property
    def bins(self) -> int:
        """b."""
        return len(self.shared)

    @functools.cached_property
    def mixing(self) -> FloatArray:
        """T, shape (b, b)."""
        return np.asarray(np.eye(self.bins) + np.diag(self.carried, -1))

    @functools.cached_property
    def covariance(self) -> FloatArray:
        """K, shape (b, b)."""
        u = np.array(self.spread)
        logs = np.concatenate([[0.0], np.cumsum(np.log(self.links))])
        return np.asarray(np.outer(u, u) * np.exp(-np.abs(logs[:, None] - logs)))

    @property
    def gram(self) -> FloatArray:
        """M', shape (b, b)."""
        T = self.mixing
        return np.asarray(np.outer(self.shared, self.shared) + T @ self.covariance @ T.T + np.diag(self.alone))

    def short_of(self, M: FloatArray) -> float:
        """The least factor >= 1 that raises M' above M in every entry; inf where an entry of M' is zero below M."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(M > 0, M / self.gram, 0.0)
        return max(1.0, float(ratios.max()))

    # ---- numbers -----------------------------------------------------------------------------------------

    def delta(self, noise_multiplier: float, adjacency: str, epsilon: float) -> float:
        """A delta at this epsilon >= 0, at least the true one."""
        return max(self.hockey_stick(noise_multiplier, way, epsilon, FINE) for way in _ways(adjacency))

    def epsilon(self, noise_multiplier: float, adjacency: str, delta: float, most: float) -> float:
        """The least epsilon up to `most`, a bound on it, at which delta is certified; `most` where none is."""

        def lowest(way: str, points: Resolution, low: float, high: float) -> float:
            def excess(epsilon: float) -> float:
                return math.log(max(self.hockey_stick(noise_multiplier, way, epsilon, points), 1e-300) / delta)

            return _lowest(excess, low, high, CLOSE[way == "replaced"])

        least = 0.0
        for way in _ways(adjacency):
            if way == "lost" and self.hockey_stick(noise_multiplier, way, least, COARSE) <= delta:
                continue
            if way == "replaced":
                near = min(most, lowest(way, COARSE, 0.6 * most, most))
                least = lowest(way, FINE, 0.95 * near, near)
            else:
                least = max(least, lowest(way, FINE, 0.0, most))
            if least >= most:
                return most
        return least

    def least_multiplier(self, known: float, adjacency: str, epsilon: float, delta: float) -> float:
        """The least noise multiplier up to `known`, to `PRECISION`, at which (epsilon, delta) is certified.

        Args: known: a multiplier that another bound certifies.
        Cost: some ten laws, half of them on coarse grids: a quarter of a minute for 16 bins.
        """

        def excess(multiplier: float, fine: int) -> float:
            worst = 0.0
            for way in _ways(adjacency):
                value = self.hockey_stick(multiplier, way, epsilon, COARSE)
                if fine and value > max(worst, delta / 2):
                    value = self.hockey_stick(multiplier, way, epsilon, FINE)
                worst = max(worst, value)
            return math.log(max(worst, 1e-300) / delta)

        if math.isinf(known) or excess(known, 1) > 0:
            return known
        return least_multiplier(excess, known, (Pass(0, 1.1, 0.02), Pass(1, 1.01, PRECISION)))

    def hockey_stick(self, noise_multiplier: float, way: str, epsilon: float, points: Resolution) -> float:
        """The divergence of one direction, "kept", "lost" or "replaced", at epsilon >= 0, at least.

        Cost: that of `sum_law`, once for all epsilons of "kept" and of "lost".
        """
        grown, replaced = math.exp(epsilon), way == "replaced"
        law = sum_law(self.times(UP / noise_multiplier**2), way, epsilon if replaced else 0.0, points)
        if way == "lost":
            total = grown * float(np.maximum(self.bins / grown - law.values * (1 - MEANS), 0.0) @ law.mass)
            return min(1.0, total * (1 + MEANS) / self.bins + law.cut)
        values = law.values if replaced else law.values * (1 + MEANS) - self.bins * grown
        return min(1.0, (float(np.maximum(values, 0.0) @ law.mass) * (1 + MEANS) + law.cut) / self.bins)

    def times(self, factor: float) -> BinChain:
        """M' times a factor."""
        return _times(self, factor)


@functools.lru_cache(maxsize=64)
def _times(chain: BinChain, factor: float) -> BinChain:
    scaled, root = object.__new__(BinChain), math.sqrt(factor)
    for name, by in (("shared", root), ("spread", root), ("links", 1.0), ("alone", factor), ("carried", 1.0)):
        object.__setattr__(scaled, name, tuple(x * by for x in getattr(chain, name)))
    return scaled


def _ways(adjacency: str) -> tuple[str, ...]:
    return ("replaced",) if adjacency == "replace-one" else ("kept", "lost")


def _lowest(excess: Callable[[float], float], low: float, high: float, precision: float) -> float:
    """An epsilon in [low, high] whose excess is <= 0, the least to this precision; inf where that of `high` is not."""
    under = excess(high)
    if not under <= 0:
        return math.inf
    over = excess(low)
    if over <= 0:
        return low
    while high > low + precision * high + 1e-9:
        width = high - low
        aim = low + width * min(max(over / (over - under), 0.02), 0.98)
        for side in (precision / 3, -precision / 3):  # either side of where the root should be
            middle = min(max(aim + side * high, low + width / 50), high - width / 50)
            if not low < middle < high:
                continue
            value = excess(middle)
            if value <= 0:
                high, under = middle, value
            else:
                low, over = middle, value
                break
    return high
