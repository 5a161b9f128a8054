"""Builders by name and by definition: Muffliato, DECOR, node covariances, Zip-DL, noise over steps and nodes."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import Cyclic, Dynamics, ErrorWeights, EveryStep, algorithms, factorization, gossip, trust
from mfdl.algorithms import building, joint, kronecker, noise_error, per_mode, registry, spatio_temporal_noise
from mfdl.algorithms.registry import MECHANISMS, OF_BALLS_IN_BINS, parse_parameters
from mfdl.commands import main
from mfdl.factorization import NotConverged, optimal_joint, optimal_kronecker, optimal_per_mode
from mfdl.noise import JointNoise, SpatioTemporalNoise
from mfdl.objective import NoiseObjective
from mfdl.participation import Single
from mfdl.privacy import sensitivity_by_victim
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment
from mfdl.testing import gossip_matrices, gossip_messages

torch.set_num_threads(1)
MH = gossip.metropolis_hastings
RING, STAR, PATH = MH("ring:n=5"), MH("star:n=4"), MH("path:n=4")
SEQUENCE = gossip.sequence([STAR, MH("ring:n=4"), gossip.uniform("path:n=4")])
CLOSE = {"rtol": 1e-11, "atol": 1e-11}  # sums of at most a few hundred float64 products


def dense(operator):
    return operator @ np.eye(operator.shape[1])


def worst(algorithm, model):
    return max(loss.sensitivity_squared for loss in sensitivity_by_victim(algorithm, model))


# ---- Muffliato ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("W", [RING, SEQUENCE], ids=["constant", "varying"])
@pytest.mark.parametrize(("T", "K"), [(1, 1), (3, 1), (1, 3), (3, 2), (2, 4)])
def test_muffliato_is_the_formula(W, T, K):
    """A = B = W_KT (I_T (x) [I; 0]); models where gradients are taken follow K rounds after the last gradient."""
    algorithm = algorithms.muffliato(Dynamics(W, 0.5), EveryStep(T), gossip_rounds=K)
    n = W.num_nodes
    messages, final = gossip_messages(W, T, gossip_rounds=K, rate=0.5)
    assert_allclose(dense(algorithm.messages_from_gradients), messages, **CLOSE)
    assert_allclose(dense(algorithm.messages_from_noise), messages, **CLOSE)
    assert_allclose(dense(algorithm.models_from_gradients(final=True)), final, **CLOSE)
    before = np.zeros((T, n, T * n))
    for t in range(1, T):
        before[t] = W.at(t * K - 1).dense() @ messages[(t * K - 1) * n : t * K * n]
    assert_allclose(dense(algorithm.models_from_gradients()), before.reshape(T * n, T * n), **CLOSE)
    assert_allclose(dense(algorithm.models_from_noise()), before.reshape(T * n, T * n), **CLOSE)
    assert algorithm.step_of_round == tuple(r // K if r % K == 0 else -1 for r in range(K * T))
    if K == 1:
        plain = algorithms.dp_dsgd(Dynamics(W, 0.5), EveryStep(T))
        assert_allclose(dense(plain.messages_from_noise), messages, **CLOSE)


def test_gossip_rounds_may_come_with_the_dynamics():
    by_dynamics = algorithms.muffliato(Dynamics(RING, gossip_rounds=3), EveryStep(2))
    by_name = algorithms.build("muffliato", Dynamics(RING), EveryStep(2), gossip_rounds=3)
    assert by_dynamics.content_hash == by_name.content_hash
    for rounds in (0, -1, 1.5):
        refuses("gossip_rounds", algorithms.muffliato, Dynamics(RING), EveryStep(2), gossip_rounds=rounds)


# ---- DECOR ----------------------------------------------------------------------------------------------------------
@given(
    40, W=gossip_matrices(max_nodes=6), local=st.sampled_from([0.0, 0.5, 1.0]), pair=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_decor_covariance(W, local, pair, seed):
    """sigma_ldp^2 I + sigma_cor^2 L in every step, independent over steps, whatever the orientation."""
    dynamics, n, T = Dynamics(W), W.num_nodes, 2
    dense_W = W.dense()
    edges = [(i, j) for i in range(n) for j in range(i + 1, n) if dense_W[i, j] or dense_W[j, i]]
    assert sorted(tuple(sorted(e)) for e in dynamics.gossip.at(0).graph().edges) == edges
    signs = np.random.default_rng(seed).choice([-1, 1], len(edges)).tolist()
    L = np.zeros((n, n))
    for i, j in edges:
        L[np.ix_([i, j], [i, j])] += [[1, -1], [-1, 1]]
    R = local**2 * np.eye(n) + pair**2 * L
    for orientation in (None, signs):
        algorithm = algorithms.decor(dynamics, EveryStep(T), sigma_ldp=local, sigma_cor=pair, orientation=orientation)
        N = dense(algorithm.noise)
        assert_allclose(N @ N.T, np.kron(np.eye(T), R), **CLOSE)
        assert_allclose(algorithm.noise.variances(), np.tile(np.diagonal(R), (T, 1)), **CLOSE)
        holders = algorithm.noise.holders().toarray()
        # a column moves the injections of exactly the nodes that hold it
        assert (holders == (algorithm.noise.factor.toarray().T != 0)).all()
        assert (local > 0) * n + (pair > 0) * len(edges) == len(holders)
        assert sorted(holders.sum(axis=1)) == [1] * (n * (local > 0)) + [2] * (len(edges) * (pair > 0))


@pytest.mark.parametrize("bad", [{"sigma_ldp": -1.0}, {"sigma_cor": float("nan")}, {"orientation": [1, 1]}])
def test_decor_refuses(bad):
    refuses(".", lambda: algorithms.decor(Dynamics(RING), EveryStep(2), **bad))


# ---- any covariance over nodes ---------------------------------------------------------------------------------------
@given(30, n=st.integers(1, 5), rank=st.integers(1, 5), seed=st.integers(0, 999))
def test_spatial_covariance_reproduces_its_matrix(n, rank, seed):
    F = np.random.default_rng(seed).integers(-2, 3, (n, rank)).astype(float)
    F[0, 0] = 1.0
    R = F @ F.T
    algorithm = algorithms.spatial_covariance(Dynamics(MH(f"complete:n={n}")), EveryStep(2), R)
    N = dense(algorithm.noise)
    assert_allclose(N @ N.T, np.kron(np.eye(2), R), atol=1e-10 * np.abs(R).max())
    assert algorithm.noise.holders().toarray().all()  # one seed, all nodes


def test_groups_hold_the_seed():
    pair, alone = np.diag([1.0, 2.0, 0.0, 0.0]), np.diag([0.0, 0.0, 0.0, 4.0])
    pair[0, 1] = pair[1, 0] = 0.5
    algorithm = algorithms.spatial_covariance(Dynamics(STAR), EveryStep(2), [pair, alone], groups=[[0, 1], [3]])
    assert algorithm.noise.holders().toarray().tolist() == [[True, True, False, False]] * 2 + [[False] * 3 + [True]]
    F = algorithm.noise.factor.toarray()
    assert_allclose(F @ F.T, pair + alone, atol=1e-12)
    build, groups = algorithms.spatial_covariance, [[0, 1], [3]]
    refuses("must be zero outside the group", build, Dynamics(STAR), EveryStep(2), [pair, pair], groups=groups)
    refuses("one matrix per group, got 1 for 2 groups", build, Dynamics(STAR), EveryStep(2), pair, groups=groups)


@each(
    "R, text",
    (np.eye(3), "4 x 4"), (np.arange(16.0).reshape(4, 4), "symmetric"),
    (np.diag([1.0, 1.0, 1.0, -0.1]), "positive semidefinite"), (np.zeros((4, 4)), "not zero"),
    (np.full((4, 4), np.nan), "finite"), (np.ones(4), "covariance"),
)  # fmt: skip
def test_a_bad_covariance_is_refused(R, text):
    refuses(text, lambda: algorithms.spatial_covariance(Dynamics(STAR), EveryStep(2), R))


# ---- Zip-DL ---------------------------------------------------------------------------------------------------------
@given(30, W=gossip_matrices(min_nodes=2, max_nodes=5, kinds=("symmetric",)), sigma=st.sampled_from([1.0, 0.5]))
def test_zip_dl_noise_by_its_formula(W, sigma):
    """arXiv:2403.11795, Algorithm 1: variances, cancellation for the sender, nothing shared between senders."""
    algorithm = algorithms.zip_dl(Dynamics(W, 0.5), EveryStep(2), sigma=sigma)
    dense_W, n = W.dense(), W.num_nodes
    around = [np.flatnonzero((dense_W[:, a] != 0) | (np.arange(n) == a)) for a in range(n)]
    pairs = [(a, int(v)) for a in range(n) for v in around[a]]
    assert algorithm.message_sender.tolist() == [a for a, _ in pairs]
    F = algorithm.noise.factor.toarray()
    for row, (a, v) in enumerate(pairs):
        d, w = len(around[a]), dense_W[v, a]
        others = sum(dense_W[j, a] ** 2 for j in around[a] if j != v)
        expected = sigma**2 * ((1 - 1 / d) ** 2 + others / (d * w) ** 2)
        assert algorithm.noise.variances()[1, row] == pytest.approx(expected, rel=1e-10)
        assert not F[row, [other != a for other, _ in pairs]].any()
    weighted = np.array([dense_W[v, a] for a, v in pairs])
    assert_allclose(weighted @ F, 0, atol=1e-12)
    senders = np.array([a for a, _ in pairs])
    assert (algorithm.noise.holders().toarray() == (senders[:, None] == np.arange(n))).all()
    # so the average of the models never sees the noise, and moves as without any
    average = np.full((1, n), 1 / n)
    assert_allclose(average @ dense(algorithm.models_from_noise(final=True)), 0, atol=1e-12)
    _, final = gossip_messages(W, 2, rate=0.5)
    assert_allclose(dense(algorithm.models_from_gradients(final=True)), final, **CLOSE)
    assert algorithm.transmitted.tolist() == [a != v for a, v in pairs]
    heard = algorithms.zip_dl(Dynamics(W), EveryStep(2), self_messages=True)
    assert heard.transmitted.all()
    for row, (a, v) in enumerate(pairs):
        assert algorithm.rounds[0].receivers.toarray()[row].tolist() == [u == v != a for u in range(n)]
        assert heard.rounds[0].receivers.toarray()[row].tolist() == [u == v for u in range(n)]


@each(
    "refusal, dynamics, options, message",
    (refuses, Dynamics(gossip.uniform("star:n=4")), {}, "symmetric"),
    (refuses, Dynamics(gossip.from_array(np.array([[0.0, 1.0], [1.0, 0.0]]))), {}, "self weight"),
    (unsupported, Dynamics(gossip.sequence([STAR, MH("ring:n=4")])), {}, "constant gossip"),
    (unsupported, Dynamics(RING, gossip_rounds=2), {}, "constant gossip"),
    (unsupported, Dynamics(RING, momentum=0.5), {}, "neither momentum nor weight decay"),
    *((refuses, Dynamics(RING), {"sigma": sigma}, "sigma") for sigma in (0.0, -1.0, float("inf"))),
)
def test_zip_dl_refusals(refusal, dynamics, options, message):
    refusal(message, algorithms.zip_dl, dynamics, EveryStep(2), **options)


def test_batch_sizes_divide_gradients_but_not_message_noise():
    algorithm = algorithms.zip_dl(Dynamics(STAR), EveryStep(2))
    divided = algorithm.with_divisors([1, 2, 4, 8])
    assert_allclose(dense(divided.messages_from_noise), dense(algorithm.messages_from_noise), **CLOSE)
    scale = np.tile([1, 1 / 2, 1 / 4, 1 / 8], 2)
    assert_allclose(dense(divided.messages_from_gradients), dense(algorithm.messages_from_gradients) * scale, **CLOSE)


# ---- by name --------------------------------------------------------------------------------------------------------
def test_settings_become_arguments():
    assert parse_parameters("decor", ["sigma-cor=2", " sigma_ldp =0.5"]) == {"sigma_cor": 2.0, "sigma_ldp": 0.5}
    assert parse_parameters("muffliato", ["gossip_rounds=3"]) == {"gossip_rounds": 3}
    for text, value in (("true", True), ("False", False), ("1", True), ("0", False)):
        assert parse_parameters("zip-dl", [f"self_messages={text}"]) == {"self_messages": value}
    assert parse_parameters("dp-dsgd", []) == {}


@each(
    "name, text, message",
    ("decor", "sigma_cor", "key=value"),
    ("decor", "sigma_cors=2", "did you mean 'sigma_cor'"),
    ("decor", "sigma_cor=much", "sigma_cor must be a number, got 'much'"),
    ("muffliato", "gossip_rounds=2.5", "must be an integer"),
    ("zip-dl", "self_messages=yes", "must be true or false"),
    ("dp-dsgd", "sigma=1", "has no parameters"),
    ("file:x.npz", "sigma=1", "has no parameters"),
)
def test_bad_settings_are_refused(name, text, message):
    refuses(message, parse_parameters, name, [text])


PARAMETERS = {
    "cdp": {"average": "str"}, "bsr": {"bandwidth": "int"}, "bisr": {"bandwidth": "int"},
    "lambda-cgd": {"correlation": "float"}, "banded": {"bandwidth": "int"}, "toeplitz": {"bandwidth": "int"},
    "blt": {"buffers": "int"}, "band-inv": {"bandwidth": "int"}, "kronecker": {"coalition_size": "int"},
    "mafalda": {"measure": "str"}, "muffliato": {"gossip_rounds": "int", "polynomial": "str"},
    "delayed-dsgd": {"delay": "int"}, "two-hop-dsgd": {"share": "float"}, "local-steps": {"steps": "int"},
    "decor": {"sigma_ldp": "float", "sigma_cor": "float"},
    "corn": {"coalition_size": "int", "horizon": "int", "all_shared": "bool"},
    "corn-pairwise": {"horizon": "int", "all_shared": "bool"}, "zip-dl": {"sigma": "float", "self_messages": "bool"},
    "trust-optimal": {"published": "bool", "release": "str", "price": "float"},
}  # fmt: skip


def test_parameters_are_those_of_the_builders_that_decide_the_mechanism():
    """And none that says how an encoder is searched for, or that no text can say."""
    every = {**MECHANISMS, **OF_BALLS_IN_BINS}
    types = {name: {key: parameter.type_name for key, parameter in every[name].parameters.items()} for name in every}
    assert {name: kinds for name, kinds in types.items() if kinds} == PARAMETERS


# ---- what runs is what was accounted -------------------------------------------------------------------------------
LINE = dynamics_on("path:n=4", 0.5)
SCHEME = Cyclic(2, 2)
BUILDERS = {"kronecker": kronecker, "per-mode": per_mode, "joint": joint}
SOLVERS = {"kronecker": optimal_kronecker, "per-mode": optimal_per_mode, "joint": optimal_joint}
MARK = "last:2:0.1"


@pytest.mark.parametrize("name", registry.MECHANISMS)
def test_every_name_builds_and_runs_under_its_own_trust_models(name):
    given = {"muffliato": {"gossip_rounds": 2}, "bsr": {"bandwidth": 2}}.get(name, {})
    algorithm = algorithms.build(name, LINE, SCHEME, **given)
    assert algorithm.name == registry.check_name(name) == name
    assert (algorithm.num_steps, algorithm.num_nodes) == (4, 4)
    for model in registry.MECHANISMS[name].models[:1]:
        losses = sensitivity_by_victim(algorithm, trust.named(model), release=registry.MECHANISMS[name].release)
        assert all(0 < loss.sensitivity_squared < np.inf for loss in losses)


@pytest.mark.parametrize("name", registry.MECHANISMS)
def test_error_weights_are_for_those_that_optimise(name):
    weights, weighted = ErrorWeights.parse(MARK), registry.MECHANISMS[name].weighted
    if not weighted:
        refuses("optimises nothing, so it takes no error", algorithms.build, f"{name}@{MARK}", LINE, SCHEME)
        return
    plain, marked = (algorithms.build(text, LINE, SCHEME) for text in (name, f"{name}@{MARK}"))
    if name == "decor":  # without weights it builds a given ratio
        plain = registry.build_tuned(name, LINE, SCHEME)
        refuses("chooses sigma_ldp, sigma_cor", algorithms.build, f"{name}@{MARK}", LINE, SCHEME, sigma_cor=2.0)
    assert marked.name == f"{name}@{MARK}"
    costs = [noise_error(a, weights=weights).value * worst(a, trust.Eavesdropper()) for a in (plain, marked)]
    assert costs[1] < costs[0] * 0.999


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("options", [{}, {"weights": ErrorWeights.parse(MARK), "counted_models": "message"}])
def test_a_builder_is_its_factorization_and_the_noise_of_it(kind, options):
    algorithm, solved = BUILDERS[kind](LINE, SCHEME, **options), SOLVERS[kind](LINE, SCHEME, **options)
    assert algorithm.name == algorithm.factorization.kind == kind
    assert_allclose(algorithm.factorization.objective, solved.objective, rtol=2e-3)
    assert_allclose(noise_error(algorithm, **options).value, algorithm.factorization.objective, rtol=1e-8)
    assert isinstance(algorithm.noise, JointNoise if kind == "joint" else SpatioTemporalNoise)
    holders = algorithm.noise.holders().toarray()
    private = algorithm.factorization.space.private_variance if kind == "kronecker" else 0.0
    assert holders[-4:].all()  # the columns of the one seed
    assert_array_equal(holders[:4], np.eye(4, dtype=bool) if private else np.ones((4, 4), dtype=bool))
    assert spatio_temporal_noise(LINE, SCHEME, solved, name="mine").name == "mine"


def test_directions_and_encoders_belong_together():
    """The noise of `per_mode` is sum_k E_k E_k^T (x) g_k g_k^T: other pairs of the same parts cost more."""
    solved = optimal_per_mode(LINE, SCHEME)
    loss = noise_error(spatio_temporal_noise(LINE, SCHEME, solved)).value
    for other in (
        dataclasses.replace(solved, encoder=solved.encoder[::-1].copy()),
        dataclasses.replace(solved, directions=solved.directions[:, ::-1].copy()),
        dataclasses.replace(solved, directions=solved.directions.T.copy()),
    ):
        algorithm = spatio_temporal_noise(LINE, SCHEME, other)
        assert noise_error(algorithm).value * worst(algorithm, trust.Eavesdropper()) > loss * 1.05


def test_groups_reach_the_noise():
    triples = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3]]
    algorithm = kronecker(LINE, SCHEME, groups=triples, coalition_size=1)
    holders = {tuple(np.flatnonzero(row)) for row in algorithm.noise.holders().toarray()}
    assert {(u,) for u in range(4)} <= holders
    assert holders - {(u,) for u in range(4)} <= {tuple(sorted(group)) for group in triples}
    assert algorithm.factorization.coalition_size == 1
    tuned = registry.build_tuned("kronecker", dynamics_on("ring:n=4"), SCHEME, coalition_size=1)
    assert tuned.factorization.coalition_size == 1
    by_name = algorithms.build("kronecker", LINE, SCHEME, coalition_size=1)
    assert worst(by_name, trust.Coalitions(1)) <= 1 + 1e-6


def test_a_kind_that_is_none_is_refused():
    solved = optimal_kronecker(LINE, SCHEME)
    for change in ({"kind": "other"}, {"kind": "per-mode"}, {"space": None}, {"directions": np.eye(4)}):
        refuses("is one of kronecker, per-mode, joint", dataclasses.replace, solved, **change)
    refuses(None, lambda: dataclasses.replace(solved, status="stopped").require_converged(1e-4), error=NotConverged)


DYN = Dynamics(gossip.uniform("star:n=4"), 0.3)
PART = Cyclic(epochs=2, period=3)


@pytest.fixture
def saved(tmp_path):
    def save(header, nodes=False):
        make = factorization.factorize_nodes if nodes else factorization.factorize
        path = tmp_path / "encoder.npz"
        factorization.save(path, make(DYN, PART), grams=NoiseObjective(DYN, 6).over_steps(), header=header)
        return path

    return save


def test_an_unknown_name_is_refused_with_the_nearest():
    refuses("unknown mechanism 'mafalada'; did you mean", algorithms.build, "mafalada", DYN, PART)


@pytest.mark.parametrize("nodes", [False, True])
def test_a_file_gives_its_encoder(saved, nodes):
    path = saved({"participation": PART}, nodes)
    algorithm = algorithms.build(f"file:{path}", DYN, PART)
    wanted = algorithms.build("mafalda-l" if nodes else "mafalda", DYN, PART)
    assert_array_equal(algorithm.noise.encoder.array, wanted.noise.encoder.array)
    assert algorithm.name == f"file:{path}"


def test_a_file_for_another_participation_or_number_of_nodes_is_refused(saved):
    path = saved({"participation": PART})
    for other in (Cyclic(3, 2), Single(6)):
        refuses(r"was made for .*'period': 3.*factorize again", algorithms.build, f"file:{path}", DYN, other)
    path = saved({}, nodes=True)
    refuses(r"\(T, T\) or \(5", lambda: algorithms.build(f"file:{path}", Dynamics(gossip.uniform("star:n=5")), PART))
    refuses("T = 8 steps", lambda: algorithms.build(f"file:{path}", DYN, Cyclic(4, 2)))


def test_an_encoder_per_node_belongs_to_its_gossip_and_a_shared_one_goes_anywhere(saved):
    """Node 1 of a path is no leaf: encoders made for it would go to a leaf of the star."""
    path = gossip.metropolis_hastings("path:n=4")
    header = {"participation": PART, "gossip_hash": DYN.gossip.content_hash}
    by_node = saved(header, nodes=True)
    assert algorithms.build(f"file:{by_node}", DYN, PART).noise.encoder.array.shape == (4, 6, 6)
    refuses("encoder for each node of another", lambda: algorithms.build(f"file:{by_node}", Dynamics(path), PART))
    shared = saved(header)
    encoder = algorithms.build(f"file:{shared}", DYN, PART).noise.encoder.array
    for other in (path, gossip.metropolis_hastings("ring:n=7")):
        algorithm = algorithms.build(f"file:{shared}", Dynamics(other), PART)
        assert_array_equal(algorithm.noise.encoder.array, encoder)
        assert algorithm.factorization is None  # the loss in the file is not claimed of this graph


def test_a_file_that_is_none_is_refused(tmp_path):
    refuses("cannot read", algorithms.build, f"file:{tmp_path / 'missing.npz'}", DYN, PART)
    np.savez(tmp_path / "other.npz", encoder=np.eye(6))
    refuses("is no factorization that mfdl wrote", algorithms.build, f"file:{tmp_path / 'other.npz'}", DYN, PART)


# ---- noise that nodes share, where it counts as known -------------------------------------------------------------
@pytest.mark.parametrize("name", [*MECHANISMS])
def test_shared_noise_is_told_by_its_holders_as_the_table_tells_it(name):
    """One rule for mechanisms by name, files and algorithms of one's own."""
    parameters = {"decor": {"sigma_ldp": 1.0, "sigma_cor": 2.0}}.get(name, {})
    algorithm = algorithms.build(name, dynamics_on("star:n=4", 0.3), Cyclic(1, 2), **parameters)
    shared = building.shares_noise(algorithm)
    assert shared == (registry.MECHANISMS[name].models[:1] == ("eavesdropper",))
    for trust_model in building.ALONE:
        assert bool(building.misplaced(algorithm, trust_model)) == shared
    assert building.misplaced(algorithm, "eavesdropper") == ""


@pytest.mark.parametrize("name", [name for name, entry in MECHANISMS.items() if entry.takes("horizon")])
@pytest.mark.slow
def test_noise_made_for_one_step_says_so_in_a_run_of_several(name, tmp_path):
    def built(name, steps, **parameters):
        return registry.build_tuned(name, DYN, Cyclic(1, steps), **parameters)

    note = registry.shortsighted(built(name, 3))
    assert f"{name} minimises the noise in the models after one step, as published, but this run has 3 steps" in note
    assert (registry.shortsighted(built(name, 1)), registry.shortsighted(built(f"{name}@all", 3))) == ("", "")
    path = tmp_path / "noise.npz"
    factorization.save(path, built(name, 3).factorization, header={})
    assert note.removeprefix(name) in registry.shortsighted(registry.build(f"file:{path}", DYN, Cyclic(1, 3)))
    mechanism = mfdl.calibrate(built(name, 3), mfdl.Privacy(mfdl.trust.Eavesdropper(), **ZERO_OUT), noise_std=0.1)
    task = mfdl.tasks.digits(4)
    assert note in mfdl.replay(mechanism, task, seeds=[0]).judged.advice
    config = Experiment(
        graph="star:n=4", epochs=1, period=3, seeds=1, trust="eavesdropper", mechanisms=(name, f"{name}@all")
    )
    advice = run_comparison(config, tmp_path / "compared", progress=False)["advice"]
    assert [note == warning for warning in advice if "one step" in warning] == [True]


def test_python_says_so_as_the_command_line_does(capsys):
    """`calibrate` and `account` note it, `mfdl account` says the same words, a ranking refuses."""
    corn = algorithms.corn(DYN, Cyclic(1, 2))
    guarantee = mfdl.calibrate(corn, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), mu=1.0).guarantee
    note = building.misplaced(corn, "ldp")
    assert "noise shared between nodes is assumed to be known" in note
    assert "eavesdropper, coalitions, colluding" in note
    assert note in str(guarantee)
    assert note in mfdl.account(corn, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), noise_std=1.0).why
    assert mfdl.account(corn, mfdl.Privacy(mfdl.trust.Eavesdropper(), **ZERO_OUT), noise_std=1.0).why == ""
    command = ("account", "--graph", "star:n=4", "--mechanism", "corn", "--epochs", "1", "--period", "2", "--json")
    assert main([*command]) == 0
    assert note in json.loads(capsys.readouterr().out)["guarantee"]
