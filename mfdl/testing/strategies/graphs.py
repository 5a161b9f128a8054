"""Hypothesis strategies for graphs and gossip; they shrink to stars on few nodes with small integer weights.

Every matrix is drawn from a connected graph, so it is strongly connected; its weights are ratios of small
integers. The kinds say which theorem a case is for:

- `symmetric`: symmetric, hence doubly stochastic;
- `uniform`: 1 / (degree + 1) on a closed neighbourhood, reversible, in general not doubly stochastic;
- `general`: row-stochastic, in general not reversible;
- `singular`: symmetric with two equal rows, not invertible (needs two nodes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from itertools import combinations
from typing import TypeVar

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from ... import gossip
from ...check import FloatArray
from ...dynamics.polynomials import POLYNOMIALS, POWERS
from ...errors import InvalidInput
from ...gossip import Gossip, GossipMatrix, GossipSequence
from ...node_covariances import laplacian

KINDS = ("symmetric", "uniform", "general", "singular")
Integer = Callable[[int, int], int]
"""(low, high) -> the next integer between them, both included."""
LONGEST_TAPE, LARGEST_ON_TAPE = 24, 11


@st.composite
def connected_graphs(draw: st.DrawFn, min_nodes: int = 1, max_nodes: int = 8) -> nx.Graph:
    """Connected simple graphs on 0 .. n - 1: a random tree and some further edges."""
    n = draw(st.integers(min_nodes, max_nodes))
    tree = {(draw(st.integers(0, child - 1)), child) for child in range(1, n)}
    others = [pair for pair in combinations(range(n), 2) if pair not in tree]
    further = draw(st.lists(st.sampled_from(others), unique=True)) if others else []
    return _graph(n, tree | set(further))


@st.composite
def gossip_matrices(
    draw: st.DrawFn, min_nodes: int = 1, max_nodes: int = 8, kinds: Sequence[str] = KINDS
) -> GossipMatrix:
    """Strongly connected gossip matrices of the given kinds; `name` holds the kind.

    With `singular` the smallest size is two nodes unless another kind is allowed as well.
    """
    kind = draw(st.sampled_from(wanted_names(KINDS, kinds)))
    if kind == "singular" and max_nodes < 2:
        raise InvalidInput("kind 'singular' needs max_nodes >= 2.")
    G = draw(connected_graphs(max(min_nodes, 2) if kind == "singular" else min_nodes, max_nodes))
    return _matrix(lambda low, high: draw(st.integers(low, high)), G, kind)


@st.composite
def gossip_sequences(
    draw: st.DrawFn, min_nodes: int = 1, max_nodes: int = 6, max_length: int = 3, kinds: Sequence[str] = KINDS
) -> GossipSequence:
    """Sequences of one to `max_length` gossip matrices on the same nodes, repeated or not."""
    n = draw(st.integers(min_nodes, max_nodes))
    possible = [kind for kind in kinds if n > 1 or kind != "singular"] or ["symmetric"]
    # One list of integers a matrix, read as far as it goes and zeros then: lists do not depend on n, so n shrinks alone
    tape = st.lists(st.integers(0, LARGEST_ON_TAPE), max_size=LONGEST_TAPE)
    tapes = draw(st.lists(tape, min_size=1, max_size=max_length))
    return GossipSequence(tuple(_from_tape(tape, n, possible) for tape in tapes), repeat=draw(st.booleans()))


def _from_tape(tape: list[int], n: int, kinds: Sequence[str]) -> GossipMatrix:
    numbers = iter(tape)

    def integer(low: int, high: int) -> int:
        return low + next(numbers, 0) % (high - low + 1)

    kind = kinds[integer(0, len(kinds) - 1)]
    tree = {(integer(0, child - 1), child) for child in range(1, n)}
    further = {pair for pair in combinations(range(n), 2) if pair not in tree and integer(0, 2) == 1}
    return _matrix(integer, _graph(n, tree | further), kind)


def _graph(n: int, edges: set[tuple[int, int]]) -> nx.Graph:
    G = nx.empty_graph(n)
    G.add_edges_from(sorted(edges))
    return G


@st.composite
def dyadic_gossip(draw: st.DrawFn, min_nodes: int = 2, max_nodes: int = 5) -> GossipMatrix:
    """I - L / d on a connected graph, d a power of two above the largest degree; symmetric, exact in float64.

    Products over a few rounds are exact too, so rational oracles can take the very matrices.
    """
    graph = draw(connected_graphs(min_nodes, max_nodes))
    L = np.asarray(laplacian(graph).toarray())
    d = 2.0 ** np.ceil(np.log2(np.diagonal(L).max() + 1))
    return gossip.from_array(np.eye(len(L)) - L / d)


def polynomials(W: Gossip) -> st.SearchStrategy[str]:
    """Polynomials of `Dynamics` that this gossip has."""
    has_all = isinstance(W, GossipMatrix) and W.is_symmetric and W.is_connected
    return st.sampled_from(POLYNOMIALS if has_all else [POWERS])


def _matrix(integer: Integer, G: nx.Graph, kind: str) -> GossipMatrix:
    if kind == "uniform":
        W = gossip.uniform(G).dense()
    elif kind == "general":
        W = _general(integer, G)
    else:
        W = _symmetric(integer, G)
    if kind == "singular":
        pairs = list(combinations(range(len(W)), 2))
        first, second = pairs[integer(0, len(pairs) - 1)]
        average = np.eye(len(W))
        average[np.ix_([first, second], [first, second])] = 0.5
        W = average @ W @ average  # keeps symmetry, sums and connection; e_first - e_second is in the kernel
        W = (W + W.T) / 2
    return gossip.from_array(W, name=kind)


def _symmetric(integer: Integer, G: nx.Graph) -> np.ndarray:
    """Integer edge weights divided by more than the largest row sum; the rest is on the diagonal."""
    W = np.zeros((len(G), len(G)))
    for i, j in G.edges:
        W[i, j] = W[j, i] = integer(1, 4)
    W /= W.sum(axis=1).max() + integer(1, 3)
    return W + np.diag(1 - W.sum(axis=1))


def _general(integer: Integer, G: nx.Graph) -> np.ndarray:
    """Independent integer weights in both directions of every edge; rows divided by their sums."""
    W = np.zeros((len(G), len(G)))
    for i, j in G.edges:
        W[i, j] = integer(1, 4)
        W[j, i] = integer(1, 4)
    for i in G.nodes:
        W[i, i] = integer(0 if G.degree[i] else 1, 4)
    return W / W.sum(axis=1, keepdims=True)


Element = TypeVar("Element")


def wanted_names(
    possible: Collection[str], wanted: Collection[str], *, name: str = "kinds", why: str = ""
) -> list[str]:
    """The names wanted, in order. Raises: InvalidInput: an unknown one, or none; `why` ends the message."""
    if not len(wanted) or set(wanted) - set(possible):
        raise InvalidInput(f"{name} must be some of {', '.join(possible)}, got {tuple(wanted)}{why}.")
    return list(wanted)


def sized_lists(elements: st.SearchStrategy[Element], size: int) -> st.SearchStrategy[list[Element]]:
    """Lists of exactly this many elements."""
    return st.lists(elements, min_size=size, max_size=size)


def integer_arrays(largest: int, *shape: int) -> st.SearchStrategy[FloatArray]:
    """Float arrays of integers from -largest to largest; they shrink to zero."""
    entries = sized_lists(st.integers(-largest, largest), math.prod(shape))
    return entries.map(lambda drawn: np.array(drawn, dtype=np.float64).reshape(shape))
