"""Runs the tests marked `peer`, which compare with other libraries, in an environment that has these libraries.

    python tests/beside_peers.py           # installs, tests, removes the environment
    python tests/beside_peers.py FOLDER    # leaves the environment in FOLDER, for the benchmarks, and tests nothing

The environment sees the packages of this interpreter and adds the peers, in the versions of constraints.txt. A skipped
test is a failure. If the package index cannot be reached, nothing is tested: a line says so, and the exit status is 0.
Needs Python 3.11 to 3.13, as opake does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("risk", "bench", "femnist", "nvflare")
WITHOUT_EXTRA = ("opake[dpftrl]", "PLD-accounting", "tensorboard")
EARLIER = {"rich": "14.3.4", "fsspec": "2026.2.0"}
"""Releases that flwr-datasets needs where constraints.txt has later ones. Here they come first on the path."""

INHERITED_SLOTS = """
import dataclasses, sys

def slots(cls, declared=dataclasses._get_slots):
    yield from declared(cls) or ()
    if "__slots__" not in cls.__dict__ and cls.__weakrefoffset__:
        yield "__weakref__"

if sys.version_info < (3, 11, 9) or (3, 12) <= sys.version_info < (3, 12, 3):
    dataclasses._get_slots = slots
"""
"""For opake: some releases of Python overlook the slots of a base class that declares none (CPython issue 105866)."""


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [line for extra in EXTRAS for line in project["optional-dependencies"][extra]] + list(WITHOUT_EXTRA)


def constraints() -> str:
    """The text of constraints.txt with the earlier releases in place of those it names."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines) | EARLIER
    return "".join(f"{name}=={version}\n" for name, version in pins.items())


def environment(folder: Path, packages: str | Path) -> Path:
    """The site-packages of a new environment in a folder; those in `packages` come after its own on the path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "inherited.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n", encoding="utf-8")
    return site


def index_answers() -> bool:
    command = [sys.executable, "-m", "pip", "--retries", "1", "--timeout", "20", "index", "versions", "riskcal"]
    return subprocess.run(command, capture_output=True).returncode == 0


def installed(folder: Path) -> dict[str, str]:
    """Installs the peers in a folder; the interpreters that have them, by variables of tests and benchmarks."""
    peers, opake, pinned = folder / "peers", folder / "opake", folder / "constraints.txt"
    site = environment(peers, sysconfig.get_path("purelib"))
    pinned.write_text(constraints(), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", peers / "bin" / "python", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", "-c", pinned, *requirements()], check=True)
    corrected = environment(opake, site)
    (corrected / "inherited_slots.py").write_text(INHERITED_SLOTS, encoding="utf-8")
    (corrected / "inherited_slots.pth").write_text("import inherited_slots\n", encoding="utf-8")
    return {"MFDL_BENCH_PEER": f"{peers}/bin/python", "MFDL_BENCH_OPAKE": f"{opake}/bin/python"}


def tested(interpreters: dict[str, str], folder: Path) -> None:
    """Runs the tests marked `peer`; SystemExit if any of them fails or is skipped."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.peer" in path.read_text("utf-8")]
    report, variables = folder / "report.xml", {**os.environ, **interpreters, "HF_HOME": str(folder / "hub")}
    command = [interpreters["MFDL_BENCH_PEER"], "-m", "pytest", "-rfEs", "--color=no", f"--junitxml={report}"]
    done = subprocess.run([*command, "-m", "peer", *files], cwd=ROOT, env=variables)
    if done.returncode:
        sys.exit(done.returncode)
    cases = ElementTree.parse(report).iter("testcase")
    if skipped := [case.get("name") for case in cases if case.find("skipped") is not None]:
        sys.exit(f"these tests were skipped, and must not be: {', '.join(map(str, skipped))}")


def main() -> None:
    if not index_answers():
        print("skipped: the package index cannot be reached")  # noqa: T201
    elif folders := sys.argv[1:]:
        print(*(f"export {name}={path}" for name, path in installed(Path(*folders).resolve()).items()), sep="\n")  # noqa: T201
    else:
        with tempfile.TemporaryDirectory() as name:
            tested(installed(Path(name).resolve()), Path(name))


if __name__ == "__main__":
    main()
