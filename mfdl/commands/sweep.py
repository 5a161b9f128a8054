"""`mfdl compare`, `mfdl sweep`, and `mfdl report`: folders of training runs, and such a folder as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput
from ..metrics import WORDS, final_steps, is_accuracy, result_key
from ..progress import reporter
from ..runs.experiment import Experiment
from ..runs.output import rounded_up, shared_conditions
from ..webpage import ReportConfig
from . import terminal
from .terminal import Answer, command

if TYPE_CHECKING:
    from rich.table import Table


@command(Experiment, "Folder of the results.", default=Path("results/compare"))
def compare(
    config: Experiment,
    out: Path,
    several: dict[str, list[float]],
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Reuse the finished runs in the folder.")] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a comparison with other options in the folder.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print all conditions of the guarantee and what each column means.")
    ] = False,
) -> Answer:
    """Train with each mechanism at the same privacy guarantee; write results.json, steps.mfdl and a picture.

    Ctrl-C keeps the finished runs; the same command resumes.
    """
    from ..runs.store import RUNS, finished_comparison

    result = finished_comparison(config, out) if resume and not several else None
    if result is not None:
        terminal.messages().print("Nothing to do: every run was finished by an earlier call.", markup=False)
    else:
        with terminal.telling_what_is_stored(out, "run", RUNS):
            with reporter().status("loading torch"):
                from ..runs.comparing import run_comparison
            result = run_comparison(config, out, several=several, resume=resume, overwrite=overwrite)

    def show() -> None:
        terminal.say([_grid(result) if several else _table(result), shared_conditions(result)])
        verdict = " ".join([f"{result['finding']}."] * bool(result["finding"]) + result["advice"])
        terminal.say([verdict] * bool(verdict) + _in_full(result)[: None if verbose else not verdict])
        more = "" if verbose else " All conditions: --verbose, or results.json there."
        terminal.answers().print(f"Written to {out}.{more}", highlight=False, markup=False, soft_wrap=True)

    return result, show, 0


def _table(result: dict[str, Any]) -> Table:
    count = len(result["seeds"])
    title = f"{result['task']} on {result['graph']}: {result['nodes']} nodes, {result['steps']} steps"
    measured = result["config"].get("metrics", [])
    keys = [result_key("final", name) for name in measured]
    numbers = [f"final test\nloss ± std\n({count} seeds)" if count > 1 else "final test loss\n(1 seed)", "accuracy"]
    numbers += ["sensitivity"] * (result["mu"] is not None) + ["injected\nnoise std"]
    numbers += ["objective"] * (with_objective := any(row["objective"] is not None for row in result["mechanisms"]))
    numbers += [WORDS[name].replace(" of the ", "\nof the ") for name in measured]
    table = terminal.table(("mechanism", *numbers), title=title, right=numbers)
    for row in result["mechanisms"]:
        objective, error = row["objective"], f" ± {row['objective_error']:,.0f}" if "objective_error" in row else ""
        loss = terminal.plus_minus(row["final_test_loss_mean"], row["final_test_loss_std"], count, ".3f")
        table.add_row(
            row["label"],
            f"diverged ({len(row['diverged'])} of {count})" if row["final_test_loss_mean"] is None else loss,
            terminal.plus_minus(row["final_accuracy_mean"], row["final_accuracy_std"], count, ".1%"),
            *["" if (s := row["sensitivity"]) is None else rounded_up(s)] * (result["mu"] is not None),
            f"{row['injected_noise_std']:.3g}",
            *[f"{objective:,.0f}{error}" if isinstance(objective, float) else str(objective)] * with_objective,
            *(
                terminal.plus_minus(row[f"{key}_mean"], row[f"{key}_std"], count, ".1%" if is_accuracy(name) else ".3g")
                for name, key in zip(measured, keys, strict=True)
            ),
        )
    for name, mean in (("untrained", "_mean"), ("chance", "")):
        loss, accuracy = result[f"{name}_loss{mean}"], result[f"{name}_accuracy{mean}"]
        if loss is not None:
            table.add_row(f"({name})", f"{loss:.3f}", "" if accuracy is None else f"{accuracy:.1%}")
    return table


def _grid(result: dict[str, Any]) -> Table:
    same = {"seeds": result["seeds"], "graph": result["graph"], "task": result["task"]}
    return terminal.grid([{**row, **same, "diverged": len(row["diverged"])} for row in result["mechanisms"]])


def _in_full(result: dict[str, Any]) -> list[str]:
    num_steps, released = result["steps"], result["config"].get("release_model")
    means = f" and over the evaluations of the last {final_steps(num_steps)} of {num_steps} steps"
    estimated = any("objective_error" in row for row in result["mechanisms"])
    without = any(row["mechanism"] == "none" for row in result["mechanisms"])
    return [
        f"Final test loss and accuracy: mean over the nodes{means if released is None else f' of {released}'}.",
        "sensitivity: of what the attacker sees, to one record, per unit record shift.",
        "injected noise std: of the noise that is added to one coordinate of what a node clips.",
        (
            "objective: noise left in the models at this epsilon and delta, per unit clipping norm and learning rate"
            if result["mu"] is None
            else "objective: noise left in the models, per unit mu and record shift; it goes with (record shift / mu)^2"
        )
        + ("; estimated, with a 95 % interval." if estimated else "."),
        result["guarantee"],
        *["none trains without noise: it has no guarantee."] * without,
        "The noise is generated from the seeds: anyone who knows them can subtract it.",
    ]


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
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Parallel runs; default: one per core.")] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="joblib (processes, default) or dask.")
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
