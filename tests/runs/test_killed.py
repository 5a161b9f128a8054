"""SIGKILL: a sweep goes on, to the bytes of one that nobody disturbed; at random moments: `tests/faults`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from finished_runs import made_once
from test_running import content

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and fork")


SWEEP = """
mechanisms = ["none", "dp-dsgd", "mafalda", "bsr"]
graph = ["ring:n=8", "florentine"]
task = "digits"
epochs = 2
period = 4
mu = [0.5, 1, 2]
lr = [0.1, 0.5]
seeds = 3
"""
CELLS = 2 * 3 * 2 * (1 + 3 * 3)


def begun(out, *options):
    config = out.with_suffix(".toml")
    config.write_text(SWEEP)
    command = [sys.executable, "-m", "mfdl", "sweep", str(config), "--out", str(out), "--jobs", "2", *options]
    with out.with_suffix(".json").open("w") as output:
        return subprocess.Popen(command, stdout=output, start_new_session=True)


def of_session(session):
    left = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session_id = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session_id) == session and state != "Z":
            left.append(int(path.parent.name))
    return left


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    def make(folder):
        assert begun(folder, "--engine", "joblib").wait(600) == 0

    return made_once(tmp_path_factory, "undisturbed", make)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
@pytest.mark.parametrize("engine", ["joblib", "dask"])
def test_many_cells_killed_twice_are_those_of_an_undisturbed_sweep(engine, undisturbed, tmp_path):
    out, options, snapshots = tmp_path / "out", ("--engine", engine), []
    for enough in (CELLS // 4, CELLS // 2):
        process = begun(out, *options)
        while len(list((out / "cells").glob("*.json"))) < enough:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        snapshots.append({path: path.stat().st_mtime_ns for path in (out / "cells").glob("*.json")})
        ends = time.monotonic() + 60
        while of_session(process.pid):
            assert time.monotonic() < ends, f"left running: {of_session(process.pid)}"
            time.sleep(0.1)
    assert begun(out, *options, "--json").wait(600) == 0
    counts = json.loads(out.with_suffix(".json").read_text())
    assert (counts["finished"], counts["failed"], counts["missing"]) == (CELLS, 0, 0)
    for finished in snapshots:  # never run twice
        assert all(path.stat().st_mtime_ns == written for path, written in finished.items())
    assert content(out) == content(undisturbed)
