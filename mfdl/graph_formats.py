"""The table of file formats of graphs, from which help, docs and refusals come; `graphs.graph_files` reads them."""

from __future__ import annotations

from typing import NamedTuple


class Format(NamedTuple):
    """A format: suffixes (before .gz), reader in `graphs.graph_files`, words for the docs, and a pattern of the first
    characters that decides it where the suffix is that of lines of text."""

    name: str
    suffixes: tuple[str, ...]
    reader: str
    content: str
    example: str
    refused: str
    start: str = ""


_MATRIX = "a symmetric adjacency matrix of nodes 0 to n - 1"
FORMATS = (
    Format(
        "CSV", (".csv",), "read_text",
        "an edge a line, quotes as in any CSV; a header `Source,Target`, perhaps `Weight` and more columns; or a "
        "symmetric adjacency matrix, perhaps with names in first row and column", '`hub,"site, two"`',
        "other headers, weights that are not positive, gossip matrices",
    ),
    Format("TSV", (".tsv",), "read_text", "the same with tabs; names may have spaces", "`Site 1⇥B`", "as CSV"),
    Format(
        "edge list", (".txt", ".edges", ".edgelist", ".el"), "read_text",
        "the same with tabs or commas if they separate every line, else blanks, under any other suffix too; n, then "
        "each edge once or in both directions; KONECT", "`a b 0.5`",
        "separators in doubt, a first line that may count nodes and edges, bipartite KONECT",
    ),
    Format("Matrix Market", (".mtx",), "read_matrix_market", _MATRIX, "`%%MatrixMarket`", "as CSV", "%%MatrixMarket"),
    Format("NumPy", (".npy", ".npz"), "read_array", f"{_MATRIX}, also sparse", "`numpy.save`", "several arrays"),
    Format(
        "METIS", (".graph", ".metis"), "read_metis", "counts of nodes and edges, then the neighbours of node 1, 2, ...",
        "`5 5`", "lists that do not agree with each other or the counts",
    ),
    Format(
        "GML", (".gml",), "read_gml", "nodes named by label, else by id", "`graph [ ...`", "directed edges",
        r"(?:Creator\s.*\n)?\s*graph\s*\[",
    ),
    Format(
        "GraphML", (".graphml",), "read_graphml", "one graph, nodes named by id", "`<graphml ...`", "directed edges",
        r"<\?xml|<graphml",
    ),
    Format(
        "Pajek", (".net",), "read_pajek", "`*Vertices`, then `*Edges`", "`*Vertices 3`", "arcs, repeated names",
        r"\*(?:vertices|network)\b",
    ),
    Format(
        "JSON", (".json",), "read_json", "node-link data of networkx", '`{"nodes": [...], "links": [...]}`',
        "directed edges, edges between undeclared nodes", r'\{\s*"',
    ),
)  # fmt: skip
OTHER_FORMATS = {
    ".gexf": "read_gexf", ".g6": "read_graph6", ".s6": "read_sparse6", ".adjlist": "read_adjlist",
    ".dot": "nx_pydot.read_dot", ".gv": "nx_pydot.read_dot",
}  # fmt: skip
"""Suffixes of formats that are not read, and the function of networkx for each."""
COMPRESSED = (".gz", ".bz2", ".xz")
SUFFIXES = tuple(suffix for item in FORMATS for suffix in item.suffixes)
LISTED = ", ".join(f"{item.name} ({', '.join(item.suffixes)})" for item in FORMATS)
"""All formats on one line."""
