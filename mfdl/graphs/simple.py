"""The simple graph of a list of edges: loops and repeats dropped and counted, nodes in label order.

Edges come from `files`, `named` or a networkx graph; the public functions are in the package itself.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable, Iterable
from numbers import Integral
from typing import TypeAlias

import networkx as nx

from ..errors import InvalidInput

Edge: TypeAlias = tuple[Hashable, Hashable]

UNNAMED = "given"


def plain_label(label: Hashable) -> Hashable:
    """numpy integers become int, so that labels print and hash alike whatever their origin."""
    return int(label) if isinstance(label, Integral) and not isinstance(label, bool) else label


def in_label_order(found: Iterable[Hashable]) -> list[Hashable]:
    nodes = [plain_label(label) for label in found]
    if all(type(label) is int for label in nodes):
        nodes.sort(key=operator.index)  # type: ignore[arg-type]
    return nodes


def simple_graph(name: str, nodes: Iterable[Hashable], edges: Iterable[Edge], *, count: bool = True) -> nx.Graph:
    """The simple graph of a list of edges, nodes in label order, with what was dropped."""
    edges = list(edges)
    seen = dict.fromkeys(itertools.chain(nodes, itertools.chain.from_iterable(edges)))
    if not seen:
        raise InvalidInput(f"graph {name!r} has no nodes; give a graph with at least one.")
    links = [(a, b) for a, b in edges if a != b]
    G = nx.Graph(name=name)
    G.add_nodes_from(in_label_order(seen))
    G.add_edges_from(links)
    G.graph["dropped_self_loops"] = len(edges) - len(links) if count else 0
    G.graph["dropped_duplicate_edges"] = len(links) - G.number_of_edges() if count else 0
    return G


def from_networkx(given: nx.Graph) -> nx.Graph:
    if given.is_directed():
        one_way = [(a, b) for a, b in given.edges() if not given.has_edge(b, a)]
        if one_way:
            a, b = one_way[0]
            raise InvalidInput(
                f"graph {name_of(given)!r} is directed, and {len(one_way)} of its {given.number_of_edges()} edges have "
                f"no reverse, the first {a!r} -> {b!r}; give graph.to_undirected() if both ends send, the weights of a "
                "directed graph to mfdl.gossip.from_array, or the graph to mfdl.gossip.push_sum."
            )
    nodes = [plain_label(label) for label in given.nodes]
    edges = ((plain_label(a), plain_label(b)) for a, b in given.edges())
    G = simple_graph(name_of(given), nodes, edges)
    for key in ("dropped_self_loops", "dropped_duplicate_edges"):  # counted by an earlier load
        earlier = given.graph.get(key, 0)
        G.graph[key] += earlier if isinstance(earlier, int) else 0
    return G


def keep_largest_component(G: nx.Graph) -> nx.Graph:
    components = list(nx.connected_components(G))  # in order of their first node, and max keeps the first
    if len(components) == 1:
        return G
    keep = max(components, key=len)
    smaller = nx.Graph(**G.graph)
    smaller.add_nodes_from(node for node in G if node in keep)
    smaller.add_edges_from((a, b) for a, b in G.edges if a in keep)
    return smaller


def name_of(G: nx.Graph) -> str:
    return str(G.graph.get("name") or UNNAMED)
