"""What is installed, what works without extras, and the kernels that libraries use."""

import importlib.metadata
import importlib.util
import locale
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import beside_peers
import machines
import pytest
import pythons
import yaml
from installed_wheel import unpacked_source, wheel_of
from page_session import run_page
from readme_session import quick_blocks
from vocabulary import each, refuses

import mfdl
from mfdl.errors import EXTRAS, InvalidInput, MissingExtra, imported
from mfdl.training import distributed

ROOT = Path(__file__).parents[1]
PAPERS = ROOT / "experiments" / "mfdl_papers"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUPS = PROJECT["entry-points"]
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


@each(
    "places",
    lambda folder: (ROOT, ROOT / "solvers", ROOT / "experiments"),
    pytest.param(wheel_contents, marks=pytest.mark.slow),
    ids=["tree", "wheel"],
)
def test_a_folder_of_the_users_called_solvers_is_left_alone(tmp_path, places):
    here = tmp_path / "project"
    (here / "solvers").mkdir(parents=True)
    (here / "solvers" / "__init__.py").touch()
    installed = [str(place) for place in places(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(installed))}
    subprocess.run([sys.executable, "-c", USES_ALL, str(here), *installed], cwd=here, env=env, check=True)


@pytest.mark.parametrize("group", GROUPS)
def test_entry_points_of_this_installation_are_those_of_the_project(group):
    installed = importlib.metadata.entry_points(group=group)
    assert GROUPS[group].items() <= {entry.name: entry.value for entry in installed}.items(), "install again"
    for name in GROUPS[group]:
        installed[name].load()


def test_what_the_extras_and_the_tests_beside_peers_install_is_pinned():
    extras = [line for extra in OPTIONAL.values() for line in extra]
    requirements = [line for line in [*PROJECT["dependencies"], *extras] if not line.startswith("mfdl[")]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    names = {re.split(r"[\[>]", line)[0].lower() for line in [*requirements, *beside_peers.WITHOUT_EXTRA]}
    missing = names - {name.lower().replace("_", "-") for name in pinned}
    assert all(version != pinned[name] for name, version in beside_peers.EARLIER.items())
    assert not missing, f"no version in constraints.txt of {', '.join(sorted(missing))}"


def test_the_classifiers_name_the_versions_that_are_tested():
    assert PROJECT["requires-python"] == f">={pythons.tested_versions()[0]}"
    assert pythons.tested_versions() == ["3.11", "3.12", "3.13"]
    assert "urls" not in PROJECT, "an address must exist"


def test_the_citation_file_is_valid_and_that_of_the_project():
    """The required keys of format 1.2.0 (https://citation-file-format.github.io), no key that it does not know."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"authors", "cff-version", "message", "title"} <= set(citation)
    assert set(citation) <= {
        "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
        "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
        "repository-code", "title", "type", "url", "version",
    }  # fmt: skip
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    same = ("version", "license", "keywords", "authors")
    assert {name: citation[name] for name in same} == {name: PROJECT[name] for name in same}
    assert citation["title"] == f"{PROJECT['name']}: {PROJECT['description'][0].lower()}{PROJECT['description'][1:]}"
    assert citation["version"] == mfdl.__version__


OPTIONAL = PROJECT["optional-dependencies"]
OF_USERS = ("testing", "tables", "report", "ranks", "dask")
NOT_INSTALLED = {"flwr_datasets": "femnist", "nvflare": "nvflare"}  # the first needs an older rich, the second is heavy
PACKAGES = {line.partition(">=")[0]: extra for extra in OF_USERS for line in OPTIONAL[extra]}

LEFT = {"pytest", "cloudpickle"}  # scikit-learn imports the second since joblib 1.6
REQUIRED_ONLY = f"import sys\nsys.modules.update(dict.fromkeys({sorted({*PACKAGES} - LEFT)}))\n"
"""First lines of a session in which no package of an extra can be imported but these."""

WITHOUT_EXTRAS = """
import contextlib, io, pathlib
import mfdl
from mfdl.commands import main
from mfdl.runs import load_steps

def answer(*arguments):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main([*arguments])
    return status, errors.getvalue()

options = ["compare", "--graph", "ring:n=4", "--epochs", "1", "--period", "2", "--seeds", "1"]
status, _ = answer(*options, "--mechanisms", "none,mafalda", "--out", "out")
(_, run) = load_steps("out/steps.mfdl")
pictured, _ = answer(*"account --graph ring:n=4 --trust pndp --attackers 0 --mechanism dp-dsgd --mu 1 --out l".split())

def refusal(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except ImportError as error:
        return str(error)

dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=4"), 0.5)
graph_noise = mfdl.factorization.optimal_covariance

def use_ranks():
    with mfdl.training.distributed.ranks(2):
        pass

def use_testing():
    import mfdl.testing

refusals = {
    "tables": [refusal(run.to_pandas)],
    "report": [answer("report", "out")[1]],
    "ranks": [answer(*options, "--ranks", "2", "--out", "other")[1], refusal(use_ranks)],
    "dask": [refusal(mfdl.runs.Engine, "dask")],
    "testing": [
        answer("claims")[1], refusal(use_testing),
        refusal(graph_noise, dynamics, groups=[[0, 1], [2, 3]], method="conic"),
    ],
}
"""
REFUSED = """
assert status == 0 and pathlib.Path("out/compare.png").stat().st_size > 10_000
assert pictured == 0 and pathlib.Path("l/account.png").stat().st_size > 10_000
assert len(run) == 4 and run.columns()["loss"].min() > 0
assert not pathlib.Path("other").exists()
for extra, texts in refusals.items():
    for text in texts:
        assert f"which is not installed: pip install 'mfdl[{extra}]'" in str(text), (extra, text)
"""


def test_every_package_of_an_extra_is_refused_by_its_extra():
    assert {package: (PACKAGES | NOT_INSTALLED).get(package) for package in EXTRAS} == EXTRAS
    assert set(PACKAGES) - set(EXTRAS) == {"pytest"}
    assert OPTIONAL["test"][0] == f"mfdl[{','.join(OF_USERS)}]"  # the tests have them all


def test_a_refusal_is_an_import_error_and_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    words = r"^a report needs jinja2, which is not installed: pip install 'mfdl\[report\]', or read results.json.$"
    for error in (MissingExtra, InvalidInput, ImportError):
        refuses(words, imported, "jinja2", "a report", "read results.json", error=error)


def test_a_package_that_is_damaged_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "pymetis.py").write_text("import no_such_package_of_pymetis")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pymetis", raising=False)
    refuses("no_such_package_of_pymetis", imported, "pymetis", "a partition", error=ModuleNotFoundError)


@pytest.mark.parametrize("package", ["cloudpickle", "pymetis"])
def test_each_package_of_several_ranks_is_required_before_any_of_them_starts(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=f"needs {package}, which is not installed"), distributed.ranks(2):
        pytest.fail("a group without its packages")


@pytest.mark.slow
def test_a_comparison_runs_with_the_required_packages_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page([("python", REQUIRED_ONLY + WITHOUT_EXTRAS)], "a session without extras", REFUSED)


@pytest.mark.slow
def test_the_first_block_of_the_readme_runs_with_the_required_packages_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = quick_blocks(tmp_path)[0]
    ends_well = "assert sum(p.numel() for p in module.parameters()) == 65"
    run_page([(first[0], REQUIRED_ONLY), first], "README.md", ends_well)


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
@each("name, kernels", ("avx2", "AVX2 Haswell 1"), ("sse", "DEFAULT Katmai 1"))  # OpenBLAS's name of Prescott kernels
def test_libraries_use_the_kernels(name, kernels):
    if not machines.found(machines.NEEDS[name]):
        pytest.skip(f"needs {machines.NEEDS[name]}")
    variables = os.environ | machines.ONE_THREAD | machines.variables(name)
    variables |= {"PYTHONPATH": str(machines.ROOT / "tests")}
    done = subprocess.run([sys.executable, "-c", REPORT], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == kernels
