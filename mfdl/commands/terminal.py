"""Commands from frozen configs: the fields are the options; tables and answers on the terminal.

Flags win over `--config FILE`, the file wins over the defaults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput
from ..runs.option_files import is_tuple
from ..runs.options import OF_THE_CALLER, Config, Option
from ..runs.output import rounded_up

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NAMES = ("attacker", "victim", "node", "graph")  # columns that hold names of nodes or graphs
NAME_WIDTH = 24
Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout, nothing else there.")]


def messages() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def answers() -> Console:
    from rich.console import Console

    return Console()


def as_one_json_value(answer: Any) -> None:
    typer.echo(json.dumps(answer, allow_nan=False))


def say(lines: Iterable[str | Table], folder: Path | None = None) -> None:
    """A table whose names up to `NAME_WIDTH` stay on one line, sentences below it, and the folder of the files."""
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
    """Reports after Ctrl-C the stored cells or runs of a folder, whose store is `within` it."""
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
    """A mean with its standard deviation over several seeds; empty without a mean."""
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
            *(row[name] for name in several), row["mechanism"], row["trust"],
            "-" if (mu := row["mu"]) is None else mu if isinstance(mu, str) else f"{mu:g}",
            *[rounded_up(row["epsilon"])] * secret, f"{row['lr']:g}",
            diverged or plus_minus(row["final_test_loss_mean"], row["final_test_loss_std"], count, ".3f"),
            plus_minus(row["final_accuracy_mean"], row["final_accuracy_std"], count, ".1%"),
        )  # fmt: skip
    return filled


TAKEN = ("config", "out", "several")  # parameters of a decorated function that are no options of their own

Answer = tuple[Any, Callable[[], None], int]
"""The answer as one JSON value, a function that shows it, and the exit code."""

CONFIG_HELP = "TOML file of options, or the results.json of an earlier compare or account; flags given here win."


def command(
    config_type: type[Config], out: str, *, metavar: str = "DIR", default: Path | None = None
) -> Callable[[Callable[..., Answer]], Callable[..., int]]:
    """The decorated function gets the config and `out` first; its other parameters are options of this command alone.

    Of a config with `SEVERAL` it also gets `several`, the numbers by field where there are several; of one with `typed`
    among its arguments it passes the names of its typed fields. out: the help of `--out`; default: its value.
    """
    fields = config_type.fields()
    wants_typed = "typed" in inspect.signature(config_type).parameters

    def decorated(ask: Callable[..., Answer]) -> Callable[..., int]:
        def run(context: typer.Context, config: Path | None, out: Path | None, as_json: bool, **given: Any) -> int:
            values = {name: given.pop(name) for name in fields}
            several = {name: _numbers(fields[name][1], values[name]) for name in config_type.SEVERAL if values[name]}
            values |= {name: numbers[0] for name, numbers in several.items()}
            sources = {name: context.get_parameter_source(name) for name in fields}
            typed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
            for name in typed:
                for other in set(fields[name][1].instead_of) - typed:
                    values[other] = None
            more: dict[str, Any] = {"typed": typed} if wants_typed else {}
            more |= {name: value for name, value in values.items() if value is not None}  # else the field's default
            if config_type.SEVERAL:
                wanted = {name: numbers for name, numbers in several.items() if len(numbers) > 1}
                given["several"] = {name: numbers for name, numbers in wanted.items() if values[name] is not None}
            checked = config_type(**more)
            if more.get("epsilon") is not None and (source := sources.get("delta")) is not None:
                _require_delta(more["epsilon"], is_default=source.name == "DEFAULT")
            answer, show, code = ask(checked, out, **given)
            if as_json:
                as_one_json_value(answer)
            else:
                show()
            return code

        def from_file(context: typer.Context, path: Path | None) -> Path | None:
            """Makes the values of a file the defaults of this call; an eager callback runs before other options."""
            if path is not None and not context.resilient_parsing:
                caller = OF_THE_CALLER.keys() & {str(parameter.name) for parameter in context.command.params}
                context.default_map = {**(context.default_map or {}), **config_type.in_file(path, caller)}
            return path

        read = typer.Option("--config", metavar="FILE", callback=from_file, is_eager=True, help=CONFIG_HELP)
        parameters = [
            _parameter("context", typer.Context),
            _parameter("config", Annotated[Path | None, read], None),
            *(_field_parameter(name, *field, several=name in config_type.SEVERAL) for name, field in fields.items()),
            _parameter("out", Annotated[Path | None, typer.Option("--out", metavar=metavar, help=out)], default),
            *(p for p in inspect.signature(ask, eval_str=True).parameters.values() if p.name not in TAKEN),
            _parameter("as_json", Json, False),
        ]
        parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)  # exact: required first
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__doc__, run.__name__, run.__annotations__ = ask.__doc__, ask.__name__, {}
        return run

    return decorated


def _require_delta(epsilon: float, *, is_default: bool) -> None:
    if is_default:
        raise InvalidInput(
            f"--epsilon {epsilon:g} needs --delta in (0, 1), e.g. --delta 1e-6: the default only says where epsilon is "
            "reported beside another target."
        )


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def _numbers(option: Option, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{option.flags[0]} must be a number, or several as A,B, got {text!r}.") from None
    return numbers


def _field_parameter(name: str, kind: Any, option: Option, default: Any, *, several: bool = False) -> inspect.Parameter:
    """One field as typer takes it: several texts are a repeated option, or one text A,B, as are several numbers."""
    if several:
        kind = str | None
        option = dataclasses.replace(option, metavar="A,B,...")
    if is_tuple(kind):
        kind = str if option.listed and default else str | None if option.listed else list[str] | None
        default = (",".join(default) if option.listed else list(default)) if default else None
    return _parameter(
        name, Annotated[kind, typer.Option(*option.flags, metavar=option.metavar, help=option.help)], default
    )
