"""What the papers state about privacy, gossip and error, each as a claim; one file per paper or part of it.

A claim says what is printed (or coded), never what this library computes instead; the truth comes from oracles. Its
words, and the verdict on record, are those of its fact in `mfdl/theory/papers/`.
"""

from __future__ import annotations

import importlib

from .._claim import Claim

MODULES = (
    "mafalda.factorization",
    "mafalda.knowledge",
    "mafalda.theorem_7",
    "muffliato",
    "zip_dl",
    "decor.accounting",
    "decor.averaging",
    "decor.convergence",
    "corn.budgets",
    "corn.covariances",
    "secret_bins",
)


def published_claims() -> list[Claim]:
    """All of them, paper by paper in the order of their files.

    Raises: RuntimeError: two claims share an id.
    """
    by_id: dict[str, Claim] = {}
    for module in MODULES:
        for value in vars(importlib.import_module(f"{__name__}.{module}")).values():
            if isinstance(value, Claim) and by_id.setdefault(value.id, value) is not value:
                raise RuntimeError(f"two claims are called {value.id!r}.")
    return list(by_id.values())
