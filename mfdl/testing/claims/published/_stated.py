"""A claim of the papers takes its words from the table of facts, and its truth from the function it decorates."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....theory.facts import fact
from .._claim import Claim, claim


def stated(id: str, **strategies: Any) -> Callable[[Callable[..., Any]], Claim]:
    """`claim` with paper, item, statement, verdict and erratum of this fact of `theory.facts`.

    The function's docstring adds what its cases are, where the statement leaves that open.
    """
    said = fact(id)
    verdict = "holds" if said.holds else "refuted"

    def make(function: Callable[..., Any]) -> Claim:
        function.__doc__ = f"{said.states}\n\n{inspect.getdoc(function) or ''}".rstrip()
        return claim(str(said.paper), said.item, id=id, expect=verdict, erratum=said.true, **strategies)(function)

    return make
