"""Reads graph files: the format is that of the suffix, or of every line, or the file is refused.

In: a path. Out: a simple graph and what was read (`GraphSummary`). `graph_formats` has the table of formats,
`edge_lists` reads lines, networkx GML, GraphML, Pajek and JSON, after a check of what its readers would pass over.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import scipy.io
import scipy.sparse

from ..errors import InvalidInput
from ..graph_formats import COMPRESSED, FORMATS, LISTED, OTHER_FORMATS, SUFFIXES, Format
from .edge_lists import read_text as read_text  # by the table, as the readers below
from .file_links import GraphFile, Links, matrix_links, weight_defect


@dataclasses.dataclass(frozen=True)
class GraphSummary:
    """What was read of a file, as `mfdl graph inspect` prints it: counts, and numbers of links that were dropped."""

    path: str
    format: str
    nodes: int
    edges: int
    components: int
    dropped_self_loops: int
    dropped_duplicate_edges: int
    dropped_weights: int
    first_labels: tuple[Hashable, ...]


def looks_like_a_file(text: str) -> bool:
    """Whether a text that names no graph means a file."""
    separated, suffixes = "/" in text or os.sep in text, (*SUFFIXES, *OTHER_FORMATS, *COMPRESSED)
    return separated or text.lower().endswith(suffixes) or (text != "" and Path(text).exists())


def read_graph(path: Path, named: Iterable[str]) -> nx.Graph:
    """The graph of a file; if it does not exist, the error offers the `named` graphs."""
    return _read(path, named)[0]


def inspect(path: Path, named: Iterable[str]) -> GraphSummary:
    """Reads a file and says what it holds."""
    graph, format_name, weights = _read(path, named)
    return GraphSummary(
        str(path),
        format_name,
        len(graph),
        graph.number_of_edges(),
        nx.number_connected_components(graph),
        graph.graph["dropped_self_loops"],
        graph.graph["dropped_duplicate_edges"],
        weights,
        tuple(list(graph)[:5]),
    )


def _read(path: Path, named: Iterable[str]) -> tuple[nx.Graph, str, int]:
    suffix = GraphFile(path, b"").suffix
    if reader := OTHER_FORMATS.get(suffix):
        raise InvalidInput(
            f"graph file {str(path)!r} is in no format that is read: {LISTED}. In Python pass the graph "
            f"itself: {reader}(...)."
        )
    file = GraphFile.read(path, named)
    chosen = _format(file)
    links: Links = globals()[chosen.reader](file)
    return links.graph(path.name), chosen.name, sum(weight != 1 for weight in links.weights)


def _format(file: GraphFile) -> Format:
    by_suffix = {suffix: item for item in FORMATS for suffix in item.suffixes}
    chosen = by_suffix.get(file.suffix, by_suffix[".txt"])
    if chosen.reader != "read_text":
        return chosen
    start = file.raw[:1000].decode("utf-8-sig", errors="replace")
    return next((f for f in FORMATS if f.start and re.match(f.start, start, re.IGNORECASE)), chosen)


def read_array(file: GraphFile) -> Links:
    """An adjacency matrix of NumPy, or the sparse one of scipy."""
    try:
        loaded: Any = np.load(io.BytesIO(file.raw), allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            names = loaded.files
            loaded = scipy.sparse.load_npz(io.BytesIO(file.raw)) if "format" in names else {n: loaded[n] for n in names}
    except Exception as error:  # both raise many unrelated types on a malformed file
        raise _not_in_format(file, "NumPy file", error) from None
    if isinstance(loaded, dict):
        if len(loaded) != 1:
            raise file.refused(f"an archive must hold one adjacency matrix, got the arrays {', '.join(loaded)}")
        (loaded,) = loaded.values()
    return matrix_links(file, loaded)


def read_matrix_market(file: GraphFile) -> Links:
    """An adjacency matrix of Matrix Market."""
    text = file.text()
    if re.match(r"%%MatrixMarket\s+matrix\s", text, re.IGNORECASE) is None:
        raise file.malformed(1, "a Matrix Market file begins with %%MatrixMarket matrix")
    try:
        matrix = scipy.io.mmread(io.BytesIO(text.encode()))
    except Exception as error:
        raise _not_in_format(file, "Matrix Market", error) from None
    return matrix_links(file, matrix)


def read_metis(file: GraphFile) -> Links:
    """Counts and lists of neighbours, with weights of nodes and edges."""
    lines = [(i, line) for i, line in enumerate(file.text().split("\n"), start=1) if not line.lstrip().startswith("%")]
    rows = [(i, line.split()) for i, line in lines]
    while len(rows) > 1 and not rows[0][1]:
        del rows[0]
    for number, row in rows:
        if wrong := next((field for field in row if not re.fullmatch(r"[0-9]{1,18}", field)), None):
            raise file.malformed(number, f"METIS has integers only, got {wrong!r}")
    start, head = rows.pop(0)
    if not 2 <= len(head) <= 4 or (len(head) > 2 and not re.fullmatch(r"[01]{1,3}", head[2])):
        raise file.malformed(start, "METIS begins with the counts of nodes and edges, and perhaps a format such as 001")
    n, m, code = int(head[0]), int(head[1]), (head[2] if len(head) > 2 else "").zfill(3)
    skipped = (code[0] == "1") + (code[1] == "1") * (int(head[3]) if len(head) > 3 else 1)
    step = 1 + (code[2] == "1")
    if len(rows) < n or any(row for _, row in rows[n:]):
        raise file.malformed(start, f"the first line counts {n} nodes, and {len(rows)} lines follow")
    weights: dict[tuple[int, int], int] = {}
    for node, (number, row) in enumerate(rows[:n], start=1):
        links = row[skipped:]
        if len(row) < skipped or len(links) % step:
            raise file.malformed(number, f"the fields of node {node} do not fit the format {code}")
        for k in range(0, len(links), step):
            ends, weight = (node, int(links[k])), int(links[k + 1]) if step == 2 else 1
            if not 1 <= ends[1] <= n or ends[1] == node or ends in weights:
                raise file.malformed(number, f"neighbour {ends[1]} of node {node} is no other node, or there twice")
            if defect := weight_defect(weight):
                raise file.malformed(number, defect)
            weights[ends] = weight
    for (a, b), weight in weights.items():
        if weights.get((b, a)) != weight:
            raise file.malformed(rows[b - 1][0], f"node {a} lists node {b}, and {b} not {a} with the same weight")
    if len(weights) != 2 * m:
        raise file.malformed(start, f"the first line counts {m} edges, and the lists have {len(weights) / 2:g}")
    return Links(
        [ends for ends in weights if ends[0] < ends[1]],
        range(1, n + 1),
        [w for (a, b), w in weights.items() if a < b],
    )


def read_gml(file: GraphFile) -> Links:
    """GML by networkx, nodes named by label, or by id where no node has one."""
    lines = file.text().split("\n")
    try:
        by_id = nx.parse_gml(lines, label=None)
        labelled = any("label" in data for _, data in by_id.nodes(data=True))
        graph = nx.parse_gml(lines) if labelled else by_id
    except Exception as error:  # networkx raises many types on a malformed file
        raise _not_in_format(file, "GML", error) from None
    if records := [key for key, value in by_id.graph.items() if isinstance(value, dict | list)]:
        raise file.refused(f"the record {records[0]!r} of the graph is neither node nor edge")
    return _networkx_links(file, graph)


def read_graphml(file: GraphFile) -> Links:
    """GraphML by networkx, one graph whose edges join declared nodes."""
    text = file.text()
    try:
        root = ET.fromstring(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ports, and keys without type
            graph = nx.parse_graphml(text)
    except Exception as error:
        raise _not_in_format(file, "GraphML", error) from None
    inner = [element for element in root if _tag(element) == "graph"]
    children = [*root, *(child for element in inner for child in element)]
    if unknown := {_tag(c) for c in children} - {"graph", "key", "node", "edge", "data", "desc"}:
        raise file.refused(f"the element {sorted(unknown)[0]!r} is no part of a GraphML graph that is read")
    if len([e for e in root.iter() if _tag(e) == "graph"]) != 1:
        raise file.refused("GraphML files of one graph are read, without nested graphs")
    nodes = [child.get("id") for child in children if _tag(child) == "node"]
    ends = {child.get(key) for child in children if _tag(child) == "edge" for key in ("source", "target")}
    _require_declared(file, nodes, ends)
    return _networkx_links(file, graph)


def _tag(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _require_declared(file: GraphFile, nodes: list[Any], ends: set[Any]) -> None:
    if None in nodes or len(set(nodes)) < len(nodes):
        raise file.refused("each node needs an id that no other node has")
    if undeclared := [end for end in ends if end not in set(nodes)]:
        raise file.refused(f"an edge has the end {undeclared[0]!r}, which is no node of the file")


_VERTEX = re.compile(r'\s*([0-9]+)\s+("[^"\\]+"|[^\s"\'\\]+)(\s[^"\'\\]*)?')
_PAJEK_EDGE = re.compile(r"\s*([0-9]+)\s+([0-9]+)(?:\s+([^\s\"'\\]+)(\s[^\"'\\]*)?)?\s*")


def read_pajek(file: GraphFile) -> Links:
    """Pajek by networkx: vertices with different names, then edges or arcs between them."""
    lines = [(i, line) for i, line in enumerate(file.text().split("\n"), start=1) if line.strip() and line[0] != "%"]
    names: dict[str, str] = {}
    count = section = None
    for number, line in lines:
        head = line.split()
        if line.startswith("*"):
            section = head[0].lower()
            known = {"*network": count is None, "*vertices": count is None, "*edges": True, "*arcs": True}
            if not known.get(section) or (section in ("*edges", "*arcs") and count != len(names)):
                raise file.malformed(number, f"{head[0]} is not read here, or after {len(names)} of {count} vertices")
            if section == "*vertices":
                if len(head) != 2 or not re.fullmatch("[0-9]{1,9}", head[1]):
                    raise file.malformed(number, "*Vertices needs the number of vertices")
                count = int(head[1])
        elif section == "*vertices" and len(names) != count:
            match = _VERTEX.fullmatch(line)
            name = match[2].strip('"') if match else None
            if match is None or name in names.values() or int(match[1]) != len(names) + 1:
                raise file.malformed(number, f"this is no vertex {len(names) + 1} with a name that no other has")
            names[match[1]] = str(name)
        elif section in ("*edges", "*arcs"):
            match = _PAJEK_EDGE.fullmatch(line)
            if match is None or match[1] not in names or match[2] not in names:
                raise file.malformed(number, "this is no edge between two of the vertices")
            if match[3] and (defect := weight_defect(match[3])):
                raise file.malformed(number, defect)
        else:
            raise file.malformed(number, "this line belongs to no *Vertices, *Edges or *Arcs")
    if count is None or len(names) != count:
        raise file.refused(f"Pajek needs *Vertices n and n lines, got {len(names)} of {count}")
    sections = {line.split()[0].lower() for _, line in lines if line.startswith(("*e", "*E", "*a", "*A"))}
    if len(sections) > 1:
        raise file.refused("*Edges and *Arcs in one file are not read; write edges only")
    return _networkx_links(file, nx.parse_pajek([line for _, line in lines]))


def read_json(file: GraphFile) -> Links:
    """Node-link data by networkx."""
    text = file.text()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_in_format(file, "JSON", error) from None
    keys = [key for key in ("links", "edges") if isinstance(data, dict) and key in data]
    if len(keys) != 1 or "nodes" not in data:
        raise file.refused(
            "node-link data has `nodes`, and either `links` or `edges`; networkx.node_link_data writes it"
        )
    records = [data["nodes"], data[keys[0]]]
    if not all(isinstance(part, list) and all(isinstance(record, dict) for record in part) for part in records):
        raise file.refused(f"`nodes` and `{keys[0]}` must be lists of objects")
    nodes, ends = (
        [r.get(key) for r in part for key in names]
        for part, names in zip(records, (["id"], ["source", "target"]), strict=True)
    )
    if wrong := [label for label in [*nodes, *ends] if type(label) not in (int, str)]:
        raise file.refused(f"nodes must have integers or texts as `id`, `source` and `target`, got {wrong[0]!r}")
    if wrong := [key for key in ("directed", "multigraph") if not isinstance(data.get(key, False), bool)]:
        raise file.refused(f"{wrong[0]!r} must be true or false")
    _require_declared(file, nodes, set(ends))
    return _networkx_links(file, nx.node_link_graph(data, edges=keys[0]))


def _networkx_links(file: GraphFile, graph: nx.Graph) -> Links:
    weights = []
    for a, b, data in graph.edges(data=True):
        for weight in (data[key] for key in ("weight", "value") if key in data):
            if defect := weight_defect(weight):
                raise file.refused(f"edge {a!r}, {b!r}: {defect}")
            weights.append(float(weight))
    if wrong := [label for label in graph if not isinstance(label, int | str) or label == ""]:
        raise file.refused(f"the name of a node must be a text or an integer, got {wrong[0]!r}")
    return Links(list(graph.edges()), list(graph), weights, graph.is_directed())


def _not_in_format(file: GraphFile, name: str, error: Exception) -> InvalidInput:
    first = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
    return file.refused(f"not read as {name}: {first}")
