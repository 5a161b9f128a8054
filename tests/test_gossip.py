"""Gossip matrices: the weights of the builders, the properties they report, and what is refused."""

import dataclasses
import io

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from vocabulary import each, given, refuses, st

from mfdl import InvalidInput, gossip, graphs
from mfdl.gossip import Gossip, GossipMatrix
from mfdl.testing import connected_graphs, gossip_matrices, gossip_sequences

ROTATION = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


# Builders
@given(G=connected_graphs())
def test_metropolis_hastings_is_its_formula_and_symmetric(G):
    W, expected = gossip.metropolis_hastings(G), np.zeros((len(G), len(G)))
    for i, j in G.edges:
        expected[i, j] = expected[j, i] = 1 / (1 + max(G.degree[i], G.degree[j]))
    for i in G:
        expected[i, i] = 1 - sum(expected[i, j] for j in G if j != i)
    assert_allclose(W.dense(), expected, atol=1e-15)
    assert (W.is_symmetric, W.is_doubly_stochastic, W.is_connected) == (True, True, True)
    assert_array_equal(W.reversible_measure, np.ones(len(G)))


@given(G=connected_graphs())
def test_uniform_is_its_formula_and_symmetric_only_on_regular_graphs(G):
    W = gossip.uniform(G)
    expected = np.array([[(i == j or G.has_edge(i, j)) / (G.degree[i] + 1) for j in G] for i in G])
    assert_allclose(W.dense(), expected, atol=1e-15)
    regular = len(set(dict(G.degree).values())) == 1
    assert (W.is_symmetric, W.is_doubly_stochastic) == (regular, regular)
    degrees = np.array([G.degree[i] + 1 for i in G])
    assert_allclose(W.reversible_measure, degrees / degrees.mean(), rtol=1e-12)


def test_rows_follow_the_labels_of_the_graph():
    W = gossip.metropolis_hastings(nx.Graph([("hub", "a"), ("hub", "b")]))
    assert W.labels == ("hub", "a", "b")
    assert_allclose(W.dense()[1], [1 / 3, 2 / 3, 0])


def test_a_table_is_read_by_its_labels():
    pandas = pytest.importorskip("pandas")
    W = [[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.0, 0.1, 0.9]]
    table = pandas.DataFrame(W, index=list("abc"), columns=list("abc"))
    path = nx.Graph([("c", "b"), ("b", "a")])
    assert graphs.labels(path) == ("c", "b", "a")
    for given_table in (table, table[["b", "c", "a"]], table.loc[["b", "a", "c"]]):
        by_graph = gossip.from_array(given_table, path)
        assert by_graph.labels == ("c", "b", "a")
        assert_array_equal(by_graph.dense(), np.array(W)[::-1, ::-1])
        assert_array_equal(gossip.from_array(given_table, labels=("c", "b", "a")).dense(), by_graph.dense())
    alone = gossip.from_array(table[["b", "c", "a"]])
    assert alone.labels == ("a", "b", "c")
    assert_array_equal(alone.dense(), W)


def test_a_table_of_other_labels_is_refused():
    pandas, path = pytest.importorskip("pandas"), nx.Graph([("c", "b"), ("b", "a")])
    plain = pandas.DataFrame(np.eye(3))
    refuses(r"got index \[0, 1, 2\] for \['c', 'b", gossip.from_array, plain, path)
    assert gossip.from_array(plain).labels == (0, 1, 2)
    refuses(r"got columns \['0', '1', '2'\] for \[0, 1", lambda: gossip.from_array(plain.rename(columns=str)))
    twice = pandas.DataFrame(np.eye(3), index=list("aab"), columns=list("aab"))
    refuses("each once", gossip.from_array, twice)


def test_a_single_node_keeps_everything():
    for W in (gossip.metropolis_hastings("ring:n=1"), gossip.uniform("ring:n=1")):
        assert_array_equal(W.dense(), [[1.0]])
        assert (W.is_connected, W.spectral_gap) == (True, 1.0)


@each("build", gossip.metropolis_hastings, gossip.uniform, lambda G: gossip.from_array(np.eye(4), G))
def test_builders_refuse_a_disconnected_graph(build):
    refuses("not connected: 2 components, the largest", build, nx.Graph([(0, 1), (2, 3)]))


def test_large_sparse_graphs_stay_sparse():
    n = 30_000
    W = gossip.metropolis_hastings(f"ring:n={n}")
    assert (W.weights.nnz, W.is_symmetric, W.is_connected) == (3 * n, True, True)
    path = gossip.uniform(f"path:n={n}")
    assert (path.weights.nnz, path.is_reversible, len(path.content_hash)) == (3 * n - 2, True, 16)
    with pytest.raises(InvalidInput, match="limited to 20000 nodes, got 30000; use the sparse `weights`"):
        path.spectrum  # noqa: B018
    assert_allclose(W.spectrum[:3], 1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.array([0, 1, 1]) / n), rtol=1e-14)


# The contract of the matrix
@each(
    "weights, message",
    ([[0.5, 0.5], [0.5, 0.4]], r"each row must sum to 1 within 1e-09, the row of node 'b' sums to 0\.9; give"),
    ([[0.5, 0.5], [0.5, 0.5 + 2e-9]], r"the row of node 'b' sums to 1\.000000002"),
    ([[0.5, 0.25], [0.5, 0.75]], r"the row of node '[ab]' sums to .*; the columns do, so give the transpose"),
    ([[1.5, -0.5], [0.5, 0.5]], r"finite and >= 0, got -0\.5 in the row of node 'a' for node 'b'"),
    ([[0.5, np.nan], [0.5, 0.5]], r"weights must be finite, got nan at index \(0, 1\)"),
    (sparse.csr_array([[0.5, np.inf], [0.5, 0.5]]), "finite and >= 0, got inf in the row of node 'a' for node"),
    ([[0.5, 0.5]], r"weights must be square, got shape \(1, 2\)"),
    (sparse.csr_array([[0.5, 0.5]]), r"weights must be square, got shape \(1, 2\)"),
    ([1.0], r"weights must have 2 dimensions, got shape \(1,\)"),
    ([[1, 0], [0, 1j]], r"weights must be real numbers"),
    (sparse.csr_array([[1, 0], [0, 1j]]), r"weights must be real numbers, got dtype complex128"),
    ("text", r"weights must be a numeric array with 2 dimensions, got str"),
    (np.eye(3), r"labels must name every row of weights, got 2 labels for 3 rows"),
    (np.zeros((0, 0)), "at least one row"),
)
def test_what_is_no_gossip_matrix_is_refused(weights, message):
    refuses(message, GossipMatrix, weights, ("a", "b") if np.size(weights) else ())
    refuses("labels must be distinct, got 'a' twice", GossipMatrix, np.eye(2), ("a", "a"))
    refuses("step must be an integer >= 0, got -1", gossip.from_array(np.eye(2)).at, -1)
    assert gossip.from_array([[0.3333333333, 0.6666666667], [0.5, 0.5 + 9e-10]]).num_nodes == 2  # by rounding only


@pytest.mark.parametrize("kind", [np.array, sparse.csr_array, sparse.coo_array, sparse.csc_matrix])
def test_the_matrix_is_an_own_read_only_copy(kind):
    mine = kind([[0.5, 0.5], [0.25, 0.75]])
    W = GossipMatrix(mine, ("a", "b"))
    mine *= 0
    assert_array_equal(W.dense(), [[0.5, 0.5], [0.25, 0.75]])
    with pytest.raises(ValueError, match="read-only"):
        W.weights.data[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        W.name = "other"
    W.dense()[0, 0] = 7  # a copy each time
    assert W.dense()[0, 0] == 0.5


# Properties against dense definitions
@given(W=gossip_matrices(kinds=("symmetric", "uniform", "general", "singular")))
def test_properties_agree_with_their_definitions(W):
    D = W.dense()
    assert isinstance(W, Gossip)
    assert (W.is_constant, W.at(0) is W, W.at(10**6) is W) == (True, True, True)
    assert (W.num_nodes, W.is_symmetric) == (len(D), np.allclose(D, D.T, rtol=0, atol=1e-12))
    assert W.is_doubly_stochastic == np.allclose(D.sum(axis=0), 1, rtol=0, atol=1e-9)
    assert W.is_connected == nx.is_strongly_connected(nx.from_numpy_array(D, create_using=nx.DiGraph))
    assert W.is_reversible == has_balanced_flow(D) == (W.reversible_measure is not None)
    if W.reversible_measure is not None:
        flow = W.reversible_measure[:, None] * D
        assert_allclose(flow, flow.T, rtol=2e-12)
        assert W.reversible_measure.mean() == pytest.approx(1)
        assert (W.reversible_measure > 0).all()


def has_balanced_flow(D):
    """Reversible iff pi_i W_ij is symmetric, pi being the one stationary distribution."""
    values, vectors = np.linalg.eig(D.T)
    flow = np.abs(np.real(vectors[:, np.argmin(np.abs(values - 1))]))[:, None] * D
    return bool(np.abs(flow - flow.T).max() < 1e-9)


@given(W=gossip_matrices())
def test_the_spectrum_is_that_of_the_dense_matrix(W):
    D = W.dense()
    assert np.isrealobj(W.spectrum) == W.is_reversible
    moduli = np.abs(W.spectrum)
    if W.is_reversible:
        assert (np.diff(W.spectrum) <= 0).all()
        assert_allclose(
            W.spectrum, np.sort(np.linalg.eigvals(D).real)[::-1], atol=1e-7
        )  # eigvals loses half the digits
    else:
        assert (np.diff(moduli) <= 1e-9).all()
    assert_allclose(W.spectrum.sum(), np.trace(D), atol=1e-12)
    assert_allclose((W.spectrum**2).sum(), np.trace(D @ D), atol=1e-12)
    assert W.spectrum[0] == pytest.approx(1)
    if W.num_nodes > 1:
        assert W.spectral_gap == pytest.approx(1 - np.sort(moduli)[-2], abs=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        W.spectrum[0] = 0


@each(
    "weights, true, measure",
    (ROTATION, {"is_doubly_stochastic", "is_connected"}, None),
    ([[0, 0.6, 0.4], [0.4, 0, 0.6], [0.6, 0.4, 0]], {"is_doubly_stochastic", "is_connected"}, None),
    ([[0.5, 0.5], [0, 1]], set(), None),  # one way
    (np.eye(2), {"is_doubly_stochastic", "is_symmetric"}, [1, 1]),
    (sparse.csr_array(([1.0, 0.0, 1.0], ([0, 0, 1], [0, 1, 1]))), {"is_doubly_stochastic", "is_symmetric"}, [1, 1]),
    ([[1, 1e-200, 0], [1, 0, 1e-200], [0, 1, 0]], {"is_connected"}, None),  # 1e-400 would be 0, and balance anything
    (
        [[0.5, 0.0, 0.5, 0, 0], [0, 0.9, 0, 0.1, 0], [0.25, 0, 0.75, 0, 0], [0, 0.3, 0, 0.7, 0], [0, 0, 0, 0, 1]],
        set(),
        [2 / 3, 1.5, 4 / 3, 0.5, 1],  # mean one on each component
    ),
)
def test_properties_of_small_matrices(weights, true, measure):
    W = gossip.from_array(weights)
    names = ("is_symmetric", "is_doubly_stochastic", "is_connected")
    assert ({name for name in names if getattr(W, name)}, W.is_reversible) == (true, (measure is not None))
    assert measure is None or W.reversible_measure == pytest.approx(measure)
    assert (W.weights.data != 0).all()  # stored zeros are no weight
    if (W.num_nodes > 2 and not W.is_connected) or weights is ROTATION:
        assert W.spectral_gap == pytest.approx(0, abs=1e-12)


def test_a_measure_beyond_float64_counts_as_none_and_a_long_one_is_exact():
    up = sparse.diags_array([[0.9] * 399, [0.0] * 400, [0.1] * 399], offsets=[1, 0, -1]).tolil()
    up[0, 0], up[-1, -1] = 0.1, 0.9
    assert gossip.from_array(up.tocsr()).reversible_measure is None  # 9^399 > 1.8e308
    short = gossip.from_array(up.tocsr()[-200:, -200:] + sparse.diags_array([0.1] + [0.0] * 199))
    assert_allclose(short.reversible_measure[1:] / short.reversible_measure[:-1], 9, rtol=1e-13)


@given(W=gossip_matrices(min_nodes=2), data=st.data())
def test_the_hash_is_of_the_content_not_of_the_name(W, data):
    assert gossip.from_array(W.dense(), name="other").content_hash == W.content_hash
    assert gossip.from_array(W.weights).content_hash == W.content_hash
    assert gossip.from_array(W.weights, labels=[f"n{i}" for i in range(W.num_nodes)]).content_hash != W.content_hash
    D, i = W.dense(), data.draw(st.integers(0, W.num_nodes - 1))
    j = int(D[i].argmax())
    D[i, j] -= 1e-3
    D[i, (j + 1) % len(D)] += 1e-3
    assert gossip.from_array(D).content_hash != W.content_hash


ONE_WAY = "not symmetric, doubly stochastic, connected"
NEVER = "not connected (some nodes never hear of others)"
MOVES = "not doubly stochastic (the average of the nodes moves)"


@each(
    "W, size, says",
    (gossip.metropolis_hastings("ring:n=4"), "4 nodes with 12 weights", "symmetric, doubly stochastic, connected"),
    (gossip.uniform("star:n=3"), "3 nodes with 7 weights", f"not symmetric, {MOVES}, connected, reversible"),
    (gossip.from_array(ROTATION), "3 nodes with 3 weights", f"{ONE_WAY}, not reversible"),
    (gossip.from_array(np.eye(2)), "2 nodes with 2 weights", f"symmetric, doubly stochastic, {NEVER}"),
    (gossip.from_array([[1.0]]), "1 node with 1 weight", "symmetric, doubly stochastic, connected"),
)
def test_the_description_is_one_true_sentence(W, size, says):
    assert W.describe() == f"gossip matrix '{W.name}' on {size}: {says}"


# Given matrices and files
MISSING = [[0.5, 0.3, 0.2], [0.3, 0.7, 0], [0.2, 0, 0.8]]


@each(
    "weights, graph, more, message",
    (MISSING, nx.Graph([("a", "b"), ("b", "c")]), {}, r"node 'a' gives weight 0\.2 to node 'c', but the graph"),
    (np.eye(2), "ring:n=3", {}, "got 2 rows for 3 nodes"),
    (np.eye(3), "ring:n=3", {"labels": "abc"}, "either graph or labels, not both"),
)
def test_a_matrix_that_does_not_fit_its_graph_is_refused(weights, graph, more, message):
    refuses(message, gossip.from_array, weights, graph, **more)
    assert gossip.from_array(MISSING, nx.Graph(["ab", "bc", "ac"])).labels == ("a", "b", "c")
    assert gossip.from_array(np.eye(3), "complete:n=3").weights.nnz == 3  # edges may have no weight


@pytest.mark.parametrize("suffix", ["npy", "csv"])
@given(W=gossip_matrices(kinds=("general", "symmetric")))
def test_a_matrix_is_read_back_from_its_file(suffix, W, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / f"W.{suffix}"
    if suffix == "npy":
        np.save(path, W.dense())
    else:
        path.write_text("\n".join(",".join(map(repr, row)) for row in W.dense().tolist()) + "\n")
    graph = nx.complete_graph(W.num_nodes)
    for read in (gossip.load(str(path), graph), gossip.load(path, graph)):
        assert (read.content_hash, read.name) == (W.content_hash, path.name)


def npy(array, save=np.save):
    stream = io.BytesIO()
    save(stream, array)
    return stream.getvalue()


@each(
    "name, content, message", ("W.csv", b"0.5,0.5\n0.5,x\n", r"W\.csv', line 2: 'x' is not a number"),
    ("W.csv", b"a,b\n1,0\n0,1\n", r"W\.csv', line 1: 'a' is not a number; write plain numbers"),
    ("W.csv", b"1,0\n1\n", r"W\.csv', line 2: 1 numbers where the first row has 2"),
    ("W.csv", b"\n\n", r"W\.csv' holds no numbers"),
    ("W.csv", b"0.5,0.5\n", r"weights must be square, got shape \(1, 2\)"),
    ("W.csv", b"1,0\nnan,1\n", r"weights must be finite, got nan"), ("W.csv", b"\xff\xfe1,0", "is not UTF-8 text"),
    ("W.npy", npy(np.array([[1, None], [0, 1]])), r"W\.npy' is not a \.npy file of numbers: Object arrays cannot"),
    ("W.npy", b"no numpy here", r"is not a \.npy file of numbers"), ("W.npy", b"", r"is not a \.npy file of numbers"),
    ("W.npy", npy(np.eye(2) * 1j), "must hold one array of real numbers, got complex128"),
    ("W.npy", npy(np.eye(2), np.savez), "must hold one array of real numbers, got an archive"),
    ("W.npy", None, r"W\.npy' does not exist"), ("W.txt", b"", r"must end in \.npy or \.csv")
)  # fmt: skip
def test_files_that_hold_no_matrix_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refuses(message, gossip.load, tmp_path / name, "complete:n=2")


def test_load_by_name_and_its_errors(tmp_path):
    G = graphs.load("star:n=4")
    assert gossip.load("metropolis-hastings", G).content_hash == gossip.metropolis_hastings(G).content_hash
    assert gossip.load("uniform", G).content_hash == gossip.uniform(G).content_hash
    (tmp_path / "d.npy").mkdir()
    for spec, message in (
        ("metropolis", r"unknown gossip matrix 'metropolis'; did you mean 'metropolis-hastings'\? Known: fastest"),
        ("./W.txt", r"must end in \.npy or \.csv"),
        (3, r"or the path of a \.npy or \.csv file, got int"),
        (tmp_path / "d.npy", "cannot be read"),
    ):
        refuses(message, gossip.load, spec, G)


# Sequences
@given(S=gossip_sequences(), step=st.integers(0, 20))
def test_a_sequence_gives_the_matrix_of_the_step(S, step):
    length = len(S.matrices)
    assert isinstance(S, Gossip)
    assert (S.num_nodes, S.labels) == (S.matrices[0].num_nodes, S.matrices[0].labels)
    assert S.num_steps == (None if S.repeat else length)
    assert S.is_symmetric == all(W.is_symmetric for W in S.matrices)
    assert (S.is_doubly_stochastic, S.is_connected) == (all(W.is_doubly_stochastic for W in S.matrices), True)
    if S.repeat or step < length:
        assert S.at(step) is S.matrices[step % length]
    else:
        refuses(rf"step must be below {length}, the length.*got {step}.*repeat=True", S.at, step)


def test_a_sequence_is_connected_by_its_rounds_together():
    swap = {pair: np.eye(3) for pair in ((0, 1), (1, 2))}
    for (i, j), W in swap.items():
        W[[i, i, j, j], [i, j, i, j]] = 0.5
    rounds = [gossip.from_array(W) for W in swap.values()]
    assert not any(W.is_connected for W in rounds)
    both = gossip.sequence(rounds)
    assert (both.is_connected, gossip.sequence(rounds[:1]).is_connected) == (True, False)
    assert both.describe() == (
        "sequence of 2 gossip matrices, repeated, on 3 nodes: all symmetric, all doubly stochastic, connected together"
    )


def test_a_sequence_is_constant_only_if_every_step_is_the_same():
    W, V = gossip.metropolis_hastings("star:n=4"), gossip.uniform("star:n=4")
    again = gossip.from_array(W.weights, name="again")
    assert gossip.sequence([W, again]).is_constant
    assert not gossip.sequence([W, again], repeat=False).is_constant
    assert (gossip.sequence([W, V]).is_constant, gossip.sequence([W, V]).is_symmetric) == (False, False)
    assert gossip.sequence([W, W]).is_symmetric


def test_the_hash_of_a_sequence_sees_order_and_repetition():
    W, V = gossip.metropolis_hastings("star:n=4"), gossip.uniform("star:n=4")
    hashes = {gossip.sequence(m, r).content_hash for m in ([W, V], [V, W], [W]) for r in (True, False)}
    assert (len(hashes), gossip.sequence([W, V]).content_hash) == (6, gossip.sequence((W, V)).content_hash)


def test_bad_sequences_are_refused():
    W, V = gossip.metropolis_hastings("ring:n=4"), gossip.metropolis_hastings("ring:n=5")
    for rounds, message in (
        ([], "at least one gossip matrix, got none"),
        ([W, np.eye(4)], r"matrices\[1\] must be a GossipMatrix, got ndarray; wrap"),
        ([W, V], r"matrices\[1\] has 5 labels from 0 and matrices\[0\] has 4 labels from 0"),
    ):
        refuses(message, gossip.sequence, rounds)


@given(graph=connected_graphs(), seed=st.integers(0, 999))
def test_metropolis_hastings_keeps_the_average_of_its_stationary_weights(graph, seed):
    plain = gossip.metropolis_hastings(graph)
    n = plain.num_nodes
    pi = np.random.default_rng(seed).uniform(0.01, 1.0, n)
    W = gossip.metropolis_hastings(graph, stationary=pi).dense()
    assert_allclose(pi @ W, pi, rtol=1e-12)
    A = plain.dense() > 0
    degrees = A.sum(axis=1) - 1
    for i, j in zip(*np.nonzero(A), strict=True):
        if i != j:
            accepted = min(1.0, pi[j] * (1 + degrees[i]) / (pi[i] * (1 + degrees[j])))
            assert W[i, j] == pytest.approx(accepted / (1 + degrees[i]), rel=1e-12)
    assert (np.diag(W) > 0).all()
    assert gossip.metropolis_hastings(graph, stationary=np.full(n, 0.3)).content_hash == plain.content_hash
    labelled = dict(zip(plain.labels, pi, strict=True))
    assert_allclose(gossip.metropolis_hastings(graph, stationary=labelled).dense(), W, rtol=0, atol=0)


@pytest.mark.parametrize("wrong", [[1, 1], [1, 1, 0], [1, 1, 1e-12], {0: 1.0, 1: 1.0}, {0: 1, 1: 1, 2: 1, 3: 1}])
def test_stationary_weights_that_are_none_are_refused(wrong):
    refuses("stationary must", gossip.metropolis_hastings, "path:n=3", stationary=wrong)
