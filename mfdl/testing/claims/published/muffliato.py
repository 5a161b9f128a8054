"""Claims of Muffliato: a pairwise loss that adds up what single messages show, on paper and in public code.

Attacker v sees the messages of its neighbours and knows its own noise and gradients. Claimed are sums over (gradient,
message) pairs; the truth is the Gram of the whole view by pseudo-inverse, at signs of the gradients where it is
attained, or numerical integration where gradients react. Everything is sens^2 per unit record shift and noise, unless
stated otherwise.
"""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from .... import gossip
from ....check import FloatArray
from ....theory import bounds
from ...oracles.adaptive import Reaction, adaptive_total_variation
from ...oracles.gaussian import normal_cdf
from ...oracles.sensitivity import largest_signed_sum
from ...oracles.views import clear_rank, gossip_messages, of_node, pinv_gram, received, without_noise
from ...strategies.graphs import connected_graphs, gossip_matrices
from ._stated import stated

NODES = st.integers(0, 3)
WEIGHTS = gossip_matrices(min_nodes=2, max_nodes=4).map(lambda W: W.dense())
SYMMETRIC = gossip_matrices(min_nodes=3, max_nodes=3, kinds=("symmetric",)).map(lambda W: W.dense())
NOT_SYMMETRIC = gossip_matrices(min_nodes=3, max_nodes=3, kinds=("general",)).map(lambda W: W.dense())


@st.composite
def path_weights(draw: st.DrawFn) -> FloatArray:
    """Symmetric weights of the path 0 - 1 - 2, multiples of 1/10; what is left of a row is the self weight."""
    first = draw(st.integers(1, 9))
    second = draw(st.integers(1, 10 - first))
    W = np.diag([10 - first, 10 - first - second, 10 - second])
    W[0, 1] = W[1, 0] = first
    W[1, 2] = W[2, 1] = second
    return W / 10


# ---- truth --------------------------------------------------------------------------------------------------


def _gram(W: FloatArray, attacker: int, victim: int, num_steps: int, gossip_rounds: int = 1) -> FloatArray:
    """X of the victim, one gradient before every `gossip_rounds` rounds; rejects views of unclear rank."""
    n, matrix = len(W), gossip.from_array(W)
    messages, _ = gossip_messages(matrix, num_steps, gossip_rounds=gossip_rounds)
    seen = messages[received(matrix, num_steps * gossip_rounds, [attacker]).ravel()]
    B = without_noise(seen, {t * n + attacker for t in range(num_steps)})
    assume(clear_rank(B))
    X, leaks = pinv_gram(of_node(seen, victim, n), B)
    return np.full_like(X, math.inf) if leaks.any() else X


def _largest_entry(X: FloatArray) -> float:
    """Of one participation: the worst step."""
    return float(X.diagonal().max())


def _are_two_nodes(W: FloatArray, attacker: int, victim: int) -> None:
    assume(attacker != victim and max(attacker, victim) < len(W))


def _at(node: int, bound: bounds.PublishedBound) -> float:
    return float(np.asarray(bound.value)[node])


def _total_variation(mu: float) -> float:
    """Of two normal distributions at distance mu: 2 Phi(mu / 2) - 1."""
    return float(2 * normal_cdf(mu / 2) - 1)


# ---- the squared sum of arXiv:2206.05091 ------------------------------------------------------------------------


@stated(
    "muffliato-several-gossip-rounds",
    graph=connected_graphs(min_nodes=2, max_nodes=4),
    attacker=NODES,
    victim=NODES,
    rounds=st.integers(1, 3),
)
def several_gossip_rounds(graph: nx.Graph, attacker: int, victim: int, rounds: int) -> tuple[float, float]:
    """W is Metropolis-Hastings."""
    W = gossip.metropolis_hastings(graph)
    _are_two_nodes(W.dense(), attacker, victim)
    printed = bounds.muffliato_squared(W, f"#{attacker}", num_steps=1, gossip_rounds=rounds)
    return _at(victim, printed), _gram(W.dense(), attacker, victim, 1, rounds).item()


@stated(
    "muffliato-several-participations",
    examples=600,  # it takes a middle node that keeps nothing and gives nearly all to the attacker
    weights=path_weights(),
    steps=st.integers(1, 4),
)
def several_participations(weights: FloatArray, steps: int) -> tuple[float, float]:
    """Path u - w - v with u = 0, v = 2, symmetric weights."""
    printed = bounds.muffliato_squared(gossip.from_array(weights), "#2", num_steps=steps)
    return _at(0, printed), largest_signed_sum(_gram(weights, 2, 0, steps))


@stated("muffliato-one-participation", examples=120, W=WEIGHTS, attacker=NODES, victim=NODES, steps=st.integers(1, 3))
def one_participation(W: FloatArray, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    _are_two_nodes(W, attacker, victim)
    printed = bounds.muffliato_squared(gossip.from_array(W), f"#{attacker}", num_steps=steps, every_step=False)
    return _at(victim, printed), _largest_entry(_gram(W, attacker, victim, steps))


@stated(
    "muffliato-reacting-gradients",
    tolerance=1e-4,  # of the integration
    graph=connected_graphs(min_nodes=3, max_nodes=3),
    attacker=NODES,
    victim=NODES,
    slope=st.integers(0, 6),
)
def reacting_gradients(graph: nx.Graph, attacker: int, victim: int, slope: int) -> tuple[float, float]:
    """Three nodes, W Metropolis-Hastings; u's first gradient moves by 1, the third node's second gradient is
    clip(slope h, -1, 1), h what its model got from u.
    """
    W = gossip.metropolis_hastings(graph)
    _are_two_nodes(W.dense(), attacker, victim)
    printed = bounds.muffliato_squared(W, f"#{attacker}", num_steps=2, every_step=False)
    third = 3 - attacker - victim
    truth = adaptive_total_variation(
        W.dense(), attacker=attacker, victim=victim, reactions={third: Reaction(float(slope))}, num_steps=2
    )
    return _total_variation(np.asarray(printed.mu)[victim]), truth.value - truth.error


@stated("muffliato-first-message", graph=connected_graphs(min_nodes=2, max_nodes=4), attacker=NODES, victim=NODES)
def first_message(graph: nx.Graph, attacker: int, victim: int) -> tuple[float, float]:
    """W is Metropolis-Hastings."""
    W = gossip.metropolis_hastings(graph).dense()
    _are_two_nodes(W, attacker, victim)
    claimed = sum(W[w, victim] ** 2 / float(W[w] @ W[w]) for w in graph.neighbors(attacker))
    return claimed, _gram(W, attacker, victim, 1).item()


@stated(
    "muffliato-ldp",
    tolerance=1e-6,  # of a pseudo-inverse with condition numbers up to 1e5
    W=WEIGHTS,
    steps=st.integers(1, 3),
    rounds=st.integers(1, 3),
)
def under_ldp(W: FloatArray, steps: int, rounds: int) -> tuple[float, float]:
    messages, _ = gossip_messages(gossip.from_array(W), steps, gossip_rounds=rounds)
    assume(clear_rank(messages))
    grams = [pinv_gram(of_node(messages, u, len(W)), messages) for u in range(len(W))]
    if any(leaks.any() for _, leaks in grams):
        return 0.0, math.inf
    return 0.0, max(float(np.abs(X - np.eye(steps)).max()) for X, _ in grams)


# ---- the baseline of Figure 2 of arXiv:2510.17480 ---------------------------------------------------------------


@stated("muffliato-as-coded", examples=120, W=WEIGHTS, attacker=NODES, victim=NODES, steps=st.integers(1, 3))
def as_coded(W: FloatArray, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    _are_two_nodes(W, attacker, victim)
    coded = bounds.muffliato_as_coded(gossip.from_array(W), f"#{attacker}", num_steps=steps)
    return _at(victim, coded), largest_signed_sum(_gram(W, attacker, victim, steps))


@stated(
    "muffliato-as-coded-several-rounds",
    W=SYMMETRIC,
    attacker=st.integers(0, 2),
    victim=st.integers(0, 2),
    rounds=st.integers(1, 3),
)
def as_coded_several_rounds(W: FloatArray, attacker: int, victim: int, rounds: int) -> tuple[float, float]:
    _are_two_nodes(W, attacker, victim)
    coded = bounds.muffliato_as_coded(gossip.from_array(W), f"#{attacker}", num_steps=1, gossip_rounds=rounds)
    return _at(victim, coded), _gram(W, attacker, victim, 1, rounds).item()


@stated(
    "muffliato-transposed-index",
    examples=800,
    W=NOT_SYMMETRIC,
    attacker=st.integers(0, 2),
    victim=st.integers(0, 2),
    steps=st.integers(2, 3),
)
def transposed_index(W: FloatArray, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    _are_two_nodes(W, attacker, victim)
    coded = bounds.muffliato_squared(
        gossip.from_array(W), f"#{attacker}", num_steps=steps, every_step=False, transposed=True
    )
    return _at(victim, coded), _largest_entry(_gram(W, attacker, victim, steps))
