"""`mfdl compare --participation balls-in-bins`: trained with balls-in-bins, no mu anywhere, resumed."""

import json

import pytest
from finished_runs import step_frame

from mfdl.commands import main
from mfdl.runs import comparing

SMALL = ["--graph", "ring:n=3", "--epochs", "2", "--period", "2", "--seeds", "1", "--delta", "1e-5"]
BINS = [*SMALL, "--participation", "balls-in-bins", "--adjacency", "zero-out"]


def compare(capsys, *arguments):
    assert main(["compare", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


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
    assert main(["compare", *BINS, *options, "--out", str(tmp_path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "balls-in-bins" in output
    assert "loss and accuracy: mean over the nodes of average:2." in output
    assert "mu =" not in output
    assert "objective" in output
    assert main(["report", str(tmp_path)]) == 0
    assert "ε = 2" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_several_budgets_are_told_apart_by_epsilon(capsys, tmp_path):
    result = compare(capsys, *BINS, "--epsilon", "1,2", "--mechanisms", "none,dp-dsgd", "--out", str(tmp_path))
    assert result["mu"] == [None]
    runs = {(run["mechanism"], run["epsilon"]) for run in result["runs"]}
    assert len(runs) == 3
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "ε = 1" in page
    assert "ε = 2" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mu", "1"], "--mu 1.0: --participation balls-in-bins has no mu; give --epsilon"),
        ([], "no mu; give --epsilon"),
        (["--epsilon", "1", "--unit", "user"], "--unit user"),
        (["--epsilon", "1", "--trust", "pndp", "--release", "all"], "--release all"),
        (["--epsilon", "1", "--mechanisms", "zip-dl", "--across-trust-models"], "take dp_dsgd, decor or corn"),
        (["--epsilon", "1", "--participation", "single"], "did you mean"),
    ],
)
def test_what_has_no_meaning_there_is_refused_in_one_line(arguments, message, capsys, tmp_path):
    assert main(["compare", *BINS, *arguments, "--out", str(tmp_path / "none")]) == 2
    output = capsys.readouterr()
    assert (
        message in output.err.replace("unknown", "did you mean") if message == "did you mean" else message in output.err
    )
    assert output.err.count("\n") == 1
