"""SIGKILL at places of their own and at random: a sweep goes on, to the bytes of one that nobody disturbed."""

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

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
KILL = """
import json, random, sys, tempfile
from pathlib import Path
import _fault_kills as kills
kills.torch.set_num_threads(1)
kills._warm_up({"sweep"})
counts = dict.fromkeys(("kills", "kills after a checkpoint"), 0)
for k in range(int(sys.argv[1])):
    with tempfile.TemporaryDirectory() as folder:
        kills._sweep(Path(folder), random.Random(k), k, counts)
print(json.dumps(counts))
"""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and fork")


@pytest.mark.slow
def test_sweeps_killed_at_random_end_with_the_same_bytes():
    """One of them is in `tests/faults`. A process of its own: it forks, which a process with threads should not."""
    times = 4
    command = [sys.executable, "-c", KILL, str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=EXPERIMENTS)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["kills"] >= 3 * times
    assert counts["kills after a checkpoint"] >= 1


# ---- a sweep of 120 cells, as a user runs it -------------------------------------------------------------------------
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
    """The sweep by joblib, for all engines, and what it took."""

    def make(folder):
        began = time.perf_counter()
        assert begun(folder, "--engine", "joblib").wait(600) == 0
        folder.with_suffix(".seconds").write_text(str(time.perf_counter() - began))

    folder = made_once(tmp_path_factory, "undisturbed", make)
    return folder, float(folder.with_suffix(".seconds").read_text())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
@pytest.mark.parametrize("engine", ["joblib", "dask"])
def test_many_cells_killed_twice_are_those_of_an_undisturbed_sweep(engine, undisturbed, tmp_path, capsys):
    calm, seconds = undisturbed
    out, options, took, snapshots = tmp_path / "out", ("--engine", engine), {"undisturbed, joblib": seconds}, []
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
    began = time.perf_counter()
    last = begun(out, *options, "--json")
    assert last.wait(600) == 0
    took["the rest"] = time.perf_counter() - began
    counts = json.loads(out.with_suffix(".json").read_text())
    assert (counts["finished"], counts["failed"], counts["missing"]) == (CELLS, 0, 0)
    for finished in snapshots:  # never run twice
        assert all(path.stat().st_mtime_ns == written for path, written in finished.items())
    assert content(out) == content(calm)
    with capsys.disabled():
        words = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.items())
        print(f"\n{engine}: {CELLS} cells, killed at {[len(snapshot) for snapshot in snapshots]} finished; {words}")  # noqa: T201
