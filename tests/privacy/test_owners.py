"""Records of several owners against enumerated joint patterns; attackers that a symmetry takes to others."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from small_tasks import regression
from vocabulary import ZERO_OUT, assume, dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import Privacy, account, algorithms, privacy, trust
from mfdl.errors import InvalidInput
from mfdl.noise import CausalNoise, JointNoise, StepNoise
from mfdl.participation import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, ParticipationByNode
from mfdl.privacy import Owners, attacking_sets, sensitivity_by_victim
from mfdl.privacy.attacking_sets import Symmetries
from mfdl.privacy.victim_sensitivity import ADDED
from mfdl.testing.oracles import dense_noising, largest_over_patterns

RING = dynamics_on("ring:n=4", 0.5)
PLAIN = algorithms.dp_dsgd(RING, Cyclic(2, 2))
SOLVER = 2e-6  # relative accuracy of the reference solver


def joint_patterns(scheme, owners, *, same_steps):
    """Sets of pairs (place of the owner, step), listed anew."""
    of_owners = [[tuple(pattern.tolist()) for pattern in scheme.at_node(u).patterns()] for u in owners]
    chosen = zip(*of_owners, strict=True) if same_steps else itertools.product(*of_owners)
    T = scheme.num_steps
    return [tuple(i * T + t for i, steps in enumerate(each) for t in steps) for each in chosen]


def over_nodes(draw, T, n):
    """Noise local to nodes, over nodes, over time and nodes; all injections seen."""
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    C = np.tril(rng.integers(-2, 3, (T, T)) / 2, -1) + np.eye(T)
    factor = np.eye(n) + rng.integers(-1, 2, (n, n)) / 4
    kind = draw(st.sampled_from(["local", "fresh", "kronecker", "per column", "joint"]))
    everybody = np.ones((n, n), dtype=bool)
    if kind == "joint":
        return JointNoise(np.tril(rng.integers(-1, 2, (T * n, T * n)) / 2, -1) + np.eye(T * n), T, n)
    if kind == "local":
        return CausalNoise(C, num_steps=T, num_nodes=n)
    encoder = {"fresh": None, "kronecker": C, "per column": np.stack([C * (1 + k) for k in range(n)])}[kind]
    return CausalNoise(encoder, factor, everybody, num_steps=T, num_nodes=n)


@st.composite
def owned(draw):
    """(algorithm, owners, same_steps, X_S of one who sees every injection, from dense matrices)."""
    T, n = draw(st.sampled_from([2, 3])), 3
    schemes = [EveryStep(T), Cyclic(1, T), MinSeparation(T, 2, 2), OncePerEpoch(1, T), Explicit([[0], [T - 1]], T)]
    same_steps = draw(st.booleans())
    of_nodes = [draw(st.sampled_from(schemes)) for _ in range(1 if same_steps else n)]
    scheme = of_nodes[0] if same_steps else ParticipationByNode(of_nodes)
    dynamics = dynamics_on("path:n=3", 1.0)
    plain = algorithms.dp_dsgd(dynamics, EveryStep(T))
    algorithm = dataclasses.replace(plain, noise=over_nodes(draw, T, n))
    owners = draw(st.sampled_from([(0, 1), (0, 2), (1, 2), (0, 1, 2)]))
    N = dense_noising(algorithm)
    assume(np.linalg.svd(N, compute_uv=False)[-1] > 1e-3)
    inverse = np.linalg.inv(N @ N.T)
    columns = [t * n + u for u in owners for t in range(T)]
    return algorithm, scheme, owners, same_steps, inverse[np.ix_(columns, columns)]


@given(60, case=owned())
def test_the_joint_sensitivity_is_the_maximum_over_joint_patterns(case):
    algorithm, scheme, owners, same_steps, X = case
    truth = largest_over_patterns(X, joint_patterns(scheme, owners, same_steps=same_steps))
    (loss,) = privacy.sensitivity_by_victim(
        algorithm, trust.Eavesdropper(), victims=[owners], participation=scheme, owners=Owners(same_steps=same_steps)
    )
    assert loss.adaptive
    assert loss.sensitivity_squared >= truth * (1 - SOLVER)
    lower = loss.non_adaptive_sensitivity.lower
    assert lower <= truth * (1 + SOLVER)
    if loss.bound == "exact":
        assert loss.sensitivity_squared == pytest.approx(truth, rel=SOLVER)
    else:
        assert same_steps  # owners without common noise, worst in different steps


@given(30, case=owned())
def test_a_joint_record_loses_at_least_what_each_copy_does_and_at_most_their_sum(case):
    algorithm, scheme, owners, same_steps, _ = case
    ask = {"participation": scheme, "owners": Owners(same_steps=same_steps)}
    *alone, joint = privacy.sensitivity_by_victim(algorithm, trust.Eavesdropper(), victims=[*owners, owners], **ask)
    roots = [math.sqrt(loss.sensitivity_squared) for loss in alone]
    assert max(roots) * (1 - SOLVER) <= math.sqrt(joint.sensitivity_squared) <= sum(roots) * (1 + SOLVER)


def test_without_common_noise_squares_add_and_copies_in_the_same_steps_lose_no_more():
    for same in (False, True):
        owners = Owners(same_steps=same)
        alone, joint = privacy.sensitivity_by_victim(PLAIN, trust.LDP(), victims=[0, (0, 1, 3)], owners=owners)
        assert joint.sensitivity_squared == pytest.approx(3 * alone.sensitivity_squared)
        assert joint.bound == "exact"
    differing = ParticipationByNode([Explicit([[0, 1], [2, 3]], 4), EveryStep(4), EveryStep(4), EveryStep(4)])
    ask = {"victims": [(0, 1)], "owners": Owners(same_steps=True)}
    refuses("same_steps", lambda: privacy.sensitivity_by_victim(PLAIN, trust.LDP(), participation=differing, **ask))


def test_hidden_messages_have_a_joint_number_below_the_sum_and_an_owner_that_attacks_knows_the_record():
    ask = {"victims": [0, 3, (3, 0), (0, 1)], "release": "none"}
    alone, other, joint, attacks = privacy.sensitivity_by_victim(PLAIN, trust.PNDP([1]), **ask)
    assert (joint.victim, joint.bound) == ((0, 3), "exact")
    added = (math.sqrt(alone.sensitivity_squared) + math.sqrt(other.sensitivity_squared)) ** 2
    assert alone.sensitivity_squared < joint.sensitivity_squared < added
    assert math.isinf(attacks.sensitivity_squared)
    assert "one of the attackers" in attacks.explanation()


def test_where_every_attacking_set_has_an_owner_the_losses_of_the_owners_are_added():
    three = algorithms.dp_dsgd(dynamics_on("path:n=3"), EveryStep(2))
    alone, joint = privacy.sensitivity_by_victim(three, trust.Coalitions(2), victims=[0, (0, 1)])
    assert (joint.sensitivity_squared, joint.bound) == (pytest.approx(4 * alone.sensitivity_squared), "upper")
    assert joint.non_adaptive_sensitivity.form == ADDED
    assert "added up" in joint.explanation()


def test_an_infinite_sum_over_owners_that_no_attacker_attains_is_an_upper_bound():
    """The other node knows the noise of the only edge, but holds the record itself."""
    dynamics = dynamics_on("path:n=2")
    pair = algorithms.decor(dynamics, EveryStep(2), sigma_ldp=0.0, sigma_cor=1.0)
    alone, joint = privacy.sensitivity_by_victim(pair, trust.Coalitions(1), victims=[0, (0, 1)])
    assert math.isinf(alone.sensitivity_squared)
    assert math.isinf(joint.sensitivity_squared)
    assert (alone.bound, joint.bound) == ("exact", "upper")


@pytest.mark.parametrize("name", ["dp-dsgd", "decor", "mafalda"])
def test_full_collusion_against_owners_is_the_view_of_all_other_nodes(name):
    dynamics = dynamics_on("ring:n=4", learning_rate=0.1)
    options = {"sigma_ldp": 1.0, "sigma_cor": 2.0} if name == "decor" else {}
    algorithm = algorithms.build(name, dynamics, EveryStep(3), **options)
    groups = [(0, 1), (0, 2), (0, 1, 2, 3)]
    full = privacy.sensitivity_by_victim(algorithm, trust.FullCollusion(), victims=groups)
    for group, loss in zip(groups, full, strict=True):
        others = [u for u in range(4) if u not in group]
        model = trust.Colluding(tuple(others)) if others else trust.Eavesdropper()
        (view,) = privacy.sensitivity_by_victim(algorithm, model, victims=[group])
        assert loss.sensitivity_squared == pytest.approx(view.sensitivity_squared)
        assert loss.bound == view.bound == "exact"
    if name == "dp-dsgd":
        (alone,) = privacy.sensitivity_by_victim(algorithm, trust.FullCollusion(), victims=[0])
        assert full[0].sensitivity_squared == pytest.approx(2 * alone.sensitivity_squared)  # was 4 times, as a sum


def test_attackers_of_a_subclass_of_full_collusion_count_against_owners_too():
    class Leaking(trust.FullCollusion):
        """Noise of the first step leaks besides."""

        def members(self, algorithm):
            n, leaked = algorithm.num_nodes, np.zeros((algorithm.num_steps, algorithm.noise.columns_per_step), bool)
            leaked[0] = True
            for u in range(n):
                others = [v for v in range(n) if v != u]
                yield trust.TrustModel.from_masks(seen=np.ones(n, bool), known_noise=leaked, attackers=others), (u,)

    alone, joint = privacy.sensitivity_by_victim(PLAIN, Leaking(), victims=[0, (0, 1)])
    assert math.isinf(alone.sensitivity_squared)
    assert math.isinf(joint.sensitivity_squared)  # was that of all messages and no noise


def test_shift_reduction_adds_the_owners():
    ask = {"victims": [0, 3, (0, 3)], "release": "none", "lipschitz": 0.5}
    alone, other, joint = privacy.sensitivity_by_victim(PLAIN, trust.PNDP([1]), **ask)
    roots = math.sqrt(alone.adaptive_sensitivity_squared) + math.sqrt(other.adaptive_sensitivity_squared)
    assert joint.adaptive_sensitivity_squared <= roots**2 * (1 + 1e-9)
    assert joint.adaptive_sensitivity_squared >= alone.adaptive_sensitivity_squared


def test_a_bare_view_has_joint_numbers():
    A, B = np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([[1.0, 0.25], [0.25, 1.0]])
    (loss,) = privacy.view_losses(mfdl.View(A, B, num_nodes=2), EveryStep(1), [(0, 1)])
    X = A.T @ np.linalg.inv(B @ B.T) @ A
    assert loss.sensitivity_squared == pytest.approx(X.trace() + 2 * abs(X[0, 1]))
    question = Privacy(participation=EveryStep(1), owners=2, **ZERO_OUT)
    everybody = account(mfdl.View(A, B, num_nodes=2), question, noise_std=1.0)
    assert everybody.mu == pytest.approx(math.sqrt(loss.sensitivity_squared))


def test_a_guarantee_names_the_owners_and_keeps_them_in_files(tmp_path):
    mechanism = mfdl.calibrate(PLAIN, Privacy(trust.LDP(), owners=2, **ZERO_OUT), mu=1.0)
    guarantee = mechanism.guarantee
    assert guarantee.noise_std == pytest.approx(2.0)
    assert dict(guarantee.fields())["owners"].startswith("any 2 nodes may hold the same record, each owner")
    assert "a record of every node, also held by any 2 nodes" in guarantee.sentence()
    assert mfdl.Guarantee.from_dict(guarantee.to_dict()) == guarantee
    mechanism.save(tmp_path / "owned.mfdl")
    assert mfdl.Mechanism.load(tmp_path / "owned.mfdl").guarantee == guarantee
    losses = mfdl.losses(PLAIN, Privacy(trust.LDP(), **ZERO_OUT), victims=[(0, 3), 2])
    of_node, of_group = losses.by_victim(1.0)
    assert (of_node.victim, of_node.owners) == ("2", Owners())
    assert (of_group.victim, of_group.owners) == ("0 and 3", Owners([(0, 3)]))
    assert "for a record held by nodes 0 and 3" in of_group.sentence()
    assert [row["victim"] for row in losses.table()] == ["2", "0 and 3"]
    with pytest.raises(InvalidInput, match="same owners"):
        guarantee.compose_with(account(PLAIN, Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0))


def test_named_groups_count_beside_the_nodes():
    single_owner, two, pair = (
        account(PLAIN, Privacy(trust.LDP(), owners=owners, **ZERO_OUT), noise_std=1.0) for owners in (1, 2, [(0, 3)])
    )
    assert single_owner.mu < two.mu == pair.mu
    assert set(pair.by_victim()) == {"0", "1", "2", "3", "0 and 3"}


@each(
    "accounted, declared, covered",
    (1, 1, True), (1, 2, False), (2, 2, True), (2, [(0, 3)], True), (2, [(0, 1, 2)], False),
    ([(0, 1, 2)], [(0, 2)], True), ([(0, 1)], 2, False), (Owners(2, same_steps=True), 2, False),
    (Owners(2, same_steps=True), 1, True),
)  # fmt: skip
def test_training_refuses_records_of_more_owners_than_accounted(accounted, declared, covered):
    mechanism = mfdl.calibrate(PLAIN, Privacy(trust.LDP(), owners=accounted, **ZERO_OUT), mu=1.0)
    task = regression(record_owners=declared)
    if covered:
        mfdl.replay(mechanism, task, seeds=[0])
    else:
        refuses(r"may be held by .* calibrate with owners=", mfdl.replay, mechanism, task, seeds=[0])


@each(
    "given, why",
    ({"owners": 0}, "owners must be"),
    ({"owners": 5}, "at most the 4 nodes"),
    ({"owners": [(0, 0)]}, "two or more distinct"),
    ({"owners": [(0, 9)]}, "node index below 4"),
    ({"owners": []}, r"groups of nodes such as \[\(0, 3\)\]"),
    ({"owners": 2, "unit": "user", "participation": EveryStep(4)}, "takes no owners"),
)
def test_owners_that_make_no_sense_are_refused(given, why):
    refuses(why, lambda: account(PLAIN, Privacy(trust.LDP(), **given, **ZERO_OUT), noise_std=1.0))


def test_secret_batches_and_too_many_groups_are_refused():
    bins = algorithms.dp_dsgd(RING, mfdl.BallsInBins(epochs=2, bins=2))
    unsupported("public batches", lambda: account(bins, Privacy(trust.LDP(), owners=2, **ZERO_OUT), noise_std=1.0))
    unsupported("public batches alone", lambda: mfdl.losses(bins, Privacy(trust.LDP(), **ZERO_OUT), victims=[(0, 1)]))
    large = algorithms.dp_dsgd(dynamics_on("ring:n=200"), EveryStep(1))
    unsupported("19900 groups", lambda: account(large, Privacy(trust.LDP(), owners=2, **ZERO_OUT), noise_std=1.0))


GRAPHS = ("ring:n=5", "torus:rows=3,cols=3", "hypercube:dim=3", "path:n=5", "star:n=5", "florentine")
NAMES = ("dp-dsgd", "muffliato", "mafalda", "gradient-tracking", "delayed-dsgd", "decor", "corn", "cdp")


def built(spec, name="dp-dsgd", steps=3, rounds=1):
    dynamics = dynamics_on(spec, 0.1, gossip_rounds=rounds)
    return algorithms.build(name, dynamics, EveryStep(steps))


def counted(monkeypatch):
    calls, against = [], attacking_sets._Asked.against
    monkeypatch.setattr(attacking_sets._Asked, "against", lambda *args: calls.append(1) or against(*args))
    return calls


@given(
    12, st.sampled_from(GRAPHS), st.sampled_from(NAMES), st.integers(1, 2), st.sampled_from([None, "none", "average"])
)
def test_losses_are_those_of_each_attacker(spec, name, rounds, release):
    algorithm = built(spec, name, rounds=rounds if name == "muffliato" else 1)
    options = {"release": release, "progress": False}
    together = sensitivity_by_victim(algorithm, trust.AnyReceiver(), **options)
    for loss in together:
        others = [u for u in range(algorithm.num_nodes) if u != loss.node]
        alone = [
            sensitivity_by_victim(algorithm, trust.PNDP([f"#{u}"]), victims=[loss.node], **options)[0] for u in others
        ]
        for adaptive in (False, True):
            largest = max(one.number(adaptive=adaptive).squared for one in alone)
            assert_allclose(loss.number(adaptive=adaptive).squared, largest, rtol=1e-9)


@pytest.mark.parametrize(("spec", "orbits"), [("ring:n=7", 1), ("hypercube:dim=3", 1), ("path:n=7", 4)])
def test_one_attacker_of_an_orbit_is_accounted(monkeypatch, spec, orbits):
    calls = counted(monkeypatch)
    sensitivity_by_victim(built(spec, rounds=2, name="muffliato"), trust.AnyReceiver(), progress=False)
    assert len(calls) == orbits


def changed_weight(algorithm):
    """One weight of one round larger by its last bit."""
    kind = algorithm.kinds[0]
    weights = sp.csr_array(kind.state_from_message)
    data = weights.data.copy()
    data[0] = np.nextafter(data[0], 1.0)
    turned = kind.with_maps(state_from_message=sp.csr_array((data, weights.indices, weights.indptr), weights.shape))
    return dataclasses.replace(algorithm, rounds=(turned, *algorithm.rounds[1:]))


def louder_node(algorithm):
    louder = np.diag([2.0, 1, 1, 1, 1, 1, 1])
    return dataclasses.replace(algorithm, noise=StepNoise(louder, np.eye(7, dtype=bool), 3, 7))


@pytest.mark.parametrize("change", [changed_weight, louder_node])
def test_what_differs_in_a_bit_is_no_symmetry(change):
    algorithm = change(built("ring:n=7"))
    symmetries = Symmetries(algorithm, algorithm.participation)
    assert all(symmetries.taking(0, u) is None for u in range(2, 6))
