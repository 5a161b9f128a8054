"""Loads graphs by name, from files or from networkx, and answers for their nodes: labels, indices, adjacency, hash."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from .. import check, matrices
from ..errors import InvalidInput, did_you_mean, unknown_name
from ..spec import parse
from .named import GRAPHS, build, build_sparse
from .simple_graphs import SparseGraph, from_networkx, in_label_order, is_networkx, keep_largest_component, nx_name

if TYPE_CHECKING:
    import networkx as nx

Source: TypeAlias = "str | os.PathLike[str] | nx.Graph | SparseGraph"


def load(
    spec_or_path_or_graph: Source, *, largest_component: bool = False, data_home: str | os.PathLike[str] | None = None
) -> nx.Graph:
    """A plain undirected graph from a spec, a graph file or a networkx graph.

    Weights are dropped, as are self-loops and repeated edges (a -> b after b -> a is a repeat); how many is kept in
    `graph["dropped_self_loops"]` and `graph["dropped_duplicate_edges"]`. The spec or file name is kept in
    `graph["name"]`. Loading a loaded graph changes nothing. The graph need not be connected: see `require_connected`.

    `graph_formats.FORMATS` lists the formats of files: edge lists and adjacency matrices (CSV, TSV, blanks, NumPy,
    Matrix Market), METIS, GML, GraphML, Pajek and JSON, also compressed. The suffix or every line decides the format; a
    file that could be another graph is refused. In edge lists a line that begins with `#` or `%` is a comment, and a
    first line with the columns Source and Target (any case, any order, further columns allowed) a header. Labels that
    are all integers become int.

    Args:
        spec_or_path_or_graph: a name of `names()`, perhaps with parameters (`erdos-renyi:n=100,p=0.2,seed=1`); a path;
            or a networkx graph of any kind, which is not changed. A directed one must have the reverse of every edge: a
            file lists links, a directed graph says who sends.
        largest_component: keep only the largest connected component (the one with the first node, if several).
        data_home: data folder of the graphs that are downloaded, see `data.home`.

    Raises: InvalidInput: an unknown name or parameter, one out of range, a file that is missing or malformed (with its
        line number), a graph without nodes.
    Cost: O(nodes + edges); `regular` and `erdos-renyi` repeat their draw until it is connected.

    >>> g = load("ring:n=4")
    >>> list(g), g.number_of_edges()
    ([0, 1, 2, 3], 4)
    """
    graph = _read(spec_or_path_or_graph, data_home)
    return keep_largest_component(graph) if largest_component else graph


def load_sparse(
    source: Source, *, largest_component: bool = False, data_home: str | os.PathLike[str] | None = None
) -> SparseGraph:
    """The same graph as arrays, with the same labels and content hash: for a million nodes and more.

    Cost: O(nodes + edges): some 60 bytes an edge while it is built, 2 after.

    >>> load_sparse("torus:n=9").num_edges
    18
    """
    graph = source if isinstance(source, SparseGraph) else _read_sparse(source, data_home)
    return graph.largest_component() if largest_component else graph


def _read_sparse(source: str | os.PathLike[str] | nx.Graph, data_home: str | os.PathLike[str] | None) -> SparseGraph:
    if isinstance(source, str) and parse(source).name in GRAPHS:
        return build_sparse(source.strip(), data_home)
    if isinstance(source, str | os.PathLike):
        from .edge_lists import integer_edges  # readers load with the first file

        if (pairs := integer_edges(Path(source))) is not None:
            labels, ends = np.unique(pairs, return_inverse=True)
            return SparseGraph.from_edges(tuple(labels.tolist()), ends.reshape(-1, 2), Path(source).name)
    return SparseGraph.from_networkx(_read(source, data_home))


def _read(source: Source, data_home: str | os.PathLike[str] | None) -> nx.Graph:
    if isinstance(source, SparseGraph):
        return source.networkx()
    if is_networkx(source):
        return from_networkx(source)
    if not isinstance(source, str | os.PathLike):
        raise InvalidInput(
            f"graph must be a spec such as 'ring:n=16', a path or a networkx graph, got {type(source).__name__}."
        )
    from .graph_files import looks_like_a_file, read_graph

    if isinstance(source, str):
        spec, name = source.strip(), parse(source).name
        if name in GRAPHS:
            return build(spec, data_home)
        if not looks_like_a_file(spec):
            raise unknown_name("graph", name, GRAPHS)
    return read_graph(Path(source), GRAPHS)


def resolved_name(graph: Any) -> Any:
    """The graph that a name or a path stands for; every other value as it is, for the caller to check."""
    return load_sparse(graph) if isinstance(graph, str | os.PathLike) else graph


def names() -> dict[str, str]:
    """The named graphs, each with one line that shows its parameters.

    >>> names()["ring"]
    'ring:n=16 -- Cycle: node i meets i - 1 and i + 1.'
    """
    return {name: f"{entry.form} -- {entry.help}" for name, entry in GRAPHS.items()}


def labels(G: Source) -> tuple[Hashable, ...]:
    """Node labels in index order.

    >>> import networkx as nx
    >>> labels(nx.Graph([(2, 0), (0, 1)])), labels("ring:n=3")
    ((0, 1, 2), (0, 1, 2))
    """
    G = resolved_name(G)
    if isinstance(G, SparseGraph):
        return G.labels
    return tuple(in_label_order(_networkx(G).nodes))


def label_index(G: Source, label: Hashable) -> int:
    """Index of the node with this label, with this text as its label, or named by index as `#0`.

    >>> G = load("florentine")
    >>> label_index(G, "Medici"), label_index(G, "#2"), label_index("ring:n=4", "3")
    (1, 2, 3)

    Raises: InvalidInput: no such node; the message names the nearest label. Cost: O(nodes).
    """
    G = resolved_name(G)
    ordered = labels(G)
    for index, known in enumerate(ordered):
        if known == label:
            return index
    text = str(label)
    by_text = {str(known): index for index, known in enumerate(ordered)}
    if text in by_text:
        return by_text[text]
    if re.fullmatch(r"#[0-9]{1,9}", text) and int(text[1:]) < len(ordered):
        return int(text[1:])
    hint = did_you_mean(text, by_text)
    some = ", ".join(str(known) for known in ordered[:20]) + (", ..." if len(ordered) > 20 else "")
    raise InvalidInput(
        f"node {text!r} is not in graph {_source_name(G)!r}{hint} Its {len(ordered)} labels: {some}; "
        f"or give an index, '#0' to '#{len(ordered) - 1}'."
    )


def adjacency(G: Source) -> csr_array:
    """0/1 adjacency matrix in label order, shape (n, n), float64, without diagonal.

    >>> adjacency("path:n=3").toarray()
    array([[0., 1., 0.],
           [1., 0., 1.],
           [0., 1., 0.]])
    """
    return csr_array(_sparse(G).links, dtype=np.float64)


def content_hash(G: Source) -> str:
    """16 hex digits of the SHA-256 of labels and edges; names, attributes and edge order do not count.

    >>> content_hash("ring:n=3") == content_hash("complete:n=3")
    True
    """
    G = resolved_name(G)
    return matrices.content_hash(repr(labels(G)), _sparse(G).edges)


def require_connected(G: Source) -> None:
    """Refuses a graph that is not connected (or empty): information cannot reach every node."""
    G = resolved_name(G)
    if (n := len(labels(G))) == 0:
        raise InvalidInput(f"graph {_source_name(G)!r} has no nodes; give a graph with at least one.")
    graph = _sparse(G)
    sizes = graph.component_sizes()
    if sizes.size > 1:
        raise InvalidInput(
            f"graph {graph.name!r} is not connected: {sizes.size} components, the largest has {sizes.max()} of {n} "
            "nodes; keep that one with largest_component=True (command line: --largest-component), or add edges."
        )


def _source_name(G: nx.Graph | SparseGraph) -> str:
    return G.name if isinstance(G, SparseGraph) else nx_name(G)


def _sparse(G: Source) -> SparseGraph:
    G = resolved_name(G)
    if isinstance(G, SparseGraph):
        return G
    return SparseGraph.from_networkx(_networkx(G))


def _networkx(G: Any) -> nx.Graph:
    if not is_networkx(G):
        import networkx as nx

        check.instance(nx.Graph, G=G)
    return G
