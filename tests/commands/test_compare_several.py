"""`mfdl compare` at several budgets and rates, and every command under secret batches: accounted, trained, refused."""

import dataclasses
import json
import shutil

import pytest
from finished_runs import BUDGETS, COMPARED, answer_of, printed, refused, step_frame
from test_compare import CONFIG, MECHANISM_KEYS, RUN_KEYS, without_times
from vocabulary import each, refuses

import mfdl
from mfdl.commands import main
from mfdl.commands.account import AccountConfig, run_account
from mfdl.participation.schemes import SCHEMES
from mfdl.runs import comparing, options
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment

TRAIN_LOSS = {"final_train_loss_mean", "final_train_loss_std"}  # of the rows; of a run "final_train_loss"


@pytest.fixture(scope="module")
def finished(finished_comparisons, tmp_path_factory):
    folder = tmp_path_factory.mktemp("several") / "c"
    shutil.copytree(finished_comparisons, folder)
    result = json.loads((folder / "results.json").read_text())
    result["config"]["out"] = str(folder)
    return result, folder


@pytest.mark.slow
def test_each_mechanism_has_its_budget_and_rate(finished, tmp_path):
    result, folder = finished
    requested = [(row["mechanism"], row["mu"], row["lr"]) for row in result["mechanisms"]]
    none = [("none", "inf", rate) for rate in (0.1, 0.3)]
    private = [("dp-dsgd", mu, rate) for mu in (0.5, 2.0) for rate in (0.1, 0.3)]
    assert requested == [none[0], private[0], none[1], private[1], *private[2:]]  # "none" once for every rate
    assert (result["mu"], result["learning_rate"], result["complete"]) == ([0.5, 2.0], [0.1, 0.3], True)
    assert all(set(row) == MECHANISM_KEYS | TRAIN_LOSS | {"lr", "budget"} for row in result["mechanisms"])
    assert all(set(run) == RUN_KEYS | {"final_train_loss", "mu", "lr", "budget"} for run in result["runs"])
    requested = {"mechanisms": ("dp-dsgd",), "mu": 2.0, "learning_rate": 0.3, "metrics": ("train_loss",)}
    alone = run_comparison(dataclasses.replace(CONFIG, **requested), tmp_path / "a")
    (same,) = without_times(alone["mechanisms"])
    flags = {"beats_untrained": same["beats_untrained"], "beats_chance": same["beats_chance"]}
    flags |= {"lr": 0.3, "budget": 2.0}
    assert without_times(result["mechanisms"][-1]) == same | flags
    assert {"budgets.png", "budgets.svg"} < {path.name for path in folder.iterdir()}
    steps = step_frame(folder / "steps.mfdl")
    assert set(zip(steps["mu"], steps["lr"], strict=True)) >= {(0.5, 0.1), (2.0, 0.3)}
    assert len(steps) == 6 * 2 * 2 * 4  # comparisons, seeds, evaluations, nodes


@pytest.mark.slow
def test_a_file_of_lists_and_the_result_are_configs_of_the_same(finished, tmp_path, capsys):
    result, folder = finished
    file = tmp_path / "c.toml"
    names = '["none", "dp-dsgd"]'
    file.write_text(
        f'graph = "ring:n=4"\nepochs = 2\nperiod = 4\nseeds = 2\nmechanisms = {names}\nmu = [0.5, 2]\nlr = [0.1, 0.3]\n'
        'metrics = ["train-loss"]'
    )
    for config in (file, folder / "results.json"):
        again = compare(capsys, "--config", str(config), "--out", str(folder))
        assert again == result  # nothing was trained again: its seconds tell


@pytest.mark.parametrize("written", ['"1"', '["0.5", "2"]', "true", '"0.5,2"'])
def test_a_file_of_a_comparison_and_of_a_sweep_refuse_the_same_numbers(written, tmp_path, capsys):
    file = tmp_path / "c.toml"
    file.write_text(f"mu = {written}")
    refusals = []
    for arguments in (["compare", "--config", str(file)], ["sweep", str(file)]):
        assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
        refusals.append(capsys.readouterr().err)
    assert all("must be a number, got" in refusal for refusal in refusals), refusals
    assert ["without quotes" in refusal for refusal in refusals] == [written != "true"] * 2


def test_refusals(finished, capsys):
    folder = str(finished[1])
    for more, message in [
        (["--mu", "0.5,0.5"], "mu must hold distinct values"),
        (["--mu", "0.5,0"], "mu must be"),
        (["--mu", "0.5,"], "--mu must be a number, or several as A,B, got '0.5,'"),
        (["--lr", "0.1,x"], "--lr must be a number, or several as A,B"),
        (["--mu", "0.5,2"], "--overwrite"),
    ]:
        refused(capsys, message, "compare", *COMPARED, "--out", folder, *more)
    with pytest.raises(mfdl.InvalidInput, match="one privacy target"):
        run_comparison(dataclasses.replace(CONFIG, mu=1.0), folder, several={"epsilon": [1.0, 2.0]})


@pytest.mark.usefixtures("blank_pictures")
def test_the_table_shows_all(finished, capsys):
    output = printed(capsys, "compare", *COMPARED, *BUDGETS, "--out", str(finished[1]))
    assert output.count("dp-dsgd") == 4
    assert "its budget for a record of every node" in " ".join(output.split())


@pytest.mark.usefixtures("blank_pictures")
def test_one_of_each_is_a_comparison_as_ever(tmp_path, capsys):
    single = ["--mu", "2", "--lr", "0.3", "--seeds", "1", "--mechanisms", "dp-dsgd"]
    result = compare(capsys, *COMPARED, *single, "--out", str(tmp_path))
    assert (result["mu"], result["learning_rate"]) == (2.0, 0.3)
    assert set(result["mechanisms"][0]) == MECHANISM_KEYS | TRAIN_LOSS


SMALL = ["--graph", "ring:n=3", "--epochs", "2", "--period", "2", "--seeds", "1", "--delta", "1e-5"]
BINS = [*SMALL, "--participation", "balls-in-bins", "--adjacency", "zero-out"]


def compare(capsys, *arguments):
    return answer_of(capsys, "compare", *arguments)


@pytest.mark.slow
def test_the_released_model_of_secret_batches_at_one_epsilon(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "left_out", lambda mechanism, task: "the mean")
    options = ["--epsilon", "2", "--mechanisms", "none,mafalda", "--release-model", "average:2"]
    result = compare(capsys, *BINS, *options, "--out", str(tmp_path))
    assert (result["mu"], result["epsilon"], result["config"]["mu"]) == (None, 2.0, None)
    assert result["participation"] == {"scheme": "balls-in-bins", "epochs": 2, "bins": 2, "period": 2}
    none, *private = result["mechanisms"]
    assert (none["mu"], none["epsilon"]) == (None, "inf")
    for row in private:
        assert row["mu"] is None
        assert row["objective"] > 0
        assert 1.98 < row["epsilon"] <= 2
        assert "balls-in-bins (epochs=2, bins=2)" in row["guarantee"]
        assert row["guarantee"].endswith("\nnot covered, declared public: the mean")
        assert row["final_test_loss_mean"] != row["last_test_loss_mean"]
    assert "epsilon: 2 at delta" in result["guarantee"] or "epsilon: 1.99" in result["guarantee"]
    assert result["guarantee"].endswith("\nnot covered, declared public: the mean")
    assert step_frame(tmp_path / "steps.mfdl")["mu"].isna().all()
    again = compare(capsys, *BINS, *options, "--out", str(tmp_path))  # nothing is run anew
    assert again["runs"] == result["runs"]
    output = " ".join(printed(capsys, "compare", *BINS, *options, "--out", str(tmp_path)).split())
    assert all(words in output for words in ("balls-in-bins", "loss and accuracy: mean over the nodes of average:2."))
    assert "mu =" not in output
    assert "objective" in output
    assert main(["report", str(tmp_path)]) == 0
    assert "ε = 2" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_several_budgets_are_told_apart_by_epsilon(capsys, tmp_path):
    result = compare(capsys, *BINS, "--epsilon", "1,2", "--mechanisms", "none,dp-dsgd", "--out", str(tmp_path))
    assert result["mu"] == [None]
    runs = {(run["mechanism"], run["epsilon"]) for run in result["runs"]}
    assert (len(runs), main(["report", str(tmp_path)])) == (3, 0)
    page = (tmp_path / "report.html").read_text()
    assert all(words in page for words in ("ε = 1", "ε = 2"))


@each(
    "arguments, message",
    (["--mu", "1"], "--mu 1.0: --participation balls-in-bins has no mu; give --epsilon"),
    ([], "no mu; give --epsilon"), (["--epsilon", "1", "--unit", "user"], "--unit user"),
    (["--epsilon", "1", "--trust", "pndp", "--release", "all"], "--release all"),
    (["--epsilon", "1", "--mechanisms", "zip-dl", "--across-trust-models"], "take dp_dsgd, decor or corn"),
    (["--epsilon", "1", "--participation", "single"], "unknown participation 'single'"),
)  # fmt: skip
def test_what_has_no_meaning_there_is_refused_in_one_line(arguments, message, capsys, tmp_path):
    refused(capsys, message, "compare", *BINS, *arguments, "--out", str(tmp_path / "none"))


SMALLEST = {"graph": "ring:n=4", "epochs": 2, "period": 3, "adjacency": "zero-out", "epsilon": 2.0}
RATES = [(name, 0.3 if name in options.SAMPLED_AT_A_RATE else None) for name in options.SECRET]


def test_the_names_are_those_of_the_secret_schemes():
    secret = {name: entry for name, entry in SCHEMES.items() if entry.build.secret}
    assert set(options.SECRET) == set(secret)
    assert set(options.SAMPLED_AT_A_RATE) == {name for name, entry in secret.items() if "rate" in entry.takes}


@pytest.mark.parametrize(("name", "rate"), RATES)
def test_account_meets_epsilon_of_every_victim(name, rate):
    config = AccountConfig(mechanism="bsr", trust="ldp", participation=name, sampling_rate=rate, **SMALLEST)
    answer = run_account(config, progress=False).answer
    assert answer["participation"]["scheme"] == name
    assert {row["adaptive_by"] for row in answer["victims"]} == {answer["victims"][0]["adaptive_by"]}
    assert 1.9 < answer["worst_epsilon"] <= 2.0
    assert answer["worst_mu"] is None
    assert "Secret batches have no mu" in answer["notes"][-1]
    assert Experiment(participation=name, sampling_rate=rate, **SMALLEST).scheme() == config.scheme()


@each(
    "options, words",
    ({"participation": "cyclic-poisson"}, "needs --sampling-rate"),
    ({"participation": "cyclic", "sampling_rate": 0.5}, "leave it out"),
    ({"participation": "cyclic-poisson", "sampling_rate": 1.0}, "sampling_rate"),
    ({"participation": "random-allocation", "all_attackers": True, "trust": "pndp"}, "random-allocation assumes"),
)
def test_what_does_not_fit_is_refused(options, words):
    refuses(words, AccountConfig, mechanism="dp-dsgd", **{"trust": "ldp", **SMALLEST, **options})
