"""Edge-list files, separated by blanks or commas, with or without a header; errors name the line.

`graphs.load` documents what a file may hold; `simple_graphs` drops loops and repeats.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .simple_graphs import Edge, simple_graph

FILE_SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el")
OTHER_FORMATS = {  # suffixes of files that are no lists of edges, and the function that reads each
    ".gml": "networkx.read_gml",
    ".graphml": "networkx.read_graphml",
    ".gexf": "networkx.read_gexf",
    ".net": "networkx.read_pajek",
    ".g6": "networkx.read_graph6",
    ".adjlist": "networkx.read_adjlist",
    ".json": "networkx.node_link_graph",
}


def looks_like_a_file(text: str) -> bool:
    separated, suffixes = "/" in text or os.sep in text, (*FILE_SUFFIXES, *OTHER_FORMATS)
    return separated or text.lower().endswith(suffixes) or (text != "" and Path(text).exists())


def read_edge_list(path: Path, named: Iterable[str]) -> nx.Graph:
    """The graph of one file; if the file does not exist, the error offers the `named` graphs."""
    _require_edges(path)
    lines = _lines(path, named)
    if not lines:
        raise InvalidInput(f"graph file {str(path)!r} holds no edge; write one edge per line, as `a b` or `a,b`.")
    comma = "," in lines[0][1]
    rows = [(number, _fields(path, number, text, comma)) for number, text in lines]
    columns = [field.lower() for field in rows[0][1]]
    width = len(columns)
    if "source" in columns or "target" in columns:
        if columns.count("source") != 1 or columns.count("target") != 1:
            raise _malformed(path, rows[0][0], "a header needs one column Source and one column Target")
        first, second = columns.index("source"), columns.index("target")
        weight = columns.index("weight") if "weight" in columns else None
        rows = rows[1:]
        if not rows:
            raise InvalidInput(f"graph file {str(path)!r} holds a header but no edge; add one line per edge.")
    else:
        first, second, weight = 0, 1, 2 if width == 3 else None
        if width not in (2, 3):
            raise _malformed(
                path,
                rows[0][0],
                f"found {width} column{'s' * (width != 1)}, expected `a b`, `a b weight`, or a header line "
                "with the columns Source and Target",
            )
        _refuse_header(path, rows)
    pairs = []
    for number, row in rows:
        if len(row) != width:
            raise _malformed(path, number, f"found {len(row)} columns where the first line has {width}")
        if not row[first] or not row[second]:
            raise _malformed(path, number, "a node label is empty")
        if weight is not None and not _is_finite_number(row[weight]):
            raise _malformed(path, number, f"the weight {row[weight]!r} is not a finite number")
        pairs.append((row[first], row[second]))
    edges: Iterable[Edge] = pairs
    if all(_INTEGER.fullmatch(a) and _INTEGER.fullmatch(b) for a, b in pairs):
        edges = [(int(a), int(b)) for a, b in pairs]
    return simple_graph(path.name, (), edges)


COLUMN_NAMES = frozenset(
    f"{kind}{end}"
    for kind in ("", "node", "vertex", "user", "person")
    for end in ("", "id", "from", "to", "src", "dst", "source", "target", "head", "tail", "start", "end", "a", "b")
    if len(kind + end) > 1
)
"""Names of columns in files of edges, in lower case, without digits, separators and id."""


def _names_a_column(label: str) -> bool:
    plain = re.sub(r"[0-9 _.-]", "", label.lower())
    return plain in COLUMN_NAMES or plain.removesuffix("id").removesuffix("node") in COLUMN_NAMES


def _refuse_header(path: Path, rows: list[tuple[int, list[str]]]) -> None:
    """Refuses a first line that names columns by other words than Source and Target, which would be read as an edge."""
    (number, first), others = rows[0], [label for _, row in rows[1:] for label in row[:2]]
    names = first[:2]
    if not others or any(_INTEGER.fullmatch(name) or name in others for name in names):
        return
    if all(map(_names_a_column, names)) or all(map(_INTEGER.fullmatch, others)):
        raise _malformed(
            path,
            number,
            f"{names[0]!r}, {names[1]!r} looks like a header, as neither is a node of another line; call the "
            "columns Source and Target, or put # before the line to leave it out; if it is an edge, move it to the end",
        )


LARGE_FILE = 2**20
"""Bytes from which a file is first tried as plain pairs of integers."""


def integer_edges(path: Path, at_least: int = LARGE_FILE) -> NDArray[np.int64] | None:
    """The pairs of a large file of lines `a b` of integers >= 0, shape (m, 2); None for any other, which is read with
    all its errors line by line. Cost: 30 bytes a byte of the file."""
    if not path.is_file() or path.stat().st_size < at_least:
        return None
    raw = path.read_bytes()
    if raw.translate(None, b"0123456789 \t\r\n") or re.search(rb"(?<![0-9])0[0-9]", raw):
        return None
    text = np.frombuffer(raw, dtype=np.uint8)
    inside = text >= ord("0")
    starts = np.flatnonzero(inside & ~np.concatenate([[False], inside[:-1]]))
    ends = np.flatnonzero(inside & ~np.concatenate([inside[1:], [False]]))
    line = np.searchsorted(np.flatnonzero(text == ord("\n")), starts)
    pairs = starts.size > 0 and starts.size % 2 == 0 and (ends - starts).max() < 18
    if not pairs or (line[::2] != line[1::2]).any() or (np.diff(line[::2]) == 0).any():
        return None
    return np.fromstring(raw, dtype=np.int64, sep=" ").reshape(-1, 2)  # of text, which no other function reads so fast


# Only the one usual way of writing an integer: "007" stays text, so that two labels never become one node.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def _lines(path: Path, named: Iterable[str]) -> list[tuple[int, str]]:
    """Lines that are neither empty nor a comment, with their numbers from 1."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(
            f"graph file {str(path)!r} does not exist; check the path, or use a named graph: {', '.join(named)}."
        ) from None
    except OSError as error:
        raise InvalidInput(
            f"graph file {str(path)!r} cannot be read ({type(error).__name__}); give a text file of edges."
        ) from None
    try:
        if (nul := raw.find(b"\0")) >= 0:
            raise UnicodeDecodeError("utf-8", raw, nul, nul + 1, "NUL byte")
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _malformed(path, line, "this is not UTF-8 text; save it as UTF-8, one edge per line") from None
    numbered = ((i, line.partition("#")[0].strip()) for i, line in enumerate(text.split("\n"), start=1))
    return [(i, line) for i, line in numbered if line]


def _require_edges(path: Path) -> None:
    """Refuses a file whose suffix says that it is no list of edges; any other suffix is tried."""
    if reader := OTHER_FORMATS.get(path.suffix.lower()):
        raise InvalidInput(
            f"graph file {str(path)!r} is no list of edges by its suffix; graph files hold one edge per line, `a b` or "
            f"`a,b` ({', '.join(FILE_SUFFIXES)} or no suffix). In Python pass the graph itself: {reader}(...)."
        )


def _fields(path: Path, number: int, text: str, comma: bool) -> list[str]:
    if not comma:
        return text.split()
    try:
        (row,) = csv.reader([text], strict=True, skipinitialspace=True)
    except (csv.Error, ValueError) as error:
        raise _malformed(path, number, f"not comma separated values ({error})") from None
    return [field.strip() for field in row]


def _is_finite_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _malformed(path: Path, line: int, defect: str) -> InvalidInput:
    return InvalidInput(f"graph file {str(path)!r}, line {line}: {defect}.")
