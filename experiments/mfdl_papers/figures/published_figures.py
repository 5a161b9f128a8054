"""The published figures by name: what each claims, costs and needs, which code runs it, and on what scale.

`PAPER/figures.toml` hold them. Light, for `mfdl reproduce --list`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from mfdl.errors import InvalidInput, require_known
from mfdl.progress import Progress

from ..facts import table_of

if TYPE_CHECKING:
    import networkx as nx

    from .reproduction import Reproduction


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
        jobs: worker processes; None: one per core.
        engine, scheduler: joblib, or dask with the address of a scheduler (None: a cluster on this machine).
        data_home: the data folder; default $MFDL_DATA, else the user's cache folder.
        graph_files: edge lists of graphs that cannot be fetched, by name (peertube, misskey).
        progress: as `mfdl.progress` takes it.
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
        name: of `mfdl reproduce`; paper, figure: where it is published.
        claim: of the paper about this figure.
        quick_minutes, full_minutes: wall time of `--quick` and of the full run on two cores, rounded.
        cost_note: what else there is to say about the cost.
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
        """Computes it; writes nothing but what it trained.

        Raises: InvalidInput: data that are missing and cannot be fetched, or options that cannot be used.
        """
        module, _, function = self.code.partition(":")
        done: Reproduction = getattr(importlib.import_module(f"mfdl_papers.{module}"), function)(self, scale)
        return done

    @property
    def full_cost(self) -> str:
        """Of the full run, in words."""
        return f"takes {minutes(self.full_minutes)}" + (f"; {self.cost_note}" if self.cost_note else "")

    def listed(self) -> dict[str, Any]:
        """One row of `mfdl reproduce --list --json`."""
        names = ("name", "paper", "figure", "claim", "quick_minutes", "full_minutes", "full_cost")
        return {**{name: getattr(self, name) for name in names}, "data": list(self.data)}


def minutes(number: float) -> str:
    """In words.

    >>> minutes(0.2), minutes(3), minutes(90), minutes(10_000)
    ('12 s', '3 min', '1.5 h', '6.9 days')
    """
    if number < 1:
        return f"{60 * number:.0f} s"
    if number < 60:
        return f"{number:.3g} min"
    return f"{number / 60:.2g} h" if number < 6000 else f"{number / 1440:.2g} days"


def _of(paper: str) -> Iterator[PublishedFigure]:
    content = table_of(paper, "figures")
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
