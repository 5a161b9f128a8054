"""The options that all commands share, and the file that can set any option.

In: what the user typed and, with `--config`, a TOML file or the results.json of an earlier run. Out: the values of
the options; flags win over the file, the file wins over the defaults.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from ..gossip import GossipMatrix

NOT_IN_FILES = {"config", "json", "help", "overwrite"}  # decided anew at every call


def apply_config(context: typer.Context, path: Path | None) -> Path | None:
    """Makes the values of a file the defaults of this call (an eager callback: it runs before other options)."""
    if path is not None and not context.resilient_parsing:
        command = context.info_name or ""
        flags: dict[str, str] = {}  # name in the file -> name of the parameter
        several = {p.name or "" for p in context.command.params if getattr(p, "multiple", False)}  # e.g. --set
        for parameter in context.command.params:
            if parameter.name is not None:
                flag = next((o for o in parameter.opts if o.startswith("--")), parameter.name).lstrip("-")
                if flag not in NOT_IN_FILES:
                    flags[flag] = parameter.name
        values = _by_parameter(path, _read(path, command), flags, several)
        context.default_map = {**(context.default_map or {}), **values}
    return path


MAX_STEPS = 10**6
"""Of a run: beyond it a typing error would exhaust the machine before anything could be said."""


def require_steps(steps: int) -> None:
    """Refuses more steps than any run has; what is merely too large for this machine is refused by `main`."""
    if steps > MAX_STEPS:
        raise InvalidInput(f"a run has at most {MAX_STEPS:,} steps, got more; lower --epochs, --period or --steps.")


def from_command_line(context: typer.Context, name: str) -> bool:
    """Whether the user typed this option, rather than a file or a default giving it."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _read(path: Path, command: str) -> dict[str, Any]:
    """The options in a file: top-level keys, and those of the table named like the command."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InvalidInput(f"cannot read --config {path}: {reason}.") from None
    if path.suffix == ".json":
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"--config {path} is not valid JSON: {error}.") from None
        found = found.get("config") if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise InvalidInput(
                f"--config {path} holds no `config` object; give a results.json that `mfdl compare` or `mfdl account` "
                "wrote, or a TOML file of options."
            )
        return found
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInput(f"--config {path} is not valid TOML: {error}.") from None
    tables = {key: value for key, value in found.items() if isinstance(value, dict)}
    return {**{k: v for k, v in found.items() if k not in tables}, **tables.get(command, {})}


def _by_parameter(path: Path, found: dict[str, Any], flags: dict[str, str], several: set[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in found.items():
        flag = key.replace("_", "-")
        if flag not in flags:
            nearest = difflib.get_close_matches(flag, flags, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
            raise InvalidInput(f"--config {path}: unknown key {key!r}{hint} Known: {', '.join(sorted(flags))}.")
        texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if texts and flags[flag] not in several:
            value = ",".join(value)
        if isinstance(value, dict) or (isinstance(value, list) and not texts):
            raise InvalidInput(f"--config {path}: {key} must be a text, a number or a list of texts, got {value!r}.")
        if value is not None:  # null in results.json: not set
            values[flags[flag]] = value
    return values


Graph = Annotated[
    str,
    typer.Option(
        "--graph",
        metavar="SPEC|FILE",
        help="Named graph (florentine, ego-facebook, ring:n=16, erdos-renyi:n=100,p=0.2,seed=1, ...) or edge list.",
    ),
]
LargestComponent = Annotated[
    bool, typer.Option("--largest-component", help="Keep the largest connected component only.")
]
Gossip = Annotated[
    str,
    typer.Option(
        "--gossip",
        metavar="NAME|FILE",
        help="metropolis-hastings, uniform, or a row-stochastic matrix as .npy or .csv, rows in label order.",
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", help="torch device, e.g. cpu or cuda; default: CUDA when there is one.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=apply_config,
        is_eager=True,
        help="TOML file of options, or the results.json of an earlier compare or account; flags given here win.",
    ),
]
DataHome = Annotated[
    Path | None, typer.Option("--data-home", help="Data folder; default: $MFDL_DATA, else the user's cache folder.")
]
Epochs = Annotated[int, typer.Option("--epochs", help="k: how often each record takes part.")]
Period = Annotated[int, typer.Option("--period", help="b: steps per epoch; the run has k b steps.")]
Momentum = Annotated[float, typer.Option("--momentum", help="Heavy-ball momentum of every node, in [0, 1).")]
WeightDecay = Annotated[float, typer.Option("--weight-decay", help="Weight decay, outside of clipping.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the mechanism; may be repeated."),
]
Colluders = Annotated[
    str | None, typer.Option("--colluders", metavar="A,B", help="colluding: nodes that share their secrets.")
]
CoalitionSize = Annotated[
    int | None, typer.Option("--coalition-size", metavar="Q", help="coalitions: how many nodes collude.")
]
Adjacency = Annotated[str, typer.Option("--adjacency", help="replace-one, zero-out or add-remove.")]
Delta = Annotated[float, typer.Option("--delta", help="delta of epsilon.")]
Release = Annotated[
    str | None,
    typer.Option("--release", help="Final models that are published: none, average or all; default all."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", help="Worker processes; default: one per core.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout, nothing else there.")]


def load_gossip(graph: str, largest_component: bool, gossip: str, data_home: Path | None) -> tuple[Any, GossipMatrix]:
    """The connected graph (networkx) and its gossip matrix."""
    from .. import gossip as gossips
    from .. import graphs

    loaded = graphs.load(graph, largest_component=largest_component, data_home=data_home)
    graphs.require_connected(loaded)
    return loaded, gossips.load(gossip, loaded)


def messages() -> Console:
    """Where everything goes that is not the answer: stderr."""
    from rich.console import Console

    return Console(stderr=True)


def answers() -> Console:
    """Where the answer goes: stdout."""
    from rich.console import Console

    return Console()


def progress_bar() -> Progress:
    """A bar with time left on stderr."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=messages(),
    )
