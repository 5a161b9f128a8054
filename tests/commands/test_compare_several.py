"""`mfdl compare` at several budgets and rates: each as alone, all in one result."""

import dataclasses
import json
import shutil

import pytest
from finished_runs import BUDGETS, COMPARED, step_frame
from test_compare import CONFIG, MECHANISM_KEYS, RUN_KEYS, without_times

import mfdl
from mfdl.commands import main
from mfdl.runs.comparing import run_comparison

TRAIN_LOSS = {"final_train_loss_mean", "final_train_loss_std"}  # of the rows; of a run "final_train_loss"


@pytest.fixture(scope="module")
def finished(finished_comparisons, tmp_path_factory):
    """The result and a copy of its folder, into which tests write."""
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
        assert main(["compare", "--config", str(config), "--out", str(folder), "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
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
        assert main(["compare", *COMPARED, "--out", folder, *more]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    with pytest.raises(mfdl.InvalidInput, match="one privacy target"):
        run_comparison(dataclasses.replace(CONFIG, mu=1.0), folder, several={"epsilon": [1.0, 2.0]})


@pytest.mark.usefixtures("blank_pictures")
def test_the_table_shows_all(finished, capsys):
    assert main(["compare", *COMPARED, *BUDGETS, "--out", str(finished[1])]) == 0
    output = capsys.readouterr().out
    assert output.count("dp-dsgd") == 4
    assert "its budget for a record of every node" in " ".join(output.split())


@pytest.mark.usefixtures("blank_pictures")
def test_one_of_each_is_a_comparison_as_ever(tmp_path, capsys):
    single = ["--mu", "2", "--lr", "0.3", "--seeds", "1", "--mechanisms", "dp-dsgd"]
    assert main(["compare", *COMPARED, *single, "--out", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["mu"], result["learning_rate"]) == (2.0, 0.3)
    assert set(result["mechanisms"][0]) == MECHANISM_KEYS | TRAIN_LOSS
