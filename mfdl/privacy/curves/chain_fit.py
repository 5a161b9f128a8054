"""A Gauss-Markov chain above M: the matrix that stands in for M in the certified numbers of balls-in-bins.

In: M. Out: f f^T + K + diag(own), K_rq = u_r u_q c_r .. c_{q-1}, at least M in every entry, with little above it: the
sum of the entries off the diagonal is least, by sequential quadratic programming. Whatever the search finds is raised
until it is at least M, so nothing rests on its convergence.
"""

from __future__ import annotations

import functools

import numpy as np
import scipy.optimize

from ...check import FloatArray
from .base import UP
from .bin_chain import BinChain

MOST_BINS = 32
"""Up to which a chain is sought: the search costs the fourth power of bins, the law bins times its states."""
WORTH = 0.01
"""Relative: by how much the mean of M is to be below that of the hull for a chain to be sought."""
LEAST_OWN = 0.01
"""Of the largest M_rr: variance that each bin has alone, which sets the step of the chain's lattice."""
MARGIN = 1e-7
"""What entries are to be above M, for rounding of the search."""


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
    search = _Search(M)
    found = scipy.optimize.minimize(
        search.sum, search.start(), jac=search.slope, method="SLSQP", bounds=search.bounds(),
        constraints={"type": "ineq", "fun": search.above, "jac": search.slopes}, options={"maxiter": 200, "ftol": 1e-7},
    )  # fmt: skip
    chain = search.chain(found.x)
    ratio = float((M / chain.gram).max())
    raised = chain.times(max(1.0, ratio) * UP)
    return BinChain(raised.shared, raised.spread, raised.links, raised.own) if np.isfinite(ratio) else None


class _Search:
    """Numbers (f, u, c) of a chain, and how its entries change with them."""

    def __init__(self, M: FloatArray) -> None:
        self.M, self.bins = M, len(M)
        self.rows, self.columns = np.triu_indices(self.bins, 1)
        self.off = ~np.eye(self.bins, dtype=bool)

    def start(self) -> FloatArray:
        """The least entry is common; neighbours correlate as in M on average."""
        d, least = self.M.diagonal(), float(self.M[self.off].min())
        shared = np.sqrt(max(least, 0.02) * d)
        near = np.mean(np.diagonal(self.M, 1)) - least
        far = (np.mean(np.diagonal(self.M, 2)) if self.bins > 2 else 0.0) - least
        link = float(np.clip(far / near, 0.05, 0.95)) if near > 0 else 0.5
        return np.concatenate([shared, 0.9 * np.sqrt(np.maximum(d - shared**2, 0.01)), np.full(self.bins - 1, link)])

    def bounds(self) -> list[tuple[float, float]]:
        """Of each number."""
        return [(0.0, 3.0)] * self.bins + [(0.02, 3.0)] * self.bins + [(1e-3, 0.999)] * (self.bins - 1)

    def parts(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """f, u, c and K."""
        f, u, c = np.split(x, [self.bins, 2 * self.bins])
        logs = np.concatenate([[0.0], np.cumsum(np.log(np.maximum(c, 1e-6)))])
        return f, u, c, np.outer(u, u) * np.exp(-np.abs(logs[:, None] - logs))

    def sum(self, x: FloatArray) -> float:
        """Of the entries above the diagonal."""
        f, _, _, K = self.parts(x)
        return float((np.outer(f, f) + K)[self.rows, self.columns].sum())

    def slope(self, x: FloatArray) -> FloatArray:
        """Of the sum."""
        f, u, c, K = self.parts(x)
        upper = np.triu(K, 1)
        across = np.array([upper[: j + 1, j + 1 :].sum() for j in range(self.bins - 1)])
        return np.concatenate([f.sum() - f, (K * self.off).sum(axis=1) / u, across / c])

    def above(self, x: FloatArray) -> FloatArray:
        """Entries less M, then what is left of the diagonal: >= 0."""
        f, _, _, K = self.parts(x)
        X = np.outer(f, f) + K
        off = (X - self.M)[self.rows, self.columns] - MARGIN
        return np.concatenate([off, self.M.diagonal() - X.diagonal() - LEAST_OWN])

    def slopes(self, x: FloatArray) -> FloatArray:
        """Of each of those."""
        f, u, c, K = self.parts(x)
        r, q, b, count = self.rows, self.columns, self.bins, self.rows.size
        at, bins, links = np.arange(count), np.arange(b), np.arange(b - 1)
        J = np.zeros((count + b, x.size))
        J[at, r], J[at, q] = f[q], f[r]
        J[at, b + r], J[at, b + q] = K[r, q] / u[r], K[r, q] / u[q]
        J[:count, 2 * b :] = K[r, q][:, None] * ((r[:, None] <= links) & (links < q[:, None])) / c
        J[count + bins, bins], J[count + bins, b + bins] = -2 * f, -2 * u
        return J

    def chain(self, x: FloatArray) -> BinChain:
        """The chain of these numbers; what is left of the diagonal is each bin's own."""
        f, u, c, _ = self.parts(np.clip(x, *np.array(self.bounds()).T))
        own = np.maximum(self.M.diagonal() - f**2 - u**2, LEAST_OWN)
        return BinChain(tuple(f), tuple(u), tuple(c), tuple(own))
