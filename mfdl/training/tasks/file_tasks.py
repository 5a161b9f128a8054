"""Tasks of a user's file: data, `PATH:target=COLUMN,...` or `from_file`, and code, `FILE.py:FUNCTION,key=value,...`.

The task of a data file depends on its content, not on its name. `FileSummary` describes it before training, with the
reason if it is refused. A Python file is run, with its folder on the import path: trust it like any program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ... import check, graphs
from ...errors import InvalidInput, did_you_mean, require_known
from ...spec import Entry, setting
from . import partition as partitions
from ._data_sets import _squared_error, linear_from_zero, relu_network
from ._task import Task, from_module, node_count
from .table_files import OTHER_FORMATS, READERS, DataTable, format_suffix, read_table, unknown_format
from .table_records import (
    TableOptions,
    TableRecords,
    TableRoles,
    kind_of_task,
    read_records,
    roles,
    table_records,
    test_table,
)

# `logistic` is `linear` with cross entropy, and says that the target holds classes
MODELS = {"regression": ("linear", "mlp"), "classification": ("linear", "logistic", "mlp")}
LISTS = ("classes", "features", "drop", "ranges")  # options whose values may be followed by others: drop=id,name
SCALING = ("standardise", "standardize", "normalise", "normalize", "scale", "scaling")
_FILE = re.compile(
    rf"(?P<path>.+?(?:{'|'.join(map(re.escape, READERS))})(?:\.gz)?)(?::(?P<options>.*))?", re.IGNORECASE | re.DOTALL
)


class FileText(NamedTuple):
    """A text that names a data file, in its parts."""

    path: str
    settings: tuple[tuple[str, str], ...]


def parse_file_text(text: str) -> FileText | None:
    """The parts of `PATH:key=value,...`; None for a text that begins with no data file.

    Raises: InvalidInput: a file of another format, a value without a key.

    >>> parse_file_text("own.csv:target=price,drop=id,name")
    FileText(path='own.csv', settings=(('target', 'price'), ('drop', 'id,name')))
    >>> parse_file_text("digits:model=mlp") is None
    True
    """
    text = text.strip()
    match = _FILE.fullmatch(text)
    if match is None:
        path = Path(text.partition(":")[0])
        known = path.suffix.lower() in OTHER_FORMATS or "/" in str(path) or os.sep in str(path)
        if known or (path.suffix and path.is_file()):
            raise unknown_format(path)
        return None
    settings: list[tuple[str, str]] = []
    for piece in (match["options"] or "").split(",") if match["options"] else []:
        key, value = setting(piece)
        if key is not None:
            settings.append((key, value))
        elif settings and settings[-1][0] in LISTS and value:
            settings[-1] = (settings[-1][0], f"{settings[-1][1]},{value}")
        else:
            raise InvalidInput(
                f"data file {match['path']}: options are written key=value, got {piece.strip()!r}; e.g. "
                f"{match['path']}:target=COLUMN,drop=COLUMN,COLUMN."
            )
    return FileText(match["path"], tuple(settings))


def from_file(
    path: str | os.PathLike[str],
    graph: Any,
    *,
    target: str | None = None,
    kind: str | None = None,
    classes: str | Iterable[Any] | None = None,
    features: str | Iterable[str] | None = None,
    drop: str | Iterable[str] = (),
    node: str | None = None,
    partition: partitions.Partition | str | None = None,
    test: str | os.PathLike[str] | None = None,
    test_fraction: float | None = None,
    model: str | Callable[[], torch.nn.Module] = "linear",
    hidden: int | None = None,
    ranges: str | Mapping[str, tuple[float, float]] | None = None,
) -> Task:
    """The task of a data file: CSV, TSV (also gzip), Parquet, LIBSVM or a NumPy archive, by the suffix of its name.

    Features must be numbers; nothing is standardised, because moments of private records are not public. The text
    "own.csv:target=price,drop=id,name" of `load` has the same options.

    Args:
        path: ends in .csv, .tsv, .parquet, .libsvm, .svm or .npz. CSV and TSV begin with names of columns. LIBSVM files
            hold `label index:value ...`, archives the arrays X and y, perhaps X_test and y_test, and node.
        graph: a networkx graph, the name of one, or the number of nodes.
        target: the column that is predicted; LIBSVM files and archives have a place for it.
        kind: "regression" (squared error) or "classification" (cross entropy); needed where the target holds integers.
        classes: all labels in the order of their numbers, "no,yes", or a number C for 0, ..., C - 1. Default: those
            that occur, which is a fact about the records that no guarantee covers.
        features: the only columns that are features; default all but target and node. drop: columns that are left out.
        node: the column that names the node of each record, by its label in the graph.
        partition: of the train records if no column says so, see `partition.parse`; default "uniform".
        test: a file of test records with the same columns, in any order.
        test_fraction: share of the records held back if there are no test records, default 0.2, the same ones in all
            runs; with a node column, of each node.
        model: "linear" from zero, with bias; "logistic" is the same for classification; "mlp" has one hidden layer of
            `hidden` units (64) with ReLU and torch's random start; or a function that returns a new module.
        ranges: public low and high of features, and of the target of a regression, by name, "age:0:120,income:0:1e6",
            or a file of columns column, low, high; "*" stands for all other features. Values are clipped to the range
            and mapped to [0, 1]. A range that was read off the private records is not public.
    Returns: a task named by its target and model; its content hash does not depend on the path.
    Raises: MissingExtra: a Parquet file, and pyarrow is not installed.
    """
    text = check.path(path=path)
    if (parts := _FILE.fullmatch(str(text))) is not None and parts["options"] is not None:
        raise InvalidInput(
            f"path must be a path alone, got {str(text)!r}; give {parts['options']!r} as keywords, or the text to "
            "mfdl.tasks.load."
        )
    options = TableOptions(target, kind, classes, features, drop, node, test, test_fraction, ranges, model)
    return task_of_records(read_records(text, options), graph, partition, model, hidden)


def file_options(text: FileText, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The options of a text as arguments of `from_file`.

    Raises: InvalidInput: an unknown option, one given twice, a value of another type.
    """
    for key in (key for key, _ in text.settings if key in SCALING):
        raise InvalidInput(
            f"data file {text.path}: {key} is refused, as the mean and standard deviation of private records are not "
            "public; give public ranges, ranges=COLUMN:LOW:HIGH,..., or scale by public numbers before."
        )
    has_target = format_suffix(Path(text.path)) in (".libsvm", ".svm", ".npz")
    example = f"{text.path}:{'kind=classification' if has_target else 'target=COLUMN'}"
    entry = Entry("data file", text.path, from_file, example, supplied=("path", "graph"))
    return entry.arguments(text.settings, given)


def task_of_records(
    records: TableRecords,
    graph: Any,
    partition: partitions.Partition | str | None = None,
    model: str | Callable[[], torch.nn.Module] = "linear",
    hidden: int | None = None,
) -> Task:
    if records.node_labels is not None:
        if partition is not None:
            raise InvalidInput("partition must be left out where a column names the node of each record; or drop node.")
        partition = partitions.Fixed(_owners(records.node_labels, graph))
    public = records.classes_are_public or records.kind == "regression"
    word, build = _model(records, model, hidden)
    names = ("kind", "features", "targets", "test_features", "test_targets")
    same: dict[str, Any] = {name: getattr(records, name) for name in names}
    return from_module(
        f"{records.target}-{word}", graph, **same, build_module=build,
        loss=_squared_error if records.kind == "regression" else torch.nn.functional.cross_entropy,
        partition="uniform" if partition is None else partition,
        public_constants="none" if public else f"which classes occur in column {records.target!r}",
    )  # fmt: skip


def _model(
    records: TableRecords, model: str | Callable[[], torch.nn.Module], hidden: int | None
) -> tuple[str, Callable[[], torch.nn.Module]]:
    if hidden is not None and model != "mlp":
        raise InvalidInput(f"hidden is the layer of model='mlp', got hidden={hidden!r} with model={model!r}.")
    if callable(model):
        return getattr(model, "__name__", "own"), model
    require_known(f"model for {records.kind}", model, MODELS[records.kind])
    inputs, outputs = records.features[0].size, len(records.classes) or 1
    if model == "mlp":
        units = 64 if hidden is None else check.integer_at_least(1, hidden=hidden)
        build = functools.partial(relu_network, inputs, units, outputs)
    else:
        model, build = "linear", functools.partial(linear_from_zero, inputs, outputs)
    return model, build if records.features.ndim == 2 else functools.partial(flattening, build)


def flattening(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), build())


def _owners(node_labels: list[str], graph: Any) -> NDArray[np.int64]:
    """The node index of each train record, by the labels of a graph or the numbers of its nodes."""
    given = graphs.resolved_name(graph)
    has_labels = isinstance(given, graphs.SparseGraph) or graphs.is_networkx(given)
    nodes = graphs.labels(given) if has_labels else range(node_count(given))
    index = {str(label): at for at, label in enumerate(nodes)}
    for label in node_labels:
        if label not in index:
            some = ", ".join([*index][:12]) + (", ..." if len(index) > 12 else "")
            raise InvalidInput(
                f"node must be a node of the graph in every row, got {label!r}{did_you_mean(label, index)} "
                f"Nodes: {some}."
            )
    return np.array([index[label] for label in node_labels], dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class ColumnSummary:
    """A column, its role "target", "feature", "node" or "unused"; empty if the target is not known."""

    name: str
    kind: str
    role: str
    missing: int


@dataclasses.dataclass(frozen=True)
class FileSummary:
    """A data file or task of a text.

    Attributes:
        format, rows: of the file, without test records of another file; empty for a task that is no data file.
        kind: None if uncertain. classes: labels in the order of their numbers. features: of a record. records_of_nodes:
            the fewest and the most train records of a node; None without a graph or a column of nodes.
        task, content_hash: None without a graph. refused: why there is no task, or None.
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
    """The summary of any task, with the nodes of seed 0."""
    return FileSummary(text, features=int(np.prod(task.features.shape[1:])), **_task_facts(task))


def summary_of_file(text: FileText, graph: Any = None) -> FileSummary:
    """The summary of a data file, and with a graph of the task on it.

    Raises: InvalidInput: a file that cannot be read, an unknown option.
    """
    arguments = file_options(text)
    model_options = {name: arguments.pop(name) for name in ("partition", "model", "hidden") if name in arguments}
    options = TableOptions(model=model_options.get("model", "linear"), **arguments)
    table, chosen, facts = read_table(Path(text.path)), None, dict[str, Any]()
    try:
        chosen = roles(table, options)
        facts |= {"target": chosen.target.name, "features": len(chosen.features)}
        facts["kind"] = kind_of_task(chosen.target, options, table.where)
        records = table_records(table, options, test_table(table, options))
        per_node: Sequence[int] = [] if records.node_labels is None else [*Counter(records.node_labels).values()]
        facts |= {"classes": records.classes, "nodes": len(per_node) or None}
        facts |= {"train_records": len(records.targets), "test_records": len(records.test_targets)}
        facts["records_of_nodes"] = (min(per_node), max(per_node)) if per_node else None
        if graph is not None:
            facts |= _task_facts(task_of_records(records, graph, **model_options))
    except InvalidInput as error:
        facts["refused"] = str(error)
    return FileSummary(text.path, table.format, table.num_rows, _columns(table, chosen), **facts)


def _columns(table: DataTable, chosen: TableRoles | None) -> tuple[ColumnSummary, ...]:
    role_of: dict[int, str] = {}
    if chosen is not None:
        role_of = {id(column): "feature" for column in chosen.features} | {id(chosen.target): "target"}
        role_of |= {} if chosen.node is None else {id(chosen.node): "node"}
    other = "unused" if chosen else ""
    return tuple(
        ColumnSummary(column.name, column.kind, role_of.get(id(column), other), int(column.missing.sum()))
        for column in (*table.columns, table.target, table.node)
        if column is not None
    )


def _task_facts(task: Task) -> dict[str, Any]:
    counts = np.bincount(task.owners(seed=0), minlength=task.num_nodes)
    return {
        "kind": task.kind,
        "train_records": len(task.targets),
        "test_records": len(task.test_targets),
        "nodes": task.num_nodes,
        "records_of_nodes": (int(counts.min()), int(counts.max())),
        "task": task.name,
        "content_hash": task.content_hash,
    }


SUPPLIED = ("graph", "num_nodes", "graph_or_num_nodes", "data_home")
_PYTHON = re.compile(r"(?P<path>.+?\.py)(?::(?P<rest>.*))?", re.IGNORECASE | re.DOTALL)
_MODULE = "_mfdl_task_file"


class ModuleText(NamedTuple):
    """A text that names a function of a Python file, in its parts."""

    path: str
    function: str
    settings: tuple[tuple[str | None, str], ...]


def parse_module_text(text: str) -> ModuleText | None:
    """The parts of `FILE.py:FUNCTION,key=value,...`; None for a text that begins with no Python file.

    >>> parse_module_text("mytasks.py:make_task,width=8")
    ModuleText(path='mytasks.py', function='make_task', settings=(('width', '8'),))
    >>> parse_module_text("digits") is None
    True
    """
    match = _PYTHON.fullmatch(text.strip())
    if match is None:
        return None
    function, _, rest = (match["rest"] or "").partition(",")
    function = function.strip()
    if not function.isidentifier():
        raise InvalidInput(
            f"a task file is written {match['path']}:FUNCTION, with FUNCTION the name of a function that makes a task, "
            f"got {text.strip()!r}; e.g. mytasks.py:make_task."
        )
    return ModuleText(match["path"], function, tuple(map(setting, rest.split(","))) if rest.strip() else ())


def load_from_module(text: ModuleText, graph: Any, given: Mapping[str, Any], data_home: Any = None) -> Task:
    """The task that the function of a file makes.

    Args:
        graph: goes to a parameter `graph` (a networkx graph, or the number of nodes if only that is known) or to the
            first parameter; its number of nodes to a parameter `num_nodes`.
        given: parameters in Python, beside those of the text.
    Raises: InvalidInput: no such file or function, code that fails, a value that is no task, another number of nodes.
    """
    path, num_nodes = Path(text.path), node_count(graph)
    where, folder = f"{path.name}:{text.function}", str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        function = _function(_executed(path), text)
        arguments = _arguments(function, where, text, given)
        supplied = _supplied(function, where, graph, num_nodes, data_home)
        try:
            task = function(**supplied, **arguments)
        except InvalidInput:
            raise
        except Exception as error:
            raise InvalidInput(f"task file {where} fails: {_last_place(error, text.path)}.") from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    if not isinstance(task, Task):
        hint = "; end it with `return task`" if task is None else ""
        raise InvalidInput(
            f"task file {where} must return a Task, as mfdl.tasks.from_module gives, got {check.brief(task)}{hint}."
        )
    if task.num_nodes != num_nodes:
        raise InvalidInput(
            f"task file {where} must return a task on the {num_nodes} nodes of the graph, got {task.num_nodes}; pass "
            "the graph on to mfdl.tasks.from_module."
        )
    return task


def _executed(path: Path) -> ModuleType:
    """The module of a file.

    It leaves `sys.modules` after it ran: cloudpickle then sends its functions to other processes by their code.
    """
    if not path.is_file():
        near = [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise InvalidInput(f"task file {str(path)!r} does not exist{did_you_mean(path.name, near)}")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"task file {str(path)!r} is no Python file; give one that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses of the file look it up
    try:
        spec.loader.exec_module(module)
    except InvalidInput:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"task file {str(path)!r} fails when it is run: {_last_place(error, str(path))}.") from error
    finally:
        sys.modules.pop(_MODULE, None)
    return module


def _last_place(error: BaseException, path: str) -> str:
    name = os.path.basename(path)
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if os.path.basename(frame.filename) == name
    ]
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else next(reversed(lines), None)
    message = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{f' in line {line}' if line else ''}{message and f': {message}'}".rstrip(".")


def _function(module: ModuleType, text: ModuleText) -> Callable[..., Any]:
    functions = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == _MODULE
    ]
    function = getattr(module, text.function, None)
    if function is None:
        some = f" Functions: {', '.join(functions)}." if functions else " It has no function."
        raise InvalidInput(
            f"task file {text.path!r} has no function {text.function!r}{did_you_mean(text.function, functions)}{some}"
        )
    if not callable(function):
        raise InvalidInput(
            f"{text.function} of task file {text.path!r} must be a function of the graph, got {check.brief(function)}."
        )
    return cast("Callable[..., Any]", function)


def _supplied(function: Callable[..., Any], where: str, graph: Any, num_nodes: int, data_home: Any) -> dict[str, Any]:
    names = _parameters(function)
    given = graphs.resolved_name(graph)
    network = given.networkx() if isinstance(given, graphs.SparseGraph) else given
    known = {"graph": network, "graph_or_num_nodes": network, "num_nodes": num_nodes, "data_home": data_home}
    first = _first(names)
    if first is None:
        raise InvalidInput(f"task file {where} must take the graph, or its num_nodes; write def FUNCTION(graph): ...")
    return {name: known[name] for name in SUPPLIED if name in names} | {first: known.get(first, known["graph"])}


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # of code in C
        return {}


def _first(names: Mapping[str, inspect.Parameter]) -> str | None:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    usable = [name for name, parameter in names.items() if parameter.kind in kinds]
    by_name = [name for name in SUPPLIED[:3] if name in usable]
    return next(iter([*by_name, *usable]), None)


def _arguments(function: Callable[..., Any], where: str, text: ModuleText, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of the text and of Python; a text whose parameter has no type is read as a number if it is one."""
    names = _parameters(function)
    example = f"{text.path}:{text.function},KEY=VALUE"
    entry = Entry("task file", where, function, example, supplied=(*SUPPLIED, _first(names) or ""))
    variadic = {name for name, parameter in names.items() if parameter.kind.name.startswith("VAR")}
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in names.values())
    arguments = dict(given)
    entry.arguments((), {key: value for key, value in given.items() if key in entry.free or not takes_any})
    for key, value in text.settings:
        parameter = entry.free.get(key or "")
        if key is None:
            raise InvalidInput(f"task file {where}: parameters are written key=value, got {value!r}; e.g. {example}.")
        if key in arguments:
            raise InvalidInput(f"task file {where}: parameter {key!r} is given twice; give it once.")
        if parameter is None and not takes_any:
            entry.arguments((), {key: value})  # refuses it
        typed = parameter is not None and parameter.type is not None
        arguments[key] = parameter.read(value, f"task file {where}") if parameter and typed else _literal(value)
    required = {name for name, parameter in entry.free.items() if parameter.required}
    if missing := sorted(required - arguments.keys() - variadic):
        raise InvalidInput(f"task file {where} needs the parameter {missing[0]!r}; add {missing[0]}=VALUE.")
    return arguments


def _literal(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
