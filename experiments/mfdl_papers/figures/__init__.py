"""Published figures by one command: the paper's claim, our value with spread, a verdict, deviations and cost.

In: the name of a figure (`names`; `PAPER/figures.toml` has what it claims, costs and needs) and a `RunScale`. Out: a
`Reproduction`, and its files NAME.json, NAME.png and NAME.svg (NAME-quick.* in quick mode). `verdicts` makes a verdict
of a number; quick and full mode differ in seeds, points and steps, never in that rule.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import os
import platform
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from mfdl import files
from mfdl.errors import InvalidInput, require_known
from mfdl.progress import Progress
from mfdl.runs.output import require_folder, versions

from ..facts import toml_table
from .verdicts import VERDICTS, Verdict, overall  # noqa: F401  VERDICTS is public here

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.figure import Figure as Picture

__all__ = [
    *("FIGURES", "VERDICTS", "PublishedFigure", "Reproduction", "RunScale", "Table", "Verdict"),
    *("named", "names", "reproduce", "reproduce_all"),
]

T = TypeVar("T")

DEFAULT_OUT = Path("results/reproduce")
PAPERS = ("mafalda", "decor", "corn", "whisper")
"""In the order in which `all` runs them."""


@dataclasses.dataclass(frozen=True)
class RunScale:
    """How much of a figure is run, where its files go, and what computes it.

    Attributes:
        quick: few seeds, points and steps, judged by the rule of the full run.
        out: folder of the files; what was trained is kept below it, so that a stopped run goes on.
        jobs, engine, scheduler, data_home: the options of `mfdl reproduce`.
        graph_files: edge lists of graphs that cannot be fetched, by name (peertube, misskey).
    """

    quick: bool = False
    out: Path = DEFAULT_OUT
    jobs: int | None = None
    engine: str = "joblib"
    scheduler: str | None = None
    data_home: Path | None = None
    graph_files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    progress: Progress = "auto"

    def brought_graph(self, name: str) -> nx.Graph:
        """The largest component of a graph of `graph_files`.

        Raises: InvalidInput: no file was given for it, or the file cannot be read.
        """
        from mfdl import graphs

        if name not in self.graph_files:
            raise InvalidInput(f"its graph cannot be fetched; give its edges with --{name} FILE.")
        graph: nx.Graph = graphs.load(self.graph_files[name], largest_component=True)
        return graph

    def pick(self, quick: T, full: T) -> T:
        """The first in quick mode, else the second."""
        return quick if self.quick else full


@dataclasses.dataclass(frozen=True)
class PublishedFigure:
    """One published figure.

    Attributes:
        name: of `mfdl reproduce`; paper, figure: where it is published; claim: of the paper about it.
        quick_minutes, full_minutes: wall time of `--quick` and of the full run on two cores, rounded.
        code: module of `mfdl_papers` and its function of (figure, scale), as "mafalda.figure_2:run".
        data: required beside this package: names of `mfdl data list`, and files that the user brings.
        deviations: where our settings are not the published ones, each with its reason.
    """

    name: str
    paper: str
    figure: str
    claim: str
    quick_minutes: float
    full_minutes: float
    code: str
    cost_note: str = ""
    data: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()

    def run(self, scale: RunScale) -> Reproduction:
        """Computes it; writes nothing but what it trained. Raises: InvalidInput: data missing, or unusable options."""
        module, _, function = self.code.partition(":")
        done: Reproduction = getattr(importlib.import_module(f"mfdl_papers.{module}"), function)(self, scale)
        return done

    @property
    def full_cost(self) -> str:
        """Cost of the full run, in words."""
        return f"takes {minutes(self.full_minutes)}" + (f"; {self.cost_note}" if self.cost_note else "")

    def listed(self) -> dict[str, Any]:
        """One row of `mfdl reproduce --list --json`."""
        names = ("name", "paper", "figure", "claim", "quick_minutes", "full_minutes", "full_cost")
        return {**{name: getattr(self, name) for name in names}, "data": list(self.data)}


def minutes(number: float) -> str:
    """Duration in words.

    >>> minutes(0.2), minutes(3), minutes(90), minutes(10_000)
    ('12 s', '3 min', '1.5 h', '6.9 days')
    """
    if number < 1:
        return f"{60 * number:.0f} s"
    if number < 60:
        return f"{number:.3g} min"
    return f"{number / 60:.2g} h" if number < 6000 else f"{number / 1440:.2g} days"


def _figures(paper: str) -> Iterator[PublishedFigure]:
    content = toml_table(paper, "figures")
    for facts in content["figure"]:
        listed: dict[str, Any] = {name: tuple(facts.pop(name, ())) for name in ("data", "deviations")}
        yield PublishedFigure(paper=content["paper"], **facts, **listed)


FIGURES: Mapping[str, PublishedFigure] = MappingProxyType(
    {figure.name: figure for paper in PAPERS for figure in _figures(paper)}
)


def names() -> tuple[str, ...]:
    """Names of all figures."""
    return tuple(FIGURES)


def named(name: str) -> PublishedFigure:
    """The figure of a name. Raises: InvalidInput: no such figure."""
    require_known("figure", name, FIGURES)
    return FIGURES[name]


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
        verdicts: the parts of its claim; at least one.
        tables: what the picture shows, as numbers with spread; picture: None where the paper has a table.
        settings, numbers: what the numbers depend on; every value behind picture and verdicts; JSON-ready.
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
        """Verdict on the whole claim."""
        return overall(self.verdicts)

    @property
    def stem(self) -> str:
        """The name of its files: a quick run never replaces a full one."""
        return self.figure.name + self.scale.pick("-quick", "")

    @property
    def command(self) -> str:
        """Runs it again; files of the user by their names."""
        brought = "".join(f" --{name} {Path(path).name}" for name, path in self.scale.graph_files.items())
        return f"mfdl reproduce {self.figure.name}{self.scale.pick(' --quick', '')}{brought}"

    @property
    def findings(self) -> str:
        """Our values in words, part by part."""
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
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
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


def reproduce(name: str, scale: RunScale | None = None) -> Reproduction:
    """Runs one figure and writes its files. Raises: InvalidInput: as `named` and `run`, or an unwritable folder."""
    figure, scale = named(name), scale or RunScale()
    require_folder(scale.out)
    began = time.perf_counter()
    done = dataclasses.replace(figure.run(scale), seconds=time.perf_counter() - began)
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


def __dir__() -> list[str]:
    return sorted(__all__)
