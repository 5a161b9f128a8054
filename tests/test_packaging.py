"""What is installed: `mfdl` and `mfdl_solvers`, beside whatever folders a user has."""

import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USES_BOTH = """
import pathlib, sys
import solvers
import mfdl.factorization, mfdl_solvers
places = [pathlib.Path(module.__file__).parents[1] for module in (solvers, mfdl, mfdl_solvers)]
assert places == [pathlib.Path(folder) for folder in sys.argv[1:]], places
assert mfdl.factorization.square_root_encoder(4).shape == (4, 4)
"""


def wheel_contents(folder):
    """The wheel of this tree, unpacked."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs the build backend, `pip install hatchling`")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    site = folder / "site"
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"mfdl", "mfdl_solvers"}
    return site, site


@pytest.mark.parametrize(
    "places",
    [lambda folder: (ROOT, ROOT / "solvers"), pytest.param(wheel_contents, marks=pytest.mark.slow)],
    ids=["tree", "wheel"],
)
def test_a_folder_of_the_users_called_solvers_is_left_alone(tmp_path, places):
    """A top-level package of that name would hide it, or be hidden by it."""
    here = tmp_path / "project"
    (here / "solvers").mkdir(parents=True)
    (here / "solvers" / "__init__.py").touch()
    installed = [str(place) for place in places(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(installed))}
    subprocess.run([sys.executable, "-c", USES_BOTH, str(here), *installed], cwd=here, env=env, check=True)


@pytest.mark.parametrize("name", ["hypothesis", "mpmath"])
def test_a_missing_package_of_the_testing_room_is_named_with_what_installs_it(name):
    code = f"import sys; sys.modules[{name!r}] = None\nimport mfdl.testing"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT)
    told = (
        f"ImportError: mfdl.testing needs {name}, which is not installed; install it with pip install 'mfdl[testing]'."
    )
    assert done.stderr.splitlines()[-1] == told


def test_the_testing_extra_holds_what_the_testing_room_imports():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needs = {name: {text.partition(">")[0] for text in extras[name]} for name in ("testing", "test")}
    assert needs["testing"] == {"pytest", "hypothesis", "mpmath"} <= needs["test"]


def test_what_the_extras_ask_for_is_pinned():
    """Else `make` takes whatever is newest, beside versions that were tried together."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()
    }
    missing = {line.partition(">=")[0].lower() for line in asked} - pinned
    assert not missing, f"no version in constraints.txt of {', '.join(sorted(missing))}"
