"""Comparison of mechanisms at one privacy guarantee, or at several budgets or rates: a grid of cells with a picture.

In: a `Experiment` and a folder. Out: the result as one JSON-ready dict, and the files of `comparison_folder`. All
mechanisms of one seed share data split, initial model and batch order. At several budgets or rates the folder holds

    runs/                           all finished runs
    results.json, steps.mfdl        of all, with mu and lr beside each mechanism and run
    budgets.png/svg                 final test loss over the budgets, if there are several
    mu-1.0-lr-0.5/                  the comparison at these, without runs/
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .. import files
from ..engines import Engine
from ..errors import InvalidInput
from ..mechanism import Mechanism
from ..pictures.style import write_figure
from ..progress import Advance, Progress, reporter
from ..training import distributed
from ..training.distributed import Group, current
from .budget_plots import plot_budgets
from .cells import Cell, Grid
from .comparison_folder import Folder, earlier_result
from .experiment import Experiment
from .output import require_folder
from .run_steps import save_steps
from .running import run_missing
from .shared import WITHOUT_NOISE, Plan, Shared
from .store import RESULTS, RUNS, STEPS, Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = "budgets"
CHECKPOINTS = "checkpoints"
"""In the folder of a comparison whose runs are shared by ranks: where a run that was stopped goes on from."""


def run_comparison(
    config: Experiment,
    out: str | os.PathLike[str],
    *,
    several: Mapping[str, Sequence[float]] | None = None,
    resume: bool = True,
    overwrite: bool = False,
    progress: Progress = "auto",
) -> dict[str, Any]:
    """Runs what is missing of a comparison and writes it to a folder.

    Args:
        config: what to compare.
        out: folder of the files named above; made when missing.
        several: values of mu or epsilon, and of learning_rate, by field: a comparison at every combination of them;
            "none", which no budget changes, at the first budget alone.
        resume: keep the finished runs that the folder holds for this very config.
        overwrite: replace the files of another config instead of refusing.
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called with the number of steps just
            finished (or found finished) and what is being done; an exception it raises stops the comparison, finished
            runs stay readable.

    Returns: the content of results.json; at several values, mu, epsilon and learning_rate are lists, and each mechanism
        and run has its mu and lr.
    Raises:
        InvalidInput: anything that cannot be used, also a value given twice and a folder that another comparison is
            writing to, found before any work is done or any file is written.
        NotConverged: a mechanism's factorization stopped before its tolerance.
    """
    several, folder, shared = several or {}, Path(out), Shared()
    if (config.ranks or 1) > 1:
        distributed.require_packages()
    for name, values in several.items():
        if len(set(values)) < len(values):
            raise InvalidInput(f"{name} must hold distinct values, got {', '.join(f'{value:g}' for value in values)}.")
    require_folder(folder)
    store, screen = Store(folder / RUNS), reporter(progress, words=2)
    plans = [Plan(each, shared) for each in grid_of(config, several).configs()]
    parts = [
        Folder(folder / _name(plan) if several else folder, plan, store, resume=resume, overwrite=overwrite)
        for plan in plans
    ]
    identity = hashlib.sha256("".join(part.identity for part in parts).encode()).hexdigest()[:16]
    if several:
        earlier_result(folder, identity, _options(config, several), overwrite=overwrite)
    every = [cell for part in parts for cell in part.cells.values()]
    with files.held_alone(folder), screen.bar("comparing", sum(cell.num_steps for cell in every)) as report:
        results = [_compared(part, every, folder / CHECKPOINTS, report) for part in parts]
        if not several:
            return results[0]
        result = _merged(config, several, plans, results) | {"config_hash": identity}
        result["config"] = {**result["config"], "out": str(folder)}
        save_steps(folder / STEPS, [steps for part in parts for steps in part.steps])
        if len(several.get("mu", several.get("epsilon", ()))) > 1:
            write_figure(folder, BUDGETS, cast("Figure", plot_budgets(result)))
        files.atomic_write_json(folder / RESULTS, result)
    return result


def _compared(part: Folder, every: Sequence[Cell], checkpoints: Path, report: Advance) -> dict[str, Any]:
    """The comparison at one budget and rate; every: the cells of all of them."""
    config, plan, store = part.plan.config, part.plan, part.store
    mechanisms: dict[str, Mechanism] = {}
    for name in config.mechanisms:
        report(0, f"building {name}")
        mechanisms[name] = plan.mechanism(name)
    store.begin(every, {"config": config.options()})
    part.begin(mechanisms)
    calibrated = {cell: mechanisms[name] for (name, _), cell in part.cells.items() if name != WITHOUT_NOISE}
    with _sharing(config.ranks) as group:
        keeps = config.ranks is not None or group.size > 1
        for cell in run_missing(
            list(part.cells.values()),
            store,
            Engine(jobs=config.jobs),
            report,
            plan.shared,
            mechanisms=calibrated,
            checkpoints=checkpoints if keeps else None,
            strict=True,
        ):
            part.add(cell)
    if keeps:
        for cell in part.cells.values():
            shutil.rmtree(checkpoints / cell.hash, ignore_errors=True)
        with contextlib.suppress(OSError):
            checkpoints.rmdir()  # only if nothing else is there
    return part.finish()


def _sharing(ranks: int | None) -> contextlib.AbstractContextManager[Group]:
    """The processes that share the nodes of each run: those that torchrun started, or as many as are asked for."""
    if ranks is None or current().size > 1:
        return contextlib.nullcontext(current())
    return distributed.ranks(ranks)


def grid_of(config: Experiment, several: Mapping[str, Sequence[float]]) -> Grid:
    """The comparison at each combination of the values; `none` at the first budget alone."""
    values = {name: several.get(name, (getattr(config, name),)) for name in Experiment.SEVERAL}

    def point(chosen: dict[str, Any]) -> dict[str, Any] | None:
        names = config.mechanisms
        if any(chosen[name] != values[name][0] for name in ("mu", "epsilon")):
            names = tuple(name for name in names if name != WITHOUT_NOISE)
        return {**chosen, "mechanisms": names} if names else None

    return Grid(config, values, point)


def _name(plan: Plan) -> str:
    config = plan.config
    target = f"mu-{plan.mu!r}" if config.epsilon is None else f"epsilon-{config.epsilon!r}"
    return f"{target}-lr-{config.learning_rate!r}"


def _options(config: Experiment, several: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The options with all values of those that have several."""
    return config.options() | {("lr" if name == "learning_rate" else name): list(v) for name, v in several.items()}


def _merged(
    config: Experiment,
    several: Mapping[str, Sequence[float]],
    plans: Sequence[Plan],
    results: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for plan, result in zip(plans, results, strict=True):
        budget = (
            "mu",
            "lr",
            "budget",
            *["epsilon"] * plan.config.has_secret_batches,
        )  # without mu, epsilon says at which budget
        target = {"lr": plan.config.learning_rate, "budget": plan.config.epsilon or plan.config.target_mu_or_default}
        of_mechanism = {row["mechanism"]: {**row, **target} for row in result["mechanisms"]}
        rows += of_mechanism.values()
        runs += [{**run, **{name: of_mechanism[run["mechanism"]][name] for name in budget}} for run in result["runs"]]
    options = _options(config, several)
    return {
        **results[0],
        **{name: list(dict.fromkeys(each[name] for each in results)) for name in ("mu", "epsilon", "learning_rate")},
        "guarantee": "Each mechanism meets its own budget, which its guarantee states.",
        "finding": None,
        "advice": list(dict.fromkeys(text for result in results for text in result["advice"])),
        "mechanisms": rows,
        "runs": runs,
        "config": options | ({"mu": None} if "epsilon" in several else {}),
    }
