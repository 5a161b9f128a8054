"""Which examples a property is tried on: the same in every run, others by MFDL_SEED, which the run says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROPERTY = """
from pathlib import Path
from hypothesis import given, strategies as st

@given(x=st.floats(), y=st.lists(st.integers()))
def test_records(x, y):
    with Path("drawn").open("a") as file:
        file.write(f"{x!r} {y!r}\\n")
"""
UNSEEDED = """
import random
import numpy as np
import torch
from pathlib import Path

def test_unseeded():
    drawn = random.random(), np.random.random(), float(torch.rand(1))
    with Path("drawn").open("a") as file:
        file.write(f"{drawn}\\n")
"""


def drawn(folder, hash_seed, *arguments, seed=None):
    """The examples in order, and what the run printed."""
    (folder / "test_a_property.py").write_text(PROPERTY)
    (folder / "test_unseeded.py").write_text(UNSEEDED)
    (folder / "drawn").unlink(missing_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MFDL_SEED", "PYTEST"))}
    env |= {"PYTHONPATH": str(Path(__file__).parent), "PYTHONHASHSEED": hash_seed}
    env |= {} if seed is None else {"MFDL_SEED": seed}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "drawn").read_text(), done.stdout


@pytest.mark.slow
def test_a_seed_decides_the_examples_and_the_run_says_which(tmp_path):
    """Whatever the order of sets, in a worker of xdist or without."""
    of_seed = {}
    for seed in (None, "5"):
        of_seed[seed], announced = drawn(tmp_path, "1", seed=seed)
        again, said_again = drawn(tmp_path, "2", "-n", "1", seed=seed)
        assert of_seed[seed] == again
        assert of_seed[seed].count("\n") > 5
        for text in (announced, said_again):
            assert ("MFDL_SEED=5" in text) == (seed is not None)
    of_seed["6"], _ = drawn(tmp_path, "1", seed="6")
    assert len(set(of_seed.values())) == 3
