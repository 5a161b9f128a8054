"""Who sends to whom: the communication graph of all rounds of a run, and what it is called."""

from __future__ import annotations

import networkx as nx

from .matrix import Gossip, GossipMatrix, count
from .sequences import GossipSequence


def communication_graph(gossip: Gossip, num_rounds: int) -> nx.Graph:
    """An edge where some round gives weight; nodes are the labels, so `graphs.content_hash` is that of the graph.

    Its name, `graph.name`, is the one all rounds share, else "4 nodes, 4 edges".

    >>> from mfdl import gossip
    >>> communication_graph(gossip.metropolis_hastings("ring:n=4"), 2).name
    'ring:n=4'
    >>> communication_graph(gossip.from_array([[0.5, 0.5], [0.5, 0.5]]), 2).name
    '2 nodes, 1 edge'

    Args: num_rounds: of the run; looked at one by one where gossip is of a class of the user's own.
    Cost: O(weights of all rounds that differ).
    """
    rounds = _rounds(gossip, num_rounds)
    union = nx.compose_all(W.graph() for W in rounds)
    named = {W.graph_name for W in rounds}
    graph = nx.relabel_nodes(union, dict(enumerate(gossip.labels)))
    size = f"{count(graph.number_of_nodes(), 'node')}, {count(graph.number_of_edges(), 'edge')}"
    graph.graph["name"] = (named.pop() if len(named) == 1 else "") or size
    return graph


def _rounds(gossip: Gossip, num_rounds: int) -> list[GossipMatrix]:
    """Those that differ."""
    if gossip.is_constant:
        return [gossip.at(0)]
    if isinstance(gossip, GossipSequence):
        every = list(gossip.matrices)
    else:
        every = [gossip.at(t) for t in range(num_rounds)]
    return list({W.content_hash: W for W in every}.values())
