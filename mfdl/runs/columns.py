"""The columns of runs: one table of what results.json, steps.mfdl, the records of a sweep and the page hold.

A new column is a line of `COLUMNS`, and its value where it is computed.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import archive, errors
from ..errors import InvalidInput
from ..storable import storable

if TYPE_CHECKING:
    import pandas

SETTING, MECHANISM, RUN, STEP = "setting", "mechanism", "run", "step"
Aggregate = Callable[[str, Sequence[Any]], dict[str, Any]]


def mean_std_count(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Mean and sample deviation of the numbers among the values, and their count; None of none, deviation 0 of one."""
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
    """A value of runs.

    Attributes:
        level: on which it is constant: all runs of a setting, the runs of a mechanism, a run, or a step of a node.
        places: where it stands besides: "steps" (a column of steps.mfdl), "run" (a field of each finished run),
            "rows" (beside a group of cells of a sweep), "key" (which mechanism a run is of), "page" (provenance).
        types: in a record, where they are checked.
        aggregate: maps its name and one value for each seed to the columns of their group.
        private: covered by the guarantee (`training.replay_config`); else computed from data without noise.
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
"""Columns of steps.mfdl and of the runs in results.json that no guarantee covers."""


def names(place: str = "", level: str = "") -> tuple[str, ...]:
    """Columns of a place or level, in order."""
    return tuple(
        column.name
        for column in COLUMNS
        if (not place or place in column.places) and (not level or column.level == level)
    )


def aggregated(runs: Sequence[Mapping[str, Any]], over: Iterable[str]) -> dict[str, Any]:
    """Columns of a group of runs that differ in their seeds; a metric is aggregated as a loss is."""
    aggregates = {column.name: column.aggregate for column in COLUMNS}
    columns: dict[str, Any] = {}
    for name in over:
        columns |= aggregates.get(name, mean_std_count)(name, [run.get(name) for run in runs])
    return columns


def is_of_run(record: Any) -> bool:
    """Whether a record has the fields of a run of this version."""
    of_run = [column for column in COLUMNS if "run" in column.places]
    return isinstance(record, dict) and all(isinstance(record.get(column.name), column.types) for column in of_run)


KIND = "steps"
CONDITIONS = tuple(name for name in names("steps") if name not in names("steps", level=STEP))
"""Columns with a single value for each run."""


@storable
@dataclasses.dataclass(frozen=True, eq=False)
class RunSteps:
    """The evaluated steps of one run of one seed.

    Attributes:
        conditions: mechanism, seed, privacy budget and more, by name (`CONDITIONS`).
        steps: the number of finished steps at each evaluation, shape (E,).
        nodes: their labels, as text.
        values: loss, accuracy of a classification, and the requested metrics, by name: of each node, shape (E, n); of
            the average model, (E,).

    Raises: InvalidInput: arrays of other shapes.
    """

    conditions: Mapping[str, Any]
    steps: NDArray[np.int64]
    nodes: tuple[str, ...]
    values: Mapping[str, NDArray[np.float64]]

    def __post_init__(self) -> None:
        shapes = [(len(self.steps), len(self.nodes)), (len(self.steps),)]
        for name, values in self.values.items():
            if values.shape not in shapes:
                raise InvalidInput(f"{name} must have shape {shapes[0]} or {shapes[1]}, got {values.shape}.")

    def __len__(self) -> int:
        return len(self.steps) * len(self.nodes)

    def has_columns(self, metrics: Iterable[str]) -> bool:
        """Whether it has the conditions that this version records, and these metrics."""
        return set(self.conditions) == set(CONDITIONS) and set(self.values) - {"accuracy"} == {"loss", *metrics}

    def mean_over_nodes(self, metric: str = "loss") -> NDArray[np.float64]:
        """The mean of a metric at each evaluated step, shape (E,); NaN if it was not measured."""
        values = self._values(metric)
        return values if values.ndim == 1 else values.mean(axis=1)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Long format: a row for each evaluated step and node, columns by name, NaN for missing values."""
        steps, nodes = len(self.steps), len(self.nodes)
        each_step = {"step": np.repeat(self.steps, nodes), "node": np.tile(np.array(self.nodes, dtype=np.str_), steps)}
        for name in dict.fromkeys(["loss", "accuracy", *sorted(self.values)]):
            values = self._values(name)
            each_step[name] = values.ravel() if values.ndim == 2 else np.repeat(values, nodes)
        same = {name: np.nan if value is None else value for name, value in self.conditions.items()}
        order = dict.fromkeys([*names("steps"), *each_step])
        return {name: each_step[name] if name in each_step else np.full(len(self), same[name]) for name in order}

    def to_pandas(self) -> pandas.DataFrame:
        """`columns` as a data frame. Raises: MissingExtra: pandas is not installed."""
        installed = errors.imported("pandas", "a data frame", "take columns(), which gives arrays")
        frame: pandas.DataFrame = installed.DataFrame(self.columns())
        return frame

    def _values(self, metric: str) -> NDArray[np.float64]:
        missing = np.full(len(self.steps), np.nan)
        return self.values.get(metric, missing)


def save_steps(path: str | os.PathLike[str], runs: Iterable[RunSteps]) -> Path:
    """Writes the steps of runs, atomically. Raises: InvalidInput: the path cannot be written."""
    return archive.write(path, KIND, {"runs": list(runs)})


def load_steps(path: str | os.PathLike[str]) -> list[RunSteps]:
    """The steps of runs from `steps.mfdl` of a comparison, or from a cell's file of a sweep.

    Raises: InvalidInput: no such file, or a damaged one.
    """
    content = archive.read(path, KIND)
    with archive.refusing(path, KIND):
        return list(content["runs"])
