"""One figure, or all of them, run and written: verdicts, tables, a picture, numbers, as JSON and files."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfdl import files
from mfdl.errors import InvalidInput
from mfdl.runs.output import require_folder, versions

from .published_figures import FIGURES, PublishedFigure, RunScale, named
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
    def command(self) -> str:
        """That runs it; files of the user by their names."""
        brought = "".join(f" --{name} {Path(path).name}" for name, path in self.scale.graph_files.items())
        return f"mfdl reproduce {self.figure.name}{self.scale.pick(' --quick', '')}{brought}"

    @property
    def findings(self) -> str:
        """Our values, in words, part by part."""
        return "; ".join(part.finding for part in self.verdicts)

    def result(self) -> dict[str, Any]:
        """JSON-ready: the claim, our value, the verdict; then the same of every part, and all behind it."""
        figure = self.figure
        return {
            **{name: getattr(figure, name) for name in ("name", "paper", "figure", "claim")},
            "value": self.findings,
            "verdict": self.verdict,
            "quick": self.scale.quick,
            "claims": [part.result() for part in self.verdicts],
            "deviations": list(figure.deviations),
            "missing": list(self.missing),
            "command": self.command,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(),
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


def machine() -> str:
    """Architecture and number of cores."""
    return f"{platform.machine()}, {os.cpu_count()} cores"


def reproduce(name: str, scale: RunScale | None = None) -> Reproduction:
    """Runs one figure and writes its files.

    Raises: InvalidInput: an unknown name, data that are missing, or a folder that cannot be written.
    """
    figure, scale = named(name), scale or RunScale()
    require_folder(scale.out)
    began = time.perf_counter()
    done = figure.run(scale)
    done = dataclasses.replace(done, seconds=time.perf_counter() - began)
    done.write()
    return done


def reproduce_all(scale: RunScale | None = None) -> Iterator[Reproduction]:
    """Runs every figure, one after the other; a figure that cannot be run gives its reason, and the next one starts.

    If that was an error of this package, NAME.error.txt in the folder holds its traceback.
    """
    scale = scale or RunScale()
    for name, figure in FIGURES.items():
        path = scale.out / f"{name}.error.txt"
        path.unlink(missing_ok=True)
        try:
            yield reproduce(name, scale)
        except InvalidInput as error:
            yield _not_run(figure, scale, str(error))
        except Exception as error:
            files.atomic_write_text(path, traceback.format_exc())
            yield _not_run(figure, scale, f"{type(error).__name__}: {error} (see {path})")


def _not_run(figure: PublishedFigure, scale: RunScale, reason: str) -> Reproduction:
    return Reproduction(figure, scale, (Verdict.not_run(figure.claim, reason),), missing=(reason,))
