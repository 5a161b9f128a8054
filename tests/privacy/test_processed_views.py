"""Views that are functions of others, rounded products, and gradients beside all noise: never below the factors."""

import dataclasses
import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse.linalg import aslinearoperator
from vocabulary import ZERO_OUT, dynamics_on, given, refuses, st

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, TrustModel, View, algorithms, gossip, graphs, node_covariances
from mfdl.algorithms import decor
from mfdl.errors import UnusualSetting
from mfdl.noise import StepNoise
from mfdl.privacy import exact_arithmetic, sensitivity_by_victim, view_losses
from mfdl.privacy.forms import dense_form, whitening
from mfdl.privacy.forms.node_recursions import recursions
from mfdl.privacy.forms.whitening import enclosed, inverse_diagonal, node_noise
from mfdl.testing import connected_graphs, exact_run, exact_view, exact_view_gram, gossip_matrices, to_float

STEPS = EveryStep(3)
FIRST_ORDER = 1e-6  # what rounding at 2^-53 may change where nothing is ill-conditioned


@st.composite
def factors(draw):
    """(S, M, N): k combinations of r messages over 3 steps of 2 nodes; entries of 40 bits, so that products round."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    r = draw(st.integers(1, 6))

    def entries(*shape):
        return np.ldexp(rng.integers(-(2**39), 2**39, size=shape).astype(float), -38)

    N = np.hstack([np.eye(6), entries(6, draw(st.integers(0, 3)))])
    return entries(draw(st.integers(1, 9)), r), entries(r, 6), N


def numbers(view):
    return [loss.sensitivity_squared for loss in view_losses(view, STEPS)]


@given(60, case=factors(), as_operator=st.booleans())
def test_a_processed_view_has_the_number_of_its_factors_and_at_most_that_of_its_source(case, as_operator):
    S, M, N = case
    exact, source = View([S, M], [S, M, N], num_nodes=2), View(M, [M, N], num_nodes=2)
    if as_operator:
        source = View(1.0 * aslinearoperator(M), 1.0 * aslinearoperator(M @ N), num_nodes=2)
    processed = View.processed(S, source)
    for value, of_factors, of_source in zip(numbers(processed), numbers(exact), numbers(source), strict=True):
        assert of_factors <= value * (1 + FIRST_ORDER)
        assert value <= of_source
        assert as_operator or value <= of_factors * (1 + FIRST_ORDER)


def test_what_is_known_of_the_source_is_known_of_the_processed_view():
    source = View(np.eye(3), [[1, 0], [0, 1], [1, 1]], known_noise=[True, False], known_combinations=[[1, 0, 0]])
    processed = View.processed([[1, 0, 0], [0, 0, 1]], source)
    assert (processed.known_gradients == source.known_gradients).all()
    assert processed.dense_noise().tolist() == [[0, 0], [0, 1]]


def test_what_is_known_and_proven_of_the_source_is_of_the_processed_view():
    algorithm = mfdl.algorithms.decor(dynamics_on("ring:n=4"), STEPS)
    source = mfdl.trust.PNDP([0]).view(algorithm, 1)
    of_source = view_losses(source, STEPS)
    rng = np.random.default_rng(0)
    for rows in (3, source.num_rows + 2):
        losses = view_losses(View.processed(rng.normal(size=(rows, source.num_rows)), source), STEPS)
        assert [loss.victim for loss in losses] == [loss.victim for loss in of_source]
        for loss, bound in zip(losses, of_source, strict=True):
            assert loss.sensitivity_squared <= bound.sensitivity_squared
            assert loss.adaptive_sensitivity_squared <= bound.adaptive_sensitivity_squared
    assert losses == of_source


def test_losses_of_one_source_do_not_answer_for_another():
    """Both show the same first rows; with rank="numerical" the numbers are those of the sources."""
    gradients, S = [[1.0, 0.0], [0.1, 0.7], [0.3, 0.2]], np.eye(3)[:2]
    first, second = (
        View.processed(S, View(gradients, np.diag([1.0, 1.0, noise]), rank="numerical", rank_tolerance=tolerance))
        for noise, tolerance in ((1.0, 2.0**-40), (0.1, 2.0**-12))
    )
    privacy = mfdl.Privacy(participation=EveryStep(2), **ZERO_OUT)
    losses = mfdl.losses(first, privacy)
    refuses("trust must be left out", dataclasses.replace, losses, algorithm=second)


def test_factors_that_do_not_fit_are_refused():
    view = View(np.eye(3), np.eye(3))
    refuses(r"combinations must have 3 columns", View.processed, np.eye(2), view)
    refuses(r"factors of noise must fit each other", View, np.eye(2), [np.eye(2), sp.eye_array(3)])
    refuses("operator", lambda: View(np.eye(2), [np.eye(2), aslinearoperator(np.eye(2))]))
    assert math.isclose(numbers(View([np.eye(3), np.eye(3)], [np.eye(3)]))[0], 3)


@given(100, case=factors(), seed=st.integers(0, 2**32))
def test_the_number_of_matrices_near_a_rounded_product_is_that_of_the_factors(case, seed):
    S, M, N = case
    of_factors = numbers(View([S, M], [S, M, N], num_nodes=2))
    A, B = S @ M, S @ M @ N
    nearby = numbers(View(A, B, num_nodes=2, rank="numerical"))
    as_they_are = numbers(View(A, B, num_nodes=2, rank="exact"))
    for near, literal, exact in zip(nearby, as_they_are, of_factors, strict=True):
        assert near >= exact
        assert literal >= exact * (1 - FIRST_ORDER)
        assert math.isinf(near) or near <= exact * (1 + 1e-3) + 1e-3  # S may be badly conditioned
    C = np.random.default_rng(seed).normal(size=(6, 6))
    sensitivity = mfdl.privacy.general_sensitivity(C, [S, M], STEPS, num_nodes=2)
    near = mfdl.privacy.general_sensitivity(C, S @ M, STEPS, num_nodes=2, rank="numerical")
    assert sensitivity.squared <= near.squared <= sensitivity.squared * (1 + 1e-3)
    assert near.lower <= sensitivity.squared


@given(60, case=factors(), size=st.sampled_from([0.0, 0.5, 1.0]), scale=st.sampled_from([2.0**-30, 1.0, 2.0**30]))
def test_the_number_covers_every_matrix_of_the_rank_within_the_tolerance(case, size, scale):
    S, M, N = case
    tolerance = 2.0**-20
    rng = np.random.default_rng(len(S))
    moved = M * (1 + size * tolerance * rng.uniform(-1, 1, M.shape) / 64)
    A, B = S @ M * scale, S @ M @ N
    near = numbers(View(A, B, num_nodes=2, rank="numerical", rank_tolerance=tolerance))
    if within(S @ moved, S @ M, tolerance) and within(S @ moved @ N, S @ M @ N, tolerance):
        meant = numbers(View([S, moved * scale], [S, moved, N], num_nodes=2))
        assert all(bound >= exact for bound, exact in zip(near, meant, strict=True))


def within(moved, entries, tolerance):
    norms = np.linalg.norm(entries[:, ::2], axis=1), np.linalg.norm(entries[:, 1::2], axis=1)
    return (np.linalg.norm(moved - entries, axis=1) <= tolerance / 4 * np.minimum(*norms)).all()


def projections():
    rng = np.random.default_rng(3)
    return rng.normal(size=(5, 3)), rng.normal(size=(3, 6)), np.hstack([np.eye(6), rng.normal(size=(6, 4))])


def test_both_numbers_are_named_where_they_differ_and_the_choice_silences():
    S, M, N = projections()
    with pytest.warns(UnusualSetting, match=r"for the entries as they are.*every matrix of rank 3") as record:
        by_default = numbers(View(S @ M, S @ M @ N, num_nodes=2))
    assert len(record) == 1
    literal, near = (numbers(View(S @ M, S @ M @ N, num_nodes=2, rank=rank)) for rank in ("exact", "numerical"))
    assert by_default == literal
    assert max(literal) > 1.01 * max(near)
    with pytest.warns(UnusualSetting, match=r"rows depend on each other"):
        mfdl.privacy.general_sensitivity(np.eye(6), S @ M, STEPS, num_nodes=2)
    loss = view_losses(View(S @ M, S @ M @ N, num_nodes=2, rank="numerical"), STEPS)[0]
    assert loss.bound == "upper"
    assert "every matrix of rank 3" in loss.explanation(adaptive=False)
    numbers(View(M, M @ N, num_nodes=2))  # rows do not depend on each other: no warning


def test_a_noise_that_may_vanish_near_the_given_rows_has_no_finite_number():
    S, M, N = projections()
    N[:, :] = 0
    N[0, 0] = 1  # three rows of rank three, one noise
    losses = view_losses(View(S @ M, S @ M @ N, num_nodes=2, rank="numerical"), STEPS)
    assert all(math.isinf(loss.sensitivity_squared) and "may show" in loss.explanation() for loss in losses)


def test_ranks_that_do_not_fit_are_refused():
    for arguments, match in (
        ({"rank": "low"}, "rank"),
        ({"rank_tolerance": 0.1}, "rank_tolerance"),
        ({"noise": 1.0 * aslinearoperator(np.eye(2)), "rank": "numerical"}, "operator"),
    ):
        refuses(match, View, np.eye(2), **{"noise": np.eye(2)} | arguments)
    with pytest.raises(mfdl.InvalidInput, match="workload"):
        mfdl.privacy.general_sensitivity(np.eye(2), np.eye(2), EveryStep(2), workload=np.eye(2), rank="numerical")


MH = gossip.metropolis_hastings


@pytest.mark.parametrize("too_large_for_exact_ranks", [False, True])
@pytest.mark.parametrize("faint", [1.0, 2.0**-10])
def test_noise_that_is_a_rounded_product_makes_no_row_redundant(faint, too_large_for_exact_ranks, monkeypatch):
    """M N rounds both messages to one row; their true difference is noise that cancels most of the noise of both."""
    M = sp.csr_array([[2.0**25, 2.0], [2.0**25, 2.0 + 2.0**-19]])
    noise = StepNoise([[3 * 2.0**35, -1.0], [faint, -0.5]], np.ones((2, 2), bool), 3, 2)
    start = algorithms.dp_dsgd(Dynamics(MH("path:n=2")), EveryStep(3))
    P, K = sp.csr_array([[2.0**-40, 0.5]] * 2), sp.csr_array([[0.125, 0.0], [0.5, 0.0]])
    maps = {"message_from_state": P, "message_from_gradient": M, "message_from_noise": M, "state_from_message": K}
    rounds = [dataclasses.replace(r, **maps) for r in start.rounds]
    algorithm = dataclasses.replace(start, rounds=tuple(rounds), noise=noise)
    model = TrustModel.from_masks(seen=np.ones((3, 2), bool), release="none")
    assert recursions(model.view(algorithm, 0)) is not None
    if too_large_for_exact_ranks:
        monkeypatch.setattr(exact_arithmetic, "MAX_ENTRIES", 0)
        monkeypatch.setattr(dense_form, "MAX_ENTRIES", 0)
    A, B = exact_view(exact_run(algorithm), np.ones((3, 2), bool), [])
    truth = float(sum(np.abs(to_float(exact_view_gram([row[0::2] for row in A], B))).ravel()))
    (loss,) = sensitivity_by_victim(algorithm, model, victims=[0], unit="user")
    assert truth * (1 - 1e-9) <= loss.sensitivity_squared < math.inf
    assert loss.bound == "upper" or loss.sensitivity_squared == pytest.approx(truth, rel=1e-6)


X_NOISE, FACTOR = 0.23604808973743452, 0.1031660342307158
"""Two floats whose product is rounded."""


def moved(maps, noise, n):
    """A user's algorithm of three steps with these maps."""
    start = algorithms.dp_dsgd(Dynamics(MH(f"path:n={n}")), EveryStep(3))
    sparse = {name: sp.csr_array(matrix) for name, matrix in maps.items()}
    rounds = tuple(dataclasses.replace(r, **sparse) for r in start.rounds)
    holders = np.ones((n, np.shape(noise)[1]), bool)
    return dataclasses.replace(start, rounds=rounds, noise=StepNoise(noise, holders.T, 3, n))


def test_noise_that_cancels_up_to_rounding_alone_reveals_what_it_shares():
    """Message 0 carries the rounding of y x - fl(y x) times z, which is not 0, and with it the noise z of message 1."""
    algorithm = moved(
        {
            "message_from_noise": [[FACTOR, -1.0], [1.0, 0.0]], "message_from_gradient": [[0.0, 0.0], [1.0, 0.0]],
            "message_from_state": [[0.0, 0.0], [1.0, 0.0]], "state_from_message": [[0.0, 0.5], [0.0, 0.5]],
        },
        [[X_NOISE, 0.0], [FACTOR * X_NOISE, 0.0]], 2,
    )  # fmt: skip
    assert Fraction(FACTOR) * Fraction(X_NOISE) != Fraction(FACTOR * X_NOISE)
    model = TrustModel.from_masks(seen=np.ones((3, 2), bool), release="none")
    (loss,) = sensitivity_by_victim(algorithm, model, victims=[0], unit="user")
    assert loss.sensitivity_squared == math.inf


def test_hidden_noise_that_cancels_up_to_rounding_alone_counts_in_later_messages():
    """What a hidden message leaves of the noise z in a state is tiny, and meets noise that is tinier."""
    faint = 2.0**-64
    algorithm = moved(
        {
            "message_from_noise": [[0, 0, faint], [FACTOR, -1.0, 0], [1.0, 0, 0]],
            "message_from_gradient": [[0.0, 0, 0], [0, 0, 0], [0, 0, 1.0]],
            "message_from_state": [[1.0, 0, 0], [0, 0, 0], [0, 0, 0]],
            "state_from_message": [[0, 1.0, 0], [0, 0, 0.5], [0, 0, 0.5]],
        },
        [[X_NOISE, 0.0], [FACTOR * X_NOISE, 0.0], [0.0, 1.0]], 3,
    )  # fmt: skip
    left = Fraction(FACTOR) * Fraction(X_NOISE) - Fraction(FACTOR * X_NOISE)
    known = 1 + left**2 / Fraction(faint) ** 2  # of the noise of steps 0 and 1, seen again a step later
    truth = float((2 * known + 1) / Fraction(X_NOISE) ** 2)
    model = TrustModel.from_masks(seen=np.array([[True, False, True]] * 3), release="none")
    (loss,) = sensitivity_by_victim(algorithm, model, victims=[2], unit="user")
    assert loss.sensitivity_squared >= truth * (1 - 1e-9)


def pairwise(graph, local, pair):
    return sp.csr_array(sp.hstack([sp.diags_array(local), pair * node_covariances.incidence(graph)]))


@st.composite
def node_factors(draw):
    """Noise of each node's own, here and there none, and of pairs on a graph that may have several parts."""
    parts = [draw(connected_graphs(max_nodes=5)) for _ in range(draw(st.integers(1, 3)))]
    blocks = []
    for graph in parts:
        n = graph.number_of_nodes()
        local = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0, 0.0]), min_size=n, max_size=n))
        blocks.append(pairwise(graph, np.array(local), draw(st.sampled_from([0.25, 1.0, 10.0]))))
    return sp.csr_array(sp.block_diag(blocks))


def test_noise_of_sizes_far_apart_has_ends_around_the_truth():
    """A system for the coefficients is singular here; any coefficients are a certificate. By Schur complements."""
    local = np.array([0.008191426185143454, 1.6839003889407265e-05, 0.00429649632556976])
    pairs = (1.9359782984572276, 0.0023355723519906104)
    F = np.zeros((3, 5))
    F[:, :3], F[0, 3:] = np.diag(local), pairs
    F[1, 3], F[2, 4] = -pairs[0], -pairs[1]
    left = enclosed(sp.csr_array(F), np.arange(3))
    squares = [Fraction(value) ** 2 for value in (*local, *pairs)]
    true = 1 / (squares[0] + sum(p * o / (p + o) for o, p in zip(squares[1:3], squares[3:], strict=True)))
    assert not left.undecided[0]
    assert Fraction(left.inverse[0]) + Fraction(left.errors[0]) >= true
    assert left.upper[0] or Fraction(left.inverse[0]) - Fraction(left.errors[0]) <= true


def test_noise_shared_at_a_size_next_to_nothing_is_shared(monkeypatch):
    """Products of the entries underflow: the parts are those of the pattern."""
    monkeypatch.setattr(whitening, "DENSE_ROWS", 1)
    F = sp.csr_array(np.array([[1e-5, 1.0, 0.0], [1e-320, 0.0, 1.0]]))
    requested = []
    monkeypatch.setattr(whitening, "enclosed", lambda F, who: requested.append(F.shape) or enclosed(F, who))
    node_noise(F, np.zeros(3, dtype=bool), np.arange(2))
    assert requested == [(2, 3)]


@given(150, data=st.data(), F=node_factors(), rows=st.sampled_from([1, 3]))
def test_parts_and_ends_hold_what_the_whole_matrix_says(data, F, rows):
    known = np.array(data.draw(st.lists(st.booleans(), min_size=F.shape[1], max_size=F.shape[1])), dtype=bool)
    victims = np.arange(F.shape[0])
    whole = node_noise(F, known, victims)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whitening, "DENSE_ROWS", rows)
        parts = node_noise(F, known, victims)
    decided = ~parts.undecided
    assert_array_equal(parts.open[decided], whole.open[decided])
    finite = decided & ~whole.open
    most, least = parts.inverse + parts.errors, parts.inverse - parts.errors
    assert (most[finite] >= whole.inverse[finite] * (1 - 1e-9)).all()
    exact = finite & ~parts.upper
    assert (least[exact] <= whole.inverse[exact] * (1 + 1e-9)).all()
    assert (parts.errors[exact] <= 1e-6 * parts.inverse[exact]).all()


def test_a_part_without_noise_of_its_own_at_some_node_is_not_told():
    F = pairwise("ring:n=6", np.array([1.0, 0, 1, 1, 1, 1]), 1.0)
    assert enclosed(F, np.arange(6)).undecided.all()


@given(100, graph=connected_graphs(max_nodes=9), seed=st.integers(0, 99), pair=st.sampled_from([0.1, 1.0, 30.0]))
def test_both_ends_hold_the_inverse_and_meet_on_small_graphs(graph, seed, pair):
    rng = np.random.default_rng(seed)
    R = node_covariances.incidence(graph) * rng.uniform(0.5, 2, graph.number_of_edges()) * pair
    P = sp.csr_array(R @ R.T)
    lower, upper = inverse_diagonal(P, np.arange(P.shape[0]))
    exact = np.diagonal(np.linalg.inv(np.eye(P.shape[0]) + P.toarray()))
    assert (lower <= exact * (1 + 1e-9)).all()
    assert (upper >= exact * (1 - 1e-9)).all()
    assert pair > 1 or (upper - lower <= 1e-3 * upper).all()  # degree 40 on at most 9 eigenvalues, up to rounding


def test_who_looks_further_encloses_more_tightly(monkeypatch):
    L = node_covariances.laplacian("regular:n=200,degree=6,seed=1")
    exact, apart = np.diagonal(np.linalg.inv(np.eye(200) + L.toarray())), []
    for ball in (1, 100, 10_000):
        monkeypatch.setattr(whitening, "BALL_ENTRIES", ball)
        lower, upper = inverse_diagonal(L, np.arange(200))
        assert (lower <= exact).all()
        assert (exact <= upper).all()
        apart.append((1 - lower / upper).max())
    assert 0.5 > apart[0] > 3 * apart[1] > 1e3 * apart[2]


@pytest.mark.parametrize("trust", ["eavesdropper", "ldp"])
def test_decor_is_accounted_in_parts_as_by_the_whole_matrix(trust, monkeypatch):
    algorithm = decor(dynamics_on("ring:n=30"), Cyclic(2, 2), sigma_cor=0.7)
    model = mfdl.trust.named(trust)
    whole = sensitivity_by_victim(algorithm, model)
    monkeypatch.setattr(whitening, "DENSE_ROWS", 5)
    for in_parts, wanted in zip(sensitivity_by_victim(algorithm, model), whole, strict=True):
        assert in_parts.bound == wanted.bound == "exact"
        assert_allclose(in_parts.sensitivity_squared, wanted.sensitivity_squared, rtol=1e-8)
        assert in_parts.sensitivity_squared >= wanted.sensitivity_squared * (1 - 1e-9)
    silent = decor(dynamics_on("ring:n=30"), Cyclic(2, 2), sigma_ldp=0.0)
    assert np.isinf([loss.sensitivity_squared for loss in sensitivity_by_victim(silent, model)]).all()


def test_memory_grows_with_the_edges(monkeypatch):
    monkeypatch.setattr(whitening, "DENSE_ROWS", 100)
    peaks = []
    for n in (1_000, 4_000):
        F = pairwise(graphs.load_sparse(f"regular:n={n},degree=4"), np.ones(n), 1.0)
        known = np.arange(F.shape[1]) >= n
        tracemalloc.start()
        try:
            node_noise(F, known, range(n))  # every node for itself
            node_noise(F, ~known & False, range(20))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0]
    assert peaks[1] < 4_000**2  # bytes: an eighth of an array n x n


@given(gossip_matrices())
def test_links_are_the_edges_of_the_graph(W):
    links, graph = W.links(), W.graph()
    assert graphs.labels(links) == tuple(graph)
    assert [tuple(e) for e in links.edges.tolist()] == sorted(tuple(sorted(e)) for e in graph.edges)
