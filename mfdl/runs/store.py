"""Columns of runs, and the folder of a sweep, or `runs/` of a comparison: two files a cell, always the same bytes.

    sweep.json              the config of the sweep, the cells in order, the versions
    cells/HASH.json         one finished cell, written last
    cells/HASH.mfdl         its evaluated steps, node by node
    failed/HASH.json        a cell that failed: its error in words and the traceback; the next call tries it again
    factorizations/         solved problems by their content
    timings.jsonl           seconds of every cell, and its host: the only file that differs from one run to the next

`finished_sweep` and `finished_comparison` tell without loading graph, data or torch whether nothing is left to do.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import archive, check, errors, files
from ..archive import SUFFIX
from ..errors import InvalidInput
from ..spec import storable
from .output import require_folder, versions

if TYPE_CHECKING:
    import pandas

    from .cells import Cell
    from .experiment import Experiment
    from .sweep_config import SweepConfig

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
        types: in a record; aggregate: from its name and one value for each seed to the columns of their group.
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
    Column("step", STEP, ("steps",), "steps done"), Column("node", STEP, ("steps",), "label"),
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
    Column("guarantee", MECHANISM, (), "in words"), Column("noise_std", MECHANISM, (), "nu, of the base noise"),
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
    Column("clip_norm", SETTING, ("page",), "of gradients"), Column("nodes", SETTING, ("page",), "how many"),
    Column("participation", RUN, ("rows",), "public batches or balls-in-bins"),
)  # fmt: skip

NOT_PRIVATE = tuple(column.name for column in COLUMNS if not column.private)
"""Columns of steps.mfdl and of the runs in results.json that no guarantee covers."""


def names(place: str = "", level: str = "") -> tuple[str, ...]:
    return tuple(c.name for c in COLUMNS if place in ("", *c.places) and level in ("", c.level))


def aggregated(runs: Sequence[Mapping[str, Any]], over: Iterable[str]) -> dict[str, Any]:
    aggregates = {column.name: column.aggregate for column in COLUMNS}
    columns: dict[str, Any] = {}
    for name in over:
        columns |= aggregates.get(name, mean_std_count)(name, [run.get(name) for run in runs])
    return columns


def is_of_run(record: Any) -> bool:
    of_run = [column for column in COLUMNS if "run" in column.places]
    return isinstance(record, dict) and all(isinstance(record.get(column.name), column.types) for column in of_run)


KIND = "steps"
CONDITIONS = tuple(name for name in names("steps") if name not in names("steps", level=STEP))
"""Columns with a single value for each run."""


@storable
@dataclasses.dataclass(frozen=True, eq=False)
class RunSteps:
    """The evaluated steps of one run of one seed.

    Attributes: conditions: by name (`CONDITIONS`); steps: finished at each evaluation, shape (E,); nodes: labels, as
        text; values: loss, accuracy of a classification, and the requested metrics, by name: of each node, shape
        (E, n); of the average model, (E,).
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
        return self.values.get(metric, np.full(len(self.steps), np.nan))


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


SWEEP, CELLS, FAILED, FACTORIZATIONS, TIMINGS = "sweep.json", "cells", "failed", "factorizations", "timings.jsonl"


@dataclasses.dataclass(frozen=True)
class Status:
    finished: tuple[str, ...]
    failed: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def total(self) -> int:
        return len(self.finished) + len(self.failed) + len(self.missing)


class Store:
    """The cells of a folder. One process at a time writes, any number may read.

    Raises: InvalidInput: a folder that cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = check.path(folder=folder)
        require_folder(self.folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """A folder that holds a sweep. Raises: InvalidInput: it holds none, or its sweep.json cannot be read."""
        store = cls(folder)
        if not (store.folder / SWEEP).is_file():
            raise InvalidInput(f"{folder} holds no sweep (no {SWEEP}); give a folder that `mfdl sweep` wrote.")
        store.sweep()
        return store

    def sweep(self) -> dict[str, Any]:
        """The content of sweep.json; without the file that of a sweep without cells.

        Raises: InvalidInput: it cannot be read.
        """
        path = self.folder / SWEEP
        if not path.exists():
            return {"cells": [], "config": None, "versions": versions()}
        content = read_json(path)
        if content is None or not isinstance(content.get("cells"), list):
            raise InvalidInput(f"{path} cannot be read as a sweep; run the sweep again, its finished cells are kept.")
        return content

    @property
    def hashes(self) -> list[str]:
        return [str(name) for name in self.sweep()["cells"]]

    def is_finished(self, cell: str | Cell) -> bool:
        return self.record(cell) is not None

    def record(self, cell: str | Cell) -> dict[str, Any] | None:
        """The record of a finished cell; None while it is not finished, or if its file is damaged."""
        name = cell if isinstance(cell, str) else cell.hash
        record = read_json(self.folder / CELLS / f"{name}.json")
        return record if is_of_run(record) and self._steps_path(name).is_file() else None

    def records(self) -> list[dict[str, Any]]:
        every = (self.record(name) for name in self.hashes)
        return [record for record in every if record is not None]

    def steps(self, cell: str | Cell) -> RunSteps:
        """The evaluated steps of a cell. Raises: InvalidInput: a cell that is not finished, or a damaged file."""
        name = cell if isinstance(cell, str) else cell.hash
        path, record = self._steps_path(name), self.record(name)
        stored = load_steps(path)
        wanted = {key: record[key] for key in ("mechanism", "seed")} if record else {}
        if len(stored) != 1 or any(stored[0].conditions.get(key) != value for key, value in wanted.items()):
            raise InvalidInput(f"{path} must hold the steps of one run, {wanted}, got others; run the cell again.")
        return stored[0]

    def _steps_path(self, cell: str) -> Path:
        return self.folder / CELLS / f"{cell}{SUFFIX}"

    def failures(self) -> list[dict[str, Any]]:
        """Failed cells, in the order of the sweep: cell, mechanism, config, error, traceback."""
        every = (read_json(self.folder / FAILED / f"{name}.json") for name in self.status().failed)
        return [failure for failure in every if failure is not None]

    def status(self) -> Status:
        kinds: dict[str, list[str]] = {"finished": [], "failed": [], "missing": []}
        for name in self.hashes:
            failed = (self.folder / FAILED / f"{name}.json").is_file()
            kinds["finished" if self.is_finished(name) else "failed" if failed else "missing"].append(name)
        return Status(**{kind: tuple(names) for kind, names in kinds.items()})

    def timings(self) -> list[dict[str, Any]]:
        """Seconds and hosts, a line for each run of a cell; a damaged line, as a kill leaves one, is left out."""
        try:
            lines = (self.folder / TIMINGS).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        return [timing for timing in map(_parsed, lines) if timing is not None]

    def require_places(self, cells: Iterable[Cell]) -> None:
        """Refuses folders that stand where the records of cells belong, before files of an earlier run are removed."""
        for cell in cells:
            if (place := self.folder / CELLS / f"{cell.hash}.json").is_dir():
                raise InvalidInput(f"cannot write {place}: Is a directory; choose a folder that can be written.")

    def begin(self, cells: Sequence[Cell], header: dict[str, Any] | None = None) -> None:
        """Writes sweep.json: with `header` the sweep is these cells, and without they come after those it has."""
        hashes = [cell.hash for cell in cells]
        if header is None:
            header = self.sweep()
            hashes = [*header["cells"], *hashes]
        content = {**header, "cells": list(dict.fromkeys(hashes)), "versions": versions()}
        if content != read_json(self.folder / SWEEP):
            files.atomic_write_json(self.folder / SWEEP, content)
        for path in self.folder.glob("**/.*.tmp"):  # what killed runs left: a folder is written by one at a time
            path.unlink(missing_ok=True)

    def add(self, cell: str, record: dict[str, Any], steps: RunSteps) -> None:
        save_steps(self._steps_path(cell), [steps])
        files.atomic_write_json(self.folder / CELLS / f"{cell}.json", record)
        (self.folder / FAILED / f"{cell}.json").unlink(missing_ok=True)

    def discard(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            (self.folder / CELLS / f"{cell.hash}.json").unlink(missing_ok=True)

    def add_failure(self, cell: str, failure: dict[str, Any]) -> None:
        files.atomic_write_json(self.folder / FAILED / f"{cell}.json", failure)

    def add_timing(self, timing: dict[str, Any]) -> None:
        path = self.folder / TIMINGS
        try:
            torn = path.exists() and not path.read_bytes().endswith(b"\n")
            with path.open("a", encoding="utf-8") as file:
                file.write("\n" * torn + json.dumps(timing, sort_keys=True) + "\n")
        except OSError as error:
            raise InvalidInput(f"cannot write {path}: {error.strerror}; remove it, or choose another folder.") from None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def rows(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records grouped over seeds: one row for equal options but for the seed, in the order of the first ones.

    Each row has the columns of "rows"; `seeds`; of every value that begins with final_ its `_mean`, `_std` and `_count`
    over the seeds that did not diverge; `diverged`, a count. Means of nothing are None; the deviation of one seed is 0.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        options = {name: value for name, value in record["config"].items() if name != "first_seed"}
        groups.setdefault(json.dumps(options, sort_keys=True), []).append(record)
    table = []
    for group in groups.values():
        finals = dict.fromkeys(name for record in group for name in record if name.startswith("final_"))
        same = {name: group[0].get(name) for name in names("rows")}
        table.append(same | aggregated(group, ("seed", "diverged", *finals)))
    return table


def answer(store: Store) -> dict[str, Any]:
    status = store.status()
    failures = [{name: failure[name] for name in ("cell", "mechanism", "error")} for failure in store.failures()]
    return {
        "out": str(store.folder),
        "total": status.total,
        **{name: len(getattr(status, name)) for name in ("finished", "failed", "missing")},
        "chosen": store.sweep().get("chosen"),
        "converted": store.sweep().get("converted", []),  # under balls-in-bins there is no mu
        "failures": failures,
        "rows": rows(store.records()),
    }


RUNS = "runs"
COMPARISON_FILES = RESULTS, STEPS, PNG, SVG = ("results.json", "steps.mfdl", "compare.png", "compare.svg")


def finished_sweep(config: SweepConfig, folder: Path) -> dict[str, Any] | None:
    """The answer of a sweep of these options whose cells are all finished, else None."""
    store = Store(folder)
    header, options = store.sweep(), config.options()
    if header["cells"] and _is_same(header, options) and (config.tuning is None or header.get("chosen")):
        result = answer(store)
        return result if result["finished"] == result["total"] else None
    return None


def finished_comparison(config: Experiment, folder: Path) -> dict[str, Any] | None:
    """results.json of a comparison of these options, if it is complete and its files exist."""
    result = read_json(folder / RESULTS)
    if result and result.get("complete") is True and _is_same(result, {**config.options(), "out": str(folder)}):
        columns = set(names(level="mechanism"))  # a folder of another state of this version may lack one
        whole = all(columns <= row.keys() for row in result["mechanisms"])
        return result if whole and all((folder / name).is_file() for name in COMPARISON_FILES) else None
    return None


def _is_same(stored: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    same = stored.get("config") == json.loads(json.dumps(options)) and stored.get("versions") == versions()
    inputs = (text for name, value in options.items() if name not in ("out", "data_home") for text in _texts(value))
    return same and not any(map(_may_name_a_file, inputs))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _may_name_a_file(text: str) -> bool:
    return any(mark in text for mark in ("/", "\\", "file:")) or any(map(os.path.exists, re.split("[:,@=]", text)))
