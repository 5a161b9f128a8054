"""What the papers state about privacy, gossip and error, each as a claim; one file per paper.

A claim says what is printed (or coded), never what this library computes instead; the truth comes from oracles. Where
the printed statement fails the claim is registered as refuted, with what is true instead.
"""

from __future__ import annotations

import importlib

from .._claim import Claim

PAPERS = ("mafalda", "muffliato", "zip_dl", "decor", "corn")


def published_claims() -> list[Claim]:
    """All of them, paper by paper in the order of their files.

    Raises: RuntimeError: two claims share an id.
    """
    found: dict[str, Claim] = {}
    for paper in PAPERS:
        for value in vars(importlib.import_module(f"{__name__}.{paper}")).values():
            if isinstance(value, Claim):
                if value.id in found and found[value.id] is not value:
                    raise RuntimeError(f"two claims are called {value.id!r}.")
                found[value.id] = value
    return list(found.values())
