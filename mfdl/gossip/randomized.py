"""Gossip sampled independently in each round: how it is sampled, and its moments.

Over a sparse graph W = I - sum_e b_e w_e e_i (e_i - e_j)^T over directed links e = (i, j), b_e in {0, 1}. Links with no
node in common are independent, so E[W^T X W] is (E W)^T X (E W) and a few terms for each pair of links that meet.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, diags_array, eye_array

from .. import check, graphs
from ..check import FloatArray
from ..errors import InvalidInput
from . import changing
from .matrix import GossipMatrix
from .sequences import GossipSequence

MAX_PAIRS = 10_000_000
"""Most pairs of links with a common node over which moments are summed: half a gigabyte."""

Form: TypeAlias = Callable[[FloatArray], FloatArray]


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
    """Moments of one round W and of P, the diagonal matrix of the nodes that are online.

    Attributes:
        mean: E[W], csr (n, n); around: X -> E[W^T X W] for X of shape (n, n), any.
        rate: probability that a node drops out, 0 without dropout.
        beside: if nodes may drop out, X -> C with columns E[W^T | u is offline] X e_u.
    """

    mean: csr_array
    around: Form
    rate: float = 0.0
    beside: Form | None = None

    @property
    def mean_online(self) -> csr_array:
        """E[W P]: an offline node keeps its model, so W (I - P) = I - P."""
        return csr_array(self.mean - self.rate * eye_array(self.mean.shape[0]))

    def around_online(self, X: FloatArray) -> FloatArray:
        """E[W^T X W P]."""
        return self.around(X) - self._lost(X)

    def back_online(self, X: FloatArray) -> FloatArray:
        """E[W^T X P]."""
        return np.asarray(self.mean.T @ X) - self._lost(X)

    def _lost(self, X: FloatArray) -> FloatArray:
        """E[W^T X (I - P)] = E[W^T X W (I - P)]."""
        return np.zeros_like(X) if self.beside is None else self.rate * self.beside(X)


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """One sample: its rounds, and, if nodes may drop out, which are online in each round, bool (rounds, n)."""

    gossip: GossipSequence
    present: changing.Present | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class RandomGossip:
    """Gossip sampled independently in each round.

    Attributes:
        draw: (rounds, seed) to a sample; public, as in `gossip.random_matchings`.
        moments: None where no closed form is known; expectations are then averaged over samples.
    """

    name: str
    num_nodes: int
    draw: Callable[[int, int], Drawn]
    moments: Moments | None
    node_dropout: bool = False

    def __repr__(self) -> str:
        return f"<{self.name} on {self.num_nodes} nodes, sampled independently in each round>"


def links(gossip: GossipMatrix, rate: float) -> RandomGossip:
    """`gossip.link_dropout`: each link drops out with this probability, in both directions.

    >>> from mfdl.gossip import metropolis_hastings
    >>> links(metropolis_hastings("path:n=2"), 0.5).moments.mean.toarray()
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    edges, up = _Links.from_gossip(gossip), 1 - changing.checked_share(rate)
    moments = edges.moments(up, same=up * (1 - up), meeting=0.0)
    draw = functools.partial(_sequence, lambda rounds, seed: changing.link_dropout(gossip, rounds, rate, seed))
    return RandomGossip(f"link dropout {rate:g}", gossip.num_nodes, draw, moments)


def nodes(gossip: GossipMatrix, rate: float) -> RandomGossip:
    """Dropout of nodes: each drops out with this probability, independently, and then injects nothing."""
    edges, q = _Links.from_gossip(gossip), 1 - changing.checked_share(rate)
    moments = edges.moments(q**2, same=q**2 * (1 - q**2), meeting=q**3 * (1 - q))
    if moments is not None:
        moments = dataclasses.replace(moments, rate=1 - q, beside=functools.partial(edges.beside, moments.mean, q**2))

    def draw(rounds: int, seed: int) -> Drawn:
        online = changing.sampled_presence(gossip.num_nodes, rounds, rate, seed)
        return Drawn(changing.node_dropout(gossip, online), online)

    return RandomGossip(f"node dropout {rate:g}", gossip.num_nodes, draw, moments, node_dropout=True)


def pairs(graph: graphs.Source) -> RandomGossip:
    """`gossip.random_pairs`: the ends of a single edge average."""
    edges = _Links.halves(graph)
    moments = edges.moments(2 / len(edges.start), same=2 / len(edges.start), meeting=0.0, independent=False)
    draw = functools.partial(_sequence, lambda rounds, seed: changing.random_pairs(graph, rounds, seed))
    return RandomGossip("random pairs", edges.num_nodes, draw, moments)


def matchings(graph: graphs.Source) -> RandomGossip:
    """`gossip.random_matchings`; its moments are known on complete graphs of an even number of nodes."""
    edges = _Links.halves(graph)
    n, moments = edges.num_nodes, None
    if n % 2 == 0 and len(edges.start) == n * (n - 1):
        others = (np.ones((n, n)) - np.eye(n)) / (n - 1)
        moments = Moments(csr_array((np.eye(n) + others) / 2), functools.partial(_around_a_perfect_matching, others))
    draw = functools.partial(_sequence, lambda rounds, seed: changing.random_matchings(graph, rounds, seed))
    return RandomGossip("random matchings", n, draw, moments)


def peers(num_nodes: int, count: int) -> RandomGossip:
    """`gossip.peer_sampling`: each node averages its model with those of `count` others, drawn without replacement."""
    n = check.integer_at_least(2, num_nodes=num_nodes)
    count = check.integer_at_least(1, count=count)
    if count >= n:
        raise InvalidInput(f"count must be below the number of nodes, {n}, got {count}.")
    p = count / (n - 1)
    mean = (np.eye(n) + p * (np.ones((n, n)) - np.eye(n))) / (count + 1)
    both = count * (count - 1) / ((n - 1) * max(n - 2, 1))
    around = functools.partial(
        _around_drawn_rows, mean, (p - both) / (count + 1) ** 2, (both - p**2) / (count + 1) ** 2
    )
    draw = functools.partial(_sequence, lambda rounds, seed: changing.peer_sampling(n, rounds, count, seed))
    return RandomGossip("peer sampling", n, draw, Moments(csr_array(mean), around))


def _sequence(of: Callable[[int, int], GossipSequence], rounds: int, seed: int) -> Drawn:
    return Drawn(of(rounds, seed))


@dataclasses.dataclass(frozen=True, eq=False)
class _Links:
    """Directed links (start, end) and the weight that start gives end."""

    num_nodes: int
    start: NDArray[np.intp]
    end: NDArray[np.intp]
    weight: FloatArray

    @classmethod
    def from_gossip(cls, gossip: GossipMatrix) -> _Links:
        check.instance(GossipMatrix, gossip=gossip)
        entries = coo_array(gossip.weights)
        off = entries.row != entries.col
        start, end = (axis[off].astype(np.intp) for axis in (entries.row, entries.col))
        return cls(gossip.num_nodes, start, end, np.asarray(entries.data[off]))

    @classmethod
    def halves(cls, graph: graphs.Source) -> _Links:
        """Both ways of every edge, with weight 1/2."""
        G = graphs.load_sparse(graph)
        graphs.require_connected(G)
        entries = coo_array(graphs.adjacency(G))
        if not entries.nnz:
            raise InvalidInput(f"pairs need an edge, got a graph of {entries.shape[0]} node.")
        start, end = entries.row.astype(np.intp), entries.col.astype(np.intp)
        return cls(entries.shape[0], start, end, np.full(start.size, 0.5))

    def mean(self, up: float) -> csr_array:
        """E[W] where every link is up with this probability."""
        n = self.num_nodes
        off = csr_array((up * self.weight, (self.start, self.end)), shape=(n, n))
        return csr_array(off + eye_array(n) - diags_array(np.asarray(off.sum(axis=1)).ravel()))

    def moments(self, up: float, *, same: float, meeting: float, independent: bool = True) -> Moments | None:
        """Moments of links that are up with this probability; None if too many pairs of links have a common node.

        Args: same: Cov(b_e, b_f) for the two ways of one link, or E[b_e b_f] if not independent; meeting: that of
            links with one node in common.
        """
        mean = self.mean(up)
        meet = self._pairs() if meeting else self._ways()
        if meet is None:
            return None
        e, f, two = meet
        value = np.where(two, meeting, same) * self.weight[e] * self.weight[f]
        n, spread = self.num_nodes, []
        for a, sign_a in ((self.start[e], 1.0), (self.end[e], -1.0)):
            for b, sign_b in ((self.start[f], 1.0), (self.end[f], -1.0)):
                spread.append((a * n + b, self.start[e] * n + self.start[f], sign_a * sign_b * value))
        rows, columns, values = (np.concatenate(part) for part in zip(*spread, strict=True))
        more = csr_array((values, (rows, columns)), shape=(n * n, n * n))
        return Moments(mean, functools.partial(_around_links, mean, more, independent))

    def beside(self, mean: csr_array, up: float, X: FloatArray) -> FloatArray:
        """Columns E[W^T | u is offline] X e_u: the links at u are then missing from the mean."""
        n = self.num_nodes
        out = csr_array((self.weight, (self.start, self.end)), shape=(n, n))
        diagonal = np.diagonal(X)
        back = np.asarray(out.multiply(X).toarray())  # [i, u]: w_iu X_iu
        lost = back - np.asarray(out.T.toarray()) * diagonal
        lost[np.arange(n), np.arange(n)] += diagonal * np.asarray(out.sum(axis=1)).ravel() - back.sum(axis=0)
        return np.asarray(mean.T @ X + up * lost)

    def _ways(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
        """(e, f, False) for f = e and for f the other way of e."""
        n, number = self.num_nodes, np.arange(self.start.size)
        forward, back = self.start * n + self.end, self.end * n + self.start
        order = np.argsort(forward)  # exact: integers
        at = np.minimum(np.searchsorted(forward, back, sorter=order), number.size - 1)
        with_other = np.flatnonzero(forward[order[at]] == back) if number.size else number
        other = order[at] if number.size else number
        e, f = np.concatenate([number, with_other]), np.concatenate([number, other[with_other]])
        return e, f, np.zeros(e.size, dtype=bool)

    def _pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]] | None:
        """(e, f, whether they have one node in common and not two) for all links that meet."""
        m, number = self.start.size, np.arange(self.start.size)
        at = csr_array(
            (np.ones(2 * m), (np.r_[number, number], np.r_[self.start, self.end])), shape=(m, self.num_nodes)
        )
        degree = np.asarray(at.sum(axis=0)).ravel()
        if degree @ degree > MAX_PAIRS:
            return None
        common = coo_array(at @ at.T)
        return common.row.astype(np.intp), common.col.astype(np.intp), common.data == 1


def _around_links(mean: csr_array, more: csr_array, independent: bool, X: FloatArray) -> FloatArray:
    n, averaged = len(X), mean.T @ X
    if independent:
        return np.asarray((mean.T @ averaged.T).T + (more @ X.ravel()).reshape(n, n))
    lost = X - averaged  # E[Delta]^T X, of W = I - Delta
    return np.asarray(X - lost - (X.T - mean.T @ X.T).T + (more @ X.ravel()).reshape(n, n))


def _around_a_perfect_matching(others: FloatArray, X: FloatArray) -> FloatArray:
    """W = (I + P) / 2 with P drawn uniformly among matchings of all nodes; E[P] = others."""
    n, diagonal = len(X), np.diagonal(X)
    rows, columns, total = X.sum(axis=1), X.sum(axis=0), X.sum()
    # partners of i and k: each other, or two others, all pairs of them alike
    apart = total - rows[:, None] - rows[None] - columns[:, None] - columns[None] + X + X.T
    apart = apart + diagonal[:, None] + diagonal[None]
    apart -= diagonal.sum() - diagonal[:, None] - diagonal[None]
    swapped = X.T / (n - 1)
    if n > 2:
        swapped += apart / ((n - 1) * (n - 3))
    swapped[np.arange(n), np.arange(n)] = (diagonal.sum() - diagonal) / (n - 1)
    return np.asarray((X + others @ X + X @ others + swapped) / 4)


def _around_drawn_rows(mean: FloatArray, alone: float, together: float, X: FloatArray) -> FloatArray:
    """Rows drawn independently, with covariance alone (I - e e^T) + together (1 - e)(1 - e)^T of row e."""
    diagonal = np.diagonal(X)
    trace = diagonal.sum()
    spread = together * (trace - diagonal[:, None] - diagonal[None])
    spread[np.arange(len(X)), np.arange(len(X))] += alone * (trace - diagonal) + together * diagonal
    return np.asarray(mean.T @ X @ mean + spread)
