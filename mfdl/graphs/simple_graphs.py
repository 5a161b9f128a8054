"""Simple undirected graphs: of networkx with nodes in label order, and as arrays for a million nodes and more.

`simple_graph` drops and counts loops and repeated edges. A `SparseGraph` holds what averaging needs, without networkx.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import sys
from collections.abc import Hashable, Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, triu
from scipy.sparse.csgraph import connected_components

from ..errors import InvalidInput

if TYPE_CHECKING:
    import networkx as nx

Edge: TypeAlias = tuple[Hashable, Hashable]

UNNAMED = "given"


def plain_label(label: Hashable) -> Hashable:
    """Converts numpy integers to int, so that labels print and hash alike."""
    return int(label) if isinstance(label, Integral) and not isinstance(label, bool) else label


def in_label_order(labels: Iterable[Hashable]) -> list[Hashable]:
    nodes = [plain_label(label) for label in labels]
    if all(type(label) is int for label in nodes):
        nodes.sort(key=operator.index)  # type: ignore[arg-type]  # exact: integers
    return nodes


def is_networkx(graph: Any) -> TypeGuard[nx.Graph]:
    """Whether a value is a graph of networkx, which is loaded (a tenth of a second) only if needed."""
    networkx = sys.modules.get("networkx")
    return networkx is not None and isinstance(graph, networkx.Graph)


def simple_graph(name: str, nodes: Iterable[Hashable], edges: Iterable[Edge], *, count: bool = True) -> nx.Graph:
    import networkx as nx

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
                f"graph {nx_name(given)!r} is directed, and {len(one_way)} of its {given.number_of_edges()} edges "
                f"have no reverse, the first {a!r} -> {b!r}; give graph.to_undirected() if both ends send, the weights "
                "of a directed graph to mfdl.gossip.from_array, or the graph to mfdl.gossip.push_sum."
            )
    nodes = [plain_label(label) for label in given.nodes]
    edges = ((plain_label(a), plain_label(b)) for a, b in given.edges())
    G = simple_graph(nx_name(given), nodes, edges)
    for key in ("dropped_self_loops", "dropped_duplicate_edges"):  # counted by an earlier load
        earlier = given.graph.get(key, 0)
        G.graph[key] += earlier if isinstance(earlier, int) else 0
    return G


def keep_largest_component(G: nx.Graph) -> nx.Graph:
    import networkx as nx

    components = list(nx.connected_components(G))  # in order of their first node, and max keeps the first
    if len(components) == 1:
        return G
    keep = max(components, key=len)  # exact: integers
    smaller = nx.Graph(**G.graph)
    smaller.add_nodes_from(node for node in G if node in keep)
    smaller.add_edges_from((a, b) for a, b in G.edges if a in keep)
    return smaller


def nx_name(G: nx.Graph) -> str:
    return str(G.graph.get("name") or UNNAMED)


@dataclasses.dataclass(frozen=True, eq=False)
class SparseGraph:
    """A simple undirected graph: 0/1 adjacency, symmetric csr (n, n) of int8, sorted, and labels in index order."""

    links: csr_array
    labels: tuple[Hashable, ...]
    name: str

    @classmethod
    def from_edges(cls, labels: tuple[Hashable, ...], edges: NDArray[np.int64], name: str) -> SparseGraph:
        """Edges by index, shape (m, 2); loops and repeats are dropped."""
        n = len(labels)
        proper_edges = edges[edges[:, 0] != edges[:, 1]].astype(np.int32 if n < 2**31 else np.int64)
        ends = np.concatenate([proper_edges, proper_edges[:, ::-1]])
        ones = np.ones(len(ends), dtype=np.int8)
        links = coo_array((ones, (ends[:, 0], ends[:, 1])), shape=(n, n)).tocsr()
        links.sum_duplicates()
        links.data = np.ones(links.nnz, dtype=np.int8)
        return cls(links, labels, name)

    @classmethod
    def from_networkx(cls, graph: nx.Graph) -> SparseGraph:
        import networkx as nx

        labels = tuple(in_label_order(graph.nodes))
        links = csr_array(nx.to_scipy_sparse_array(graph, labels, dtype=np.int8, weight=None))
        links.sort_indices()
        return cls(links, labels, nx_name(graph))

    @property
    def num_nodes(self) -> int:
        return len(self.labels)

    @property
    def num_edges(self) -> int:
        return int(self.links.nnz) // 2

    @property
    def edges(self) -> NDArray[np.int64]:
        """Pairs of indices, the smaller first, in order, shape (m, 2)."""
        return np.stack(triu(self.links).coords, axis=1).astype(np.int64)

    def component_sizes(self) -> NDArray[np.intp]:
        """Numbers of nodes of all components, in order of their first node."""
        return np.bincount(self._components())

    def largest_component(self) -> SparseGraph:
        """The largest component, of several the one with the first node."""
        component = self._components()
        members = np.flatnonzero(component == np.bincount(component).argmax())  # exact: integers
        if members.size == self.num_nodes:
            return self
        links = csr_array(self.links[members][:, members])
        links.sort_indices()
        return SparseGraph(links, tuple(self.labels[i] for i in members.tolist()), self.name)

    def _components(self) -> NDArray[np.int32]:
        component_of_node: NDArray[np.int32] = connected_components(self.links, directed=False)[1]
        return component_of_node

    def networkx(self) -> nx.Graph:
        """This graph as a networkx graph, about 1 kB an edge."""
        pairs = ((self.labels[a], self.labels[b]) for a, b in self.edges.tolist())
        return simple_graph(self.name, self.labels, pairs, count=False)
