"""`mfdl compare`: the contract of flags, JSON and files; stopping, going on, refusing."""

import contextlib
import dataclasses
import io
import json
import math
import pickle
import re

import joblib
import numpy as np
import pytest
from finished_runs import content, printed, refused, step_frame
from vocabulary import ZERO_OUT, dynamics_on, each, refuses

from mfdl import Cyclic, Privacy, algorithms, calibrate, data, graphs, privacy, replay, tasks, trust
from mfdl.algorithms import registry
from mfdl.commands import main
from mfdl.runs import comparing, load_steps, running, store
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment
from mfdl.runs.store import CONDITIONS, RunSteps

FILES = {"results.json", "steps.mfdl", "compare.png", "compare.svg", "runs"}
KEYS = {
    "graph", "nodes", "steps", "participation", "trust", "adjacency", "clip_norm", "learning_rate", "mu", "epsilon",
    "delta", "attacker", "release", "seeds", "mechanisms", "graph_hash", "gossip", "gossip_hash", "task", "guarantee",
    "noise", "runs", "complete", "config", "config_hash", "versions", "unit", "across_trust_models", "not_private",
    "momentum", "weight_decay", "finding", "advice", "untrained_loss_mean", "untrained_accuracy_mean", "chance_loss",
    "chance_accuracy",
}  # fmt: skip
MECHANISM_KEYS = {
    "mechanism", "label", "trust", "guarantee", "noise_std", "injected_noise_std", "objective", "final_test_loss_mean",
    "final_test_loss_std", "final_accuracy_mean", "diverged", "seconds", "node_steps_per_second", "final_accuracy_std",
    "mu", "epsilon", "beats_untrained", "beats_chance", "sensitivity",
}  # fmt: skip
RUN_KEYS = {"mechanism", "seed", "final_test_loss", "final_accuracy", "diverged", "seconds", "node_steps_per_second"}
SMALL = ["--graph", "ring:n=4", "--epochs", "2", "--period", "4", "--seeds", "2", "--mechanisms", "none,mafalda"]
CONFIG = Experiment(graph="ring:n=4", epochs=2, period=4, seeds=2, mechanisms=("none", "dp-dsgd"))


def compare(out, *arguments):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(["compare", *SMALL, "--out", str(out), "--json", *arguments]) == 0
    return json.loads(output.getvalue())


def strict_json(path):
    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def without_times(result):
    if isinstance(result, dict):
        return {k: without_times(v) for k, v in result.items() if k not in ("seconds", "node_steps_per_second")}
    return [without_times(v) for v in result] if isinstance(result, list) else result


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "deep" / "c"
    options = ["--lr", "0.25", "--adjacency", "zero-out", "--eval-every", "3", "--first-seed", "5"]
    return compare(folder, *options), folder


class TestFinished:
    def test_json_and_files(self, finished):
        result, folder = finished
        assert ({path.name for path in folder.iterdir()}, strict_json(folder / "results.json")) == (FILES, result)
        assert (set(result), result["complete"], result["noise"], result["trust"]) == (KEYS, True, "seeded", "ldp")
        assert (result["nodes"], result["steps"], result["seeds"]) == (4, 8, [5, 6])
        assert result["participation"] == {"scheme": "cyclic", "epochs": 2, "period": 4}
        assert (result["adjacency"], result["mu"], result["delta"]) == ("zero-out", 2.0, 1e-6)
        assert result["epsilon"] == pytest.approx(privacy.gaussian.epsilon_from_mu(2.0, 1e-6))
        assert all(words in result["guarantee"] for words in ("zero-out", "mu: 2"))
        assert [row["mechanism"] for row in result["mechanisms"]] == ["none", "mafalda"]
        for row in result["mechanisms"]:
            assert set(row) == MECHANISM_KEYS
            runs = [run for run in result["runs"] if run["mechanism"] == row["mechanism"]]
            assert all(set(run) == RUN_KEYS for run in runs)
            losses = [run["final_test_loss"] for run in runs]
            assert row["final_test_loss_mean"] == pytest.approx(np.mean(losses))
            assert row["final_test_loss_std"] == pytest.approx(np.std(losses, ddof=1))
            assert 0 < row["final_accuracy_mean"] <= 1
            assert (row["diverged"], row["label"]) == ([], row["mechanism"])
        none, mafalda = result["mechanisms"]
        assert none["noise_std"] == none["injected_noise_std"] == none["objective"] == 0
        assert mafalda["noise_std"] > 0

    def test_steps_hold_every_evaluation_node_and_seed(self, finished):
        table = step_frame(finished[1] / "steps.mfdl")
        assert list(table.columns) == [
            "mechanism", "seed", "step", "node", "loss", "accuracy", "trust", "mu", "epsilon", "delta", "lr", "graph",
            "task",
        ]  # fmt: skip
        rows = [(r["mechanism"], r["seed"], r["step"], r["node"]) for r in table.to_dict("records")]
        wanted = [(m, s, t, str(u)) for m in ("none", "mafalda") for s in (5, 6) for t in (3, 6, 8) for u in range(4)]
        assert sorted(rows) == sorted(wanted)

    def test_figures_are_those_of_the_library(self, finished, capsys):
        result, folder = finished
        graph = graphs.load("ring:n=4")
        dynamics = dynamics_on(graph, learning_rate=0.25)
        algorithm = algorithms.mafalda(dynamics, Cyclic(epochs=2, period=4))
        mechanism = calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), mu=2.0)
        run = replay(mechanism, tasks.load("digits", graph), seeds=[6], eval_every=3)
        (entry,) = [r for r in result["runs"] if (r["mechanism"], r["seed"]) == ("mafalda", 6)]
        assert entry["final_test_loss"] == pytest.approx(run.final_test_losses[0])
        table = step_frame(folder / "steps.mfdl").to_dict("records")
        same = {"trust": "ldp", "mu": mechanism.guarantee.mu, "epsilon": mechanism.guarantee.epsilon(1e-6)}
        same |= {"delta": 1e-6, "lr": 0.25, "graph": "ring:n=4", "task": "digits"}
        rows = [row for row in table if (row["mechanism"], row["seed"]) == ("mafalda", 6)]
        for row, of_run in zip(rows, run.rows(), strict=True):  # compare trained both seeds together
            expected = {**of_run, **same}
            numbers = {name: value for name, value in expected.items() if isinstance(value, float)}
            assert row == expected | {name: pytest.approx(value, rel=1e-5) for name, value in numbers.items()}
        assert {row["mu"] for row in table if row["mechanism"] == "none"} == {math.inf}
        entry = result["mechanisms"][1]
        for name in ("noise_std", "injected_noise_std", "objective"):
            assert entry[name] == pytest.approx(getattr(mechanism, name), rel=1e-9)
        assert entry["injected_noise_std"] > 1.01 * entry["noise_std"]  # correlated noise: the two differ
        options = ["--mechanism", "mafalda", "--noise-std", repr(entry["noise_std"]), "--adjacency", "zero-out"]
        assert main(["account", *SMALL[:6], *options, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["worst_mu_adaptive"] == pytest.approx(2.0, rel=1e-6)

    @pytest.mark.usefixtures("blank_pictures")
    def test_its_results_are_a_config_and_flags_win(self, finished, tmp_path, capsys):
        result, folder = finished
        file = ["compare", "--config", str(folder / "results.json"), "--json"]
        assert main([*file, "--out", str(folder)]) == 0  # the same comparison: nothing is left to do
        assert without_times(json.loads(capsys.readouterr().out)) == without_times(result)
        changed = ["--epsilon", "3", "--delta", "1e-5", "--seeds", "1", "--mechanisms", "dp-dsgd"]
        assert main([*file, "--out", str(tmp_path), *changed]) == 0  # a typed epsilon replaces the mu of the file
        other = json.loads(capsys.readouterr().out)
        assert (other["epsilon"], other["delta"], other["config"]["mu"]) == (3.0, 1e-5, None)
        assert other["mu"] == pytest.approx(privacy.gaussian.mu_from_epsilon(3.0, 1e-5))
        assert (other["seeds"], other["learning_rate"]) == ([5], 0.25)
        assert other["mechanisms"][0]["final_test_loss_std"] == 0.0


@pytest.mark.slow
def test_across_trust_models_every_mechanism_is_labelled(tmp_path, capsys):
    names = "none,dp-dsgd,decor,cdp,muffliato,zip-dl"
    options = ["--mechanisms", names, "--across-trust-models", "--seeds", "1", "--unit", "user", "--out", str(tmp_path)]
    assert main(["compare", *SMALL, *options]) == 0
    output, result = capsys.readouterr().out, strict_json(tmp_path / "results.json")
    labels = ["none", "dp-dsgd [ldp]", "decor [eavesdropper]", "cdp [central]", "muffliato [ldp]", "zip-dl [pndp]"]
    assert [row["label"] for row in result["mechanisms"]] == labels
    assert all(label in output for label in (labels[1], labels[3]))  # long ones are folded
    assert result["across_trust_models"]
    assert "do not rank them by loss" in result["guarantee"]
    for row in result["mechanisms"][1:]:
        assert f"trust model: {row['trust']}" in row["guarantee"]
        assert "gradients: adaptive or non-adaptive" in row["guarantee"]


@pytest.mark.usefixtures("blank_pictures")
@each(
    "more, unit",
    (["--trust", "eavesdropper", "--unit", "user", "--task", "rotated-quadratics", "--period", "1"], "user"),
    (["--trust", "coalitions", "--coalition-size", "1"], "record"),
)
def test_a_ranking_under_another_model(tmp_path, more, unit):
    result = compare(tmp_path, "--mechanisms", "corn,decor,dp-dsgd", "--seeds", "1", *more)
    corn, decor, independent = (row["objective"] for row in result["mechanisms"])
    assert corn <= decor * (1 + 2e-3) <= independent * (1 + 4e-3)
    assert (result["trust"], result["across_trust_models"], result["unit"]) == (more[1], False, unit)
    assert all("mu: 2\n" in row["guarantee"] for row in result["mechanisms"])


@pytest.mark.usefixtures("blank_pictures")
def test_settings_reach_their_mechanism(tmp_path):
    options = ["--mechanisms", "dp-dsgd,muffliato", "--seeds", "1", "--set", "muffliato.gossip_rounds=4"]
    result = compare(tmp_path, *options)
    plain, averaged = (row["objective"] for row in result["mechanisms"])
    assert averaged < plain
    assert result["config"]["set"] == ["muffliato.gossip_rounds=4"]
    assert Experiment.load(tmp_path / "results.json").settings == ("muffliato.gossip_rounds=4",)


def test_divergence_is_null_and_named(tmp_path):
    far = ["--lr", "1e6", "--clip-norm", "1e30", "--mu", "1e-6", "--seeds", "1", "--mechanisms", "dp-dsgd"]
    (row,) = compare(tmp_path, *far)["mechanisms"]
    assert (row["diverged"], row["final_test_loss_mean"], row["final_test_loss_std"]) == ([0], None, None)
    strict_json(tmp_path / "results.json")


def test_file_mechanism_and_table(tmp_path, capsys):
    file = tmp_path / "enc.npz"
    assert main(["factorize", *SMALL[:6], "--out", str(file)]) == 0
    capsys.readouterr()
    chosen = ["--mechanisms", f"file:{file},mafalda", "--seeds", "1"]
    output = printed(capsys, "compare", *SMALL, *chosen, "--out", str(tmp_path / "c"))
    for part in ("digits on ring:n=4: 4 nodes, 8 steps", "under trust model ldp", f"Written to {tmp_path / 'c'}."):
        assert part in output
    assert re.search(r"┃ +injected ┃.*\n.*┃ +noise std ┃", output)
    first, second = strict_json(tmp_path / "c" / "results.json")["mechanisms"]
    assert f"{first['injected_noise_std']:.3g}" in output
    assert (first["mechanism"], first["objective"]) == (f"file:{file}", pytest.approx(second["objective"]))


@pytest.fixture
def runs(monkeypatch, blank_pictures):
    """The runs that were done, (mechanism, seed); none of them trains."""
    done = []

    def made_up(job, *, shared=None, progress=None):
        return [record(*which) for which in zip(job.cells, job.hashes, job.wanted, strict=True)]

    def record(cell, name, wanted):
        facts = {"mechanism": cell.mechanism, "seed": cell.seed}
        if wanted:
            done.append((cell.mechanism, cell.seed))
        loss = cell.seed + len(cell.mechanism) + 0.5
        ended = {**facts, "final_test_loss": loss, "final_accuracy": None, "diverged": False}
        steps = RunSteps({**dict.fromkeys(CONDITIONS), **facts}, np.array([8]), ("0",), {"loss": np.array([[loss]])})
        timing = {"cell": name, "seconds": 1.0, "training_seconds": 1.0, "node_steps_per_second": 1.0}
        return running.Answer(name, ended, steps, None, timing)

    monkeypatch.setattr(running, "work", made_up)
    return done


class StopAfter:
    def __init__(self, runs):
        self.left = runs * 8

    def __call__(self, steps, doing):
        if self.left <= 0 and steps:
            raise KeyboardInterrupt
        self.left -= steps


@pytest.mark.slow
def test_interrupted_comparison_is_readable_and_goes_on(tmp_path, runs):
    refuses(None, lambda: run_comparison(CONFIG, tmp_path, progress=StopAfter(0)), error=KeyboardInterrupt)
    stopped = strict_json(tmp_path / "results.json")
    assert stopped["complete"] is False
    assert [(run["mechanism"], run["seed"]) for run in stopped["runs"]] == [("none", 0)]
    assert {run.conditions["seed"] for run in load_steps(tmp_path / "steps.mfdl")} == {0}
    assert stopped["mechanisms"][1]["final_test_loss_mean"] is None
    runs.clear()
    steps = []
    resumed = run_comparison(CONFIG, tmp_path, progress=lambda n, doing: steps.append(n))
    assert (runs, sum(steps)) == ([("none", 1), ("dp-dsgd", 0), ("dp-dsgd", 1)], 2 * 2 * 8)
    fresh = run_comparison(CONFIG, tmp_path / "fresh")
    resumed["config"]["out"] = fresh["config"]["out"]
    assert without_times(resumed) == without_times(fresh)
    assert {path.name for path in tmp_path.iterdir()} == FILES | {"fresh"}
    runs.clear()
    run_comparison(CONFIG, tmp_path)
    assert runs == []
    run_comparison(CONFIG, tmp_path, resume=False)
    assert len(runs) == 4


def test_interrupt_exits_130(tmp_path, capsys, monkeypatch):
    def interrupted(*_, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "work", interrupted)
    assert main(["compare", *SMALL, "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.startswith("No run was finished: nothing is stored.\n")
    assert strict_json(tmp_path / "results.json")["complete"] is False


def test_what_is_said_of_stored_runs_is_true(tmp_path, capsys, monkeypatch, runs):
    made_up = running.work

    def stopping(job, **options):
        if runs:
            raise KeyboardInterrupt
        return made_up(job, **options)

    command = ["compare", *SMALL, "--out", str(tmp_path)]
    monkeypatch.setattr(running, "work", stopping)
    assert main(command) == 130
    assert f"2 finished runs are stored in {tmp_path}; run the same command to resume." in capsys.readouterr().err
    monkeypatch.setattr(running, "work", made_up)
    assert main([*command, "--json"]) == 0
    first = capsys.readouterr()
    assert "Nothing to do" not in first.err
    (tmp_path / "compare.png").unlink()
    assert main([*command, "--json"]) == 0  # a file is missing: it is drawn anew
    assert "Nothing to do" not in capsys.readouterr().err
    monkeypatch.setattr(comparing, "run_comparison", None)
    assert main([*command, "--json"]) == 0
    again = capsys.readouterr()
    assert json.loads(again.out) == json.loads(first.out)
    assert again.err == "Nothing to do: every run was finished by an earlier call.\n"


@pytest.mark.parametrize(("text", "may"), [("ring:n=4", False), ("file:w.mfdl", True), ("a/b", True), ("w.csv", True)])
def test_an_option_that_names_a_file_is_looked_at_again(text, may, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.csv").touch()
    assert store._may_name_a_file(text) is may


@pytest.mark.usefixtures("blank_pictures")
def test_another_config_is_refused_unless_overwrite(tmp_path, capsys, runs):
    compare(tmp_path)
    before = content(tmp_path)
    refused(capsys, "--overwrite", "compare", *SMALL, "--lr", "0.1", "--out", str(tmp_path))
    assert content(tmp_path) == before
    assert compare(tmp_path, "--lr", "0.1", "--overwrite")["learning_rate"] == 0.1
    (tmp_path / "results.json").write_text('{"config_hash": ')  # torn: it counts as another comparison
    refused(capsys, "--overwrite", "compare", *SMALL, "--out", str(tmp_path))


def check_workers(folder):
    alone = run_comparison(CONFIG, folder / "a")
    steps = []
    jobs = dataclasses.replace(CONFIG, jobs=2)
    together = run_comparison(jobs, folder / "b", progress=lambda n, doing: steps.append(n))
    assert (alone["config_hash"], sum(steps)) == (together["config_hash"], 2 * 2 * 8)
    assert [run["seed"] for run in together["runs"]] == [0, 1, 0, 1]
    losses = ([run["final_test_loss"] for run in result["runs"]] for result in (alone, together))
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_workers_give_the_same_numbers(tmp_path, runs):
    with joblib.parallel_config(backend="threading"):  # no start of processes; they are the test below
        check_workers(tmp_path)


@pytest.mark.slow
def test_worker_processes_give_the_same_numbers(tmp_path):
    check_workers(tmp_path)


def test_what_workers_receive_can_be_sent():
    graph = graphs.load("ring:n=4")
    sent = [tasks.load(name, graph) for name in ("digits", "digits-mlp")]
    dynamics = dynamics_on(graph)
    sent += [registry.build(name, dynamics, Cyclic(epochs=2, period=2)) for name in ("none", "dp-dsgd", "mafalda")]
    for value in sent:
        assert pickle.loads(pickle.dumps(value)).content_hash == value.content_hash


CORN = ["--mechanisms", "dp-dsgd,corn", "--trust"]


@each(
    "arguments, message",
    (["--mu", "0"], "mu must be"), (["--mu", "-1"], "mu must be"), (["--mu", "nan"], "mu must be"),
    (["--epsilon", "0", "--delta", "1e-6"], "epsilon must be"), (["--epsilon", "1", "--delta", "1"], "delta must be"),
    (["--mu", "1", "--epsilon", "1", "--delta", "1e-6"], "--mu, or --epsilon"),
    (["--mechanisms", "none,mafald"], "did you mean 'mafalda'"), (["--mechanisms", "none,none"], "distinct"),
    (["--mechanisms", ","], "at least one mechanism"), (["--mechanisms", "file:none.npz"], "cannot read"),
    (["--task", "digit"], "did you mean 'digits'"), (["--graph", "florentin"], "did you mean 'florentine'"),
    (["--gossip", "unifrm"], "did you mean 'uniform'"), (["--adjacency", "replace"], "replace-one"),
    (["--epochs", "0"], "epochs must be"), (["--seeds", "0"], "seeds must be"),
    (["--eval-every", "0"], "eval_every must be"), (["--lr", "0"], "learning_rate must be"),
    (["--clip-norm", "-1"], "clip_norm must be"),
    (["--period", "1000"], "each node needs at least period=1000 records"),
    (["--device", "abacus"], "device 'abacus' cannot be used"), (["--jobs", "0"], "jobs must be"),
    (["--trust", "coalitions"], "needs coalition_size"),
    (["--trust", "ldp", "--attackers", "0"], "attackers belongs to trust model pndp"),
    (["--trust", "eavesdroper"], "did you mean 'eavesdropper'"), (["--unit", "agent"], "unit"),
    (["--trust", "pndp", "--attackers", "9"], "9"), (["--partition", "dirichlet:beta=1"], "dirichlet"),
    (["--set", "gossip_rounds=4"], "NAME.KEY=VALUE"), (["--set", "corn.x=1"], "NAME.KEY=VALUE"),
    (["--mechanisms", "muffliato", "--set", "muffliato.rounds=4"], "gossip_rounds"),
    (["--mechanisms", "muffliato", "--set", "muffliato.gossip_rounds=many"], "must be an integer"),
    ([*CORN, "ldp"], "but 'corn' is meant for eavesdropper"),
    (["--mechanisms", "dp-dsgd,decor"], "meant for eavesdropper"),
    (["--mechanisms", "dp-dsgd,cdp"], "meant for central"),
    (["--mechanisms", "dp-dsgd,zip-dl"], "(--across-trust-models)"),
    ([*CORN, "coalitions", "--coalition-size", "4"], "below num_nodes=4"),
    ([*CORN, "colluding", "--colluders", "Nobody"], "Nobody"), (["--graph", "g.csv"], "--largest-component"),
    (["--gossip", "w.csv"], "row"), (["--task", "housing"], "must be finite"), (["--out", "g.csv"], "cannot write"),
    (["--out", "g.csv/c"], "cannot write"),
)  # fmt: skip
def test_refused_in_one_line_before_any_work(arguments, message, tmp_path, capsys, monkeypatch):
    def never(*_, **__):
        raise AssertionError("a mechanism was built")

    features = np.full((100, 8), np.nan)
    build = registry.build
    monkeypatch.setattr(registry, "build_tuned", lambda name, *a, **_: build(name, *a) if "file" in name else never())
    monkeypatch.setattr(data, "california_housing", lambda home: (features, np.ones(100), []))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.csv").write_text("1,2\n3,4\n")
    np.savetxt(tmp_path / "w.csv", np.full((4, 4), 0.3), delimiter=",")
    refused(capsys, message, "compare", *SMALL, "--out", "c", "--json", *arguments)
    assert {path.name for path in tmp_path.iterdir()} == {"g.csv", "w.csv"}


@each(
    "more, text",
    (["--trust", "pndp", "--mechanisms", "zip-dl"], "infinite loss"),
    (["--mechanisms", "dp-dsgd,zip-dl", "--across-trust-models"], "unit='user'"),
)
def test_a_loss_that_is_infinite_is_refused_with_the_reason(tmp_path, capsys, more, text):
    refused(capsys, text, "compare", *SMALL, "--out", str(tmp_path / "c"), *more)
    assert not (tmp_path / "c" / "results.json").exists()


@each(
    "typed, message",
    (["--clip-norm", "0.5,1,2"], "--clip-norm must be a number, got '0.5,1,2'; it takes one value per call."),
    (["--clip-norm=x"], "--clip-norm must be a number, got 'x'."),
    (["--epochs", "2.5"], "--epochs must be a whole number, got '2.5'."),
    (["--epochs", ""], "--epochs must be a whole number, got ''."),
    (["--trust", "LDP"], "unknown trust model 'LDP'; did you mean 'ldp'?"),
    (["--mechanisms", "MAFALDA"], "unknown mechanism 'MAFALDA'; did you mean 'mafalda'?"),
    (["--participation", "CYCLIC"], "unknown participation 'CYCLIC'; did you mean 'cyclic'?"),
    (["--adjacency", "ADD-REMOVE"], "unknown adjacency 'ADD-REMOVE'; did you mean 'add-remove'?"),
    (["--graph", "RING:n=4"], "unknown graph 'RING'; did you mean 'ring'?"),
    (["--task", "DIGITS"], "unknown task 'DIGITS'; did you mean 'digits'?"),
    (["--release", "ALL"], "unknown release 'ALL'; did you mean 'all'?"),
)
def test_a_value_of_another_kind_is_named_and_a_name_in_another_case_is_recognised(typed, message, capsys):
    refused(capsys, message, "compare", *typed)


@pytest.mark.filterwarnings("default::mfdl.errors.UnusualSetting")
def test_a_warning_is_one_line(tmp_path, capsys):
    np.savetxt(tmp_path / "w.csv", np.eye(4), delimiter=",")
    options = ["--graph", "ring:n=4", "--gossip", str(tmp_path / "w.csv"), "--epochs", "2", "--period", "2"]
    assert main(["account", *options, "--json"]) == 0
    warned = capsys.readouterr().err
    assert warned.startswith("mfdl: warning: gossip 'w.csv'")
    assert (warned.count("\n"), "never average" in warned) == (1, True)


@pytest.mark.usefixtures("blank_pictures")
def test_the_table_says_what_its_numbers_are(tmp_path, capsys, monkeypatch):
    options = ["--mechanisms", "none,dp-dsgd,mafalda", "--seeds", "1", "--mu", "0.5", "--out", str(tmp_path)]
    monkeypatch.setenv("COLUMNS", "300")
    output = printed(capsys, "compare", *SMALL, *options)
    below = output[output.index("(chance)") :].splitlines()[1:]
    assert len(below) == 3
    assert below[0] == (
        "Every mechanism but none has mu = 0.5, epsilon = 2.255 at delta = 1e-06 for a record of every node under "
        "trust model ldp, replace-one adjacency, clipping norm 1, cyclic participation."
    )
    rows = {row["mechanism"]: row for row in strict_json(tmp_path / "results.json")["mechanisms"]}
    assert (rows["none"]["sensitivity"], rows["dp-dsgd"]["sensitivity"]) == (None, pytest.approx(math.sqrt(2)))
    assert rows["mafalda"]["sensitivity"] == pytest.approx(1)
    assert {"1.415", "5.66"} <= set(output.split())  # sensitivity and injected noise of dp-dsgd
    output = printed(capsys, "compare", *SMALL, *options, "--verbose")
    assert "over the evaluations of the last 2 of 8 steps." in output
    assert "objective: noise left in the models, per unit mu and record shift" in output
    fields = [line.partition(": ")[0] for line in output[output.index("trust model:") :].splitlines()]
    assert {"attacker", "adjacency", "clipping", "bound of dp-dsgd", "bound of mafalda", "mu"} <= set(fields)
    assert "noise" not in fields  # it is that of one mechanism


@pytest.mark.slow
def test_what_is_released_is_ranked_and_the_last_models_stand_beside_it(tmp_path):
    options = ["--release-model", "average:4", "--error-weights", "released", "--metrics", "average_loss"]
    result = compare(tmp_path, *options)
    assert [row["mechanism"] for row in result["mechanisms"]] == ["none", "mafalda@released:average:4"]
    for row in result["mechanisms"]:
        runs = [run for run in result["runs"] if run["mechanism"] == row["mechanism"]]
        for name in ("test_loss", "average_loss"):
            assert row[f"last_{name}_mean"] == pytest.approx(np.mean([run[f"last_{name}"] for run in runs]))
            assert row[f"last_{name}_mean"] != row[f"final_{name}_mean"]
    assert {"last_test_loss", "last_accuracy", "last_average_loss"} <= set(result["not_private"])
    again = compare(tmp_path, *options)
    assert again["runs"] == result["runs"]
    assert Experiment.load(tmp_path / "results.json").release_model == "average:4"


def test_a_released_model_is_refused_where_messages_are_hidden_and_no_model_is_published(tmp_path, capsys):
    options = ["--trust", "pndp", "--release", "none", "--release-model", "average:4", "--mechanisms", "dp-dsgd"]
    small = ["compare", *SMALL, "--out", str(tmp_path / "out")]
    refused(capsys, "release must be average or all where messages are hidden", *small, *options)
    refused(capsys, "averages the last 9 of 8 models", *small, "--release-model", "average:9")
