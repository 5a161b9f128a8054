"""`mfdl data`: what the data folder holds, and fetching what it lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .. import data
from ..errors import InvalidInput

app = typer.Typer(help="List and fetch the public data files.", no_args_is_help=True)

DataHome = Annotated[
    Path | None,
    typer.Option("--data-home", help="Data folder; default: $MFDL_DATA, else the user's cache folder."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON value on stdout, nothing else.")]


@app.command("list")
def list_files(data_home: DataHome = None, as_json: AsJson = False) -> None:
    """Show every data file, whether it is there and whether its checksum agrees."""
    rows = data.status(data_home)
    folder = data.home(data_home)
    if as_json:
        typer.echo(json.dumps({"data_home": str(folder), "files": [row._asdict() for row in rows]}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Data folder {folder}")
    for column in ("file", "state", "size", "description"):
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for row in rows:
        table.add_row(row.name, _state(row), f"{row.size:,}", row.description)
    Console().print(table)


@app.command("fetch")
def fetch_files(
    names: Annotated[
        list[str] | None, typer.Argument(help="Files or folders of `mfdl data list`, such as mnist.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every file of the list.")] = False,
    data_home: DataHome = None,
    as_json: AsJson = False,
) -> None:
    """Download files that are missing and verify those that are there."""
    if bool(names) == everything:
        raise InvalidInput("mfdl data fetch needs either names or --all; `mfdl data list` shows the names.")
    wanted = data.names() if everything else data.expand(names or [])
    rows: list[dict[str, str | None]] = []
    for name in wanted:  # one unreachable server does not keep the other files back
        try:
            rows.append({"name": name, "path": str(data.fetch(name, data_home)), "error": None})
        except InvalidInput as error:
            rows.append({"name": name, "path": None, "error": str(error)})
    failures = [row["error"] for row in rows if row["error"]]
    if as_json:
        typer.echo(json.dumps({"data_home": str(data.home(data_home)), "files": rows}))
    else:
        for row in rows:
            if row["path"]:
                typer.echo(f"{row['name']}  {row['path']}")
    if failures:
        raise InvalidInput(" ".join(str(failure) for failure in failures))


def _state(row: data.FileStatus) -> str:
    if not row.present:
        return "absent"
    return {True: "verified", False: "WRONG CONTENT", None: "present"}[row.verified]
