"""The published figures by name: `papers/*.toml` say what each claims, costs and needs, and which code runs it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import require_known
from .figure import Figure

PAPERS = ("mafalda", "decor", "corn", "whisper")
"""In the order in which `all` runs them."""


def _of(paper: str) -> Iterator[Figure]:
    content = tomllib.loads((Path(__file__).parent / "papers" / f"{paper}.toml").read_text(encoding="utf-8"))
    for facts in content["figure"]:
        listed: dict[str, Any] = {name: tuple(facts.pop(name, ())) for name in ("data", "deviations")}
        yield Figure(paper=content["paper"], **facts, **listed)


FIGURES: Mapping[str, Figure] = MappingProxyType({figure.name: figure for paper in PAPERS for figure in _of(paper)})


def names() -> tuple[str, ...]:
    """All names.

    >>> names()[0]
    'mafalda-2'
    """
    return tuple(FIGURES)


def named(name: str) -> Figure:
    """The figure of a name.

    Raises: InvalidInput: no such figure; the message names the nearest one.
    """
    require_known("figure", name, FIGURES)
    return FIGURES[name]
