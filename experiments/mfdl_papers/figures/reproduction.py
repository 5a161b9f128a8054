"""What came out of one figure: verdicts, tables, a picture, numbers, as JSON and files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfdl import files
from mfdl.reporting.output import versions

from .figure import PublishedFigure, RunScale
from .verdicts import Verdict, overall

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


@dataclasses.dataclass(frozen=True)
class Table:
    """Numbers as texts, under a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def result(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"title": self.title, "columns": list(self.columns), "rows": [list(row) for row in self.rows]}


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """One figure, computed.

    Attributes:
        figure, scale: what was computed, and how much of it.
        verdicts: the parts of its claim; at least one.
        tables: what the picture shows, as numbers with spread.
        picture: None where the paper has a table.
        settings: what the numbers depend on, JSON-ready.
        numbers: every value behind picture and verdicts, JSON-ready.
        missing: parts that were not run, each with its reason and the way out.
        seconds: wall time, of this call alone: what an earlier call trained is not trained again.
    """

    figure: PublishedFigure
    scale: RunScale
    verdicts: Sequence[Verdict]
    tables: Sequence[Table] = ()
    picture: Picture | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    missing: Sequence[str] = ()
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """That on the whole claim."""
        return overall(self.verdicts)

    @property
    def stem(self) -> str:
        """The name of its files: a quick run never replaces a full one."""
        return self.figure.name + self.scale.pick("-quick", "")

    @property
    def said(self) -> str:
        """Our values, in words, part by part."""
        return "; ".join(part.said for part in self.verdicts)

    def result(self) -> dict[str, Any]:
        """JSON-ready: the claim, our value, the verdict; then the same of every part, and all behind it."""
        figure = self.figure
        return {
            **{name: getattr(figure, name) for name in ("name", "paper", "figure", "claim")},
            "value": self.said,
            "verdict": self.verdict,
            "quick": self.scale.quick,
            "claims": [part.result() for part in self.verdicts],
            "deviations": list(figure.deviations),
            "missing": list(self.missing),
            "seconds": round(self.seconds, 1),
            "full_cost": figure.full_cost,
            "tables": [table.result() for table in self.tables],
            "settings": dict(self.settings),
            "numbers": dict(self.numbers),
            "versions": versions(),
        }

    def write(self) -> list[Path]:
        """NAME.json and, where there is a picture, NAME.png and NAME.svg, each whole or not at all."""
        from mfdl.pictures.style import write_figure  # matplotlib only where something is drawn

        folder = self.scale.out
        drawn = [] if self.picture is None else write_figure(folder, self.stem, self.picture)
        return [files.atomic_write_json(folder / f"{self.stem}.json", self.result()), *drawn]
