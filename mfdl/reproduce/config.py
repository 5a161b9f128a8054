"""What `mfdl reproduce` is asked, every value checked before any work."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar

from ..reporting.options import Config, Jobs, Option
from .figure import DEFAULT_OUT, Scale

ENGINES = ("joblib", "dask")


@dataclasses.dataclass(frozen=True)
class ReproduceConfig(Config):
    """How published figures are run: the fields are the options of `mfdl reproduce`.

    Raises: InvalidInput: a value out of range, an unknown engine, or a graph file that cannot be read.
    """

    command: ClassVar[str] = "reproduce"

    quick: Annotated[bool, Option("Minutes instead of the published size; the same rules decide the verdict.")] = False
    jobs: Jobs = None
    engine: Annotated[str, Option("What runs the training: joblib, or dask.", among=ENGINES)] = "joblib"
    scheduler: Annotated[
        str | None, Option("dask: address of a scheduler; default a cluster on this machine.", metavar="ADDRESS")
    ] = None
    data_home: Annotated[Path | None, Option("Data folder; default: $MFDL_DATA, else the user's cache folder.")] = None
    peertube: Annotated[
        Path | None, Option("Edges of the PeerTube graph: CSV with columns Source, Target, Weight.", metavar="FILE")
    ] = None
    misskey: Annotated[
        Path | None, Option("Edges of the Misskey graph: CSV with columns Source, Target, Weight.", metavar="FILE")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        from .. import graphs

        for path in self.graph_files.values():
            graphs.load(path, largest_component=True)

    @property
    def graph_files(self) -> dict[str, Path]:
        """The graphs that the user brings, by name."""
        given = {name: getattr(self, name) for name in ("peertube", "misskey")}
        return {name: Path(path) for name, path in given.items() if path is not None}

    def scale(self, out: Path | None = None) -> Scale:
        """As figures take it."""
        how = self.values("quick", "jobs", "engine", "scheduler", "data_home")
        return Scale(out=out or DEFAULT_OUT, graph_files=self.graph_files, **how)
