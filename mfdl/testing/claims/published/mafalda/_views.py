"""What the claims share: pairwise views written out, their Grams, and the strategies of most cases."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from ..... import gossip
from .....check import FloatArray
from ....oracles import clear_rank, gossip_messages, of_node, pinv_gram, received, without_noise
from ....strategies import connected_graphs

GRAPHS = connected_graphs(2, 5)
NODES = st.integers(0, 4)
STEPS = st.integers(1, 4)
ROUNDING = 1e-6
"""Pseudo-inverses of views with condition numbers up to 1e5, and semidefinite programs."""


def two_of(graph: nx.Graph, attacker: int, victim: int) -> int:
    """The number of nodes; cases where attacker and victim are not two of them do not count."""
    assume(attacker < len(graph) and victim < len(graph) and attacker != victim)
    return len(graph)


def heard(graph: nx.Graph, attacker: int, steps: int, *, own_messages: bool = False) -> FloatArray:
    """Injected sums -> messages the attacker receives, with its own ones if asked for."""
    W = gossip.metropolis_hastings(graph)
    messages, _ = gossip_messages(W, steps)
    return messages[received(W, steps, [attacker], self_messages=own_messages).ravel()]


def own_parts(node: int, steps: int, num_nodes: int) -> set[int]:
    """Columns of one node, of gradients and of local noise alike."""
    return {t * num_nodes + node for t in range(steps)}


def gram_of(rows: FloatArray, noise: FloatArray, victim: int, num_nodes: int) -> FloatArray:
    """X of one victim; no part of its gradients is seen without noise."""
    assume(clear_rank(noise))
    X, leaks = pinv_gram(of_node(rows, victim, num_nodes), noise)
    assert not leaks.any()
    return X


def pairwise_gram(graph: nx.Graph, attacker: int, victim: int, steps: int) -> FloatArray:
    """DP-D-SGD: what the attacker learns of the victim from what it receives, own noise known."""
    n = two_of(graph, attacker, victim)
    rows = heard(graph, attacker, steps)
    return gram_of(rows, without_noise(rows, own_parts(attacker, steps, n)), victim, n)


def printed_gram(graph: nx.Graph, attacker: int, victim: int, steps: int) -> FloatArray:
    """The same X as printed: C^T B^+ B C, where A = B C with C = I but for the zero columns of what is known."""
    n = two_of(graph, attacker, victim)
    rows = heard(graph, attacker, steps)
    B = without_noise(rows, own_parts(attacker, steps, n))
    assume(clear_rank(B))
    projector = np.linalg.pinv(B, rcond=1e-9) @ B
    X = of_node(of_node(projector, victim, n).T, victim, n)
    return (X + X.T) / 2


def distance(one: FloatArray, other: FloatArray) -> float:
    """Frobenius norm of the difference, relative to the second matrix where that is above 1."""
    return float(np.linalg.norm(one - other) / max(1.0, float(np.linalg.norm(other))))
