"""`mfdl graph inspect`: what is read of a graph file, and why a file is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidInput
from ..graph_formats import FORMATS, LISTED
from . import terminal

app = typer.Typer(help=f"Graph files: {', '.join(item.name for item in FORMATS)}.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `inspect` a word of the command line while it is the only command."""


@app.command("inspect", help=f"Show format, nodes, edges and components of a graph file. Formats: {LISTED}.")
def inspect_graph(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As of --graph; also .gz, .bz2 and .xz.")],
    as_json: terminal.Json = False,
) -> None:
    """Show format, nodes, edges and components of a graph file."""
    from .. import graphs
    from ..graphs import graph_files

    if str(file).partition(":")[0] in graphs.names() and not file.exists():
        raise InvalidInput(f"{str(file)!r} is a named graph, and `mfdl graph inspect` reads files; check the path.")
    summary = graph_files.inspect(file, graphs.names())
    if as_json:
        terminal.as_one_json_value(summary)
        return
    summary["first_labels"] = ", ".join(map(repr, summary["first_labels"]))
    path = summary.pop("path")
    terminal.explain(path, {key.replace("_", " "): str(value) for key, value in summary.items()})
