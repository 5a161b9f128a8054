"""Random walks: which node holds the token in each step, and the gossip in which nothing but the token moves.

A walk is public and drawn before training, from a seed, as everything that changes: losses hold given the walk.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from .. import check
from ..errors import InvalidInput
from .matrix import Gossip, GossipMatrix
from .sequences import GossipSequence

Walk = NDArray[np.intp]
"""Who holds the token in each of T steps, and who gets it after the last: node indices, shape (T + 1,)."""


def drawn_walk(transition: Gossip, steps: int, seed: int, start: Hashable | None = None) -> Walk:
    """A random walk: from node i the token goes to node j with probability W[i, j], anew in each step.

    >>> from mfdl.gossip import metropolis_hastings
    >>> drawn_walk(metropolis_hastings("ring:n=4"), steps=5, seed=0, start=2)
    array([2, 2, 1, 0, 0, 3])

    Args:
        transition: W, constant or one a step; rows are probabilities. `metropolis_hastings` visits all nodes alike
            often in the long run, `from_array` takes probabilities of one's own, of a directed graph too.
        steps: T >= 1; seed >= 0, public. start: a node label; default drawn uniformly.
    Raises: InvalidInput: a number out of range, an unknown node.
    Cost: O(T degree).
    """
    check.instance(Gossip, transition=transition)
    T = check.integer_at_least(1, steps=steps)
    rng, labels = np.random.default_rng(check.integer_at_least(0, seed=seed)), transition.labels
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
    """An own copy. Raises: InvalidInput: another length, no node indices, or a move that W gives no probability."""
    nodes = np.array(check.as_array(walk=walk))
    if nodes.shape != (num_steps + 1,) or nodes.dtype.kind not in "iu":
        raise InvalidInput(
            f"walk must hold {num_steps + 1} node indices, who holds the token in each of {num_steps} steps and who "
            f"gets it after the last, got {nodes.dtype} of shape {nodes.shape}; gossip.drawn_walk makes one."
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
    """After each step whoever gets the token takes it for its own model, and nobody else's changes.

    Args: to_all: after the last step everybody gets it.
    """
    n = len(labels)
    made: dict[tuple[int, int], GossipMatrix] = {}

    def passed(a: int, b: int) -> GossipMatrix:
        kept = np.full(n, a) if b < 0 else np.where(np.arange(n) == b, a, np.arange(n))
        return GossipMatrix(csr_array((np.ones(n), (np.arange(n), kept)), shape=(n, n)), labels, "token")

    moves = list(zip(walk[:-1].tolist(), walk[1:].tolist(), strict=True))
    if to_all:
        moves[-1] = moves[-1][0], -1
    for move in moves:
        if move not in made:
            made[move] = passed(*move)
    return GossipSequence(tuple(made[move] for move in moves), False, "token")
