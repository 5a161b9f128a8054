"""The truth about pairwise noise, written out, and what the cases of DECOR's claims have in common.

Node i injects local noise of standard deviation s_local and, for each of its edges, noise of s_pair that the other end
injects with the opposite sign; over nodes R = s_local^2 I + s_pair^2 L, L the graph Laplacian. Losses are Rényi slopes
at clipping threshold C = 1 and replace-one: a record moves a gradient by 2, so mu^2 = 4 [R^-1]_uu and the slope is half
of it. An attacker sees all messages and knows the secrets that it holds; one step of that view is, up to an invertible
factor, gradients plus noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import networkx as nx
import numpy as np

from mfdl.check import FloatArray
from mfdl.testing.oracles.views import pairwise_factor, pinv_gram, without_noise


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


def worst_slope(graph: nx.Graph, local: float, pair: float, colluders: int = 0) -> float:
    """The largest over honest nodes and over all sets of so many attackers."""
    return max(float(slopes(graph, local, pair, gone).max()) for gone in coalitions(graph, colluders))


def coalitions(graph: nx.Graph, size: int) -> list[tuple[int, ...]]:
    """All sets of so many nodes."""
    return list(itertools.combinations(range(len(graph)), size))


def laplacian(graph: nx.Graph, kept: Sequence[int] | None = None) -> FloatArray:
    """Of the graph, or of what deleting all but the kept nodes leaves of it."""
    A = nx.to_numpy_array(graph, kept)
    return np.diag(A.sum(axis=1)) - A
