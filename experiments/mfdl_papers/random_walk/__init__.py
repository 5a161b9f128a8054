"""Random walks, arXiv:2510.19934 [PNF]: what one node learns of another from a token, over the draw of the walk.

Losses are of Gaussians drawn at random, composed and mixed: upper bounds on delta, by Fourier transforms. Both worlds
know which Gaussian is composed; `WalkLosses` knows nothing of walks.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy.special import ndtr

from mfdl import check
from mfdl.check import FloatArray
from mfdl.errors import InvalidInput
from mfdl.gossip import Gossip

from ..facts import errata
from ..published import NON_ADAPTIVE, PublishedBound, constant, node_index

POINTS = 2**13  # of the grid of losses, to which they are rounded up: fewer give another upper bound
SMALLEST, LARGEST = 16.0, 1024.0  # how far the grid reaches, both ways
ORDER = 2.0  # of the moment that bounds what lies beyond
SLACK = 1e-11  # of delta: what floating point may do to the transforms, all sums being of probabilities
FAINT = 1e-14  # weights of a mixture that count as lost
LEAST = 1e-9  # a mu that is smaller counts as it
WIDTH = 9.0  # standard deviations beyond which a Gaussian has 1e-19


def hitting_times(gossip: Gossip, attacker: Hashable, num_steps: int) -> FloatArray:
    """P(the token that node u has now comes to the attacker for the first time t steps later), [t - 1, u].

    >>> from mfdl.gossip import metropolis_hastings
    >>> hitting_times(metropolis_hastings("path:n=3"), 2, 3).round(3)
    array([[0.   , 0.333, 0.667],
           [0.111, 0.111, 0.111],
           [0.111, 0.074, 0.037]])

    Raises: UnsupportedMechanism: W changes over time.
    Cost: num_steps products with W.
    """
    check.integer_at_least(1, num_steps=num_steps)
    W, v = constant(gossip).dense(), node_index(gossip.labels, attacker)
    rows, outside = [W[:, v]], _outside(W, v)
    for _ in range(num_steps - 1):
        rows.append(outside @ rows[-1])
    return np.array(rows)


def pn_f_dp(
    gossip: Gossip,
    attacker: Hashable,
    *,
    num_steps: int,
    noise_multiplier: float,
    delta: float,
    visits: int | None = None,
    late: bool = False,
) -> PublishedBound:
    """PN-f-DP: epsilon of each node u against v, where steps do not expand, from the times until v has the token.

    A visit of u that v hears of t steps later is hidden by the noise of t steps, mu_t = 1 / (sigma sqrt(t)); over the
    walk that is the mixture of these Gaussian trade-offs, weighted by `hitting_times`, with nothing lost where the
    token does not come within T steps. It is composed over the visits of u as if each had noise of its own.

    Source: [PNF] arXiv:2510.19934, PN-f-DP of one local step (K = 1) and no contraction (c = 1), as in its public code
        (`gdp.py`), whose formulas and counts these are.
    Claims: epsilon at delta, of all data of u in all its visits.
    Errata: `pn-f-dp-composition`, `pn-f-dp-late`.
    Validity: "bound" for one visit, of gradient steps that do not expand; else "refuted".

    Args:
        gossip: W, the probabilities of the walk; attacker: v. num_steps: T.
        noise_multiplier: sigma, std of the noise over the record shift.
        visits: how many are composed; default floor(T / n) as coded, at least 1.
        late: noise of one step more for each visit, mu = 1 / (sigma sqrt(t + 1)), as the code of synthetic graphs has.

    Raises: InvalidInput: attacker unknown, numbers out of range. UnsupportedMechanism: W changes over time.
    Cost: T products with W, and T n Gaussians on a grid.
    """
    sigma = _checked_sigma(num_steps, noise_multiplier, delta)
    times, v, n = hitting_times(gossip, attacker, num_steps), node_index(gossip.labels, attacker), gossip.num_nodes
    count = max(1, num_steps // n) if visits is None else check.integer_at_least(1, visits=visits)
    mus = np.append(1 / (sigma * np.sqrt(np.arange(1, num_steps + 1) + late)), 0.0)

    def losses(u: int, reach: float) -> WalkLosses:
        weights = np.append(times[:, u], max(0.0, 1 - float(times[:, u].sum())))
        return functools.reduce(WalkLosses.times, [WalkLosses.gaussians(reach, weights, mus)] * count)

    value = np.full(n, math.inf)
    for u in range(n):
        if u != v:
            value[u] = smallest_epsilon(lambda reach, u=u: losses(u, reach), delta)  # type: ignore[misc]
    validity = "bound for one visit, of gradient steps that do not expand"
    if late:
        validity = "refuted: noise that the attacker adds itself is counted"
    elif count > 1:
        validity = "refuted: noise is counted once for each visit that it hides"
    source = "[PNF] arXiv:2510.19934, PN-f-DP as in its public code, K = 1 and c = 1"
    return PublishedBound(value, "epsilon", source, errata("pn-f-dp-composition", "pn-f-dp-late"), validity)


def walk_known(
    gossip: Gossip,
    attacker: Hashable,
    *,
    num_steps: int,
    noise_multiplier: float,
    delta: float,
    victims: Sequence[int] | None = None,
    start: Sequence[float] | FloatArray | None = None,
) -> PublishedBound:
    """epsilon of each node u against v over the draw of the walk, u's data in all its visits, v knowing the whole walk.

    Given the walk, mu^2 is the sum of m^2 / (L sigma^2) over the times that v gets the token: m visits of u and L steps
    of others since v had it last (`algorithms.random_walk`). The walk does not depend on data, so delta is the mean
    over walks of delta given the walk; what happens between two times at v is drawn anew, so the mean is a renewal
    recursion of privacy losses.

    Source: this library, in place of the composition of [PNF].
    Claims: epsilon at delta. Validity: "bound" for non-adaptive gradients.

    Args: victims: node indices, default all others; the rest are nan. start: probabilities of the first node, (n,);
        default uniform. The rest as in `pn_f_dp`.
    Raises: InvalidInput: attacker unknown, numbers out of range, no probabilities. UnsupportedMechanism: W changes.
    Cost: for each victim T^2 products with W and T^2 transforms of `POINTS`: seconds for T = 300.
    """
    sigma, W = _checked_sigma(num_steps, noise_multiplier, delta), constant(gossip).dense()
    v, n = node_index(gossip.labels, attacker), gossip.num_nodes
    first = np.full(n, 1 / n) if start is None else check.finite_array(1, start=start)
    if first.shape != (n,) or (first < 0).any() or abs(first.sum() - 1) > 1e-9:
        raise InvalidInput(f"start must be {n} probabilities, one per node, got {first.size} of sum {first.sum():g}.")
    value = np.full(n, math.nan)
    value[v] = math.inf
    for u in range(n) if victims is None else victims:
        if u != v:
            before, between = (_visits_until(W, u, v, of, num_steps) for of in (first, W[v]))
            value[u] = smallest_epsilon(lambda reach: _over_walks(reach, before, between, sigma), delta)  # noqa: B023
    validity = f"bound {NON_ADAPTIVE}, the walk drawn independently of data"
    return PublishedBound(value, "epsilon", "this library", "", validity)


def _over_walks(reach: float, before: list[FloatArray], between: list[FloatArray], sigma: float) -> WalkLosses:
    """Losses of T steps: at each time that v gets the token what it was hidden by since the last one."""

    def walk_losses(chances: list[FloatArray]) -> list[WalkLosses]:
        return [
            WalkLosses.gaussians(reach, weights, np.arange(weights.size) / (sigma * math.sqrt(max(L, 1))))
            for L, weights in enumerate(chances)
        ]

    since_start, since_v, at_v = walk_losses(before), walk_losses(between), list[WalkLosses]()
    comes_back = np.cumsum([weights.sum() for weights in between])
    total = WalkLosses.none(reach, max(0.0, 1 - sum(float(weights.sum()) for weights in before)))
    T = len(before) - 1
    for t in range(T + 1):
        here = since_start[t]
        for s in range(t):
            here = here.plus(at_v[s].times(since_v[t - s - 1]))
        at_v.append(here)
        stays_away = 1.0 if t == T else max(0.0, 1 - float(comes_back[T - t - 1]))
        total = total.plus(here.times(WalkLosses.none(reach, stays_away)))
    return total


def _visits_until(W: FloatArray, u: int, v: int, first: FloatArray, most: int) -> list[FloatArray]:
    """[L][m]: P(the token comes to v after L <= most steps elsewhere, m of them at u), given where it goes first."""
    probabilities, outside, at = [np.array([first[v]])], _outside(W, v), np.zeros((0, len(W)))
    moved = np.where(np.arange(len(W)) == v, 0.0, first)[None]
    for _ in range(most):  # at[m, i]: it is at i, after m visits of u, this one counted
        at = np.vstack([moved, np.zeros((1, len(W)))])
        at[:, u] = np.append(0.0, at[:-1, u])
        probabilities.append(at @ W[:, v])
        moved = at @ outside
    return probabilities


def _outside(W: FloatArray, v: int) -> FloatArray:
    """Moves that do not end at v."""
    return np.where(np.arange(len(W)) == v, 0.0, W)


def _checked_sigma(num_steps: int, noise_multiplier: float, delta: float) -> float:
    check.integer_at_least(1, num_steps=num_steps)
    check.open_unit(delta=delta)
    return check.positive(noise_multiplier=noise_multiplier)


@dataclasses.dataclass(frozen=True, eq=False)
class WalkLosses:
    """A measure of privacy losses, of mass 1 or less.

    Attributes: transform: of what lies on the grid, loss 0 first, so that sums of losses are products; mass: all of it;
        moment: E exp(ORDER loss), for what comes round again; lost: mass that counts as infinite loss.
    """

    reach: float
    transform: NDArray[np.complex128]
    mass: float
    moment: float
    lost: float = 0.0

    @classmethod
    def none(cls, reach: float, mass: float = 1.0) -> WalkLosses:
        """Loss 0."""
        return cls(reach, np.full(POINTS // 2 + 1, complex(mass)), mass, mass)

    @classmethod
    def gaussians(cls, reach: float, weights: FloatArray, mus: FloatArray) -> WalkLosses:
        """Losses N(mu^2 / 2, mu^2) of N(mu, 1) against N(0, 1), mu drawn with these weights."""
        step, half = 2 * reach / POINTS, POINTS // 2
        on_grid, lost, moment = np.zeros(POINTS), 0.0, 0.0
        for weight, given in zip(weights.tolist(), mus.tolist(), strict=True):
            mu = max(given, LEAST) if given else 0.0
            middle, top = mu * mu / 2, mu * mu / 2 + WIDTH * mu + step
            if mu == 0:
                on_grid[half] += weight
            elif weight < FAINT or top >= reach - step or middle - WIDTH * mu <= step - reach:
                lost += weight
                continue
            else:
                first = half + math.floor((middle - WIDTH * mu) / step)
                grid = step * (np.arange(first, half + math.ceil(top / step) + 1) - half)
                part = weight * np.diff(ndtr(grid / mu - mu / 2), prepend=0.0)
                lost += max(0.0, weight - float(part.sum()))
                on_grid[first : first + part.size] += part
            exponent = ORDER * (ORDER + 1) * middle + ORDER * step
            moment += weight * math.exp(exponent) if exponent < 700 else math.inf
        return cls(reach, scipy.fft.rfft(np.roll(on_grid, -half)), float(weights.sum()), moment, lost)

    def times(self, other: WalkLosses) -> WalkLosses:
        """Composition of both, independent."""
        a, b, lost = self, other, self.lost * other.mass + self.mass * other.lost
        return WalkLosses(a.reach, a.transform * b.transform, a.mass * b.mass, a.moment * b.moment, lost)

    def plus(self, other: WalkLosses) -> WalkLosses:
        """Mixture of both."""
        a, b, lost = self, other, self.lost + other.lost
        return WalkLosses(a.reach, a.transform + b.transform, a.mass + b.mass, a.moment + b.moment, lost)

    @property
    def never_counted(self) -> float:
        """Bound on the mass that is lost or lies beyond the grid, where it would come round again."""
        return self.lost + self.moment * math.exp(-ORDER * self.reach) + SLACK

    @functools.cached_property
    def _on_grid(self) -> tuple[FloatArray, FloatArray]:
        """(losses >= 0 of the grid, the mass at each)."""
        mass = np.asarray(scipy.fft.irfft(self.transform, POINTS), dtype=np.float64)
        return np.arange(POINTS // 2, dtype=np.float64) * (2 * self.reach / POINTS), mass[: POINTS // 2]

    def delta(self, epsilon: float) -> float:
        """An upper bound on E (1 - exp(epsilon - loss))_+."""
        losses, mass = self._on_grid
        above = losses > epsilon
        return float(np.maximum(mass[above], 0.0) @ -np.expm1(epsilon - losses[above])) + self.never_counted

    def epsilon(self, delta: float) -> float:
        """The least point of the grid with at most this delta; inf where there is none."""
        grid = self._on_grid[0]
        place = bisect.bisect_left(grid, True, key=lambda epsilon: self.delta(float(epsilon)) <= delta)
        return math.inf if place == grid.size else float(grid[place])


def smallest_epsilon(losses: Callable[[float], WalkLosses], delta: float) -> float:
    """epsilon at delta on the least grid that reaches far enough; inf for a delta too close to SLACK."""
    reach = SMALLEST
    while reach <= LARGEST:
        mixture = losses(reach)
        if mixture.never_counted <= delta / 100 and math.isfinite(epsilon := mixture.epsilon(delta)):
            return epsilon
        reach *= 2
    return math.inf
