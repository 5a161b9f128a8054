"""Gossip matrices: how much weight each node gives to each message when it averages.

W[i, j] is the weight node i gives node j, so rows sum to 1. Which of the further properties hold (symmetric, doubly
stochastic, connected, reversible) is computed, never declared. All of it is sparse; only `dense` and `spectrum` form an
n x n array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import randomized
    from .builders import fastest_mixing, from_array, least_noise, load, metropolis_hastings, sequence, uniform
    from .changing import (
        churn,
        link_dropout,
        node_dropout,
        one_peer_exponential,
        peer_sampling,
        random_matchings,
        random_pairs,
        sampled_presence,
        sampled_walk,
    )
    from .directed import average, push_sum
    from .matrix import Gossip, GossipMatrix
    from .sequences import GossipSequence

__all__ = [
    "Gossip", "GossipMatrix", "GossipSequence", "average", "churn", "fastest_mixing", "from_array", "least_noise",
    "link_dropout", "load", "metropolis_hastings", "node_dropout", "one_peer_exponential", "peer_sampling", "push_sum",
    "random_matchings", "random_pairs", "randomized", "sampled_presence", "sampled_walk", "sequence", "uniform",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from ..extensions import public

    return public(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
