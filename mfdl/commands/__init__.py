"""The command line: `mfdl account`, `compare`, `sweep` and others, with those of other packages (`mfdl.extensions`).

A table or one JSON value goes to stdout, everything else to stderr. Exit codes: 0 done; 1 an audit refutes a claim,
cells of a sweep failed, or a verdict is not the one on record; 2 bad input; 3 a solver stopped before its tolerance;
130 interrupted. Commands import the layers below when they run.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__, extensions, progress
from ..errors import OTHER_WORDS, InvalidInput, RankLost, UnusualSetting, unknown_name
from ..runs.option_files import spelled
from . import account, attack, audit, factorize, listing, plan, sweep

__all__ = ["app", "main"]


_SETTINGS: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
"""Mark-up that typer renders: that of rich would cost 0.1 s at every start."""


class _Commands(TyperGroup):
    """Sub-commands of this package and of others; misspelt names are answered with the nearest one.

    Entry points are read only for a name that is not one of this package's, and for the list of all.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Commands in the order of help: those that run, of other packages too, before lists of names and data."""
        ours = list(self.commands)
        at = ours.index("mechanisms")
        return [*ours[:at], *(name for name in extensions.names(extensions.COMMANDS) if name not in ours), *ours[at:]]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands or cmd_name not in extensions.names(extensions.COMMANDS):
            return super().get_command(ctx, cmd_name)
        added = typer.Typer(name=cmd_name, **_SETTINGS)
        added.command(cmd_name)(extensions.load(extensions.COMMANDS, cmd_name))
        return typer.main.get_command(added)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and args[0] not in (every := self.list_commands(ctx)):
            raise unknown_name("command", args[0], every)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="mfdl", help="Differentially private decentralized learning as matrix factorization.", cls=_Commands,
    context_settings={"token_normalize_func": spelled}, **_SETTINGS,
)  # fmt: skip
for run in (
    account.account, attack.attack, audit.audit, factorize.factorize, plan.plan, sweep.compare, sweep.sweep,
    sweep.report, listing.mechanisms,
):  # fmt: skip
    app.command()(run)
app.add_typer(listing.trust, name="trust")
app.add_typer(listing.app, name="data")
app.add_typer(listing.graph, name="graph")

# typer brings its own copy of click or the real one, depending on its version; this is ClickException in both
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mfdl {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@functools.cache
def _command() -> Any:
    """The command with all options, read from signatures once a process, which takes 13 ms."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; arguments: without the program name, default the process's."""
    gc.set_threshold(100_000)  # a thousand modules are loaded, and searching them for cycles takes a fifth of the start
    try:
        with warnings.catch_warnings(), progress.in_logs():
            warnings.showwarning = _in_one_line(warnings.showwarning)
            result = _command().main(
                args=None if arguments is None else list(arguments), prog_name="mfdl", standalone_mode=False
            )
        sys.stdout.flush()  # a full disk behind it would otherwise be found after the exit code was decided
    except OSError as error:
        if error.filename is not None or error.errno not in _OF_A_STREAM:
            raise
        _drop_the_answer()
        return _refuse(f"cannot write the answer to standard output: {error.strerror}; redirect it.", 2)
    except InvalidInput as error:
        return _refuse(str(error), 2)
    except _USAGE_ERROR as error:
        where = getattr(getattr(error, "ctx", None), "command_path", "mfdl")
        return _refuse(f"{_in_words(error, sys.argv[1:] if arguments is None else arguments)} See `{where} --help`.", 2)
    except MemoryError as error:
        reason = f" ({error})" if str(error) else ""
        return _refuse(f"this machine has not enough memory for it{reason}; use fewer steps or nodes.", 2)
    except KeyboardInterrupt:
        return _refuse("interrupted.", 130)
    except RankLost as error:
        return _refuse(str(error), 3)
    except RuntimeError as error:
        # if that class was raised its module is loaded; importing it for other errors would only hide them longer
        module = sys.modules.get("mfdl.factorization")
        if module is None or not isinstance(error, module.NotConverged):
            raise
        return _refuse(str(error), 3)
    return result if isinstance(result, int) else 0


# of a write to an open stream; errors of files name the file, and the code that opens them says what to do
_OF_A_STREAM = {errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EFBIG, errno.EDQUOT}


def _drop_the_answer() -> None:
    """Discards the rest of the buffer, else Python writes it again at the exit and fails once more."""
    with contextlib.suppress(OSError, ValueError):  # without a descriptor, as under a test: nothing at the exit either
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _in_words(error: Any, arguments: Sequence[str]) -> str:
    message = str(error.format_message()).strip()
    wanted = next((words for kind, words in _NUMBERS.items() if kind in message), None)
    if wanted is not None:
        flags = list(getattr(getattr(error, "param", None), "opts", ()))
        value = next((_value_after(flag, arguments) for flag in flags if _value_after(flag, arguments)), "")
        several = "; it takes one value per call" if "," in value else ""
        message = f"{'/'.join(flags) or 'an option'} must be {wanted}, got {value!r}{several}"
    here = OTHER_WORDS.get(str(getattr(error, "option_name", "")).strip("-"))
    command = getattr(getattr(error, "ctx", None), "command", None)
    if any(f"--{here}" in parameter.opts for parameter in getattr(command, "params", ())):
        message = f"{message.rstrip('.')}; it is called --{here} here"
    return message if message.endswith((".", "?", "!")) else f"{message}."


_NUMBERS = {
    **dict.fromkeys(("valid integer", "valid int"), "a whole number"),
    **dict.fromkeys(("valid number", "valid float"), "a number"),
}
"""Words of typer, of either of its parsers, for a value that is no number."""


def _value_after(flag: str, arguments: Sequence[str]) -> str:
    """The typed value of an option, as `--flag value` or `--flag=value`; the last one counts."""
    values = [b for a, b in itertools.pairwise(arguments) if a == flag]
    return next((a.partition("=")[2] for a in reversed(arguments) if a.startswith(f"{flag}=")), *values[-1:] or [""])


def _in_one_line(usual: Callable[..., None]) -> Callable[..., None]:
    """Shows warnings about settings as one line, all others as Python does."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UnusualSetting):
            typer.echo(f"mfdl: warning: {message}", file=sys.stderr)
        else:
            usual(message, category, *where, **more)

    return show


def _refuse(message: str, code: int) -> int:
    typer.echo(f"mfdl: {' '.join(message.split())}", file=sys.stderr)
    return code
