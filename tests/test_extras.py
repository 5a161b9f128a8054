"""What works with the required packages alone, and the refusal of what needs a package of an extra."""

import sys
import tomllib
from pathlib import Path

import pytest
from page_session import run_page
from readme_session import quick_blocks
from refusals import refuses

from mfdl.errors import EXTRAS, InvalidInput, MissingExtra, imported
from mfdl.training import distributed

ROOT = Path(__file__).parents[1]
OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OF_USERS = ("testing", "tables", "report", "ranks", "dask")
NOT_INSTALLED = {"flwr_datasets": "femnist", "nvflare": "nvflare"}  # the first needs an older rich, the second is heavy
PACKAGES = {line.partition(">=")[0]: extra for extra in OF_USERS for line in OPTIONAL[extra]}
REQUIRED_ONLY = f"import sys\nsys.modules.update(dict.fromkeys({sorted({*PACKAGES} - {'pytest'})}))\n"
"""First lines of a session in which no package of an extra can be imported."""

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
    with pytest.raises(MissingExtra) as refused:
        imported("jinja2", "a report", "read results.json")
    assert str(refused.value) == (
        "a report needs jinja2, which is not installed: pip install 'mfdl[report]', or read results.json."
    )
    assert isinstance(refused.value, InvalidInput)
    assert isinstance(refused.value, ImportError)


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
