"""One way of naming things, over every registry, and what public objects say of themselves."""

import inspect

import numpy as np
import pytest
from vocabulary import ZERO_OUT, each, given, refuses, st

import mfdl
from mfdl import BallsInBins, Cyclic, EveryStep, InvalidInput, MinSeparation, gossip, graphs, partition, released, trust
from mfdl.algorithms.registry import MECHANISMS, OF_BALLS_IN_BINS
from mfdl.dynamics import SCHEDULES
from mfdl.gossip.builders import MATRICES
from mfdl.graphs.named import GRAPHS
from mfdl.objective.error_weights import STEP_WEIGHTS
from mfdl.participation import CyclicPoisson, MinSeparationSampling, OncePerEpoch, RandomAllocation, Single
from mfdl.participation.schemes import SCHEMES
from mfdl.runs.named_nodes import Named
from mfdl.spec import TYPES, Registry, kebab_case, parse
from mfdl.training.clipping import CLIP_RULES
from mfdl.training.step_rules import STEP_RULES
from mfdl.training.tasks import TASKS

REGISTRIES = [
    *(GRAPHS, MATRICES, SCHEDULES, STEP_WEIGHTS, CLIP_RULES, STEP_RULES),
    *(released.MODELS, TASKS, partition.PARTITIONS, trust.base.MODELS),
    *(MECHANISMS, OF_BALLS_IN_BINS, SCHEMES),
]
ENTRIES = [pytest.param(registry, name, id=f"{registry.kind} {name}") for registry in REGISTRIES for name in registry]
OTHERWISE = {"all", "released", "none", "digits-mlp", "housing-mlp", "housing-linear", "mnist-mlp"}
"""Names that are not those of their functions: a builtin, names of other things, one function under several names."""

keys = st.text("abcdefghij_", min_size=1, max_size=8)
values = st.text("abc019.+-", min_size=1, max_size=8)


@given(100, name=keys, settings=st.lists(st.tuples(keys, values), max_size=4))
def test_a_written_text_is_read_back(name, settings):
    text = f"{name}: " + " , ".join(f"{key} = {value}" for key, value in settings)
    assert parse(text) == (name, tuple(settings))


@given(100, name=keys, texts=st.lists(values, max_size=4))
def test_values_by_position_are_read_back(name, texts):
    assert parse(":".join([name, *texts])) == (name, tuple((None, text) for text in texts))


@pytest.mark.parametrize(("registry", "name"), ENTRIES)
def test_a_name_is_the_kebab_case_of_its_function(registry, name):
    entry = registry[name]
    assert entry.help
    assert name == kebab_case(name)
    assert name in OTHERWISE or name == kebab_case(entry.build.__name__)
    known = set(inspect.signature(entry.build).parameters)
    assert set(entry.parameters) <= set(entry.free) <= set(entry.signature) <= known
    assert set(entry.fixed) <= known - set(entry.signature)


@pytest.mark.parametrize(("registry", "name"), ENTRIES)
def test_what_fits_no_parameter_is_refused_with_the_known_ones(registry, name):
    entry = registry[name]
    refuses(f"unknown {registry.kind} .* Known: .*{name}", registry.make, "no-such-thing")
    refuses(f"{registry.kind} {name}", registry.make, f"{name}:no_such_key=1")
    for parameter in entry.parameters.values():
        refuses("is given twice", entry.arguments, [(parameter.name, "1"), (parameter.name, "1")])
        misspelt = f"{parameter.name}x"
        refuses(f"unknown parameter '{misspelt}'; did you mean .* Known: ", entry.arguments, [(misspelt, "1")])
        if parameter.type is not str:
            refuses(f"{name}: {parameter.name} must be .*, got 'much'", entry.arguments, [(parameter.name, "much")])
    too_many = ":".join([name, *["1"] * 9])
    if not any(parameter.type is str for parameter in entry.parameters.values()):
        refuses(r"is written|key=value", registry.make, too_many)


@pytest.mark.parametrize(("registry", "name"), ENTRIES)
def test_examples_are_complete(registry, name):
    entry = registry[name]
    if entry.example:
        named, arguments = registry.read(entry.example)
        assert named is entry
        named.require_complete(arguments)
        assert all(type(arguments[key]) is entry.parameters[key].type for key in arguments)


SHAPES = Registry("shape", supplied=("scale",))


@SHAPES.register(example="flat-box:width=3")
def flat_box(scale: float, width: int, depth: float = 0.5, round: bool = False, label: "np.ndarray | str" = "") -> list:
    """A box without height."""
    return [scale, width, depth, round, label]


@SHAPES.register(name="cube", fixed={"depth": 2.0}, example="cube:width=3")
def tall_box(width: int, depth: float, corners: np.ndarray | None = None) -> tuple[int, float, object]:
    """A box of one height."""
    return width, depth, corners


def test_a_thing_is_made_from_a_text_and_from_python():
    assert SHAPES.make("flat-box:width=4, depth=1e-3,round=TRUE,label=a:b", scale=2.0) == [2.0, 4, 1e-3, True, "a:b"]
    assert SHAPES.make("flat-box:width=4", given={"label": "c"}, scale=1.0) == [1.0, 4, 0.5, False, "c"]
    assert SHAPES.make("cube", given={"width": 1, "corners": 7}, scale=1.0) == (1, 2.0, 7)
    assert list(SHAPES["cube"].parameters) == ["width"]
    depth = SHAPES["flat-box"].parameters["depth"]
    assert (depth.type, depth.default, depth.required) == (float, 0.5, False)
    assert {kind.__name__ for kind in TYPES.values()} == set(TYPES)


@each(
    "text, message",
    ("flat-bx", "unknown shape 'flat-bx'; did you mean 'flat-box'. Known: cube, flat-box."),
    ("flat-box", "shape flat-box needs the parameter 'width'; e.g. flat-box:width=3."),
    ("flat-box:3", "parameters are written key=value, got '3'; e.g. flat-box:width=3."),
    ("flat-box:width=3,", "parameters are written key=value, got ''"),
    ("flat-box:width=3,scale=2", "unknown parameter 'scale'"),
    ("flat-box:width=3.5", "width must be an integer of at most 18 digits, got '3.5'"),
    ("flat-box:width=" + "9" * 5000, "width must be an integer of at most 18 digits, got '999"),
    ("flat-box:width=3,round=maybe", "round must be true or false, got 'maybe'"),
    ("flat-box:width=3,depth=deep", "depth must be a number, got 'deep'"),
    ("cube:width=3,depth=1", "shape cube: unknown parameter 'depth'.* Known: width; e.g. cube:width=3."),
    ("cube:width=3,corners=1", "unknown parameter 'corners'"),
)
def test_a_text_that_names_nothing_is_refused_in_words(text, message):
    with pytest.raises(InvalidInput, match=message) as refused:
        SHAPES.make(text, scale=1.0)
    assert len(str(refused.value)) < 200


def test_a_name_is_given_once():
    refuses("shape 'cube' is registered already", lambda: SHAPES.register(name="cube")(flat_box))
    for name in (None, 3, ["cube"]):
        refuses("unknown shape", SHAPES.entry, name)


def test_schemes_of_a_run():
    run = {"epochs": 3, "period": 4, "steps": 12, "rate": 0.1}
    public = [Cyclic(3, 4), Single(12), EveryStep(12), OncePerEpoch(3, 4), MinSeparation(12, 3, 4)]
    secret = [BallsInBins(3, 4), CyclicPoisson(3, 4, 0.1), RandomAllocation(3, 4), MinSeparationSampling(12, 4, 0.1)]
    wanted = [*public, *secret]
    assert [entry.from_run(**run) for entry in SCHEMES.values()] == wanted
    assert [entry.build.scheme for entry in SCHEMES.values()] == list(SCHEMES)


def test_a_registered_function_is_there_by_name(monkeypatch):
    for registry in (GRAPHS, MATRICES, SCHEDULES, trust.base.MODELS):
        monkeypatch.setattr(registry, "_registered", dict(registry._entries))

    @GRAPHS.register(example="wheel:n=5")
    def wheel(n: int):
        """A ring around node 0."""
        rim = range(1, n)
        return range(n), [(0, u) for u in rim] + [(u, u % (n - 1) + 1) for u in rim]

    @MATRICES.register()
    def lazy(graph):
        """Half of the average stays."""
        W = gossip.metropolis_hastings(graph).dense()
        return gossip.from_array((np.eye(len(W)) + W) / 2, graph)

    @trust.base.MODELS.register(seen="those they receive", gradients_known="none", noise_known="none")
    def insiders(attackers=(), radius: int = 2):
        """Some nodes, or an outsider."""
        assert radius == 2
        return trust.PNDP(attackers) if attackers else trust.Eavesdropper()

    named = Named(graphs.load("path:n=3"), attackers="1,0")
    named.require_used(["insiders"])
    assert named.model("insiders") == trust.PNDP(("0", "1"))
    outsider = Named(graphs.load("path:n=3"))
    outsider.require_used(["insiders"])
    assert outsider.model("insiders") == trust.Eavesdropper()
    refuses("belongs to trust model pndp or secure-sum", named.require_used, ["ldp"])
    refuses("--all-attackers", lambda: Named(graphs.load("path:n=3"), all_attackers=True).require_used(["insiders"]))
    assert (graphs.load("wheel:n=5").number_of_edges(), graphs.load_sparse("wheel:n=5").num_edges) == (8, 8)
    assert graphs.names()["wheel"] == "wheel:n=5 -- A ring around node 0."
    assert gossip.load("lazy", "wheel:n=5").dense().diagonal().min() > 0.5


GRAPH = mfdl.graphs.load("ring:n=40")
W = mfdl.gossip.metropolis_hastings(GRAPH)
DYNAMICS = mfdl.Dynamics(W, np.full(80, 0.5))
CYCLIC = mfdl.Cyclic(10, 8)


@pytest.fixture(scope="module")
def objects():
    algorithm = mfdl.algorithms.mafalda(DYNAMICS, CYCLIC)
    trust = mfdl.trust.LDP()
    privacy = mfdl.Privacy(trust, adjacency="replace-one", clip_norm=1.0)
    mechanism = mfdl.calibrate(algorithm, privacy, epsilon=3.0, delta=1e-5)
    task = mfdl.tasks.digits(40)
    run = mfdl.replay(mechanism, task, seeds=[0, 1], stop_after=8)
    question = mfdl.Privacy(trust, **ZERO_OUT)
    losses = mfdl.losses(algorithm, question)
    short_dynamics, few = mfdl.Dynamics(W, 0.5), mfdl.EveryStep(4)
    return [
        W, mfdl.gossip.sequence([W] * 30), DYNAMICS, CYCLIC, algorithm, trust, mechanism, mechanism.guarantee,
        losses.worst, algorithm.factorization, task, run, *run.seeds, question, losses, *losses.sensitivities[:2],
        algorithm.kinds[0], algorithm.noise, mfdl.trust.PNDP([0]).view(algorithm, 1), mfdl.View(np.eye(90), np.eye(90)),
        algorithm.workload(), mfdl.ErrorWeights(np.ones(500)), mfdl.NoiseKey.from_seed(0),
        mfdl.participation.ParticipationByNode([CYCLIC] * 500),
        mfdl.participation.Explicit([[i] for i in range(900)], 900),
        task.instance(0, 8), mfdl.partition.Fixed(np.arange(900)), mfdl.factorization.problem(DYNAMICS, CYCLIC),
        mfdl.trust.TrustModel.from_masks(seen=np.ones((900, 40), bool)), mfdl.trust.Colluding(list(range(5))),
        mfdl.algorithms.corn(short_dynamics, few).factorization,
        mfdl.algorithms.kronecker(short_dynamics, few).factorization,
        mfdl.audit.reconstruct(mfdl.trust.PNDP([0]).view(mfdl.algorithms.dsgd(short_dynamics, few), 1)),
    ]  # fmt: skip


def test_no_public_object_prints_a_page(objects):
    lengths = {type(x).__name__: len(repr(x)) for x in objects}
    assert {name: n for name, n in lengths.items() if n >= 1500} == {}


def test_what_counts_is_in_the_sentence(objects):
    repr_by_class = {type(x).__name__: repr(x) for x in objects}
    assert "mafalda on 40 nodes, 80 steps" in repr_by_class["Mechanism"]
    for part in ("epsilon = 3 at delta = 1e-05", "replace-one", "clipping norm 1", "(ldp)"):
        assert part in repr_by_class["Mechanism"]
        assert part in repr_by_class["Run"]
    assert all(words in repr_by_class["Run"] for words in ("8 of 80 steps", "standard deviation over seeds"))
    assert "% above the optimum (certified: no objective is below" in repr_by_class["Factorization"]


def test_notebooks_get_a_table_and_a_picture(objects):
    for x in objects:
        if hasattr(x, "_repr_html_"):
            page = x._repr_html_()
            assert "<table>" in page
            assert repr(x).split(":")[0][:20] in page
    pages = {type(x).__name__: x._repr_html_() for x in objects if hasattr(x, "_repr_html_")}
    assert {"Mechanism", "LinearAlgorithm", "Factorization", "Losses"} <= pages.keys()
    assert all("<img" in pages[name] for name in ("Run", "Guarantee"))
    assert "at most" in pages["Factorization"]


def test_epsilon_is_told_at_the_delta_of_the_target_and_survives_a_file(tmp_path):
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, 0.5), mfdl.Cyclic(2, 2))
    privacy = mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT)
    by_epsilon = mfdl.calibrate(algorithm, privacy, epsilon=2.0, delta=1e-3).guarantee
    by_mu = mfdl.calibrate(algorithm, privacy, mu=1.0).guarantee
    assert "epsilon: 2 at delta = 0.001" in str(by_epsilon)
    assert "at delta = 1e-06" in str(by_mu)
    by_epsilon.save(tmp_path / "guarantee.json")
    again = mfdl.Guarantee.load(tmp_path / "guarantee.json")
    assert (again, again.stated_delta) == (by_epsilon, 1e-3)
    assert again.fingerprint == by_epsilon.fingerprint  # the delta of words is no part of what is sealed
    assert by_mu.to_dict()["epsilon"] == by_mu.epsilon(1e-6)
