"""SIGKILL at random times: the end is the same, no noise is used twice for two purposes, and none is skipped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).parents[2] / "experiments" / "faults.py"


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and fork")
def test_a_few_kills(tmp_path):
    """A process of its own: it forks, which a process with threads should not."""
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, str(COMMAND), "kill", "--runs", "3", "--seed", "1", "--out", str(report)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["faults"] == []
    assert found["training"] == 3
    assert found["kills"] >= 2
