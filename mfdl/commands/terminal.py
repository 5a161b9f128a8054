"""What commands share besides their configs: options of the call itself, and where words and answers go."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..runs.output import rounded_up

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NAMES = ("attacker", "victim", "node", "graph")
"""Columns that hold names of nodes or graphs."""
NAME_WIDTH = 24
Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout, nothing else there.")]


def messages() -> Console:
    """Where everything goes that is not the answer: stderr."""
    from rich.console import Console

    return Console(stderr=True)


def answers() -> Console:
    """Where the answer goes: stdout."""
    from rich.console import Console

    return Console()


def as_one_json_value(answer: Any) -> None:
    """The whole answer on stdout."""
    typer.echo(json.dumps(answer, allow_nan=False))


def say(lines: Iterable[str | Table], folder: Path | None = None) -> None:
    """A table, sentences below it, and the folder of the files.

    Names of nodes and graphs up to `NAME_WIDTH` stay on one line, and numbers fold first; a title may be wider than its
    table.
    """
    for line in lines:
        if not isinstance(line, str):
            for column in line.columns:
                if column.header in NAMES:
                    column.no_wrap = max((len(str(cell)) for cell in column.cells), default=0) <= NAME_WIDTH
            if line.title:
                answers().print(line.title, highlight=False, markup=False, style="bold")
                line.title = None
        answers().print(line, highlight=False, markup=False)
    if folder is not None:
        answers().print(f"Written to {folder}.", highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def telling_what_is_stored(folder: Path, kind: str, within: str = "") -> Iterator[None]:
    """Says after Ctrl-C how many cells or runs are kept in a folder, whose store is `within` it."""
    try:
        yield
    except KeyboardInterrupt:
        from ..runs.store import Store

        count = len(Store(folder / within).status().finished)
        stored = f"{count} finished {kind}{'s are' if count != 1 else ' is'} stored in {folder}"
        text = f"{stored}; run the same command to resume." if count else f"No {kind} was finished: nothing is stored."
        messages().print(text, markup=False, highlight=False, soft_wrap=True)
        raise


def explain(head: str, lines: Mapping[str, str]) -> None:
    """A head, and below it one line for each key."""
    console = answers()
    console.print(head, markup=False, highlight=False)
    for key, value in lines.items():
        console.print(f"  {key}: {value}", markup=False, highlight=False, soft_wrap=True)


def table(columns: Sequence[str], *, title: str | None = None, right: Iterable[str] = ()) -> Table:
    """An empty table; the columns of `right` hold numbers. Cells that do not fit are folded, never cut."""
    from rich.table import Table

    empty, numbers = Table(title=title, show_edge=False, pad_edge=False), set(right)
    for column in columns:
        empty.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return empty


def plus_minus(mean: float | None, std: float | None, count: int, digits: str) -> str:
    """A mean with its standard deviation over seeds, where there are several; empty without a mean."""
    if mean is None:
        return ""
    spread = f" ± {format(std, digits)}" if count > 1 and std is not None else ""
    return format(mean, digits) + spread


def grid(rows: Sequence[dict[str, Any]]) -> Table:
    """Loss and accuracy for every mechanism, budget and rate; `seeds`, and how many `diverged`.

    Where some batches are secret, and have no mu, epsilon stands beside it.
    """
    secret = any(row["mu"] is None for row in rows)
    numbers = ("mu", *["epsilon"] * secret, "lr", "final test loss", "accuracy")
    several = [name for name in ("graph", "task", "participation") if len({row.get(name) for row in rows}) > 1]
    filled = table((*several, "mechanism", "trust", *numbers), right=numbers)
    for row in rows:
        count = len(row["seeds"])
        diverged = f"diverged ({row['diverged']} of {count})" if row["diverged"] else ""
        filled.add_row(
            *(row[name] for name in several),
            row["mechanism"],
            row["trust"],
            _budget(row["mu"]),
            *[rounded_up(row["epsilon"])] * secret,
            f"{row['lr']:g}",
            diverged or plus_minus(row["final_test_loss_mean"], row["final_test_loss_std"], count, ".3f"),
            plus_minus(row["final_accuracy_mean"], row["final_accuracy_std"], count, ".1%"),
        )
    return filled


def _budget(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:g}"
