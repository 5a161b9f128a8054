"""A command from a frozen config: its options are the fields, and what is typed becomes one config.

In: a config (`mfdl.runs.options`) and a function that runs it. Out: a function as typer takes it, with
`--config FILE`, one option per field, `--out` and `--json`. Flags win over the file, the file wins over the defaults.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidInput
from ..runs.option_files import is_tuple
from ..runs.options import OF_THE_CALLER, Config, Option
from . import terminal

TAKEN = ("config", "out", "several")
"""Parameters of a decorated function that are no options of their own."""

Answer = tuple[Any, Callable[[], None], int]
"""What is asked for as one JSON value, how it is shown otherwise, and the exit code."""

CONFIG_HELP = "TOML file of options, or the results.json of an earlier compare or account; flags given here win."


def command(
    config_type: type[Config], out: str, *, metavar: str = "DIR", default: Path | None = None
) -> Callable[[Callable[..., Answer]], Callable[..., int]]:
    """The decorated function gets the config and `out` first; its other parameters are options of this command alone.

    Of a config with `SEVERAL` it also gets `several`, the numbers by field where there are several, of which the config
    holds the first. A config with `typed` among its arguments is told which of its fields the user typed.

    Args: out: the help of `--out`; default: its value where none is given.
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
                terminal.as_one_json_value(answer)
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
            *(_of_field(name, *field, several=name in config_type.SEVERAL) for name, field in fields.items()),
            _parameter("out", Annotated[Path | None, typer.Option("--out", metavar=metavar, help=out)], default),
            *(p for p in inspect.signature(ask, eval_str=True).parameters.values() if p.name not in TAKEN),
            _parameter("as_json", terminal.Json, False),
        ]
        parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)  # exact: required first
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__doc__, run.__name__, run.__annotations__ = ask.__doc__, ask.__name__, {}
        return run

    return decorated


def _require_delta(epsilon: float, *, is_default: bool) -> None:
    """Refuses an epsilon whose delta nobody chose, as `calibrate` does in Python."""
    if is_default:
        raise InvalidInput(
            f"--epsilon {epsilon:g} needs --delta in (0, 1), e.g. --delta 1e-6: the default only says where epsilon is "
            "reported beside another target."
        )


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def _numbers(option: Option, text: str) -> list[float]:
    """The numbers of A,B."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{option.flags[0]} must be a number, or several as A,B, got {text!r}.") from None
    return numbers


def _of_field(name: str, kind: Any, option: Option, default: Any, *, several: bool = False) -> inspect.Parameter:
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
