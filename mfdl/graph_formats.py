"""The table of file formats of graphs, from which help, docs and refusals come; `graphs.graph_files` reads them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Format:
    """A file format of graphs.

    Attributes: suffixes: that decide it, before a suffix of compression; reader: function of `graphs.graph_files`;
    content, example, refused: in words; start: pattern of the first characters that decide it without a suffix.
    """

    name: str
    suffixes: tuple[str, ...]
    reader: str
    content: str
    example: str
    refused: str
    start: str = ""


FORMATS = (
    Format(
        "CSV",
        (".csv",),
        "read_text",
        "an edge a line, quotes as in any CSV; a header `Source,Target`, perhaps with `Weight` and more columns; or a "
        "square adjacency matrix, perhaps with names in its first row and column",
        '`hub,"site, two"`',
        "other headers, weights that are not positive, matrices that are not symmetric, gossip matrices",
    ),
    Format("TSV", (".tsv",), "read_text", "the same with tabs; names may have spaces", "`Site 1⇥Site 2`", "as CSV"),
    Format(
        "edge list",
        (".txt", ".edges", ".edgelist", ".el"),
        "read_text",
        "the same with tabs, commas or semicolons if they separate every line, else with blanks, also under any other "
        "suffix; n in the first line and then each edge, once or in both directions; KONECT",
        "`a b 0.5`",
        "separators in doubt, a first line that may count nodes and edges, directed or bipartite KONECT",
    ),
    Format(
        "Matrix Market",
        (".mtx",),
        "read_matrix_market",
        "a symmetric adjacency matrix; nodes are 0 to n - 1",
        "`%%MatrixMarket matrix coordinate pattern symmetric`",
        "as CSV",
        r"%%MatrixMarket\b",
    ),
    Format(
        "NumPy array",
        (".npy", ".npz"),
        "read_array",
        "a symmetric adjacency matrix, also of `scipy.sparse.save_npz`; nodes are 0 to n - 1",
        "`numpy.save(file, A)`",
        "several arrays, Python objects",
    ),
    Format(
        "METIS",
        (".graph", ".metis"),
        "read_metis",
        "counts of nodes and edges, then the neighbours of node 1, 2, ...",
        "`5 5`",
        "lists that do not agree with each other or with the counts",
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
        "Pajek", (".net",), "read_pajek", "`*Vertices` and `*Edges`", "`*Vertices 3`",
        "directed edges, quotes inside names, names that repeat", r"\*(?:vertices|network)\b",
    ),
    Format(
        "JSON", (".json",), "read_json", "node-link data of networkx", '`{"nodes": [...], "links": [...]}`',
        "directed edges, edges between undeclared nodes", r'\{\s*"',
    ),
)  # fmt: skip

OTHER_FORMATS = {
    ".gexf": "networkx.read_gexf",
    ".g6": "networkx.read_graph6",
    ".s6": "networkx.read_sparse6",
    ".adjlist": "networkx.read_adjlist",
    ".dot": "networkx.nx_pydot.read_dot",
    ".gv": "networkx.nx_pydot.read_dot",
}
"""Suffixes of formats that are not read, and the function of networkx for each."""
COMPRESSED = (".gz", ".bz2", ".xz")
SUFFIXES = tuple(suffix for item in FORMATS for suffix in item.suffixes)
LISTED = ", ".join(f"{item.name} ({', '.join(item.suffixes)})" for item in FORMATS)
"""All formats on one line."""
