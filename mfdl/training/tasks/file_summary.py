"""What a data file holds and what a task reads of it, before anything is trained.

In: the text of a task, perhaps a graph. Out: a `FileSummary`: columns, their kinds and roles, the target, the records
of each node. What is refused is a part of it, beside all that could be read.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidInput
from ._task import Task
from .data_table import DataTable
from .file_tasks import FileText, file_options, table_options, task_of_records
from .table_files import read_table
from .table_records import TableOptions, TableRecords, kind_of_task, roles, table_records, test_table

OF_THE_MODEL = ("partition", "model", "hidden")


@dataclasses.dataclass(frozen=True)
class ColumnSummary:
    """A column. Attributes: role: "target", "feature", "node" or "unused"; empty if the target is not known."""

    name: str
    kind: str
    role: str
    missing: int


@dataclasses.dataclass(frozen=True)
class FileSummary:
    """What a task text names.

    Attributes:
        format: of the file; empty for a task that is no data file.
        rows: of the file, test records of another file excluded.
        kind: of the task; None if it is not certain.
        classes: labels in the order of their numbers.
        features: of a record.
        records_of_nodes: the fewest and the most train records of a node; None without a graph or a column of nodes.
        task, content_hash: of the task on a graph; None without a graph.
        refused: why there is no task; None if there is one.
    """

    path: str
    format: str = ""
    rows: int | None = None
    columns: tuple[ColumnSummary, ...] = ()
    target: str | None = None
    kind: str | None = None
    classes: tuple[str, ...] = ()
    features: int | None = None
    train_records: int | None = None
    test_records: int | None = None
    nodes: int | None = None
    records_of_nodes: tuple[int, int] | None = None
    task: str | None = None
    content_hash: str | None = None
    refused: str | None = None


def summary_of_task(text: str, task: Task) -> FileSummary:
    """A summary of any task: its records and nodes, in the runs of seed 0."""
    return dataclasses.replace(_with_task(FileSummary(text), task), features=int(np.prod(task.features.shape[1:])))


def summary_of_file(text: FileText, graph: Any = None) -> FileSummary:
    """A summary of a data file.

    Args: graph: None, or a graph on whose nodes the task is made.
    Raises: InvalidInput: a file that cannot be read, an unknown option.
    """
    arguments = file_options(text)
    of_the_model = {name: arguments.pop(name) for name in OF_THE_MODEL if name in arguments}
    options = table_options(model=of_the_model.get("model", "linear"), **arguments)
    table = read_table(Path(text.path))
    summary = FileSummary(text.path, table.format, table.num_rows, _columns(table, options))
    try:
        chosen = roles(table, options)
        summary = dataclasses.replace(summary, target=chosen.target.name, features=len(chosen.features))
        summary = dataclasses.replace(summary, kind=kind_of_task(chosen.target, options, table.where))
        records = table_records(table, options, test_table(table, options))
        summary = _with_records(summary, records)
        if graph is not None:
            summary = _with_task(summary, task_of_records(records, graph, **of_the_model))
    except InvalidInput as error:
        return dataclasses.replace(summary, refused=str(error))
    return summary


def _columns(table: DataTable, options: TableOptions) -> tuple[ColumnSummary, ...]:
    role_of: dict[int, str] = {}
    try:
        chosen = roles(table, options)
        role_of = {id(column): "feature" for column in chosen.features} | {id(chosen.target): "target"}
        role_of |= {} if chosen.node is None else {id(chosen.node): "node"}
    except InvalidInput:  # which the summary states
        chosen = None
    sides = [column for column in (table.target, table.node) if column is not None]
    return tuple(
        ColumnSummary(
            column.name, column.kind, role_of.get(id(column), "unused") if chosen else "", int(column.missing.sum())
        )
        for column in (*table.columns, *sides)
    )


def _with_records(summary: FileSummary, records: TableRecords) -> FileSummary:
    per_node: Sequence[int] = [] if records.node_labels is None else [*Counter(records.node_labels).values()]
    return dataclasses.replace(
        summary,
        classes=records.classes,
        train_records=len(records.targets),
        test_records=len(records.test_targets),
        nodes=len(per_node) or None,
        records_of_nodes=(min(per_node), max(per_node)) if per_node else None,
    )


def _with_task(summary: FileSummary, task: Task) -> FileSummary:
    counts = np.bincount(task.owners(seed=0), minlength=task.num_nodes)
    return dataclasses.replace(
        summary,
        kind=task.kind,
        train_records=len(task.targets),
        test_records=len(task.test_targets),
        nodes=task.num_nodes,
        records_of_nodes=(int(counts.min()), int(counts.max())),
        task=task.name,
        content_hash=task.content_hash,
    )
