"""The published figures by name: `PAPER/figures.toml` say what each claims, costs and needs, and which code runs it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mfdl.errors import require_known

from .figure import PublishedFigure

PAPERS = ("mafalda", "decor", "corn", "whisper")
"""In the order in which `all` runs them."""


def _of(paper: str) -> Iterator[PublishedFigure]:
    content = tomllib.loads((Path(__file__).parents[1] / paper / "figures.toml").read_text(encoding="utf-8"))
    for facts in content["figure"]:
        listed: dict[str, Any] = {name: tuple(facts.pop(name, ())) for name in ("data", "deviations")}
        yield PublishedFigure(paper=content["paper"], **facts, **listed)


FIGURES: Mapping[str, PublishedFigure] = MappingProxyType(
    {figure.name: figure for paper in PAPERS for figure in _of(paper)}
)


def names() -> tuple[str, ...]:
    """All names.

    >>> names()[0]
    'mafalda-2'
    """
    return tuple(FIGURES)


def named(name: str) -> PublishedFigure:
    """The figure of a name.

    Raises: InvalidInput: no such figure; the message names the nearest one.
    """
    require_known("figure", name, FIGURES)
    return FIGURES[name]
