"""Named graphs, edge-list files, label order, and what a bad request is told."""

import os
import random
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from vocabulary import each, given, refuses, st

from mfdl import graphs
from mfdl.testing import connected_graphs


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# Named graphs
@each(
    "spec, reference",
    ("ring:n=7", nx.cycle_graph(7)), ("path:n=5", nx.path_graph(5)), ("star:n=6", nx.star_graph(5)),
    ("complete:n=5", nx.complete_graph(5)), ("torus:rows=3,cols=4", nx.grid_2d_graph(3, 4, periodic=True)),
    ("torus:rows=2,cols=3", nx.grid_2d_graph(2, 3, periodic=True)), ("hypercube:dim=4", nx.hypercube_graph(4)),
    ("ring:n=2", nx.path_graph(2)), ("ring:n=1", nx.empty_graph(1)), ("torus:n=1", nx.empty_graph(1)),
    ("hypercube:dim=0", nx.empty_graph(1))
)  # fmt: skip
def test_named_graphs_are_those_of_networkx(spec, reference):
    G = graphs.load(spec)
    assert nx.is_isomorphic(G, reference)
    assert list(G) == list(range(len(reference)))
    assert G.graph == {"name": spec, "dropped_self_loops": 0, "dropped_duplicate_edges": 0}


def test_nodes_are_numbered_row_by_row_or_as_networkx_orders_them():
    assert sorted(graphs.load("torus:rows=3,cols=4").neighbors(0)) == [1, 3, 4, 8]
    G, A = graphs.load("florentine"), graphs.adjacency("ring:n=1")
    assert graphs.labels(G)[:3] == ("Acciaiuoli", "Medici", "Castellani")
    assert (len(G), G.number_of_edges(), A.shape, A.nnz, A.dtype) == (15, 20, (1, 1), 0, np.float64)


def test_expander_is_the_margulis_graph_without_loops_and_repeats():
    G = graphs.load("expander:n=64")
    assert (len(G), nx.number_of_selfloops(G)) == (64, 0)
    assert max(dict(G.degree).values()) <= 8
    row, col = divmod(19, 8)  # node (2, 3)
    images = [(row + 2 * col, col), (row + 2 * col + 1, col), (row, col + 2 * row), (row, col + 2 * row + 1)]
    assert {r % 8 * 8 + c % 8 for r, c in images} <= set(G.neighbors(19))
    graphs.require_connected(G)


def test_random_graphs_follow_their_seed():
    drawn = [graphs.content_hash(graphs.load(f"erdos-renyi:n=30,p=0.2{more}")) for more in (",seed=0", "", ",seed=2")]
    assert drawn[0] == drawn[1] != drawn[2]


def test_erdos_renyi_redraws_until_connected():
    first_draws = [nx.fast_gnp_random_graph(20, 0.12, seed=seed) for seed in range(8)]
    assert not all(nx.is_connected(draw) for draw in first_draws), "the case would not test a redraw"
    for seed, draw in enumerate(first_draws):
        G = graphs.load(f"erdos-renyi:n=20,p=0.12,seed={seed}")
        graphs.require_connected(G)
        if nx.is_connected(draw):
            assert nx.utils.graphs_equal(nx.Graph(G.edges), nx.Graph(draw.edges))


def test_ego_network_has_148_nodes():
    home = os.environ.get("MFDL_DATA")
    if home is None or not Path(home, "facebook/414.edges").is_file():
        pytest.skip("MFDL_DATA is not set, or holds no facebook/414.edges")
    G = graphs.load("ego-facebook")
    assert (len(G), G.number_of_edges()) == (148, 1692)
    assert G.graph["dropped_duplicate_edges"] == 1693  # the file lists both directions of 1,693 edges
    assert list(G) == sorted(G)
    graphs.require_connected(G)


def test_ego_network_reads_the_file_of_the_given_data_home(tmp_path, monkeypatch):
    fetched = []

    def fetch(name, data_home):
        fetched.append((name, data_home))
        return write(tmp_path / "414.edges", "5 4\n4 5\n4 6\n1 2\n")

    monkeypatch.setattr("mfdl.data.fetch", fetch)
    G = graphs.load("ego-facebook", data_home=tmp_path)
    assert fetched == [("facebook/414.edges", tmp_path)]
    assert (graphs.labels(G), G.graph["name"]) == ((4, 5, 6), "ego-facebook")


def test_every_name_is_listed_and_its_example_loads():
    listed = graphs.names()
    assert {"florentine", "ring", "torus", "erdos-renyi", "ego-facebook"} <= set(listed)
    for name, line in listed.items():
        example, _, description = line.partition(" -- ")
        assert description
        if name != "ego-facebook":  # needs a download
            graphs.require_connected(graphs.load(example))


NEVER_CONNECTED = ("erdos-renyi:n=30,p=0.01", "erdos-renyi:n=3,p=0", "erdos-renyi:n=5,p=1e-300")


@each(
    "spec, message", ("florentin", r"unknown graph 'florentin'; did you mean 'florentine'\? Known: complete, "),
    ("ring", r"graph ring needs the parameter 'n'"), ("ring:16", r"written key=value, got '16'; e\.g\. ring:n=16"),
    ("ring:m=16", r"unknown parameter 'm'\. Known: n; e\.g\. ring:n=16"),
    ("florentine:n=3", r"graph florentine has no parameters, got 'n'"),
    ("ring:n=4,n=5", r"parameter 'n' is given twice"),
    ("ring:n=4.0", r"n must be an integer of at most 18 digits, got '4\.0'"),
    ("ring:n=" + "9" * 5000, r"n must be an integer of at most 18 digits"),
    ("ring:n=0", r"n must be an integer >= 1, got 0"), ("ring:n=10000001", r"n must be at most 10000000, got 10000001"),
    ("complete:n=1000000", r"n=1000000 gives about 5e\+11 edges, more than 20000000"),
    ("torus:n=15", r"n must be a square, got 15; use n=9 or n=16, or give rows and cols"),
    ("torus", r"torus needs n, or rows and cols"), ("torus:n=16,rows=4", r"either n or both rows and cols"),
    ("torus:rows=0,cols=4", r"rows must be an integer >= 1, got 0"),
    ("torus:rows=100000,cols=100000", r"n must be at most 10000000, got 10000000000"),
    ("expander:n=10", r"n must be a square, got 10; use n=9 or n=16"),
    ("hypercube:dim=-1", r"dim must be an integer >= 0, got -1"), ("hypercube:dim=60", r"dim must be at most 20"),
    ("regular:n=5,degree=3", r"degree must be below n and n \* degree even, got n=5, degree=3"),
    ("regular:n=6,degree=1", r"degree=1 cannot connect n=6 nodes; use degree >= 2"),
    ("erdos-renyi:n=6,p=1.5", r"p must lie between 0 and 1, got 1\.5"),
    ("erdos-renyi:n=6,p=nan", r"p must lie between 0 and 1, got nan"),
    ("erdos-renyi:n=6,p=1/2", r"p must be a number, got '1/2'"),
    ("erdos-renyi:n=6,p=0.5,seed=-1", r"seed must be an integer >= 0, got -1"), ("", r"unknown graph ''"),
    *((spec, "no connected draw among 1000; use a larger p") for spec in NEVER_CONNECTED),
    (7, "spec such as 'ring:n=16', a path or a networkx graph, got int"), (nx.Graph(), "has no nodes"),
    (nx.DiGraph([(0, 1), (1, 0), (1, 2)]), "'given' is directed, and 1 of its 3 edges have no reverse, the first"),
    ("absent.csv", r"graph file 'absent.csv' does not exist.*florentine"),
    ("absent.EDGES", r"graph file 'absent.EDGES' does not exist.*florentine"),
    (Path(__file__).parent, "cannot be read")
)  # fmt: skip
def test_bad_specs_are_refused_with_the_way_out(spec, message):
    refuses(message, graphs.load, spec)


# Files
@each(
    "text",
    "10 2\n2 9\n9 10\n",
    "# a comment\n\n10\t2\n 2   9 # another\r\n9 10",
    "10,2\n2,9\n9,10\n",
    "10 2 0.5\n2 9 1\n9 10 2e3\n",
    "Source,Target,Weight\n10,2,1\n2,9,4\n9,10,1\n",
    "weight,TARGET,source,more\n1,10,2,x\n1,9,2,y\n1,9,10,z\n",
    '\ufeff"Source","Target"\n"10","2"\n2,9\n9,10\n',
    "source target\n10 2\n2 9\n9 10\n",
)
def test_every_form_of_a_file_gives_the_same_graph_with_integers_in_order(tmp_path, text):
    G = graphs.load(str(write(tmp_path / "small.csv", text)))
    assert graphs.labels(G) == tuple(G) == (2, 9, 10)
    assert G.number_of_edges() == 3
    assert G.graph == {"name": "small.csv", "dropped_self_loops": 0, "dropped_duplicate_edges": 0}


@each(
    "name, text, labels",
    (
        "instances.csv",
        "Source,Target,Weight\nzoo.example,10,1\n10,alpha.example,1\n007,zoo.example,1\n",
        ("zoo.example", "10", "alpha.example", "007"),
    ),
    ("a.txt", "7 007\n7 1\n", ("7", "007", "1")),  # integers written differently are different nodes
)
def test_text_labels_keep_the_order_of_first_appearance(tmp_path, name, text, labels):
    assert graphs.labels(graphs.load(write(tmp_path / name, text))) == labels


@each(
    "text, message", ("", r"holds no edge; write one edge per line"),
    ("Source,Target,Weight\n", r"holds a header but no edge"),
    ("1 2\n3\n", r"line 2: found 1 columns where the first line has 2"),
    ("\n\n1\n", r"line 3: found 1 column, expected `a b`"),
    ("1,2,1,5\n", r"line 1: found 4 columns, expected .*columns Source and Target"),
    ("a,b,c\n", r"line 1: the weight 'c' is not a finite number"),
    ("1 2 1\n1 3 inf\n", r"line 2: the weight 'inf' is not a finite number"),
    ("Source,Weight\n1,2\n", r"line 1: a header needs one column Source and one column Target"),
    ("Source,Target\n1,2\n1,2,3\n", r"line 3: found 3 columns where the first line has 2"),
    ("1,2\n3,\n", r"line 2: a node label is empty"), ('1,2\n"3,4\n', r"line 2: not comma separated values"),
    (b"1 2\n2 \xff\xfe\n", r"line 2: this is not UTF-8 text"), (b"1 2\n2 3\n\0\0\n", r"line 3: this is not UTF-8 text")
)  # fmt: skip
def test_malformed_files_are_refused_with_their_line(tmp_path, text, message):
    refuses(r"graph file '.*bad\.edges'.*" + message, lambda: graphs.load(write(tmp_path / "bad.edges", text)))


def test_an_existing_file_needs_no_suffix_and_a_name_wins_over_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "plain", "a b\n")
    write(tmp_path / "florentine", "a b\n")
    assert (graphs.labels(graphs.load("plain")), len(graphs.load("florentine"))) == (("a", "b"), 15)
    assert len(graphs.load("./florentine")) == 2


# networkx graphs, order and identity
def test_a_directed_multigraph_becomes_plain_and_is_not_changed():
    given_graph = nx.MultiDiGraph(name="mine")
    given_graph.add_weighted_edges_from([(3, 1, 0.5), (1, 3, 2.0), (3, 1, 1.0), (2, 2, 1.0), (np.int64(2), 3, 1.0)])
    given_graph.add_edge(3, 2)
    before, G = given_graph.copy(), graphs.load(given_graph)
    assert type(G) is nx.Graph
    assert graphs.labels(G) == tuple(G) == (1, 2, 3)
    assert all(type(label) is int for label in G)
    assert [set(attributes) for *_, attributes in G.edges(data=True)] == [set(), set()]
    assert G.graph == {"name": "mine", "dropped_self_loops": 1, "dropped_duplicate_edges": 3}
    assert nx.utils.graphs_equal(given_graph, before)


def test_loading_twice_changes_nothing():
    once = graphs.load(nx.MultiGraph([("b", "a"), ("a", "b"), ("a", "a")]))
    twice = graphs.load(once)
    assert twice is not once
    assert nx.utils.graphs_equal(once, twice)
    assert list(once) == list(twice) == ["b", "a"]


@each("edges, labels", ([(8, 9), (5, 1), (1, 7), (4, 2)], (1, 5, 7)), (["zy", "ab"], ("z", "y")))
def test_largest_component_is_kept_in_order_and_the_first_wins_a_tie(edges, labels):
    component = graphs.load(nx.Graph(edges), largest_component=True)
    assert graphs.labels(component) == tuple(component) == labels
    assert component.number_of_edges() == len(labels) - 1


def test_a_disconnected_graph_loads_but_is_refused_where_connection_is_needed():
    G = graphs.load(nx.Graph([(0, 1), (1, 2), (3, 4)], name="two"))
    refuses("'two' is not connected: 2 components", graphs.require_connected, G)
    graphs.require_connected(graphs.load(G, largest_component=True))
    refuses("has no nodes", graphs.require_connected, nx.Graph())


@given(G=connected_graphs(), shuffle=st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_edges_does_not_matter_for_integers(G, shuffle: random.Random):
    nodes, edges = list(G), [tuple(shuffle.sample(edge, 2)) for edge in G.edges]
    shuffle.shuffle(nodes)
    shuffle.shuffle(edges)
    mixed = nx.Graph()
    mixed.add_nodes_from(nodes)
    mixed.add_edges_from(edges)
    loaded = graphs.load(mixed)
    assert list(loaded) == list(range(len(G)))
    for other in (mixed, loaded):
        assert graphs.content_hash(other) == graphs.content_hash(G)
        np.testing.assert_array_equal(graphs.adjacency(other).toarray(), nx.to_numpy_array(G, nodelist=range(len(G))))


@given(G=connected_graphs(min_nodes=2), data=st.data())
def test_the_hash_sees_every_edge_and_every_label(G, data):
    whole, smaller = graphs.content_hash(G), G.copy()
    smaller.remove_edge(*data.draw(st.sampled_from(sorted(G.edges))))
    assert graphs.content_hash(smaller) != whole
    assert graphs.content_hash(nx.relabel_nodes(G, {0: "0"})) != whole
    assert len(whole) == 16


def test_nodes_are_found_by_label_text_and_index():
    G, families = graphs.load(nx.Graph([(10, 20), (20, 30)])), graphs.load("florentine")
    assert [graphs.label_index(G, label) for label in (20, np.int64(20), "20", "#1")] == [1, 1, 1, 1]
    assert graphs.label_index(families, "Medici") == 1
    for label, message in (
        ("Medicci", r"node 'Medicci' is not in graph 'florentine'; did you mean 'Medici'\?"),
        ("#15", r"node '#15' is not in graph.*'#0' to '#14'"),
        (0, r"node '0' is not in graph 'florentine'\."),
    ):
        refuses(message, graphs.label_index, families, label)


@each(
    "text",
    "from,to\n1,2\n2,3\n", "# a comment\nnode_1 node_2\n1 2\n2 3\n", "id_1,id_2,weight\n1,2,1\n2,3,1\n",
    "a,b\n1,2\n2,3\n", "From,To\nAnn,Bob\nBob,Cid\n", "src\tdst\nAnn\tBob\nBob\tCid\n"
)  # fmt: skip
def test_another_header_than_source_and_target_is_not_read_as_an_edge(tmp_path, text):
    path = tmp_path / "edges.csv"
    path.write_text(text)
    refuses(r"line \d: .* looks like a header.*Source", graphs.load, path)
    refuses("looks like a header", graphs.load_sparse, path)


@each("text", "from,to\nto,back\n", "a,b\nb,c\n", "a,b\n", "from,1\n1,2\n", "x.example,y.example\n1,x.example\n")
def test_labels_in_words_stay_edges(tmp_path, text):
    path = tmp_path / "edges.csv"
    path.write_text(text)
    assert graphs.load(path).number_of_edges() == text.count("\n")
