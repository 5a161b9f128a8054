"""A pytest plugin that reports what failed, and whether the library under test is the one in this folder.

In: the folder it is run in, and a path in MUTATION_REPORT. Out: a JSON file there. An editable install, or a mutation
that cannot run at all, would otherwise pass for a caught one.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import pytest

LIBRARIES = ("mfdl", "mfdl_solvers", "mfdl_papers")
CANNOT_RUN = (ImportError, NameError, SyntaxError)
"""A test that ends in one of these says that the mutation is no program, not that a test has seen it."""

_reported: dict[str, list[str]] = {"elsewhere": [], "failed": [], "cannot_run": []}


def pytest_sessionstart(session: pytest.Session) -> None:
    here = Path.cwd().resolve()
    for name in LIBRARIES:
        place = Path(str(importlib.import_module(name).__file__)).resolve()
        if here not in place.parents:
            _reported["elsewhere"].append(f"{name} is imported from {place.parent}, not from {here}")
    if _reported["elsewhere"]:
        _write()
        pytest.exit("; ".join(_reported["elsewhere"]), returncode=3)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when != "call" or call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
        return
    kind = "cannot_run" if call.excinfo.errisinstance(CANNOT_RUN) else "failed"
    message = (str(call.excinfo.value).strip() or "no message").splitlines()[0]
    _reported[kind].append(f"{item.nodeid}\n{call.excinfo.typename}: {message}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    _write()


def _write() -> None:
    Path(os.environ["MUTATION_REPORT"]).write_text(json.dumps(_reported), encoding="utf-8")
