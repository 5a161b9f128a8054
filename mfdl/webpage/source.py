"""What a page is made of: the finished cells of a folder, their steps, and where all of it came from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import InvalidInput
from ..runs import columns
from ..runs.earlier import RESULTS, STEPS
from ..runs.run_steps import RunSteps, load_steps
from ..runs.store import CELLS, SWEEP, Store

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Source:
    """A folder as it was read.

    Attributes:
        records: one per finished run, as the JSON of a cell has it.
        steps: from a record to its evaluated steps.
        failures: of runs that stopped with an error: what it says, and where it happened.
        missing: runs that are neither finished nor failed.
        config: the configuration; versions: of the packages that computed it.
        tuned: rates were chosen on other seeds.
        files: what lies beside the page: words and path.
    """

    folder: Path
    kind: str
    records: list[Record]
    steps: Callable[[Record], RunSteps]
    failures: list[dict[str, Any]]
    missing: int
    config: dict[str, Any]
    versions: dict[str, str]
    files: list[tuple[str, str]]
    tuned: bool = False


def read(folder: Path) -> Source:
    """The folder of a sweep, else that of a comparison.

    Raises: InvalidInput: it is neither, or no run in it is finished.
    """
    if (folder / SWEEP).exists():
        source = _sweep(folder)
    elif (folder / RESULTS).exists():
        source = _comparison(folder)
    else:
        raise InvalidInput(
            f"{folder} holds no {SWEEP} and no {RESULTS}; give the folder of `mfdl sweep` or `mfdl compare`."
        )
    if not source.records:
        failed = f"; {len(source.failures)} failed" if source.failures else ""
        raise InvalidInput(f"no run in {folder} is finished{failed}: run the {source.kind} again to resume.")
    return source


def _sweep(folder: Path) -> Source:
    store = Store.load(folder)
    header, status = store.sweep(), store.status()

    def steps(record: Record) -> RunSteps:
        return store.steps(record["cell"])

    lies = [("the configuration", SWEEP), ("two files per run: its results, its evaluated steps", f"{CELLS}/")]
    missing, config = len(status.missing), header["config"] or {}
    tuned = bool(header.get("chosen"))
    return Source(
        folder, "sweep", store.records(), steps, store.failures(), missing, config, header["versions"], lies, tuned
    )


def _comparison(folder: Path) -> Source:
    """results.json and steps.mfdl of `mfdl compare`, its runs as cells of a sweep."""
    result = _json(folder / RESULTS)
    try:
        same = {name: result[name] for name in columns.names(level="setting")} | {"lr": result.get("learning_rate")}
        same |= {"untrained_loss": result["untrained_loss_mean"], "chance_loss": result["chance_loss"]}
        records = []
        for run in result["runs"]:
            key = {
                name: run[name] for name in columns.names("key") if name in run
            }  # budget and rate where there are several
            row = next(row for row in result["mechanisms"] if all(row[name] == key[name] for name in key))
            of_mechanism = {name: row[name] for name in columns.names(level="mechanism")} | key
            finished = {name: run[name] for name in run if name not in ("seconds", "node_steps_per_second")}
            options = {"mechanisms": [run["mechanism"]], "seeds": 1, "first_seed": run["seed"]}
            if isinstance(key.get("mu"), float):
                options |= {"mu": key["mu"], "epsilon": None}
            if isinstance(key.get("epsilon"), float):  # the target under secret sampling, where mu is null
                options["epsilon"] = min(each for each in result["config"]["epsilon"] if each >= key["epsilon"])
            options |= {"lr": key["lr"]} if "lr" in key else {}
            records.append({**same, **of_mechanism, **finished, "config": {**result["config"], **options}})
        missing = len(result["seeds"]) * len(result["mechanisms"]) - len(records)
        config, versions = result["config"], result["versions"]
        every = load_steps(folder / STEPS) if records else []
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise InvalidInput(
            f"{folder} is no comparison of this version ({error!r}); run `mfdl compare` again."
        ) from None

    def steps(record: Record) -> RunSteps:
        budget = "epsilon" if record["mu"] is None else "mu"
        of_run = {name: record[name] for name in ("mechanism", "seed", "lr")} | {budget: float(record[budget])}
        run = next((run for run in every if of_run.items() <= run.conditions.items()), None)
        if run is None:
            raise InvalidInput(f"{folder / STEPS} lacks a run of {RESULTS}; run `mfdl compare` again.")
        return run

    lies = [("all results", RESULTS), ("every evaluated step", STEPS)]
    return Source(folder, "comparison", records, steps, [], missing, config, versions, lies)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise InvalidInput(f"cannot read {path}: {reason}; run what wrote it again.") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} must hold an object, got {type(value).__name__}; run what wrote it again.")
    return value
