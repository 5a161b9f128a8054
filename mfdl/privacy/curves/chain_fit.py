"""A Gauss-Markov chain above M: the matrix that stands in for M in the certified numbers of balls-in-bins.

In: M. Out: f f^T + T K T^T + diag(alone), K_rq = u_r u_q c_r .. c_{q-1}, at least M in every entry, little above it:
the sum of the entries off the diagonal is least, by sequential quadratic programming. T is the identity, or where that
is not close carries states to the next bin, as for encoders of two bands, whose correlation ends at neighbours.
Whatever the search finds is raised until it is at least M, so nothing rests on its convergence.
"""

from __future__ import annotations

import functools

import numpy as np
import scipy

from ...check import FloatArray
from ...errors import InvalidInput
from .base import UP
from .bin_chain import BinChain

MOST_BINS = 32
"""Up to which a chain is sought: the search costs the fourth power of bins, the law bins times its states."""
WORTH = 0.01
"""Relative: by how much the mean of M is to be below that of the hull for a chain to be sought."""
LEAST_OWN = {False: 0.01, True: 0.06}
"""Of the largest M_rr: variance that each bin has alone, which sets the step of the chain's lattice; if states are
carried, a law costs the square of the lattice."""
CLOSE = 0.03  # relative excess of the sum of entries up to which a chain that carries nothing is taken
GAIN = 0.25
"""Part of the excess that carried states must remove: their law costs some ten times as much."""
PLAIN_LINK, END_LINK, SLIGHTLY = None, 0.02, 0.01
"""Links to start from, without and with carried states; what is carried below the last counts as nothing."""
FAINT = 1e-6
"""Weight of the shared part below which a bin has none of it: without any, a law has one state of z."""
MARGIN = 1e-7  # what entries are to be above M, for rounding of the search


def chain_above(M: FloatArray) -> BinChain | None:
    """A chain that is at least M over max M_rr; None where the hull of M is as close, or for more than `MOST_BINS`.

    Args: M: shape (b, b), entries >= 0, symmetric.
    Cost: 0.3 s for 16 bins.
    """
    scaled = np.maximum(M, M.T) / float(M.diagonal().max())
    bins = len(scaled)
    off = scaled[~np.eye(bins, dtype=bool)]
    if not 2 <= bins <= MOST_BINS or off.max() * (bins - 1) + 1 < (1 + WORTH) * float(scaled.sum()) / bins:
        return None
    return _fitted(tuple(tuple(float(x) for x in row) for row in scaled))


@functools.lru_cache(maxsize=64)
def _fitted(rows: tuple[tuple[float, ...], ...]) -> BinChain | None:
    M = np.array(rows)
    plain = _Search(M, carries=False)
    best = plain.best(plain.start(PLAIN_LINK))
    if plain.excess(best) > CLOSE:
        wider = _Search(M, carries=True)
        starts = [wider.start(END_LINK), np.concatenate([best, np.full(len(M) - 1, SLIGHTLY)])]
        carried = min((wider.best(start) for start in starts), key=wider.excess)  # bound
        if wider.excess(carried) < (1 - GAIN) * plain.excess(best):
            plain, best = wider, carried
    chain = plain.chain(best)
    raised = chain.times(chain.shortfall(M) * UP)
    try:
        return BinChain(raised.shared, raised.spread, raised.links, raised.alone, raised.carried)
    except InvalidInput:  # a search that ended far below M; hull and strides are left
        return None


class _Search:
    """Numbers (f, u, c) of a chain, with t of what is carried (f, u, c, t), and how its entries change with them."""

    def __init__(self, M: FloatArray, *, carries: bool) -> None:
        self.M, self.bins, self.carries, self.least_own = M, len(M), carries, LEAST_OWN[carries]
        self.rows, self.columns = np.triu_indices(self.bins, 1)
        self.off = ~np.eye(self.bins, dtype=bool)

    def best(self, start: FloatArray) -> FloatArray:
        """The numbers with the least sum of entries, above M."""
        solution = scipy.optimize.minimize(
            self.sum, start, jac=self.slope, method="SLSQP", bounds=self.bounds(),
            constraints={"type": "ineq", "fun": self.above, "jac": self.slopes},
            options={"maxiter": 200, "ftol": 1e-7},
        )  # fmt: skip
        return np.asarray(solution.x)

    def excess(self, x: FloatArray) -> float:
        """How far the sum of all entries is above that of M, relative; of a chain that is raised to be above M."""
        chain = self.chain(x)
        return float(chain.gram.sum() * chain.shortfall(self.M) / self.M.sum()) - 1

    def start(self, link: float | None) -> FloatArray:
        """The least entry is common; neighbours correlate as in M on average, at a given link if bins carry states."""
        d, least = self.M.diagonal(), float(self.M[self.off].min())
        shared = np.sqrt(max(least, 0.02) * d)
        near = float(np.mean(np.diagonal(self.M, 1))) - least
        if link is None:
            far = (float(np.mean(np.diagonal(self.M, 2))) if self.bins > 2 else 0.0) - least
            link = float(np.clip(far / near, 0.05, 0.95)) if near > 0 else 0.5
        left = np.sqrt(np.maximum(d - shared**2, 0.01))
        links = np.full(self.bins - 1, link)
        if not self.carries:
            return np.concatenate([shared, 0.9 * left, links])
        carried = np.full(self.bins - 1, float(np.clip(near / 0.7, 0.05, 0.8)))
        return np.concatenate([shared, 0.8 * left, links, carried])

    def bounds(self) -> list[tuple[float, float]]:
        b = self.bins
        carried = [(0.0, 3.0)] * (b - 1) * self.carries
        return [(0.0, 3.0)] * b + [(0.02, 3.0)] * b + [(1e-3, 0.999)] * (b - 1) + carried

    def parts(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        b = self.bins
        f, u, c, t = np.split(x, [b, 2 * b, 3 * b - 1])
        logs = np.concatenate([[0.0], np.cumsum(np.log(np.maximum(c, 1e-6)))])
        T = np.eye(b) + (np.diag(t, -1) if t.size else 0.0)
        return f, u, c, T, np.outer(u, u) * np.exp(-np.abs(logs[:, None] - logs))

    def entries(self, x: FloatArray) -> FloatArray:
        f, _, _, T, K = self.parts(x)
        return np.asarray(np.outer(f, f) + T @ K @ T.T)

    def sum(self, x: FloatArray) -> float:
        """Sum of the entries above the diagonal."""
        return float(self.entries(x)[self.rows, self.columns].sum())

    def above(self, x: FloatArray) -> FloatArray:
        """Entries less M, then what is left of the diagonal: >= 0."""
        X = self.entries(x)
        off = (X - self.M)[self.rows, self.columns] - MARGIN
        return np.concatenate([off, self.M.diagonal() - X.diagonal() - self.least_own])

    def moved(self, x: FloatArray) -> FloatArray:
        """Derivatives of the entries by each number, shape (numbers, b, b)."""
        f, u, c, T, K = self.parts(x)
        unit, KT = np.eye(self.bins), K @ T.T
        halves = [
            unit[:, :, None] * f,
            T.T[:, :, None] * (KT / u[:, None])[:, None, :],
            *([unit[1:, :, None] * KT[:-1, None, :]] if self.carries else []),
        ]
        both = [half + half.transpose(0, 2, 1) for half in halves]
        at, links = np.arange(self.bins), np.arange(self.bins - 1)[:, None, None]
        low, high = np.minimum(at[:, None], at), np.maximum(at[:, None], at)
        across = T @ (K * ((low <= links) & (links < high)) / c[:, None, None]) @ T.T
        return np.concatenate([*both[:2], across, *both[2:]])

    def slope(self, x: FloatArray) -> FloatArray:
        return np.asarray(self.moved(x)[:, self.rows, self.columns].sum(axis=1))

    def slopes(self, x: FloatArray) -> FloatArray:
        moved, at = self.moved(x), np.arange(self.bins)
        return np.concatenate([moved[:, self.rows, self.columns].T, -moved[:, at, at].T])

    def chain(self, x: FloatArray) -> BinChain:
        """The chain of these numbers; what is left of the diagonal is each bin's own."""
        inside = np.clip(x, *np.array(self.bounds()).T)
        f, u, c, T, K = self.parts(inside)
        alone = np.maximum(self.M.diagonal() - (np.outer(f, f) + T @ K @ T.T).diagonal(), self.least_own)
        t = np.diag(T, -1) * (np.diag(T, -1) > SLIGHTLY)
        return BinChain(tuple(f * (f > FAINT)), tuple(u), tuple(c), tuple(alone), tuple(t))
