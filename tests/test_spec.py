"""One way of naming things: what a text names, over every registry, and what is refused."""

import inspect

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

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
from mfdl.training.clip_rules import CLIP_RULES
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


@examples(100)
@given(name=keys, settings=st.lists(st.tuples(keys, values), max_size=4))
def test_a_written_text_is_read_back(name, settings):
    text = f"{name}: " + " , ".join(f"{key} = {value}" for key, value in settings)
    assert parse(text) == (name, tuple(settings))


@examples(100)
@given(name=keys, texts=st.lists(values, max_size=4))
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
    ],
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
    assert [entry.of_run(**run) for entry in SCHEMES.values()] == wanted
    assert [entry.build.scheme for entry in SCHEMES.values()] == list(SCHEMES)


# ---- one registration at the definition is enough --------------------------------------------------------------------


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
    assert graphs.load("wheel:n=5").number_of_edges() == 8
    assert graphs.load_sparse("wheel:n=5").num_edges == 8
    assert graphs.names()["wheel"] == "wheel:n=5 -- A ring around node 0."
    assert gossip.load("lazy", "wheel:n=5").dense().diagonal().min() > 0.5
