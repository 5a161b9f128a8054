"""Claims of Muffliato: a pairwise loss that adds up what single messages show, on paper and in public code.

Attacker v sees the messages of its neighbours and knows its own noise and gradients. Claimed are sums over (gradient,
message) pairs; the truth is the Gram of the whole view by pseudo-inverse, at signs of the gradients where it is
attained, or numerical integration where gradients react. All is sens^2 per unit record shift and noise.
"""

from __future__ import annotations

import math
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from mfdl import gossip
from mfdl.check import FloatArray
from mfdl.testing.oracles.adaptive import Reaction, adaptive_total_variation
from mfdl.testing.oracles.dense_views import clear_rank, gossip_messages, node_columns, pinv_gram
from mfdl.testing.oracles.sensitivity_oracle import largest_signed_sum
from mfdl.testing.strategies.graphs import connected_graphs, gossip_matrices

from ..paper_claims import nodes_with_pair, pairwise_gram, statements, total_variation
from . import Bound, muffliato_as_coded, muffliato_squared

NODES = st.integers(0, 3)

published_claim = statements(
    graph=connected_graphs(min_nodes=2, max_nodes=4),
    W=gossip_matrices(min_nodes=2, max_nodes=4).map(lambda W: W.dense()),
    attacker=NODES,
    victim=NODES,
    steps=st.integers(1, 3),
    rounds=st.integers(1, 3),
)


@st.composite
def path_weights(draw: st.DrawFn) -> FloatArray:
    """Symmetric weights of the path 0 - 1 - 2, multiples of 1/10; what is left of a row is the self weight."""
    first = draw(st.integers(1, 9))
    second = draw(st.integers(1, 10 - first))
    W = np.diag([10 - first, 10 - first - second, 10 - second])
    W[0, 1] = W[1, 0] = first
    W[1, 2] = W[2, 1] = second
    return W / 10


def _three_node_cases(kind: str) -> dict[str, st.SearchStrategy[Any]]:
    W = gossip_matrices(min_nodes=3, max_nodes=3, kinds=(kind,)).map(lambda W: W.dense())
    return {"W": W, "attacker": st.integers(0, 2), "victim": st.integers(0, 2)}


def _compared(
    bound: Bound, W: FloatArray, attacker: int, victim: int, steps: int = 1, rounds: int = 1, **options: bool
) -> tuple[float, float]:
    """The bound for one victim, and its X at the worst signs, or at the worst step where it takes part in one."""
    matrix = gossip.from_array(W)
    X = pairwise_gram(matrix, attacker, victim, steps, rounds)
    printed = bound(matrix, f"#{attacker}", num_steps=steps, gossip_rounds=rounds, **options)
    truth = largest_signed_sum(X) if options.get("every_step", True) else X.diagonal().max()
    return float(np.asarray(printed.value)[victim]), float(truth)


# ---- the squared sum of arXiv:2206.05091 ------------------------------------------------------------------------


@published_claim("muffliato-several-gossip-rounds")
def several_gossip_rounds(graph: nx.Graph, attacker: int, victim: int, rounds: int) -> tuple[float, float]:
    """W is Metropolis-Hastings."""
    return _compared(muffliato_squared, gossip.metropolis_hastings(graph).dense(), attacker, victim, rounds=rounds)


# it takes a middle node that keeps nothing and gives nearly all to the attacker
@published_claim("muffliato-several-participations", examples=600, weights=path_weights(), steps=st.integers(1, 4))
def several_participations(weights: FloatArray, steps: int) -> tuple[float, float]:
    """Path u - w - v with u = 0, v = 2, symmetric weights."""
    return _compared(muffliato_squared, weights, 2, 0, steps)


@published_claim("muffliato-one-participation", examples=120)
def one_participation(W: FloatArray, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    return _compared(muffliato_squared, W, attacker, victim, steps, every_step=False)


# the tolerance is that of the integration
@published_claim("muffliato-reacting-gradients", tolerance=1e-4, graph=connected_graphs(3, 3), slope=st.integers(0, 6))
def reacting_gradients(graph: nx.Graph, attacker: int, victim: int, slope: int) -> tuple[float, float]:
    """Three nodes, W Metropolis-Hastings; u's first gradient moves by 1, the third node's second gradient is
    clip(slope h, -1, 1), h what its model got from u.
    """
    W = gossip.metropolis_hastings(graph)
    nodes_with_pair(len(graph), attacker, victim)
    printed = muffliato_squared(W, f"#{attacker}", num_steps=2, every_step=False)
    reactions = {3 - attacker - victim: Reaction(float(slope))}
    truth = adaptive_total_variation(W.dense(), attacker=attacker, victim=victim, reactions=reactions, num_steps=2)
    return total_variation(np.asarray(printed.mu)[victim]), truth.value - truth.error


@published_claim("muffliato-first-message")
def first_message(graph: nx.Graph, attacker: int, victim: int) -> tuple[float, float]:
    """W is Metropolis-Hastings."""
    W = gossip.metropolis_hastings(graph)
    truth, rows = pairwise_gram(W, attacker, victim, 1).item(), W.dense()
    return sum(rows[w, victim] ** 2 / float(rows[w] @ rows[w]) for w in graph.neighbors(attacker)), truth


@published_claim("muffliato-ldp", tolerance=1e-6)  # of a pseudo-inverse with condition numbers up to 1e5
def under_ldp(W: FloatArray, steps: int, rounds: int) -> tuple[float, float]:
    messages, _ = gossip_messages(gossip.from_array(W), steps, gossip_rounds=rounds)
    assume(clear_rank(messages))
    grams = [pinv_gram(node_columns(messages, u, len(W)), messages) for u in range(len(W))]
    if any(leaks.any() for _, leaks in grams):
        return 0.0, math.inf
    return 0.0, max(float(np.abs(X - np.eye(steps)).max()) for X, _ in grams)


# ---- the baseline of Figure 2 of arXiv:2510.17480 ---------------------------------------------------------------


@published_claim("muffliato-as-coded", examples=120)
def as_coded(W: FloatArray, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    return _compared(muffliato_as_coded, W, attacker, victim, steps)


@published_claim("muffliato-as-coded-several-rounds", **_three_node_cases("symmetric"))
def as_coded_several_rounds(W: FloatArray, attacker: int, victim: int, rounds: int) -> tuple[float, float]:
    return _compared(muffliato_as_coded, W, attacker, victim, rounds=rounds)


@published_claim("muffliato-transposed-index", examples=800, **_three_node_cases("general"), steps=st.integers(2, 3))
def transposed_index(W: FloatArray, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    return _compared(muffliato_squared, W, attacker, victim, steps, every_step=False, transposed=True)
