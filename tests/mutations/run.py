"""Plants every known pitfall in a copy of the library, and counts those that the tests catch.

    python tests/mutations/run.py [--only 3,7] [--jobs 2]

In: the `pitfalls_*.toml` beside this file. An entry replaces `old`, which occurs once in `file`, by `new`, and names
the tests that must see it. Out: a table with the score, and exit status 0 if every entry was caught.

Caught means that a named test fails when it is called. A copy that cannot be imported or collected, a test that ends
in a NameError, and tests that import the library from elsewhere count as not caught (`guard.py`). The first test to
fail in each copy runs once more without any mutation, and must pass.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing.connection
import os
import shutil
import signal
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("mfdl", "solvers", "tests", "docs", "experiments", "pyproject.toml")
KINDS = ("privacy", "utility")
LIMIT_SECONDS = 600
FILE_WIDTH = 160  # columns of the table where it goes to a file
IMPORTED = (
    *("scipy.linalg", "scipy.optimize", "scipy.signal", "scipy.sparse.csgraph", "scipy.sparse.linalg", "scipy.spatial"),
    *("scipy.special", "scipy.stats", "networkx", "torch.func", "torch._dynamo", "sklearn.datasets", "rich.progress"),
    *("sklearn.linear_model", "dp_accounting.pld", "matplotlib.figure", "typer", "pooch", "safetensors.torch"),
    *("joblib", "cryptography.hazmat.primitives", "flint", "mpmath", "cvxpy", "hypothesis.extra.numpy", "pytest"),
)
"""Modules that the process imports from which all runs of pytest are forked."""

_forkserver = multiprocessing.get_context("forkserver")
_children = threading.Lock()  # multiprocessing looks at all of its children whenever it starts one


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One pitfall as a change of one file; several may share a number. `tests` are node ids."""

    number: int
    title: str
    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied_to(self, text: str) -> str:
        """The mutated text of the file."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(
                f"pitfall {self.number} ({self.title}): old occurs {count} times in {self.file}, not once."
            )
        if self.old == self.new:
            raise ValueError(f"pitfall {self.number} ({self.title}): new is old.")
        return text.replace(self.old, self.new)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run of tests showed: whether all passed, the failures in their calls, and what went wrong besides."""

    passed: bool
    failed: tuple[str, ...]
    trouble: str = ""

    @property
    def caught(self) -> bool:
        return bool(self.failed) and not self.trouble

    @property
    def first_failed(self) -> str:
        """Node id of the first failure, which `guard.py` writes in a line of its own."""
        return self.failed[0].splitlines()[0]


def load(folder: Path = Path(__file__).parent) -> list[Mutation]:
    """All entries of the `pitfalls_*.toml` of a folder, by number."""
    mutations = []
    for path in sorted(folder.glob("pitfalls_*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["pitfall"]:
            mutation = Mutation(**{**entry, "tests": tuple(entry["tests"])})
            if mutation.kind not in KINDS or not mutation.tests:
                raise ValueError(f"pitfall {mutation.number} in {path.name}: kind must be one of {KINDS}, with tests.")
            mutations.append(mutation)
    return sorted(mutations, key=lambda mutation: mutation.number)


def copy_project(
    root: Path, folder: Path, *, copy: Callable[..., object] = shutil.copy2, without: str = "__pycache__"
) -> None:
    """What the tests need of a project; the built site and names like `without` stay behind."""
    for part in PARTS:
        if (root / part).is_dir():
            ignored = shutil.ignore_patterns(".*", "_build", without)
            shutil.copytree(root / part, folder / part, copy_function=copy, ignore=ignored)
        elif (root / part).exists():
            copy(root / part, folder / part)


def run_tests(folder: Path, tests: Iterable[str], *options: str, part: int = 0) -> Outcome:
    """Runs tests of a copy on the copy, with options of pytest; `part` tells runs at the same time apart."""
    report, printed = folder / f"report{part}.json", folder / f"printed{part}.txt"
    report.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HYPOTHESIS"))}
    env = environment | {
        # before the editable install
        "PYTHONPATH": os.pathsep.join(str(folder / part) for part in ("", "solvers", "experiments", "tests")),
        "PYTHONDONTWRITEBYTECODE": "",  # compiled once, where all tests are collected
        "MUTATION_REPORT": str(report),
        "MFDL_EFFORT": "1",  # every example, as `make test-all` has it
        "MFDL_SEED": "0",
    }
    with tempfile.TemporaryDirectory(prefix="pytest-") as base:
        command = ["-p", "mutations.guard", "-n", "0", "-q", "-p", "no:cacheprovider", f"--basetemp={base}"]
        command += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that are imported already
        command += ["-m", "slow or not slow", "--tb=short", *options, *tests]
        child = _forkserver.Process(target=_pytest_in, args=(folder, env, command, printed))
        with _children:
            child.start()
        ended = multiprocessing.connection.wait([child.sentinel], LIMIT_SECONDS)
        if not ended:
            os.killpg(child.pid, signal.SIGKILL)
        with _children:
            child.join()
    if not ended:
        return Outcome(False, (), f"no end within {LIMIT_SECONDS} seconds")
    output = printed.read_text(encoding="utf-8").strip().splitlines()
    if not report.exists():
        return Outcome(False, (), f"the library cannot be imported: {output[-1] if output else 'no output'}")
    reported = json.loads(report.read_text(encoding="utf-8"))
    failed = tuple(reported["failed"])
    trouble = [*reported["elsewhere"], *reported["cannot_run"]]
    if child.exitcode not in (0, 1) or (child.exitcode == 1) != bool(failed):
        trouble.append(f"pytest ended with status {child.exitcode}: {output[-1] if output else 'no output'}")
    return Outcome(child.exitcode == 0 and not trouble, failed, "; ".join(trouble))


def _pytest_in(folder: Path, environment: dict[str, str], command: list[str], printed: Path) -> None:
    """Becomes `pytest` in a folder: the target of a forked process, which leads a group with all that it starts."""
    os.setsid()
    with printed.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = False
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    sys.argv = ["pytest", *command]
    import pytest

    sys.exit(pytest.main(command))


def try_mutation(mutation: Mutation, root: Path) -> Outcome:
    """Plants the mutation in a copy of a folder that nothing edits, and runs its tests there.

    The copy is of links, compiled modules too, but for the file that changes: nothing is compiled twice.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-", dir=root.parent) as name:
        folder = Path(name)
        copy_project(root, folder, copy=os.link, without=f"{Path(mutation.file).stem}.*.pyc")
        target = folder / mutation.file
        try:
            changed = mutation.applied_to(target.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return Outcome(False, (), str(error))
        target.unlink()  # the link, not what it shares
        target.write_text(changed, encoding="utf-8")
        return run_tests(folder, mutation.tests, "-x")


def try_unmutated(folder: Path, tests: Iterable[str], *options: str, jobs: int = 1) -> Outcome:
    """Runs tests on a folder as it is, in parts of several files, which is left with its modules compiled."""
    files: dict[str, dict[str, None]] = {}
    for test in tests:
        files.setdefault(test.split("::")[0], {})[test] = None
    count = 4 * jobs
    parts = [[test for tests in list(files.values())[part::count] for test in tests] for part in range(count)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [
            pool.submit(run_tests, folder, tests, *options, part=part) for part, tests in enumerate(parts) if tests
        ]
        outcomes = [done.result() for done in running]
    failed = tuple(failure for outcome in outcomes for failure in outcome.failed)
    trouble = "; ".join(outcome.trouble for outcome in outcomes if outcome.trouble)
    return Outcome(all(outcome.passed for outcome in outcomes), failed, trouble)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plant known pitfalls and see the tests go red.")
    parser.add_argument("--only", default="", help="numbers of pitfalls, separated by commas; default all")
    parser.add_argument("--jobs", type=int, default=1, help="how many to run at once")
    chosen = parser.parse_args(arguments)
    console, errors = Console(), Console(stderr=True)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    wanted = {int(number) for number in chosen.only.split(",") if number.strip()}
    mutations = [mutation for mutation in load() if not wanted or mutation.number in wanted]
    if missing := sorted(wanted - {mutation.number for mutation in mutations}):
        errors.print(f"no pitfall has number {missing[0]}; there are 1 to {load()[-1].number}.")
        return 2
    jobs = max(1, chosen.jobs)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # read when they are imported
    _forkserver.set_forkserver_preload(list(IMPORTED))
    with (
        tempfile.TemporaryDirectory(prefix="mutations-") as name,
        Progress(console=errors) as progress,
        concurrent.futures.ThreadPoolExecutor(jobs) as pool,
    ):
        snapshot = Path(name) / "unmutated"  # so that all runs see one tree, whatever is edited meanwhile
        copy_project(ROOT, snapshot)
        bar = progress.add_task("collecting", total=len(mutations) + 2)
        named = [test for mutation in mutations for test in mutation.tests]
        plain = try_unmutated(snapshot, named, "--collect-only", jobs=jobs)
        progress.update(bar, advance=1, description="with mutations")
        outcomes: dict[int, Outcome] = {}
        if plain.passed:
            running = {pool.submit(try_mutation, mutation, snapshot): place for place, mutation in enumerate(mutations)}
            for done in concurrent.futures.as_completed(running):
                outcomes[running[done]] = done.result()
                progress.advance(bar)
            progress.update(bar, description="without mutations")
            seen = [outcome.first_failed for outcome in outcomes.values() if outcome.caught]
            plain = try_unmutated(snapshot, seen, jobs=jobs)
    if not plain.passed:
        for line in plain.failed or (plain.trouble,):
            errors.print(f"fails without any mutation: {line}", markup=False, highlight=False)
        return 1
    rows = [(mutation, outcomes[place]) for place, mutation in enumerate(mutations)]
    return _report(console, rows)


def _report(console: Console, rows: Sequence[tuple[Mutation, Outcome]]) -> int:
    """Prints the table and the score; 1 if a pitfall went unseen."""
    table = Table("", "what goes wrong")
    for name in ("file", "seen by", "caught"):
        table.add_column(name, overflow="fold")  # names are whole, so that they can be searched for
    for mutation, outcome in rows:
        seen = outcome.first_failed if outcome.caught else "\n".join(mutation.tests)
        where = seen.replace("tests/", "", 1).replace("::", "\n", 1)
        table.add_row(str(mutation.number), mutation.title, mutation.file, where, "yes" if outcome.caught else "NO")
    console.print(table)
    missed = [(mutation, outcome) for mutation, outcome in rows if not outcome.caught]
    for mutation, outcome in missed:
        why = outcome.trouble or "all its tests pass"
        console.print(f"{mutation.number}. {mutation.title}: not caught, {why}", markup=False, highlight=False)
    all_numbers = {mutation.number for mutation, _ in rows}
    caught = all_numbers - {mutation.number for mutation, _ in missed}
    console.print(f"caught: {len(caught)} of {len(all_numbers)} pitfalls ({len(rows)} mutations)")
    return 1 if missed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
