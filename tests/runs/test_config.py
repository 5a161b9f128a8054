"""What a sweep's config expands to, which cells are one, and how a file with a mistake is answered."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from vocabulary import each, given, refuses, st

import mfdl
from mfdl.runs import Cell, Tuning
from mfdl.runs.experiment import Experiment
from mfdl.runs.option_files import OptionFile
from mfdl.runs.sweep_config import SweepConfig, SweepFile

BASE = Experiment(graph="ring:n=4", epochs=2, period=3, seeds=1, mechanisms=("mafalda",), mu=2.0)


def distinct(values, most=3):
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True)


@given(
    50, mechanisms=distinct(["none", "dp-dsgd", "mafalda", "corn", "bsr"], 4),
    trust=distinct(["ldp", "eavesdropper", "full-collusion"]), graph=distinct(["ring:n=4", "path:n=3", "star:n=5"]),
    task=distinct(["digits", "rotated-quadratics"]), mu=distinct([0.25, 0.5, 1.0, 2.0]),
    rates=distinct([0.1, 0.3, 0.5]), weights=distinct(["all", "last:2:0.1"]), seeds=st.integers(1, 3),
)  # fmt: skip
@pytest.mark.slow
def test_cells_are_the_product_in_order_but_for_what_makes_no_difference(
    mechanisms, trust, graph, task, mu, rates, weights, seeds
):
    options = {"mechanisms": tuple(mechanisms), "trust": trust, "graph": graph, "task": task, "mu": mu}
    options |= {"learning_rate": rates, "error_weights": tuple(weights), "seeds": seeds, "epochs": 2, "period": 2}
    if "corn" in mechanisms and "eavesdropper" not in trust:
        refuses(r"mechanism 'corn@.* is meant for eavesdropper", SweepConfig, **options)
        return
    named = []
    for name in mechanisms:
        named += [f"{name}@{text}" for text in weights] if name in ("mafalda", "corn") else [name]
    wanted = []
    for g, t, who, name in itertools.product(graph, task, trust, named):
        if name.startswith("corn") and who != "eavesdropper":
            continue
        for budget, rate, seed in itertools.product(mu, rates, range(seeds)):
            where = ("ldp", None) if name == "none" else (who, budget)
            wanted.append((g, t, *where, name, rate, seed))
    config = SweepConfig(**options)
    cells = [
        (c.config.graph, c.config.task, c.config.trust, c.config.mu, c.mechanism, c.config.learning_rate, c.seed)
        for c in config.cells()
    ]
    assert cells == list(dict.fromkeys(wanted))
    assert config.cells(seeds=[7, 8]) == [
        Cell(dataclasses.replace(cell.config, first_seed=seed))
        for cell in SweepConfig(**options | {"seeds": 1}).cells()
        for seed in (7, 8)
    ]


def test_options_go_to_the_trust_model_that_they_belong_to():
    config = SweepConfig(trust=["ldp", "coalitions", "pndp"], coalition_size=1, attackers=["0"], graph="ring:n=4")
    combinations = {(c.config.trust, c.config.coalition_size, c.config.attackers) for c in config.cells()}
    assert combinations == {("ldp", None, None), ("coalitions", 1, None), ("pndp", None, ("0",))}
    refuses("attackers belongs to trust model pndp", SweepConfig, trust=["ldp"], attackers=["0"])


def test_settings_go_to_their_mechanism_and_a_lone_mechanism_across_models_has_its_own():
    config = SweepConfig(
        mechanisms=("muffliato", "cdp"), settings=("muffliato.gossip_rounds=3",), trust=["ldp", "eavesdropper"],
        across_trust_models=True,
    )  # fmt: skip
    settings = [(c.mechanism, c.config.trust, c.config.settings) for c in config.cells(seeds=[0])]
    muffliato = [("muffliato", trust, ("muffliato.gossip_rounds=3",)) for trust in ("ldp", "eavesdropper")]
    assert settings == [muffliato[0], ("cdp", "ldp", ()), muffliato[1]]


@pytest.mark.slow
def test_of_ten_thousand_cells_each_has_its_name_and_graph_and_task_are_made_once(monkeypatch):
    loaded = []
    load, content_hash = mfdl.graphs.load, mfdl.graphs.content_hash
    monkeypatch.setattr(mfdl.graphs, "load", lambda *a, **k: loaded.append("graph") or load(*a, **k))
    monkeypatch.setattr(mfdl.graphs, "content_hash", lambda g: loaded.append("hash") or content_hash(g))
    load_task = mfdl.tasks.load
    monkeypatch.setattr(mfdl.tasks, "load", lambda *a, **k: loaded.append("task") or load_task(*a, **k))
    config = SweepConfig(
        graph="ring:n=4", task="rotated-quadratics", seeds=50, mu=[0.1 * k for k in range(1, 11)],
        learning_rate=[0.01 * k for k in range(1, 11)], mechanisms=("dp-dsgd", "mafalda"),
    )  # fmt: skip
    cells = config.cells()
    assert len(cells) == len({cell.hash for cell in cells}) == 10_000
    assert loaded.count("hash") == loaded.count("task") == 1
    assert loaded.count("graph") <= 2  # gossip loads what is loaded


OTHERS = {
    "mechanisms": ("dp-dsgd",), "task": "digits-mlp", "epsilon": 3.0, "trust": "eavesdropper", "release": "none",
    "settings": (), "partition": "dirichlet:alpha=10", "adjacency": "zero-out", "unit": "user", "graph": "path:n=4",
    "gossip": "uniform", "metrics": ("train_loss",), "eval_every": 2, "lr_schedule": "inverse-sqrt",
    "clip_schedule": "inverse-sqrt", "clipping": "automatic:0.5", "polynomial": "least-noise",
    "release_model": "average:2", "precondition": "power:0.5", "step_rule": "rms:0.5:0.9:0.05",
}  # fmt: skip
BELONGS = {  # to a trust model or mechanism that is not the first one's
    "attackers": ({"trust": "pndp"}, ("0",)),
    "colluders": ({"trust": "colluding", "colluders": ("1",)}, ("0",)),
    "coalition_size": ({"trust": "coalitions", "coalition_size": 1}, 2),
    "settings": ({"mechanisms": ("bsr",)}, ("bsr.bandwidth=2",)),
    "error_weights": ({}, ("last:2:0.1",)),
    "curvature": ({}, "power:1:20"),
    "epsilon": ({"mu": None}, 3.0),
    "design": ({"mechanisms": ("dp-dsgd",), "epochs": 20, "period": 16}, "dp-dsgd,b=2,k=3"),
    "participation": ({"mu": None, "epsilon": 3.0}, "balls-in-bins"),
    "sampling_rate": ({"mu": None, "epsilon": 3.0, "participation": "cyclic-poisson", "sampling_rate": 0.5}, 0.25),
}


def other_value(name, value):
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, bool):
        return not value
    assert isinstance(value, int | float), f"say in OTHERS what else {name} can be"
    return value + 1 if isinstance(value, int) else value / 2 if value else 0.25


DECIDING = [name for name in Experiment.fields() if name not in (*Experiment.deciding("nothing"), "seeds")]


@pytest.mark.parametrize("name", [*DECIDING, "first_seed"])
def test_a_cell_is_named_by_everything_that_decides_its_numbers(name):
    changed, value = BELONGS.get(name, ({}, None))
    plain = dataclasses.replace(BASE, **changed)
    value = other_value(name, getattr(plain, name)) if value is None else value
    first, second = Cell(plain), Cell(dataclasses.replace(plain, **{name: value}))
    assert first.hash != second.hash
    assert first != second


@given(20, jobs=st.integers(1, 9), device=st.sampled_from([None, "cpu"]), order=st.permutations(range(4)))
def test_where_it_is_computed_and_how_it_is_written_names_nothing(jobs, device, order, tmp_path_factory):
    data_home = tmp_path_factory.getbasetemp()
    options = [("mu", 2), ("learning_rate", 1), ("clip_norm", 1), ("settings", ["bsr.bandwidth=2"])]
    common = {"graph": "ring:n=4", "mechanisms": ["bsr"], "seeds": 1, "task": "rotated-quadratics"}
    first = Cell(Experiment(**common, **dict(options)))
    where = {"jobs": jobs, "device": device, "data_home": data_home}
    written = {name: float(value) if isinstance(value, int) else value for name, value in options}
    second = Cell(Experiment(**where, **{options[k][0]: written[options[k][0]] for k in order}, **common))
    assert (first.hash, first.options) == (second.hash, second.options)


def test_without_noise_no_budget_and_no_attacker_names_a_cell():
    plain = dataclasses.replace(BASE, mechanisms=("none",))
    others = [{"trust": "eavesdropper"}, {"trust": "pndp", "attackers": ("0",)}]
    changes = [{"mu": 0.5}, {"mu": None, "epsilon": 3.0}, *others]
    cells = {Cell(dataclasses.replace(plain, **changed)) for changed in changes}
    assert len(cells) == len({cell.hash for cell in cells}) == 1


def test_files_of_one_name_are_told_apart_by_their_content(tmp_path):
    file = tmp_path / "g.csv"
    hashes = set()
    for text in ("0,1\n1,2\n2,3\n", "0,1\n1,2\n2,3\n3,0\n"):
        file.write_text(text)
        hashes.add(Cell(dataclasses.replace(BASE, graph=str(file))).hash)
    assert len(hashes) == 2


FILE = """\
# comment
mechanisms = ["none", "mafalda", "dp-dsgd"]
graph = "ring:n=4"
epochs = 2

period = 3
[sweep]
mu = [0.5, 2]
lr = [0.1, 0.3]
seeds = 2
[tuning]
seeds = 3
"""


def test_a_file_is_the_config_of_python(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(FILE)
    config = SweepConfig(
        mechanisms=("none", "mafalda", "dp-dsgd"), graph="ring:n=4", epochs=2, period=3, mu=[0.5, 2],
        learning_rate=[0.1, 0.3], seeds=2, tuning=Tuning(seeds=3),
    )  # fmt: skip
    loaded = SweepConfig.load(path)
    assert (loaded.options(), loaded.cells()) == (config.options(), config.cells())
    assert len(SweepConfig.load(path, seeds=1).cells()) == len(config.cells()) // 2
    json.dumps(config.options(), allow_nan=False)


@each(
    "old, new, line, message",
    ("mu = [0.5, 2]", "mu = [0.5, 0]", 8, "mu: mu must be"),
    ("mu = [0.5, 2]", 'mu = [0.5, "2"]', 8, "mu: must be a number, got '2'"),
    ("mu = [0.5, 2]", "mu = [0.5, 0.5]", 8, "mu: mu must hold distinct values, got 0.5 twice"),
    ("mu = [0.5, 2]", "mu = []", 8, "mu: mu must hold at least one value"),
    ("mu = [0.5, 2]", "mu = 1\nepsilon = 2", 9, "epsilon: give one privacy target"),
    ("mu = [0.5, 2]", "muu = 1", 8, "muu: unknown key; did you mean 'mu'? Known: across-trust-models"),
    ("seeds = 2", "seeds = 2.5", 10, "seeds: must be an integer, got 2.5"),
    ("seeds = 2", "seeds = 0", 10, "seeds: seeds must be an integer >= 1"),
    ("lr = [", "lr = [0, ", 9, "lr: learning_rate must be"),
    ("mafalda", "mafald", 2, "mechanisms: unknown mechanism 'mafald'; did you mean 'mafalda'? Known: anti-pgd"),
    ('["none", ', '["corn", ', 2, "mechanisms: mechanism 'corn' is meant for eavesdropper"),
    ("epochs = 2", 'trust = "eavesdroper"', 4, "trust: unknown trust model 'eavesdroper'; did you mean"),
    ("epochs = 2", 'trust = ["ldp", "coalitions"]', 4, "trust: trust model coalitions needs coalition_size"),
    ("epochs = 2", 'attackers = "0"', 4, "attackers: attackers belongs to trust model pndp or secure-sum; those"),
    ("[tuning]\nseeds = 3", "[tuning]\nseed = 3", 12, "seed: unknown key; did you mean 'seeds'?"),
    ("[tuning]\nseeds = 3", "[tuning]\nshare = 2", 12, "share: share must be"),
    ("[tuning]\nseeds = 3", "[tuning]\nfirst-seed = 1", 12, "first-seed: seed 1 would be used for tuning"),
    ("[tuning]", "[tunning]", 11, "tunning: unknown table; known: sweep, tuning"),
)
def test_a_mistake_is_told_with_its_line_and_what_is_allowed(tmp_path, old, new, line, message):
    path = tmp_path / "s.toml"
    assert old in FILE
    path.write_text(FILE.replace(old, new, 1))
    with pytest.raises(mfdl.InvalidInput) as caught:
        SweepConfig.load(path)
    assert str(caught.value).startswith(f"{path}, line {line}, {message}"), str(caught.value)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "s.toml"
    refuses(r"cannot read .*No such file", SweepFile.read, path)
    path.write_bytes(b"\xff")
    refuses("not UTF-8", SweepFile.read, path)
    path.write_text("mu = [1\nlr = 2")
    refuses(r"is not valid TOML: .*line 2", SweepFile.read, path)


def test_refusals_in_python():
    refuses("unknown option 'lr'", SweepConfig, lr=1.0)
    refuses("learning_rate must be", SweepConfig, learning_rate=[0.1, -1.0])
    refuses("seed 3 would be used for tuning", lambda: SweepConfig(seeds=4, tuning=Tuning(first_seed=3)))
    refuses("lower --first-seed", Tuning, first_seed=2**63 - 4, seeds=5)


def test_a_cell_is_named_by_the_content_of_its_curvature(tmp_path):
    path, cells = tmp_path / "spectrum.npy", []
    for eigenvalues in ([1.0, 0.5], [1.0, 0.25]):
        np.save(path, eigenvalues)
        options = {"graph": "ring:n=3", "seeds": 1, "epochs": 1, "period": 2}
        cell = Cell(Experiment(**options, mechanisms=(f"mafalda@all/curvature={path}",)))
        cells.append((cell.options, cell.hash))
    assert cells[0][0] == cells[1][0]
    assert cells[0][1] != cells[1][1]


@each("name, content", ("options.toml", 'graph = "ring:n=4"\n'), ("run.json", '{"config": {"graph": "ring:n=4"}}'))
def test_a_byte_order_mark_begins_a_file_of_options(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8-sig")
    assert OptionFile(path, "--config").content == {"graph": "ring:n=4"}
