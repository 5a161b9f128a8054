"""The folder of a sweep, or `runs/` of a comparison: two files a cell, whole and always the same bytes.

    sweep.json              the config of the sweep, the cells in order, the versions
    cells/HASH.json         one finished cell, written last
    cells/HASH.mfdl         its evaluated steps, node by node
    failed/HASH.json        a cell that failed: its error in words and the traceback; the next call tries it again
    factorizations/         solved problems by their content
    timings.jsonl           seconds of every cell, and its host: the only file that differs from one run to the next

`finished_sweep` and `finished_comparison` tell whether an earlier call finished everything, without loading graph, data
or torch. They return None where cells must be checked by their content: other options or versions, missing files, or an
option that names a file, which may differ.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .. import check, files
from ..archive import SUFFIX
from ..errors import InvalidInput
from . import columns
from .columns import RunSteps, load_steps, names, save_steps
from .output import require_folder, versions

if TYPE_CHECKING:
    from .cells import Cell
    from .experiment import Experiment
    from .sweep_config import SweepConfig


SWEEP, CELLS, FAILED, FACTORIZATIONS, TIMINGS = "sweep.json", "cells", "failed", "factorizations", "timings.jsonl"
NOT_PRIVATE = ("final_", "last_", "diverged", "dropped_records", "loss", "accuracy")
"""Prefixes of the names of values that no guarantee covers."""


@dataclasses.dataclass(frozen=True)
class Status:
    """Hashes of the finished, failed and missing cells of a sweep, in its order."""

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

    # ---- reading ---------------------------------------------------------------------------------------------------

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
        """Whether a cell, or that of a hash, needs no run."""
        return self.record(cell) is not None

    def record(self, cell: str | Cell) -> dict[str, Any] | None:
        """The record of a finished cell; None while it is not finished, or if its file is damaged."""
        name = cell if isinstance(cell, str) else cell.hash
        record = read_json(self.folder / CELLS / f"{name}.json")
        return record if columns.is_of_run(record) and self._steps_path(name).is_file() else None

    def records(self) -> list[dict[str, Any]]:
        """Records of the finished cells, in the order of the sweep."""
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
        """Seconds and hosts, a line for each run of a cell; a line that a kill cut short is left out."""
        try:
            lines = (self.folder / TIMINGS).read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        return [timing for timing in map(_parsed, lines) if timing is not None]

    # ---- writing ---------------------------------------------------------------------------------------------------

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
        """Stores a finished cell."""
        save_steps(self._steps_path(cell), [steps])
        files.atomic_write_json(self.folder / CELLS / f"{cell}.json", record)
        (self.folder / FAILED / f"{cell}.json").unlink(missing_ok=True)

    def discard(self, cells: Iterable[Cell]) -> None:
        """Marks cells as not finished."""
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
    """The object in a file; None if it cannot be read."""
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def rows(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records grouped over seeds: one row for equal options but for the seed, in the order of the first ones.

    Each row has the columns of "rows"; `seeds`; of every value that begins with final_ its `_mean` and `_std` over the
    seeds that did not diverge and their `_count`; `diverged`, a count. Means of nothing are None; the deviation of one
    seed is 0.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        options = {name: value for name, value in record["config"].items() if name != "first_seed"}
        groups.setdefault(json.dumps(options, sort_keys=True), []).append(record)
    table = []
    for group in groups.values():
        finals = dict.fromkeys(name for record in group for name in record if name.startswith("final_"))
        same = {name: group[0].get(name) for name in columns.names("rows")}
        table.append(same | columns.aggregated(group, ("seed", "diverged", *finals)))
    return table


def answer(store: Store) -> dict[str, Any]:
    """Progress and results of a sweep: JSON-ready."""
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
    """Whether the stored content is of these options and versions."""
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
