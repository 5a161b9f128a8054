"""Hypothesis strategies for graphs and gossip; they shrink to stars on few nodes with small integer weights.

Every matrix is drawn from a connected graph, so it is strongly connected; its weights are ratios of small
integers. The kinds say which theorem a case is for:

- `symmetric`: symmetric, hence doubly stochastic;
- `uniform`: 1 / (degree + 1) on a closed neighbourhood, reversible, in general not doubly stochastic;
- `general`: row-stochastic, in general not reversible;
- `singular`: symmetric with two equal rows, not invertible (needs two nodes).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from ... import gossip
from ...gossip import GossipMatrix, GossipSequence

KINDS = ("symmetric", "uniform", "general", "singular")


@st.composite
def connected_graphs(draw: st.DrawFn, min_nodes: int = 1, max_nodes: int = 8) -> nx.Graph:
    """Connected simple graphs on 0 .. n - 1: a random tree and some further edges."""
    n = draw(st.integers(min_nodes, max_nodes))
    tree = {(draw(st.integers(0, child - 1)), child) for child in range(1, n)}
    others = [pair for pair in combinations(range(n), 2) if pair not in tree]
    further = draw(st.lists(st.sampled_from(others), unique=True)) if others else []
    G = nx.Graph()
    G.add_nodes_from(range(n))
    G.add_edges_from(sorted(tree | set(further)))
    return G


@st.composite
def gossip_matrices(
    draw: st.DrawFn, min_nodes: int = 1, max_nodes: int = 8, kinds: Sequence[str] = KINDS
) -> GossipMatrix:
    """Strongly connected gossip matrices of the given kinds; `name` holds the kind.

    With `singular` the smallest size is two nodes unless another kind is allowed as well.
    """
    unknown = set(kinds) - set(KINDS)
    if unknown or not kinds:
        raise ValueError(f"kinds must be some of {KINDS}, got {tuple(kinds)}.")
    kind = draw(st.sampled_from(list(kinds)))
    if kind == "singular" and max_nodes < 2:
        raise ValueError("kind 'singular' needs max_nodes >= 2.")
    G = draw(connected_graphs(max(min_nodes, 2) if kind == "singular" else min_nodes, max_nodes))
    if kind == "uniform":
        W = gossip.uniform(G).dense()
    elif kind == "general":
        W = _general(draw, G)
    else:
        W = _symmetric(draw, G)
    if kind == "singular":
        first, second = draw(st.sampled_from(list(combinations(range(len(W)), 2))))
        average = np.eye(len(W))
        average[np.ix_([first, second], [first, second])] = 0.5
        W = average @ W @ average  # keeps symmetry, sums and connection; e_first - e_second is in the kernel
        W = (W + W.T) / 2
    return gossip.from_array(W, name=kind)


@st.composite
def gossip_sequences(
    draw: st.DrawFn,
    min_nodes: int = 1,
    max_nodes: int = 6,
    max_length: int = 3,
    kinds: Sequence[str] = KINDS,
) -> GossipSequence:
    """Sequences of one to `max_length` gossip matrices on the same nodes, repeated or not."""
    n = draw(st.integers(min_nodes, max_nodes))
    possible = [kind for kind in kinds if n > 1 or kind != "singular"] or ["symmetric"]
    one = gossip_matrices(min_nodes=n, max_nodes=n, kinds=possible)
    return GossipSequence(tuple(draw(st.lists(one, min_size=1, max_size=max_length))), repeat=draw(st.booleans()))


def _symmetric(draw: st.DrawFn, G: nx.Graph) -> np.ndarray:
    """Integer edge weights divided by more than the largest row sum; the rest is on the diagonal."""
    W = np.zeros((len(G), len(G)))
    for i, j in G.edges:
        W[i, j] = W[j, i] = draw(st.integers(1, 4))
    W /= W.sum(axis=1).max() + draw(st.integers(1, 3))
    return W + np.diag(1 - W.sum(axis=1))


def _general(draw: st.DrawFn, G: nx.Graph) -> np.ndarray:
    """Independent integer weights in both directions of every edge; rows divided by their sums."""
    W = np.zeros((len(G), len(G)))
    for i, j in G.edges:
        W[i, j] = draw(st.integers(1, 4))
        W[j, i] = draw(st.integers(1, 4))
    for i in G.nodes:
        W[i, i] = draw(st.integers(0 if G.degree[i] else 1, 4))
    return W / W.sum(axis=1, keepdims=True)
