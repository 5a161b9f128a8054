"""The columns of runs: one table of what results.json, steps.mfdl, the records of a sweep and the page hold.

In: `COLUMNS`, a line for each. Out: the columns of the steps, the fields of a finished run, what runs that differ in
their seeds come to, what no guarantee covers, what a table or a page shows. A new column is a line here and the value
where it is computed.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

SETTING, MECHANISM, RUN, STEP = "setting", "mechanism", "run", "step"
Aggregate = Callable[[str, Sequence[Any]], dict[str, Any]]


def mean_std_count(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Mean and sample deviation of the numbers among the values, and how many they are; None of none, 0 of one."""
    numbers = [value for value in values if isinstance(value, float)]
    mean = statistics.fmean(numbers) if numbers else None
    std = statistics.stdev(numbers) if len(numbers) > 1 else 0.0 if numbers else None
    return {f"{name}_mean": mean, f"{name}_std": std, f"{name}_count": len(numbers)}


def _every(name: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}s": list(values)}


def _total(name: str, values: Sequence[Any]) -> dict[str, Any]:
    return {name: sum(values)}


@dataclasses.dataclass(frozen=True)
class Column:
    """A value that runs are described or measured by.

    Attributes:
        name: in every file.
        level: of what it is the same: all runs of a setting, the runs of a mechanism, a run, or a step of a node.
        places: where it stands besides: "steps" (a column of steps.mfdl), "run" (a field of each finished run),
            "rows" (beside a group of cells of a sweep), "key" (which mechanism a run is of), "page" (provenance).
        types: in a record, where they are checked.
        aggregate: of a value of runs, its name and one value for each seed to the columns of their group.
        private: covered by the guarantee, as `training.covered` explains; else computed from data without noise.
    """

    name: str
    level: str
    places: tuple[str, ...]
    description: str
    types: Any = object
    aggregate: Aggregate = mean_std_count
    private: bool = True


COLUMNS = (
    Column("mechanism", MECHANISM, ("steps", "run", "rows", "key"), "its name, with error weights", str),
    Column("seed", RUN, ("steps", "run"), "of data split, first model, batch order and noise", int, _every),
    Column("step", STEP, ("steps",), "steps done"),
    Column("node", STEP, ("steps",), "label"),
    Column("loss", STEP, ("steps",), "test loss of the node", private=False),
    Column("accuracy", STEP, ("steps",), "test accuracy of the node", private=False),
    Column("final_test_loss", RUN, ("run",), "test loss at the end", types=float | None, private=False),
    Column("final_accuracy", RUN, ("run",), "test accuracy at the end", types=float | None, private=False),
    Column("diverged", RUN, ("run",), "whether a number became infinite", types=bool, aggregate=_total, private=False),
    Column("seconds", RUN, ("run",), "of training", aggregate=_total, private=False),
    Column("node_steps_per_second", RUN, ("run",), "speed", private=False),
    Column("label", MECHANISM, (), "the name in tables and pictures"),
    Column("trust", MECHANISM, ("steps", "rows"), "trust model of the guarantee"),
    Column("mu", MECHANISM, ("steps", "rows", "key"), "privacy loss; none where the curve is not Gaussian"),
    Column("epsilon", MECHANISM, ("steps", "rows", "key"), "privacy loss at delta"),
    Column("guarantee", MECHANISM, (), "in words"),
    Column("noise_std", MECHANISM, (), "nu, of the base noise"),
    Column("injected_noise_std", MECHANISM, (), "of the noise in what a node sends"),
    Column("sensitivity", MECHANISM, (), "of the view to one record, in units of the record shift"),
    Column("objective", MECHANISM, (), "weighted squared noise in the models"),
    Column("delta", SETTING, ("steps",), "of epsilon"),
    Column("lr", RUN, ("steps", "rows", "key"), "learning rate of the first step"),
    Column("error_weights", RUN, ("rows",), "weights of the models in the objective"),
    Column("graph", SETTING, ("steps", "rows", "page"), "its name"),
    Column("graph_hash", SETTING, ("page",), "of its content"),
    Column("task", SETTING, ("steps", "rows", "page"), "its name"),
    Column("task_hash", RUN, ("page",), "of its content"),
    Column("gossip", SETTING, ("page",), "name of the gossip matrix"),
    Column("gossip_hash", SETTING, ("page",), "of its content"),
    Column("unit", SETTING, ("page",), "unit of protection: record or user"),
    Column("adjacency", SETTING, ("page",), "which data sets are neighbours"),
    Column("clip_norm", SETTING, ("page",), "of gradients"),
    Column("nodes", SETTING, ("page",), "how many"),
    Column("participation", RUN, ("rows",), "public batches or balls-in-bins"),
)

NOT_PRIVATE = tuple(column.name for column in COLUMNS if not column.private)
"""What of steps.mfdl and of the runs in results.json no guarantee covers, as `training.covered` explains."""


def names(place: str = "", level: str = "") -> tuple[str, ...]:
    """The columns that stand in a place, or are of a level, in their order."""
    return tuple(
        column.name
        for column in COLUMNS
        if (not place or place in column.places) and (not level or column.level == level)
    )


def aggregated(runs: Sequence[Mapping[str, Any]], over: Iterable[str]) -> dict[str, Any]:
    """What columns of runs that differ in their seeds come to, in order; a metric is aggregated as a loss is."""
    aggregates = {column.name: column.aggregate for column in COLUMNS}
    columns: dict[str, Any] = {}
    for name in over:
        columns |= aggregates.get(name, mean_std_count)(name, [run.get(name) for run in runs])
    return columns


def is_of_run(record: Any) -> bool:
    """Whether this is the record of a run, as this version writes it."""
    of_run = [column for column in COLUMNS if "run" in column.places]
    return isinstance(record, dict) and all(isinstance(record.get(column.name), column.types) for column in of_run)
