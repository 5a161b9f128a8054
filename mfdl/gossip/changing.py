"""Gossip that changes from round to round: random matchings, single edges and peers, dropout of nodes and links, and
the walk of a token.

Every pattern is public and sampled once, from a seed, before training, so privacy losses hold given the pattern.
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
"""Which nodes are online in each round, bool (rounds, n)."""


def random_matchings(graph: graphs.Source, rounds: int, seed: int) -> GossipSequence:
    """In each round edges are visited in random order and matched if both ends are free; matched nodes average.

    >>> random_matchings("ring:n=4", 3, seed=0).is_doubly_stochastic
    True

    Args: seed >= 0, public. Raises: InvalidInput: a graph that is not connected. Cost: O(edges) a round.
    """

    def pairs(edges: NDArray[np.intp], n: int, rng: np.random.Generator) -> NDArray[np.intp]:
        free, matched = np.ones(n, dtype=bool), []
        for u, v in rng.permutation(edges).tolist():
            if free[u] and free[v]:
                free[[u, v]] = False
                matched.append((u, v))
        return np.array(matched, dtype=np.intp).reshape(-1, 2)

    return _paired_rounds(graph, rounds, seed, pairs, "random matchings")


def random_pairs(graph: graphs.Source, rounds: int, seed: int) -> GossipSequence:
    """Asynchronous gossip: in each round the ends of a single edge, drawn uniformly, average; as `random_matchings`.

    Source: randomized gossip, Boyd, Ghosh, Prabhakar, Shah 2006, with a clock at each edge.
    """

    def pair(edges: NDArray[np.intp], n: int, rng: np.random.Generator) -> NDArray[np.intp]:
        return edges[rng.integers(len(edges))][None]

    return _paired_rounds(graph, rounds, seed, pair, "random pairs")


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

    Rows sum to one, columns do not: the average of all models is preserved in expectation only.

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
    """Each link drops out in each round with this probability, in both directions; its weight moves to the diagonal.

    Args: gossip: of all links; rate: in [0, 1); seed >= 0, public.
    Guarantees: rows sum to one; symmetric where `gossip` is.
    Raises: InvalidInput: a number out of range.
    """
    rng, rate = _generator(seed), checked_share(rate)

    def link_mask(W: csr_array, _: int) -> NDArray[np.float64]:
        entries = W.tocoo()
        links = np.unique(np.sort(np.stack([entries.row, entries.col], axis=1), axis=1), axis=0)
        up = csr_array((1.0 + (rng.random(len(links)) < rate), tuple(links.T)), shape=W.shape)  # 2 where it is down
        return np.asarray((up + up.T)[entries.row, entries.col] % 2)

    return _thinned(gossip, rounds, link_mask, f"link dropout {rate:g}")


def node_dropout(gossip: Gossip, present: ArrayLike) -> GossipSequence:
    """Nodes that drop out keep their models and exchange nothing; weight given to them moves to the diagonal.

    Args: present: which nodes are online in each round, bool (rounds, n): `sampled_presence`, `churn`, or your own.
    Guarantees: rows sum to one; symmetric where `gossip` is.
    Raises: InvalidInput: another shape or type.
    """
    check.instance(Gossip, gossip=gossip)
    online = presence(present, gossip.num_nodes)

    def link_mask(W: csr_array, round_: int) -> NDArray[np.float64]:
        entries, up = W.tocoo(), online[round_]
        return np.asarray(up[entries.row] & up[entries.col], dtype=np.float64)

    return _thinned(gossip, len(online), link_mask, "node dropout")


def sampled_presence(num_nodes: int, rounds: int, rate: float, seed: int) -> Present:
    """Each node drops out in each round with this probability, independently: bool (rounds, n), for `node_dropout`."""
    shape = check.integer_at_least(1, rounds=rounds), check.integer_at_least(1, num_nodes=num_nodes)
    return np.asarray(_generator(seed).random(shape) >= checked_share(rate))


def churn(gossip: Gossip, rounds: int, offline: Mapping[Hashable, Sequence[tuple[int, int]]]) -> Present:
    """Nodes that leave and come back: bool (rounds, n), for `node_dropout`.

    Raises: InvalidInput: an unknown node, or an interval outside the rounds.

    >>> from mfdl.gossip import uniform
    >>> churn(uniform("ring:n=3"), 4, {1: [(1, 3)]})[:, 1]
    array([ True, False, False,  True])

    Args: offline: for each node that drops out, the rounds [start, stop) in which it is offline.
    """
    check.instance(Gossip, gossip=gossip)
    online = np.ones((check.integer_at_least(1, rounds=rounds), gossip.num_nodes), dtype=bool)
    place = {label: node for node, label in enumerate(gossip.labels)}
    for label, spans in check.mapping("rounds (start, stop) by node", offline=offline).items():
        if label not in place:
            raise InvalidInput(
                f"offline names node {label!r}, which is not in the graph; its first node is {gossip.labels[0]!r}."
            )
        for span in check.listed("rounds (start, stop)", offline=spans):
            if len(pair := check.listed("a start and a stop", offline=span)) != 2:
                raise InvalidInput(f"offline must hold rounds (start, stop), got {pair!r} for node {label!r}.")
            start, stop = (check.integer_at_least(0, offline=number) for number in pair)
            if not 0 <= start < stop <= len(online):
                raise InvalidInput(
                    f"offline must hold rounds (start, stop) with 0 <= start < stop <= {len(online)}, got "
                    f"{(start, stop)} for node {label!r}."
                )
            online[start:stop, place[label]] = False
    return online


def presence(present: ArrayLike, num_nodes: int, num_steps: int | None = None) -> Present:
    """Checked copy. Raises: InvalidInput: no bool array of rounds x nodes, or of another number of steps."""
    online = np.array(check.as_array(present=present))
    if online.dtype != bool or online.ndim != 2 or online.shape[1] != num_nodes or not len(online):
        raise InvalidInput(
            f"present must be a bool array (rounds, {num_nodes}), got {online.dtype} of shape {online.shape}; "
            "gossip.sampled_presence and gossip.churn make one."
        )
    if num_steps is not None and len(online) != num_steps:
        raise InvalidInput(f"present must have one row for each of {num_steps} steps, got {len(online)}.")
    return online


Pairing = Callable[[NDArray[np.intp], int, np.random.Generator], NDArray[np.intp]]


def _paired_rounds(graph: graphs.Source, rounds: int, seed: int, pairs: Pairing, name: str) -> GossipSequence:
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
    gossip: Gossip, rounds: int, link_mask: Callable[[csr_array, int], NDArray[np.float64]], name: str
) -> GossipSequence:
    """Rounds with some links dropped: the weight of a dropped link moves to the diagonal."""
    check.instance(Gossip, gossip=gossip)
    matrices = []
    for round_ in range(check.integer_at_least(1, rounds=rounds)):
        W = gossip.at(round_).weights
        entries = W.tocoo()
        dropped = np.where(entries.row == entries.col, 0.0, entries.data * (1 - link_mask(W, round_)))
        lost = np.bincount(entries.row, dropped, minlength=W.shape[0])
        remaining = csr_array((entries.data - dropped, (entries.row, entries.col)), shape=W.shape)
        matrices.append(GossipMatrix(remaining + diags_array(lost), gossip.labels, name))
    return GossipSequence(tuple(matrices), False, name)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(check.integer_at_least(0, seed=seed))


def checked_share(rate: float) -> float:
    rate = check.non_negative(rate=rate)
    if rate >= 1:
        raise InvalidInput(f"rate must lie in [0, 1), got {rate:g}: at rate 1 no node or link is left.")
    return rate


Walk = NDArray[np.intp]
"""Who holds the token in each of T steps, and who gets it after the last: node indices, shape (T + 1,)."""


def sampled_walk(transition: Gossip, steps: int, seed: int, start: Hashable | None = None) -> Walk:
    """A random walk: from node i the token goes to node j with probability W[i, j], anew in each step.

    Raises: InvalidInput: a number out of range, an unknown node.

    >>> from mfdl.gossip import metropolis_hastings
    >>> sampled_walk(metropolis_hastings("ring:n=4"), steps=5, seed=0, start=2)
    array([2, 2, 1, 0, 0, 3])

    Args:
        transition: W, constant or one a step; rows are probabilities. `metropolis_hastings` visits all nodes alike
            often in the long run, `from_array` takes probabilities of one's own, of a directed graph too.
        steps: T >= 1; seed >= 0, public. start: a node label; default drawn uniformly.
    Cost: O(T degree).
    """
    check.instance(Gossip, transition=transition)
    T, rng, labels = check.integer_at_least(1, steps=steps), _generator(seed), transition.labels
    if start is not None and start not in labels:
        raise InvalidInput(f"start must be a node of the graph, got {start!r}; its first is {labels[0]!r}.")
    walk = np.empty(T + 1, dtype=np.intp)
    walk[0] = rng.integers(len(labels)) if start is None else labels.index(start)
    for t in range(T):
        W = transition.at(t).weights
        row = slice(W.indptr[walk[t]], W.indptr[walk[t] + 1])
        reached = np.cumsum(W.data[row])
        drawn = np.searchsorted(reached, rng.random() * reached[-1], side="right")  # rows sum to 1 up to rounding
        walk[t + 1] = W.indices[row][min(drawn, len(reached) - 1)]
    return walk


def checked_walk(walk: ArrayLike, transition: Gossip, num_steps: int) -> Walk:
    """Checked copy. Raises: InvalidInput: another length, no node indices, or a move that W gives no probability."""
    nodes = np.array(check.as_array(walk=walk))
    if nodes.shape != (num_steps + 1,) or nodes.dtype.kind not in "iu":
        raise InvalidInput(
            f"walk must hold {num_steps + 1} node indices, the node with the token in each of {num_steps} steps and "
            f"after the last one, got {nodes.dtype} of shape {nodes.shape}; gossip.sampled_walk returns such a walk."
        )
    labels = transition.labels
    if not ((nodes >= 0) & (nodes < len(labels))).all():
        raise InvalidInput(f"walk must hold node indices below {len(labels)}, got {nodes.min()} to {nodes.max()}.")
    for t, (a, b) in enumerate(zip(nodes[:-1].tolist(), nodes[1:].tolist(), strict=True)):
        if a != b and transition.at(t).weights[a, b] == 0:
            raise InvalidInput(
                f"walk goes from node {labels[a]!r} to node {labels[b]!r} after step {t}, which has no probability in "
                "the gossip matrix; walk along its weights, or give the matrix that the walk was drawn from."
            )
    return nodes.astype(np.intp)


def token_passing(walk: Walk, labels: tuple[Hashable, ...], *, to_all: bool) -> GossipSequence:
    """After each step, if `to_all` after the last all nodes, the node that receives the token takes it as its model."""
    n = len(labels)
    matrices: dict[tuple[int, int], GossipMatrix] = {}

    def passed(a: int, b: int) -> GossipMatrix:
        sources = np.full(n, a) if b < 0 else np.where(np.arange(n) == b, a, np.arange(n))
        return GossipMatrix(csr_array((np.ones(n), (np.arange(n), sources)), shape=(n, n)), labels, "token")

    moves = list(zip(walk[:-1].tolist(), walk[1:].tolist(), strict=True))
    if to_all:
        moves[-1] = moves[-1][0], -1
    for move in moves:
        if move not in matrices:
            matrices[move] = passed(*move)
    return GossipSequence(tuple(matrices[move] for move in moves), False, "token")
