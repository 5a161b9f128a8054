"""Graphs as arrays, and as names in every public function that takes one."""

import dataclasses
import tracemalloc
from typing import Any

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st

from mfdl import Cyclic, Privacy, algorithms, gossip, graphs, losses, tasks, trust
from mfdl.decor_search import corollary_noise
from mfdl.gossip import randomized
from mfdl.graphs import edge_lists, named
from mfdl.graphs.edge_lists import integer_edges
from mfdl.node_covariances import algebraic_connectivity_after_deletion, incidence, laplacian, laplacians_after_deletion
from mfdl.testing import connected_graphs

SPECS = [graph.example or graph.name for graph in named.GRAPHS.values() if "data_home" not in graph.signature]


def assert_same(sparse, graph):
    assert graphs.labels(sparse) == graphs.labels(graph)
    assert_array_equal(graphs.adjacency(sparse).toarray(), nx.to_numpy_array(graph, graphs.labels(graph)))
    assert graphs.content_hash(sparse) == graphs.content_hash(graph)
    assert (sparse.num_nodes, sparse.num_edges) == (len(graph), graph.number_of_edges())


@pytest.mark.parametrize("spec", [*SPECS, "torus:rows=1,cols=2", "ring:n=1", "hypercube:dim=0"])
def test_named_graphs_are_the_same_as_arrays(spec):
    sparse = graphs.load_sparse(spec)
    assert_same(sparse, graphs.load(spec))
    assert_same(sparse, graphs.load(sparse))
    assert sparse.name == spec


@given(G=connected_graphs(), shift=st.integers(-3, 3))
def test_a_graph_keeps_its_labels_and_largest_component(G, shift):
    G = nx.disjoint_union(G, nx.path_graph(2))
    G = nx.relabel_nodes(G, {i: i + shift for i in G})
    assert_same(graphs.load_sparse(G), graphs.load(G))
    assert_same(graphs.load_sparse(G, largest_component=True), graphs.load(G, largest_component=True))


@given(
    60, edges=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1),
    separator=st.sampled_from([" ", "\t", "  "]), end=st.sampled_from(["\n", "\r\n", "\n\n"])
)  # fmt: skip
def test_plain_pairs_of_a_file_are_read_as_line_by_line(edges, separator, end, tmp_path_factory):
    path = tmp_path_factory.mktemp("edges") / "graph.txt"
    path.write_bytes("".join(f"{a}{separator}{b}{end}" for a, b in edges).encode())
    assert_array_equal(integer_edges(path, 0), edges)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_lists, "integer_edges", lambda path: integer_edges(path, 0))
        assert_same(graphs.load_sparse(path), graphs.load(path))


@each(
    "text",
    "1,2\n", "a b\n", "1 2 3\n", "1 2\n3\n", "1\n2\n", "1 2 3\n4\n", "01 2\n", "# 1\n1 2\n", "-1 2\n", "",
    "9" * 19 + " 1\n"
)  # fmt: skip
def test_other_files_are_left_to_the_reader_of_lines(text, tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text(text)
    assert integer_edges(path, 0) is None
    assert integer_edges(path) is None


@given(40, n=st.integers(10, 60), degree=st.integers(2, 3), seed=st.integers(0, 10**6))
def test_regular_draws_are_simple_and_regular(n, degree, seed):
    n += n * degree % 2
    edges = named.regular_edges(n, degree, seed)
    graph = graphs.SparseGraph.from_edges(tuple(range(n)), edges, "drawn")
    assert graph.num_edges == len(edges)  # no loop, no repeat
    assert_array_equal(np.diff(graph.links.indptr), degree)
    assert named.joins_all_nodes(n, edges) == nx.is_connected(graph.networkx())


def test_regular_draws_are_uniform():
    # all 70 labelled 2-regular graphs on 6 nodes: 60 hexagons, 10 pairs of triangles
    hexagons = sum(named.joins_all_nodes(6, named.regular_edges(6, 2, seed)) for seed in range(2000))
    assert abs(hexagons / 2000 - 6 / 7) < 0.05


@given(40, n=st.integers(2, 40), p=st.sampled_from([0.01, 0.3, 0.9, 1.0]), seed=st.integers(0, 10**6))
def test_erdos_renyi_draws_distinct_pairs(n, p, seed):
    edges = named.erdos_renyi_edges(n, p, seed)
    assert len({(a, b) for a, b in edges.tolist()}) == len(edges)
    assert all(0 <= b < a < n for a, b in edges.tolist())
    assert p < 1 or len(edges) == n * (n - 1) // 2


def test_erdos_renyi_draws_every_pair_alike():
    counts = np.zeros((12, 12))
    for seed in range(3000):
        edges = named.erdos_renyi_edges(12, 0.3, seed)
        counts[edges[:, 0], edges[:, 1]] += 1
    share = counts[np.tril_indices(12, -1)] / 3000
    assert np.abs(share - 0.3).max() < 0.04  # 4.8 standard deviations
    assert abs(share.mean() - 0.3) < 0.004


def test_many_edges_are_drawn_as_arrays_until_connected(monkeypatch):
    monkeypatch.setattr(named, "DRAWN_AS_ARRAYS", 20)
    for spec in ("regular:n=30,degree=3,seed=1", "erdos-renyi:n=30,p=0.09,seed=2"):
        graph = graphs.load_sparse(spec)
        graphs.require_connected(graph)
        assert_same(graph, graphs.load(spec))
    assert graphs.content_hash(graph) != graphs.content_hash(graphs.load_sparse("erdos-renyi:n=30,p=0.09,seed=3"))
    refuses("no connected draw", graphs.load_sparse, "erdos-renyi:n=2000,p=0.0001")


@pytest.mark.slow
def test_a_hundred_thousand_nodes_are_no_networkx_graph(monkeypatch):
    monkeypatch.setattr(nx, "Graph", None)
    W = gossip.metropolis_hastings("regular:n=100000,degree=20,seed=0")
    assert (W.weights.nnz, W.is_symmetric) == (2_100_000, True)
    assert graphs.load_sparse("torus:n=90000").num_edges == 180_000


def test_the_account_of_many_nodes_has_no_array_of_nodes_by_nodes():
    dynamics = dynamics_on(graphs.load_sparse("ring:n=40000"))
    algorithm = algorithms.dp_dsgd(dynamics, Cyclic(epochs=1, period=2))
    tracemalloc.start()
    try:
        losses(algorithm, Privacy(trust.LDP(), **ZERO_OUT), progress=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**30


NAME = "ring:n=6"
HALVES = np.eye(6) / 2 + np.roll(np.eye(6), 1, axis=1) / 4 + np.roll(np.eye(6), -1, axis=1) / 4
TAKES_A_GRAPH = {
    "graphs.load": graphs.load,
    "graphs.load_sparse": graphs.load_sparse,
    "graphs.labels": graphs.labels,
    "graphs.index_of": lambda graph: graphs.label_index(graph, "5"),
    "graphs.adjacency": graphs.adjacency,
    "graphs.content_hash": graphs.content_hash,
    "graphs.require_connected": graphs.require_connected,
    "gossip.metropolis_hastings": gossip.metropolis_hastings,
    "gossip.uniform": gossip.uniform,
    "gossip.load": lambda graph: gossip.load("uniform", graph),
    "gossip.from_array": lambda graph: gossip.from_array(HALVES, graph),
    "gossip.random_matchings": lambda graph: gossip.random_matchings(graph, 3, seed=0),
    "gossip.random_pairs": lambda graph: gossip.random_pairs(graph, 3, seed=0),
    "gossip.push_sum": lambda graph: gossip.push_sum(graph, 3),
    "gossip.push_sum, several graphs": lambda graph: gossip.push_sum([graph, graph], 3),
    "gossip.randomized.pairs": lambda graph: randomized.pairs(graph).draw(3, 0).gossip,
    "gossip.randomized.matchings": lambda graph: randomized.matchings(graph).draw(3, 0).gossip,
    "node_covariances.laplacian": laplacian,
    "node_covariances.incidence": incidence,
    "node_covariances.algebraic_connectivity_after_deletion": lambda graph: algebraic_connectivity_after_deletion(
        graph, 1
    ),
    "node_covariances.laplacians_after_deletion": lambda graph: next(laplacians_after_deletion(graph, 1))[0],
    "decor_search.corollary_noise": lambda graph: corollary_noise(graph, epsilon=0.5, delta=1e-5, num_steps=4),
    "tasks.load": lambda graph: tasks.load("digits", graph),
    "tasks.digits": tasks.digits,
    "tasks.least_squares": tasks.least_squares,
    "tasks.rotated_quadratics": tasks.rotated_quadratics,
    "tasks.logistic": tasks.logistic,
}


def content(answer: Any) -> Any:
    """What two equal answers have in common."""
    if hasattr(answer, "content_hash"):
        return answer.content_hash
    if hasattr(answer, "toarray"):
        return answer.toarray().tolist()
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    if isinstance(answer, graphs.SparseGraph) or hasattr(answer, "edges"):
        return graphs.content_hash(answer)
    return dataclasses.astuple(answer) if dataclasses.is_dataclass(answer) else answer


@pytest.mark.parametrize("function", TAKES_A_GRAPH.values(), ids=TAKES_A_GRAPH)
def test_the_name_of_a_graph_stands_for_the_graph(function):
    assert content(function(NAME)) == content(function(graphs.load(NAME)))


@pytest.mark.parametrize("function", TAKES_A_GRAPH.values(), ids=TAKES_A_GRAPH)
def test_a_name_that_does_not_exist_is_refused_with_the_nearest_one(function):
    refuses(r"unknown graph 'rng'.*did you mean 'ring'", function, "rng:n=6")


def test_a_task_and_its_mechanism_may_name_the_same_graph():
    assert tasks.digits("florentine").num_nodes == dynamics_on("florentine", 0.1).gossip.num_nodes == 15
