"""`mfdl plan`: the table at 80 columns, JSON, the folder, refusals."""

import dataclasses
import json

import pytest
from _privacy import applied
from finished_runs import answer_of, printed, refused
from vocabulary import each

import mfdl
from mfdl.runs.experiment import Experiment

SMALL = [
    *("plan", "--graph", "ring:n=4", "--records", "50", "--batches", "1,16", "--epochs", "2,10", "--adjacency"),
    *("zero-out", "--delta", "1e-5"),
]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_the_table_marks_the_front_and_names_the_guarantee(capsys, tmp_path):
    given = ["--mu", "1", "--curvature", "power:1:3", "--out", str(tmp_path)]
    output = printed(capsys, *SMALL, *given)
    assert max(map(len, output.splitlines()[:-1])) <= 80  # the last line is a path
    assert all(words in output for words in ("* dp-dsgd,b=1,k=10", "  dp-dsgd,b=1,k=10,rounds=20,average:5 "))
    for words in ("trust model ldp", "Limit of one release", "zero-out", "cost privacy that is not counted", "Written"):
        assert words in " ".join(output.split())
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "plan.png", "plan.svg"}


def test_json_is_what_python_gives_and_the_folder_holds(capsys, tmp_path):
    out = tmp_path / "plan"
    answer = answer_of(capsys, *SMALL, "--epsilon", "1", "--mechanisms", "dp-dsgd", "--out", str(out))
    assert answer == json.loads((out / "plan.json").read_text())
    same = {"adjacency": "zero-out", "clip_norm": 1.0, "epsilon": 1.0, "delta": 1e-5, "mechanisms": ["dp-dsgd"]}
    plan = applied(mfdl.plan, "ring:n=4", 50, same | {"batches": [1, 16], "epochs": [2, 10]})
    assert (answer["designs"], answer["best"]) == (plan.rows, plan.best.design.name)
    assert all(row["epsilon"] <= 1 + 1e-9 for row in answer["designs"])


def test_secret_batches_and_releases_of_averages_have_names_that_are_read_back(capsys):
    for row in answer_of(capsys, *SMALL, "--epsilon", "1", "--mechanisms", "dp-dsgd")["designs"]:
        design = mfdl.planning.Design.parse(row["design"])
        assert (design.participation, design.release_model) == (row["participation"], row["release_model"])


@each(
    "arguments, words",
    (["plan", "--mu", "1"], "give --records N"), (SMALL, "give one budget"),
    ([*SMALL, "--mu", "1", "--epsilon", "2"], "give one budget"),
    ([*SMALL, "--mu", "1", "--batches", "1,x"], "--batches must be whole numbers"),
    ([*SMALL, "--mu", "1", "--gossip-rounds", "0"], "--gossip-rounds must be whole numbers"),
    ([*SMALL, "--mu", "1", "--mechanisms", "mafald"], "did you mean 'mafalda'"),
    ([*SMALL, "--mu", "1", "--trust", "pndq"], "unknown trust model"),
    ([*SMALL, "--mu", "1", "--messages", "1"], "no design is left"),
)  # fmt: skip
def test_bad_input_is_one_line_that_says_what_to_change(arguments, words, capsys):
    refused(capsys, words, *arguments)


def test_a_design_is_trained_by_the_options_that_it_stands_for(tmp_path, capsys):
    name = "dp-dsgd,b=2,k=3,rounds=2,average:4"
    config = Experiment(design=name, graph="ring:n=4", mu=1.0)
    assert config == Experiment(
        mechanisms=("dp-dsgd",), period=2, epochs=3, gossip_rounds=2, release_model="average:4", graph="ring:n=4",
        mu=1.0,
    )  # fmt: skip
    given = ["compare", "--design", name, "--graph", "ring:n=4", "--task", "logistic:train_records=80,test_records=20"]
    result = answer_of(capsys, *given, "--mu", "1", "--seeds", "1", "--out", str(tmp_path))
    assert (result["steps"], result["config"]["gossip_rounds"]) == (6, 2)
    (row,) = result["mechanisms"]
    privacy = mfdl.Privacy(adjacency="replace-one", clip_norm=1.0)
    (planned,) = mfdl.plan("ring:n=4", 20, privacy, designs=[name], mu=1.0).designs
    assert row["noise_std"] == pytest.approx(planned.guarantee.noise_std)
    assert Experiment.load(tmp_path / "results.json") == dataclasses.replace(
        config, task="logistic:train_records=80,test_records=20", seeds=1
    )


def test_options_that_contradict_a_design_are_refused(capsys):
    given = ["compare", "--design", "dp-dsgd,b=2,k=3", "--graph", "ring:n=4"]
    for option in (["--epochs", "4"], ["--mechanism", "mafalda"], ["--gossip-rounds", "2"]):
        refused(capsys, f"sets {option[0]}; give one of the two", *given, *option)
