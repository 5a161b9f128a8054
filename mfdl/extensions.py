"""What other installed packages add to this one, found by entry points; and modules that load on first use.

Nothing here imports the other packages.

| group of entry points | an entry is |
| --- | --- |
| `mfdl.commands` | a command of `mfdl`: its name, and a function as `commands.terminal.command` makes it |
| `mfdl.citations` | a function of a text that names papers: the `Citation`s of those it knows |
| `mfdl.published_losses` | a function of (mechanism, trust, algorithm, attackers): `PublishedLosses` to compare with |

The package `mfdl_papers`, which comes with this one, has entries in all three.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import InvalidInput, MissingExtra, did_you_mean

if TYPE_CHECKING:
    from .check import FloatArray


COMMANDS, CITATIONS, PUBLISHED_LOSSES = "mfdl.commands", "mfdl.citations", "mfdl.published_losses"


@dataclass(frozen=True)
class Citation:
    """One paper: its number on arXiv, its BibTeX key, its whole entry."""

    arxiv: str
    key: str
    bibtex: str


@dataclass(frozen=True, eq=False)
class PublishedLosses:
    """A published bound on what attackers learn.

    Attributes:
        name: in a few words. validity: in which cases it is a bound, in words.
        squared: by attackers, in node order: squared sensitivity per unit record shift and noise, inf for themselves.
    """

    name: str
    validity: str
    squared: Mapping[tuple[int, ...], FloatArray]


def names(group: str) -> list[str]:
    """The names of all entries of a group, sorted; nothing is imported."""
    from importlib import metadata  # 40 ms, which most commands can do without

    return sorted(metadata.entry_points(group=group).names)


def load(group: str, name: str) -> Any:
    """The object of an entry.

    Raises: InvalidInput: its package cannot be imported. MissingExtra: a package that it needs is not installed.
    """
    from importlib import metadata

    (entry, *_) = metadata.entry_points(group=group, name=name)
    try:
        return entry.load()
    except MissingExtra:
        raise
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"{name!r} of {group} is {entry.value}, which cannot be imported ({error}): install the package that "
            "brings it again, for mfdl_papers with `pip install --force-reinstall --no-deps mfdl`."
        ) from error


def every(group: str) -> list[Any]:
    return [load(group, name) for name in names(group)]


def public(package: str, name: str) -> Any:
    """For a package's `__getattr__`: what it imports under `TYPE_CHECKING`, else its module of that name, at first use.

    Raises: AttributeError: it has neither, or a private module; with the nearest public names.
    """
    if name not in _places(package):
        return submodule(package, name)
    where, inner = _places(package)[name]
    inside = where == package  # `from . import trust`, not `from .trust import View`
    value = importlib.import_module(f"{package}.{inner}") if inside else getattr(importlib.import_module(where), inner)
    setattr(sys.modules[package], name, value)
    return value


@functools.cache
def _places(package: str) -> dict[str, tuple[str, str]]:
    """By name: the module that it is imported from, and its name there."""
    source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
    places: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            where = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            places |= {alias.asname or alias.name: (where, alias.name) for alias in node.names}
    return places


def submodule(package: str, name: str) -> ModuleType:
    """Its module of that name. Raises: AttributeError: it has none, or a private one."""
    path = f"{package}.{name}"
    if name.startswith("_") or importlib.util.find_spec(path) is None:
        hint = "" if name.startswith("_") else _nearest(package, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
    return importlib.import_module(path)


def _nearest(package: str, name: str) -> str:
    """The end of a sentence about a name that a package lacks: other words for it, packages that have it."""
    public = importlib.import_module(package).__all__
    root = Path(importlib.import_module(package).__path__[0])
    subpackages = [entry for entry in public if (root / entry / "__init__.py").is_file()]
    texts = {entry: (root / entry / "__init__.py").read_text(encoding="utf-8") for entry in subpackages}
    within = [f"{package}.{entry}.{name}" for entry, text in texts.items() if re.search(rf'"{name}"', text)]
    if within:
        return f"; there is {' and '.join(within)}."
    return f"; it is {WORDS[name.lower()]} here." if name.lower() in WORDS else did_you_mean(name, public)


WORDS = {
    "train": "mfdl.replay(mechanism, task)", "fit": "mfdl.replay(mechanism, task)",
    "load_graph": "mfdl.graphs.load(name)", "load_task": "mfdl.tasks.load(name)",
    "privacyengine": "mfdl.PrivateNode, in a loop of your own",
    "make_private": "mfdl.calibrate(algorithm, privacy, mu=...)",
    **dict.fromkeys(("epsilon", "get_epsilon"), "mfdl.account(algorithm, privacy, noise_std=...).epsilon(delta)"),
    "compose": "guarantee.compose_with(other)", "optimize": "mfdl.factorization.factorize",
    "factorize": "mfdl.factorization.factorize", "mafalda": "mfdl.algorithms.mafalda",
}  # fmt: skip
"""What newcomers look for in `mfdl`, in lower case, and where it is."""
