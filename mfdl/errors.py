"""The errors users can meet, each with one meaning; and the import of packages of an extra (`imported`).

`InvalidInput` is raised at the boundary, before any work: its message names the argument, the value given, what is
allowed and the way out. The command line prints it as one line and exits with code 2.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection, Iterable
from typing import Any


class InvalidInput(ValueError):
    """An argument, file or configuration that cannot be used; the message says what to change."""


class UnsupportedMechanism(InvalidInput):
    """A mechanism, participation or trust model that is not covered: refused, never guessed."""


class MissingExtra(InvalidInput, ImportError):
    """A package of an extra is not installed; the message says which command installs it."""


class UnusualSetting(UserWarning):
    """Settings that are allowed, and accounted for as they are, but rarely meant; the message says what to change."""


class RankLost(RuntimeError):
    """A process of several that train one network ended; the run goes on from its last checkpoint when asked again."""


OTHER_WORDS = {
    **dict.fromkeys(("max-grad-norm", "l2-norm-clip", "clipping-norm"), "clip-norm"),
    **dict.fromkeys(("substitution", "substitute", "substitute-one", "replace-one-record"), "replace-one"),
    **dict.fromkeys(("add-or-remove", "add-or-remove-one"), "add-remove"),
    "lr": "learning-rate",
    "learning-rate": "lr",
}
"""Words of other libraries, and what they are called here; names are spelt with - or _ alike."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InvalidInput:
    """The error for a name that is not in a registry, with the nearest known name and the whole list.

    >>> str(unknown_name("graph", "florentin", ["ring", "florentine"]))
    "unknown graph 'florentin'; did you mean 'florentine'? Known: florentine, ring."
    """
    names = sorted(known)
    given = repr(name) if name is None or isinstance(name, str | int | float) else type(name).__name__
    return InvalidInput(f"unknown {kind} {given}{did_you_mean(name, names)} Known: {', '.join(names)}.")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: its name here, or the nearest known name, whatever its case.

    >>> did_you_mean("LDP", ["pndp", "ldp"]), did_you_mean("graph", ["pndp", "ldp"])
    ("; did you mean 'ldp'?", '.')
    >>> did_you_mean("max_grad_norm", ["clip_norm", "noise_std"])
    "; it is called 'clip_norm' here."
    """
    by_folded = {text.casefold(): text for text in known}
    here = OTHER_WORDS.get(str(name).casefold().replace("_", "-"), "")
    for spelt in (here, here.replace("-", "_")):
        if spelt in by_folded:
            return f"; it is called {by_folded[spelt]!r} here."
    nearest = difflib.get_close_matches(str(name).casefold(), by_folded, n=1, cutoff=0.5)
    return f"; did you mean {by_folded[nearest[0]]!r}?" if nearest else "."


def require_known(kind: str, name: str, known: Collection[str]) -> None:
    if not isinstance(name, str) or name not in known:
        raise unknown_name(kind, name, known)


EXTRAS = {
    "cloudpickle": "ranks", "cvxpy": "testing", "distributed": "dask", "flwr_datasets": "femnist",
    "hypothesis": "testing", "jinja2": "report", "mpmath": "testing", "nvflare": "nvflare", "pandas": "tables",
    "pyarrow": "tables", "pymetis": "ranks",
}  # fmt: skip
"""From a package to the extra of mfdl that installs it."""


def imported(package: str, purpose: str, alternative: str = "") -> Any:
    """The module of a package of an extra.

    Args: package: a key of EXTRAS; purpose: what needs it; alternative: what works without it.
    Raises: MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is installed, and a package that it needs is not
            raise
    remedy = f"pip install 'mfdl[{EXTRAS[package]}]'" + (f", or {alternative}" if alternative else "")
    raise MissingExtra(f"{purpose} needs {package}, which is not installed: {remedy}.")
