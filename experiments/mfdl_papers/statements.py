"""What the papers state about privacy, gossip and error, each as a claim.

A claim says what is printed (or coded), never what this library computes instead: its words and the verdict on record
are those of its fact in `PAPER/facts.toml`, the truth comes from oracles, by the function that `statements` decorates.
Claims are in the files `PAPER/..._claims.py`, which `published_claims` reads.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from mfdl.testing import Claim, claim

from .facts import fact

MODULES = (
    "mafalda.factorization_claims",
    "mafalda.knowledge_claims",
    "mafalda.theorem_7_claims",
    "muffliato.distance_claims",
    "zip_dl.zip_dl_claims",
    "decor.accounting_claims",
    "decor.averaging_claims",
    "decor.convergence_claims",
    "corn.budget_claims",
    "gdp.gdp_claims",
    "whisper.whisper_claims",
    "corn.covariance_claims",
    "secret_bins.secret_bins_claims",
)

Decorator = Callable[..., Callable[[Callable[..., Any]], Claim]]


def statements(**usual: Any) -> Decorator:
    """`claim` for the facts of one file: paper, item, statement, verdict and erratum are those of `facts`.

    Args: usual: options, and what a parameter of this name is drawn from where a claim says nothing else.

    A function's docstring adds what its cases are, where the statement leaves that open.
    """

    def published_claim(id: str, **changes: Any) -> Callable[[Callable[..., Any]], Claim]:
        row, known = fact(id), {**usual, **changes}
        options = {"tolerance": usual["tolerance"]} if "tolerance" in usual else {}
        options |= {"id": id, "expect": "holds" if row.holds else "refuted", "erratum": row.true}

        def make(function: Callable[..., Any]) -> Claim:
            function.__doc__ = f"{row.states}\n\n{inspect.getdoc(function) or ''}".rstrip()
            drawn = {name: known[name] for name in inspect.signature(function).parameters if name in known}
            return claim(str(row.paper), row.item, **{**options, **drawn, **changes})(function)

        return make

    return published_claim


def published_claims() -> list[Claim]:
    """All of them, paper by paper in the order of `MODULES`.

    Raises: RuntimeError: two claims share an id.
    """
    by_id: dict[str, Claim] = {}
    for module in MODULES:
        for value in vars(importlib.import_module(f"{__package__}.{module}")).values():
            if isinstance(value, Claim) and by_id.setdefault(value.id, value) is not value:
                raise RuntimeError(f"two claims are called {value.id!r}.")
    return list(by_id.values())
