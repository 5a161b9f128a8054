"""Strategies keep what they promise, and shrink to the cases that their page prints."""

import csv
import math
import random
from fractions import Fraction
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import Phase, find, settings
from numpy.testing import assert_allclose
from vocabulary import dynamics_on, each, given, refuses, st

from mfdl import Cyclic, Dynamics, algorithms, gossip, testing
from mfdl.algorithms.registry import MECHANISMS
from mfdl.noise import IndependentNoise, JointNoise, LocalNoise, SpatioTemporalNoise, StepNoise
from mfdl.privacy import sensitivity_by_victim
from mfdl.privacy.gaussian import ADJACENCIES
from mfdl.testing import factorizations, optimal_loss_reference
from mfdl.testing import strategies as drawn

TABLE = (Path(__file__).parents[2] / "docs" / "tables" / "strategies.csv").read_text(encoding="utf-8")
SHIFT = {"zero-out": 1, "add-remove": 1, "replace-one": 2}  # per unit of the clipping norm
record = Cyclic(epochs=2, period=1)
algorithm = algorithms.dp_dsgd(Dynamics(gossip.uniform("star:n=3")), record)
REPLACED = {"adjacency": "replace-one", "clip_norm": 0.5, "dimension": 1}
few = 40


def smallest(strategy, condition=lambda case: True, seed=0):
    search = settings(max_examples=100, database=None, deadline=None, phases=[Phase.generate, Phase.shrink])
    return find(strategy, condition, settings=search, random=random.Random(seed))


ROWS = [(code.strip("`"), shrunk.strip("`")) for code, _, shrunk in list(csv.reader(TABLE.splitlines()))[1:]]


@pytest.mark.parametrize(("code", "expected"), ROWS, ids=[code for code, _ in ROWS])
def test_a_strategy_shrinks_to_what_its_row_shows(code, expected):
    assert (
        testing.describe(smallest(eval(code, vars(drawn) | {"record": record, "algorithm": algorithm}), seed=1))
        == expected
    )


def test_the_page_has_a_row_for_every_strategy():
    public = {name for name in drawn.__all__ if name.islower()} - {"build_algorithm", "random_encoder"}
    older = {"integer_views", "linear_systems", "linear_systems_with_record"}  # of single tests
    assert {code.split("(")[0] for code, _ in ROWS} == public - older
    assert all(f"`{name}`" in TABLE for name in ("ALL_NAMES", "ALL_SCHEMES", "TRUST_MODELS", "VIEW_KINDS", "KINDS"))


@each(
    "strategy, condition, expected",
    (testing.connected_graphs(), lambda G: not nx.is_tree(G), "{0-1, 0-2, 1-2}"),
    (testing.participations(schemes=testing.ALL_SCHEMES), lambda p: p.num_steps == 3, "Single(steps=3)"),
    (testing.views(["rank-deficient"]), lambda v: v.dense_gradients().any(), "A = [[1], [0]], B = [[1], [0]]"),
    (testing.views(["leaking"]), lambda v: v.dense_noise().any(), "A = [[0], [1]], B = [[1], [0]]"),
    (testing.views(["regular"], max_nodes=3), lambda v: v.axis.num_nodes == 3, "A = [[0, 0, 0]] of 3 nodes, B = [[1]]"),
    (testing.encoders(), lambda C: np.tril(C, -1).any(), "[[1, 0], [1/8, 1]]"),
    (testing.integer_encoders(), lambda C: (np.tril(C, -1) < 0).any(), "[[1, 0], [-1, 1]]"),
    (testing.gradient_differences(record, 2, **REPLACED), lambda D: np.abs(D).sum() == 2, "[[1], [0], [1], [0]]"),
    (testing.trust_models(3, kinds=["colluding"]), lambda m: len(m.colluders) > 1, "Colluding(colluders=[0, 1])"),
    (
        testing.linear_algorithms(["decor"], varying=False),
        lambda algorithm: algorithm.num_nodes > 1 and algorithm.noise.columns_per_step > 1,
        (
            "decor on W = [[1/2, 1/2], [1/2, 1/2]], Cyclic(epochs=1, period=1, steps=1), "
            "R = [[2, -1], [-1, 2]] from secrets held by 0, 0+1, 1"
        ),
    ),
    ids=lambda value: "",
)
def test_a_condition_leaves_a_small_case(strategy, condition, expected):
    assert testing.describe(smallest(strategy, condition)) == expected


def test_gossip_that_varies_needs_two_rounds():
    sequence = smallest(testing.gossip_sequences(kinds=["symmetric"]), lambda S: S.repeat and not S.is_constant)
    assert (sequence.num_nodes, len(sequence.matrices), sequence.is_symmetric) == (2, 2, True)


@given(few, G=testing.connected_graphs(min_nodes=2, max_nodes=6))
def test_graphs_are_connected_and_simple_on_their_first_numbers(G):
    assert nx.is_connected(G)
    assert sorted(G) == list(range(len(G)))
    assert 2 <= len(G) <= 6
    assert nx.number_of_selfloops(G) == 0


@given(few, W=testing.gossip_matrices(min_nodes=2, max_nodes=5), data=st.data())
def test_gossip_is_of_its_kind(W, data):
    dense = W.dense()
    assert nx.is_strongly_connected(nx.from_numpy_array(dense, create_using=nx.DiGraph))
    assert_allclose(dense.sum(axis=1), 1, atol=1e-12)  # entries at most 1, five of them
    assert W.name in testing.KINDS
    if W.name in ("symmetric", "singular"):
        assert_allclose(dense, dense.T, atol=1e-15)
    if W.name == "singular":
        assert np.linalg.svd(dense, compute_uv=False)[-1] < 1e-12
    if W.name == "uniform":
        assert {Fraction(x).limit_denominator(99) for x in dense[dense > 0]} <= {Fraction(1, k) for k in range(2, 7)}
        degree = (dense > 0).sum(axis=1)
        assert_allclose(degree[:, None] * dense, (degree[:, None] * dense).T, atol=1e-15)  # reversible


@given(few, W=testing.dyadic_gossip(max_nodes=4), steps=st.integers(1, 4))
def test_dyadic_products_are_exact(W, steps):
    messages, _ = testing.gossip_messages(W, steps)
    exact = [[Fraction(float(x)) for x in row] for row in W.dense()]
    column = [Fraction(1), *[Fraction(0)] * (W.num_nodes - 1)]
    for _ in range(steps - 1):
        column = [sum(w * x for w, x in zip(row, column, strict=True)) for row in exact]
    last = messages[-W.num_nodes :, 0]
    assert [-Fraction(float(x)) for x in last] == column


@given(few, part=testing.participations(max_steps=6, schemes=testing.ALL_SCHEMES))
def test_participations_hold_the_patterns_of_their_scheme(part):
    patterns = [tuple(p.tolist()) for p in part.patterns()]
    assert 1 <= part.num_steps <= 6
    assert all(set(p) <= set(range(part.num_steps)) for p in patterns)
    if part.scheme == "once-per-epoch":
        assert sorted(patterns) == testing.once_per_epoch_patterns(part.epochs, part.period)
    if part.scheme == "min-separation":
        assert sorted(patterns) == testing.separated_patterns(part.num_steps, part.max_participations, part.separation)


@given(few, part=testing.participations(num_steps=4, disjoint=True))
def test_disjoint_patterns_partition_the_steps(part):
    assert sorted(np.concatenate(list(part.patterns()))) == [0, 1, 2, 3]


def test_all_names_are_those_of_the_registry_and_three_of_ones_own():
    assert {*testing.ALL_NAMES, "trust-optimal"} == {*MECHANISMS, "mf-shared", "mf-per-node", "spatial"}
    assert set(testing.CHEAP_NAMES) | set(testing.PROTECTING_NAMES) <= set(testing.ALL_NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", testing.ALL_NAMES)
@given(8, data=st.data())
def test_algorithms_are_built_by_name_within_their_sizes(name, data):
    algorithm = data.draw(testing.linear_algorithms([name], max_epochs=2, max_period=2, min_nodes=2, max_nodes=3))
    assert (2 <= algorithm.num_nodes <= 3, algorithm.participation.num_steps) == (True, algorithm.num_steps)
    assert algorithm.name == name
    assert algorithm.name in testing.describe(algorithm)
    sizes = (len(algorithm.rounds) * algorithm.messages_per_round, algorithm.num_steps * algorithm.num_nodes)
    assert algorithm.messages_from_gradients.shape == sizes
    noise = algorithm.messages_from_noise @ np.eye(algorithm.noise.shape[1])
    assert np.isfinite(noise).all()
    assert noise.any() == (name != "none")
    fresh = ("dp-dsgd", "muffliato", "cdp", *drawn.MEMORY_NAMES)
    kind: type = IndependentNoise if name in fresh else LocalNoise
    if name in (*drawn.SHARED_NAMES, "zip-dl"):
        kind = StepNoise
    if name in drawn.JOINT_NAMES:
        kind = JointNoise if name == "joint" else SpatioTemporalNoise
    assert name == "none" or isinstance(algorithm.noise, kind)
    if name in ("zip-dl", *drawn.JOINT_NAMES, *drawn.FORM_NAMES):
        assert algorithm.dynamics.gossip.is_symmetric
    if name not in drawn.JOINT_NAMES:  # which solve a problem, to the tolerance that was drawn
        assert testing.build_algorithm(name, algorithm.dynamics, algorithm.participation).name == name


@pytest.mark.slow
def test_both_extremes_of_decor_and_covariances_are_drawn():
    for name in ("decor", "spatial"):
        of = testing.linear_algorithms([name], 1, 1, min_nodes=2, max_nodes=3, varying=False)
        alone = smallest(of, lambda algorithm: set(_holding(algorithm)) == {1})
        shared = smallest(of, lambda algorithm: min(_holding(algorithm)) > 1)
        assert alone.num_nodes == shared.num_nodes == 2


def _holding(case):
    return np.asarray(case.noise.holders().sum(axis=1)).ravel().tolist()


@given(few, data=st.data())
def test_trust_models_leave_a_victim_and_have_a_view(data):
    names = ("dp-dsgd", "mf-per-node", "muffliato", "decor", "zip-dl")
    algorithm = data.draw(testing.linear_algorithms(names, max_epochs=1, max_period=2, max_nodes=3))
    model = data.draw(testing.trust_models(algorithm))
    members = [(member, victims) for member, victims in model.members(algorithm) if victims]
    assert members
    for member, victims in members:
        for victim in victims:
            assert victim not in member.attackers(algorithm)
            knowledge = member.knowledge(algorithm, victim)
            assert not (knowledge.seen & ~algorithm.transmitted).any()
            assert not knowledge.known_gradients[:, victim].any()
            view = member.view(algorithm, victim)
            assert view.gradients.shape[1] == algorithm.num_steps * algorithm.num_nodes


@given(20, n=st.integers(1, 3), data=st.data())
def test_a_number_of_nodes_is_enough_unless_masks_are_wanted(n, data):
    model = data.draw(testing.trust_models(n))
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.uniform(nx.path_graph(n))), record)
    assert all(math.isfinite(loss.non_adaptive_sensitivity.squared) for loss in sensitivity_by_victim(algorithm, model))


ZIP = algorithms.zip_dl(dynamics_on("complete:n=2"), Cyclic(1, 1))
MASKS = testing.trust_models(ZIP, kinds=["masks"])


def test_masks_see_all_that_are_sent_in_some_case():
    """Zip-DL has a message of every node to itself, which never leaves it."""
    assert not ZIP.transmitted.all()
    shrunk = smallest(MASKS, lambda model: model.knowledge(ZIP, 0).seen.sum() == ZIP.transmitted.sum())
    assert np.array_equal(shrunk.knowledge(ZIP, 0).seen, ZIP.transmitted[None])


@pytest.mark.parametrize("kind", testing.TRUST_MODELS)
def test_a_kind_is_the_model_of_that_name(kind):
    names = {"any-receiver": "pndp", "masks": "custom"}
    assert smallest(testing.trust_models(algorithm, kinds=[kind])).name == names.get(kind, kind)


@pytest.mark.parametrize("kind", testing.VIEW_KINDS)
@given(few, data=st.data())
def test_views_are_of_their_kind_over_the_rationals(kind, data):
    view = data.draw(testing.views([kind], max_rows=4, max_steps=2, max_nodes=2, largest=2))
    A, B = view.dense_gradients_by_time(), view.dense_noise()
    assert A.shape[0] == B.shape[0] <= 4
    assert np.array_equal(A, A.round())
    assert np.array_equal(B, B.round())
    assert np.abs(B).max() <= 4 * 2**2
    deficient, leaks = (
        testing.rank(testing.rational(B)) < len(B),
        any(testing.exact_leaks(testing.rational(A), testing.rational(B))),
    )
    expected = {"regular": (False, False), "rank-deficient": (True, False), "leaking": (True, True)}
    assert kind == "integer" or (deficient, leaks) == expected[kind]


@given(
    few,
    C=testing.encoders(max_steps=5),
    N=testing.encoders(size=3, non_negative=True),
    Z=testing.integer_encoders(max_steps=4, largest=3),
)
def test_encoders_are_causal_with_a_positive_diagonal(C, N, Z):
    for matrix in (C, N, Z):
        assert_allclose(matrix, np.tril(matrix))
        assert (np.diagonal(matrix) >= 1).all()
    assert np.array_equal(8 * C, (8 * C).round())
    assert N.shape == (3, 3)
    assert (N >= 0).all()
    assert np.abs(Z).max() <= 3


@given(30, case=testing.factorizations(max_size=3))
def test_factorizations_carry_the_loss_of_their_encoder_and_a_true_bound(case):
    posed, factorization = case
    C, X = factorization.encoder, factorization.encoder.T @ factorization.encoder
    assert_allclose(C, np.tril(C))
    same = posed.classes[:, None] == posed.classes[None, :]
    reach = max(np.abs(X * same)[posed.classes == c].sum() for c in set(posed.classes))
    assert reach <= 1 + 1e-9  # rounding of sums of at most nine products
    # condition numbers of H and X stay below 1e4: about 1e-11 relative
    assert_allclose(factorization.objective, reach * np.trace(posed.error_gram @ np.linalg.inv(X)), rtol=1e-9)
    assert factorization.lower_bound <= factorization.objective * (1 + 1e-9)
    assert factorization.status in ("optimal", "fixed")
    assert factorization.status == "fixed" or factorization.gap <= 1e-4


def test_factorizations_are_of_the_kind_asked_for():
    status = {kind: smallest(testing.factorizations(kinds=[kind]))[1].status for kind in testing.FACTORIZATION_KINDS}
    assert status == {"given": "fixed", "optimal": "optimal"}


@given(
    150, part=testing.participations(max_steps=4, schemes=testing.ALL_SCHEMES), n=st.integers(1, 3),
    adjacency=st.sampled_from(ADJACENCIES), clip_norm=st.sampled_from([1.0, 0.1, 1e-3, 7.0]) | st.floats(1e-6, 1e6),
    d=st.integers(1, 3), data=st.data(),
)  # fmt: skip
def test_gradient_differences_stay_in_reach_of_one_record(part, n, adjacency, clip_norm, d, data):
    D = data.draw(testing.gradient_differences(part, n, adjacency=adjacency, clip_norm=clip_norm, dimension=d))
    assert D.shape == (part.num_steps * n, d)
    moved = np.argwhere(D.reshape(part.num_steps, n, d).any(axis=2))
    assert len({node for _, node in moved}) <= 1
    assert any({step for step, _ in moved} <= set(p.tolist()) for p in part.patterns())
    longest = (SHIFT[adjacency] * Fraction(clip_norm)) ** 2
    assert all(sum(Fraction(x) ** 2 for x in row) <= longest for row in D.tolist())


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_extreme_points_are_drawn(adjacency):
    of = testing.gradient_differences(record, 1, adjacency=adjacency, clip_norm=1.0, dimension=1, victim=0)
    shift = SHIFT[adjacency]
    for sign in (1, -1):
        D = smallest(of, lambda D, sign=sign: D[0, 0] * D[1, 0] == sign * shift**2)
        assert np.abs(D).tolist() == [[shift], [shift]]


def test_a_slanting_row_is_as_long_as_an_axis():
    of = testing.gradient_differences(Cyclic(1, 1), 1, adjacency="zero-out", clip_norm=0.1)
    D = smallest(of, lambda D: (D != 0).all() and np.linalg.norm(D) > 0.0999)
    length = sum(Fraction(x) ** 2 for x in D[0].tolist())
    assert Fraction(0.1) ** 2 * (1 - Fraction(1, 10**14)) < length <= Fraction(0.1) ** 2


def test_a_victim_of_ones_own():
    of = testing.gradient_differences(record, 3, adjacency="zero-out", victim=2)
    assert smallest(of, lambda D: D.any()).reshape(2, 3, 2).any(axis=(0, 2)).tolist() == [False, False, True]


@given(25, mechanism=testing.mechanisms(kinds=testing.ALL_SEEN_KINDS))
def test_mechanisms_meet_their_target_and_no_less(mechanism):
    assert mechanism.guarantee.trust in testing.ALL_SEEN_KINDS
    assert mechanism.guarantee.adjacency in ADJACENCIES
    target = min((0.5, 1.0, 2.0), key=lambda mu: abs(mu - mechanism.guarantee.mu))
    assert target * (1 - 1e-14) <= mechanism.guarantee.mu <= target
    shift = SHIFT[mechanism.guarantee.adjacency] * Fraction(mechanism.clip_norm)
    assert Fraction(target) * Fraction(mechanism.noise_std) >= Fraction(mechanism.guarantee.sensitivity) * shift
    if isinstance(mechanism.algorithm.noise, IndependentNoise):  # C = I: one record moves `epochs` unit columns
        assert_allclose(mechanism.guarantee.sensitivity, math.sqrt(mechanism.algorithm.participation.epochs), rtol=1e-9)


def test_mechanisms_with_a_receiver_have_two_nodes():
    mechanism = smallest(testing.mechanisms(["dp-dsgd"], kinds=["colluding"]))
    assert (mechanism.algorithm.num_nodes, mechanism.guarantee.trust) == (2, "colluding")


@given(few, case=testing.view_cases(max_nodes=3, max_steps=2))
def test_a_view_case_prints_its_algorithm_and_its_attacker(case):
    assert case.algorithm.name in testing.describe(case)
    assert testing.describe(case.model) in testing.describe(case)
    assert "array" not in testing.describe(case)
    assert case.A.shape[0] == case.B.shape[0] == len(case.round_of_row)


REFUSED = [
    (testing.linear_algorithms(["sgd"]), r"names must be some of none, .*, got \('sgd',\)"),
    (testing.linear_algorithms(["zip-dl"], kinds=["general"]), "zip-dl needs one of the kinds symmetric, singular"),
    (testing.mechanisms(["none"]), r"names must be some of dp-dsgd, .*, got"),
    (testing.trust_models(0), "num_nodes must be an integer >= 1"),
    (testing.participations(schemes=["weekly"]), "schemes must be some of single, cyclic"),
    (testing.participations(schemes=[]), "schemes must be some of single, cyclic"),
    (testing.participations(schemes=testing.OVERLAPPING, disjoint=True), "schemes must be some of single, cyclic"),
    (testing.views(["square"]), r"kinds must be some of regular, .*, got \('square',\)"),
    (testing.views(["rank-deficient"], max_rows=1), "max_rows must be an integer >= 2 for rank-deficient views, got 1"),
    (testing.factorizations(kinds=["best"]), "kinds must be some of given, optimal"),
    (testing.gossip_matrices(kinds=["lazy"]), "kinds must be some of symmetric"),
    (testing.gossip_matrices(max_nodes=1, kinds=["singular"]), "'singular' needs max_nodes >= 2"),
    (
        testing.gradient_differences(record, 3, adjacency="zero-out", victim=3),
        "victim must be below num_nodes=3, got 3",
    ),
    (testing.gradient_differences(record, 3, adjacency="swap"), "adjacency"),
    *(
        (testing.trust_models(of, kinds=kinds), r"kinds must be some of ldp, .* masks an algorithm instead")
        for of, kinds in [(1, ["pndp"]), (1, ["colluding"]), (3, ["masks"]), (3, ["lpd"]), (3, []), (algorithm, ["x"])]
    ),
]


@pytest.mark.parametrize(("strategy", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_drawn_is_refused(strategy, message):
    refuses(message, smallest, strategy)


@given(8, case=factorizations(max_size=3, kinds=["given"]))
def test_the_bound_of_a_given_encoder_is_below_the_optimum(case):
    posed, factorization = case
    assert factorization.lower_bound <= optimal_loss_reference(posed) * (
        1 + 1e-5
    )  # the reference solver's own accuracy
