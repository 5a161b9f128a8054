"""Reads graph files: the format is that of the suffix, or of every line, or the file is refused.

networkx reads GML, GraphML, Pajek and JSON, after a check of what its readers pass over.
"""

from __future__ import annotations

import io
import json
import os
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import scipy.sparse

from ..errors import InvalidInput
from .edge_lists import read_text as read_text  # called by its name in the table, as the readers below
from .file_links import (
    COMPRESSED,
    FORMATS,
    INTEGER,
    LISTED,
    OTHER_FORMATS,
    SUFFIXES,
    GraphFile,
    Links,
    matrix_links,
    positive_weight,
    suffix,
)

if TYPE_CHECKING:
    import networkx as nx


def looks_like_a_file(text: str) -> bool:
    separated, suffixes = "/" in text or os.sep in text, (*SUFFIXES, *OTHER_FORMATS, *COMPRESSED)
    return separated or text.lower().endswith(suffixes) or (text != "" and Path(text).exists())


def read_graph(path: Path, named: Iterable[str]) -> nx.Graph:
    """The graph of a file; if it does not exist, the error offers the `named` graphs."""
    return _read(path, named)[0]


def inspect(path: Path, named: Iterable[str]) -> dict[str, Any]:
    """Summary of a file, JSON-ready: format, counts, numbers of dropped links, the first labels."""
    import networkx as nx

    graph, format_name, weights = _read(path, named)
    return {
        "path": str(path),
        "format": format_name,
        "nodes": len(graph),
        "edges": graph.number_of_edges(),
        "components": nx.number_connected_components(graph),
        **{key: graph.graph[key] for key in ("dropped_self_loops", "dropped_duplicate_edges")},
        "dropped_weights": weights,
        "first_labels": list(graph)[:5],
    }


def _read(path: Path, named: Iterable[str]) -> tuple[nx.Graph, str, int]:
    if function := OTHER_FORMATS.get(suffix(path)):
        raise InvalidInput(
            f"graph file {str(path)!r} is in no format that is read: {LISTED}. In Python pass the graph itself: "
            f"networkx.{function}(...)."
        )
    file, by_suffix = GraphFile(path, named), {suffix: item for item in FORMATS for suffix in item.suffixes}
    chosen = by_suffix.get(file.suffix, by_suffix[".txt"])
    if chosen.reader == "read_text":
        start = file.raw[:1000].decode("utf-8-sig", errors="replace")
        chosen = next((f for f in FORMATS if f.start and re.match(f.start, start, re.IGNORECASE)), chosen)
    try:
        links: Links = globals()[chosen.reader](file)
    except InvalidInput:
        raise
    except Exception as error:  # libraries raise many unrelated types on a malformed file
        words = (str(error).splitlines() or [""])[0][:200].rstrip(".") or type(error).__name__
        raise file.refused(f" is not read as {chosen.name}: {words}") from None
    return links.graph(path.name), chosen.name, sum(weight != 1 for weight in links.weights)


def read_array(file: GraphFile) -> Links:
    loaded: Any = np.load(io.BytesIO(file.raw), allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return matrix_links(file, loaded)
    if "format" in loaded.files:
        return matrix_links(file, scipy.sparse.load_npz(io.BytesIO(file.raw)))
    if len(loaded.files) != 1:
        raise file.refused(f" must hold one adjacency matrix, got the arrays {', '.join(loaded.files)}")
    return matrix_links(file, loaded[loaded.files[0]])


def read_matrix_market(file: GraphFile) -> Links:
    """An adjacency matrix of Matrix Market, by scipy, whose reader ends the process at a number at the end of a file
    and takes `1 1.5` for row 1, column 1, weight .5."""
    text = file.text().rstrip() + "\n"
    numbered = enumerate(text.split("\n"), start=1)
    lines = [(number, line.split()) for number, line in numbered if line.strip() and line[0] != "%"]
    banner, seen = text.partition("\n")[0].lower().split(), set()
    for number, row in lines[1:] if "coordinate" in banner else []:
        place = tuple(sorted(row[:2]) if "symmetric" in banner else row[:2])
        if len(row) != 3 - ("pattern" in banner) or place in seen or not all(map(INTEGER.fullmatch, row[:2])):
            raise file.malformed(number, "this is no entry of the matrix, or a second one at its place")
        positive_weight(file, row[2] if len(row) > 2 else 1, number)
        seen.add(place)
    return matrix_links(file, scipy.io.mmread(io.BytesIO(text.encode())))


def read_metis(file: GraphFile) -> Links:
    """Counts and lists of neighbours, with weights of nodes and edges."""
    lines = enumerate(file.text().removesuffix("\n").split("\n"), start=1)
    rows = [(number, line.split()) for number, line in lines if not line.lstrip().startswith("%")]
    for number, row in rows:
        if wrong := next((field for field in row if not re.fullmatch(r"[0-9]{1,18}", field)), None):
            raise file.malformed(number, f"METIS has integers only, got {wrong!r}")
    (start, head), *rows = rows
    code = (head[2:3] or ["0"])[0].zfill(3)
    if not 2 <= len(head) <= 4 or not re.fullmatch(r"[01]{3}", code):
        raise file.malformed(start, "METIS begins with the counts of nodes and edges, and perhaps a format such as 001")
    n, m, step = int(head[0]), int(head[1]), 1 + int(code[2])
    skipped = int(code[0]) + int(code[1]) * int((head[3:] or ["1"])[0])
    if len(rows) < n or any(row for _, row in rows[n:]):
        raise file.malformed(start, f"the first line counts {n} nodes, and {len(rows)} lines follow")
    weights: dict[tuple[int, int], float] = {}
    for node, (number, row) in enumerate(rows[:n], start=1):
        if len(row) < skipped or (len(row) - skipped) % step:
            raise file.malformed(number, f"the fields of node {node} do not fit the format {code}")
        for k in range(skipped, len(row), step):
            ends = node, int(row[k])
            if not 1 <= ends[1] <= n or ends[1] == node or ends in weights:
                raise file.malformed(number, f"neighbour {ends[1]} of node {node} is no other node, or there twice")
            weights[ends] = positive_weight(file, row[k + 1] if step == 2 else 1, number)
    for (a, b), weight in weights.items():
        if weights.get((b, a)) != weight:
            raise file.malformed(rows[b - 1][0], f"node {a} lists node {b}, and {b} not {a} with the same weight")
    if len(weights) != 2 * m:
        raise file.malformed(start, f"the first line counts {m} edges, and the lists have {len(weights) // 2}")
    once = {ends: weight for ends, weight in weights.items() if ends[0] < ends[1]}
    return Links(list(once), range(1, n + 1), list(once.values()))


def read_gml(file: GraphFile) -> Links:
    """GML by networkx, nodes named by label, or by id where no node has one."""
    import networkx as nx

    lines = file.text().split("\n")
    graph = nx.parse_gml(lines, label=None)
    if records := [key for key, value in graph.graph.items() if isinstance(value, dict | list)]:
        raise file.refused(f": the record {records[0]!r} of the graph is neither node nor edge")
    return _networkx_links(file, nx.parse_gml(lines) if any("label" in graph.nodes[node] for node in graph) else graph)


def read_graphml(file: GraphFile) -> Links:
    """GraphML by networkx, one graph whose edges join declared nodes."""
    import networkx as nx

    text = file.text()
    root = ET.fromstring(text)
    graphs = root.findall(".//{*}graph")
    children = [(element.tag.rpartition("}")[2], element) for parent in (root, *graphs[:1]) for element in parent]
    if len(graphs) != 1 or {tag for tag, _ in children} - {"graph", "key", "node", "edge", "data", "desc"}:
        raise file.refused(": GraphML is read with one graph, of nodes and edges only")
    nodes = [element.get("id") for tag, element in children if tag == "node"]
    _require_declared(file, nodes, [e.get(end) for tag, e in children if tag == "edge" for end in ("source", "target")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ports, and keys without type
        return _networkx_links(file, nx.parse_graphml(text))


def _require_declared(file: GraphFile, nodes: list[Any], ends: list[Any]) -> None:
    if None in nodes or len(set(nodes)) < len(nodes):
        raise file.refused(": each node needs an id that no other node has")
    if undeclared := set(ends) - set(nodes):
        raise file.refused(f": an edge has the end {min(map(repr, undeclared))}, which is no node of the file")


_VERTEX = re.compile(r'\s*([0-9]+)\s+("[^"\\]+"|[^\s"\'\\]+)(\s[^"\'\\]*)?')
_PAJEK_EDGE = re.compile(r"\s*([0-9]+)\s+([0-9]+)(?:\s+([^\s\"'\\]+)(\s[^\"'\\]*)?)?\s*")


def read_pajek(file: GraphFile) -> Links:
    """Pajek by networkx: *Vertices with different names, then *Edges or *Arcs."""
    import networkx as nx

    lines = [(i, line) for i, line in enumerate(file.text().split("\n"), start=1) if line.strip() and line[0] != "%"]
    empty = [line for line, after in zip(lines, [*lines[1:], (0, "*")], strict=True) if after[1].startswith("*")]
    lines = [line for line in lines if line not in empty or not re.match(r"\*(arcs|edges)\b", line[1], re.IGNORECASE)]
    names: dict[str, str] = {}
    section, count = "", 0
    for number, line in lines:
        word, *rest = line.lower().split()
        if len(names) < count:
            match = _VERTEX.fullmatch(line)
            if match is None or match[1] != str(len(names) + 1) or match[2].strip('"') in names.values():
                raise file.malformed(number, f"this is no vertex {len(names) + 1} with a name that no other has")
            names[match[1]] = match[2].strip('"')
        elif word == "*network" and not section:
            section = word
        elif word == "*vertices" and not count and len(rest) == 1 and re.fullmatch("[1-9][0-9]{0,8}", rest[0]):
            section, count = word, int(rest[0])
        elif word in ("*edges", "*arcs") and section == "*vertices":
            section = word
        elif (
            section in ("*edges", "*arcs")
            and (match := _PAJEK_EDGE.fullmatch(line))
            and {*match.groups()[:2]} <= {*names}
        ):
            positive_weight(file, match[3] or 1, number)
        else:
            raise file.malformed(number, "this is no edge between two of the vertices, no *Vertices n, and no *Edges")
    if not count or len(names) < count:
        raise file.refused(f" must have *Vertices n and a line for each, got {len(names)} of {count} vertices")
    return _networkx_links(file, nx.parse_pajek([line for _, line in lines]))


def read_json(file: GraphFile) -> Links:
    import networkx as nx

    data = json.loads(file.text())
    keys = [key for key in ("links", "edges") if key in data]
    if len(keys) != 1 or any(not isinstance(data.get(key, False), bool) for key in ("directed", "multigraph")):
        raise file.refused(": node-link data has `nodes`, and either `links` or `edges`; `directed` is true or false")
    if not all(isinstance(record, dict) and "id" in record for record in data["nodes"]):
        raise file.refused(": `nodes` are records with an `id`, and a node has no 'id'")
    nodes = [record["id"] for record in data["nodes"]]
    ends = [record[end] for record in data[keys[0]] for end in ("source", "target")]
    if wrong := [label for label in [*nodes, *ends] if type(label) not in (int, str)]:
        raise file.refused(f": nodes must have integers or texts as id, source and target, got {wrong[0]!r}")
    _require_declared(file, nodes, ends)
    return _networkx_links(file, nx.node_link_graph(data, edges=keys[0]))


def _networkx_links(file: GraphFile, graph: nx.Graph) -> Links:
    if wrong := [label for label in graph if not isinstance(label, int | str) or label == ""]:
        raise file.refused(f": the name of a node must be a text or an integer, got {wrong[0]!r}")
    weights = [
        positive_weight(file, data[key], f"edge {a!r}, {b!r}")
        for a, b, data in graph.edges(data=True)
        for key in ("weight", "value")
        if key in data
    ]
    return Links(list(graph.edges()), list(graph), weights, graph.is_directed())
