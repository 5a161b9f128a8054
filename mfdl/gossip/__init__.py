"""Gossip matrices: how much weight each node gives to each message when it averages.

In: a graph (or a given matrix). Out: `GossipMatrix`, one averaging round new = W @ old, or `GossipSequence`,
a round for each step; both are a `Gossip`. W[i, j] is the weight node i gives node j, so rows sum to 1. Which
of the further properties hold (symmetric, doubly stochastic, connected, reversible) is computed, never
declared. All of it is sparse; only `dense` and `spectrum` form an n x n array.

`matrix` holds `Gossip` and `GossipMatrix`, `sequences` holds `GossipSequence`, `builders` the ways to get one;
`changing` draws rounds that change (matchings, peers, nodes and links that are away), `randomized` says what such
rounds are on average, `walks` the way of a token, `directed` averages over links that go one way; `average` is one
node's round in a loop of one's own, `communication` the graph of all rounds, `mixing` how fast rounds average.
"""

from . import randomized
from .average import average
from .builders import from_array, from_file, load, metropolis_hastings, sequence, uniform
from .changing import (
    absences,
    churn,
    drawn_presence,
    link_dropout,
    one_peer_exponential,
    peer_sampling,
    random_matchings,
    random_pairs,
)
from .directed import PushSum, push_sum
from .matrix import (
    BALANCE_TOLERANCE,
    MAX_DENSE_NODES,
    SUM_TOLERANCE,
    SYMMETRY_TOLERANCE,
    Gossip,
    GossipMatrix,
)
from .mixing import mixing_parameter
from .randomized import RandomGossip
from .sequences import GossipSequence
from .walks import drawn_walk

__all__ = [
    "BALANCE_TOLERANCE",
    "MAX_DENSE_NODES",
    "SUM_TOLERANCE",
    "SYMMETRY_TOLERANCE",
    "Gossip",
    "GossipMatrix",
    "GossipSequence",
    "PushSum",
    "RandomGossip",
    "absences",
    "average",
    "churn",
    "drawn_presence",
    "drawn_walk",
    "from_array",
    "from_file",
    "link_dropout",
    "load",
    "metropolis_hastings",
    "mixing_parameter",
    "one_peer_exponential",
    "peer_sampling",
    "push_sum",
    "random_matchings",
    "random_pairs",
    "randomized",
    "sequence",
    "uniform",
]


def __dir__() -> list[str]:
    return sorted(__all__)
