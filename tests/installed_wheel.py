"""Builds the source distribution, from it the wheel, and uses the wheel beside the required packages alone.

    python tests/installed_wheel.py

The environment is new and empty. It gets links to those packages of this interpreter that the wheel requires, directly
or not, so that neither this checkout nor a package of an extra can be imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from readme_session import quick_blocks

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
ON_RING = ["--graph", "ring:n=4", "--epochs", "1", "--period", "2"]
REFUSED = "mfdl claims needs hypothesis, which is not installed: pip install 'mfdl[testing]'."


def unpacked_source(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder], cwd=ROOT, check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def wheel_of(source: Path, folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=source, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def required(names: list[str]) -> dict[str, importlib.metadata.Distribution]:
    """Installed distributions by name: those of the requirements, and all that these require."""
    distributions: dict[str, importlib.metadata.Distribution] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in distributions:
            distributions[name] = importlib.metadata.distribution(name)
            waiting += [Requirement(line) for line in distributions[name].requires or ()]
    return distributions


def link_into(site: Path, distribution: importlib.metadata.Distribution) -> None:
    for name in sorted({file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}):
        source = Path(str(distribution.locate_file(name)))
        if source.exists() and not (site / name).exists():
            (site / name).symlink_to(source)


def installed(wheel: Path, folder: Path) -> Path:
    """The folder of commands of a new environment with the wheel and what it requires."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (wheel_itself,) = importlib.metadata.distributions(path=[str(site)])
    for distribution in required(wheel_itself.requires or []).values():
        link_into(site, distribution)
    return folder / "bin"


def uses(commands: Path, folder: Path) -> Iterator[str]:
    """What a first user does, in an empty folder; a line for each use that works."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def output(*command: str | Path, status: int = 0) -> str:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == status, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout if status == 0 else done.stderr

    assert output(commands / "mfdl", "--version") == f"mfdl {VERSION}\n"
    yield f"mfdl --version: {VERSION}"
    files = output(commands / "python", "-c", "import mfdl, mfdl_papers; print(mfdl.__file__, mfdl_papers.__file__)")
    assert all(Path(name).is_relative_to(commands.parent) for name in files.split()), files
    yield "import mfdl, mfdl_papers: those of the wheel"
    output(commands / "python", "-c", quick_blocks(folder)[0][1])
    assert (folder / "results" / "paper" / "figure.pdf").stat().st_size > 5_000
    yield "the first block of README.md: figure.pdf"
    output(commands / "mfdl", "compare", *ON_RING, "--seeds", "1", "--mechanisms", "none,mafalda", "--out", "compare")
    assert {"results.json", "steps.mfdl", "compare.png"} <= {path.name for path in (folder / "compare").iterdir()}
    yield "mfdl compare: results.json, steps.mfdl, compare.png"
    assert '"mu"' in output(commands / "mfdl", "account", *ON_RING, "--json")
    yield "mfdl account: mu"
    assert REFUSED in output(commands / "mfdl", "claims", status=2)
    yield "mfdl claims: refused, with the extra that it needs"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        wheel = wheel_of(unpacked_source(folder), folder)
        for use in uses(installed(wheel, folder / "environment"), folder / "use"):
            print(use, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
