"""Files of graphs in every format: read back equal, and after damage the same graph, a refusal, or what they say."""

import bz2
import csv
import gzip
import html
import io
import json
import lzma
import os
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import note
from vocabulary import given, refuses, st

from mfdl import InvalidInput, graphs
from mfdl.commands import main
from mfdl.graphs.file_links import FORMATS

EXAMPLES = Path(os.environ.get("MFDL_DATA", "nowhere")).parent / "inputs"
EXPECTED = json.loads((EXAMPLES / "expected.json").read_text()) if (EXAMPLES / "expected.json").is_file() else {}


def edges(graph):
    return {frozenset(map(str, edge)) for edge in graph.edges if edge[0] != edge[1]}


def shape(graph):
    return {str(node) for node in graph}, edges(graph)


@pytest.mark.parametrize("name", EXPECTED or ["absent"])
def test_files_of_users_are_read_right_or_refused(name):
    if not EXPECTED:
        pytest.skip("the folder beside MFDL_DATA has no inputs/expected.json")
    expected = EXPECTED[name]
    words = expected.get("refused_naming", expected.get("or_refused_naming", []))
    try:
        graph = graphs.load(EXAMPLES / "graphs" / name)
    except InvalidInput as error:
        if not words or not all(word in str(error) for word in words):
            raise
        return
    assert "refused_naming" not in expected
    nodes = expected["nodes"]
    assert len(graph) == nodes if isinstance(nodes, int) else set(graph) == set(nodes) or shape(graph)[0] == set(nodes)
    assert edges(graph) == {frozenset(map(str, edge)) for edge in expected["edges"]}


# Writers: networkx, scipy, csv, or lines written here
def separated(mark, header):
    def write(graph):
        text = io.StringIO()
        rows = csv.writer(text, delimiter=mark, lineterminator="\n")
        rows.writerows(([("Source", "Target")] if header else []) + list(graph.edges))
        return text.getvalue().encode()

    return write


def by_networkx(writer):
    def write(graph):
        stream = io.BytesIO()
        writer(graph, stream)
        return stream.getvalue()

    return write


def numbered(graph):
    return nx.convert_node_labels_to_integers(graph)


def labelled_matrix(graph):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [["", *graph], *([a, *(int(graph.has_edge(a, b)) for b in graph)] for a in graph)]
    )
    return text.getvalue().encode()


def plain_matrix(graph):
    return "".join(",".join(map(str, row)) + "\n" for row in nx.to_numpy_array(graph, dtype=int)).encode()


def metis(graph):
    lines = [
        f"{len(graph)} {graph.number_of_edges()}",
        *(" ".join(str(b + 1) for b in sorted(graph[a])) for a in graph),
    ]
    return ("\n".join(lines) + "\n").encode()


def counted_twice(graph):
    return f"{len(graph)}\n{''.join(f'{a} {b}{chr(10)}{b} {a}{chr(10)}' for a, b in graph.edges)}".encode()


def dumped(writer):
    stream = io.BytesIO()
    writer(stream)
    return stream.getvalue()


WRITERS = {  # suffix, writer, characters that no name can have, whether isolated nodes are written
    "csv": (".csv", separated(",", True), "", False),
    "csv without header": (".csv", separated(",", False), "", False),
    "tsv": (".tsv", separated("\t", True), "", False),
    "blanks": (".edges", lambda graph: "".join(f"{a} {b}\n" for a, b in graph.edges).encode(), ' ,"', False),
    "networkx edge list": (".edgelist", by_networkx(nx.write_edgelist), ' ,"', False),
    "labelled matrix": (".csv", labelled_matrix, "", True),
    "gml": (".gml", by_networkx(nx.write_gml), "", True),
    "graphml": (".graphml", by_networkx(lambda graph, file: nx.write_graphml_xml(graph, file)), "", True),
    "pajek": (".net", by_networkx(nx.write_pajek), "\"'\\", True),
    "json": (".json", lambda graph: json.dumps(nx.node_link_data(graph), indent=0).encode(), "", True),
    "json links": (
        ".json", lambda graph: json.dumps(nx.node_link_data(graph, edges="links"), indent=0).encode(), "", True,
    ),
}  # fmt: skip
NUMBERED = {
    "matrix": (".csv", plain_matrix, 0),
    "metis": (".graph", metis, 1),
    "n and both directions": (".edges", counted_twice, 0),
    "matrix market": (".mtx", lambda graph: dumped(lambda s: scipy.io.mmwrite(s, nx.to_scipy_sparse_array(graph))), 0),
    "numpy": (".npy", lambda graph: dumped(lambda s: np.save(s, nx.to_numpy_array(graph))), 0),
    "scipy": (".npz", lambda graph: dumped(lambda s: scipy.sparse.save_npz(s, nx.to_scipy_sparse_array(graph))), 0),
}
CHARACTERS = "ab01 ,\"#%;'é\\."


@st.composite
def named_graphs(draw, least=2, forbidden=""):
    characters = st.sampled_from([character for character in CHARACTERS if character not in forbidden])
    texts = st.text(characters, min_size=1, max_size=5).map(lambda name: name.strip() or "a")
    names = draw(st.lists(texts, min_size=least, max_size=6, unique=True))
    graph = nx.Graph()
    graph.add_nodes_from(names)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[:i]]
    graph.add_edges_from(draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True)))
    return graph


def loaded(folder, suffix, content):
    path = folder / f"graph{suffix}"
    path.write_bytes(content)
    return graphs.load(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


def test_every_format_has_a_writer():
    suffixes = {suffix for suffix, *_ in [*WRITERS.values(), *NUMBERED.values()]}
    assert all(suffixes & set(item.suffixes) for item in FORMATS)


@pytest.mark.parametrize("kind", WRITERS)
@given(100, data=st.data())
def test_names_are_read_back(folder, kind, data):
    suffix, write, forbidden, isolated = WRITERS[kind]
    graph = data.draw(named_graphs(forbidden=forbidden))
    if " " in forbidden:  # `# b` begins with the sign of a comment and a blank
        graph.remove_nodes_from(["#", "%"])
    if not isolated:
        graph = nx.Graph(graph.edges)
    try:
        note(write(graph))
        read = loaded(folder, suffix, write(graph))
    except InvalidInput as error:  # no other graph; a comment or an edge, a header or an edge, quotes, ...
        text = str(error)
        assert any(
            w in text
            for w in (
                "a comment or an edge", "header", "no edge", "separat", "all nodes are decimals", "first line",
                "Pajek",
            )
        )  # fmt: skip
        return
    assert shape(read) == shape(graph)


@pytest.mark.parametrize("kind", NUMBERED)
@given(60, graph=named_graphs(least=3))
def test_numbers_are_read_back(folder, kind, graph):
    suffix, write, first = NUMBERED[kind]
    graph = numbered(graph)
    expected = nx.relabel_nodes(graph, {node: node + first for node in graph})
    read = loaded(folder, suffix, write(graph))
    assert shape(read) == shape(expected)
    assert all(type(node) is int for node in read)


@pytest.mark.parametrize("packed", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_are_known_by_their_first_bytes(folder, packed):
    content = packed(b"a,b\nb,c\n")
    for suffix in (".csv", ".csv.gz", ".csv.xz"):
        assert list(loaded(folder, suffix, content)) == ["a", "b", "c"]
    refuses(r"cannot be read.*damaged", loaded, folder, ".csv", content[:-9])


# Damage

LINE = ("dropped", "doubled", "field", "byte")


@st.composite
def damages(draw, content):
    lines = content.split(b"\n")
    at = draw(st.integers(0, len(lines) - 1 - (lines[-1] == b"")))
    how = draw(st.sampled_from(LINE))
    if how == "dropped":
        del lines[at]
    elif how == "doubled":
        lines.insert(at, lines[at])
    elif how == "field":
        mark = next((mark for mark in (b",", b"\t", b" ") if mark in lines[at]), b" ")
        fields = lines[at].split(mark)
        del fields[draw(st.integers(0, len(fields) - 1))]
        lines[at] = mark.join(fields)
    else:
        place, byte = draw(st.integers(0, len(content) - 1)), draw(st.integers(32, 126))
        return content[:place] + bytes([byte]) + content[place + 1 :]
    return b"\n".join(lines)


@pytest.mark.parametrize("kind", ["matrix", "metis", "matrix market", "n and both directions"])
@given(300, data=st.data(), graph=named_graphs(least=3))
def test_damaged_files_with_counts_or_mirrors_are_the_same_graph_or_refused(folder, kind, data, graph):
    suffix, write, first = NUMBERED[kind]
    graph = numbered(graph)
    expected = nx.relabel_nodes(graph, {node: node + first for node in graph})
    content = write(graph)
    damaged = data.draw(damages(content))
    try:
        note(damaged)
        read = loaded(folder, suffix, damaged)
    except InvalidInput:
        return
    if kind == "matrix market" and b"\n" in damaged:  # another place of an entry is another graph that the file states
        said = scipy.io.mmread(io.BytesIO(damaged.rstrip() + b"\n")).toarray()
        assert np.all(said >= 0)
        expected = nx.from_numpy_array(said)
    if kind == "n and both directions" and damaged.split()[0] != content.split()[0]:
        return  # it says another n
    assert shape(read) == shape(expected)


@pytest.mark.parametrize("kind", ["csv", "tsv", "gml", "graphml", "pajek", "json"])
@given(300, data=st.data())
def test_damaged_files_of_names_say_so_or_are_refused(folder, kind, data):
    suffix, write, forbidden, isolated = WRITERS[kind]
    graph = data.draw(named_graphs(3, forbidden + "#%;"))
    graph = graph if isolated else nx.Graph(graph.edges)
    content = write(graph)
    damaged = data.draw(damages(content))
    try:
        note(damaged)
        read = loaded(folder, suffix, damaged)
    except InvalidInput:
        return
    if kind in ("csv", "tsv"):
        lines = csv.reader(
            io.StringIO(damaged.decode()), delimiter="," if kind == "csv" else "\t", skipinitialspace=True
        )
        rows = [[field.strip() for field in row[:2]] for row in lines if row]
        named = [row for row in rows if [word.casefold() for word in row] != ["source", "target"]]
        assert edges(read) == {frozenset(row) for row in named if len(set(row)) == 2}
    if shape(read) != shape(graph):
        text = damaged.decode()
        text += html.unescape(text) + text.replace("&#34;", '"').replace("&#233;", "é")
        new_names = shape(read)[0] - shape(graph)[0]
        for name in new_names:  # every new name stands in the file
            assert any(form in text for form in (name, name.replace('"', '""'), json.dumps(name)[1:-1])), name
        changed = {
            edge
            for edge in edges(read) ^ edges(graph)
            if not edge & (new_names | (shape(graph)[0] - set(map(str, read))))
        }
        assert len(changed) <= 2, changed  # a line says one edge less, or one end of one edge


# Single files

GML = "graph [\n{}\nnode [\nid 0\n]\nnode [\nid 1\n]\n{} [\nsource 0\ntarget 1\n]\n]"
GRAPHML = (
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="{}"><node id="a"/><node id="b"/>'
    '<edge source="a" target="{}"/></graph></graphml>'
)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "a,b,0\n", "line 1: the weight '0' is not positive"),
        ("a.csv", "a,b,nan\n", "line 1: the weight 'nan' is not a finite number"),
        ("a.csv", "Source,Target,Weight\na,b,x\n", "line 2: the weight 'x' is not a finite number"),
        ("a.csv", "Source,Target\na,b\nSource,Target\nc,d\n", "line 3: the header is there twice"),
        ("a.csv", "a\nb\n", "no comma|1 column"),
        ("a.csv", "New York\nLos Angeles\n", "no comma separates"),
        ("a.csv", '"a"b,c\n', "line 1: not comma separated"),
        ("a.csv", "#1,b\nb,c\n", "line 1: this is a comment or an edge"),
        ("a.csv", "Paris, FR;Lyon\nLyon, FR;Nice\n", "comma separated or semicolon separated.*different"),
        ("a.csv", "0,1,1\n1,0,1\n", "adjacency matrix"),
        ("a.csv", "0.5,0.25,0.25\n0.25,0.5,0.25\n0.25,0.25,0.5\n", "gossip.*mfdl.gossip.from_array|edge list"),
        ("a.csv", "0.5,0,0.5\n0,0.5,0.5\n", "gossip.from_array|weight|decimals"),
        ("a.csv", "0.5,0.25,0.25\n0.25,0.5,0.25\n", "gossip.from_array"),
        ("a.csv", "0,1,0,0\n0,0,1,0\n0,0,0,1\n0,0,0,0\n", "not symmetric.*directed"),
        ("a.csv", "0,1,-1\n1,0,0\n-1,0,0\n", "negative"),
        ("a.csv", "1 2\r3 4\r", "not UTF-8 text"),
        ("a.csv", "a,b\n".encode("utf-16"), "UTF-16"),
        ("a.tsv", "a b\nb c\n", "1 column"),
        ("a.txt", "Site 1,2 3\nx,1 y,2\n", "columns|different graphs"),
        ("a.txt", "a,b c\nc,d e\n", "comma separated or blank separated.*different graphs"),
        ("a.txt", '"a 1" 2\n', "line 1: quotes"),
        ("a.txt", "5 5\n2 5\n1 3\n2 4\n3 5\n4 1\n", "line 1: the first line may count.*METIS"),
        ("a.txt", "4 4 3\n1 2 1\n2 3 1\n3 4 1\n", "first line may count"),
        ("a.txt", "4\n0 1\n1 0\n1 2\n", "line 1: .*both directions"),
        ("a.txt", "3\n0 1\n1 3\n", "line 3: node '3' is none of the 3 nodes"),
        ("a.txt", "5\n1 4\n0 2\n1 3\n2 4\n0 3\n", "lists of neighbours"),
        ("a.txt", "1 2 6\n2 1 3\n3 2 4\n4 3 5\n5 4 6\n6 5 1\n", "weights or lists of neighbours"),
        ("a.csv", "1,2,3\n2,3,4\n3,4,1\n4,1,2\n", "weights or lists of neighbours"),
        ("a.txt", "0: 1 2\n1: 0 2\n2: 0 1\n", "line 1: this is a list of neighbours"),
        ("a.txt", "0 2\n1 {}\n2 {}\n1 0\n", "line 2: this is a list of neighbours"),
        ("a.json", '{"nodes": [{"name": "a"}], "links": []}', "a node has no 'id'"),
        ("a.json", '{"nodes": ["a"], "links": []}', "records"),
        ("out.x", "% bip unweighted\n1 1\n", "bipartite"),
        ("out.x", "% asym unweighted\n1 2\n2 3\n", "is directed"),
        ("out.x", "% sym unweighted\n% 3 3 3\n1 2\n2 3\n", "line 2: the counts"),
        ("a.csv", "Source,Target,Type\na,b,Directed\n", "is directed"),
        ("a.graph", "3 2\n2\n1 3\n", "line 1: the first line counts 3 nodes, and"),
        ("a.graph", "3 2\n2\n1 3\n1\n", "node 2 lists node 3, and 3 not 2"),
        ("a.graph", "2 1 001\n2 5\n1 6\n", "same weight"),
        ("a.graph", "2 1 001\n2 0\n1 0\n", "is not positive"),
        ("a.gml", GML.format("directed 1", "edge"), "is directed"),
        ("a.gml", GML.format("directed 0", "edgf"), "'edgf'"),
        ("a.gml", GML.format("directed 0", "edge").replace("target 1", "target 1 weight 0"), "not positive"),
        ("a.graphml", GRAPHML.format("directed", "b"), "is directed"),
        ("a.graphml", GRAPHML.format("undirected", "c"), "'c', which is no node"),
        ("a.net", "*Vertices 2\n1 a\n2 a\n*Edges\n1 2\n", "line 3: this is no vertex 2"),
        ("a.net", "*Vertices 2\n1 a\n2 b\n*Edges\n1 3\n", "line 5: this is no edge"),
        ("a.net", "*Vertices 2\n1 a\n2 b\n*Arcs\n1 2\n", "is directed"),
        ("a.json", '{"nodes": [{"id": 1}, {"id": "1"}], "links": []}', "differ only in type"),
        ("a.json", '{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 2}]}', "2, which is no node"),
        ("a.json", '{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 1, "weight": 0}]}', "not positive"),
        ("a.mtx", "%%MatrixMarket matrix coordinate real general\n3 3 1\n1 2 1\n", "not symmetric"),
        ("a.npy", b"x", "not read as NumPy"),
        ("a.gexf", "<gexf/>", "networkx.read_gexf"),
        ("a.csv", b"PK\x03\x04abc", "is a zip archive; unpack"),
    ],
)  # fmt: skip
def test_doubtful_files_are_refused(folder, name, content, message):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    refuses(message, graphs.load, path)
    assert main(["graph", "inspect", str(path)]) == 2


@pytest.mark.parametrize(
    ("name", "content", "nodes", "pairs"),
    [
        ("a.csv", '"a","b, c"\r\na,d#e\r\n', ["a", "b, c", "d#e"], [("a", "b, c"), ("a", "d#e")]),
        ("a.csv", "# by hand\n01,1\n1,2\n", ["01", "1", "2"], [("01", "1"), ("1", "2")]),
        ("a.csv", "Source;Target\na;b\n", ["a", "b"], [("a", "b")]),
        ("a.csv", ",x,y\ny,1,0\nx,0,1\n", ["y", "x"], [("x", "y")]),
        ("a.tsv", "\tx\ty\nx\t0\t1\ny\t1\t0\n", ["x", "y"], [("x", "y")]),
        ("a.net", "*Vertices 2\n1 x\n2 y\n*arcs\n*edges\n1 2\n", ["x", "y"], [("x", "y")]),
        ("a.net", "*Vertices 2\n1 x\n2 y\n*edges\n1 2\n*arcs\n", ["x", "y"], [("x", "y")]),
        ("a.txt", "# FromNodeId\tToNodeId\n1\t2\n", [1, 2], [(1, 2)]),
        ("a.txt", "Site 1\t2\nSite 2\t3\n", ["Site 1", "2", "Site 2", "3"], [("Site 1", "2"), ("Site 2", "3")]),
        ("a.txt", "0 1 0\n1 0 1\n0 1 0\n", [0, 1, 2], [(0, 1), (1, 2)]),
        ("a.edgelist", "a b {}\n", ["a", "b"], [("a", "b")]),
        ("a.graph", "% three\n3 1 011\n7 2 5\n8 1 5\n9\n", [1, 2, 3], [(1, 2)]),
        ("a.gml", "graph [\nnode [\nid 4\n]\nnode [\nid 1\n]\nedge [\nsource 4\ntarget 1\n]\n]", [1, 4], [(1, 4)]),
        ("a.txt", '{"nodes": [{"id": "x"}, {"id": "y"}], "links": []}', ["x", "y"], []),
    ],
)  # fmt: skip
def test_files_of_known_form_are_read(folder, name, content, nodes, pairs):
    graph = loaded(folder, "-" + name, content.encode())
    assert list(graph) == nodes
    assert edges(graph) == {frozenset(map(str, pair)) for pair in pairs}


def test_inspect_counts_what_was_dropped(folder, capsys):
    path = folder / "weights.csv"
    path.write_text("Source,Target,Weight\na,b,2\nb,a,2\nc,c,1\nd,e,1\n")
    assert main(["graph", "inspect", str(path), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value | {"path": ""} == {
        "path": "", "format": "CSV", "nodes": 5, "edges": 2, "components": 3, "dropped_self_loops": 1,
        "dropped_duplicate_edges": 1, "dropped_weights": 2, "first_labels": ["a", "b", "c", "d", "e"],
    }  # fmt: skip
