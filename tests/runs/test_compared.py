"""`mfdl.compare`: objects and names in every place, one store for every door; evaluated steps read back row by row."""

import csv
import dataclasses
import functools
import itertools
import json
import math
import pickle
import re

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis.extra import numpy as numbers
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st

import mfdl
from mfdl import Cyclic, Privacy, algorithms, trust
from mfdl.commands import main
from mfdl.runs import Store, load_steps
from mfdl.runs.compared import COLUMNS, privacy_options
from mfdl.runs.experiment import Experiment
from mfdl.runs.rendering import booktabs, points
from mfdl.runs.store import CONDITIONS, RunSteps, save_steps
from mfdl.spec import Given, given_value, text_label

PRIVACY = Privacy(trust.LDP(), **ZERO_OUT)
SMALL = {"epochs": 2, "period": 2, "learning_rate": 0.1, "seeds": 2, "progress": False}
GRAPH = nx.relabel_nodes(nx.cycle_graph(4), dict(enumerate("abcd")))


def squared(output, target):
    return (output.squeeze() - target) ** 2


@functools.cache
def task(slope=1.0):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 3)).astype(np.float32)
    targets = (slope * features.sum(axis=1)).astype(np.float32)
    return mfdl.tasks.from_module(
        "slopes", GRAPH, kind="regression", build_module=functools.partial(torch.nn.Linear, 3, 1), loss=squared,
        features=features[:32], targets=targets[:32], test_features=features[32:], test_targets=targets[32:],
    )  # fmt: skip


def two_bands(dynamics, participation):
    return algorithms.bsr(dynamics, participation, bandwidth=2)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "own"
    mechanisms = ["none", "dp-dsgd", two_bands]
    return mfdl.compare(mechanisms, graph=GRAPH, task=task(), privacy=PRIVACY, mu=[0.5, 2.0], out=out, **SMALL)


class TestObjects:
    def test_every_mechanism_meets_every_budget_under_its_label(self, compared):
        budgets = {(row["mechanism"], row["mu"]) for row in compared.table()}
        assert budgets == {("none", "inf"), *((name, mu) for name in ("dp-dsgd", "two_bands") for mu in (0.5, 2.0))}
        assert all(list(row) == list(COLUMNS) for row in compared.table())
        assert "own:" not in repr(compared)
        assert "own:" not in compared.to_latex()
        for (_, mu), run in compared.runs.items():
            if run.name != "none":
                assert run.mechanism.guarantee.mu == pytest.approx(mu)

    def test_an_algorithm_a_mechanism_and_the_function_that_builds_it_have_the_same_numbers(self, compared):
        dynamics = dynamics_on(GRAPH, 0.1)
        algorithm = two_bands(dynamics, Cyclic(2, 2))
        mechanism = mfdl.calibrate(algorithm, PRIVACY, mu=9.0)
        losses = [row["final_test_loss_mean"] for row in compared.table() if row["mechanism"] == "two_bands"]
        for own in (algorithm, mechanism):
            again = mfdl.compare([own], graph=GRAPH, task=task(), privacy=PRIVACY, mu=[0.5, 2.0], **SMALL)
            assert [row["final_test_loss_mean"] for row in again.table()] == pytest.approx(losses, rel=1e-5)

    def test_a_second_call_trains_nothing_and_another_task_trains_anew(self, compared, monkeypatch):
        mechanisms = ["none", "dp-dsgd", two_bands]
        where = {"graph": GRAPH, "privacy": PRIVACY, "mu": [0.5, 2.0], "out": compared.folder}
        before = set(Store(compared.folder / "runs").hashes)

        def trained(*_, **__):
            raise AssertionError

        monkeypatch.setattr("mfdl.runs.running.replays", trained)
        assert mfdl.compare(mechanisms, task=task(), **where, **SMALL).table() == compared.table()
        refuses(r"of another comparison \(task", lambda: mfdl.compare(mechanisms, task=task(2.0), **where, **SMALL))
        other = where | {"mu": [0.5, 1.0]}
        refuses(
            r"\(mu \[0.5, 2.0\] there, \[0.5, 1.0\] here\)", mfdl.compare, mechanisms, task=task(), **other, **SMALL
        )
        assert set(Store(compared.folder / "runs").hashes) == before

    def test_a_number_that_is_an_index_and_another_node_s_label_is_refused(self):
        privacy = Privacy(trust.PNDP([1]), **ZERO_OUT)
        numbered = nx.relabel_nodes(nx.cycle_graph(4), {0: 1, 1: 2, 2: 3, 3: 4})
        given = {"graph": numbered, "task": "digits", "privacy": privacy, "mu": 1.0, **SMALL}
        refuses("write '1' for the label, or '#1' for the index", mfdl.compare, ["dp-dsgd"], **given)

    def test_a_run_that_is_not_there_and_a_folder_that_is_a_file(self, compared, tmp_path):
        keys = r"no run 'none'; runs have keys \(mechanism, budget\): \('none', 0.5\)"
        refuses(keys, compared.runs.__getitem__, "none", error=KeyError)
        (tmp_path / "file").write_text("")
        refuses("it is a file; give a folder", compared.export, tmp_path / "file")

    def test_more_seeds_mechanisms_and_budgets_go_on_in_the_same_folder(self, tmp_path):
        where = {"graph": GRAPH, "task": task(), "privacy": PRIVACY, "out": tmp_path / "out"}
        few = mfdl.compare(["dp-dsgd"], mu=[0.5, 2.0], **where, **SMALL | {"seeds": 1})
        trained = set(Store(few.folder / "runs").hashes)
        more = mfdl.compare(["dp-dsgd", "none"], mu=[0.5, 1.0, 2.0], **where, **SMALL | {"seeds": 2})
        assert trained < set(Store(few.folder / "runs").hashes)
        assert [row["mechanism"] for row in more.table()].count("dp-dsgd") == 3
        fewer = {"mu": [0.5, 1.0, 2.0], **where, **SMALL, "seeds": 1}
        refuses("seeds 2 there, 1 here", mfdl.compare, ["dp-dsgd", "none"], **fewer)

    def test_a_trust_model_of_masks_is_the_trust_model_of_each_mechanism(self):
        """It sees every message, and knows what node 0 computes, as node 0 does: the same losses as without node 0."""
        insider = mfdl.TrustModel.from_masks(
            seen=lambda algorithm: trust.Eavesdropper().knowledge(algorithm, 0).seen, attackers=["a"], name="insider"
        )
        privacy = Privacy(insider, **ZERO_OUT)
        result = mfdl.compare(["dp-dsgd", two_bands], graph=GRAPH, task=task(), privacy=privacy, mu=1.0, **SMALL)
        assert {row["trust"] for row in result.table()} == {"insider"}
        for run in result.runs.values():
            assert run.mechanism.trust is insider
            accounted = mfdl.account(run.mechanism.algorithm, privacy, noise_std=run.mechanism.noise_std)
            assert accounted.mu == pytest.approx(1.0)

    def test_a_task_of_other_nodes_is_refused_also_where_a_mechanism_is_trained(self):
        """The nodes e, f, g, h in another order: budgets of nodes would be met by the noise of others."""
        other = nx.relabel_nodes(GRAPH, dict(zip("abcd", "dcbe", strict=True)))
        given = {"graph": other, "task": task(), "privacy": PRIVACY, "mu": 1.0, **SMALL}
        refuses("holds the records of other nodes: its node 0 is 'a'", mfdl.compare, ["dp-dsgd"], **given)
        dynamics = dynamics_on(other, 0.1)
        mechanism = mfdl.calibrate(algorithms.dp_dsgd(dynamics, Cyclic(2, 2)), PRIVACY, mu=1.0)
        refuses("build the task for the mechanism's graph", lambda: mfdl.replay(mechanism, task(), seeds=[0]))

    def test_mechanisms_of_one_name_and_two_sources_of_one_condition_are_refused(self, tmp_path):
        def mafalda(dynamics, participation):
            return two_bands(dynamics, participation)

        own = {"graph": GRAPH, "task": task(), "mu": 1.0, **SMALL}
        refuses("two are called 'mafalda'", mfdl.compare, ["mafalda", mafalda], **own)
        refuses("privacy and the options both say", mfdl.compare, ["dp-dsgd"], privacy=PRIVACY, clip_norm=2.0, **own)
        refuses("unknown option 'epoch'; did you mean", mfdl.compare, ["dp-dsgd"], epoch=3, **own)
        refuses("unknown option 'lr'; it is called", mfdl.compare, ["dp-dsgd"], lr=0.1, **own)
        gossip = mfdl.gossip.metropolis_hastings("ring:n=4")
        refuses(
            "gossip must have the nodes of the graph in their order", mfdl.compare, ["dp-dsgd"], gossip=gossip, **own
        )
        (tmp_path / "own.toml").write_text("[privacy]\nmu = 0.1\n")
        refuses(r"line 1, privacy: unknown table", mfdl.compare, config=tmp_path / "own.toml")

    @each(
        "changed, message",
        ({"graph": 3}, "graph must be a networkx graph, the name of one or a file, got 3"),
        ({"task": "no-such"}, "no-such"), ({"task": 3}, "task must be a Task"),
        ({"graph": "ring:n=5"}, "task has 4 nodes but the mechanism has 5"),
        ({"partition": "uniform"}, "the task given has its own"),
        ({"mechanisms": [3]}, "a mechanism must be a name, a LinearAlgorithm, or a function"),
        ({"mechanisms": [lambda *_: 3]}, "mechanism must be a LinearAlgorithm"),
        ({"gossip": np.eye(3)}, "one row per node of the graph"),
        ({"epsilon": 1.0, "mu": None}, "epsilon needs a delta"), ({"mu": []}, "mu must hold at least one value"),
        ({"mu": "much"}, "mu must be a number or several"), ({"privacy": "ldp"}, "privacy must be a Privacy"),
        ({"privacy": Privacy(owners=2, **ZERO_OUT)}, "a comparison takes no owners"),
        ({"privacy": Privacy(participation=Cyclic(3, 2), **ZERO_OUT)}, "privacy and the options both say epochs"),
        ids=itertools.count(),
    )  # fmt: skip
    def test_what_cannot_be_compared_is_refused(self, tmp_path, changed, message):
        asked = {"mechanisms": ["dp-dsgd"], "graph": GRAPH, "task": task(), "privacy": PRIVACY, "mu": 1.0} | changed
        refuses(message, mfdl.compare, **asked, out=tmp_path / "out", **SMALL)
        assert not (tmp_path / "out" / "results.json").exists()

    def test_an_algorithm_of_another_run_is_refused_with_the_difference(self):
        gossip = mfdl.gossip.metropolis_hastings(GRAPH)
        for dynamics, scheme, message in (
            (dynamics_on("ring:n=4", 0.1), Cyclic(2, 2), "of other nodes than this graph has"),
            (mfdl.Dynamics(gossip, 0.1), Cyclic(2, 3), "and this run has cyclic"),
            (mfdl.Dynamics(gossip, 0.2), Cyclic(2, 2), "has other learning rates"),
        ):
            own = {"graph": GRAPH, "task": task(), "privacy": PRIVACY, **SMALL}
            refuses(message, mfdl.compare, [algorithms.dp_dsgd(dynamics, scheme)], **own)


class TestGiven:
    def test_a_text_with_its_object_survives_a_worker(self):
        given = Given.named("a b,c", "f" * 64, task())
        again = pickle.loads(pickle.dumps(given))
        assert again == given == "own:a-b-c:" + "f" * 16
        assert (again.value.content_hash, text_label(given)) == (task().content_hash, "a-b-c")

    def test_a_text_without_its_object_is_refused(self):
        assert given_value("ring:n=4", "graph") == "ring:n=4"
        refuses("give the object again", lambda: given_value(str(Given.named("mine", "0" * 16, None)), "task"))

    def test_equal_objects_are_equal_options(self):
        same = [Experiment(graph=graph, task=task()) for graph in (GRAPH, GRAPH.copy())]
        assert same[0] == same[1]
        assert Experiment(graph=nx.path_graph(4)) != Experiment(graph=nx.cycle_graph(4))
        json.dumps(same[0].options())


class TestDoors:
    def test_python_toml_and_the_command_line_fill_one_store(self, tmp_path, capsys):
        rows = "".join(f"{row % 7},{row % 5 / 4}\n" for row in range(40))
        (tmp_path / "own.csv").write_text(f"age,price\n{rows}")
        text = f"{tmp_path}/own.csv:target=price"
        options = {"graph": "ring:n=4", "task": text, "epochs": 1, "period": 2, "seeds": 1, "adjacency": "zero-out"}
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in options.items()]
        (tmp_path / "own.toml").write_text("".join([*lines, 'mechanisms = ["dp-dsgd"]\nmu = [0.5, 2]\nlr = 0.1\n']))
        out, toml, flags = (str(tmp_path / name) for name in ("python", "toml", "flags"))
        mfdl.compare(["dp-dsgd"], mu=[0.5, 2], learning_rate=0.1, out=out, progress=False, **options)
        mfdl.compare(config=tmp_path / "own.toml", out=f"{toml}-in-python", progress=False)
        assert main(["compare", "--config", str(tmp_path / "own.toml"), "--out", toml]) == 0
        flagged = [f"--{name}={value}" for name, value in options.items()]
        assert main(["compare", *flagged, "--mechanism=dp-dsgd", "--mu=0.5,2", "--lr=0.1", "--out", flags]) == 0
        capsys.readouterr()
        stores = [Store(f"{folder}/runs").hashes for folder in (out, f"{toml}-in-python", toml, flags)]
        assert len(stores[0]) == 2
        assert all(hashes == stores[0] for hashes in stores)

    @each(
        "privacy, options",
        (Cyclic(3, 2), {"participation": "cyclic", "epochs": 3, "period": 2}),
        (mfdl.BallsInBins(3, 2), {"participation": "balls-in-bins", "epochs": 3, "period": 2}),
        (mfdl.participation.RandomAllocation(3, 2), {"participation": "random-allocation", "epochs": 3, "period": 2}),
        ids=str,
    )
    def test_the_participation_of_a_privacy_is_that_of_the_options(self, privacy, options):
        asked = Privacy(participation=privacy, **ZERO_OUT)
        assert options.items() <= privacy_options(asked).items()
        target = {"epsilon": 1.0} if options["participation"] != "cyclic" else {}
        assert Experiment(**privacy_options(asked), **target).scheme() == privacy

    @each(
        "model, options",
        (trust.LDP(), {"trust": "ldp"}),
        (trust.PNDP([1]), {"trust": "pndp", "attackers": ("#1",)}),
        (trust.Colluding(["a", "b"]), {"trust": "colluding", "colluders": ("a", "b")}),
        (trust.Coalitions(2), {"trust": "coalitions", "coalition_size": 2}),
        (trust.ReleasedOnly(), {"trust": "released"}),
        ids=str,
    )
    def test_a_trust_model_of_the_library_is_stored_by_its_name(self, model, options):
        assert Experiment(graph=GRAPH, trust=model) == Experiment(graph=GRAPH, **options)

    def test_a_plan_is_trained_with_its_rate(self):
        plan = mfdl.plan("ring:n=4", 8, Privacy(**ZERO_OUT), mu=1.0, designs=["dp-dsgd,b=2,k=2"], curvature="power:1:3")
        mine = mfdl.compare(graph=GRAPH, task=task(), seeds=1, progress=False, **plan.best.options())
        (row,) = mine.table()
        assert (row["mechanism"], row["lr"]) == ("dp-dsgd", plan.best.learning_time / 4)
        assert mine.runs["dp-dsgd", 1.0].mechanism.noise_std == pytest.approx(plan.best.guarantee.noise_std)

    def test_a_sweep_takes_objects_too_and_shares_the_cells_of_a_comparison(self, compared, tmp_path):
        rows = {"mechanisms": ["dp-dsgd", two_bands], "mu": [0.5, 2.0], "epochs": 2, "period": 2, "seeds": 2}
        rows |= {"graph": GRAPH, "task": task(), "learning_rate": 0.1, "adjacency": "zero-out", "progress": False}
        answer = mfdl.sweep(out=tmp_path, **rows)
        assert (answer["finished"], answer["failed"]) == (8, 0)
        assert set(Store(tmp_path).hashes) < set(Store(compared.folder / "runs").hashes)
        refuses("a sweep takes each trust by its name", mfdl.sweep, out=tmp_path, **rows, trust=[trust.LDP()])


class TestModels:
    def test_a_module_has_the_parameters_of_its_node(self, compared):
        run = compared.runs["dp-dsgd", 2.0].run(1)
        module = run.module("c")
        flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        np.testing.assert_allclose(flat, run.seeds[0].models[2], rtol=1e-6)
        test = torch.tensor(task().test_features)
        loss = float(((module(test).squeeze() - torch.tensor(task().test_targets)) ** 2).mean().detach())
        assert loss == pytest.approx(run.seeds[0].loss[-1, 2], rel=1e-5)
        stored = [r["final_test_loss"] for r in compared.result["runs"] if r["mechanism"] == "dp-dsgd" and r["mu"] == 2]
        assert run.seeds[0].final_test_loss == pytest.approx(stored[1], rel=1e-5)

    def test_a_file_that_changed_gives_no_other_model(self, tmp_path):
        rows = [f"{row % 7},{row % 5 / 4}" for row in range(40)]
        file = tmp_path / "own.csv"
        file.write_text("\n".join(["age,price", *rows]))
        own = mfdl.compare(["dp-dsgd"], graph=GRAPH, task=f"{file}:target=price", mu=1.0, out=tmp_path / "o", **SMALL)
        file.write_text("\n".join(["age,price", *rows[::-1]]))
        refuses("the models would not be those of the table", own.runs["dp-dsgd", 1.0].module, "a")

    def test_a_run_of_a_file_needs_its_task(self, compared, tmp_path):
        run = compared.runs["dp-dsgd", 2.0].run()
        loaded = mfdl.Run.load(run.save(tmp_path / "run.mfdl"))
        refuses("holds no code of its task", loaded.module)
        torch.testing.assert_close(loaded.module(1, task=task()).weight, run.module(1).weight)
        refuses("node index must be below", run.module, 9)
        refuses("seed must be one of", run.module, 0, 7)
        refuses("node must be", run.module, True)
        refuses(r"parameters must have shape \(4,\)", lambda: task().module_with(np.zeros(5)))


class TestPapers:
    def test_the_files_of_a_paper(self, compared, tmp_path):
        written = compared.export(tmp_path / "paper")
        assert [path.name for path in written] == ["results.csv", "table.tex", "figure.pdf", "caption.txt"]
        with written[0].open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["mechanism"] for row in rows] == [row["mechanism"] for row in compared.table()]
        assert re.search(rb"^%PDF.*/MediaBox \[ 0 0 237\.6 ", written[2].read_bytes(), re.DOTALL)  # 3.3 inches
        assert len(re.findall(r"pm", written[1].read_text())) == 6  # none in both columns
        assert written[3].read_text().count("\n") == 1

    def test_one_figure_shows_every_budget_with_its_interval(self, compared):
        curves = points(compared.result, "loss")
        assert [budget for budget, _, _ in curves["dp-dsgd"]] == [0.5, 2.0]
        ((budget, mean, half),) = curves["none"]
        assert math.isinf(budget)
        runs = [run["final_test_loss"] for run in compared.result["runs"] if run["mechanism"] == "none"]
        assert mean == pytest.approx(np.mean(runs))
        assert half == pytest.approx(12.706 * np.std(runs, ddof=1) / 2**0.5, rel=1e-4)  # Student's t, one degree
        figure = compared.plot()
        assert next(text.get_text() for text in figure.axes[0].get_legend().get_texts()) == "none (no noise)"
        bare = compared.plot(title=False, caption=False)
        assert (bare.axes[0].get_title(loc="left"), len(bare.texts)) == ("", 0)

    def test_bold_is_who_is_ahead_in_each_seed_and_special_characters_are_escaped(self):
        row = {"budget": 1.0, "lr": 0.5, "seeds": 1, "final_test_loss_mean": 1.0, "final_test_loss_std": 0.0}
        table = booktabs([{**row, "mechanism": "a_b"}, {**row, "mechanism": "c", "budget": 2.0}], {("a_b", 1.0, 0.5)})
        assert all(words in table for words in (r"a\_b & $\mathbf{1.000}$ &  \\", r"c &  & $1.000$ \\"))
        diverged = booktabs([{**row, "mechanism": "a", "final_test_loss_mean": None}])
        assert "diverged" in diverged


FLOATS = st.floats(allow_nan=False)


@st.composite
def run_steps(draw):
    """Steps of any run: infinite losses, no accuracy, a metric of the average model."""
    num_steps, num_nodes = draw(st.integers(0, 4)), draw(st.integers(1, 3))
    steps = np.array(sorted(draw(st.sets(st.integers(0, 99), min_size=num_steps, max_size=num_steps))), dtype=np.int64)
    of_nodes = numbers.arrays(np.float64, (num_steps, num_nodes), elements=FLOATS)
    optional = {"accuracy": of_nodes, "average_loss": numbers.arrays(np.float64, num_steps, elements=FLOATS)}
    values = draw(st.fixed_dictionaries({"loss": of_nodes}, optional=optional))
    conditions = dict.fromkeys(CONDITIONS, "text") | {"seed": 3, "mu": draw(st.none() | FLOATS), "lr": 0.5}
    label = st.text(st.characters(exclude_characters="\0"))
    nodes = tuple(draw(st.lists(label, min_size=num_nodes, max_size=num_nodes)))
    return RunSteps(conditions, steps, nodes, values)


def rows(run):
    """Long format, written out."""
    for i, step in enumerate(run.steps):
        for u, node in enumerate(run.nodes):
            measured = {name: values[i, u] if values.ndim == 2 else values[i] for name, values in run.values.items()}
            yield {**run.conditions, "step": step, "node": node, "accuracy": None, **measured}


def same(value, other):
    return value == other or (other is None and math.isnan(value))


@given(50, runs=st.lists(run_steps(), max_size=3))
def test_runs_come_back_from_a_file_and_their_rows_are_those_written_out(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("steps") / "steps.mfdl"
    save_steps(path, runs)
    again = load_steps(path)
    assert len(again) == len(runs)
    for run, read in zip(runs, again, strict=True):
        columns, written_out = read.columns(), list(rows(run))
        assert {len(column) for column in columns.values()} == {len(read)} == {len(written_out)}
        for place, row in enumerate(written_out):
            assert set(row) == set(columns)
            assert all(same(columns[name][place], row[name]) for name in row)
        if run.steps.size:
            by_step = [[row["loss"] for row in written_out if row["step"] == step] for step in run.steps]
            with np.errstate(invalid="ignore", over="ignore"):
                np.testing.assert_array_equal(read.mean_over_nodes(), [np.mean(losses) for losses in by_step])


def run_of(values, conditions=None):
    return RunSteps(conditions or dict.fromkeys(CONDITIONS), np.array([1, 2]), ("a", "b", "c"), values)


def test_arrays_of_other_shapes_are_refused():
    refuses(r"loss must have shape \(2, 3\) or \(2,\), got", run_of, {"loss": np.ones((3, 2))})


def test_which_columns_a_run_has():
    loss = {"loss": np.ones((2, 3))}
    whole = run_of({**loss, "accuracy": np.ones((2, 3)), "train_loss": np.ones((2, 3))})
    assert whole.has_columns(["train_loss"])
    assert run_of(loss).has_columns([])
    assert not run_of(loss).has_columns(["train_loss"])
    assert not whole.has_columns([])
    assert not dataclasses.replace(whole, conditions={"seed": 0}).has_columns(["train_loss"])


def test_a_metric_that_was_not_measured_is_nan():
    assert np.isnan(run_of({"loss": np.ones((2, 3))}).mean_over_nodes("accuracy")).all()
    assert run_of({"loss": np.ones((2, 3))}).to_pandas()["accuracy"].isna().all()
