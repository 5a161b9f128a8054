"""Graph files: the table of formats, and `Links`, their content before loops and repeats are dropped."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import lzma
import math
import re
import zlib
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array

from ..errors import InvalidInput
from .simple_graphs import Edge, from_networkx, simple_graph

if TYPE_CHECKING:
    import networkx as nx

# Only the one usual way of writing an integer: "007" stays text, so that two labels never become one node.
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_UNPACK = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ\0": lzma.decompress}
_PACKED = {b"PK\3\4": "a zip archive", b"\x28\xb5\x2f\xfd": "compressed by zstd"}


@dataclasses.dataclass
class Links:
    """Edges of a file, nodes that may have none, weights of edges, and whether edges are one-way."""

    edges: list[Edge]
    nodes: Sequence[Hashable] = ()
    weights: Sequence[float] = ()
    directed: bool = False

    def graph(self, name: str) -> nx.Graph:
        """The simple graph; labels become integers if all are."""
        nodes, edges = self.nodes, self.edges
        labels = {*nodes, *(label for edge in edges for label in edge)}
        texts = {str(label) for label in labels}
        if len(texts) < len(labels):
            raise InvalidInput(f"graph file {name!r}: labels differ only in type, such as 1 and '1'; rename nodes.")
        if texts == labels and all(map(INTEGER.fullmatch, texts)):
            nodes, edges = [int(str(a)) for a in nodes], [(int(str(a)), int(str(b))) for a, b in edges]
        if not self.directed:
            return simple_graph(name, nodes, edges)
        import networkx as nx

        one_way = nx.DiGraph(edges, name=name)
        one_way.add_nodes_from(nodes)
        return from_networkx(one_way)


class GraphFile:
    """A file with its bytes, unpacked; its suffix in lower case, before that of a compression, or empty."""

    def __init__(self, path: Path, named: Iterable[str]) -> None:
        """Reads a file; if it does not exist, the error offers the `named` graphs."""
        self.path, self.suffix = path, suffix(path)
        try:
            raw = path.read_bytes()
            self.raw = next((unpack(raw) for start, unpack in _UNPACK.items() if raw.startswith(start)), raw)
        except FileNotFoundError:
            raise self.refused(f" does not exist; check the path, or use a named graph: {', '.join(named)}") from None
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            words = "; it is damaged, or give a file of edges" if path.is_file() else "; give a file of edges"
            raise self.refused(f" cannot be read ({type(error).__name__}){words}") from None
        packed = next((words for start, words in _PACKED.items() if raw.startswith(start)), "")
        if packed and self.suffix != ".npz":
            raise self.refused(f" is {packed}; unpack it")

    def text(self) -> str:
        """The text, with \\n at the end of each line."""
        if self.raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise self.malformed(1, "this is not UTF-8 text but UTF-16; save it as UTF-8")
        text = self.raw.decode("utf-8-sig", errors="surrogateescape")
        if wrong := re.search("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]|\r(?!\n)", text):
            line = text.count("\n", 0, wrong.start()) + 1
            raise self.malformed(line, "this is not UTF-8 text; save it as UTF-8, one edge per line")
        return text.replace("\r\n", "\n")

    def malformed(self, line: int, defect: str) -> InvalidInput:
        """The error for a line."""
        return self.refused(f", line {line}: {defect}")

    def refused(self, defect: str) -> InvalidInput:
        return InvalidInput(f"graph file {str(self.path)!r}{defect}.")


def suffix(path: Path) -> str:
    return next((s.lower() for s in reversed(path.suffixes) if s.lower() not in COMPRESSED), "")


def positive_weight(file: GraphFile, weight: Any, line: int | str) -> float:
    """A weight of an edge in a line, or at a place in words, as a number."""
    try:
        value = math.nan if isinstance(weight, bool) else float(weight)
    except (TypeError, ValueError):
        value = math.nan
    defect = f"the weight {weight!r} is not a finite number" if not math.isfinite(value) else ""
    if value <= 0:
        defect = (
            f"the weight {weight!r} is not positive: some tools take it for an edge, others for none; leave out the "
            "edge if it is none, or the weight"
        )
    if defect:
        raise file.malformed(line, defect) if isinstance(line, int) else file.refused(f", {line}: {defect}")
    return value


def matrix_links(file: GraphFile, matrix: Any, labels: Sequence[Hashable] = ()) -> Links:
    shape, defect = np.shape(matrix), ""
    if matrix.dtype.kind not in "biuf" or len(shape) != 2 or len(set(shape)) > 1 or not shape[0]:
        raise file.refused(f": a matrix must be square and of real numbers, got {matrix.dtype} of shape {shape}")
    sparse = coo_array(matrix).astype(np.float64)
    mirror = (sparse != sparse.T).nonzero()
    if not np.isfinite(sparse.data).all() or (sparse.data < 0).any():
        defect = "has entries that are negative or not finite"
    elif not np.isin(sparse.data, (0, 1)).all() and any(np.abs(sparse.sum(axis) - 1).max() < 1e-2 for axis in (0, 1)):
        defect = "has rows or columns that sum to 1, as a gossip matrix has"
    elif mirror[0].size:
        defect = f"is not symmetric (row {mirror[0][0] + 1}, column {mirror[1][0] + 1}), so edges are directed"
    elif (sparse.data == 0).any():
        defect = "stores entries of weight 0, which some tools take for edges"
    if defect:
        raise file.refused(
            f": the matrix {defect}, and is no adjacency matrix; a gossip matrix is read by "
            "mfdl.gossip.load(path, graph) or mfdl.gossip.from_array"
        )
    once, nodes = sparse.row <= sparse.col, labels or range(shape[0])
    ends = zip(sparse.row[once].tolist(), sparse.col[once].tolist(), strict=True)
    return Links([(nodes[a], nodes[b]) for a, b in ends], nodes, sparse.data[once].tolist())


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
