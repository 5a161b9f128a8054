"""Runs that a session trains once, whatever the number of its workers, and many tests read."""

import contextlib
import io
import json
import os
import shutil

import filelock
import pytest

COMPARED = [
    "--graph", "ring:n=4", "--epochs", "2", "--period", "4", "--seeds", "2", "--mechanisms", "none,dp-dsgd",
    "--metrics", "train-loss",
]  # fmt: skip
BUDGETS = ["--mu", "0.5,2", "--lr", "0.1, 0.3"]


def made_once(tmp_path_factory, name, make):
    """The folder that make(folder) fills in the first worker that needs it; other workers wait for it.

    All workers read the same folder, so a test that writes into it takes a copy.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, complete = base / name, base / f"{name}.complete"
    with filelock.FileLock(base / f"{name}.lock"):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            complete.touch()
    return folder


def step_frame(path):
    import pandas

    from mfdl.runs import load_steps

    return pandas.concat([run.to_pandas() for run in load_steps(path)], ignore_index=True)


@pytest.fixture(scope="session")
def finished_comparisons(tmp_path_factory):
    """Folder of `mfdl compare`: "none" and dp-dsgd at two budgets and two rates, each pair in a folder below."""
    from mfdl.commands import main

    def make(folder):
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["compare", *COMPARED, *BUDGETS, "--out", str(folder), "--json"]) == 0

    return made_once(tmp_path_factory, "finished-comparisons", make)


@pytest.fixture
def blank_pictures(monkeypatch):
    """Comparisons write empty pictures, for tests that look at none: half of the time of a small comparison."""
    from matplotlib.figure import Figure

    from mfdl.runs import comparing

    monkeypatch.setattr(comparing, "plot_comparison", lambda *_: Figure())


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def printed(capsys, *arguments, code=0):
    from mfdl.commands import main

    assert main([*arguments]) == code
    return capsys.readouterr().out


def answer_of(capsys, *arguments, code=0):
    return json.loads(printed(capsys, *arguments, "--json", code=code))


def refused(capsys, words, *arguments):
    """Runs a command that prints nothing but one line with the words on stderr, and exits with 2."""
    from mfdl.commands import main

    assert main([*arguments]) == 2
    output = capsys.readouterr()
    assert words in output.err
    assert (output.out, output.err.count("\n")) == ("", 1), output.err
