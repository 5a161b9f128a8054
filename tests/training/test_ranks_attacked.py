"""Runs shared by processes under attack: other numbers of ranks at each stop, damaged and foreign checkpoints, ranks
that die while one is written. What goes on is the run that nobody disturbed; all else is refused in words.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from archives import flipped
from test_ranks import CYCLIC, DYNAMICS, TASK, assert_same, calibrated, mechanisms
from vocabulary import refuses

import mfdl
from mfdl.errors import InvalidInput, RankLost
from mfdl.training import checkpoint, distributed

pytestmark = pytest.mark.slow
FORWARD = {"dtype": torch.float64, "metrics": ["train_loss"], "progress": False}


def every_mechanism():
    """Those of the other file, and noise that is one matrix over steps and nodes."""
    yield from mechanisms()
    yield calibrated(mfdl.algorithms.build("joint", DYNAMICS, CYCLIC), "eavesdropper")


def trained(mechanism, folder=None, **options):
    return mfdl.replay(mechanism, TASK, seeds=[3], checkpoint_folder=folder, **(FORWARD | options)).seeds[0]


def test_each_stop_may_have_another_number_of_ranks(tmp_path):
    calibrated = list(every_mechanism())
    alone = [trained(mechanism) for mechanism in calibrated]
    for ranks, last in ((1, 2), (2, 4), (4, 7), (1, None)):
        with distributed.ranks(ranks):
            done = [trained(m, tmp_path / str(i), stop_after=last) for i, m in enumerate(calibrated)]
    for run, wanted in zip(done, alone, strict=True):
        assert_same(run, wanted)


def test_damaged_and_foreign_checkpoints_are_refused_and_the_ranks_go_on(tmp_path):
    mechanism, other = (calibrated(mfdl.algorithms.build("bsr", DYNAMICS, CYCLIC), mu=mu) for mu in (1.0, 2.0))
    alone = trained(mechanism)
    with distributed.ranks(2):
        for name, given in (("own", mechanism), ("foreign", other)):
            trained(given, tmp_path / name, stop_after=4)
        folder, foreign = (tmp_path / name / "seed-3" for name in ("own", "foreign"))
        file, other_file = folder / checkpoint.FILE, foreign / checkpoint.FILE
        whole = file.read_bytes()
        damages = {
            "or is damaged": whole[: len(whole) // 2],
            "its content is not that of its checksum": flipped(whole, len(whole) - 1),
            "mechanism_hash": other_file.read_bytes(),
        }
        for message, damaged in damages.items():
            file.write_bytes(damaged)
            refuses(message, trained, mechanism, tmp_path / "own")
        file.write_bytes(whole)
        for options, message in (
            ({"dtype": torch.float32}, "key_id"),
            ({"metrics": []}, "metrics|tensors"),
            ({"clip_schedule": np.linspace(1.0, 0.5, 8)}, "key_id|clips"),
        ):
            refuses(message, trained, mechanism, tmp_path / "own", **options)
        refuses("mechanism_hash", trained, mechanism, tmp_path / "foreign")
        assert_same(trained(mechanism, tmp_path / "own"), alone)


@pytest.mark.parametrize("error", [InvalidInput("no space left"), KeyError("mine")])
def test_an_error_of_the_leader_alone_ends_the_group_and_the_run_goes_on(tmp_path, error):
    """A full disk, or a function of the caller's: the others stand elsewhere, so nothing more is asked of them."""
    mechanism = calibrated(mfdl.algorithms.build("bsr", DYNAMICS, CYCLIC))

    def fails(at):
        raise error

    with distributed.ranks(2):
        refuses(None, trained, mechanism, tmp_path, on_evaluation=fails, error=type(error))
        refuses("start a new group", trained, mechanism, error=RankLost)
    with distributed.ranks(2):
        assert_same(trained(mechanism, tmp_path), trained(mechanism))


KILLED = """
import os, pathlib, signal, sys
sys.path[:0] = {path!r}
from test_ranks_attacked import *
from mfdl import files
mechanism = calibrated(mfdl.algorithms.build("decor", DYNAMICS, CYCLIC), "eavesdropper")
replace, done = os.replace, []
def dies(old, new):
    done.append(new)
    if len(done) == {writes}:
        os.kill({whom}, signal.SIGKILL)
        if {whom} != os.getpid():
            os.waitid(os.P_PID, {whom}, os.WEXITED | os.WNOWAIT)
    return replace(old, new)
with distributed.ranks(2) as group:
    print(group.started[0].pid, flush=True)
    files.os.replace = dies
    trained(mechanism, {folder!r}, eval_every=2)
"""


@pytest.mark.parametrize("whom", ["os.getpid()", "group.started[0].pid"])
@pytest.mark.parametrize("writes", [2])  # of the second checkpoint
def test_a_rank_killed_while_a_checkpoint_is_written_leaves_a_whole_one(tmp_path, whom, writes):
    folder = tmp_path / "run"
    script = KILLED.format(path=sys.path, writes=writes, whom=whom, folder=str(folder))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    if whom == "os.getpid()":
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    else:
        assert "RankLost" in ended.stderr
    follower, until = int(ended.stdout.split()[0]), time.monotonic() + 30
    while _runs(follower) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _runs(follower)  # nobody trains on alone
    assert checkpoint.load(folder / "seed-3").step in (0, 2)
    mechanism = calibrated(mfdl.algorithms.build("decor", DYNAMICS, CYCLIC), "eavesdropper")
    with distributed.ranks(3):
        done = trained(mechanism, folder, eval_every=2)
    assert_same(done, trained(mechanism, eval_every=2))
    assert [path.name for path in (folder / "seed-3").iterdir()] == [checkpoint.FILE]


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
