"""A command from a frozen config: its options are the fields, and what is typed becomes one config.

In: a config (`mfdl.reporting.options`) and a function that runs and prints it. Out: a function as typer takes it, with
`--config FILE` and one option per field. Flags win over the file, the file wins over the defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..reporting.options import NOT_IN_FILES, Config, Option, by_field, is_tuple

POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def command(config_type: type[Config]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The decorated function gets the config first; its other parameters are options of this command alone.

    A config with `typed` among its arguments is told which of its fields the user typed.
    """
    fields = config_type.fields()
    wants_typed = "typed" in inspect.signature(config_type).parameters

    def decorated(run_and_print: Callable[..., None]) -> Callable[..., None]:
        def run(context: typer.Context, config: Path | None, **given: Any) -> None:
            values = {name: given.pop(name) for name in fields}
            typed = {name for name in fields if _is_typed(context, name)}
            for name in typed & values.keys():
                for other in fields[name][1].instead_of:
                    if values[other] is not None and other not in typed:
                        values[other] = None
            more: dict[str, Any] = {"typed": typed} if wants_typed else {}
            more |= {name: value for name, value in values.items() if value is not None}  # else the field's default
            run_and_print(config_type(**more), **given)

        besides = list(inspect.signature(run_and_print, eval_str=True).parameters.values())[1:]
        shared = [_parameter(name, *field) for name, field in fields.items()]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter("context", POSITIONAL, annotation=typer.Context), CONFIG, *shared, *besides]
        )
        run.__doc__, run.__name__, run.__annotations__ = run_and_print.__doc__, run_and_print.__name__, {}
        return run

    return decorated


def _apply_file(context: typer.Context, path: Path | None) -> Path | None:
    """Makes the values of a file the defaults of this call (an eager callback: it runs before other options)."""
    if path is not None and not context.resilient_parsing:
        flags: dict[str, str] = {}  # name in the file -> name of the parameter
        repeated = {p.name or "" for p in context.command.params if getattr(p, "multiple", False)}  # e.g. --set
        for parameter in context.command.params:
            if parameter.name is not None:
                flag = next((o for o in parameter.opts if o.startswith("--")), parameter.name).lstrip("-")
                if flag not in NOT_IN_FILES:
                    flags[flag] = parameter.name
        values: Mapping[str, Any] = by_field(path, context.info_name or "", flags, repeated)
        context.default_map = {**(context.default_map or {}), **values}
    return path


CONFIG = inspect.Parameter(
    "config",
    POSITIONAL,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            callback=_apply_file,
            is_eager=True,
            help="TOML file of options, or the results.json of an earlier compare or account; flags given here win.",
        ),
    ],
)


def _parameter(name: str, kind: Any, option: Option, default: Any) -> inspect.Parameter:
    """One field as typer takes it: several texts are a repeated option, or one text A,B."""
    if is_tuple(kind):
        kind = str if option.listed and default else str | None if option.listed else list[str] | None
        default = (",".join(default) if option.listed else list(default)) if default else None
    shown = typer.Option(*option.flags, metavar=option.metavar, help=option.help)
    return inspect.Parameter(name, POSITIONAL, default=default, annotation=Annotated[kind, shown])


def _is_typed(context: typer.Context, name: str) -> bool:
    """Whether the user typed this option, rather than a file or a default giving it."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
