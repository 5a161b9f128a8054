"""Claims of DECOR about averaging and training: weights, what pairwise noise they leave, step sizes, split of the data.

DECOR multiplies by W from the right: its models after averaging are X W.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from mfdl import gossip
from mfdl.check import FloatArray
from mfdl.gossip import GossipMatrix
from mfdl.testing.oracles.views import pairwise_factor
from mfdl.testing.strategies.graphs import connected_graphs, gossip_matrices

from ..statements import statements

BOUND_CONSTANT = 1e6  # what "up to an absolute constant" may hide

published_claim = statements(graph=connected_graphs(2, 5), pair=st.integers(1, 4))


def _printed_weights(graph: nx.Graph) -> FloatArray:
    """1 / (degree_i + 1) for the neighbours of i, as printed without i itself."""
    A = nx.to_numpy_array(graph)
    return A / (A.sum(axis=1) + 1)[:, None]


def _with_self_weight(graph: nx.Graph) -> FloatArray:
    A = nx.to_numpy_array(graph) + np.eye(len(graph))
    return A / A.sum(axis=1)[:, None]


@published_claim("decor-weights-doubly-stochastic", graph=connected_graphs(1, 5))
def weights_are_doubly_stochastic(graph: nx.Graph) -> tuple[float, float]:
    return 0.0, float(np.abs(_with_self_weight(graph).sum(axis=0) - 1).max())


@published_claim("decor-neighbourhood-without-self")
def rows_sum_to_one(graph: nx.Graph) -> tuple[float, float]:
    return 0.0, float(np.abs(_printed_weights(graph).sum(axis=1) - 1).max())


def _heterogeneity(vectors: FloatArray, edges: Sequence[tuple[int, int]]) -> float:
    """Mean over the edges of ||w_i - w_k||^2 / 2, w_i the rows of `vectors`."""
    ends = np.array(edges)
    return float(((vectors[ends[:, 0]] - vectors[ends[:, 1]]) ** 2).sum()) / (2 * len(ends))


def _lemma_8_gap(weights: FloatArray, pair: int) -> float:
    """Relative distance of 2 H_G |E| s_pair^2, over columns, to the variance of pairwise noise N in N W."""
    n = len(weights)
    edges = [(i, k) for i, k in itertools.combinations(range(n), 2) if weights[i, k]]
    truth = float(np.linalg.norm(weights.T @ pairwise_factor(edges, n, 0, pair)) ** 2)
    printed = 2 * _heterogeneity(weights.T, edges) * len(edges) * pair**2
    return abs(printed - truth) / max(printed, truth, 1e-12 * pair**2)  # both are 0 where all nodes average alike


@published_claim("decor-lemma-8", gossip_matrix=gossip_matrices(min_nodes=2, max_nodes=5, kinds=("symmetric",)))
def lemma_8(gossip_matrix: GossipMatrix, pair: int) -> tuple[float, float]:
    return 0.0, _lemma_8_gap(gossip_matrix.dense(), pair)


@published_claim("decor-lemma-8-columns")
def lemma_8_by_columns(graph: nx.Graph, pair: int) -> tuple[float, float]:
    return 0.0, _lemma_8_gap(_with_self_weight(graph), pair)


def _bipartite(left: int, right: int) -> nx.Graph:
    return nx.complete_bipartite_graph(left, right)


@published_claim("decor-heterogeneity-columns", left=st.integers(1, 40), right=st.integers(1, 40))
def heterogeneity_of_columns(left: int, right: int) -> tuple[float, float]:
    graph = _bipartite(left, right)
    return 2 / min(left, right), _heterogeneity(_printed_weights(graph).T, list(graph.edges))


@published_claim(
    "decor-heterogeneity-rows",
    graph=st.one_of(connected_graphs(2, 7), st.builds(_bipartite, st.integers(1, 40), st.integers(1, 40))),
)
def heterogeneity_of_rows(graph: nx.Graph) -> tuple[float, float]:
    least = min(degree for _, degree in graph.degree)
    edges = list(graph.edges)
    both = [_heterogeneity(weights(graph), edges) for weights in (_printed_weights, _with_self_weight)]
    return 2 / least, max(both)


@published_claim("decor-heterogeneity-metropolis-hastings", num_nodes=st.integers(2, 60))
def heterogeneity_of_metropolis_hastings(num_nodes: int) -> tuple[FloatArray, FloatArray]:
    left = range(1, num_nodes // 2 + 1)
    truth = [_metropolis_hastings_heterogeneity(k, num_nodes - k) for k in left]
    return 2 / np.array(left, dtype=np.float64), np.array(truth)


def _metropolis_hastings_heterogeneity(left: int, right: int) -> float:
    graph = _bipartite(left, right)
    degrees = nx.to_numpy_array(graph).sum(axis=1)
    W = nx.to_numpy_array(graph) / (1 + np.maximum.outer(degrees, degrees))
    return _heterogeneity(W + np.diag(1 - W.sum(axis=1)), list(graph.edges))


@published_claim(
    "decor-theorem-2-step-sizes",
    graph=connected_graphs(2, 4),
    condition=st.integers(1, 10),
    num_steps=st.integers(1, 20),
)
def printed_step_sizes_converge(graph: nx.Graph, condition: int, num_steps: int) -> tuple[float, float]:
    """On a quadratic of curvatures L and mu = 1 that all nodes share, from one start and without noise: only this term
    of the bound is left, and `BOUND_CONSTANT` stands for its constant.
    """
    return bound_and_loss(graph, condition, num_steps, delay=1)


def bound_and_loss(graph: nx.Graph, condition: int, num_steps: int, *, delay: int) -> tuple[float, float]:
    """The term of the bound, and the loss after steps 16 / (mu (t + delay c L / (mu p))); the lemmas want delay 16."""
    W = gossip.metropolis_hastings(graph).dense()
    n, L = len(graph), float(condition)
    p = 1 - float(np.linalg.norm(W - 1 / n, 2)) ** 2
    c = max(1 / L, 2 * p)
    curvatures = np.array([L, 1.0])
    X = np.ones((n, 2))
    for t in range(num_steps):
        X = W @ (X - 16 / (t + delay * c * L / p) * X * curvatures)
    start, end = (float((curvatures * x**2).sum()) / 2 for x in (np.ones(2), X.mean(axis=0)))
    return BOUND_CONSTANT * (c * L / (p * num_steps)) ** 2 * start, end


@published_claim("decor-code-data-split", counts=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def split_holds_every_record_once(counts: list[int]) -> tuple[float, float]:
    held: list[int] = []
    position = 0
    for count in counts:
        held += range(position, position + count)
        position = count
    return 0.0, float(sum(held.count(record) != 1 for record in range(sum(counts))))
