"""Gossip that changes from round to round: drawn matchings, single edges and peers, nodes and links that are away.

Every pattern is public and drawn once, from a seed, before training: what is accounted is the run under this pattern,
so losses hold given the pattern, whoever knows it. Out: a `GossipSequence` of as many rounds as are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, diags_array, eye_array

from .. import check, graphs
from ..errors import InvalidInput
from .matrix import Gossip, GossipMatrix
from .sequences import GossipSequence

Present = NDArray[np.bool_]
"""Which nodes are there in each round, bool (rounds, n)."""


def random_matchings(graph: graphs.Source, rounds: int, seed: int) -> GossipSequence:
    """In each round edges are taken in random order, each whose ends are both free; matched nodes average.

    >>> random_matchings("ring:n=4", 3, seed=0).is_doubly_stochastic
    True

    Args: rounds >= 1; seed >= 0, public.
    Raises: InvalidInput: a number out of range, a graph that is not connected.
    Cost: O(edges) a round.
    """

    def pairs(edges: NDArray[np.intp], n: int, rng: np.random.Generator) -> NDArray[np.intp]:
        free, matched = np.ones(n, dtype=bool), []
        for u, v in rng.permutation(edges).tolist():
            if free[u] and free[v]:
                free[[u, v]] = False
                matched.append((u, v))
        return np.array(matched, dtype=np.intp).reshape(-1, 2)

    return _of_pairs(graph, rounds, seed, pairs, "random matchings")


def random_pairs(graph: graphs.Source, rounds: int, seed: int) -> GossipSequence:
    """Asynchronous gossip: in each round the ends of a single edge, drawn uniformly, average; as `random_matchings`.

    Source: randomized gossip, Boyd, Ghosh, Prabhakar, Shah 2006, with a clock at each edge.
    """

    def pair(edges: NDArray[np.intp], n: int, rng: np.random.Generator) -> NDArray[np.intp]:
        return edges[rng.integers(len(edges))][None]

    return _of_pairs(graph, rounds, seed, pair, "random pairs")


def one_peer_exponential(num_nodes: int) -> GossipSequence:
    """In round k node i averages with what node i + 2^k mod n sends, over and over for k below log2 n.

    Of 2^m nodes all have the average after m rounds, each of one message a node.

    >>> one_peer_exponential(8).matrices[1].dense()[0]
    array([0.5, 0. , 0.5, 0. , 0. , 0. , 0. , 0. ])

    Raises: InvalidInput: fewer than two nodes. Source: arXiv:2110.13363.
    """
    n = check.integer_at_least(2, num_nodes=num_nodes)
    nodes, matrices = np.arange(n), []
    for k in range((n - 1).bit_length()):
        shift = csr_array((np.ones(n), (nodes, (nodes + 2**k) % n)), shape=(n, n))
        matrices.append(GossipMatrix((eye_array(n) + shift) / 2, tuple(range(n)), f"peer at {2**k}"))
    return GossipSequence(tuple(matrices), True, "one-peer exponential")


def peer_sampling(num_nodes: int, rounds: int, peers: int, seed: int) -> GossipSequence:
    """In each round every node takes the mean of its model and those of as many others, drawn without replacement.

    Rows sum to one, columns do not: the average of all models is kept in expectation alone.

    Raises: InvalidInput: rounds or peers below 1, more peers than other nodes, seed below 0.
    Cost: O(n peers) a round. Source: epidemic learning, arXiv:2310.01972.
    """
    n, peers = check.integer_at_least(2, num_nodes=num_nodes), check.integer_at_least(1, peers=peers)
    if peers >= n:
        raise InvalidInput(f"peers must be below the number of nodes, {n}, got {peers}.")
    rng, matrices = _generator(seed), []
    for _ in range(check.integer_at_least(1, rounds=rounds)):
        others = np.stack([rng.choice(n - 1, peers, replace=False) for _ in range(n)])
        others += others >= np.arange(n)[:, None]  # all but the node itself
        columns = np.concatenate([np.arange(n)[:, None], others], axis=1)
        entries = np.full(columns.size, 1 / (peers + 1)), (np.repeat(np.arange(n), peers + 1), columns.ravel())
        matrices.append(GossipMatrix(csr_array(entries, shape=(n, n)), tuple(range(n)), "drawn peers"))
    return GossipSequence(tuple(matrices), False, "peer sampling")


def link_dropout(gossip: Gossip, rounds: int, rate: float, seed: int) -> GossipSequence:
    """Each link is down in each round with this probability, both ways at once; its weight stays at home.

    Args: gossip: of all links; rate: in [0, 1); seed >= 0, public.
    Guarantees: rows sum to one; symmetric where `gossip` is.
    Raises: InvalidInput: a number out of range.
    """
    rng, rate = _generator(seed), checked_share(rate)

    def kept(W: csr_array, _: int) -> NDArray[np.float64]:
        entries = W.tocoo()
        links = np.unique(np.sort(np.stack([entries.row, entries.col], axis=1), axis=1), axis=0)
        up = csr_array((1.0 + (rng.random(len(links)) < rate), tuple(links.T)), shape=W.shape)  # 2 where it is down
        both = up + up.T
        return np.asarray(both[entries.row, entries.col] % 2)

    return _thinned(gossip, rounds, kept, f"links down {rate:g}")


def absences(gossip: Gossip, present: ArrayLike) -> GossipSequence:
    """Nodes that are away keep their models and exchange nothing; weight given to them stays at home.

    Args: present: which nodes are there in each round, bool (rounds, n): `drawn_presence`, `churn`, or your own.
    Guarantees: rows sum to one; symmetric where `gossip` is.
    Raises: InvalidInput: another shape or type.
    """
    check.instance(Gossip, gossip=gossip)
    there = presence(present, gossip.num_nodes)

    def kept(W: csr_array, round_: int) -> NDArray[np.float64]:
        entries, up = W.tocoo(), there[round_]
        return np.asarray(up[entries.row] & up[entries.col], dtype=np.float64)

    return _thinned(gossip, len(there), kept, "absences")


def drawn_presence(num_nodes: int, rounds: int, rate: float, seed: int) -> Present:
    """Each node is away in each round with this probability, independently: bool (rounds, n), for `absences`."""
    shape = check.integer_at_least(1, rounds=rounds), check.integer_at_least(1, num_nodes=num_nodes)
    return np.asarray(_generator(seed).random(shape) >= checked_share(rate))


def churn(gossip: Gossip, rounds: int, away: Mapping[Hashable, Sequence[tuple[int, int]]]) -> Present:
    """Nodes that leave and come back: bool (rounds, n), for `absences`.

    >>> from mfdl.gossip import uniform
    >>> churn(uniform("ring:n=3"), 4, {1: [(1, 3)]})[:, 1]
    array([ True, False, False,  True])

    Args: away: for a node, the rounds [start, stop) in which it is not there.
    Raises: InvalidInput: an unknown node, or an interval outside the rounds.
    """
    check.instance(Gossip, gossip=gossip)
    there = np.ones((check.integer_at_least(1, rounds=rounds), gossip.num_nodes), dtype=bool)
    place = {label: node for node, label in enumerate(gossip.labels)}
    for label, spans in check.mapping("rounds (start, stop) by node", away=away).items():
        if label not in place:
            raise InvalidInput(
                f"away names node {label!r}, which is none of the graph; its first is {gossip.labels[0]!r}."
            )
        for span in check.listed("rounds (start, stop)", away=spans):
            if len(pair := check.listed("a start and a stop", away=span)) != 2:
                raise InvalidInput(f"away must hold rounds (start, stop), got {pair!r} for node {label!r}.")
            start, stop = (check.integer_at_least(0, away=number) for number in pair)
            if not 0 <= start < stop <= len(there):
                raise InvalidInput(
                    f"away must hold rounds (start, stop) with 0 <= start < stop <= {len(there)}, got {(start, stop)} "
                    f"for node {label!r}."
                )
            there[start:stop, place[label]] = False
    return there


def presence(present: ArrayLike, num_nodes: int, num_steps: int | None = None) -> Present:
    """Checked, an own copy. Raises: InvalidInput: no bool array of rounds x nodes, or of another number of steps."""
    there = np.array(check.as_array(present=present))
    if there.dtype != bool or there.ndim != 2 or there.shape[1] != num_nodes or not len(there):
        raise InvalidInput(
            f"present must be a bool array (rounds, {num_nodes}), got {there.dtype} of shape {there.shape}; "
            "gossip.drawn_presence and gossip.churn make one."
        )
    if num_steps is not None and len(there) != num_steps:
        raise InvalidInput(f"present must have one row for each of {num_steps} steps, got {len(there)}.")
    return there


Pairing = Callable[[NDArray[np.intp], int, np.random.Generator], NDArray[np.intp]]


def _of_pairs(graph: graphs.Source, rounds: int, seed: int, pairs: Pairing, name: str) -> GossipSequence:
    """Rounds in which the nodes of pairs average, drawn from the edges."""
    G, rng = graphs.load_sparse(graph), _generator(seed)
    graphs.require_connected(G)
    labels, A = graphs.labels(G), graphs.adjacency(G).tocoo()
    edges = np.stack([A.row, A.col], axis=1)[A.row < A.col].astype(np.intp)
    if not len(edges):
        raise InvalidInput(f"{name} need an edge, got a graph of {len(labels)} node.")
    matrices = []
    for _ in range(check.integer_at_least(1, rounds=rounds)):
        u, v = pairs(edges, len(labels), rng).T
        home = np.ones(len(labels))
        home[u] = home[v] = 0.5
        row, column = np.concatenate([np.arange(len(labels)), u, v]), np.concatenate([np.arange(len(labels)), v, u])
        entries = np.concatenate([home, np.full(2 * len(u), 0.5)]), (row, column)
        matrices.append(GossipMatrix(csr_array(entries, shape=A.shape), labels, name))
    return GossipSequence(tuple(matrices), False, name)


def _thinned(
    gossip: Gossip, rounds: int, kept: Callable[[csr_array, int], NDArray[np.float64]], name: str
) -> GossipSequence:
    """Rounds of which some links are left; what is no link any more is weight of the node itself."""
    check.instance(Gossip, gossip=gossip)
    matrices = []
    for round_ in range(check.integer_at_least(1, rounds=rounds)):
        W = gossip.at(round_).weights
        entries = W.tocoo()
        away = np.where(entries.row == entries.col, 0.0, entries.data * (1 - kept(W, round_)))
        lost = np.bincount(entries.row, away, minlength=W.shape[0])
        left = csr_array((entries.data - away, (entries.row, entries.col)), shape=W.shape)
        matrices.append(GossipMatrix(left + diags_array(lost), gossip.labels, name))
    return GossipSequence(tuple(matrices), False, name)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(check.integer_at_least(0, seed=seed))


def checked_share(rate: float) -> float:
    rate = check.non_negative(rate=rate)
    if rate >= 1:
        raise InvalidInput(f"rate must lie in [0, 1), got {rate:g}: somebody must be there.")
    return rate
