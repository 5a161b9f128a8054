"""Runs the quick suite as other machines would: kernels of other processors, one thread, another locale and time zone.

    python tests/machines.py                               # avx2, then sse
    python tests/machines.py sse -- -n 0 tests/training    # this machine, with these arguments of pytest

`avx2` has AVX2 kernels in NumPy, OpenBLAS, torch and MKL, a decimal comma and the time of Kathmandu; `sse` has SSE
kernels, one thread and the time of St. John's; `one-thread` has one thread and nothing else. The variables are printed
before each run. A machine whose kernels this processor lacks is skipped: a line says so, and the exit status does not
count it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from numpy._core import _multiarray_umath as numpy_core

ROOT = Path(__file__).resolve().parents[1]
COMMA = "de_DE.UTF-8"  # a locale with a decimal comma; `conftest.py` sets that of MFDL_LOCALE
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
AVX2 = {"OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
SSE = {"OPENBLAS_CORETYPE": "Prescott", "ATEN_CPU_CAPABILITY": "default"}
SSE |= {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "MKL_CBWR": "COMPATIBLE"}
MACHINES = {
    "avx2": AVX2 | {"PYTHONHASHSEED": "1", "TZ": "<+0545>-5:45", "MFDL_LOCALE": COMMA},
    "sse": SSE | ONE_THREAD | {"PYTHONHASHSEED": "2", "TZ": "NST3:30NDT,M3.2.0,M11.1.0"},
    "one-thread": ONE_THREAD,
}
NEEDS = {"avx2": "AVX2", "sse": "SSE42"}  # features of processors, as NumPy calls them


def found(feature: str) -> bool:
    return bool(numpy_core.__cpu_features__.get(feature))


def variables(name: str) -> dict[str, str]:
    """What a machine sets; NumPy's groups of features above its baseline are named by NumPy, each version its own."""
    above = [group for group in numpy_core.__cpu_dispatch__ if found(group)]
    if name == "avx2":
        above = [group for group in above if group == "X86_V4" or group.startswith("AVX512")]
    return MACHINES[name] | ({"NPY_DISABLE_CPU_FEATURES": " ".join(above)} if above and name in NEEDS else {})


def localised(wanted: dict[str, str], folder: str) -> dict[str, str]:
    """The variables with the locale that they name: installed, or compiled into the folder; without it if neither."""
    if "MFDL_LOCALE" not in wanted:
        return wanted
    listed = subprocess.run(["locale", "-a"], capture_output=True, text=True).stdout if shutil.which("locale") else ""
    if COMMA.replace("-", "").lower() in listed.replace("-", "").lower().split():
        return wanted
    if shutil.which("localedef"):
        command = ["localedef", "-i", "de_DE", "-f", "UTF-8", f"{folder}/{COMMA}"]
        if subprocess.run(command, capture_output=True).returncode == 0:
            return wanted | {"LOCPATH": folder}
    print(f"without a decimal comma: no locale {COMMA}, and localedef cannot make it")  # noqa: T201
    return {variable: value for variable, value in wanted.items() if variable != "MFDL_LOCALE"}


def tested(name: str, arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        chosen = localised(variables(name), folder)
        print(f"==> {name}: {' '.join(f'{key}={value!r}' for key, value in chosen.items())}", flush=True)  # noqa: T201
        command = [sys.executable, "-m", "pytest", *arguments]
        return subprocess.run(command, cwd=ROOT, env=os.environ | chosen).returncode


def main(given: list[str]) -> int:
    """1 if a test failed on one of the machines that are named, or an unknown one is; else 0."""
    end = given.index("--") if "--" in given else len(given)
    names, arguments, failed = given[:end] or ["avx2", "sse"], given[end + 1 :], False
    if unknown := [name for name in names if name not in MACHINES]:
        sys.exit(f"no machine is called {unknown[0]}; there are: {', '.join(MACHINES)}")
    for name in names:
        if name in NEEDS and not found(NEEDS[name]):
            print(f"skipped: {name}, because this processor lacks {NEEDS[name]}", flush=True)  # noqa: T201
        else:
            failed |= tested(name, arguments) != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
