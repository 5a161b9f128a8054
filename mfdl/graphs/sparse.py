"""Graphs as arrays: what a million nodes fit in. What averaging needs, and nothing of networkx.

In: what `graphs.load` reads. Out: the same nodes and edges as a `SparseGraph`, with the same content hash.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, triu
from scipy.sparse.csgraph import connected_components

from .simple import in_label_order, name_of, simple_graph


@dataclasses.dataclass(frozen=True, eq=False)
class SparseGraph:
    """A simple undirected graph.

    Attributes:
        links: 0/1 adjacency, symmetric csr (n, n) of int8, sorted, without diagonal.
        labels: of the nodes, in index order; name: for reports.
    """

    links: csr_array
    labels: tuple[Hashable, ...]
    name: str

    @classmethod
    def of_edges(cls, labels: tuple[Hashable, ...], edges: NDArray[np.int64], name: str) -> SparseGraph:
        """Edges by index, shape (m, 2); loops and repeats are dropped."""
        n = len(labels)
        kept = edges[edges[:, 0] != edges[:, 1]].astype(np.int32 if n < 2**31 else np.int64)
        ends = np.concatenate([kept, kept[:, ::-1]])
        ones = np.ones(len(ends), dtype=np.int8)
        links = coo_array((ones, (ends[:, 0], ends[:, 1])), shape=(n, n)).tocsr()
        links.sum_duplicates()
        links.data = np.ones(links.nnz, dtype=np.int8)
        return cls(links, labels, name)

    @classmethod
    def of_networkx(cls, graph: nx.Graph) -> SparseGraph:
        """A plain graph, as `graphs.load` makes it."""
        labels = tuple(in_label_order(graph.nodes))
        links = csr_array(nx.to_scipy_sparse_array(graph, labels, dtype=np.int8, weight=None))
        links.sort_indices()
        return cls(links, labels, name_of(graph))

    @property
    def num_nodes(self) -> int:
        """n."""
        return len(self.labels)

    @property
    def num_edges(self) -> int:
        """m."""
        return int(self.links.nnz) // 2

    @property
    def edges(self) -> NDArray[np.int64]:
        """Pairs of indices, the smaller first, in order, shape (m, 2)."""
        return np.stack(triu(self.links).coords, axis=1).astype(np.int64)

    def component_sizes(self) -> NDArray[np.intp]:
        """Of all components, in order of their first node."""
        return np.bincount(self._components())

    def largest_component(self) -> SparseGraph:
        """The largest, that with the first node where several are."""
        component = self._components()
        kept = np.flatnonzero(component == np.bincount(component).argmax())
        if kept.size == self.num_nodes:
            return self
        links = csr_array(self.links[kept][:, kept])
        links.sort_indices()
        return SparseGraph(links, tuple(self.labels[i] for i in kept.tolist()), self.name)

    def _components(self) -> NDArray[np.int32]:
        found: NDArray[np.int32] = connected_components(self.links, directed=False)[1]
        return found

    def networkx(self) -> nx.Graph:
        """The same graph for networkx, about 1 kB an edge."""
        pairs = ((self.labels[a], self.labels[b]) for a, b in self.edges.tolist())
        return simple_graph(self.name, self.labels, pairs, count=False)
