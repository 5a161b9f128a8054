"""A claim of the papers takes its words from the table of facts, and its truth from the function it decorates."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....theory.facts import fact
from .._claim import Claim, claim

Stated = Callable[..., Callable[[Callable[..., Any]], Claim]]


def statements(**usual: Any) -> Stated:
    """`claim` for the facts of one file: paper, item, statement, verdict and erratum are those of `theory.facts`.

    Args: usual: options, and what a parameter of this name is drawn from where a claim says nothing else.

    A function's docstring adds what its cases are, where the statement leaves that open.
    """

    def stated(id: str, **own: Any) -> Callable[[Callable[..., Any]], Claim]:
        said, known = fact(id), {**usual, **own}
        options = {"tolerance": usual["tolerance"]} if "tolerance" in usual else {}
        options |= {"id": id, "expect": "holds" if said.holds else "refuted", "erratum": said.true}

        def make(function: Callable[..., Any]) -> Claim:
            function.__doc__ = f"{said.states}\n\n{inspect.getdoc(function) or ''}".rstrip()
            drawn = {name: known[name] for name in inspect.signature(function).parameters if name in known}
            return claim(str(said.paper), said.item, **{**options, **drawn, **own})(function)

        return make

    return stated
