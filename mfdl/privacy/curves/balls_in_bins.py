"""Privacy loss of noise correlated in time under balls-in-bins, each record in one secret bin: certified upper bounds.

In: a noise multiplier, the numbers of M = (|C| E)^T (|C| E) that count, an adjacency. Out: epsilon at delta, delta at
epsilon, and the privacy loss distribution that they are read off. docs/balls_in_bins_theorem.md proves that a
decentralized algorithm is dominated by the pair of M, and that each step here is an upper bound; M comes from
`mfdl.privacy.bin_gram`. Three kinds of bounds are computed, and the least of all of them holds.

Hull (`bin_hull`): with d = max M_rr and rho d = max M_rq, the pair of d ((1 - rho) I + rho J).
Stride: the hull of every b'-th part of the bins, for the worst of its shifts.
Chain (`bin_chain`): a matrix at least M that follows its entries, a common part and a Gauss-Markov chain.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import check
from ...check import FloatArray
from ...display import rounded_up
from ...errors import InvalidInput, require_known
from .. import gaussian
from .base import UP, public_mu
from .bin_chain import BinChain
from .bin_hull import LEAST_DELTA, WEAKEST, Hull, least_noise
from .composed import LossCurve, tail_of

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


MOST_TIGHT = 256
"""Bins up to which the atoms of a law are enough for the stated precision: at 500 they miss it at delta 1e-10."""


@dataclasses.dataclass(frozen=True)
class BallsInBinsGaussian(LossCurve):
    """T steps of Gaussian noise correlated in time, each record in the steps of one of b bins, drawn secretly once.

    Attributes:
        noise_multiplier: s >= 0, std of the noise over (clipping norm * sqrt(max M_rr)): what it is for public bins.
        bins: b >= 1.
        correlations: pairs (b', rho): b' of the bins, evenly spread, have no two with M_rq > rho max M_rr, wherever
            they start; the first one is of all bins.
        adjacency: "zero-out", "add-remove" or "replace-one".
        chain: a matrix that is at least M over max M_rr; None where the hull is as close (`chain_fit.chain_above`).

    >>> curve = BallsInBinsGaussian(4.269 / 20**0.5, 16, ((16, 0.0),), "zero-out")
    >>> 1.990 < curve.epsilon(1e-5) < 1.996, curve.at(0.0).epsilon(1e-5)
    (True, inf)
    """

    noise_multiplier: float
    bins: int
    correlations: tuple[tuple[int, float], ...]
    adjacency: str
    chain: BinChain | None = None

    mu = None
    method = "certified"
    sampling_in_words = "balls-in-bins"
    noise_on = "the sum of clipped gradients, in the sensitivity of a record whose steps were public"

    def __post_init__(self) -> None:
        require_known("adjacency", str(self.adjacency), gaussian.ADJACENCIES)
        bins = check.integer_at_least(1, bins=self.bins)
        try:
            pairs = tuple((int(count), float(rho)) for count, rho in self.correlations)
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput(
                f"correlations must be pairs of a number of bins and rho in [0, 1], got {self.correlations!r}."
            ) from None
        if not pairs or pairs[0][0] != bins or not all(1 <= count <= bins and 0 <= rho <= 1 for count, rho in pairs):
            raise InvalidInput(
                f"correlations must be pairs (b' <= {bins}, rho in [0, 1]), all bins first, got {pairs}."
            )
        multiplier = check.non_negative(noise_multiplier=self.noise_multiplier)
        if self.chain is not None and (not isinstance(self.chain, BinChain) or self.chain.bins != bins):
            raise InvalidInput(f"chain must be a BinChain of {bins} bins, got {check.brief(self.chain)}.")
        for name, value in (("noise_multiplier", multiplier), ("bins", bins), ("correlations", pairs)):
            object.__setattr__(self, name, value)

    def epsilon(self, delta: float) -> float:
        """An epsilon at this delta in (0, 1), never below the true one; inf without noise."""
        least = min(self.public_epsilon(delta), *(hull.epsilon(delta) for hull in self._hulls))
        if self.chain is not None and self.fits:
            least = self.chain.epsilon(self.noise_multiplier, self.adjacency, check.open_unit(delta=delta), least)
        return least

    def delta(self, epsilon: float) -> float:
        """A delta at this epsilon >= 0, never below the true one; 1 without noise."""
        epsilon = check.non_negative(epsilon=epsilon)
        if not self.noise_multiplier:
            return 1.0
        least = min(self.public_delta(epsilon), *(hull.delta(epsilon) for hull in self._hulls))
        if self.chain is not None and self.fits:
            least = min(least, self.chain.delta(self.noise_multiplier, self.adjacency, epsilon))
        return least

    @property
    def public_mu(self) -> float:
        """Of the same noise with public bins."""
        return public_mu(self.adjacency, self.noise_multiplier)

    @property
    def _hulls(self) -> tuple[Hull, ...]:
        """Of all bins, and of evenly spread parts of them."""
        return tuple(Hull(self.noise_multiplier, count, rho, self.adjacency) for count, rho in self.correlations)

    def tight(self, delta: float) -> bool:
        """Whether epsilon at this delta is at most 2 % (and 1e-3) above the exact one where all M_rr are equal.

        It is where up to `MOST_TIGHT` bins are not correlated; else the hull and the strides are upper bounds of no
        stated precision.
        """
        if self.bins == 1:
            return True
        return self.bins <= MOST_TIGHT and self._hulls[0].direct and delta >= LEAST_DELTA

    def at(self, noise_multiplier: float) -> BallsInBinsGaussian:
        """The same bins at another noise multiplier."""
        return dataclasses.replace(self, noise_multiplier=noise_multiplier)

    def least_multiplier(self, epsilon: float, delta: float, by: str = "tightest") -> float:
        """The least noise multiplier, to `PRECISION`, at which these bins certify (epsilon, delta): never less.

        Raises: InvalidInput: epsilon not > 0, delta outside (0, 1), another `by`.
        Cost: some ten bounds for each pair of `correlations`: seconds, under replace-one up to a minute.
        """
        epsilon, delta = check.positive(epsilon=epsilon), check.open_unit(delta=delta)
        require_known("by", by, ("tightest",))
        least = gaussian.record_shift(self.adjacency, 1.0) / gaussian.mu_from_epsilon(epsilon, delta) * UP
        for count, rho in self.correlations:
            least = Hull(least, count, rho, self.adjacency).least_multiplier(epsilon, delta)
        if self.chain is not None:
            least = self.chain.least_multiplier(least, self.adjacency, epsilon, delta)
        return least

    # ---- composition -----------------------------------------------------------------------------------------

    @property
    def fits(self) -> bool:
        """Whether there is noise enough, and not too much, for laws of balls-in-bins in float64."""
        return self._hulls[0].fits

    @property
    def interval(self) -> float:
        """Discretization of the losses: a small part of their standard deviation."""
        return min(hull.interval for hull in self._hulls)

    def losses(self, delta: float, interval: float | None = None) -> PrivacyLossDistribution:
        """The privacy loss distribution of the bound that is least at this delta: for composition.

        Args: interval: its discretization; default that of the hull.
        """
        if not self.fits:
            least = least_noise(self.adjacency)
            raise InvalidInput(
                f"noise_multiplier must be >= {least} to compose, and <= {WEAKEST:g}, got {self.noise_multiplier:g}."
            )
        best = min(self._hulls, key=lambda hull: hull.epsilon(delta))  # bound
        return best.losses(tail_of(check.open_unit(delta=delta)), interval)

    # ---- words and files -------------------------------------------------------------------------------------

    def remark(self, delta: float) -> str:
        """What stands beside epsilon in words: how close it is, and what the same noise gives where bins are public."""
        precision = (
            "at most 2 % above the exact value if all bins weigh the same"
            if self.tight(delta)
            else "an upper bound of no stated precision"
        )
        return f"{precision}; the same noise with public bins has epsilon = {rounded_up(self.public_epsilon(delta), 4)}"

    def facts(self, delta: float) -> dict[str, Any]:
        """Whether epsilon at this delta is close to the exact one."""
        return {"tight_for_equal_bins": self.tight(delta)}


def correlations(M: FloatArray) -> tuple[tuple[int, float], ...]:
    """The pairs (b', rho) of `BallsInBinsGaussian` that are worth a look, from M or any matrix that is at least M.

    Args: M: shape (b, b), entries >= 0, symmetric.
    """
    bins, largest = len(M), float(M.diagonal().max())
    apart = np.array([max(M[r, (r + lag) % bins] for r in range(bins)) for lag in range(bins)]) / largest
    best: dict[int, float] = {}
    for stride in range(1, max(2, bins // 2 + 1)):
        rho = 0.0
        for count in range(2, bins // math.gcd(bins, stride) + 1):
            lag = (count - 1) * stride % bins
            rho = max(rho, float(apart[lag]), float(apart[-lag]))
            best[count] = min(best.get(count, 1.0), min(1.0, rho * UP))
    pairs = [(bins, best.get(bins, 0.0))]
    for count in range(bins - 1, 1, -1):
        if count in best and best[count] < pairs[-1][1] * (1 - 1e-3):
            pairs.append((count, best[count]))
    return tuple(pairs)
