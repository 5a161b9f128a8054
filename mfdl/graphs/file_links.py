"""What a graph file holds, before loops and repeats are dropped: `Links`, also those of an adjacency matrix."""

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
from typing import Any

import networkx as nx
import numpy as np
from scipy.sparse import coo_array

from ..errors import InvalidInput
from ..graph_formats import COMPRESSED, LISTED
from .simple_graphs import Edge, from_networkx, simple_graph

# Only the one usual way of writing an integer: "007" stays text, so that two labels never become one node.
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_UNPACK = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ\0": lzma.decompress}
_PACKED = {b"PK\3\4": "a zip archive", b"\x28\xb5\x2f\xfd": "compressed by zstd"}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@dataclasses.dataclass
class Links:
    """Edges of a file, nodes that may have none, the weights of edges, and whether edges are one-way."""

    edges: list[Edge]
    nodes: Iterable[Hashable] = ()
    weights: Sequence[float] = ()
    directed: bool = False

    def graph(self, name: str) -> nx.Graph:
        """The simple graph; labels become integers if all are."""
        nodes, edges = list(self.nodes), self.edges
        labels = {*nodes, *(label for edge in edges for label in edge)}
        if len({str(label) for label in labels}) < len(labels):
            raise InvalidInput(f"graph file {name!r}: labels differ only in type, such as 1 and '1'; rename nodes.")
        if labels and all(isinstance(label, str) and INTEGER.fullmatch(label) for label in labels):
            nodes, edges = [int(a) for a in nodes], [(int(a), int(b)) for a, b in edges]  # type: ignore[call-overload]
        if not self.directed:
            return simple_graph(name, nodes, edges)
        one_way = nx.DiGraph(edges, name=name)
        one_way.add_nodes_from(nodes)
        return from_networkx(one_way)


@dataclasses.dataclass
class GraphFile:
    """A file with its bytes, unpacked; `text` decodes them."""

    path: Path
    raw: bytes = dataclasses.field(repr=False)

    @classmethod
    def read(cls, path: Path, named: Iterable[str]) -> GraphFile:
        """Reads and unpacks a file; if it does not exist, the error offers the `named` graphs."""
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            raise InvalidInput(
                f"graph file {str(path)!r} does not exist; check the path, or use a named graph: {', '.join(named)}."
            ) from None
        except OSError as error:
            raise InvalidInput(
                f"graph file {str(path)!r} cannot be read ({type(error).__name__}); give a file of edges."
            ) from None
        try:
            raw = next((unpack(raw) for start, unpack in _UNPACK.items() if raw.startswith(start)), raw)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise cls(path, raw).refused(f"damaged compression ({error})") from None
        file, packed = cls(path, raw), next((words for start, words in _PACKED.items() if raw.startswith(start)), "")
        if packed and file.suffix != ".npz":
            raise file.refused(f"{packed}; unpack it")
        return file

    @property
    def suffix(self) -> str:
        """In lower case, before that of a compression."""
        suffixes = [suffix.lower() for suffix in self.path.suffixes]
        return next((suffix for suffix in reversed(suffixes) if suffix not in COMPRESSED), "")

    def text(self) -> str:
        """The text, with \\n at the end of each line."""
        raw = self.raw
        if raw.startswith(_UTF_16):
            raise self.malformed(1, "this is not UTF-8 text but UTF-16; save it as UTF-8")
        wrong = re.search(rb"[\0-\x08\x0b\x0c\x0e-\x1f]|\r(?!\n)", raw)
        try:
            if wrong:
                raise UnicodeDecodeError("utf-8", raw, wrong.start(), wrong.end(), "a control character")
            return raw.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise self.malformed(line, "this is not UTF-8 text; save it as UTF-8, one edge per line") from None

    def malformed(self, line: int, defect: str) -> InvalidInput:
        """The error for a line."""
        return InvalidInput(f"graph file {str(self.path)!r}, line {line}: {defect}.")

    def refused(self, defect: str) -> InvalidInput:
        """The error for a whole file."""
        return InvalidInput(f"graph file {str(self.path)!r}: {defect}.")


def weight_defect(weight: Any) -> str | None:
    """Why a weight of an edge is refused, if it is."""
    try:
        value = math.nan if isinstance(weight, bool) else float(weight)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        return f"the weight {weight!r} is not a finite number"
    if value <= 0:
        return (
            f"the weight {weight!r} is not positive: some tools take it for an edge, others for none; leave out the "
            "edge if it is none, or the weight"
        )
    return None


def matrix_links(file: GraphFile, matrix: Any, labels: Sequence[Hashable] = ()) -> Links:
    """The links of an adjacency matrix, dense or sparse, or a refusal."""
    square = len(np.shape(matrix)) == 2 and matrix.shape[0] == matrix.shape[1]
    if matrix.dtype.kind not in "biuf" or not square or not matrix.shape[0]:
        found = f"{matrix.dtype} of shape {matrix.shape}"
        raise file.refused(f"an adjacency matrix must be square and of real numbers, got {found}")
    sparse = coo_array(matrix).astype(np.float64)
    if not np.isfinite(sparse.data).all() or (sparse.data < 0).any():
        defect = "has entries that are negative or not finite"
    elif not np.isin(sparse.data, (0, 1)).all() and any(np.abs(sparse.sum(axis) - 1).max() < 1e-2 for axis in (0, 1)):
        defect = "has rows or columns that sum to 1, as a gossip matrix has"
    elif (sparse != sparse.T).nnz:
        (i, *_), (j, *_) = (sparse != sparse.T).nonzero()
        defect = f"is not symmetric (row {i + 1}, column {j + 1} and its mirror differ), so edges are directed"
    elif (sparse.data == 0).any() and not isinstance(matrix, np.ndarray):
        defect = "stores entries of weight 0, which some tools take for edges"
    else:
        once = sparse.row <= sparse.col
        ends = np.stack([sparse.row[once], sparse.col[once]], axis=1).tolist()
        nodes = labels or range(sparse.shape[0])
        return Links([(nodes[a], nodes[b]) for a, b in ends], nodes, sparse.data[once].tolist())
    raise file.refused(
        f"the matrix of numbers {defect}, and is no adjacency matrix; a gossip matrix is read by "
        "mfdl.gossip.from_file(path, graph) or mfdl.gossip.from_array"
    )


def unknown_format(file: GraphFile, defect: str) -> InvalidInput:
    """The error for a file that could be of several formats or of none."""
    return file.refused(f"{defect}; the suffix decides between {LISTED}")
