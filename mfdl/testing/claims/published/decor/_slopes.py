"""The truth about pairwise noise, written out, and what the cases of DECOR's claims have in common.

Node i injects local noise of standard deviation s_local and, for each of its edges, noise of s_pair that the other end
injects with the opposite sign; over nodes R = s_local^2 I + s_pair^2 L, L the graph Laplacian. Losses are Rényi slopes
at clipping threshold C = 1 and replace-one: a record moves a gradient by 2, so mu^2 = 4 [R^-1]_uu and the slope is half
of it. An attacker sees all messages and knows the secrets that it holds; one step of that view is, up to an invertible
factor, gradients plus noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from .....check import FloatArray
from ....oracles.sensitivity import largest_signed_sum
from ....oracles.views import of_node, pairwise_factor, pinv_gram, without_noise

LEVELS = st.integers(1, 4)  # standard deviations


def factor(graph: nx.Graph, local: float, pair: float) -> FloatArray:
    """Injected <- base noise of one step: (s_local I, s_pair N), a column per node and then one per edge."""
    return pairwise_factor(list(graph.edges), len(graph), local, pair)


def held(graph: nx.Graph, attackers: Collection[int]) -> list[int]:
    """Noise columns that the attackers know: their own, and those of their edges."""
    ends = [(i,) for i in range(len(graph))] + list(graph.edges)
    return [column for column, holders in enumerate(ends) if set(holders) & set(attackers)]


def slopes(graph: nx.Graph, local: float, pair: float, attackers: Collection[int] = ()) -> FloatArray:
    """2 [(B B^T)^+]_uu for the honest nodes, B without the noise that the attackers know."""
    B = without_noise(factor(graph, local, pair), held(graph, attackers))
    X, _ = pinv_gram(np.eye(len(graph)), B)
    return 2 * np.delete(X.diagonal(), list(attackers))


def fresh(one_step: FloatArray, num_steps: int) -> FloatArray:
    """Injected <- base noise over all steps, an own draw for each."""
    noise: FloatArray = np.kron(np.eye(num_steps), one_step).astype(np.float64)
    return noise


def slopes_of_view(messages: FloatArray, noise: FloatArray, num_nodes: int, victims: Collection[int]) -> FloatArray:
    """Slope of each victim when all its gradients may move by 2, each to either side."""
    X = [pinv_gram(of_node(messages, u, num_nodes), messages @ noise) for u in victims]
    return np.array([math.inf if leaks.any() else 2 * largest_signed_sum(gram.tolist()) for gram, leaks in X])


def coalitions(graph: nx.Graph, size: int) -> list[tuple[int, ...]]:
    """All sets of so many nodes."""
    return list(itertools.combinations(range(len(graph)), size))


def laplacian(graph: nx.Graph, kept: Sequence[int] | None = None) -> FloatArray:
    """Of the graph, or of what deleting all but the kept nodes leaves of it."""
    nodes = range(len(graph)) if kept is None else kept
    A = adjacency(graph)[np.ix_(nodes, nodes)]
    return np.diag(A.sum(axis=1)) - A


def adjacency(graph: nx.Graph) -> FloatArray:
    """Ones where there is an edge; nodes are 0 .. n - 1."""
    A = np.zeros((len(graph), len(graph)))
    for i, j in graph.edges:
        A[i, j] = A[j, i] = 1.0
    return A
