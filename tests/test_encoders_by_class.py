"""Encoders by class of nodes, and noise from seeds in groups: orderings, sensitivities, what holders learn."""

import dataclasses
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from spatio_temporal_cases import KINDS, RING, SCHEME, half_lazy, sensitivities_squared, worst_loss
from vocabulary import ZERO_OUT, assume, dynamics_on, each, given, refuses, st

from mfdl import (
    Cyclic,
    ErrorWeights,
    InvalidInput,
    MinSeparation,
    Privacy,
    UnsupportedMechanism,
    algorithms,
    gossip,
    trust,
)
from mfdl.algorithms import mafalda, mafalda_classes, mafalda_l, noise_error, spatio_temporal_noise
from mfdl.dynamics import Dynamics
from mfdl.factorization import (
    NotConverged,
    factorize_classes,
    factorize_nodes,
    optimal_covariance,
    optimal_joint,
    optimal_kronecker,
    problem,
    solve_problem,
)
from mfdl.factorization.nodes import NodeFactorizations, degree_labels, evaluate_nodes
from mfdl.noise_scale import calibrate
from mfdl.objective import NoiseObjective
from mfdl.participation import ParticipationByNode, Single
from mfdl.privacy import sensitivity_by_victim
from mfdl.testing import brute_force_sensitivity, coalition_inverse_diagonal, connected_graphs

TOLERANCE = 1e-4
GRAPHS = ("florentine", "star:n=5", "path:n=4", "ring:n=5")
SCHEMES = (Cyclic(2, 4), Cyclic(4, 2), Cyclic(8, 1), Cyclic(1, 8), Single(8))
WEIGHTS = (ErrorWeights(), ErrorWeights("last:2:0.1"), ErrorWeights("all", "average"))
FLORENTINE = Dynamics(gossip.uniform("florentine"))
STAR = Dynamics(gossip.uniform("star:n=5"))


def mixed(num_nodes: int, *schemes) -> ParticipationByNode:
    return ParticipationByNode([schemes[u % len(schemes)] for u in range(num_nodes)])


def class_grams(dynamics, factorization, steps, **kwargs):
    """H of each class, summed by hand."""
    grams = list(NoiseObjective(dynamics, steps, **kwargs).over_steps_of_nodes())
    return [sum(grams[u] for u in np.flatnonzero(factorization.labels == c)) for c in range(len(factorization.nodes))]


# ---- classes ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("graphs", [*((graph,) for graph in GRAPHS), ("star:n=4", "path:n=4")])
def test_the_default_classes_are_the_nodes_of_one_degree_in_every_round(graphs):
    matrices = [gossip.uniform(graph) for graph in graphs]
    dynamics = Dynamics(gossip.sequence(matrices) if len(graphs) > 1 else matrices[0])
    degrees = list(zip(*([d for _, d in W.graph().degree()] for W in matrices), strict=True))
    labels = degree_labels(dynamics, len(graphs))
    assert all((labels[u] == labels[v]) == (degrees[u] == degrees[v]) for u in range(len(degrees)) for v in range(u))
    assert_array_equal(degree_labels(dataclasses.replace(dynamics, gossip_rounds=len(graphs)), 1), labels)
    if len(graphs) > 1:
        assert len(set(degree_labels(dynamics, 1).tolist())) == 2  # the star alone: the centre and the leaves


def test_nodes_of_a_class_share_an_encoder_and_nodes_of_two_participations_none():
    factorization = factorize_classes(STAR, mixed(5, Cyclic(2, 4), Cyclic(4, 2)))
    centre_first = [0 if d > 1 else 1 + u % 2 for u, (_, d) in enumerate(STAR.gossip.graph().degree())]
    assert len(factorization.nodes) == 3
    for u in range(5):
        for v in range(5):
            alike = centre_first[u] == centre_first[v]
            assert (factorization.labels[u] == factorization.labels[v]) == alike
            assert np.array_equal(factorization.encoder[u], factorization.encoder[v]) == alike
    given = factorize_classes(STAR, mixed(5, Cyclic(2, 4), Cyclic(4, 2)), labels=[7, 7, 7, 7, -1])
    assert given.labels.tolist() == [given.labels[0], given.labels[1]] * 2 + [given.labels[4]]
    assert len(set(given.labels.tolist())) == len(given.nodes) == 3


# ---- what it costs ---------------------------------------------------------------------------------------
@given(
    12, graph=st.sampled_from(GRAPHS), scheme=st.sampled_from(SCHEMES), weights=st.sampled_from(WEIGHTS), data=st.data()
)
def test_finer_classes_never_cost_more(graph, scheme, weights, data):
    dynamics = Dynamics(gossip.uniform(graph), momentum=data.draw(st.sampled_from([0.0, 0.5])))
    n = dynamics.num_nodes
    coarse = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    fine = [2 * c + data.draw(st.integers(0, 1)) for c in coarse]
    algorithm, some, more, each = (
        mafalda(dynamics, scheme, weights=weights).factorization,
        mafalda_classes(dynamics, scheme, labels=coarse, weights=weights).factorization,
        mafalda_classes(dynamics, scheme, labels=fine, weights=weights).factorization,
        mafalda_l(dynamics, scheme, weights=weights).factorization,
    )
    for cheaper, dearer in ((each, more), (more, some), (some, algorithm)):
        assert cheaper.objective <= dearer.objective * (1 + TOLERANCE)
        assert cheaper.lower_bound <= dearer.objective  # fewer encoders have a smaller choice
    for factorization in (some, more, each):
        assert factorization.lower_bound <= factorization.objective <= factorization.lower_bound * (1 + TOLERANCE)


def test_loss_bound_and_status_are_those_of_the_classes_together():
    factorization = factorize_classes(FLORENTINE, Cyclic(2, 4))
    assert isinstance(factorization, NodeFactorizations)
    grams = class_grams(FLORENTINE, factorization, 8)
    by_hand = sum(
        np.trace(H @ np.linalg.inv(of_class.encoder.T @ of_class.encoder))
        for H, of_class in zip(grams, factorization.nodes, strict=True)
    )
    assert_allclose(factorization.objective, by_hand, rtol=1e-9)
    alone = [
        solve_problem(dataclasses.replace(problem(FLORENTINE, Cyclic(2, 4)), error_gram=H), tolerance=1e-6).objective
        for H in grams
    ]
    assert_allclose(factorization.objective, sum(alone), rtol=2 * TOLERANCE)
    assert factorization.lower_bound <= sum(alone) * (1 + 1e-9)
    assert factorization.status == "optimal"
    assert factorization.iterations == sum(of_class.iterations for of_class in factorization.nodes)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("counted_models", ["post-average", "message"])
def test_the_loss_is_the_error_of_the_algorithm_it_makes(weights, counted_models):
    scheme = mixed(5, Cyclic(2, 4), Cyclic(4, 2), Cyclic(2, 4))
    for build in (mafalda_classes, mafalda_l):
        algorithm = build(STAR, scheme, weights=weights, counted_models=counted_models)
        assert_allclose(
            noise_error(algorithm, weights=weights, counted_models=counted_models).value,
            algorithm.factorization.objective,
            rtol=1e-9,
        )


def test_one_class_is_one_shared_encoder_and_classes_of_one_node_are_mafalda_l():
    scheme = Cyclic(2, 4)
    shared = factorize_classes(STAR, scheme, labels=np.zeros(5, dtype=int))
    assert_allclose(shared.encoder[0], mafalda(STAR, scheme).factorization.encoder, atol=1e-6)
    each = factorize_classes(STAR, scheme, labels=np.arange(5))
    assert_allclose(each.objective, mafalda_l(STAR, scheme).factorization.objective, rtol=TOLERANCE)
    assert_allclose(sum(class_grams(STAR, each, 8)), NoiseObjective(STAR, 8).over_steps(), rtol=1e-9)


# ---- sensitivity -----------------------------------------------------------------------------------------
@given(
    8, build=st.sampled_from([mafalda_l, mafalda_classes]), graph=st.sampled_from(GRAPHS[1:]),
    schemes=st.lists(st.sampled_from(SCHEMES), min_size=1, max_size=3),
)  # fmt: skip
def test_every_node_has_unit_sensitivity_under_its_own_participation(build, graph, schemes):
    dynamics = Dynamics(gossip.uniform(graph))
    scheme = mixed(dynamics.num_nodes, *schemes)
    algorithm = build(dynamics, scheme)
    losses = sensitivity_by_victim(algorithm, trust.LDP())
    assert len(losses) == dynamics.num_nodes
    for loss in losses:
        participation = scheme.at_node(loss.victim)
        # within a pattern the Gram is diagonal, so the signs of brute force attain the maximum over vectors
        assert_allclose(
            brute_force_sensitivity(algorithm.factorization.encoder[loss.victim], participation), 1.0, rtol=1e-9
        )
        assert loss.bound == "exact"
        assert 1 - 1e-9 <= loss.sensitivity_squared <= 1 + 1e-6
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)
    assert 1.0 <= calibrated.noise_std <= 1 + 1e-6
    assert_allclose(calibrated.objective, algorithm.factorization.objective, rtol=1e-6)


def test_less_participation_is_cheaper_for_the_node_that_has_it():
    """A node whose records join more often needs more noise; its neighbours' encoders stay as they are."""
    few, many = Cyclic(1, 8), Cyclic(4, 2)
    alike = factorize_nodes(STAR, few)
    one_more = factorize_nodes(STAR, ParticipationByNode([many, few, few, few, few]))
    assert one_more.nodes[0].objective > 1.5 * alike.nodes[0].objective
    assert_allclose([f.objective for f in one_more.nodes[1:]], [f.objective for f in alike.nodes[1:]], rtol=TOLERANCE)


# ---- edges and refusals ----------------------------------------------------------------------------------
@pytest.mark.parametrize("factorize", [factorize_nodes, factorize_classes])
def test_noise_that_no_counted_model_meets_is_independent_and_free(factorize):
    """On a ring of 7 the model of node 0 after 2 steps has met nodes 5, 6, 0, 1, 2 only."""
    dynamics = Dynamics(gossip.uniform("ring:n=7"))
    kwargs = {} if factorize is factorize_nodes else {"labels": range(7)}
    weights = ErrorWeights("all", np.eye(7)[0])
    factorization = factorize(dynamics, Cyclic(2, 1), weights=weights, **kwargs)
    assert [of_node.objective == 0 for of_node in factorization.nodes] == [
        False, False, False, True, True, False, False,
    ]  # fmt: skip
    assert_allclose(factorization.encoder[3], np.eye(2) / 2**0.5)
    assert factorization.status == "optimal"
    assert factorization.gap <= TOLERANCE
    assert any("reaches no counted model" in note for note in factorization.notes)
    for C in factorization.encoder:
        assert_allclose(brute_force_sensitivity(C, Cyclic(2, 1)), 1.0, rtol=1e-9)


@each(
    "schemes, labels, message",
    ([Cyclic(2, 2)] * 5, [0, 1], r"one integer per node, shape \(5,\), got shape \(2,\)"),
    ([Cyclic(2, 2)] * 5, [0.5] * 5, "of float64"),
    ([Cyclic(2, 2)] * 5, ["a"] * 5, "one integer per node"),
    ([Cyclic(2, 2)] * 4, None, "given for 4 nodes, but there are 5"),
    ([Cyclic(2, 2), MinSeparation(4, 2, 2)] * 2 + [Cyclic(2, 2)], None, "disjoint participation patterns"),
)
def test_labels_and_participations_that_no_encoder_can_be_made_for(schemes, labels, message):
    builds = [lambda *case: mafalda_classes(*case, labels=labels), *([mafalda_l] if labels is None else [])]
    for build in builds:
        refuses(message, build, STAR, ParticipationByNode(schemes), error=(InvalidInput, UnsupportedMechanism))


def test_a_class_that_stops_early_says_so():
    with pytest.raises(NotConverged):
        factorize_classes(FLORENTINE, Cyclic(2, 4), tolerance=1e-12, max_iterations=1)
    calls = []
    stopped = factorize_classes(
        FLORENTINE, Cyclic(2, 4), tolerance=1e-12, max_iterations=1, allow_stopped=True,
        progress=lambda: calls.append(1),
    )  # fmt: skip
    assert stopped.status == "stopped"
    assert len(calls) == len(stopped.nodes) == 5
    assert stopped.lower_bound <= stopped.objective


@each(
    "dynamics, scheme, weights",
    (STAR, mixed(5, Cyclic(2, 4), Cyclic(4, 2)), ErrorWeights()),
    (dynamics_on("path:n=4"), Cyclic(2, 1), ErrorWeights(target=[1, 0, 0, 0])),
)
def test_given_encoders_are_judged_under_each_nodes_own_participation(dynamics, scheme, weights):
    best = factorize_nodes(dynamics, scheme, weights=weights)
    grams = np.stack(list(NoiseObjective(dynamics, scheme.num_steps, weights=weights).over_steps_of_nodes()))
    bounds = [of_node.lower_bound for of_node in best.nodes]
    again = evaluate_nodes(grams, scheme, 3 * best.encoder, lower_bounds=bounds)
    assert_allclose(
        [of_node.objective for of_node in again.nodes], [of_node.objective for of_node in best.nodes], rtol=1e-9
    )
    assert_allclose([of_node.sensitivity for of_node in again.nodes], 1.0, rtol=1e-9)
    if (
        not weights.uniform_target
    ):  # two rounds do not reach node 0 from node 3: what no counted model meets costs nothing
        assert not grams[3].any()
        assert again.nodes[3].objective == 0.0


TRIPLES = [[u, (u + 1) % 5, (u + 2) % 5] for u in range(5)]


@st.composite
def grouped(draw):
    """(dynamics, participation, groups, q) with q < n; groups overlap and may leave nodes without a seed."""
    dynamics = Dynamics(half_lazy(draw(connected_graphs(3, 5))), momentum=draw(st.sampled_from([0.0, 0.5])))
    n = dynamics.num_nodes
    group = st.sets(st.integers(0, n - 1), min_size=2, max_size=3).map(sorted)
    groups = draw(st.none() | st.lists(group, min_size=1, max_size=4))
    return dynamics, draw(st.sampled_from([Cyclic(2, 2), Cyclic(1, 3), Cyclic(3, 1)])), groups, draw(st.integers(1, 2))


@given(12, case=grouped())
def test_every_coalition_is_held_off_and_nothing_is_wasted(case):
    """Against each set of at most q nodes, one by one; the library's accountant and R by hand agree."""
    dynamics, scheme, groups, q = case
    assume(q < dynamics.num_nodes)
    factorization = optimal_kronecker(dynamics, scheme, groups=groups, coalition_size=q)
    assert factorization.coalition_size == q
    algorithm = spatio_temporal_noise(dynamics, scheme, factorization)
    space, X = factorization.space, factorization.encoder.T @ factorization.encoder
    over_nodes = coalition_inverse_diagonal(space.private_variance, space.parts, space.groups, dynamics.num_nodes, q)
    least, most = sensitivities_squared(X, scheme, 1)[0]
    accounted = max(worst_loss(algorithm, trust.Coalitions(size)) for size in range(q + 1))
    assert over_nodes * least * (1 - 1e-8) <= accounted <= over_nodes * most * (1 + 1e-6)
    assert 1 - 1e-3 <= accounted <= 1 + 1e-6
    assert_allclose(noise_error(algorithm).value * factorization.sensitivity**2, factorization.objective, rtol=1e-9)
    alone = algorithms.mafalda(dynamics, scheme).factorization.objective  # seeds left unused: every node for itself
    halves = (
        scheme.epochs
        * optimal_covariance(dynamics, horizon=scheme.num_steps, groups=groups, coalition_size=q).objective
    )
    assert factorization.objective <= min(alone, halves) * (1 + 2e-3)
    assert factorization.lower_bound <= optimal_joint(dynamics, scheme).objective * (1 + 1e-9)
    assert factorization.lower_bound <= factorization.objective


def test_seeds_of_three_help_against_single_insiders():
    """On a ring the triples u, u + 1, u + 2 leave every node a seed that a given other node lacks."""
    factorization = optimal_kronecker(RING, SCHEME, groups=TRIPLES, coalition_size=1)
    alone = algorithms.mafalda(RING, SCHEME).factorization.objective
    assert factorization.objective < 0.99 * alone
    assert (
        factorization.objective
        < 0.75 * SCHEME.epochs * optimal_covariance(RING, horizon=6, groups=TRIPLES, coalition_size=1).objective
    )
    assert factorization.status == "stationary"
    assert 0 < factorization.space.private_variance < 0.9
    assert {frozenset(group) for group in factorization.space.groups} == {frozenset(group) for group in TRIPLES}
    outsider = optimal_kronecker(RING, SCHEME, groups=TRIPLES)
    assert outsider.objective < 0.9 * factorization.objective
    algorithm = spatio_temporal_noise(RING, SCHEME, outsider)
    assert worst_loss(algorithm) <= 1 + 1e-6 < 1.1 < worst_loss(algorithm, trust.Coalitions(1))


def test_pairs_on_a_complete_graph_against_one_and_two_insiders():
    complete = dynamics_on("complete:n=5")
    alone = algorithms.mafalda(complete, SCHEME).factorization.objective
    factorization = [optimal_kronecker(complete, SCHEME, coalition_size=q) for q in (1, 2)]
    assert_allclose(
        [solution.objective / alone for solution in factorization], [1 / 4, 1 / 3], rtol=1e-3
    )  # n - q nodes hide together
    for solution, q in zip(factorization, (1, 2), strict=True):
        assert solution.coalition_size == q
        algorithm = spatio_temporal_noise(complete, SCHEME, solution)
        assert_allclose(worst_loss(algorithm, trust.Coalitions(q)), 1.0, rtol=1e-6)
        assert worst_loss(algorithm, trust.Coalitions(q + 1)) > 1.2


def test_one_seed_for_all_is_nothing_to_who_holds_it():
    """Against insiders it is as good as no seed: private noise alone is used, or their loss is infinite."""
    everybody = [list(range(5))]
    factorization = optimal_kronecker(RING, SCHEME, groups=everybody, coalition_size=1)
    assert any("shared seeds cannot help" in note for note in factorization.notes)
    assert_allclose(factorization.space.private_variance, 1.0, rtol=1e-9)
    assert_allclose(factorization.objective, algorithms.mafalda(RING, SCHEME).factorization.objective, rtol=1e-3)
    for kind, solve in KINDS.items():
        algorithm = spatio_temporal_noise(RING, SCHEME, solve(RING, SCHEME))
        inside = worst_loss(algorithm, trust.Coalitions(1))
        if kind == "kronecker":  # the least eigenvalue of R is kept private
            s = algorithm.factorization.space.private_variance
            assert_allclose(inside, 1 / s, rtol=1e-6)
            assert inside > 1.2
        else:
            assert math.isinf(inside)
