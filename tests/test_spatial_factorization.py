"""Covariances over nodes: known spectra, certified optima, the pairwise family, seed groups, files, refusals."""

import itertools
import json
import math

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import assume, each, given, refuses, st

from mfdl import EveryStep, Privacy, algorithms, calibrate, factorization, gossip, graphs, node_covariances, trust
from mfdl.dynamics import Dynamics
from mfdl.factorization import optimal_covariance, optimal_pairwise
from mfdl.factorization.pairwise_covariance import PairwisePrice
from mfdl.factorization.seeded_covariances import edge_groups, read_groups
from mfdl.node_covariances import (
    algebraic_connectivity_after_deletion,
    decor_covariance,
    incidence,
    inverse_diagonal,
    inverse_diagonal_by_node,
    laplacian,
)
from mfdl.objective import NoiseObjective
from mfdl.testing import connected_graphs

MH = gossip.metropolis_hastings
FLORENTINE = Dynamics(MH("florentine"))
OUTSIDER, INSIDER = (
    Privacy(model, adjacency="replace-one", clip_norm=1.0) for model in (trust.Eavesdropper(), trust.Colluding((0,)))
)


def inverse_diagonal_for(solved, coalition):
    """[(s I + seeds the coalition does not hold)^-1]_ii of the nodes outside, by definition."""
    n = solved.num_nodes
    M = solved.private_variance * np.eye(n)
    for group, part in zip(solved.groups, solved.parts, strict=True):
        if not set(group) & set(coalition):
            M[np.ix_(group, group)] += part
    outside = [i for i in range(n) if i not in coalition]
    return np.linalg.inv(M)[outside, outside]


def test_florentine_reference_values():
    """Certified to 1e-8 elsewhere: optimum 4.4637658, independent noise 5.6569615."""
    solved = optimal_covariance(FLORENTINE, tolerance=1e-7)
    assert_allclose(solved.objective, 4.463765792, rtol=2e-7)
    assert solved.lower_bound <= 4.463765793
    assert_allclose(solved.independent_objective, 5.656961451247313, rtol=1e-12)
    assert solved.status == "optimal"


@given(40, graph=connected_graphs(max_nodes=7), r=st.sampled_from([0.01, 1.0, 30.0]), uniform=st.booleans())
def test_one_seed_meets_its_bound_and_stands_between_its_bounds(graph, r, uniform):
    dynamics = Dynamics(gossip.uniform(graph) if uniform else MH(graph))
    n = dynamics.num_nodes
    W = dynamics.gossip.dense()
    solved = optimal_covariance(dynamics, max_inverse_diagonal=r)
    R = solved.covariance
    assert np.diagonal(np.linalg.inv(R)).max() <= r * (1 + 1e-9)
    assert np.linalg.eigvalsh(solved.parts[0])[0] >= -1e-9 * np.linalg.eigvalsh(R)[-1]  # what the seed must make
    assert_allclose(solved.objective, np.trace(W @ R @ W.T), rtol=1e-6)
    assert solved.objective * (1 + 1e-12) >= solved.lower_bound
    # the trace-norm bound of the one-seed problem holds for the optimum
    assert solved.objective >= np.linalg.norm(W, "nuc") ** 2 / n / r * (1 - 1e-9)
    assert solved.objective <= solved.independent_objective * (1 + 1e-4)
    if solved.status == "optimal":
        assert solved.gap <= 1e-4 + 1e-12


@given(25, graph=connected_graphs(min_nodes=2, max_nodes=6), q=st.integers(0, 2))
def test_the_best_pairwise_noise_against_a_dense_grid(graph, q):
    dynamics = Dynamics(MH(graph))
    n = dynamics.num_nodes
    assume(q < n)
    W, L = dynamics.gossip.dense(), laplacian(dynamics.gossip.graph()).toarray()
    solved = optimal_pairwise(dynamics, coalition_size=q)
    price = PairwisePrice(dynamics.gossip.graph(), q)
    for x in np.geomspace(1e-6, 1e4, 60):
        R = np.eye(n) + x * L
        worst = 0.0
        for coalition in list(itertools.combinations(range(n), q)):
            honest = [i for i in range(n) if i not in coalition]
            inside = np.array([[L[i, j] if i != j else -L[i, honest].sum() + L[i, i] for j in honest] for i in honest])
            worst = max(worst, np.linalg.inv(np.eye(len(honest)) + x * inside).diagonal().max())
        assert_allclose(price(x), worst, rtol=1e-6)
        assert price(x) >= worst * (1 - 1e-12)
        assert solved.objective <= worst * np.trace(W @ R @ W.T) * (1 + 1e-6)
    for coalition in list(itertools.combinations(range(n), q)):
        assert inverse_diagonal_for(solved, coalition).max() <= 1 + 1e-9
    assert solved.objective >= solved.lower_bound * (1 - 1e-9)
    assert_allclose(solved.covariance, solved.sigma_ldp**2 * np.eye(n) + solved.sigma_cor**2 * L, atol=1e-9)


@given(15, graph=connected_graphs(min_nodes=3, max_nodes=6), q=st.integers(1, 2), seed=st.integers(0, 99))
def test_groups_withstand_every_coalition_and_are_never_worse_than_decor(graph, q, seed):
    dynamics = Dynamics(MH(graph))
    n = dynamics.num_nodes
    assume(q < n)
    solved = optimal_covariance(dynamics, coalition_size=q)  # one seed per edge
    for coalition in list(itertools.combinations(range(n), q)):
        assert inverse_diagonal_for(solved, coalition).max() <= 1
    assert solved.objective <= optimal_pairwise(dynamics, coalition_size=q).objective * (1 + 2e-3)
    groups = np.array_split(np.random.default_rng(seed).permutation(n), 2)
    disjoint = optimal_covariance(dynamics, groups=[g.tolist() for g in groups], coalition_size=q)
    # members know their group's only seed
    assert_allclose(disjoint.objective, disjoint.independent_objective, rtol=2e-3)
    assert solved.lower_bound <= solved.objective * (1 + 1e-12)


def test_one_seed_by_either_door_and_by_the_conic_solver():
    dynamics = Dynamics(MH("path:n=4"))
    single_seed = optimal_covariance(dynamics, tolerance=1e-6)
    grouped = optimal_covariance(dynamics, groups=[[0, 1, 2, 3]], tolerance=1e-5)
    conic = optimal_covariance(dynamics, groups=[[0, 1, 2, 3]], tolerance=1e-4, method="conic")
    assert_allclose(grouped.objective, single_seed.objective, rtol=2e-5)
    assert_allclose(conic.objective, single_seed.objective, rtol=2e-4)


def test_who_holds_the_only_seed_sees_through_all_but_the_private_noise():
    solved = optimal_covariance(FLORENTINE)
    everybody = tuple(range(15))
    assert solved.groups == (everybody,)
    shared_only = algorithms.spatial_covariance(FLORENTINE, EveryStep(3), solved.covariance)
    mended = algorithms.spatial_noise(FLORENTINE, EveryStep(3), solved, name="corn")
    outside = [calibrate(algorithm, OUTSIDER, mu=1.0).noise_std for algorithm in (shared_only, mended)]
    assert_allclose(outside[0], outside[1], rtol=1e-6)
    refuses("infinite loss under", calibrate, shared_only, INSIDER, mu=1.0)
    inside = calibrate(mended, INSIDER, mu=1.0).noise_std
    assert_allclose(inside, outside[1] / math.sqrt(solved.private_variance), rtol=1e-6)


@given(25, graph=connected_graphs(min_nodes=2, max_nodes=7), builder=st.sampled_from(["corn", "corn-pairwise"]))
def test_with_all_noise_shared_an_outsider_meets_the_same_noise_and_a_node_none(graph, builder):
    dynamics = Dynamics(MH(graph))
    apart, shared = (algorithms.build(builder, dynamics, EveryStep(3), all_shared=given) for given in (False, True))
    assert shared.noise.factor.shape == (len(graph), len(graph))
    before, after = ((F @ F.T).toarray() for F in (apart.noise.factor, shared.noise.factor))
    assert_allclose(after, before, atol=1e-12 * np.abs(before).max())
    assert_allclose(*(calibrate(noise, OUTSIDER, mu=1.0).noise_std for noise in (apart, shared)), rtol=1e-6)
    refuses("infinite loss under trust", calibrate, shared, INSIDER, mu=1.0)


@each(
    "graph",
    nx.Graph([(0, 1), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]),
    nx.Graph([(0, 2), (1, 3), (2, 4), (2, 5), (3, 4), (3, 5)]),
)
def test_zeros_of_eigenvectors_leave_no_loss_open(graph):
    """Their rounding, products of 1e-16, made the rank of the noise undecided and the loss infinite."""
    noise = algorithms.corn_pairwise(Dynamics(MH(graph)), EveryStep(3), all_shared=True)
    assert calibrate(noise, OUTSIDER, mu=1.0).noise_std > 0


def test_a_covariance_for_coalitions_or_groups_keeps_its_seeds_apart(tmp_path):
    for apart in ({"coalition_size": 1}, {"groups": [[0, 1], [1, 2]]}):
        refuses("all_shared=True gives every", algorithms.corn, FLORENTINE, EveryStep(3), all_shared=True, **apart)
        refuses("hides nothing from a node", optimal_covariance(FLORENTINE, **apart).with_all_shared)
    refuses("coalitions of 1, and one seed", lambda: optimal_pairwise(FLORENTINE, coalition_size=1).with_all_shared())
    refuses("all_shared must be True", lambda: algorithms.corn_pairwise(FLORENTINE, EveryStep(3), all_shared="false"))
    shared = optimal_pairwise(FLORENTINE).with_all_shared()
    factorization.save(tmp_path / "R.npz", shared, header={})
    loaded = factorization.load(tmp_path / "R.npz").factorization
    assert (loaded.private_variance, loaded.sigma_ldp, loaded.groups) == (0.0, None, (tuple(range(15)),))
    assert_allclose(loaded.covariance, optimal_pairwise(FLORENTINE).covariance, rtol=1e-12)


def test_the_complete_graph_has_no_optimum_and_says_so():
    """W = 11^T / 5 keeps no noise that sums to zero: tr(W R W^T) can only approach 1 / 5."""
    solved = optimal_covariance(Dynamics(MH("complete:n=5")), tolerance=1e-4)
    assert 0.2 <= solved.objective <= 0.2 * (1 + 1.001e-4)
    assert solved.status == "optimal"
    assert "not attained" in " ".join(solved.notes)
    pairwise = optimal_pairwise(Dynamics(MH("complete:n=5")))
    assert_allclose(pairwise.objective, 0.2, rtol=1e-4)
    assert "not attained" in pairwise.notes[0]


@pytest.mark.parametrize("q", [0, 1])
def test_files_keep_everything(tmp_path, q):
    solved = optimal_covariance(Dynamics(MH("ring:n=5")), coalition_size=q)
    factorization.save(tmp_path / "R.npz", solved, header={"graph": "ring:n=5"})
    saved = factorization.load(tmp_path / "R.npz")
    loaded = saved.factorization
    assert saved.header == {"graph": "ring:n=5"}
    assert_allclose(loaded.covariance, solved.covariance, rtol=0, atol=0)
    for field in ("groups", "objective", "status", "coalition_size"):
        assert getattr(loaded, field) == getattr(solved, field)
    name = f"file:{tmp_path / 'R.npz'}"
    algorithm = algorithms.build(name, Dynamics(MH("ring:n=5")), EveryStep(2))
    F = algorithm.noise.factor.toarray()
    assert_allclose(F @ F.T, solved.covariance, atol=1e-9 * np.abs(solved.covariance).max())
    assert algorithms.registry.meant_models(name, algorithm)[0] == "eavesdropper"
    refuses("made for 5 nodes", lambda: algorithms.build(name, Dynamics(MH("ring:n=6")), EveryStep(2)))


def test_a_covariance_belongs_to_its_gossip_matrix_and_its_groups():
    for groups in ([[0, 9]], [[0, -1]], [[]], [["a", "b"]], [[0, 0]]):
        refuses(".", algorithms.spatial_covariance, Dynamics(MH("ring:n=5")), EveryStep(2), [np.eye(2)], groups=groups)
    solved = optimal_pairwise(Dynamics(MH("ring:n=6")))
    other = Dynamics(MH("path:n=6"))
    refuses("another gossip matrix", algorithms.spatial_noise, other, EveryStep(2), solved, name="decor")


@pytest.mark.parametrize("graph", ["path:n=4", "star:n=5", "florentine"])
def test_where_no_seed_helps_private_noise_is_all(graph):
    algorithm = algorithms.corn(Dynamics(MH(graph)), EveryStep(2), coalition_size=1)
    assert_allclose(algorithm.noise.factor.toarray(), np.eye(algorithm.num_nodes), rtol=1e-9)
    assert "cannot help" in algorithm.factorization.notes[0]


@each(
    "more, text",
    ({"coalition_size": 15}, "below the number of nodes, 15"), ({"coalition_size": -1}, "coalition_size"),
    ({"groups": [[0, 15]]}, "indices below 15, got 15"), ({"groups": [[]]}, "at least one node"),
    ({"groups": [[1, 1]]}, "distinct nodes"), ({"max_inverse_diagonal": 0.0}, "max_inverse_diagonal"),
    ({"tolerance": -1.0}, "tolerance"), ({"horizon": 0}, "horizon"), ({"max_iterations": 0}, "max_iterations"),
    ({"method": "simplex"}, "method"), ({"groups": [[0, 1]], "coalition_size": 1, "private": False}, "coalition {"),
    ({"groups": [list(range(15))], "coalition_size": 1, "private": False}, r"coalition \{Acciaiuoli\} knows every"),
    ({"groups": [list(range(15))], "method": "simplex"}, "method"),
)  # fmt: skip
def test_bad_input_is_refused(more, text):
    refuses(text, optimal_covariance, FLORENTINE, **more)


def test_groups_from_a_file_and_from_edges(tmp_path):
    assert edge_groups(MH("path:n=3")) == ((0, 1), (1, 2))
    labels = FLORENTINE.gossip.labels
    path = tmp_path / "groups.json"
    path.write_text(json.dumps([["Medici", "Pazzi"], ["Ginori"]]))
    expected = tuple(sorted([labels.index("Medici"), labels.index("Pazzi")])), (labels.index("Ginori"),)
    assert read_groups(path, labels) == expected
    for content, text in {
        '[["Medici", "Pizza"]]': "Pazzi", "[1]": "list of lists", "{}": "list of lists", "[": "not valid JSON",
        "[]": "list of lists", '[["Medici", "Medici"]]': "twice", '[[["Medici"]]]': "unknown node",
    }.items():  # fmt: skip
        path.write_text(content)
        refuses(text, read_groups, path, labels)
    refuses("cannot read", read_groups, tmp_path / "none.json", labels)


@given(graph=connected_graphs(), data=st.data())
def test_laplacian_is_incidence_times_its_transpose_for_every_orientation(graph, data):
    m = graph.number_of_edges()
    signs = data.draw(st.lists(st.sampled_from([-1, 1]), min_size=m, max_size=m))
    L = nx.laplacian_matrix(graph, nodelist=graphs.labels(graph)).toarray()
    N = incidence(graph, signs).toarray()
    assert N.shape == (len(graph), m)
    assert_allclose(N @ N.T, L, atol=0)
    assert_allclose(laplacian(graph).toarray(), L, atol=0)
    assert_allclose(decor_covariance(laplacian(graph), 0.5, 2.0), 0.25 * np.eye(len(L)) + 4 * N @ N.T, atol=1e-14)


@given(40, graph=connected_graphs(min_nodes=2, max_nodes=6), q=st.integers(0, 4))
def test_algebraic_connectivity_is_the_minimum_over_all_deletions_rounded_down(graph, q):
    n = len(graph)
    if q >= n:
        refuses("below the number of nodes", algebraic_connectivity_after_deletion, graph, q)
        return
    connectivity = algebraic_connectivity_after_deletion(graph, q)
    if n - q == 1:
        assert connectivity == math.inf
        return
    true = min(
        np.linalg.eigvalsh(nx.laplacian_matrix(graph.subgraph(set(graph) - set(out))).toarray())[1]
        for out in itertools.combinations(graph, q)
    )
    assert max(0.0, true) - 1e-12 <= connectivity <= max(0.0, true) + 1e-14


def test_inverse_diagonal_against_the_dense_inverse(monkeypatch):
    rng = np.random.default_rng(0)
    M = rng.standard_normal((6, 6))
    R = M @ M.T + 0.1 * np.eye(6)
    assert_allclose(inverse_diagonal_by_node(R), np.linalg.inv(R).diagonal(), rtol=1e-10)
    assert_allclose(inverse_diagonal(R), np.linalg.inv(R).diagonal().max(), rtol=1e-10)
    # batches do not change the deletions
    whole = algebraic_connectivity_after_deletion("florentine", 2)
    monkeypatch.setattr(node_covariances, "_BATCH_ENTRIES", 1)
    assert algebraic_connectivity_after_deletion("florentine", 2) == whole


def test_the_honest_part_conditions_on_what_colluders_know_of_their_own_noise():
    R = decor_covariance(laplacian("ring:n=6"), 0.5, 2.0)
    H, I = [1, 2, 3, 5], [0, 4]
    schur = R[np.ix_(H, H)] - R[np.ix_(H, I)] @ np.linalg.inv(R[np.ix_(I, I)]) @ R[np.ix_(I, H)]
    inverse_diagonal = inverse_diagonal_by_node(R, H)
    assert_allclose(inverse_diagonal, np.linalg.inv(schur).diagonal(), rtol=1e-12)
    assert (inverse_diagonal > np.linalg.inv(R[np.ix_(H, H)]).diagonal() + 0.01).all()
    # with known seeds taken out, colluders are uncorrelated and may even be left without noise
    left = R.copy()
    left[I, :] = left[:, I] = 0.0
    assert_allclose(inverse_diagonal_by_node(left, H), np.linalg.inv(R[np.ix_(H, H)]).diagonal(), rtol=1e-12)


@each(
    "call, message",
    (lambda: inverse_diagonal([[1.0, 0.5], [0.0, 1.0]]), "covariance must be symmetric"),
    (lambda: inverse_diagonal(np.ones((2, 3))), "covariance must be square"),
    (lambda: inverse_diagonal(np.zeros((0, 0))), "at least one node"),
    (lambda: inverse_diagonal([[math.nan]]), "covariance must be finite"),
    (lambda: inverse_diagonal(np.eye(2), []), "honest must name at least one node"),
    (lambda: inverse_diagonal(np.eye(2), [0, 2]), "indices below 2"),
    (lambda: inverse_diagonal(np.eye(2), [1, 1]), "distinct"),
    (lambda: incidence("path:n=3", [1]), "one entry per edge, got 1 for 2"),
    (lambda: incidence("path:n=3", [1, 0]), r"\+1 or -1, got 0 at edge 1"),
    (lambda: decor_covariance(np.eye(2), -1.0, 1.0), "sigma_ldp"),
    (lambda: algebraic_connectivity_after_deletion("ring:n=5", -1), "q must be an integer >= 0"),
    (lambda: algebraic_connectivity_after_deletion("ring:n=100", 3), "161700 coalitions, more than the 20000"),
    (lambda: inverse_diagonal(laplacian("ring:n=5").toarray()), r"definite, got the smallest eigenvalue -?\d"),
    (lambda: inverse_diagonal(np.diag([3.0, -2.0])), "smallest eigenvalue -2 "),
    (lambda: inverse_diagonal(np.zeros((1, 1))), "smallest eigenvalue 0 "),
)
def test_bad_input(call, message):
    refuses(message, call)


@pytest.mark.parametrize("seed", range(3))
def test_directed_weights_against_the_conic_solver(seed):
    """W of a directed circle with random arcs, row-stochastic alone; the problem needs no symmetry."""
    rng = np.random.default_rng(seed)
    W = (rng.random((5, 5)) < 0.3) * rng.random((5, 5)) + np.eye(5) + np.roll(np.eye(5), 1, axis=1)
    dynamics = Dynamics(gossip.from_array(W / W.sum(axis=1, keepdims=True)))
    assert np.abs(dynamics.gossip.dense() - dynamics.gossip.dense().T).max() > 0.1
    solved = optimal_covariance(dynamics, tolerance=1e-6)
    conic = optimal_covariance(dynamics, groups=[range(5)], method="conic", tolerance=1e-5)
    assert_allclose(solved.objective, conic.objective, rtol=1e-4)
    W = dynamics.gossip.dense()
    assert_allclose(solved.objective, np.trace(W @ solved.covariance @ W.T), rtol=1e-6)
    mechanism = calibrate(
        algorithms.corn(dynamics, EveryStep(3), horizon=1),
        Privacy(trust.Eavesdropper(), adjacency="replace-one", clip_norm=1.0),
        mu=1.0,
    )
    assert_allclose(mechanism.guarantee.mu, 1.0, rtol=1e-9)


def test_the_horizon_counts_the_noise_that_stays():
    """The covariance best for 16 steps leaves less noise over 16 steps than the one best for a single step."""

    H = NoiseObjective(FLORENTINE, 16).over_nodes()
    long, short = optimal_covariance(FLORENTINE, horizon=16), optimal_covariance(FLORENTINE)
    assert np.sum(H * long.covariance) < np.sum(H * short.covariance) * 0.999
    assert_allclose(long.objective, np.sum(H * long.covariance), rtol=1e-9)
