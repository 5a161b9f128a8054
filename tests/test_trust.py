"""Trust models as masks, by hand on small graphs; views from arrays, sparse matrices and operators."""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.sparse.linalg import aslinearoperator

import mfdl
from mfdl import algorithms, archive, general_sensitivity, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.factorization import square_root_encoder
from mfdl.participation import Cyclic, EveryStep, Explicit
from mfdl.privacy.forms import view_grams
from mfdl.privacy.gram_sensitivity import sensitivities
from mfdl.privacy.victim_sensitivity import sensitivity_by_victim
from mfdl.testing import gossip_matrices
from mfdl.testing.oracles import (
    exact_leaks,
    exact_run,
    exact_view,
    exact_view_gram,
    gossip_messages,
    largest_signed_sum,
)
from mfdl.testing.strategies import integer_views
from mfdl.testing.strategies.graphs import dyadic_gossip
from mfdl.trust import TrustModel, neighbourhood
from mfdl.trust.view import Knowledge, View

MH = gossip.metropolis_hastings
PATH = Dynamics(MH("path:n=4"), 0.5)  # 0 - 1 - 2 - 3
DP = algorithms.dp_dsgd(PATH, EveryStep(2))
# columns: four private parts, then the edges 01, 12, 23
DECOR = algorithms.decor(PATH, EveryStep(2))
ZIP = algorithms.zip_dl(Dynamics(MH("path:n=3")), EveryStep(2))  # messages 00 01, 10 11 12, 21 22
FROM_MASKS = TrustModel.from_masks


def masks(model, one, victim=0):
    """seen, known gradients, known noise as 0/1 rows of one step, the same in every step."""
    k = model.knowledge(one, victim)
    for mask in (k.seen, k.known_gradients, k.known_noise):
        assert (mask == mask[0]).all()
    return tuple("".join(str(int(x)) for x in mask[0]) for mask in (k.seen, k.known_gradients, k.known_noise))


@pytest.mark.parametrize(
    ("model", "dp", "decor"),
    [
        (trust.LDP(), ("1111", "0000", "0000"), ("1111", "0000", "0000111")),
        (trust.PNDP([0]), ("0100", "1000", "1000"), ("0100", "1000", "1000100")),
        (trust.PNDP([1]), ("1010", "0100", "0100"), ("1010", "0100", "0100110")),
        (trust.PNDP([0, 3]), ("0110", "1001", "1001"), ("0110", "1001", "1001101")),
        (trust.PNDP([1, 2]), ("1111", "0110", "0110"), ("1111", "0110", "0110111")),
        (trust.Eavesdropper(), ("1111", "0000", "0000"), ("1111", "0000", "0000000")),
        (trust.Colluding((2,)), ("1111", "0010", "0010"), ("1111", "0010", "0010011")),
        (trust.FullCollusion(), ("1111", "0111", "0111"), ("1111", "0111", "0111111")),
        (trust.ReleasedOnly(), ("0000", "0000", "0000"), ("0000", "0000", "0000000")),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_masks_by_hand(model, dp, decor):
    assert masks(model, DP) == dp
    assert masks(model, DECOR) == decor


def test_zip_dl_masks_list_single_messages():
    assert ZIP.message_sender.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert masks(trust.Eavesdropper(), ZIP)[0] == "0110110"
    assert masks(trust.PNDP([1]), ZIP) == ("0100010", "010", "0011100")
    assert masks(trust.PNDP([0]), ZIP) == ("0010000", "100", "1100000")
    own = algorithms.zip_dl(Dynamics(MH("path:n=3")), EveryStep(2), self_messages=True)
    assert masks(trust.PNDP([1]), own)[0] == "0101010"
    assert masks(trust.LDP(), own)[0] == "1111111"


def test_a_seed_that_everybody_holds_protects_from_outsiders_only():
    one = algorithms.spatial_covariance(PATH, EveryStep(2), np.diag([2.0, 1, 0, 0]), groups=[[0, 1]])
    assert masks(trust.Eavesdropper(), one)[2] == "00"
    assert masks(trust.LDP(), one)[2] == "11"
    assert masks(trust.PNDP([0]), one)[2] == "11"
    assert masks(trust.PNDP([3]), one)[2] == "00"
    alone = algorithms.spatial_covariance(PATH, EveryStep(2), np.diag([0.0, 0, 1, 0]), groups=[[2]])
    assert masks(trust.LDP(), alone)[2] == "0"
    with pytest.raises(InvalidInput, match="must be zero outside the group"):
        algorithms.spatial_covariance(PATH, EveryStep(2), np.eye(4), groups=[[2]])


def test_receivers_follow_gossip_in_time():
    """Rounds of a time-varying graph reach other nodes; K rounds of one step too."""
    W = gossip.sequence([MH("path:n=3"), MH("complete:n=3")])
    k = trust.PNDP([0]).knowledge(algorithms.dp_dsgd(Dynamics(W), EveryStep(4)), 1)
    assert k.seen.astype(int).tolist() == [[0, 1, 0], [0, 1, 1]] * 2
    k = trust.PNDP([0]).knowledge(algorithms.muffliato(Dynamics(W), EveryStep(2), gossip_rounds=2), 1)
    assert k.seen.astype(int).tolist() == [[0, 1, 0], [0, 1, 1]] * 2
    assert k.known_noise.shape == (2, 3)


def test_one_way_links_are_one_way():
    W = gossip.from_array(np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]))  # 0 hears 1 hears 2 hears 0
    one = algorithms.dp_dsgd(Dynamics(W), EveryStep(1))
    assert [masks(trust.PNDP([a]), one)[0] for a in range(3)] == ["010", "001", "100"]


def test_central_sees_the_average_of_each_round():
    view = trust.Central().view(DP, release="none")
    messages, _ = gossip_messages(PATH.gossip, 2, rate=0.5)
    assert_allclose(view.dense_gradients_by_time(), messages.reshape(2, 4, 8).mean(axis=1), atol=1e-14)
    assert_allclose(view.dense_noise(), messages.reshape(2, 4, 8).mean(axis=1), atol=1e-14)


# ---- released models -----------------------------------------------------------------------------------------------


def test_released_models_are_further_rows():
    messages, final = gossip_messages(PATH.gossip, 2, rate=0.5)
    seen = messages.reshape(2, 4, 8)[:, 1]
    for release, rows in (("none", final[:0]), ("average", final.mean(axis=0)[None]), ("all", final)):
        view = trust.PNDP([0]).view(DP, 1, release=release)
        assert view.release == release
        assert_allclose(view.dense_gradients_by_time(), np.vstack([seen, rows]), atol=1e-14)
        hidden = np.vstack([seen, rows])
        hidden[:, [0, 4]] = 0  # the attacker knows its noise
        assert_allclose(view.dense_noise(), hidden, atol=1e-14)
    assert trust.PNDP([0]).view(DP, 1).release == "all"
    assert trust.ReleasedOnly().view(DP, 1).release == "all"
    assert trust.Central().view(DP).release == "all"
    assert FROM_MASKS(release="average").view(DP).release == "average"


def test_where_all_messages_are_seen_models_add_nothing():
    for model in (trust.LDP(), trust.Eavesdropper(), trust.Colluding((1,)), trust.FullCollusion()):
        for release in (None, "none", "all"):
            assert model.view(DP, 0, release=release).release == "not applicable"
            assert model.view(DP, 0, release=release).gradients.shape[0] == 8
    # unless some messages are never sent: then they do
    assert trust.LDP().view(ZIP, 0).release == "all"
    assert trust.LDP().view(ZIP, 0).gradients.shape[0] == 2 * 4 + 3
    assert trust.LDP().view(ZIP, 0, release="none").gradients.shape[0] == 2 * 4


def test_not_applicable_is_no_way_to_hide_released_models():
    class Silent(trust.PNDP):
        default_release = "not applicable"

    assert trust.PNDP([0]).view(DP, 1, release="not applicable").release == "all"
    assert Silent([0]).view(DP, 1).release == "all"
    for bad in ("some", "ALL", ""):
        with pytest.raises(InvalidInput, match="release must be one of"):
            trust.PNDP([0]).view(DP, 1, release=bad)


# ---- nodes --------------------------------------------------------------------------------------------------------


def test_nodes_by_index_label_and_number():
    one = algorithms.dp_dsgd(Dynamics(MH("florentine")), EveryStep(1))
    assert trust.nodes_of(one, ["Medici", "#0", 2, "Medici"]) == (0, 1, 2)
    assert masks(trust.PNDP(["Medici"]), one) == masks(trust.PNDP([1]), one) == masks(trust.PNDP(["#1"]), one)
    relabelled = nx.relabel_nodes(nx.path_graph(3), {0: 10, 1: 20, 2: 0})
    numbers = algorithms.dp_dsgd(Dynamics(MH(relabelled)), EveryStep(1))
    labels = list(numbers.dynamics.gossip.labels)
    assert trust.nodes_of(numbers, ["20"]) == (labels.index(20),)  # text is a label,
    assert trust.nodes_of(numbers, [0]) == (0,)  # a number an index
    for bad in (["Nobody"], ["#15"], [15], [-1], ["#-1"], ["#"], ["#²"], [1.5]):
        with pytest.raises(InvalidInput, match=r"node|index"):
            trust.nodes_of(one, bad)


@pytest.mark.parametrize("bad", [[], "Medici", ()])
def test_pndp_needs_a_list_of_attackers(bad):
    with pytest.raises(InvalidInput, match="list of at least one node"):
        trust.PNDP(bad)


def test_pndp_needs_receivers():
    rounds = tuple(dataclasses.replace(r, receivers=None) for r in DP.rounds)
    with pytest.raises(UnsupportedMechanism, match="receives"):
        trust.PNDP([0]).knowledge(dataclasses.replace(DP, rounds=rounds), 1)


# ---- coalitions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", range(4))
def test_members_of_coalitions(q):
    members = list(trust.Coalitions(q).members(DP))
    assert [getattr(m, "colluders", ()) for m, _ in members] == list(itertools.combinations(range(4), q))
    for model, victims in members:
        assert set(victims) == set(range(4)) - set(getattr(model, "colluders", ()))


def test_members_of_full_collusion_and_of_simple_models():
    assert [(m.colluders, v) for m, v in trust.FullCollusion().members(DP)] == [
        (tuple(u for u in range(4) if u != victim), (victim,)) for victim in range(4)
    ]
    ((model, victims),) = trust.PNDP([0, 2]).members(DP)
    assert (model, victims) == (trust.PNDP([0, 2]), (1, 3))


def test_coalitions_refuse():
    with pytest.raises(InvalidInput, match="below num_nodes=4"):
        list(trust.Coalitions(4).members(DP))
    with pytest.raises(InvalidInput, match="size"):
        trust.Coalitions(-1)
    with pytest.raises(UnsupportedMechanism, match="no single view"):
        trust.Coalitions(1).view(DP, 0)
    many = algorithms.dp_dsgd(Dynamics(MH("ring:n=40")), EveryStep(1))
    with pytest.raises(UnsupportedMechanism, match="FullCollusion"):
        list(trust.Coalitions(10).members(many))


# ---- own masks ----------------------------------------------------------------------------------------------------


def test_masks_of_all_shapes():
    tapped = np.array([False, True, True, False])
    for given_mask in (tapped, np.tile(tapped, (2, 1)), tapped.tolist(), lambda one: tapped):
        assert masks(FROM_MASKS(seen=given_mask), DP) == ("0110", "0000", "0000")
    model = FROM_MASKS(known_gradients=tapped, known_noise=np.eye(2, 4, dtype=bool))
    knowledge = model.knowledge(DP, 0)
    assert knowledge.known_noise.astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert not knowledge.seen.any()
    assert masks(FROM_MASKS(), DP) == ("0000",) * 3


@pytest.mark.parametrize("name", ["seen", "known_gradients", "known_noise"])
@pytest.mark.parametrize(
    "bad", [np.ones(3, dtype=bool), np.ones((3, 4), dtype=bool), np.ones(4), np.ones((1, 4), dtype=bool), True]
)
def test_masks_of_the_wrong_shape_or_type(name, bad):
    with pytest.raises(InvalidInput, match=f"{name} must be a boolean mask of shape"):
        FROM_MASKS(**{name: bad}).view(DP)


def test_masks_may_depend_on_the_victim():
    def others(one, victim):
        return np.arange(one.num_nodes) != victim

    model = FROM_MASKS(seen=lambda one: np.ones(4, dtype=bool), known_gradients=others, known_noise=others, name="all")
    members = list(model.members(DECOR_LOCAL))
    assert [victims for _, victims in members] == [(0,), (1,), (2,), (3,)]
    for (member, (victim,)), (other, _) in zip(members, trust.FullCollusion().members(DECOR_LOCAL), strict=True):
        assert member.name == "all"
        assert masks(member, DECOR_LOCAL, victim) == masks(other, DECOR_LOCAL)
    own = sensitivity_by_victim(DECOR_LOCAL, model)
    full = sensitivity_by_victim(DECOR_LOCAL, trust.FullCollusion())
    assert_allclose([x.sensitivity_squared for x in own], [x.sensitivity_squared for x in full], rtol=1e-12)


DECOR_LOCAL = algorithms.decor(PATH, EveryStep(2), sigma_cor=0.0)


def test_a_default_argument_is_no_victim():
    """`lambda one, taps=taps: ...` is how masks are bound in loops."""
    for wanted in (1, 3):
        model = FROM_MASKS(seen=lambda one, taps=wanted: np.arange(4) == taps)
        ((member, victims),) = model.members(DP)
        assert victims == (0, 1, 2, 3)
        assert member.knowledge(DP, 0).seen[0].argmax() == wanted
    named = FROM_MASKS(seen=lambda one, victim=0: np.arange(4) == victim)
    assert [m.knowledge(DP, u).seen[0].argmax() for m, (u,) in named.members(DP)] == [0, 1, 2, 3]


# ---- comparing ----------------------------------------------------------------------------------------------------


def test_who_sees_at_least_what():
    everything = [trust.Colluding((0,)), trust.PNDP([0]), trust.ReleasedOnly(), trust.Central(), trust.Eavesdropper()]
    for weaker in everything:
        assert trust.Colluding((0,)).sees_at_least(weaker, DP)
    assert trust.Colluding((0, 1)).sees_at_least(trust.Colluding((0,)), DP)
    assert not trust.Colluding((0,)).sees_at_least(trust.Colluding((1,)), DP)
    assert not trust.Eavesdropper().sees_at_least(trust.PNDP([0]), DP)  # knows no noise
    assert not trust.PNDP([0]).sees_at_least(trust.Central(), DP)
    assert trust.Central().sees_at_least(trust.ReleasedOnly(), DP)
    assert trust.Central().sees_at_least(trust.Central(), DP)
    assert not trust.Central().sees_at_least(trust.PNDP([0]), DP)
    assert trust.LDP().sees_at_least(trust.Eavesdropper(), DECOR)
    assert not trust.Eavesdropper().sees_at_least(trust.LDP(), DECOR)


def test_released_models_count_in_comparisons():
    silent = FROM_MASKS(seen=np.array([False, True, False, False]), release="none")
    assert not silent.sees_at_least(trust.ReleasedOnly(), DP)
    assert FROM_MASKS(release="all").sees_at_least(FROM_MASKS(release="average"), DP)
    assert not FROM_MASKS(release="average").sees_at_least(trust.PNDP([0]), DP)
    assert trust.PNDP([0]).sees_at_least(silent, DP)
    assert trust.LDP().sees_at_least(trust.ReleasedOnly(), DP)


# ---- bare views ---------------------------------------------------------------------------------------------------


@examples(40)
@given(case=integer_views())
def test_arrays_sparse_matrices_and_operators_are_one_view(case):
    A, B = case
    kinds = [np.asarray, sp.csr_array, sp.coo_array, aslinearoperator, lambda M: M.astype(int).tolist()]
    found = [view_grams(View(make(A), make(B)), [0])[0] for make in kinds]
    for gram in found[1:]:
        assert_allclose(gram.matrix, found[0].matrix, rtol=1e-10, atol=1e-12)
        assert (gram.leaks == found[0].leaks).all()


@pytest.mark.parametrize(
    ("A", "B", "options", "text"),
    [
        (np.eye(2), np.eye(3), {}, "same number of rows"),
        (np.eye(2), np.eye(2), {"num_nodes": 3}, "steps \\* num_nodes=3"),
        (np.eye(2), np.eye(2), {"num_nodes": 0}, "num_nodes"),
        (np.array([[np.nan]]), np.eye(1), {}, "finite"),
        (np.eye(1), np.array([[np.inf]]), {}, "finite"),
        (np.eye(1), sp.csr_array([[np.inf]]), {}, "finite"),
        (np.ones(3), np.ones(3), {}, "gradients"),
        (np.eye(2), np.eye(2), {"known_gradients": np.ones(3, dtype=bool)}, "known_gradients must be a boolean mask"),
        (np.eye(2), np.eye(2), {"known_combinations": np.ones((1, 3))}, "must have 2 columns"),
        (np.zeros((2, 0)), np.eye(2), {}, "columns"),
    ],
)
def test_a_view_that_does_not_fit(A, B, options, text):
    with pytest.raises(InvalidInput, match=text):
        View(A, B, **options)


# ---- known combinations (Lemma 11 and its side condition) ------------------------------------------------------------


def losses(view, victims, scheme):
    return [s.squared for s in sensitivities(view_grams(view, victims), scheme, nodes=victims)]


def test_known_combinations_touch_or_leave_alone():
    """Three nodes, two steps; K G = g_0(0) + g_1(0) is known."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((6, 6))
    B = A + 0.1 * rng.standard_normal((6, 6))
    K = np.zeros((1, 6))
    K[0, [0, 1]] = 1.0
    plain = losses(View(A, B, num_nodes=3), [0, 1, 2], EveryStep(2))
    for make in (np.asarray, sp.csr_array, aslinearoperator):
        known = losses(View(A, B, num_nodes=3, known_combinations=make(K)), [0, 1, 2], EveryStep(2))
        assert known[:2] == [math.inf, math.inf]  # a record that moves K G is not covered by the reduction
        assert known[2] == plain[2]
    # a record that takes part in step 1 only does not move K G
    later = losses(View(A, B, num_nodes=3, known_combinations=K), [0, 1, 2], Explicit([[1]], 2))
    assert later == losses(View(A, B, num_nodes=3), [0, 1, 2], Explicit([[1]], 2))
    nothing = View(A, B, num_nodes=3, known_combinations=np.zeros((2, 6)))
    assert losses(nothing, [0, 1, 2], EveryStep(2)) == plain


def test_an_attacker_that_is_the_victim_is_infinite_not_zero():
    """The reduction of Lemma 11 would report 0 for it."""
    view = trust.PNDP([1]).view(DP, 0)
    assert losses(view, [0, 1], EveryStep(2))[1] == math.inf
    asked = {x.victim: x for x in sensitivity_by_victim(DP, trust.PNDP([1]), victims=[0, 1])}
    assert asked[1].sensitivity_squared == asked[1].adaptive_sensitivity_squared == math.inf
    assert "one of the attackers" in asked[1].non_adaptive_sensitivity.why
    assert asked[0].sensitivity_squared < math.inf


@examples(30)
@given(seed=st.integers(0, 999), node=st.integers(0, 2))
def test_known_gradients_of_others_change_nothing(seed, node):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((2, 4, 6))
    known = np.zeros((2, 3), dtype=bool)
    known[:, node] = True
    others = [u for u in range(3) if u != node]
    assert losses(View(A, B, num_nodes=3, known_gradients=known), others, EveryStep(2)) == losses(
        View(A, B, num_nodes=3), others, EveryStep(2)
    )


def test_the_same_attackers_with_every_message_seen_see_no_less():
    for model in (trust.PNDP([0]), trust.AnyReceiver(), trust.Coalitions(2), trust.Central()):
        seen, own = (
            {loss.victim: loss for loss in sensitivity_by_victim(DP, m)} for m in (model.all_messages(), model)
        )
        assert seen.keys() == own.keys()
        assert all(seen[u].sensitivity_squared >= own[u].sensitivity_squared * (1 - 1e-9) for u in own)
        assert all(loss.adaptive for loss in seen.values())


# ---- A, B and C of a view -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [trust.Eavesdropper(), trust.Colluding((2,)), trust.PNDP([0]), trust.PNDP([0, 3])])
@pytest.mark.parametrize("build", [algorithms.dp_dsgd, algorithms.anti_pgd, algorithms.decor, algorithms.muffliato])
def test_a_view_shows_its_factorization(build, model):
    """Theorem 5: A = B C without the columns that are known, and X_u = C_u^T B^+ B C_u; so the numbers agree."""
    one = build(PATH, EveryStep(2))
    view = model.view(one, 1, release="none")
    A, B, C = (matrix.dense() for matrix in (view.A, view.B, view.C))
    assert_allclose(B @ C, A, atol=1e-12)
    assert not A[:, view.known_gradients.ravel()].any()
    assert not B[:, view.knowledge.known_noise.ravel()].any()
    unknown = ~view.known_gradients.ravel()
    assert_allclose(A[:, unknown], view.dense_gradients_by_time()[:, unknown])
    worst = max(loss.sensitivity_squared for loss in sensitivity_by_victim(one, model, release="none"))
    assert general_sensitivity(C, B, EveryStep(2), num_nodes=4).squared == pytest.approx(worst, rel=1e-6)


def test_node_local_noise_has_its_encoder_without_the_attacker():
    encoder = np.array([[1.0, 0.0], [0.5, 1.0]])
    one = algorithms.mf_dsgd(PATH, EveryStep(2), encoder)
    C = trust.PNDP([0]).view(one, 1, release="none").C
    expected = np.kron(encoder, np.diag([0.0, 1, 1, 1]))
    assert_allclose(C.dense(), expected, atol=1e-12)
    assert C.blocks[1] == (4, 4)
    assert_allclose(trust.Eavesdropper().view(one, 1).C.dense(), one.workload().C.dense())


def test_no_encoder_where_a_gradient_shows_without_noise():
    own = algorithms.zip_dl(Dynamics(MH("path:n=3")), EveryStep(2), self_messages=True)
    with pytest.raises(UnsupportedMechanism, match=r"no C gives A = B C here.*without noise, so the loss"):
        trust.Eavesdropper().view(own, 1).C  # noqa: B018
    with pytest.raises(UnsupportedMechanism, match="no C gives"):
        View(np.eye(2), np.zeros((2, 0))).C  # noqa: B018
    bare = View([[1, 2], [2, 4]], [[1, 0], [2, 0]], num_nodes=2, known_gradients=[False, True])
    assert bare.C.dense().tolist() == [[1, 0], [0, 0]]


# ---- combinations of messages ----------------------------------------------------------------------------------------


def exactly(one, rows, known_noise, release):
    """(A, B) of combinations, over the rationals."""
    sent = np.broadcast_to(one.transmitted, (len(one.rounds), one.messages_per_round))
    fractions = [[Fraction(x) for x in row] for row in rows.tolist()]
    return exact_view(exact_run(one), sent, known_noise, release=release, combination=fractions)


@examples(60)
@given(data=st.data(), release=st.sampled_from(["none", "average", "all"]))
def test_losses_to_who_sees_combinations_are_never_below_the_rational_ones(data, release):
    W = data.draw(dyadic_gossip(max_nodes=4))
    build = data.draw(st.sampled_from([algorithms.dp_dsgd, algorithms.anti_pgd, algorithms.muffliato]))
    one, n = build(Dynamics(W), EveryStep(2)), W.num_nodes
    entries = data.draw(st.lists(st.integers(-2, 2), min_size=2 * n, max_size=2 * n))
    rows, seen = np.reshape(entries, (2, n)), np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    known = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    make = data.draw(st.sampled_from([np.asarray, sp.csr_array, lambda x: lambda algorithm: x]))
    model = FROM_MASKS(seen=seen, combinations=make(rows.astype(float)), known_noise=known, release=release)
    every = np.vstack([rows, np.eye(n)[seen]])
    A, B = exactly(one, every, np.flatnonzero(np.tile(known, 2)).tolist(), release)
    leaks, X = exact_leaks(A, B), exact_view_gram(A, B)
    for loss in sensitivity_by_victim(one, model):
        own = [loss.victim, n + loss.victim]
        if any(leaks[column] for column in own):
            assert loss.sensitivity_squared == math.inf
            continue
        exact = largest_signed_sum([[X[s][t] for t in own] for s in own])
        assert Fraction(loss.sensitivity_squared) >= exact * (1 - Fraction(1, 10**9))
        if loss.bound == "exact":
            assert loss.sensitivity_squared <= float(exact) * (1 + 2e-6) + 1e-12
        assert loss.adaptive_sensitivity_squared >= float(exact) * (1 - 1e-9)


def test_unit_rows_are_messages_and_their_mean_is_the_central_model():
    for release in ("none", "all"):
        for rows, other in (
            (np.eye(4)[[1, 3]], FROM_MASKS(seen=np.array([False, True, False, True]), release=release)),
            (np.ones((1, 4)), trust.Central()),
        ):
            model = FROM_MASKS(combinations=rows, release=release)
            pairs = zip(
                sensitivity_by_victim(DP, model), sensitivity_by_victim(DP, other, release=release), strict=True
            )
            for loss, expected in pairs:
                assert loss.sensitivity_squared == pytest.approx(expected.sensitivity_squared, rel=1e-6)


def test_who_sees_every_message_sees_all_combinations():
    summed = FROM_MASKS(combinations=np.ones((1, 4)), release="none")
    assert trust.Eavesdropper().sees_at_least(summed, DP)
    assert not summed.sees_at_least(trust.Eavesdropper(), DP)
    assert not FROM_MASKS(seen=np.array([True, True, True, False]), release="none").sees_at_least(summed, DP)
    two = FROM_MASKS(combinations=np.array([[1.0, 1, 0, 0]]), release="none")
    assert FROM_MASKS(seen=np.array([True, True, False, False]), release="none").sees_at_least(two, DP)
    assert not summed.sees_at_least(two, DP)
    assert summed.fingerprint(DP) != two.fingerprint(DP)
    by_victim = FROM_MASKS(combinations=lambda algorithm, victim: np.eye(4)[[victim]], release="none")
    assert [loss.sensitivity_squared for loss in sensitivity_by_victim(DP, by_victim)] != [0.0] * 4


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"combinations": np.ones((1, 3))}, "a column for each of 4 messages"),
        ({"combinations": np.ones(4)}, "combinations must have 2 dimensions"),
        ({"combinations": [[np.inf, 0, 0, 0]]}, "combinations must be finite"),
        (
            {"combinations": np.ones((1, 4)), "seen": np.eye(2, 4, dtype=bool)},
            "seen must be the same mask in every round",
        ),
    ],
)
def test_combinations_that_do_not_fit(given, text):
    with pytest.raises(InvalidInput, match=text):
        sensitivity_by_victim(DP, FROM_MASKS(**given))


# ---- secure sums ----------------------------------------------------------------------------------------------------


def test_sums_are_those_of_the_receivers():
    """Path 0 - 1 - 2 - 3 with Metropolis weights: 1/3 each inside, from and to the ends too."""
    third = 1 / 3
    all_sums = trust.SecureSum().knowledge(DP, 0).combination.toarray()
    assert_allclose(all_sums, third * np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]))
    of_one = trust.SecureSum([1]).knowledge(DP, 0)
    assert_allclose(of_one.combination.toarray(), all_sums[[1]])
    assert of_one.known_gradients[0].tolist() == of_one.known_noise[0].tolist() == [False, True, False, False]
    messages = trust.SecureSum([0]).knowledge(ZIP, 1).combination.toarray()  # 00 01, 10 11 12, 21 22
    assert np.flatnonzero(messages[0]).tolist() == [2]


@examples(40)
@given(W=dyadic_gossip(max_nodes=4), attacked=st.booleans(), steps=st.integers(1, 2))
def test_a_secure_sum_shows_no_more_than_the_neighbourhood_and_no_less_than_the_rational_truth(W, attacked, steps):
    one, n = algorithms.dp_dsgd(Dynamics(W), EveryStep(steps)), W.num_nodes
    model = trust.SecureSum([0] if attacked else [])
    summed = {loss.victim: loss for loss in sensitivity_by_victim(one, model, release="none")}
    sums = model.knowledge(one, 1).combination.toarray()
    known = [t * n for t in range(steps)] if attacked else []
    A, B = exactly(one, sums, known, "none")
    leaks, X = exact_leaks(A, B), exact_view_gram(A, B)
    for u, loss in summed.items():
        own = [t * n + u for t in range(steps)]
        if any(leaks[column] for column in own):
            assert loss.sensitivity_squared == math.inf
            continue
        exact = float(largest_signed_sum([[X[s][t] for t in own] for s in own]))
        assert exact * (1 - 1e-9) <= loss.sensitivity_squared <= exact * (1 + 2e-6) + 1e-12
        assert loss.adaptive_sensitivity_squared >= exact * (1 - 1e-9)
    plain = trust.PNDP([0]) if attacked else trust.Eavesdropper()
    for loss in sensitivity_by_victim(one, plain, release="none"):
        assert summed[loss.victim].sensitivity_squared <= loss.sensitivity_squared * (1 + 1e-6)


def test_secure_sums_need_the_same_messages_in_every_round():
    for one in (
        algorithms.gradient_tracking(PATH, EveryStep(2)),
        algorithms.delayed_dsgd(PATH, EveryStep(2)),
        algorithms.dp_dsgd(Dynamics(gossip.sequence([MH("path:n=4"), MH("ring:n=4")])), EveryStep(2)),
    ):
        with pytest.raises(UnsupportedMechanism, match="secure-sum is for algorithms whose nodes receive the same"):
            trust.SecureSum().view(one, 0)


def test_a_secure_sum_by_name_and_saved():
    assert trust.named("secure-sum") == trust.SecureSum()
    assert trust.named("secure-sum", attackers=[1]) == trust.SecureSum([1])
    assert archive.copied(trust.SecureSum([1, "b"]), "trust") == trust.SecureSum([1, "b"])
    assert trust.SecureSum([0]).attackers(DP) == (0,)
    assert [loss.victim for loss in sensitivity_by_victim(DP, trust.SecureSum([0]))] == [1, 2, 3]


def loss(built, model, victim, release):
    (of_victim,) = sensitivity_by_victim(built, model, victims=[victim], release=release)
    return of_victim


@examples(60)
@given(
    W=gossip_matrices(min_nodes=3, max_nodes=7),
    data=st.data(),
    radius=st.integers(0, 3),
    correlated=st.booleans(),
    release=st.sampled_from(["none", "all"]),
)
def test_a_neighbourhood_loses_what_the_graph_loses_to_one_who_is_told_more(W, data, radius, correlated, release):
    victim, attacker = data.draw(st.permutations(range(W.num_nodes)).map(lambda order: order[:2]))
    near, scheme = neighbourhood(W, victim, [attacker], radius=radius, release=release), Cyclic(epochs=2, period=2)

    def built(matrix):
        dynamics = Dynamics(matrix, 0.5)
        if correlated:
            return algorithms.mf_dsgd(dynamics, scheme, square_root_encoder(4))
        return algorithms.dp_dsgd(dynamics, scheme)

    whole, inside = built(W), loss(built(near.gossip), near.trust, near.victim, release)
    seen, attacks = np.ones(W.num_nodes, dtype=bool), np.arange(W.num_nodes) == attacker
    seen[near.nodes[near.hidden]] = False
    told = TrustModel.from_masks(
        seen=seen, known_gradients=attacks, known_noise=attacks, attackers=[attacker], release=release
    )
    same, pndp = (loss(whole, model, victim, release) for model in (told, trust.PNDP([attacker])))
    assume(np.isfinite(same.sensitivity_squared))
    assert inside.sensitivity_squared == pytest.approx(same.sensitivity_squared, rel=1e-6)
    assert inside.adaptive_sensitivity_squared >= same.adaptive_sensitivity_squared * (1 - 1e-6)
    assert inside.sensitivity_squared >= pndp.sensitivity_squared * (1 - 1e-6)


def test_a_victim_among_a_hundred_thousand_comes_closer_with_the_radius():
    ring = gossip.metropolis_hastings("ring:n=100000")
    found = []
    for radius in (0, 1, 4, 7):
        near = neighbourhood(ring, 50, [46], radius=radius)
        built = algorithms.dp_dsgd(Dynamics(near.gossip), Cyclic(epochs=4, period=2))
        found.append(loss(built, near.trust, near.victim, "none").sensitivity_squared)
    small = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=40")), Cyclic(epochs=4, period=2))
    exact = loss(small, trust.PNDP([6]), 10, "none").sensitivity_squared
    assert found == sorted(found, reverse=True)
    assert found[0] > 2 * found[-1]
    assert exact * (1 - 1e-9) <= found[-1] <= 1.05 * exact


def test_refusals():
    W = gossip.metropolis_hastings("ring:n=5")
    for victim, attackers in ((0, [0]), (5, [1]), (0, [7]), (0, [])):
        with pytest.raises(InvalidInput, match="different nodes below 5"):
            neighbourhood(W, victim, attackers)


def algorithm(nodes):
    ring = mfdl.gossip.metropolis_hastings(f"ring:n={nodes}")
    return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(ring), mfdl.Cyclic(epochs=2, period=2))


def test_all_messages_of_many_nodes_are_accounted_without_their_view():
    view = mfdl.trust.LDP().view(algorithm(2000))
    grams = view_grams(view, range(2000))
    assert len(set(map(id, grams))) == 1
    assert not {"gradients", "noise"} & vars(view).keys()
    masks = (view.knowledge.seen, view.knowledge.known_gradients, view.knowledge.known_noise)
    assert [mask.strides[0] for mask in masks] == [0, 0, 0]  # the same at all times, kept once


@pytest.mark.parametrize("release", ["none", "average", "all"])
def test_a_view_counts_the_rows_that_it_makes(release):
    rng, six = np.random.default_rng(0), algorithm(6)
    for combination in (None, six.rounds[0].message_from_state[:2]):
        seen = rng.random((len(six.rounds), six.messages_per_round)) < 0.5
        knowledge = Knowledge.of(six, seen=seen, combination=combination)
        view = View.of(six, knowledge, release=release, attacker="somebody")
        assert view.num_rows == view.gradients.shape[0] == view.noise.shape[0] > 0


@pytest.mark.parametrize("one", [DECOR, DP], ids=["decor", "dp-dsgd"])
@pytest.mark.parametrize("node", [0, 1])
def test_masks_with_attackers_know_the_noise_that_they_hold(one, node):
    """As PNDP does; a mask of known noise that is given counts as it is."""
    received = [trust.PNDP([node]).knowledge(one, 3).seen[0]]
    own = np.arange(4) == node
    model = FROM_MASKS(seen=received[0], known_gradients=own, attackers=[node])
    for mine, pndp in zip(
        sensitivity_by_victim(one, model), sensitivity_by_victim(one, trust.PNDP([node])), strict=True
    ):
        assert mine.victim == pndp.victim
        assert mine.sensitivity_squared == pytest.approx(pndp.sensitivity_squared, rel=1e-9)
    nothing = np.zeros(one.holders.shape[0], bool)
    less = FROM_MASKS(seen=received[0], known_gradients=own, known_noise=nothing, attackers=[node])
    assert not less.knowledge(one, 3).known_noise.any()
    assert model.knowledge(one, 3).known_noise.any()
