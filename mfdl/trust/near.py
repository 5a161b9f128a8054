"""One victim in a graph too large to account: the attackers are told all messages but those near the victim.

Who is told more loses nothing, so the loss in what is left is an upper bound on that in the whole graph. And what is
left is small: a message of j that is seen shows the gradient and noise of j, but for what hidden neighbours of j
contributed, so that of the whole W only the weights to and from hidden nodes count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import check
from ..errors import InvalidInput
from ..gossip import GossipMatrix
from .base import TrustModel

Nodes = NDArray[np.intp]


@dataclasses.dataclass(frozen=True, eq=False)
class Neighbourhood:
    """What is left of a graph around one victim.

    Attributes:
        gossip: weights among the hidden nodes and those beside them, labels as in the graph; the rest of each row of a
            node that is seen stands on its diagonal.
        trust: the attackers, who see all messages but those of `hidden`.
        nodes: their indices in the graph, increasing; hidden: a mask of them, shape (nodes,).
        victim: the index of the victim among them.
    """

    gossip: GossipMatrix
    trust: TrustModel
    nodes: Nodes
    hidden: NDArray[np.bool_]
    victim: int


def neighbourhood(
    gossip: GossipMatrix, victim: int, attackers: Sequence[int], *, radius: int = 1, release: str = "none"
) -> Neighbourhood:
    """Gossip and trust model whose loss for one victim bounds that of PNDP in the whole graph.

    Any algorithm of plain gossip with noise that each node draws for itself, built on `.gossip` with the same steps,
    participation and encoder, and accounted under `.trust` for `.victim`, loses at least what it loses in the graph.
    Hidden are the nodes within `radius` hops of the victim whose messages no attacker receives; the larger, the closer
    the bound, and exact where it reaches all nodes.

    Args:
        gossip: constant gossip of the whole graph.
        victim, attackers: by index in it.
        radius: >= 0.
        release: as of `TrustModel.from_masks`.

    Raises: InvalidInput: indices out of range, a victim that attacks.
    Cost: O(weights of W) once where W is not symmetric, else the weights of the nodes within radius + 1 hops.
    """
    check.instance(GossipMatrix, gossip=gossip)
    check.integer_at_least(0, radius=radius)
    attackers = check.listed("node indices, e.g. [0]", attackers=attackers)
    inside = [check.integer_at_least(0, node=node) for node in (victim, *attackers)]
    if max(inside) >= gossip.num_nodes or victim in attackers or not attackers:
        raise InvalidInput(
            f"victim and attackers must be different nodes below {gossip.num_nodes}, at least one of them attacking, "
            f"got victim {victim} and attackers {list(attackers)}."
        )
    given = gossip.weights
    received = given if gossip.is_symmetric else sp.csr_array(given.T)
    ball = np.array([victim])
    for _ in range(radius):
        ball = _with_neighbours(ball, given, received)
    attacking = np.unique(np.asarray(attackers, dtype=np.intp))
    hidden = np.setdiff1d(ball, np.union1d(attacking, _columns(given, attacking)))
    nodes = np.union1d(_with_neighbours(hidden, given, received), np.append(attacking, victim))
    is_hidden = np.isin(nodes, hidden)
    W = sp.csr_array(given[nodes][:, nodes])
    either = sp.diags_array(is_hidden.astype(float))
    visible = sp.csr_array(either @ W + W @ either - either @ W @ either)  # weights to or from a hidden node
    rest = np.where(is_hidden, 0.0, 1.0 - visible.sum(axis=1))
    labels = tuple(gossip.labels[i] for i in nodes.tolist())
    attack = np.isin(nodes, attacking)
    trust = TrustModel.from_masks(
        seen=~is_hidden,
        known_gradients=attack,
        known_noise=attack,
        attackers=np.flatnonzero(attack).tolist(),
        name=f"pndp, told all messages but those of {int(is_hidden.sum())} nodes near the victim",
        release=release,
    )
    part = GossipMatrix(visible + sp.diags_array(np.clip(rest, 0.0, 1.0)), labels, f"{gossip.name}, near one victim")
    return Neighbourhood(part, trust, nodes, is_hidden, int(np.searchsorted(nodes, victim)))


def _columns(W: sp.csr_array, rows: Nodes) -> Nodes:
    return np.unique(W[rows].indices).astype(np.intp)


def _with_neighbours(nodes: Nodes, given: sp.csr_array, received: sp.csr_array) -> Nodes:
    """The nodes, those that they give weight and those that give them weight."""
    return np.unique(np.concatenate([nodes, _columns(given, nodes), _columns(received, nodes)]))
