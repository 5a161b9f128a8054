"""Muffliato, arXiv:2206.05091 [CEBM22]: the pairwise loss by distance in the graph, as proved in part and as coded.

`published_losses` shows the bounds beside the losses of `mfdl account`, in its picture.

Claims: attacker v sees the messages of its neighbours and knows its own noise and gradients. Claimed are sums over
(gradient, message) pairs; the truth is the Gram of the whole view by pseudo-inverse, at signs of the gradients where it
is attained, or numerical integration where gradients react. All is sens^2 per unit record shift and noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from mfdl import check, gossip
from mfdl.algorithms import LinearAlgorithm
from mfdl.check import FloatArray
from mfdl.extensions import PublishedLosses
from mfdl.gossip import Gossip
from mfdl.spec import takes_fields_of
from mfdl.testing.oracles.adaptive import Reaction, adaptive_total_variation
from mfdl.testing.oracles.dense_views import clear_rank, gossip_messages, node_columns, pinv_gram
from mfdl.testing.oracles.sensitivity_oracle import largest_signed_sum
from mfdl.testing.strategies.graphs import connected_graphs, gossip_matrices

from ..facts import errata
from ..paper_claims import nodes_with_pair, pairwise_gram, statements, total_variation
from ..published import NON_ADAPTIVE, PublishedBound, constant, node_index


@dataclasses.dataclass(frozen=True, eq=False)
class _Pairs:
    """The arguments of `muffliato_squared`, which documents them."""

    gossip: Gossip
    attacker: Hashable
    _: dataclasses.KW_ONLY
    num_steps: int
    gossip_rounds: int = 1
    every_step: bool = True
    transposed: bool = False


@takes_fields_of(_Pairs)
def muffliato_squared(pairs: _Pairs) -> PublishedBound:
    """What attacker v learns of each node u, by the sum of (W^s)_wu^2 / ||(W^s)_w||^2 over neighbours w of v.

    With T gradient steps and K gossip rounds after each, the pair (gradient, message) that is s rounds apart
    occurs T - floor(s / K) times, s = 0 .. K T - 1:

        min(T, sum_s (T - floor(s / K)) sum_{w in N(v), w != v} (W^s)_wu^2 / ||(W^s)_w||^2)

    Source: [CEBM22] arXiv:2206.05091, pairwise loss of Muffliato, as in its public code, applied to every
        (gradient, message) pair; the minimum with the local value T is ours, and always allowed.
    Claims: sens^2 of u against v per unit record shift and noise std, for T participations of u (1 if not
        `every_step`, then every s counts once and the minimum is with 1).
    Errata: `muffliato-several-gossip-rounds`, `muffliato-several-participations`: a message that holds the noise of one
        injection only has exactly this loss, but losses of messages that share noise do not add.
    Validity: "bound" for K = 1, one participation and non-adaptive gradients; else "heuristic".
        Proof of that case: subtract from each message of a neighbour w what earlier seen messages contribute.
        What is left is u's gradient carried along paths through unseen nodes, weight 0 <= a' <= (W^s)_wu, plus
        w's fresh noise of that step, of variance 1 and independent of the rest. So sens^2 <= sum a'^2, and
        ||(W^s)_w|| <= 1.

    Args:
        gossip: constant gossip W; w is a neighbour of v where W_vw > 0.
        attacker: v, a label of `gossip`, or an index written "#0". num_steps: T; gossip_rounds: K.
        every_step: u takes part in all T steps, not in one only.
        transposed: read (W^s)[u, w] / ||(W^s)[:, w]|| instead, as some public code does; never certified.

    Raises: InvalidInput: attacker unknown, or a count below 1. UnsupportedMechanism: W changes over time.
    Cost: O(K T nnz(W) neighbours) time, O(n neighbours) memory, all victims at once.
    """
    source = "[CEBM22] arXiv:2206.05091, pairwise loss of Muffliato, squared weights, over all gradient-message pairs"
    return _bound(pairs, source, "muffliato-several-gossip-rounds", "muffliato-several-participations")


@takes_fields_of(_Pairs)
def muffliato_as_coded(pairs: _Pairs) -> PublishedBound:
    """The baseline of Figure 2 of [MF]: numerator not squared, the attacker counted among its neighbours.

        min(T, sum_s (T - floor(s / K)) sum_{w in N(v) and w = v} (W^s)_wu / ||(W^s)_w||^2)

    Source: public code of [MF] arXiv:2510.17480, which cites a corrected theorem 11 of [CEBM22]; in no document.
        That code reads the weights transposed and has K = 1: `transposed=True` is its exact index.
    Claims, Args, Raises, Cost: those of `muffliato_squared`.
    Errata: `muffliato-as-coded`, `muffliato-as-coded-several-rounds`: not squaring makes it at least
        `muffliato_squared`, so much that a comparison with it says little.
    Validity: that of `muffliato_squared`, as it is never below it.
    """
    source = "[MF] arXiv:2510.17480, public code of Figure 2, baseline after [CEBM22] arXiv:2206.05091"
    return _bound(pairs, source, "muffliato-as-coded", "muffliato-as-coded-several-rounds", as_coded=True)


def _bound(pairs: _Pairs, source: str, *facts: str, as_coded: bool = False) -> PublishedBound:
    value = _sums(pairs, as_coded)
    validity = f"bound {NON_ADAPTIVE}, one participation, one gossip round"
    if pairs.gossip_rounds > 1:
        validity = "heuristic for K > 1"
    elif pairs.transposed or pairs.every_step:
        validity = f"heuristic{': transposed index' if pairs.transposed else ' for several participations'}"
    erratum = errata(*facts, "muffliato-transposed-index")
    return PublishedBound(value, "sensitivity_squared", source, erratum, validity)


def _sums(pairs: _Pairs, as_coded: bool) -> FloatArray:
    T = check.integer_at_least(1, num_steps=pairs.num_steps)
    K = check.integer_at_least(1, gossip_rounds=pairs.gossip_rounds)
    matrix = constant(pairs.gossip)
    W = matrix.weights
    v = node_index(matrix.labels, pairs.attacker)
    seen = np.unique(np.append(W.indices[W.indptr[v] : W.indptr[v + 1]], v))
    if not as_coded:
        seen = seen[seen != v]
    step = W if pairs.transposed else W.T.tocsr()
    rows = np.zeros((W.shape[0], len(seen)))  # column per seen node w: row w of W^s, or its column if transposed
    rows[seen, np.arange(len(seen))] = 1.0
    total = np.zeros(W.shape[0])
    for s in range(K * T):
        count = T - s // K if pairs.every_step else 1
        norms = (rows**2).sum(axis=0)  # 0 only for a transposed column, whose numerator is 0 as well
        total += count * ((rows if as_coded else rows**2) / np.where(norms > 0, norms, 1.0)).sum(axis=1)
        rows = step @ rows
    value: FloatArray = np.minimum(total, T if pairs.every_step else 1)
    value[v] = math.inf
    return value


Bound = Callable[..., PublishedBound]
BOUNDS: dict[str, Bound] = {"published, squared": muffliato_squared, "published, as coded": muffliato_as_coded}


def published_losses(
    mechanism: str, trust: str, algorithm: LinearAlgorithm, attackers: Sequence[tuple[int, ...]]
) -> list[PublishedLosses]:
    """Both bounds, where they are stated: single attackers, a record in every step or in one; else none."""
    scheme = algorithm.participation
    every_step = scheme.in_every_step
    once = not scheme.secret and all(each.patterns_of_record().uses == 1 for each in scheme.distinct())
    single = trust == "pndp" and all(len(nodes) == 1 for nodes in attackers)
    if not (single and mechanism in ("dp-dsgd", "muffliato") and (every_step or once)):
        return []
    published, dynamics = [], algorithm.dynamics
    options: dict[str, Any] = {"num_steps": algorithm.num_steps, "gossip_rounds": dynamics.gossip_rounds}
    for name, bound in BOUNDS.items():
        by_attacker = [bound(dynamics.gossip, f"#{v}", every_step=every_step, **options) for (v,) in attackers]
        squared = {nodes: np.asarray(of_one.value) for nodes, of_one in zip(attackers, by_attacker, strict=True)}
        published.append(PublishedLosses(name, by_attacker[0].validity, squared))
    return published


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
