"""Trust models as masks, by hand on small graphs, and noise that is optimal for each of them."""

import dataclasses
import itertools

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose
from path_algorithms import DECOR, DP, MH, PATH, ZIP
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, InvalidInput, Privacy, TrustModel, algorithms, gossip, trust
from mfdl.algorithms import mafalda, message_noise, muffliato, noise_error, trust_optimal
from mfdl.factorization import NotConverged, factorize_nodes
from mfdl.privacy import sensitivity_by_victim
from mfdl.testing import gossip_messages
from mfdl.trust import AnyReceiver, Coalitions, Eavesdropper

FROM_MASKS = TrustModel.from_masks


def masks(model, algorithm, victim=0):
    """seen, known gradients, known noise as 0/1 rows of one step, the same in every step."""
    k = model.knowledge(algorithm, victim)
    for mask in (k.seen, k.known_gradients, k.known_noise):
        assert (mask == mask[0]).all()
    return tuple("".join(str(int(x)) for x in mask[0]) for mask in (k.seen, k.known_gradients, k.known_noise))


@each(
    "model, dp, decor",
    (trust.LDP(), ("1111", "0000", "0000"), ("1111", "0000", "0000111")),
    (trust.PNDP([0]), ("0100", "1000", "1000"), ("0100", "1000", "1000100")),
    (trust.PNDP([1]), ("1010", "0100", "0100"), ("1010", "0100", "0100110")),
    (trust.PNDP([0, 3]), ("0110", "1001", "1001"), ("0110", "1001", "1001101")),
    (trust.PNDP([1, 2]), ("1111", "0110", "0110"), ("1111", "0110", "0110111")),
    (trust.Eavesdropper(), ("1111", "0000", "0000"), ("1111", "0000", "0000000")),
    (trust.Colluding((2,)), ("1111", "0010", "0010"), ("1111", "0010", "0010011")),
    (trust.FullCollusion(), ("1111", "0111", "0111"), ("1111", "0111", "0111111")),
    (trust.ReleasedOnly(), ("0000", "0000", "0000"), ("0000", "0000", "0000000")),
    ids=lambda value: getattr(value, "name", None),
)
def test_masks_by_hand(model, dp, decor):
    assert (masks(model, DP), masks(model, DECOR)) == (dp, decor)


def test_zip_dl_masks_list_single_messages():
    assert ZIP.message_sender.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert masks(trust.Eavesdropper(), ZIP)[0] == "0110110"
    assert masks(trust.PNDP([1]), ZIP) == ("0100010", "010", "0011100")
    assert masks(trust.PNDP([0]), ZIP) == ("0010000", "100", "1100000")
    with_own = algorithms.zip_dl(Dynamics(MH("path:n=3")), EveryStep(2), self_messages=True)
    assert (masks(trust.PNDP([1]), with_own)[0], masks(trust.LDP(), with_own)[0]) == ("0101010", "1111111")


def test_a_seed_that_everybody_holds_protects_from_outsiders_only():
    algorithm = algorithms.spatial_covariance(PATH, EveryStep(2), np.diag([2.0, 1, 0, 0]), groups=[[0, 1]])
    assert (masks(trust.Eavesdropper(), algorithm)[2], masks(trust.LDP(), algorithm)[2]) == ("00", "11")
    assert (masks(trust.PNDP([0]), algorithm)[2], masks(trust.PNDP([3]), algorithm)[2]) == ("11", "00")
    alone = algorithms.spatial_covariance(PATH, EveryStep(2), np.diag([0.0, 0, 1, 0]), groups=[[2]])
    assert masks(trust.LDP(), alone)[2] == "0"
    refuses("must be zero outside", lambda: algorithms.spatial_covariance(PATH, EveryStep(2), np.eye(4), groups=[[2]]))


def test_receivers_follow_gossip_in_time():
    W = gossip.sequence([MH("path:n=3"), MH("complete:n=3")])
    k = trust.PNDP([0]).knowledge(algorithms.dp_dsgd(Dynamics(W), EveryStep(4)), 1)
    assert k.seen.astype(int).tolist() == [[0, 1, 0], [0, 1, 1]] * 2
    k = trust.PNDP([0]).knowledge(algorithms.muffliato(Dynamics(W), EveryStep(2), gossip_rounds=2), 1)
    assert (k.seen.astype(int).tolist(), k.known_noise.shape) == ([[0, 1, 0], [0, 1, 1]] * 2, (2, 3))


def test_one_way_links_are_one_way():
    W = gossip.from_array(np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]))  # 0 hears 1 hears 2 hears 0
    algorithm = algorithms.dp_dsgd(Dynamics(W), EveryStep(1))
    assert [masks(trust.PNDP([a]), algorithm)[0] for a in range(3)] == ["010", "001", "100"]


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
    assert (trust.PNDP([0]).view(DP, 1).release, trust.ReleasedOnly().view(DP, 1).release) == ("all", "all")
    assert trust.Central().view(DP).release == "all"
    assert FROM_MASKS(release="average").view(DP).release == "average"


def test_where_all_messages_are_seen_models_add_nothing():
    for model in (trust.LDP(), trust.Eavesdropper(), trust.Colluding((1,)), trust.FullCollusion()):
        for release in (None, "none", "all"):
            assert model.view(DP, 0, release=release).release == "not applicable"
            assert model.view(DP, 0, release=release).gradients.shape[0] == 8
    # unless some messages are never sent: then they do
    assert (trust.LDP().view(ZIP, 0).release, trust.LDP().view(ZIP, 0).gradients.shape[0]) == ("all", 2 * 4 + 3)
    assert trust.LDP().view(ZIP, 0, release="none").gradients.shape[0] == 2 * 4


def test_not_applicable_is_no_way_to_hide_released_models():
    class Silent(trust.PNDP):
        default_release = "not applicable"

    assert trust.PNDP([0]).view(DP, 1, release="not applicable").release == "all"
    assert Silent([0]).view(DP, 1).release == "all"
    for bad in ("some", "ALL", ""):
        refuses("release must be one of", trust.PNDP([0]).view, DP, 1, release=bad)


# ---- nodes --------------------------------------------------------------------------------------------------------
def test_nodes_by_index_label_and_number():
    algorithm = algorithms.dp_dsgd(Dynamics(MH("florentine")), EveryStep(1))
    assert trust.base.node_indices(algorithm, ["Medici", "#0", 2, "Medici"]) == (0, 1, 2)
    assert (
        masks(trust.PNDP(["Medici"]), algorithm)
        == masks(trust.PNDP([1]), algorithm)
        == masks(trust.PNDP(["#1"]), algorithm)
    )
    relabelled = nx.relabel_nodes(nx.path_graph(3), {0: 10, 1: 20, 2: 0})
    numbers = algorithms.dp_dsgd(Dynamics(MH(relabelled)), EveryStep(1))
    labels = list(numbers.dynamics.gossip.labels)
    assert trust.base.node_indices(numbers, ["20"]) == (labels.index(20),)  # text is a label,
    assert trust.base.node_indices(numbers, [0]) == (0,)  # a number an index
    doubtful = algorithms.dp_dsgd(Dynamics(MH(nx.Graph([(1, 2), (2, 3)]))), EveryStep(1))
    assert trust.base.node_indices(doubtful, [0, "1", "#1"]) == (0, 1)
    refuses("write '1' for the label, or '#1", trust.base.node_indices, doubtful, [1])
    for bad in (["Nobody"], ["#15"], [15], [-1], ["#-1"], ["#"], ["#²"], [1.5]):
        refuses(r"node|index", trust.base.node_indices, algorithm, bad)


# ---- coalitions ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("q", range(4))
def test_members_of_coalitions(q):
    members = list(trust.Coalitions(q).members(DP))
    assert [getattr(m, "colluders", ()) for m, _ in members] == list(itertools.combinations(range(4), q))
    for model, victims in members:
        assert set(victims) == set(range(4)) - set(getattr(model, "colluders", ()))
    assert list(trust.PNDP([0, 2]).members(DP)) == [(trust.PNDP([0, 2]), (1, 3))]
    assert [victims for _, victims in trust.FullCollusion().members(DP)] == [(0,), (1,), (2,), (3,)]


def test_attackers_that_are_none_are_refused():
    for bad in ([], "Medici", ()):
        refuses("list of at least one node", trust.PNDP, bad)
    rounds = tuple(dataclasses.replace(r, receivers=None) for r in DP.rounds)
    unsupported("receives", lambda: trust.PNDP([0]).knowledge(dataclasses.replace(DP, rounds=rounds), 1))
    refuses("below num_nodes=4", lambda: list(trust.Coalitions(4).members(DP)))
    refuses("size", trust.Coalitions, -1)
    unsupported("no single view", lambda: trust.Coalitions(1).view(DP, 0))
    many = algorithms.dp_dsgd(Dynamics(MH("ring:n=40")), EveryStep(1))
    unsupported("FullCollusion", lambda: list(trust.Coalitions(10).members(many)))


# ---- own masks ----------------------------------------------------------------------------------------------------
def test_masks_of_all_shapes():
    tapped = np.array([False, True, True, False])
    for given_mask in (tapped, np.tile(tapped, (2, 1)), tapped.tolist(), lambda algorithm: tapped):
        assert masks(FROM_MASKS(seen=given_mask), DP) == ("0110", "0000", "0000")
    model = FROM_MASKS(known_gradients=tapped, known_noise=np.eye(2, 4, dtype=bool))
    knowledge = model.knowledge(DP, 0)
    assert knowledge.known_noise.astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert not knowledge.seen.any()
    assert masks(FROM_MASKS(), DP) == ("0000",) * 3


@pytest.mark.parametrize("name", ["seen", "known_gradients", "known_noise"])
@each("bad", np.ones(3, dtype=bool), np.ones((3, 4), dtype=bool), np.ones(4), np.ones((1, 4), dtype=bool), True)
def test_masks_of_the_wrong_shape_or_type(name, bad):
    refuses(f"{name} must be a boolean mask", lambda: FROM_MASKS(**{name: bad}).view(DP))


def test_masks_may_depend_on_the_victim():
    def others(algorithm, victim):
        return np.arange(algorithm.num_nodes) != victim

    model = FROM_MASKS(
        seen=lambda algorithm: np.ones(4, dtype=bool), known_gradients=others, known_noise=others, name="all"
    )
    members = list(model.members(DECOR_LOCAL))
    assert [victims for _, victims in members] == [(0,), (1,), (2,), (3,)]
    for (member, (victim,)), (other, _) in zip(members, trust.FullCollusion().members(DECOR_LOCAL), strict=True):
        assert (member.name, masks(member, DECOR_LOCAL, victim)) == ("all", masks(other, DECOR_LOCAL))
    by_victim = sensitivity_by_victim(DECOR_LOCAL, model)
    full = sensitivity_by_victim(DECOR_LOCAL, trust.FullCollusion())
    assert_allclose([x.sensitivity_squared for x in by_victim], [x.sensitivity_squared for x in full], rtol=1e-12)


DECOR_LOCAL = algorithms.decor(PATH, EveryStep(2), sigma_cor=0.0)


def test_a_default_argument_is_no_victim():
    for wanted in (1, 3):
        model = FROM_MASKS(seen=lambda algorithm, taps=wanted: np.arange(4) == taps)
        ((member, victims),) = model.members(DP)
        assert (victims, member.knowledge(DP, 0).seen[0].argmax()) == ((0, 1, 2, 3), wanted)
    named = FROM_MASKS(seen=lambda algorithm, victim=0: np.arange(4) == victim)
    assert [m.knowledge(DP, u).seen[0].argmax() for m, (u,) in named.members(DP)] == [0, 1, 2, 3]


# ---- comparing ----------------------------------------------------------------------------------------------------
SILENT, AVERAGED = FROM_MASKS(seen=np.eye(4, dtype=bool)[1], release="none"), FROM_MASKS(release="average")
FIRST, SOME = trust.Colluding((0,)), (trust.PNDP([0]), trust.ReleasedOnly(), trust.Central(), trust.Eavesdropper())
ANYBODY, RELEASED = trust.LDP(), trust.ReleasedOnly()


@each(
    "stronger, weaker, algorithm, at_least", *((FIRST, weaker, DP, True) for weaker in (FIRST, *SOME)),
    (trust.Colluding((0, 1)), FIRST, DP, True), (FIRST, trust.Colluding((1,)), DP, False),
    (trust.Eavesdropper(), trust.PNDP([0]), DP, False), (trust.PNDP([0]), trust.Central(), DP, False),
    (trust.Central(), RELEASED, DP, True), (trust.Central(), trust.Central(), DP, True),
    (trust.Central(), trust.PNDP([0]), DP, False), (ANYBODY, trust.Eavesdropper(), DECOR, True),
    (trust.Eavesdropper(), ANYBODY, DECOR, False), (SILENT, RELEASED, DP, False), (trust.PNDP([0]), SILENT, DP, True),
    (FROM_MASKS(release="all"), AVERAGED, DP, True), (AVERAGED, trust.PNDP([0]), DP, False),
    (ANYBODY, RELEASED, DP, True)
)  # fmt: skip
def test_who_sees_at_least_what(stronger, weaker, algorithm, at_least):
    assert stronger.sees_at_least(weaker, algorithm) == at_least


@pytest.mark.parametrize("algorithm", [DECOR, DP], ids=["decor", "dp-dsgd"])
@pytest.mark.parametrize("node", [0, 1])
def test_masks_with_attackers_know_the_noise_that_they_hold(algorithm, node):
    received = [trust.PNDP([node]).knowledge(algorithm, 3).seen[0]]
    of_attacker = np.arange(4) == node
    model = FROM_MASKS(seen=received[0], known_gradients=of_attacker, attackers=[node])
    for mine, pndp in zip(
        sensitivity_by_victim(algorithm, model), sensitivity_by_victim(algorithm, trust.PNDP([node])), strict=True
    ):
        assert mine.victim == pndp.victim
        assert mine.sensitivity_squared == pytest.approx(pndp.sensitivity_squared, rel=1e-9)
    nothing = np.zeros(algorithm.holders.shape[0], bool)
    less = FROM_MASKS(seen=received[0], known_gradients=of_attacker, known_noise=nothing, attackers=[node])
    assert not less.knowledge(algorithm, 3).known_noise.any()
    assert model.knowledge(algorithm, 3).known_noise.any()


GAP = 1e-3


def dynamics(graph="ring:n=5", rounds=2, rate=0.3):
    return dynamics_on(graph, rate, gossip_rounds=rounds)


def privacy(trust, **fields):
    return Privacy(trust, **fields, **ZERO_OUT)


@st.composite
def settings_of_noise(draw):
    graph = nx.gnp_random_graph(draw(st.integers(2, 4)), 0.6, seed=draw(st.integers(0, 99)))
    nx.add_path(graph, sorted(graph))
    scheme = draw(st.sampled_from([EveryStep(1), Cyclic(epochs=1, period=2), EveryStep(2), EveryStep(3), Cyclic(2, 2)]))
    return dynamics(graph, draw(st.integers(1, 3)), draw(st.sampled_from([1.0, 0.3]))), scheme


@given(
    20, setting=settings_of_noise(), trust=st.sampled_from([AnyReceiver(), Eavesdropper(), Coalitions(1)]),
    published=st.booleans()
)  # fmt: skip
def test_the_accounted_mu_of_the_finished_algorithm_is_1(setting, trust, published):
    (run, scheme), release = setting, None if published else "none"
    algorithm = trust_optimal(run, scheme, trust, published=published, release=release, tolerance=GAP)
    losses = mfdl.losses(algorithm, privacy(trust, release=release), progress=False)
    assert losses.guarantee(1.0).mu >= 1 - GAP
    if scheme.num_steps == 1 or published:
        assert losses.guarantee(1.0).mu <= 1 + 1e-6
        assert scheme == EveryStep(3) or losses.guarantee(1.0).mu >= 1 - 1e-6  # of two steps signs are all there is
        assert losses.guarantee(1.0).adaptive
    certificate = algorithm.factorization
    assert certificate.lower_bound <= certificate.objective <= certificate.lower_bound * (1 + GAP)
    error = noise_error(algorithm).value / (run.num_nodes * scheme.num_steps)
    price = 1e-3 * certificate.covariances.trace(axis1=1, axis2=2).sum()
    assert error + price == pytest.approx(certificate.objective, rel=1e-9)


@pytest.mark.parametrize("scheme", [EveryStep(3), Cyclic(epochs=2, period=3), Cyclic(epochs=1, period=4)], ids=str)
def test_if_all_is_seen_it_is_the_best_encoder_of_each_node(scheme):
    run = dynamics("star:n=4", rounds=1)
    algorithm = trust_optimal(run, scheme, Eavesdropper(), published=False, release="none", price=1e-7, tolerance=GAP)
    nodes = factorize_nodes(run, scheme, tolerance=GAP)
    objective = algorithm.factorization.objective * run.num_nodes * scheme.num_steps
    assert objective == pytest.approx(nodes.objective, rel=3 * GAP)


def test_gradients_that_are_worse_than_all_signs_are_met_too():
    algorithm = trust_optimal(dynamics("path:n=4", rounds=1), EveryStep(5), AnyReceiver(), tolerance=GAP)
    assert 1 - GAP <= mfdl.account(algorithm, privacy(AnyReceiver()), noise_std=1.0, progress=False).mu <= 1 + 1e-6
    assert algorithm.factorization.gap <= GAP


def test_less_noise_than_muffliato_and_mafalda_on_a_ring_and_none_gained_on_a_complete_graph():
    scheme = EveryStep(1)
    for graph, share in (("ring:n=6", 0.9), ("complete:n=6", 1.0)):
        run = dynamics(graph, rounds=4)
        best = mfdl.optimize(run, scheme, privacy(AnyReceiver()), mu=1.0, progress=False)
        other = mfdl.calibrate(muffliato(run, scheme), privacy(AnyReceiver()), mu=1.0, progress=False)
        errors = [noise_error(m.algorithm).value * m.noise_std**2 for m in (best, other)]
        assert errors[0] <= errors[1] * share * (1 + GAP)


def test_optimize_takes_mafalda_if_all_is_seen_and_trains():
    run, scheme = dynamics("ring:n=4"), EveryStep(2)
    seen = mfdl.optimize(run, scheme, privacy(mfdl.trust.LDP()), mu=1.0, progress=False)
    assert seen.algorithm.content_hash == mafalda(run, scheme, tolerance=1e-3).content_hash
    mechanism = mfdl.optimize(run, scheme, privacy(AnyReceiver()), epsilon=1.0, delta=1e-6, progress=False)
    assert mechanism.guarantee.epsilon(1e-6) <= 1.0
    result = mfdl.replay(mechanism, mfdl.tasks.load("least-squares", 4), seeds=[0], progress=False)
    assert len(result.seeds) == 1


def test_masks_of_a_trust_model_of_the_caller():
    run, scheme = dynamics("ring:n=4"), EveryStep(1)
    rounds = np.zeros((3, 4), dtype=bool)
    rounds[:2, 1] = True
    tap = TrustModel.from_masks(seen=rounds, name="tap", release="none")
    tapped = mfdl.optimize(run, scheme, privacy(tap), mu=1.0, progress=False)
    everything = trust_optimal(run, scheme, Eavesdropper()).factorization
    assert tapped.algorithm.factorization.objective < everything.objective


def test_covariances_are_those_of_the_noise():
    algorithm = trust_optimal(dynamics("path:n=3"), EveryStep(2), AnyReceiver())
    N = algorithm.noise.to_dense()
    C = (N @ N.T).reshape(2, 3, 3, 2, 3, 3)  # step, slot, node
    for v, S in enumerate(algorithm.factorization.covariances):
        np.testing.assert_allclose(C[:, :, v, :, :, v].reshape(6, 6), S, atol=1e-12)
    C[:, :, np.arange(3), :, :, np.arange(3)] = 0
    assert not C.any()


def test_what_is_not_covered_is_refused():
    run, scheme = dynamics(), EveryStep(2)
    unsupported("momentum", lambda: message_noise(dataclasses.replace(run, momentum=0.5), scheme))
    unsupported("every pattern", lambda: trust_optimal(run, EveryStep(30), AnyReceiver()))
    with pytest.raises(InvalidInput, match="unknown entries"):
        trust_optimal(dynamics("path:n=20", rounds=5), Cyclic(epochs=1, period=6), AnyReceiver())
    refuses("price", lambda: trust_optimal(run, scheme, AnyReceiver(), price=0.0))
    refuses(None, lambda: trust_optimal(run, scheme, AnyReceiver(), max_iterations=2), error=NotConverged)
    refuses("no attacker sees", lambda: trust_optimal(run, scheme, TrustModel.from_masks(name="blind", release="none")))


def test_where_hidden_messages_count_as_seen_mafalda_is_returned():
    run, scheme = dynamics_on("path:n=4", 0.3, gossip_rounds=2), EveryStep(3)
    best = mfdl.optimize(run, scheme, privacy(AnyReceiver()), mu=1.0, published=False, progress=False)
    assert best.algorithm.name == "mafalda"
    optimal = trust_optimal(run, scheme, AnyReceiver(), published=False)
    assert best.objective < 0.5 * mfdl.calibrate(optimal, privacy(AnyReceiver()), mu=1.0).objective
