"""`mfdl sweep`: a grid of training runs, each stored once it is finished; `mfdl report`: such a folder as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidInput
from ..progress import reporter
from ..runs.output import rounded_up
from ..webpage import ReportConfig
from . import terminal
from .terminal import Answer, command

OUT = Path("results/sweep")


def sweep(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG.toml", help="TOML file with options of `mfdl compare`; a list gives several values."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the sweep; default results/sweep.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, help="Parallel runs; default: one per core."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="joblib (processes, default) or dask."),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler", metavar="ADDRESS", help="dask: a running scheduler; default workers of this machine."
        ),
    ] = None,
    status: Annotated[
        Path | None,
        typer.Option("--status", metavar="DIR", help="Show the progress of the sweep in a folder and exit."),
    ] = None,
    as_json: terminal.Json = False,
) -> int:
    """Train every cell of a grid (mechanism, trust model, budget, rate, error weights, graph, task, seed), each once.

    After an interruption the same command resumes. Exit code 1: some cells failed; --status shows why, and the same
    command retries them.
    """
    from ..runs.store import Store, answer

    if (config is None) == (status is None):
        raise InvalidInput("give either CONFIG.toml, to run a sweep, or --status DIR, to show its progress.")
    if status is not None:
        result = answer(Store.load(status))
        _tell(result, as_json, seen=True)
        return 0
    assert config is not None
    result = _run(config, out, jobs, engine, scheduler)
    _tell(result, as_json)
    return int(result["failed"] > 0)


def _run(config: Path, out: Path | None, jobs: int | None, engine: str | None, scheduler: str | None) -> dict[str, Any]:
    from ..runs import Engine
    from ..runs.store import finished_sweep
    from ..runs.sweep_config import SweepConfig, SweepFile

    file = SweepFile.read(config)
    sweep_config = SweepConfig.written(file)
    name, address = engine or file.caller.get("engine", "joblib"), scheduler or file.caller.get("scheduler")
    place = Engine(name, jobs or file.options.get("jobs"), address)
    folder = out or Path(file.caller.get("out", OUT))
    with terminal.telling_what_is_stored(folder, "cell"):
        if (earlier := finished_sweep(sweep_config, folder)) is not None:
            terminal.messages().print("Nothing to do: every cell was finished by an earlier call.", markup=False)
            return earlier
        with reporter().status("loading torch"):
            from ..runs import sweep as run
        return run(sweep_config, out=folder, engine=place)


def _tell(result: dict[str, Any], as_json: bool, *, seen: bool = False) -> None:
    if as_json:
        terminal.as_one_json_value(result)
        return
    counts = ", ".join(f"{result[name]} {name}" for name in ("finished", "failed", "missing"))
    terminal.say([f"{result['total']} cells: {counts}."])
    for failure in result["failures"]:
        terminal.say([f"failed: {failure['mechanism']} ({failure['cell']}): {failure['error']}"])
    if result["failures"]:
        terminal.say([f"Tracebacks: {Path(result['out']) / 'failed'}; the next `mfdl sweep` retries these cells."])
    for budget in result["converted"]:
        target = f"epsilon = {rounded_up(budget['epsilon'])} at delta = {budget['delta']:g}"
        terminal.say([f"Secret batches have no mu; the budget is {target}, the epsilon of mu = {budget['mu']:g}."])
    if result["rows"] and not seen:
        terminal.say([terminal.grid(result["rows"])])
    if not seen:
        terminal.say([], Path(result["out"]))


@command(ReportConfig, "File of the page; default report.html in the folder.", metavar="FILE")
def report(
    config: ReportConfig,
    out: Path | None,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of `mfdl sweep` or `mfdl compare`.")],
) -> Answer:
    """Write report.html: figures, tables, guarantees and provenance of a folder of runs, in one page."""
    from ..webpage.page import write_page  # matplotlib and torch only here

    page = write_page(config, folder, out)
    return {"page": str(page)}, lambda: terminal.say([f"Page: {page}"]), 0
