"""`mfdl reproduce`: published figures, each with the paper's claim, our value and a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import files
from ..errors import InvalidInput
from ..reproduce.config import ReproduceConfig
from ..reproduce.figure import DEFAULT_OUT
from . import options
from .command import Answer, command

if TYPE_CHECKING:
    from ..reproduce import Reproduction, Scale

ALL = "all"
COLOURS = {"confirmed": "green", "direction only": "yellow", "refuted": "red", "not run": "dim"}


@command(ReproduceConfig, "Folder of the results.", default=DEFAULT_OUT)
def reproduce(
    config: ReproduceConfig,
    out: Path,
    name: Annotated[str | None, typer.Argument(help="A figure of --list, or all.", metavar="NAME")] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Show the figures, what they cost and what they need.")
    ] = False,
) -> Answer:
    """Reproduce a published figure: the paper's claim, our value with spread, a verdict, deviations and cost.

    What was trained is kept in the folder: the same command goes on where it was stopped.
    """
    if listed == (name is not None):
        raise InvalidInput(
            "mfdl reproduce needs the name of a figure, or all; `mfdl reproduce --list` shows the names."
        )
    if listed:
        return _list()
    return _all(config.scale(out)) if name == ALL else _one(str(name), config.scale(out))


def _list() -> Answer:
    from ..reproduce import FIGURES

    rows = [figure.listed() for figure in FIGURES.values()]

    def show() -> None:
        columns = ("name", "figure", "quick", "full", "needs")
        table = options.table(columns, title="published figures", right=("quick",))
        table.columns[0].no_wrap = True
        for row in rows:
            quick = f"{row['quick_minutes']:g} min"
            where = f"{row['paper']}, {row['figure']}"
            table.add_row(row["name"], where, quick, row["full_cost"], ", ".join(row["data"]) or "nothing")
        options.say([table])

    return rows, show, 0


def _one(name: str, scale: Scale) -> Answer:
    from ..reproduce import reproduce

    done = reproduce(name, scale)
    return done.result(), lambda: _show(done), 0


def _all(scale: Scale) -> Answer:
    """Every figure; the exit code is 1 where one could not be run for an error of ours."""
    from ..reproduce import reproduce_all

    every = []
    for done in reproduce_all(scale):
        options.messages().print(f"{done.figure.name}: {done.verdict}, {done.seconds:.0f} s", markup=False)
        every.append(done)
    rows = [done.result() for done in every]
    stem = "reproduced" + scale.pick("-quick", "")
    files.atomic_write_json(scale.out / f"{stem}.json", rows)
    failed = any((scale.out / f"{done.figure.name}.error.txt").exists() for done in every if done.verdict == "not run")
    return rows, lambda: _show_all(every, scale.out / f"{stem}.json"), int(failed)


def _show(done: Reproduction) -> None:
    figure = done.figure
    for table in done.tables:
        options.say([_table(table.title, table.columns, table.rows)])
    title = f"{figure.paper}, {figure.figure}{done.scale.pick(' (quick)', '')}: {done.verdict}"
    rows = [(part.claim, part.said, part.verdict) for part in done.verdicts]
    options.say([_table(title, ("claimed", "ours", "verdict"), rows)])
    told = [f"Deviation: {text}" for text in figure.deviations] + [f"Missing: {text}" for text in done.missing]
    cost = f"Cost: {done.seconds:.0f} s; the full figure {figure.full_cost}."
    options.say([*told, cost], done.scale.out / f"{done.stem}.json")


def _show_all(every: list[Reproduction], path: Path) -> None:
    rows = [(done.figure.name, part.claim, part.said, part.verdict) for done in every for part in done.verdicts]
    options.say([_table("published figures", ("figure", "claimed", "ours", "verdict"), rows)])
    seconds = sum(done.seconds for done in every)
    options.say([f"{len(every)} figures in {seconds / 60:.1f} minutes."], path)


def _table(title: str, columns: Any, rows: Any) -> Any:
    from rich.text import Text

    table = options.table(columns, title=title)
    table.columns[0].no_wrap = columns[0] == "figure"
    table.show_lines = "verdict" in columns
    for row in rows:
        table.add_row(*(Text(str(cell), style=COLOURS.get(str(cell), "")) for cell in row))
    return table
