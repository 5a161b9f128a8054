"""The planted pitfalls fit the library, its runner believes only failed tests, and examples follow seeds."""

import ast
import functools
import os
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from mutations import run
from vocabulary import each, refuses

ROOT = Path(__file__).parents[1]
MUTATIONS = run.load()


def test_every_file_has_the_pitfalls_that_its_name_counts():
    """pitfalls_15_28.toml has 15 to 28, pitfalls_37.toml has 37; a number belongs to a single file."""
    counted = []
    for path in (ROOT / "tests" / "mutations").glob("pitfalls_*.toml"):
        numbers = {entry["number"] for entry in tomllib.loads(path.read_text(encoding="utf-8"))["pitfall"]}
        first, *last = map(int, path.stem.split("_")[1:])
        assert numbers == set(range(first, (last or [first])[0] + 1)), path.name
        counted += numbers
    assert sorted(counted) == sorted({mutation.number for mutation in MUTATIONS})


def test_no_mutation_is_planted_twice():
    assert len({(mutation.file, mutation.old, mutation.new) for mutation in MUTATIONS}) == len(MUTATIONS)
    assert len({mutation.title for mutation in MUTATIONS}) == len(MUTATIONS)


def test_each_changes_one_place_and_is_still_a_program():
    for mutation in MUTATIONS:
        assert mutation.file.startswith(("mfdl/", "solvers/", "docs/", "experiments/"))  # a changed test proves nothing
        before = (ROOT / mutation.file).read_text(encoding="utf-8")
        changed = mutation.applied_to(before)
        if mutation.file.endswith(".py"):
            ast.parse(changed)
            assert mutation.old.split() != mutation.new.split(), mutation
        assert "\n" not in mutation.title
        assert len(mutation.title) <= 120


def test_their_tests_exist():
    parsed = functools.cache(lambda file: ast.parse((ROOT / file).read_text(encoding="utf-8")))
    for node in (node for mutation in MUTATIONS for node in mutation.tests):
        file, *path = node.split("[")[0].split("::")
        assert file.startswith("tests/")
        inside: list[ast.stmt] = parsed(file).body
        for name in path:
            named = [n for n in inside if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name]
            assert named, f"{file} has no {name}"
            inside = named[0].body


# ---- the runner ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    files = {
        "mfdl/__init__.py": "",
        "mfdl/pytest_plugin.py": "",  # pytest loads it wherever the library is installed
        "mfdl/shift.py": """
            def shift(clip_norm):
                return 2 * clip_norm
            """,
        "solvers/mfdl_solvers/__init__.py": "",
        "experiments/mfdl_papers/__init__.py": "",
        "tests/test_shift.py": """
            from mfdl.shift import shift

            def test_shift():
                assert shift(1.5) == 3.0

            def test_type():
                assert isinstance(shift(1.5), float)
            """,
        "pyproject.toml": (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
    }
    for name in ("__init__.py", "guard.py"):
        files[f"tests/mutations/{name}"] = (ROOT / "tests" / "mutations" / name).read_text(encoding="utf-8")
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(text), encoding="utf-8")
    return root


def planted(old, new, test="test_shift"):
    return run.Mutation(0, "made up", "privacy", "mfdl/shift.py", old, new, (f"tests/test_shift.py::{test}",))


@each(
    "mutation, caught, trouble",
    (planted("2 * clip", "1 * clip"), True, ""),
    (planted("2 * clip", "1 * clip", "test_type"), False, ""),  # its test does not notice
    (planted("2 * clip_norm", "two * clip_norm"), False, "NameError"),
    (planted("def shift(", "def shift(("), False, "status"),  # the copy cannot be collected
    (planted("3 * clip", "1 * clip"), False, "old occurs 0 times"),
    (planted("clip_norm", "norm"), False, "old occurs 2 times"),
    (planted("2 * clip", "2 * clip"), False, "new is old"),
)
def test_only_a_failed_test_counts(project, mutation, caught, trouble):
    outcome = run.try_mutation(mutation, project)
    assert outcome.caught == caught
    assert trouble in outcome.trouble
    assert bool(outcome.trouble) == bool(trouble)
    assert "2 * clip_norm" in (project / "mfdl" / "shift.py").read_text(encoding="utf-8")


def test_tests_of_a_library_elsewhere_do_not_count(project, tmp_path):
    """An editable install would be imported where the copy has none."""
    run.copy_project(project, tmp_path)
    shutil.rmtree(tmp_path / "solvers")
    outcome = run.run_tests(tmp_path, ["tests/test_shift.py"])
    assert not outcome.passed
    assert not outcome.caught
    assert "mfdl_solvers is imported from" in outcome.trouble


@pytest.mark.slow
def test_the_unmutated_tests_must_pass(project, tmp_path):
    tests = planted("2", "1").tests
    assert run.try_unmutated(project, tests).passed
    assert run.try_unmutated(project, tests, "--collect-only").passed
    run.copy_project(project, tmp_path)
    test = tmp_path / "tests" / "test_shift.py"
    test.write_text(test.read_text(encoding="utf-8").replace("3.0", "4.0"), encoding="utf-8")
    outcome = run.try_unmutated(tmp_path, tests)
    assert not outcome.passed
    assert outcome.failed
    assert "assert 3.0 == 4.0" in outcome.failed[0]


def test_entries_with_other_fields_are_refused(tmp_path):
    entry = 'number = 1\ntitle = "t"\nkind = "privacy"\nfile = "f"\nold = "a"\nnew = "b"\ntests = ["t"]\n'
    path = tmp_path / "pitfalls_x.toml"
    for text, error, message in (
        (entry, None, ""),
        (entry + 'more = "x"\n', TypeError, "more"),
        (entry.replace("privacy", "speed"), ValueError, "kind must be one of"),
        (entry.replace('["t"]', "[]"), ValueError, "with tests"),
    ):
        path.write_text("[[pitfall]]\n" + text, encoding="utf-8")
        if error is None:
            assert [mutation.number for mutation in run.load(tmp_path)] == [1]
        else:
            refuses(message, run.load, tmp_path, error=error)


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
