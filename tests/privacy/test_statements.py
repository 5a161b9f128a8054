"""A statement stays with the question and the losses of its own: one fingerprint, whatever is put together."""

import dataclasses
import json
import math

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from _guarantees import guarantees
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import Cyclic, EveryStep, Guarantee, Losses, Privacy, View, account, algorithms, calibrate, gossip, trust
from mfdl.errors import UnsupportedMechanism
from mfdl.noise import NoiseOperator, StepNoise
from mfdl.participation import Explicit, Single
from mfdl.privacy import Gaussian, Target, sensitivity_by_victim
from mfdl.privacy.exposures import AsGiven
from mfdl.privacy.gaussian import ADJACENCIES
from mfdl.privacy.questions import Fingerprint
from mfdl.testing import linear_algorithms, trust_models

DYN = dynamics_on("path:n=4")
GIVEN = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}


def explicit(*patterns):
    return Explicit([list(p) for p in patterns], 4)


def test_patterns_that_read_alike_are_not_alike():
    """Three uses cost sqrt(3) times one: both are "explicit" to who reads only the scheme."""
    few, many = (algorithms.mf_dsgd(DYN, scheme, np.eye(4)) for scheme in (explicit([0]), explicit([0, 1, 2])))
    calibrated = calibrate(few, Privacy(**GIVEN), mu=1.0)
    refuses("for another", dataclasses.replace, calibrated, algorithm=many)
    other = calibrate(many, Privacy(**GIVEN), noise_std=calibrated.noise_std).guarantee
    refuses("for another", dataclasses.replace, calibrated, guarantee=other)
    losses = sensitivity_by_victim(few, trust.LDP(), participation=explicit([0]))
    refuses("for another participation", lambda: guarantee_of(few, losses, participation=explicit([0, 1, 2])))


def test_a_guarantee_of_another_algorithm_is_refused():
    small = algorithms.dp_dsgd(DYN, EveryStep(4))
    large = dataclasses.replace(small, noise=StepNoise(0.1 * np.eye(4), np.eye(4, dtype=bool), 4, 4))
    mine, other = (calibrate(algorithm, Privacy(**GIVEN), noise_std=1.0) for algorithm in (small, large))
    assert other.guarantee.mu == pytest.approx(10 * mine.guarantee.mu)
    refuses("the guarantee is for another algorithm", dataclasses.replace, other, guarantee=mine.guarantee)


NO_LOSS = {"curve": Gaussian(0.0, "zero-out"), "sensitivity": 0.0}


@each("change", NO_LOSS, {"victim": "node 3"}, {"trust": "central"}, {"participation": "once"})
def test_an_edited_guarantee_is_no_mechanism_s(change):
    calibrated = calibrate(algorithms.dp_dsgd(DYN, EveryStep(4)), Privacy(**GIVEN), noise_std=1.0)
    edited = dataclasses.replace(calibrated.guarantee, **change)
    assert not edited.fingerprint
    assert "as edited, not computed" in edited.source
    refuses("written or edited by hand", dataclasses.replace, calibrated, guarantee=edited)


def test_two_runs_are_no_mechanism():
    calibrated = calibrate(algorithms.dp_dsgd(DYN, EveryStep(4)), Privacy(**GIVEN), noise_std=1.0)
    twice = calibrated.guarantee.compose_with(calibrated.guarantee)
    refuses("for another", dataclasses.replace, calibrated, guarantee=twice)


def test_an_algorithm_changed_under_a_mechanism_is_noticed_before_it_runs():
    calibrated = calibrate(algorithms.dp_dsgd(DYN, EveryStep(4)), Privacy(**GIVEN), noise_std=1.0)
    data = calibrated.algorithm.rounds[0].message_from_gradient.data
    data.flags.writeable = True  # by force
    data[...] = 5.0
    refuses("another algorithm", lambda: mfdl.replay(calibrated, mfdl.tasks.least_squares(4), seeds=[0], period=1))


def test_a_mechanism_rests_on_the_constant_that_was_accounted():
    algorithm = algorithms.dp_dsgd(DYN, EveryStep(6))
    calibrated = calibrate(algorithm, Privacy(trust.ReleasedOnly(), lipschitz=1.0, **ZERO_OUT), mu=1.0)
    assert calibrated.lipschitz == 1.0
    assert "Lipschitz with constant 1.0" in str(calibrated.guarantee)
    assert any("Lipschitz with constant 1.0" in note for note in calibrated.guarantee.notes)
    for other in (None, 50.0):
        edited = dataclasses.replace(calibrated.guarantee, lipschitz=other)
        refuses("written or edited by hand", dataclasses.replace, calibrated, guarantee=edited)


def test_constants_of_single_steps_are_stated_by_the_smallest():
    """The number counts on 0.5 in the second step: a statement that assumes 1 everywhere would promise it for more."""
    algorithm = algorithms.dp_dsgd(dynamics_on("star:n=5", 0.5), EveryStep(3))
    question = Privacy(trust.ReleasedOnly(), **ZERO_OUT)
    by_step, all_one, all_half = (
        Losses.from_algorithm(algorithm, dataclasses.replace(question, lipschitz=L))
        for L in ([1.0, 0.5, 1.0], 1.0, 0.5)
    )
    assert all_half.worst.squared <= by_step.worst.squared < all_one.worst.squared
    assert by_step.rests_on == 0.5
    for words in (str(by_step.guarantee(1.0)), repr(by_step), by_step._repr_html_()):
        assert "Lipschitz with constant 0.5" in words
    pairs = mfdl.pairwise(
        algorithm, Privacy(release="none", lipschitz=0.5, **ZERO_OUT), attackers=[1, 2], progress=False
    )
    assert "Lipschitz with constant 0.5" in repr(pairs)
    both = (*all_one.sensitivities[:2], *all_half.sensitivities[2:])
    assert Losses.from_sensitivities(algorithm, question, both).rests_on == 0.5


def test_a_mechanism_needs_the_guarantee_of_everybody_for_adaptive_gradients():
    algorithm = algorithms.dp_dsgd(DYN, EveryStep(4))
    calibrated = calibrate(algorithm, Privacy(trust.PNDP([0]), **ZERO_OUT), noise_std=1.0)
    losses = sensitivity_by_victim(algorithm, trust.PNDP([0]))
    for adaptive in (True, False):
        last = guarantee_of(algorithm, losses, model=trust.PNDP([0]), adaptive=adaptive)[-1]
        refuses("needs the adaptive guarantee of every node", dataclasses.replace, calibrated, guarantee=last)


def with_mu(content, mu):
    curve = Gaussian(mu, content["adjacency"], content["bound"], 2)
    beside = {"mu": mu, "composed": 2, "noise_multiplier": curve.noise_multiplier}
    return content | {"curve": content["curve"] | {"mu": mu, "runs": 2}} | beside


def test_a_seal_cannot_be_left_out():
    calibrated = calibrate(algorithms.dp_dsgd(DYN, EveryStep(4)), Privacy(**GIVEN), noise_std=1.0)
    bare = dataclasses.replace(calibrated.guarantee, curve=Gaussian(0.01, "zero-out"), sensitivity=0.01, seal="")
    assert not bare.fingerprint
    assert not bare.compose_with(bare).fingerprint
    edited = with_mu(calibrated.guarantee.to_dict() | {"seal": ""}, 3.0)
    assert not Guarantee.from_dict(edited).fingerprint


def test_noise_of_ones_own_is_known_by_its_entries():
    class Scaled(NoiseOperator):
        def __init__(self, scale):
            self.num_steps, self.num_nodes, self.scale = 4, 4, scale
            super().__init__((16, 16))

        def holders(self):
            return sp.csr_array(np.eye(4, dtype=bool))

        def _matmat(self, X):
            return self.scale * X

        _rmatmat = _matmat

        def pattern(self):
            return sp.csr_array(np.eye(4))

        def variances(self):
            return np.full((4, 4), self.scale**2)

    base = algorithms.dp_dsgd(DYN, EveryStep(4))
    quiet, loud, again = (dataclasses.replace(base, noise=Scaled(scale)).content_hash for scale in (0.01, 1.0, 1.0))
    assert quiet != loud == again


def test_maps_on_somebody_s_array_are_copied():
    data = np.ones(4)
    view = data[:]
    view.flags.writeable = False
    given_map = sp.csr_array((view, np.arange(4), np.arange(5)), shape=(4, 4))
    for part in (given_map.data, given_map.indices, given_map.indptr):
        part.flags.writeable = False
    algorithm = algorithms.round.Round(message_from_state=given_map)
    data[:] = 99.0
    assert (algorithm.message_from_state.toarray() == np.eye(4)).all()


def test_what_is_released_to_any_victim_s_attacker_is_stated():
    class Mixed(mfdl.TrustModel):
        name = "mixed"

        @property
        def attacker(self):
            return "whoever"

        def knowledge(self, algorithm, victim):
            return (trust.Eavesdropper() if victim == 0 else trust.Central()).knowledge(algorithm, victim)

    built = algorithms.dp_dsgd(DYN, EveryStep(2))
    assert {loss.release for loss in sensitivity_by_victim(built, Mixed())} == {"not applicable", "all"}
    guarantee = account(built, Privacy(Mixed(), **ZERO_OUT), noise_std=1.0)
    assert guarantee.release == "all"


def guarantee_of(algorithm, losses, *, model=GIVEN["trust"], **options):
    return guarantees(algorithm, losses, trust=model, adjacency="zero-out", clip_norm=1.0, noise_std=1.0, **options)


def test_losses_of_another_question_are_refused():
    algorithm = algorithms.dp_dsgd(DYN, EveryStep(4))
    losses = sensitivity_by_victim(algorithm, trust.PNDP([0]), release="none")
    assert len(guarantee_of(algorithm, losses, model=trust.PNDP([0]))) == 3
    for changes, word in (
        ({"model": trust.PNDP([1])}, "trust model"),
        ({"model": trust.LDP()}, "trust model"),
        ({"participation": Single(4)}, "participation"),
        ({"release": "all"}, "release"),
        ({"unit": "user"}, "unit"),
    ):
        refuses(word, guarantee_of, algorithm, losses, **{"model": trust.PNDP([0])} | changes)
    other = algorithms.anti_pgd(DYN, EveryStep(4))
    refuses("for another algorithm", lambda: guarantee_of(other, losses, model=trust.PNDP([0])))
    for edited in (
        dataclasses.replace(losses[0]),
        dataclasses.replace(losses[0], adaptive_sensitivity=losses[-1].non_adaptive_sensitivity),
    ):
        refuses("sensitivity_by_victim", guarantee_of, algorithm, [edited], model=trust.PNDP([0]))


def test_losses_stay_with_their_question_and_speak_of_whom_they_are():
    """A part of the victims is never stated as every node, and no other question is put on losses."""
    each = mfdl.participation.ParticipationByNode([Single(4)] * 3 + [EveryStep(4)])
    algorithm = algorithms.dp_dsgd(DYN, each)
    question = Privacy(trust.LDP(), **ZERO_OUT)
    some, everybody = (Losses.from_algorithm(algorithm, question, victims=victims) for victims in ([0], None))
    for call in (lambda: some.guarantee(1.0), lambda: some.calibrate(mu=1.0)):
        refuses("node 1 is missing", call)
    assert some.by_victim(1.0) == everybody.by_victim(1.0)[:1]
    assert everybody.guarantee(1.0).mu == pytest.approx(2.0)
    collusion = dataclasses.replace(question, trust=trust.FullCollusion())
    refuses("trust model", dataclasses.replace, everybody, privacy=collusion)
    refuses("another algorithm", lambda: dataclasses.replace(everybody, algorithm=algorithms.anti_pgd(DYN, each)))
    refuses("at least one victim", Losses.from_sensitivities, algorithm, question, ())
    twice = Losses.from_sensitivities(algorithm, question, everybody.sensitivities * 2)
    assert twice.rows() == everybody.rows() * 2


def test_a_file_is_what_it_claims_and_says_so(tmp_path):
    calibrated = calibrate(algorithms.dp_dsgd(DYN, EveryStep(4)), Privacy(**GIVEN), noise_std=1.0)
    path = tmp_path / "guarantee.json"
    calibrated.guarantee.save(path)
    read = Guarantee.load(path)
    assert read == calibrated.guarantee
    assert "as stated in the file" in read.source
    content = json.loads(path.read_text())
    path.write_text(json.dumps(with_mu(content, 2.5)))
    edited = Guarantee.load(path)
    assert not edited.fingerprint
    assert "edited" in edited.source
    path.write_text(json.dumps(with_mu(content, 0.1)))
    refuses("mu must be at least", Guarantee.load, path)


def test_an_index_and_a_label_are_two_attackers():
    """Nodes labelled "1", "0": the index 0 and the label "0" are two nodes, though both read "node 0"."""
    graph = nx.relabel_nodes(nx.path_graph(3), {0: "1", 1: "0", 2: "2"})
    algorithm = algorithms.dp_dsgd(dynamics_on(graph), EveryStep(2))
    labels = list(algorithm.dynamics.gossip.labels)
    index, label = trust.PNDP([labels.index("1")]), trust.PNDP(["0"])
    first, second = (account(algorithm, Privacy(model, **ZERO_OUT), noise_std=1.0) for model in (index, label))
    second = dataclasses.replace(second, attacker=first.attacker).sealed(second.fingerprint)
    refuses("stands for others", first.compose_with, second)
    assert math.isclose(first.compose_with(first).mu, math.sqrt(2) * first.mu)


@given(40, linear_algorithms(["dp-dsgd", "decor", "muffliato"], max_epochs=1, max_period=2, max_nodes=3), st.data())
def test_trust_models_share_a_fingerprint_only_if_they_show_the_same(masked, data):
    first, second = data.draw(trust_models(masked)), data.draw(trust_models(masked))
    if first.fingerprint(masked) == second.fingerprint(masked):
        for victim in range(masked.num_nodes):
            if victim in first.attackers(masked):
                continue
            a, b = (
                [m.knowledge(masked, victim).digest() for m, who in model.members(masked) if victim in who]
                for model in (first, second)
            )
            assert a == b


def test_custom_masks_are_known_by_their_bytes():
    algorithm = algorithms.dp_dsgd(DYN, EveryStep(2))
    models = [mfdl.TrustModel.from_masks(seen=lambda a, v, k=k: np.arange(4) >= k, name="taps") for k in (0, 1, 1)]
    first, second, again = (model.fingerprint(algorithm) for model in models)
    assert first != second == again


def test_a_fingerprint_names_the_part_that_differs():
    print_of = Fingerprint("a", "b", "c", "none", "record")
    assert Fingerprint.parse(print_of.text) == print_of
    for field in ("algorithm", "trust", "participation", "release", "unit"):
        other = dataclasses.replace(print_of, **{field: "x"})
        refuses("trust model" if field == "trust" else field, print_of.require, other, subject="it was computed")
    for bad in ("a.b", 3):
        refuses("a fingerprint must have 5 parts", Fingerprint.parse, bad)


HIDDEN = algorithms.dp_dsgd(DYN, EveryStep(2))
TRACKING = algorithms.gradient_tracking(DYN, EveryStep(3))
FOUR_ROUNDS = algorithms.muffliato(DYN, EveryStep(2), gossip_rounds=4)


@each(
    "algorithm, model, rule, way_out",
    (HIDDEN, trust.LDP(), "", ""),
    (HIDDEN, trust.PNDP([0]), "same attackers if they see every message", "lipschitz=L can give a smaller number"),
    (TRACKING, trust.PNDP([0]), "see every message|every injected sum", "exact|lipschitz"),
    (algorithms.build("none", DYN, EveryStep(2)), trust.LDP(), "No finite number: ", "no noise"),
    (algorithms.zip_dl(DYN, EveryStep(2)), trust.Eavesdropper(), "No finite number: ", ""),
)
def test_a_number_says_which_rule_gave_it(algorithm, model, rule, way_out):
    guarantee = account(algorithm, Privacy(model, **ZERO_OUT), noise_std=1.0)
    assert bool(guarantee.why) == (guarantee.bound == "upper" or guarantee.mu == math.inf)
    assert all(any(text in guarantee.why for text in words.split("|")) for words in (rule, way_out))
    assert str(guarantee).endswith(guarantee.why)


def test_a_number_that_is_infinite_names_the_victim():
    labelled = dynamics_on("florentine")
    algorithm = algorithms.dp_dsgd(labelled, EveryStep(2))
    medici = labelled.gossip.labels.index("Medici")
    model = trust.TrustModel.from_masks(seen=None, known_noise=np.arange(15) == medici, name="thief")
    question = Privacy(model, **ZERO_OUT)
    losses = mfdl.losses(algorithm, question)
    assert "(node 'Medici', the worst victim)." in losses.guarantee(noise_std=1.0).why
    refuses("for node 'Medici', the worst victim", losses.calibrate, mu=1.0)
    each = {guarantee.victim: guarantee for guarantee in losses.by_victim(noise_std=1.0)}
    assert [name for name, guarantee in each.items() if guarantee.mu == math.inf] == ["Medici"]
    assert each["Medici"].why.startswith("No finite number: ")
    assert "worst" not in each["Medici"].why


def test_shift_reduction_is_named():
    (loss,) = sensitivity_by_victim(HIDDEN, trust.PNDP([0]), victims=[2], lipschitz=0.5, release="none")
    assert "the number comes from shift reduction" in loss.explanation()
    assert "A smaller constant gives a smaller number" in loss.explanation()


def test_every_loss_that_is_no_exact_number_is_explained():
    for algorithm in (HIDDEN, TRACKING, FOUR_ROUNDS, algorithms.zip_dl(DYN, EveryStep(2))):
        for model in (trust.LDP(), trust.PNDP([0]), trust.Colluding((1,)), trust.Central(), trust.ReleasedOnly()):
            for loss in sensitivity_by_victim(algorithm, model):
                exact = loss.adaptive_bound == "exact" and math.isfinite(loss.adaptive_sensitivity_squared)
                assert bool(loss.explanation()) != exact
                fixed = loss.explanation(adaptive=False)
                assert bool(fixed) == (loss.bound != "exact" or math.isinf(loss.sensitivity_squared))


RING = dynamics_on("ring:n=4", 0.5)
BINS = algorithms.dp_dsgd(RING, mfdl.BallsInBins(2, 4))


@each(
    "change", {"unit": "user"}, {"adjacency": "replace-one"}, {"participation": EveryStep(8)}, {"method": "monte-carlo"}
)
def test_losses_of_secret_batches_take_no_other_question(change):
    losses = Losses.from_algorithm(BINS, Privacy(trust.LDP(), **ZERO_OUT))
    with pytest.raises((mfdl.InvalidInput, UnsupportedMechanism)):
        dataclasses.replace(losses, privacy=dataclasses.replace(losses.privacy, **change))


def test_matrices_have_no_trust_model_by_name():
    view = View(np.eye(4), np.eye(4), num_nodes=2)
    other = AsGiven(View(np.eye(4), 2 * np.eye(4), num_nodes=2))
    for model in (trust.Central(), trust.ReleasedOnly(), trust.LDP(), other):
        question = Privacy(model, **ZERO_OUT, participation=EveryStep(2))
        refuses("trust must be left out", Losses.from_algorithm, view, question)


def test_the_view_of_a_trust_model_is_accounted_with_its_algorithm():
    view = trust.FullCollusion().view(algorithms.dp_dsgd(RING, EveryStep(2)), 0)
    with pytest.raises(mfdl.InvalidInput, match="give the algorithm and the trust model"):
        account(view, Privacy(participation=EveryStep(2), **ZERO_OUT), noise_std=1.0)


def test_views_of_one_word_do_not_compose_unsealed():
    views = [View(np.eye(1), scale * np.eye(1)) for scale in (1.0, 2.0)]
    first, second = (account(view, Privacy(participation=EveryStep(1), **ZERO_OUT), noise_std=1.0) for view in views)
    refuses("compose only against the same attackers", first.compose_with, second)
    refuses("unnamed trust models cannot", lambda: first.compose_with(dataclasses.replace(second, notes=("x",))))


def test_nodes_whose_labels_read_alike_are_not_merged():
    W = gossip.metropolis_hastings(nx.relabel_nodes(nx.path_graph(3), {0: 1, 1: "1", 2: 2}))
    guarantee = account(algorithms.dp_dsgd(mfdl.Dynamics(W), EveryStep(2)), Privacy(**GIVEN), noise_std=1.0)
    refuses("read alike", guarantee.by_victim)


def test_no_node_passes_for_all():
    W = gossip.metropolis_hastings(nx.relabel_nodes(nx.path_graph(3), {0: "every node"}))
    losses = Losses.from_algorithm(algorithms.dp_dsgd(mfdl.Dynamics(W), EveryStep(2)), Privacy(trust.LDP(), **ZERO_OUT))
    refuses("no node may be called 'every node'", losses.by_victim, 1.0)


def test_calibrated_guarantees_know_every_victim():
    for algorithm in (BINS, algorithms.dp_dsgd(RING, EveryStep(2))):
        guarantee = calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), epsilon=1.0, delta=1e-5).guarantee
        assert guarantee.by_victim().keys() == {"0", "1", "2", "3"}
        assert all(curve.epsilon(1e-5) <= 1.0 for curve in guarantee.by_victim().values())


def test_a_mu_is_met_by_no_curve_without_one():
    curve = account(BINS, Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0).curve
    unsupported("has no mu", lambda: Target(mu=1.0).missed_by(curve))
    assert not Target(mu=1.0).missed_by(Gaussian(1.0, "zero-out"))


def test_victims_of_secret_batches_are_nodes():
    for victims in ([100], [], [-1]):
        refuses("victim", Losses.from_algorithm, BINS, Privacy(trust.LDP(), **ZERO_OUT), victims=victims)
    single = Losses.from_algorithm(BINS, Privacy(trust.LDP(), **ZERO_OUT), victims=[2])
    assert [loss.victim for loss in single.sensitivities] == [2]


PATH = algorithms.dp_dsgd(dynamics_on("path:n=3"), Cyclic(2, 2))


@given(40, data=st.data(), adjacency=st.sampled_from(ADJACENCIES), noise_std=st.sampled_from([0.0, 0.5, 3.0]))
def test_every_statement_is_of_the_same_losses(data, adjacency, noise_std):
    algorithm = data.draw(linear_algorithms(max_epochs=2, max_period=2))
    model = data.draw(trust_models(algorithm))
    release = data.draw(st.sampled_from([None, "none", "average", "all"]))  # more than a view need hold
    options = {"trust": model, "adjacency": adjacency, "clip_norm": 0.7, "release": release}
    losses = Losses.from_algorithm(algorithm, Privacy(**options))
    guarantee = losses.guarantee(noise_std)
    assert guarantee == account(algorithm, Privacy(**options), noise_std=noise_std)
    each = losses.by_victim(noise_std)
    assert each == guarantees(algorithm, losses.sensitivities, noise_std=noise_std, **(options | {"release": None}))
    assert guarantee.mu == max(g.mu for g in each)
    shift = losses.privacy.record_shift
    assert [g.mu for g in each] == [x.mu(record_shift=shift, noise_std=noise_std) for x in losses.sensitivities]
    rows = losses.table()
    assert [row["sensitivity_squared"] for row in rows] == [x.sensitivity_squared for x in losses.sensitivities]
    assert all(row["adaptive_sensitivity_squared"] <= losses.worst.squared for row in rows)
    if 0 < losses.worst.squared < math.inf:
        mechanism = calibrate(algorithm, Privacy(**options), mu=1.0)
        assert mechanism.guarantee == losses.calibrate(mu=1.0)
        assert mechanism.guarantee.mu <= 1.0
        assert mechanism.guarantee.sensitivity == losses.worst.value


def test_a_multiple_of_the_sensitivity():
    losses = Losses.from_algorithm(PATH, Privacy(trust.LDP(), adjacency="replace-one", clip_norm=0.5))
    assert losses.noise_std(noise_multiplier=2.0) == pytest.approx(2 * losses.worst.value)  # record shift 1
    for both in ({}, {"noise_std": 1.0, "noise_multiplier": 1.0}):
        refuses("exactly one of noise_std", losses.noise_std, **both)
    silent = Losses.from_algorithm(algorithms.dsgd(PATH.dynamics, EveryStep(2)), Privacy(trust.LDP(), **ZERO_OUT))
    refuses("finite sensitivity; give noise_std", silent.noise_std, noise_multiplier=1.0)


def test_the_worst_of_several_attackers_is_explained():
    C = np.tril(np.random.default_rng(0).normal(size=(4, 4)), -1) + np.eye(4)
    algorithm = algorithms.mf_dsgd(dynamics_on("path:n=3", 0.5), EveryStep(4), C)
    for loss in sensitivity_by_victim(algorithm, trust.AnyReceiver(), method="certified"):
        assert bool(loss.explanation()) == (loss.adaptive_bound != "exact")
