"""The kernels that `machines.py` asks for are those that libraries then use."""

import locale
import os
import subprocess
import sys
from types import SimpleNamespace

import machines
import pytest
from refusals import refuses

REPORT = """
import os, threadpoolctl, torch
from machines import numpy_core
(blas,) = [x for x in threadpoolctl.threadpool_info() if x["internal_api"] == "openblas" and "numpy" in x["filepath"]]
disabled = os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()
print(torch.backends.cpu.get_cpu_capability(), blas["architecture"], blas["num_threads"])
assert not any(numpy_core.__cpu_features__[group] for group in disabled), disabled
"""


@pytest.fixture
def calls(monkeypatch):
    """Commands and environments of the runs of pytest, which fail."""
    calls = []

    def run(command, *, env, **options):
        calls.append((command, env))
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(machines, "localised", lambda wanted, folder: wanted)
    monkeypatch.setattr(machines.subprocess, "run", run)
    return calls


def test_a_machine_that_the_processor_cannot_be_is_skipped_visibly(calls, capsys, monkeypatch):
    monkeypatch.setattr(machines, "found", lambda feature: feature == "SSE42")
    assert machines.main(["avx2"]) == 0
    assert capsys.readouterr().out == "skipped: avx2, because this processor lacks AVX2\n"
    assert calls == []
    assert machines.main(["--", "-n", "0", "tests/noise"]) == 1  # a failure on one machine is one of all
    ((command, environment),) = calls
    assert command[1:] == ["-m", "pytest", "-n", "0", "tests/noise"]
    assert environment["MKL_ENABLE_INSTRUCTIONS"] == "SSE4_2"
    refuses("no machine is called avx; there are: avx2", machines.main, ["avx"], error=SystemExit)


def test_groups_of_features_have_the_names_of_this_numpy(monkeypatch):
    groups = {"X86_V3": True, "X86_V4": True, "AVX512_SPR": False}  # of NumPy 2.4 on a processor with AVX-512
    core = SimpleNamespace(__cpu_features__=groups, __cpu_dispatch__=list(groups))
    monkeypatch.setattr(machines, "numpy_core", core)
    disabled = {name: machines.variables(name).get("NPY_DISABLE_CPU_FEATURES") for name in machines.MACHINES}
    assert disabled == {"avx2": "X86_V4", "sse": "X86_V3 X86_V4", "one-thread": None}


def test_a_decimal_comma_is_set_in_every_test():
    if "MFDL_LOCALE" in os.environ:
        assert locale.localeconv()["decimal_point"] == ","


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernels"),
    [("avx2", "AVX2 Haswell 1"), ("sse", "DEFAULT Katmai 1")],  # Katmai: OpenBLAS's first name for the Prescott kernels
)
def test_libraries_use_the_kernels(name, kernels):
    if not machines.found(machines.NEEDS[name]):
        pytest.skip(f"needs {machines.NEEDS[name]}")
    variables = (
        os.environ | machines.ONE_THREAD | machines.variables(name) | {"PYTHONPATH": str(machines.ROOT / "tests")}
    )
    done = subprocess.run([sys.executable, "-c", REPORT], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == kernels
