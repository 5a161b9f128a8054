"""What is installed: `mfdl`, `mfdl_solvers` and `mfdl_papers`, beside whatever folders a user has."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import beside_peers
import pytest
import pythons
import yaml
from installed_wheel import unpacked_source, wheel_of

import mfdl

ROOT = Path(__file__).parents[1]
PAPERS = ROOT / "experiments" / "mfdl_papers"
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
COMMANDS = GROUPS["mfdl.commands"]
USES_ALL = """
import pathlib, sys
import solvers
import mfdl.factorization, mfdl_solvers, mfdl_papers.figures
places = [pathlib.Path(module.__file__).parents[1] for module in (solvers, mfdl, mfdl_solvers, mfdl_papers)]
assert places == [pathlib.Path(folder) for folder in sys.argv[1:]], places
assert mfdl.factorization.square_root_encoder(4).shape == (4, 4)
assert len(mfdl_papers.all_facts()) > 100 and mfdl_papers.bibliography() and mfdl_papers.figures.names()
"""


def paper_files(folder):
    """Tables of facts and figures, and the bibliography."""
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.suffix in (".toml", ".bib")}
    assert len(files) > 10
    return files


def wheel_contents(folder):
    """The wheel that the source distribution of this tree builds, unpacked."""
    pytest.importorskip("hatchling", reason="needs the build backend, `pip install hatchling`")
    source = unpacked_source(folder)
    assert paper_files(source / "experiments" / "mfdl_papers") == paper_files(PAPERS)
    wheel = wheel_of(source, folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    site = folder / "site"
    packages = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert packages == {"mfdl", "mfdl_solvers", "mfdl_papers"}
    assert paper_files(site / "mfdl_papers") == paper_files(PAPERS)
    (distribution,) = importlib.metadata.distributions(path=[str(site)])
    assert {entry.name: entry.value for entry in distribution.entry_points.select(group="mfdl.commands")} == COMMANDS
    return site, site, site


@pytest.mark.parametrize(
    "places",
    [
        lambda folder: (ROOT, ROOT / "solvers", ROOT / "experiments"),
        pytest.param(wheel_contents, marks=pytest.mark.slow),
    ],
    ids=["tree", "wheel"],
)
def test_a_folder_of_the_users_called_solvers_is_left_alone(tmp_path, places):
    """A top-level package of that name would hide it, or be hidden by it."""
    here = tmp_path / "project"
    (here / "solvers").mkdir(parents=True)
    (here / "solvers" / "__init__.py").touch()
    installed = [str(place) for place in places(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(installed))}
    subprocess.run([sys.executable, "-c", USES_ALL, str(here), *installed], cwd=here, env=env, check=True)


@pytest.mark.parametrize("group", GROUPS)
def test_entry_points_of_this_installation_are_those_of_the_project(group):
    """Commands and citations of the papers are found by them."""
    installed = importlib.metadata.entry_points(group=group)
    assert GROUPS[group].items() <= {entry.name: entry.value for entry in installed}.items(), "install again"
    for name in GROUPS[group]:
        installed[name].load()


def test_what_the_extras_and_the_tests_beside_peers_install_is_pinned():
    """Else `make` takes whatever is newest, beside versions that were tried together."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    requirements = [line for line in [*project["dependencies"], *extras] if not line.startswith("mfdl[")]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    names = {re.split(r"[\[>]", line)[0].lower() for line in [*requirements, *beside_peers.WITHOUT_EXTRA]}
    missing = names - {name.lower().replace("_", "-") for name in pinned}
    assert all(version != pinned[name] for name, version in beside_peers.EARLIER.items())
    assert not missing, f"no version in constraints.txt of {', '.join(sorted(missing))}"


def test_the_classifiers_name_the_versions_that_are_tested():
    """The oldest is the one that the package requires, and no address is given that leads nowhere."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={pythons.tested_versions()[0]}"
    assert pythons.tested_versions() == ["3.11", "3.12", "3.13"]
    assert "urls" not in project, "an address must exist"


def test_the_citation_file_is_valid_and_that_of_the_project():
    """The required keys of format 1.2.0 (https://citation-file-format.github.io), no key that it does not know."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"authors", "cff-version", "message", "title"} <= set(citation)
    assert set(citation) <= {
        "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
        "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
        "repository-code", "title", "type", "url", "version",
    }  # fmt: skip
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    same = ("version", "license", "keywords", "authors")
    assert {name: citation[name] for name in same} == {name: project[name] for name in same}
    assert citation["title"] == f"{project['name']}: {project['description'][0].lower()}{project['description'][1:]}"
    assert citation["version"] == mfdl.__version__
