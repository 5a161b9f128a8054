"""The pages of the reference and their index, written from what the packages name in `__all__`.

An object that several packages name is described once, by the first of them; the others link to it.
"""

from __future__ import annotations

import importlib
import inspect
import reprlib
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

PACKAGES = (  # in the order of the reference; what else `mfdl` names follows
    "mfdl",
    "mfdl.algorithms",
    "mfdl.trust",
    "mfdl.privacy",
    "mfdl.participation",
    "mfdl.dynamics",
    "mfdl.gossip",
    "mfdl.graphs",
    "mfdl.noise",
    "mfdl.factorization",
    "mfdl.objective",
    "mfdl.planning",
    "mfdl.training.private_node",
    "mfdl.tasks",
    "mfdl.partition",
    "mfdl.data",
    "mfdl.audit",
    "mfdl.training.shared_randomness",
    "mfdl.training.streams",
    "mfdl.testing.strategies",
    "mfdl.testing.oracles",
    "mfdl.testing.claims",
    "mfdl_solvers",
    "mfdl_papers",
)
INDEX = """Reference
=========

Every public name, made from the docstrings, and every command. ``import mfdl`` gives the names of its own page; the
packages below it load when they are first used.

.. toctree::
   :maxdepth: 1

"""
KINDS = ("Classes", "Functions")
described: dict[str, object] = {}  # full name -> what has a page under it, for links in docstrings


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", lambda app, config: write(Path(app.srcdir) / "api"), priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(folder: Path) -> None:
    """One page a package into the folder; a page that would not change is left alone."""
    folder.mkdir(exist_ok=True)
    facade = importlib.import_module("mfdl")
    modules = [f"mfdl.{name}" for name in facade.__all__ if inspect.ismodule(getattr(facade, name))]
    packages = [*PACKAGES, *(name for name in modules if name not in PACKAGES and name != "mfdl.testing")]
    first: dict[int, str] = {}
    pages = {package: _page(package, first) for package in packages}
    pages["index"] = INDEX + "\n".join(f"   {page}" for page in ["../command_line", *packages]) + "\n"
    for name, text in pages.items():
        page = folder / f"{name}.rst"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
    kept = {*pages, *first.values()}
    for stale in {*folder.glob("*.rst"), *folder.glob("generated/*.rst")}:
        if stale.stem not in kept:  # of a name that is gone
            stale.unlink()


def _page(package: str, first: dict[int, str]) -> str:
    module = _module(package)
    tables: dict[str, list[str]] = {kind: [] for kind in KINDS}
    constants, elsewhere = [], []
    for name in sorted(_public(module)):
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue
        kind = _kind(value)
        full = f"{package}.{name}"
        if kind is None:
            constants.append(f"- ``{name}``: {reprlib.repr(value)}" if _is_plain(value) else f"- ``{name}``")
        elif first.setdefault(id(value), full) == full:
            tables[kind].append(name)
            described[full] = value
        else:
            elsewhere.append(f"- :py:obj:`{first[id(value)]}`")
    lines = [package, "=" * len(package), "", f".. automodule:: {package}", "   :no-index:", ""]
    lines += [f".. py:module:: {package}", "", f".. currentmodule:: {package}", ""]
    for kind, names in tables.items():
        if names:
            lines += [kind, "-" * len(kind), "", ".. autosummary::", "   :toctree: generated", "   :nosignatures:", ""]
            lines += [*(f"   {name}" for name in names), ""]
    for title, items in (("Constants", constants), ("Also here", elsewhere)):
        if items:
            lines += [title, "-" * len(title), "", *items, ""]
    return "\n".join(lines)


def _module(package: str) -> Any:
    """The module; where `mfdl` gives a package a shorter name than its own, the short one can be imported as well."""
    facade = importlib.import_module("mfdl")
    name = package.removeprefix("mfdl.")
    if name in facade.__all__:
        sys.modules[package] = getattr(facade, name)
    return importlib.import_module(package)


def _public(module: Any) -> list[str]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in names if not name.startswith("_")]


def _kind(value: object) -> str | None:
    if inspect.isclass(value):
        return "Classes"
    return "Functions" if inspect.isroutine(value) else None


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float, str, tuple))
