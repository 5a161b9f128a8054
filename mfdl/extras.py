"""Packages that an installation need not have: each belongs to an extra and is imported where it is first used."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import MissingExtra

EXTRAS = {
    "cloudpickle": "ranks",
    "cvxpy": "testing",
    "distributed": "dask",
    "flwr_datasets": "femnist",
    "hypothesis": "testing",
    "jinja2": "report",
    "mpmath": "testing",
    "nvflare": "nvflare",
    "pandas": "tables",
    "pyarrow": "tables",
    "pymetis": "ranks",
}
"""From a package to the extra of mfdl that installs it."""


def imported(package: str, purpose: str, alternative: str = "") -> Any:
    """The module of a package of an extra.

    Args: package: a key of EXTRAS; purpose: what needs it; alternative: what works without it.
    Raises: MissingExtra: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is installed, and a package that it needs is not
            raise
    remedy = f"pip install 'mfdl[{EXTRAS[package]}]'" + (f", or {alternative}" if alternative else "")
    raise MissingExtra(f"{purpose} needs {package}, which is not installed: {remedy}.")
