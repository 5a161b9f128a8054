"""`mfdl data`: what the data folder holds, fetching what it lacks, and what a task reads of a data file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import data
from ..errors import InvalidInput
from . import terminal
from .inspect_file import inspect_file

app = typer.Typer(help="List and fetch the public data files, inspect your own.", no_args_is_help=True)
app.command("inspect")(inspect_file)

DataHome = Annotated[
    Path | None,
    typer.Option("--data-home", help="Data folder; default: $MFDL_DATA, else the user's cache folder."),
]
STATES = {True: "verified", False: "WRONG CONTENT", None: "present"}


@app.command("list")
def list_files(data_home: DataHome = None, as_json: terminal.Json = False) -> None:
    """Show every data file, whether it is there and whether its checksum agrees."""
    rows = data.status(data_home)
    folder = data.home(data_home)
    if as_json:
        terminal.as_one_json_value({"data_home": str(folder), "files": [row._asdict() for row in rows]})
        return
    table = terminal.table(("file", "state", "size", "description"), title=f"Data folder {folder}", right=("size",))
    for row in rows:
        state = STATES[row.verified] if row.present else "absent"
        table.add_row(row.name, state, f"{row.size:,}" if row.size else "", row.description)
    terminal.answers().print(table)


@app.command("fetch")
def fetch_files(
    names: Annotated[
        list[str] | None, typer.Argument(help="Files or folders of `mfdl data list`, such as mnist.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every file of the list.")] = False,
    data_home: DataHome = None,
    as_json: terminal.Json = False,
) -> None:
    """Download files that are missing and verify those that are there."""
    if bool(names) == everything:
        raise InvalidInput("mfdl data fetch needs either names or --all; `mfdl data list` shows the names.")
    rows: list[dict[str, str | None]] = []
    for name in data.names() if everything else data.expand(names or []):
        try:  # one unreachable server does not keep the other files back
            rows.append({"name": name, "path": str(data.fetch(name, data_home)), "error": None})
        except InvalidInput as error:
            rows.append({"name": name, "path": None, "error": str(error)})
    if as_json:
        terminal.as_one_json_value({"data_home": str(data.home(data_home)), "files": rows})
    else:
        for row in rows:
            if row["path"]:
                typer.echo(f"{row['name']}  {row['path']}")
    failures = [row["error"] for row in rows if row["error"]]
    if failures:
        raise InvalidInput(" ".join(str(failure) for failure in failures))
