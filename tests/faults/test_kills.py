"""SIGKILL at random times: the end is the same, no noise is used twice for two purposes, and none is skipped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).parents[2] / "experiments" / "faults.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and fork")
@pytest.mark.parametrize(("runs", "kills"), [(2, 4), (7, 5)])
def test_a_few_kills(runs, kills, tmp_path):
    """A process of its own: it forks, which a process with threads should not."""
    report = tmp_path / "report.json"
    arguments = ["kill", "--runs", str(runs), "--seed", "1", "--out", str(report)]
    done = subprocess.run(
        [sys.executable, str(COMMAND), *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(report.read_text())
    assert told["faults"] == []
    assert told["training"] == len({k for k in range(runs) if k not in (1, 3, 6)})
    assert told["kills"] >= kills
    assert told["sweep"] == 1
