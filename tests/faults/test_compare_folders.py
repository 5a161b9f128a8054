"""Folders of `mfdl compare` that something else wrote to, or that a process left in the middle of taking them over."""

import dataclasses
import json
import shutil

import pytest
from finished_runs import content, refused
from vocabulary import refuses

from mfdl import files
from mfdl.commands import main
from mfdl.runs import comparing
from mfdl.runs.experiment import Experiment
from mfdl.runs.store import load_steps, save_steps

SMALL = ["compare", "--graph", "ring:n=4", "--epochs", "1", "--period", "2", "--seeds", "1"]
ARGUMENTS = [*SMALL, "--mechanisms", "dp-dsgd", "--out", "out"]
pytestmark = pytest.mark.usefixtures("blank_pictures")  # those of `finished` are drawn


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    assert main([*ARGUMENTS[:-1], str(folder)]) == 0
    return folder


@pytest.fixture
def out(tmp_path, monkeypatch, finished):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(finished, tmp_path / "out")


def test_results_nested_deeper_than_python_reads(out, capsys):
    (out / comparing.RESULTS).write_text("[" * 100_000)
    refused(capsys, "holds results.json of another comparison", *ARGUMENTS)
    assert main([*ARGUMENTS, "--overwrite"]) == 0


def test_steps_of_other_columns_are_not_those_of_finished_runs(out):
    whole = content(out)
    (cell,) = (out / "runs" / "cells").glob("*.mfdl")
    (run,) = load_steps(cell)
    save_steps(cell, [dataclasses.replace(run, values={"loss": run.values["loss"], "other": run.values["loss"]})])
    assert main(ARGUMENTS) == 0
    assert content(out)[str(cell.relative_to(out))] == whole[str(cell.relative_to(out))]


def test_a_run_without_its_steps_is_not_finished(out):
    whole = (out / comparing.STEPS).read_bytes()
    save_steps(out / comparing.STEPS, [])
    assert main(ARGUMENTS) == 0
    assert (out / comparing.STEPS).read_bytes() == whole
    assert len(load_steps(out / comparing.STEPS)[0]) > 0


@pytest.mark.parametrize("name", [comparing.STEPS, comparing.PNG, comparing.SVG])
def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_touched(name, out, capsys):
    (out / name).unlink()
    (out / name).mkdir()
    (out / comparing.RESULTS).write_text('{"config_hash": "of another"}')
    before = content(out)
    refused(capsys, f"cannot write out/{name}: it is a folder", *ARGUMENTS, "--overwrite")
    assert content(out) == before


@pytest.mark.skipif(files.fcntl is None, reason="no locks of this kind")
def test_a_folder_takes_one_comparison_at_a_time(out, capsys):
    before = content(out)
    with files.held_alone(out):
        assert main(ARGUMENTS) == 2
    assert "mfdl: out is in use by another run; wait for its end" in capsys.readouterr().err
    assert content(out) == before
    assert main(ARGUMENTS) == 0


def test_a_kill_while_the_folder_is_taken_leaves_no_picture_of_the_earlier_one(out, monkeypatch):
    """`begin` replaces results.json and then removes the rest; a kill in between must not keep the rest for good."""
    (out / comparing.RESULTS).write_text('{"config_hash": "of another"}')

    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(comparing.Path, "unlink", killed)
        refuses(None, main, [*ARGUMENTS, "--overwrite"], error=Killed)
    assert json.loads((out / comparing.RESULTS).read_text())["runs"] == []
    assert (out / comparing.PNG).exists()
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "run_missing", killed)
        refuses(None, main, ARGUMENTS, error=Killed)
    assert {path.name for path in out.iterdir()} == {"runs", "results.json", "steps.mfdl"}  # of its finished runs


def test_steps_without_what_they_were_run_with_are_made_again(out):
    whole = (out / comparing.STEPS).read_bytes()
    (cell,) = (out / "runs" / "cells").glob("*.mfdl")
    (run,) = load_steps(cell)
    save_steps(cell, [dataclasses.replace(run, conditions={"mechanism": run.conditions["mechanism"], "seed": 0})])
    assert main(ARGUMENTS) == 0
    assert (out / comparing.STEPS).read_bytes() == whole
    assert load_steps(out / comparing.STEPS)[0].conditions["graph"] == "ring:n=4"


def test_a_folder_called_checkpoints_of_somebody_else_stays(tmp_path):
    mine = tmp_path / "checkpoints" / "mine" / "model.bin"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"kept")
    options = {"graph": "ring:n=3", "task": "least-squares", "epochs": 1, "period": 1, "seeds": 1}
    comparing.run_comparison(Experiment(**options, mechanisms=("none",)), tmp_path)
    assert mine.read_bytes() == b"kept"
