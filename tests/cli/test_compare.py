"""`mfdl compare`: the contract of flags, JSON and files; stopping, going on, refusing."""

import dataclasses
import json
import pickle
import re

import joblib
import numpy as np
import pyarrow.parquet as pq
import pytest

import mfdl
from mfdl.cli import main
from mfdl.reporting import compare as comparison
from mfdl.reporting.compare import run_comparison
from mfdl.reporting.comparison_config import ComparisonConfig

FILES = {"results.json", "steps.parquet", "compare.png", "compare.svg"}
KEYS = {
    "graph", "nodes", "steps", "participation", "trust", "adjacency", "clip_norm", "learning_rate", "mu", "epsilon",
    "delta", "seeds", "mechanisms",
}  # fmt: skip
ADDED_KEYS = {
    "graph_hash", "gossip", "gossip_hash", "task", "guarantee", "noise", "runs", "complete", "config", "config_hash",
    "versions", "unit", "across_trust_models", "not_private", "momentum", "weight_decay",
}  # fmt: skip
MECHANISM_KEYS = {
    "mechanism", "label", "trust", "guarantee", "noise_std", "injected_noise_std", "objective", "final_loss_mean",
    "final_loss_std", "final_accuracy_mean", "diverged", "seconds", "node_steps_per_second",
}  # fmt: skip
RUN_KEYS = {
    "mechanism", "seed", "final_loss", "final_accuracy", "diverged", "seconds", "node_steps_per_second",
}  # fmt: skip
SMALL = ["--graph", "ring:n=4", "--epochs", "2", "--period", "4", "--seeds", "2", "--mechanisms", "none,mafalda"]
CONFIG = ComparisonConfig(graph="ring:n=4", epochs=2, period=4, seeds=2, mechanisms=("none", "dp-dsgd"))


def compare(capsys, out, *arguments, code=0):
    assert main(["compare", *SMALL, "--out", str(out), "--json", *arguments]) == code
    return json.loads(capsys.readouterr().out)


def strict_json(path):
    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def without_times(result):
    if isinstance(result, dict):
        return {k: without_times(v) for k, v in result.items() if k not in ("seconds", "node_steps_per_second")}
    return [without_times(v) for v in result] if isinstance(result, list) else result


def test_json_and_files(tmp_path, capsys):
    result = compare(capsys, tmp_path / "deep" / "c")
    folder = tmp_path / "deep" / "c"
    assert {f.name for f in folder.iterdir()} == FILES
    assert strict_json(folder / "results.json") == result
    assert set(result) == KEYS | ADDED_KEYS
    assert result["complete"] is True
    assert (result["nodes"], result["steps"], result["seeds"]) == (4, 8, [0, 1])
    assert result["participation"] == {"scheme": "cyclic", "epochs": 2, "period": 4}
    assert (result["trust"], result["adjacency"], result["mu"], result["delta"]) == ("ldp", "replace-one", 2.0, 1e-6)
    assert result["epsilon"] == pytest.approx(mfdl.privacy.gaussian.epsilon_from_mu(2.0, 1e-6))
    assert result["noise"] == "seeded"
    assert "replace-one" in result["guarantee"]
    assert "mu = 2" in result["guarantee"]
    assert [one["mechanism"] for one in result["mechanisms"]] == ["none", "mafalda"]
    for one in result["mechanisms"]:
        assert set(one) == MECHANISM_KEYS
        runs = [run for run in result["runs"] if run["mechanism"] == one["mechanism"]]
        assert all(set(run) == RUN_KEYS for run in runs)
        losses = [run["final_loss"] for run in runs]
        assert one["final_loss_mean"] == pytest.approx(np.mean(losses))
        assert one["final_loss_std"] == pytest.approx(np.std(losses, ddof=1))
        assert 0 < one["final_accuracy_mean"] <= 1
        assert one["diverged"] == []
    none, mafalda = result["mechanisms"]
    assert none["noise_std"] == none["injected_noise_std"] == none["objective"] == 0
    assert mafalda["noise_std"] > 0


def test_one_ranking_has_one_trust_model(tmp_path, capsys):
    """Noise from shared secrets, a server or messages is refused under LDP, with the way out, before any work."""
    for name, meant in (("decor", "eavesdropper"), ("corn", "eavesdropper"), ("cdp", "central"), ("zip-dl", "pndp")):
        assert main(["compare", *SMALL, "--mechanisms", f"dp-dsgd,{name}", "--out", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert f"under trust model ldp, where {name!r} does not protect" in said
        assert meant in said
        assert "--across-trust-models" in said
        assert not (tmp_path / name).exists()


def test_across_trust_models_every_mechanism_is_labelled(tmp_path, capsys):
    names = "none,dp-dsgd,decor,corn,corn-pairwise,cdp,muffliato,zip-dl"
    result = compare(capsys, tmp_path, "--mechanisms", names, "--across-trust-models", "--seeds", "1", "--unit", "user")
    labels = {one["mechanism"]: one["label"] for one in result["mechanisms"]}
    assert labels == {
        "none": "none",
        "dp-dsgd": "dp-dsgd [ldp]",
        "decor": "decor [eavesdropper]",
        "corn": "corn [eavesdropper]",
        "corn-pairwise": "corn-pairwise [eavesdropper]",
        "cdp": "cdp [central]",
        "muffliato": "muffliato [ldp]",
        "zip-dl": "zip-dl [pndp]",
    }
    assert result["across_trust_models"]
    assert "no ranking" in result["guarantee"]
    for one in result["mechanisms"][1:]:
        assert f"Trust model {one['trust']}" in one["guarantee"]
        assert "for gradients that may be chosen adaptively" in one["guarantee"]


def test_the_table_names_the_trust_models(tmp_path, capsys):
    arguments = ["compare", *SMALL, "--mechanisms", "dp-dsgd,cdp,corn", "--across-trust-models", "--seeds", "1"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for label in ("dp-dsgd [ldp]", "cdp [central]", "corn [eavesdropper]"):
        assert label in shown


def test_refusals_come_before_any_work(tmp_path, capsys, monkeypatch):
    from mfdl.algorithms import registry

    def never(*_, **__):
        raise AssertionError("a mechanism was built")

    monkeypatch.setattr(registry, "build_tuned", never)
    for more, text in (
        (["--mechanisms", "mafalda,corn"], "does not protect as it is meant to"),
        (["--mechanisms", "dp-dsgd,corn", "--trust", "coalitions", "--coalition-size", "4"], "below num_nodes=4"),
        (["--mechanisms", "dp-dsgd,corn", "--trust", "colluding", "--colluders", "Nobody"], "Nobody"),
    ):
        assert main(["compare", *SMALL, *more, "--out", str(tmp_path / "c")]) == 2
        said = capsys.readouterr().err
        assert text in said
        assert "building" not in said


@pytest.mark.parametrize("graph", ["star:n=5", "ring:n=5"])
def test_coalitions_of_one(tmp_path, capsys, graph):
    """On a star no seed helps against a neighbour, so the shared parts are zero and private noise is all there is."""
    asked = ["--graph", graph, "--mechanisms", "dp-dsgd,corn,decor", "--trust", "coalitions", "--coalition-size", "1"]
    small = ["--epochs", "1", "--period", "3", "--seeds", "1", "--out", str(tmp_path), "--json"]
    assert main(["compare", *asked, *small]) == 0
    objective = {m["mechanism"]: m["objective"] for m in json.loads(capsys.readouterr().out)["mechanisms"]}
    assert objective["corn"] <= objective["decor"] * (1 + 2e-3) <= objective["dp-dsgd"] * (1 + 4e-3)


def test_settings_reach_their_mechanism(tmp_path, capsys):
    """Four averaging rounds a step leave less noise in the models than one; the config repeats it."""
    asked = ["--mechanisms", "dp-dsgd,muffliato", "--seeds", "1", "--set", "muffliato.gossip_rounds=4"]
    result = compare(capsys, tmp_path / "a", *asked)
    objective = [one["objective"] for one in result["mechanisms"]]
    assert objective[1] < objective[0]
    again = ["compare", "--config", str(tmp_path / "a" / "results.json"), "--out", str(tmp_path / "b"), "--json"]
    assert main(again) == 0
    assert json.loads(capsys.readouterr().out)["runs"][1]["final_loss"] == result["runs"][1]["final_loss"]
    for bad, text in (
        ("gossip_rounds=4", "NAME.KEY=VALUE"),
        ("mafalda.x=1", "NAME.KEY=VALUE"),
        ("muffliato.rounds=4", "gossip_rounds"),
        ("muffliato.gossip_rounds=many", "must be int"),
    ):
        assert main(["compare", *SMALL, *asked[:4], "--set", bad, "--out", str(tmp_path / "c")]) == 2
        assert text in capsys.readouterr().err


def test_records_of_zip_dl_are_refused_with_the_reason(tmp_path, capsys):
    names = "dp-dsgd,zip-dl"
    assert main(["compare", *SMALL, "--mechanisms", names, "--across-trust-models", "--out", str(tmp_path / "c")]) == 2
    assert "unit='user'" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--unit", "user", "--task", "rotated-quadratics", "--period", "1"]])
def test_a_ranking_under_an_eavesdropper(tmp_path, capsys, more):
    """No mechanism here leaves more noise than a worse one of its family; all carry the same mu."""
    names = "dp-dsgd,corn-pairwise,corn,decor"
    result = compare(capsys, tmp_path, "--mechanisms", names, "--trust", "eavesdropper", *more)
    objective = {one["mechanism"]: one["objective"] for one in result["mechanisms"]}
    assert objective["corn"] <= objective["corn-pairwise"] * (1 + 1e-3)
    assert objective["corn-pairwise"] == objective["decor"] <= objective["dp-dsgd"] * (1 + 1e-9)
    assert result["trust"] == "eavesdropper"
    assert not result["across_trust_models"]
    assert result["unit"] == ("user" if more else "record")
    assert all("mu = 2 " in one["guarantee"] for one in result["mechanisms"])
    assert all(one["label"] == one["mechanism"] for one in result["mechanisms"])


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--trust", "coalitions"], "needs coalition_size"),
        (["--trust", "ldp", "--attackers", "0"], "attackers belongs to trust model pndp"),
        (["--trust", "eavesdroper"], "did you mean 'eavesdropper'"),
        (["--unit", "agent"], "unit"),
        (["--trust", "pndp", "--attackers", "9"], "9"),
        (["--partition", "dirichlet:beta=1"], "dirichlet"),
        (["--trust", "pndp", "--mechanisms", "zip-dl"], "infinite loss"),
    ],
)
def test_bad_trust_options(tmp_path, capsys, more, text):
    assert main(["compare", *SMALL, "--out", str(tmp_path / "c"), *more]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "c" / "results.json").exists()


def test_figures_are_those_of_replay_and_factorize(tmp_path, capsys):
    result = compare(capsys, tmp_path / "c")
    graph = mfdl.graphs.load("ring:n=4")
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), learning_rate=0.5)
    algorithm = mfdl.algorithms.mafalda(dynamics, mfdl.Cyclic(epochs=2, period=4))
    mechanism = mfdl.calibrate(algorithm, trust=mfdl.trust.LDP(), adjacency="replace-one", clip_norm=1.0, mu=2.0)
    run = mfdl.replay(mechanism, mfdl.tasks.load("digits", graph), seeds=[1])
    (entry,) = [r for r in result["runs"] if (r["mechanism"], r["seed"]) == ("mafalda", 1)]
    assert entry["final_loss"] == pytest.approx(run.final_losses[0])
    entry = result["mechanisms"][1]
    assert entry["noise_std"] == pytest.approx(mechanism.noise_std, rel=1e-9)
    assert entry["injected_noise_std"] == pytest.approx(mechanism.injected_noise_std, rel=1e-9)
    assert entry["injected_noise_std"] > 1.01 * entry["noise_std"]  # correlated noise: the two differ
    assert main(["factorize", *SMALL[:6], "--json"]) == 0
    loss = json.loads(capsys.readouterr().out)["loss"]
    assert result["mechanisms"][1]["objective"] == pytest.approx(loss)
    table = pq.read_table(tmp_path / "c" / "steps.parquet").to_pylist()
    mine = [row for row in table if (row["mechanism"], row["seed"]) == ("mafalda", 1)]
    assert mine == run.rows()


def test_the_noise_of_a_comparison_is_what_account_takes(tmp_path, capsys):
    """results.json fed back: `account --noise-std` finds the mu at which the mechanisms were compared."""
    result = compare(capsys, tmp_path / "c", "--mechanisms", "dp-dsgd,mafalda,anti-pgd", "--seeds", "1")
    for one in result["mechanisms"]:
        asked = ["--mechanism", one["mechanism"], "--noise-std", repr(one["noise_std"])]
        assert main(["account", *SMALL[:6], *asked, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["worst_mu_adaptive"] == pytest.approx(2.0, rel=1e-6)


def test_steps_hold_every_evaluation_node_and_seed(tmp_path, capsys):
    compare(capsys, tmp_path, "--eval-every", "3", "--first-seed", "5")
    table = pq.read_table(tmp_path / "steps.parquet")
    assert table.column_names == ["mechanism", "seed", "step", "node", "loss", "accuracy"]
    rows = {(r["mechanism"], r["seed"], r["step"], r["node"]) for r in table.to_pylist()}
    wanted = {(m, s, t, str(u)) for m in ("none", "mafalda") for s in (5, 6) for t in (3, 6, 8) for u in range(4)}
    assert rows == wanted
    assert table.num_rows == len(wanted)


def test_epsilon_target(tmp_path, capsys):
    result = compare(capsys, tmp_path, "--epsilon", "3", "--delta", "1e-5", "--seeds", "1")
    assert (result["epsilon"], result["delta"]) == (3.0, 1e-5)
    assert result["mu"] == pytest.approx(mfdl.privacy.gaussian.mu_from_epsilon(3.0, 1e-5))
    assert result["config"]["mu"] is None
    assert all(one["final_loss_std"] == 0.0 for one in result["mechanisms"])


def test_config_of_results_reruns_the_comparison_and_flags_win(tmp_path, capsys):
    first = compare(capsys, tmp_path / "a", "--lr", "0.25", "--adjacency", "zero-out")
    file = str(tmp_path / "a" / "results.json")
    assert main(["compare", "--config", file, "--out", str(tmp_path / "b"), "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    first["config"]["out"] = second["config"]["out"]
    assert without_times(first) == without_times(second)
    arguments = ["compare", "--config", file, "--out", str(tmp_path / "c"), "--epsilon", "4", "--seeds", "1", "--json"]
    assert main(arguments) == 0  # a typed epsilon replaces the mu of the file
    third = json.loads(capsys.readouterr().out)
    assert (third["epsilon"], third["seeds"], third["learning_rate"]) == (4.0, [0], 0.25)


class StopAfter:
    """Progress that raises KeyboardInterrupt at the first step after some runs."""

    def __init__(self, runs):
        self.left = runs * 8

    def __call__(self, steps, doing):
        if self.left <= 0 and steps:
            raise KeyboardInterrupt
        self.left -= steps


def test_interrupted_comparison_is_readable_and_goes_on(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        run_comparison(CONFIG, tmp_path, progress=StopAfter(1))
    stopped = strict_json(tmp_path / "results.json")
    assert stopped["complete"] is False
    assert [(run["mechanism"], run["seed"]) for run in stopped["runs"]] == [("none", 0)]
    assert set(pq.read_table(tmp_path / "steps.parquet")["seed"].to_pylist()) == {0}
    assert stopped["mechanisms"][1]["final_loss_mean"] is None
    called = []
    one_run = comparison._one_run
    monkeypatch.setattr(comparison, "_one_run", lambda *a: called.append((a[0], a[3])) or one_run(*a))
    steps = []
    resumed = run_comparison(CONFIG, tmp_path, progress=lambda n, doing: steps.append(n))
    assert called == [("none", 1), ("dp-dsgd", 0), ("dp-dsgd", 1)]
    assert sum(steps) == CONFIG.total_steps
    fresh = run_comparison(CONFIG, tmp_path / "fresh")
    resumed["config"]["out"] = fresh["config"]["out"]
    assert without_times(resumed) == without_times(fresh)
    assert {f.name for f in tmp_path.iterdir()} == FILES | {"fresh"}
    called.clear()
    run_comparison(CONFIG, tmp_path)
    assert called == []
    run_comparison(CONFIG, tmp_path, resume=False)
    assert len(called) == 4


def test_interrupt_exits_130(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "_one_run", interrupted)
    assert main(["compare", *SMALL, "--out", str(tmp_path)]) == 130
    assert "goes on from there" in " ".join(capsys.readouterr().err.split())
    assert strict_json(tmp_path / "results.json")["complete"] is False


def test_another_config_is_refused_unless_overwrite(tmp_path, capsys):
    compare(capsys, tmp_path, "--seeds", "1")
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    assert main(["compare", *SMALL, "--seeds", "1", "--lr", "0.1", "--out", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before
    assert compare(capsys, tmp_path, "--seeds", "1", "--lr", "0.1", "--overwrite")["learning_rate"] == 0.1


def test_a_torn_results_file_counts_as_another_comparison(tmp_path, capsys):
    (tmp_path / "results.json").write_text('{"config_hash": ')
    assert main(["compare", *SMALL, "--out", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().err


def check_workers(folder):
    alone = run_comparison(CONFIG, folder / "a")
    steps = []
    together = run_comparison(
        dataclasses.replace(CONFIG, jobs=2), folder / "b", progress=lambda n, doing: steps.append(n)
    )
    assert alone["config_hash"] == together["config_hash"]
    assert sum(steps) == CONFIG.total_steps
    assert [run["seed"] for run in together["runs"]] == [0, 1, 0, 1]
    for one, other in zip(alone["runs"], together["runs"], strict=True):
        assert one["final_loss"] == pytest.approx(other["final_loss"], rel=1e-6)


def test_workers_give_the_same_numbers(tmp_path):
    with joblib.parallel_config(backend="threading"):  # no start of processes; they are the test below
        check_workers(tmp_path)


@pytest.mark.slow
def test_worker_processes_give_the_same_numbers(tmp_path):
    check_workers(tmp_path)


def test_what_workers_receive_can_be_sent():
    graph = mfdl.graphs.load("ring:n=4")
    for name in ("digits", "digits-mlp"):
        task = pickle.loads(pickle.dumps(mfdl.tasks.load(name, graph)))
        assert task.content_hash == mfdl.tasks.load(name, graph).content_hash
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph))
    for name in ("none", "dp-dsgd", "mafalda"):
        algorithm = mfdl.algorithms.registry.build(name, dynamics, mfdl.Cyclic(epochs=2, period=2))
        assert pickle.loads(pickle.dumps(algorithm)).content_hash == algorithm.content_hash


def test_divergence_is_null_and_named(tmp_path, capsys):
    result = compare(
        capsys,
        tmp_path,
        "--lr",
        "1e6",
        "--clip-norm",
        "1e30",
        "--mu",
        "1e-6",
        "--seeds",
        "1",
        "--mechanisms",
        "dp-dsgd",
    )
    (one,) = result["mechanisms"]
    assert one["diverged"] == [0]
    assert one["final_loss_mean"] is None
    assert one["final_loss_std"] is None
    strict_json(tmp_path / "results.json")


def test_file_mechanism_and_table(tmp_path, capsys):
    file = tmp_path / "enc.npz"
    assert main(["factorize", *SMALL[:6], "--out", str(file)]) == 0
    capsys.readouterr()
    chosen = ["--mechanisms", f"file:{file},mafalda", "--seeds", "1"]
    assert main(["compare", *SMALL, *chosen, "--out", str(tmp_path / "c")]) == 0
    shown = capsys.readouterr().out
    for part in ("digits on ring:n=4: 4 nodes, 8 steps", "noise std", "Trust model ldp", "compare.png"):
        assert part in shown
    assert re.search(r"┃ +injected ┃.*\n.*┃ +noise std ┃", shown)
    result = strict_json(tmp_path / "c" / "results.json")
    for one in result["mechanisms"]:
        assert f"{one['injected_noise_std']:.3g}" in shown
    first, second = result["mechanisms"]
    assert first["mechanism"] == f"file:{file}"
    assert first["objective"] == pytest.approx(second["objective"])


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--mu", "0"], "mu must be"),
            (["--mu", "-1"], "mu must be"),
            (["--mu", "nan"], "mu must be"),
            (["--epsilon", "0"], "epsilon must be"),
            (["--epsilon", "1", "--delta", "1"], "delta must be"),
            (["--mu", "1", "--epsilon", "1"], "--mu, or --epsilon"),
            (["--mechanisms", "none,mafald"], "did you mean 'mafalda'"),
            (["--mechanisms", "none,none"], "distinct"),
            (["--mechanisms", ","], "at least one mechanism"),
            (["--mechanisms", "file:none.npz"], "no factorization file"),
            (["--task", "digit"], "did you mean 'digits'"),
            (["--graph", "florentin"], "did you mean 'florentine'"),
            (["--gossip", "unifrm"], "did you mean 'uniform'"),
            (["--adjacency", "replace"], "replace-one"),
            (["--epochs", "0"], "epochs must be"),
            (["--seeds", "0"], "seeds must be"),
            (["--eval-every", "0"], "eval_every must be"),
            (["--lr", "0"], "learning_rate must be"),
            (["--clip-norm", "-1"], "clip_norm must be"),
            (["--period", "1000"], "each node needs at least period=1000 records"),
            (["--device", "abacus"], "device 'abacus' cannot be used"),
            (["--jobs", "0"], "jobs must be"),
        ],
    )
    def test_values(self, arguments, message, tmp_path, capsys):
        assert main(["compare", *SMALL, "--out", str(tmp_path / "c"), "--json", *arguments]) == 2
        self.one_line_and_nothing_written(message, tmp_path, capsys)

    def one_line_and_nothing_written(self, message, tmp_path, capsys, kept=()):
        said = capsys.readouterr()
        assert message in said.err
        assert said.err.count("\n") == 1, said.err
        assert said.out == ""
        assert sorted(f.name for f in tmp_path.iterdir()) == sorted(kept)

    def test_disconnected(self, tmp_path, capsys):
        (tmp_path / "g.csv").write_text("1,2\n3,4\n")
        assert main(["compare", *SMALL, "--graph", str(tmp_path / "g.csv"), "--out", str(tmp_path / "c")]) == 2
        self.one_line_and_nothing_written("--largest-component", tmp_path, capsys, kept=["g.csv"])

    def test_gossip_rows(self, tmp_path, capsys):
        np.savetxt(tmp_path / "w.csv", np.full((4, 4), 0.3), delimiter=",")
        assert main(["compare", *SMALL, "--gossip", str(tmp_path / "w.csv"), "--out", str(tmp_path / "c")]) == 2
        self.one_line_and_nothing_written("row", tmp_path, capsys, kept=["w.csv"])

    def test_nan_in_data(self, tmp_path, capsys, monkeypatch):
        features = np.ones((100, 8))
        features[:, 0] = np.nan
        monkeypatch.setattr(mfdl.data, "california_housing", lambda home: (features, np.ones(100), []))
        assert main(["compare", *SMALL, "--task", "housing", "--out", str(tmp_path / "c")]) == 2
        self.one_line_and_nothing_written("must be finite", tmp_path, capsys)

    @pytest.mark.parametrize("out", ["file", "file/c"])
    def test_unwritable_output(self, out, tmp_path, capsys):
        (tmp_path / "file").write_text("")
        assert main(["compare", *SMALL, "--out", str(tmp_path / out)]) == 2
        self.one_line_and_nothing_written("cannot write", tmp_path, capsys, kept=["file"])
