"""What the papers state about privacy, gossip and error, each as a claim; and the pairwise views that claims share.

A claim says what is printed (or coded), never what this library computes instead: its words and the verdict on record
are those of its fact in `PAPER/facts.toml`, the truth comes from oracles, by the function that `statements` decorates.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import assume

from mfdl.check import FloatArray
from mfdl.gossip import GossipMatrix
from mfdl.testing import Claim, claim
from mfdl.testing.oracles import (
    clear_rank,
    gossip_messages,
    largest_signed_sum,
    node_columns,
    normal_cdf,
    pinv_gram,
    received,
    without_noise,
)

from .facts import fact

MODULES = (
    *("mafalda.view_claims", "muffliato.muffliato_claims", "zip_dl", "decor.accounting_claims"),
    *("decor.training_claims", "corn.corn_claims", "gdp", "whisper", "balls_in_bins"),
)

Decorator = Callable[..., Callable[[Callable[..., Any]], Claim]]


def statements(**usual: Any) -> Decorator:
    """`claim` for the facts of one file: paper, item, statement, verdict and erratum are those of `facts`.

    Args: usual: options, and what a parameter of this name is drawn from where a claim says nothing else.

    A function's docstring adds what its cases are, where the statement leaves that open.
    """

    def published_claim(id: str, **changes: Any) -> Callable[[Callable[..., Any]], Claim]:
        row, known = fact(id), {**usual, **changes}
        options = {"tolerance": usual["tolerance"]} if "tolerance" in usual else {}
        options |= {"id": id, "expect": "holds" if row.holds else "refuted", "erratum": row.true}

        def make(function: Callable[..., Any]) -> Claim:
            function.__doc__ = f"{row.states}\n\n{inspect.getdoc(function) or ''}".rstrip()
            drawn = {name: known[name] for name in inspect.signature(function).parameters if name in known}
            return claim(str(row.paper), row.item, **{**options, **drawn, **changes})(function)

        return make

    return published_claim


def published_claims() -> list[Claim]:
    """The claims of all papers, in the order of `MODULES`."""
    by_id: dict[str, Claim] = {}
    for module in MODULES:
        for value in vars(importlib.import_module(f"{__package__}.{module}")).values():
            if isinstance(value, Claim) and by_id.setdefault(value.id, value) is not value:
                raise RuntimeError(f"two claims are called {value.id!r}.")
    return list(by_id.values())


def nodes_with_pair(num_nodes: int, attacker: int, victim: int) -> int:
    """The number of nodes; rejects cases where attacker and victim are not two of them."""
    assume(attacker < num_nodes and victim < num_nodes and attacker != victim)
    return num_nodes


def heard(
    W: GossipMatrix, attacker: int, steps: int, *, gossip_rounds: int = 1, own_messages: bool = False
) -> FloatArray:
    """Injected sums -> messages the attacker receives, with its own ones if `own_messages`."""
    messages, _ = gossip_messages(W, steps, gossip_rounds=gossip_rounds)
    return messages[received(W, steps * gossip_rounds, [attacker], self_messages=own_messages).ravel()]


def own_parts(node: int, steps: int, num_nodes: int) -> set[int]:
    """Columns of one node, of gradients and of local noise alike."""
    return {t * num_nodes + node for t in range(steps)}


def victim_gram(rows: FloatArray, noise: FloatArray, victim: int, num_nodes: int) -> FloatArray:
    """X of one victim, inf where a part of its gradients is seen without noise; rejects views of unclear rank."""
    assume(clear_rank(noise))
    X, leaks = pinv_gram(node_columns(rows, victim, num_nodes), noise)
    return np.full_like(X, math.inf) if leaks.any() else X


def pairwise_gram(W: GossipMatrix, attacker: int, victim: int, steps: int, gossip_rounds: int = 1) -> FloatArray:
    """DP-D-SGD or Muffliato: what the attacker learns of the victim from what it receives, own noise known."""
    n = nodes_with_pair(W.num_nodes, attacker, victim)
    rows = heard(W, attacker, steps, gossip_rounds=gossip_rounds)
    return victim_gram(rows, without_noise(rows, own_parts(attacker, steps, n)), victim, n)


def printed_gram(W: GossipMatrix, attacker: int, victim: int, steps: int) -> FloatArray:
    """The same X as printed: C^T B^+ B C, where A = B C and C is I with zero columns for known noise and gradients."""
    n = nodes_with_pair(W.num_nodes, attacker, victim)
    B = without_noise(heard(W, attacker, steps), own_parts(attacker, steps, n))
    assume(clear_rank(B))
    projector = np.linalg.pinv(B, rcond=1e-9) @ B
    X = node_columns(node_columns(projector, victim, n).T, victim, n)
    return (X + X.T) / 2


def losses(A: FloatArray, B: FloatArray, victims: Collection[int], num_nodes: int) -> FloatArray:
    """sens^2 of each victim that takes part in every step, its gradients 1 or -1; inf for a leak."""
    grams = [pinv_gram(node_columns(A, u, num_nodes), B) for u in victims]
    return np.array([math.inf if leaks.any() else float(largest_signed_sum(X)) for X, leaks in grams])


def laplacian(graph: nx.Graph, nodes: Sequence[int] | None = None) -> FloatArray:
    """Graph Laplacian of a graph on 0, ..., n - 1, or of its subgraph on some nodes."""
    A = nx.to_numpy_array(graph, range(len(graph)) if nodes is None else nodes)
    return np.diag(A.sum(axis=1)) - A


def total_variation(mu: float) -> float:
    """Total variation of two normal distributions at distance mu: 2 Phi(mu / 2) - 1."""
    return float(2 * normal_cdf(mu / 2) - 1)


def distance(matrix: FloatArray, other: FloatArray) -> float:
    """Frobenius norm of the difference, relative to the second matrix where that is above 1."""
    return float(np.linalg.norm(matrix - other) / max(1.0, float(np.linalg.norm(other))))
