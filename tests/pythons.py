"""Runs the quick suite under other versions of Python, and under the lowest versions that pyproject.toml allows.

    python tests/pythons.py                # 3.12, 3.13, lowest
    python tests/pythons.py lowest         # these

3.12 and 3.13 get the versions of constraints.txt; `lowest` is the oldest Python of the classifiers with the lowest
version of every direct dependency. A Python that is neither on the path nor in pyenv is skipped, and a line says so;
so are all of them if the package index cannot be reached. Exit status 1 if a suite fails. Needs `uv` (the `dev` extra)
and 6 GB of disk, since the index has torch for CUDA only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from beside_peers import index_answers

ROOT = Path(__file__).resolve().parents[1]
LOWEST = "lowest"
CLASSIFIER = "Programming Language :: Python :: 3."


def tested_versions() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [line.rpartition(" ")[2] for line in project["classifiers"] if line.startswith(CLASSIFIER)]


def interpreter(version: str) -> str | None:
    """Path of a Python of this version: this process, pyenv or the path, in this order; None if there is none."""
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    in_pyenv = sorted(versions.glob(f"{version}.*/bin/python"), key=lambda path: path.stat().st_mtime)
    candidates = [str(path) for path in in_pyenv[::-1]] + [shutil.which(f"python{version}")]
    return next((path for path in candidates if path and _answers(path)), None)


def _answers(python: str) -> bool:
    """Whether it starts: what pyenv puts on the path may name a version that is not installed."""
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def run_suite(name: str, folder: Path) -> bool:
    """Installs into a folder of its own and runs the quick suite there; True if it passes or is skipped."""
    version = tested_versions()[0] if name == LOWEST else name
    print(f"\n==> Python {version}{', lowest versions' if name == LOWEST else ''}", flush=True)  # noqa: T201
    if (python := interpreter(version)) is None:
        print(f"skipped: no Python {version} on the path or in pyenv")  # noqa: T201
        return True
    wanted = ["--resolution", "lowest-direct"] if name == LOWEST else ["-c", "constraints.txt"]
    uv = [Path(sys.executable).with_name("uv"), "--quiet", "--cache-dir", folder / "cache"]
    environment = folder / name
    subprocess.run([*uv, "venv", "--python", python, environment], check=True)
    install = [*uv, "pip", "install", "--python", environment / "bin" / "python", *wanted, "-e", ".[test]"]
    subprocess.run(install, cwd=ROOT, check=True)
    suite = [environment / "bin" / "python", "-m", "pytest", "-rfE", "--color=no"]
    suite += ["-W", "ignore::DeprecationWarning"] if name == LOWEST else []  # old packages about new ones
    passed = subprocess.run(suite, cwd=ROOT).returncode == 0
    shutil.rmtree(environment)
    return passed


def main() -> int:
    names = sys.argv[1:] or [*tested_versions()[1:], LOWEST]
    if unknown := set(names) - {*tested_versions(), LOWEST}:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join([*tested_versions(), LOWEST])}")
    if not index_answers():
        print("skipped: the package index cannot be reached")  # noqa: T201
        return 0
    with tempfile.TemporaryDirectory() as folder:
        passed = [run_suite(name, Path(folder).resolve()) for name in names]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
