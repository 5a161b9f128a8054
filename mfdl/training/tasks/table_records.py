"""Records of a learning task from a table and the options of a user: target, features, and owners of rows.

Nothing is computed from the values of records but the set of classes where the user gives none. An uncertain kind of
task is refused, not guessed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import check
from ...errors import InvalidInput, did_you_mean, require_known
from ._task import Kind
from .partition import split_rows
from .table_files import DataTable, TableColumn, format_suffix, number_label, read_table, unknown_column

TEST_FRACTION = 0.2
MAX_CLASSES = 1000
EVERY_OTHER = "*"  # stands for all features without a range of their own
Ranges = Mapping[str, tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Options of `from_file` that decide the records, texts and lists of names as tuples; None is not given."""

    target: str | None = None
    kind: str | None = None
    classes: Any = None
    features: Any = None
    drop: Any = ()
    node: str | None = None
    test: Any = None
    test_fraction: float | None = None
    ranges: Any = None
    model: Any = "linear"

    def __post_init__(self) -> None:
        given: dict[str, Any] = {
            "kind": "classification" if self.model == "logistic" and self.kind is None else self.kind,
            "classes": _labels(self.classes),
            "features": _names("features", self.features),
            "drop": _names("drop", self.drop) or (),
            "test": None if self.test is None else str(check.path(test=self.test)),
            "ranges": _ranges(self.ranges),
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)
        if self.kind is not None:
            require_known("kind", self.kind, ("regression", "classification"))
        if self.features is not None and self.drop:
            raise InvalidInput("features and drop exclude each other: features are the only ones; leave out drop.")
        if self.test_fraction is not None:
            check.open_unit(test_fraction=self.test_fraction)
            if self.test is not None:
                raise InvalidInput("test and test_fraction exclude each other; a test file is taken whole.")
        if self.classes is not None:
            if self.kind == "regression":
                raise InvalidInput("classes are for kind='classification', got kind='regression'; leave one out.")
            if len(set(self.classes)) < max(2, len(self.classes)):
                raise InvalidInput(f"classes must be two or more different labels, got {', '.join(self.classes)!r}.")


def _names(option: str, given: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = given.split(",") if isinstance(given, str) else check.texts(**{option: given})
    return tuple(name.strip() for name in names)


def _labels(given: str | Iterable[Any] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    labels = given.split(",") if isinstance(given, str) else check.listed("labels", classes=given)
    labels = [str(label).strip() for label in labels]
    if len(labels) == 1 and re.fullmatch("[1-9][0-9]{0,3}", labels[0]):
        labels = [str(number) for number in range(int(labels[0]))]
    return tuple(labels)


def _ranges(given: str | Mapping[str, tuple[float, float]] | None) -> Ranges:
    if given is None:
        return {}
    if isinstance(given, str) and format_suffix(Path(given)) is not None:
        table = read_table(Path(given))
        columns = [table.column(name, "ranges") for name in ("column", "low", "high")]
        names, (low, high) = columns[0].labels(), (column.numbers(table.where) for column in columns[1:])
        pairs: Iterable[tuple[str, Any]] = zip(names, zip(low.tolist(), high.tolist(), strict=True), strict=True)
    elif isinstance(given, str):
        parts = [piece.strip().rsplit(":", 2) for piece in given.split(",")]
        pairs = [(part[0], part[1:]) for part in parts]
    else:
        pairs = check.mapping("columns and their ranges (low, high)", ranges=given).items()
    ranges: dict[str, tuple[float, float]] = {}
    for name, limits in pairs:
        if name in ranges:
            raise InvalidInput(f"ranges must give each column once, got {name!r} twice.")
        ranges[name] = _limits(name, limits)
    return ranges


def _limits(name: str, limits: Any) -> tuple[float, float]:
    try:
        low, high = map(float, limits)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"ranges must be two numbers for each column, as in {name}:0:1 or {{{name!r}: (0, 1)}}, got "
            f"{check.brief(limits)} for {name!r}; {EVERY_OTHER}:LOW:HIGH is for all features without one, and a file "
            "of ranges has the columns column, low, high."
        ) from None
    return low, high


@dataclasses.dataclass(frozen=True, eq=False)
class TableRoles:
    """The columns of a table by role; unused: names of those left out."""

    target: TableColumn
    features: tuple[TableColumn, ...]
    node: TableColumn | None
    unused: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class TableRecords:
    """Records of a task.

    Attributes: classes: labels in the order of their numbers, empty for regression; classes_are_public: they were
        given, not read from the records; node_labels: of each train record, None if the file does not say.
    """

    kind: Kind
    target: str
    classes: tuple[str, ...]
    classes_are_public: bool
    features: NDArray[np.float32]
    targets: NDArray[Any]
    test_features: NDArray[np.float32]
    test_targets: NDArray[Any]
    node_labels: list[str] | None


def roles(table: DataTable, options: TableOptions) -> TableRoles:
    """The columns that options name.

    Raises: InvalidInput: a column that does not exist or has two roles, no target, no feature left.
    """
    target = _side("target", options.target, table, table.target)
    if target is None:
        some = ", ".join(column.name for column in table.columns[:12]) + (", ..." if len(table.columns) > 12 else "")
        raise InvalidInput(
            f"target must be the column that is predicted; {table.where} has the columns {some}, e.g. "
            f"target={table.columns[-1].name}."
        )
    node = _side("node", options.node, table, table.node)
    taken = {column.name for column in (target, node) if column is not None} if table.target is None else set()
    if node is not None and node is target:
        raise InvalidInput(f"target and node must be different columns, got {target.name!r} for both.")
    for option, names in (("features", options.features or ()), ("drop", options.drop)):
        if names and table.record_shape is not None:
            raise InvalidInput(
                f"{option} is for records that are vectors, got shape {table.record_shape} in {table.where}; "
                "leave it out."
            )
        for name in names:
            table.column(name, option)
            if name in taken:
                raise InvalidInput(f"{option} must not name the target or the node, got {name!r}; leave it out.")
    chosen = options.features or [name for name in table.by_name if name not in taken and name not in options.drop]
    if not chosen:
        raise InvalidInput(f"{table.where} must have a feature besides {', '.join(sorted(taken))}; drop fewer columns.")
    unused = tuple(name for name in table.by_name if name not in taken and name not in chosen)
    return TableRoles(target, tuple(table.by_name[name] for name in dict.fromkeys(chosen)), node, unused)


def _side(option: str, name: str | None, table: DataTable, fixed: TableColumn | None) -> TableColumn | None:
    if table.target is None:
        return None if name is None else table.column(name, option)
    if name is not None and (fixed is None or name != fixed.name):
        places = "the label of each line" if table.format == "LIBSVM" else "the arrays y and node"
        raise InvalidInput(f"{option} is not chosen in {table.format} files, which have {places}, got {name!r}.")
    return fixed


def kind_of_task(target: TableColumn, options: TableOptions, where: str) -> Kind:
    """The kind that options or the target decide; integers do not.

    Raises: InvalidInput: integers without a kind; a kind that does not fit the target.
    """
    kind = "classification" if options.kind is None and options.classes is not None else options.kind
    words = target.kind in ("words", "true or false")
    if target.foreign or (kind is None and target.has_decimal_commas):
        target.numbers(where)
    if kind is None:
        if target.kind == "integers":
            raise InvalidInput(
                f"kind must be given for target {target.name!r} of {where}, whose integers may be amounts or classes; "
                "say kind=regression or kind=classification."
            )
        return "classification" if words else "regression"
    if kind == "regression" and target.kind == "words":
        target.numbers(where)
    if kind == "classification" and target.kind == "numbers":
        values = target.numbers(where)
        row = int(np.argmax(values != np.rint(values)))  # exact: booleans
        raise InvalidInput(
            f"target {target.name!r} of {where} must hold classes for kind=classification, got {values[row]} in row "
            f"{row + 1}; use kind=regression, or write classes as words or integers."
        )
    return "classification" if kind == "classification" else "regression"


def read_records(path: Path, options: TableOptions) -> TableRecords:
    """The records of a file, and of its test file if there is one.

    Raises: as `read_table` and `roles`; InvalidInput: values that are missing or no numbers, one class only, a test
        file with other columns, too few records to hold some back.
    """
    table = read_table(path)
    return table_records(table, options, test_table(table, options))


def table_records(table: DataTable, options: TableOptions, test: DataTable | None) -> TableRecords:
    if test is not None and options.test_fraction is not None:
        raise InvalidInput(f"test_fraction must be left out, as {table.where} has test records of its own.")
    chosen = roles(table, options)
    kind = kind_of_task(chosen.target, options, table.where)
    pairs = [(table, chosen)]
    if test is not None:
        table, test = _same_features(table, test)
        chosen = roles(table, options)
        pairs = [(table, chosen), (test, _test_roles(test, chosen, options))]
    ranges = _checked_ranges(options.ranges, chosen, kind)
    classes = _classes(kind, options, pairs)
    features = [_features(part, columns.features, ranges) for part, columns in pairs]
    targets = [_targets(part, columns.target, classes, ranges) for part, columns in pairs]
    labels = None
    if chosen.node is not None:
        chosen.node.require_complete(table.where)
        labels = chosen.node.labels()
    if test is None:
        fraction = TEST_FRACTION if options.test_fraction is None else options.test_fraction
        train, held_back = _split(table, labels, fraction)
        features, targets = ([both[0][train], both[0][held_back]] for both in (features, targets))
        labels = None if labels is None else [labels[row] for row in train]
    if kind == "classification" and len(present := np.unique(targets[0])) < 2:
        raise InvalidInput(
            f"target {chosen.target.name!r} of {table.where} must have two or more classes among the train records"
            f", got {classes[int(present[0])]!r} alone; add records of another class."
        )
    target, public = chosen.target.name, options.classes is not None
    return TableRecords(kind, target, classes, public, features[0], targets[0], features[1], targets[1], labels)


def test_table(table: DataTable, options: TableOptions) -> DataTable | None:
    if options.test is None:
        return table.test
    if table.test is not None:
        raise InvalidInput(f"test must be left out, as {table.where} holds X_test and y_test, got {options.test!r}.")
    path = Path(options.test)
    test = read_table(path)
    if (test.target is None) != (table.target is None) or test.record_shape != table.record_shape:
        raise InvalidInput(
            f"test must be a file like {table.where} ({table.format}), got {test.where} ({test.format} by its suffix "
            f"{format_suffix(path)}); write both in one format."
        )
    return test


def _same_features(table: DataTable, test: DataTable) -> tuple[DataTable, DataTable]:
    """Both tables; LIBSVM files leave out zeros, and get the features of both."""
    if not (table.format == test.format == "LIBSVM"):
        return table, test
    indices = sorted({*table.by_name, *test.by_name}, key=int)  # exact: integers

    def padded(part: DataTable) -> DataTable:
        zeros = np.zeros(part.num_rows)
        columns = tuple(part.by_name.get(index) or TableColumn(index, zeros) for index in indices)
        return dataclasses.replace(part, columns=columns)

    return padded(table), padded(test)


def _test_roles(test: DataTable, train: TableRoles, options: TableOptions) -> TableRoles:
    names = [column.name for column in train.features]
    needed = names if test.target is not None else [*names, train.target.name]
    for name in needed:
        if name not in test.by_name:
            raise unknown_column(test.where, name, "test", [*test.by_name])
    known = {*needed, *train.unused, *options.drop, *([] if train.node is None else [train.node.name])}
    extra = next((name for name in test.by_name if name not in known), None)
    if extra is not None and options.features is None:
        raise InvalidInput(
            f"test file {test.where} must have the columns of the train file, got {extra!r} besides"
            f"{did_you_mean(extra, names)} Drop it there, or list the features."
        )
    target = test.target if test.target is not None else test.by_name[train.target.name]
    return TableRoles(target, tuple(test.by_name[name] for name in names), None, ())


def _checked_ranges(ranges: Ranges, chosen: TableRoles, kind: Kind) -> Ranges:
    features = [column.name for column in chosen.features]
    known = [*features, *([chosen.target.name] if kind == "regression" else [])]
    for name, (low, high) in ranges.items():
        if name != EVERY_OTHER and name not in known:
            raise InvalidInput(
                f"ranges must be of features{' or the target' if kind == 'regression' else ''}, got "
                f"{name!r}{did_you_mean(name, known)}"
            )
        if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)):
            raise InvalidInput(f"the range of {name!r} must be two numbers, low < high, got {low} and {high}.")
    rest = dict.fromkeys(features, ranges[EVERY_OTHER]) if EVERY_OTHER in ranges else {}
    return rest | {name: limits for name, limits in ranges.items() if name != EVERY_OTHER}


def _scaled(values: NDArray[np.float64], limits: tuple[float, float] | None) -> NDArray[np.float64]:
    """Values clipped to a public range and mapped to [0, 1]; without one as they are."""
    if limits is None:
        return values
    low, high = limits
    return (np.clip(values, low, high) - low) / (high - low)


def _features(table: DataTable, columns: Sequence[TableColumn], ranges: Ranges) -> NDArray[np.float32]:
    features = np.empty((table.num_rows, len(columns)), dtype=np.float32)
    for at, column in enumerate(columns):
        values = _scaled(column.numbers(table.where), ranges.get(column.name))
        features[:, at] = _in_float32(values, column.name, table.where)
    return features if table.record_shape is None else features.reshape(-1, *table.record_shape)


def _in_float32(values: NDArray[np.float64], name: str, where: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if not np.isfinite(single).all():
        row = int(np.argmin(np.isfinite(single)))  # exact: booleans
        raise InvalidInput(
            f"column {name!r} of {where} must be finite in float32, got {values[row]} in row {row + 1}; rescale it by "
            f"ranges={name}:LOW:HIGH."
        )
    return single


def _targets(table: DataTable, column: TableColumn, classes: tuple[str, ...], ranges: Ranges) -> NDArray[Any]:
    if not classes:
        values = _scaled(column.numbers(table.where), ranges.get(column.name))
        return _in_float32(values, column.name, table.where)
    number, labels = {label: at for at, label in enumerate(classes)}, column.labels()
    for row, label in enumerate(labels):
        if label not in number:
            some = ", ".join(classes[:12]) + (", ..." if len(classes) > 12 else "")
            raise InvalidInput(
                f"target {column.name!r} of {table.where} must be one of the classes {some}, got {label!r} in row "
                f"{row + 1}{did_you_mean(label, classes)}"
            )
    return np.array([number[label] for label in labels], dtype=np.int64)


def _classes(kind: Kind, options: TableOptions, pairs: Sequence[tuple[DataTable, TableRoles]]) -> tuple[str, ...]:
    """Labels in the order of their numbers: as given, else those of all records."""
    if kind == "regression":
        return ()
    if options.classes is not None:
        kinds = {columns.target.kind for _, columns in pairs}
        spelling = _as_number if kinds <= {"integers", "empty"} else str.lower if kinds == {"true or false"} else str
        given = tuple(map(spelling, options.classes))
        for part, columns in pairs:
            columns.target.require_complete(part.where, given)
        return given
    first, target = pairs[0][0], pairs[0][1].target  # a label that occurs in a test file alone is refused
    target.require_complete(first.where)
    labels = set(target.labels())
    if len(labels) > MAX_CLASSES or len(labels) == first.num_rows > 2:
        raise InvalidInput(
            f"target {target.name!r} of {first.where} must hold classes that recur, got {len(labels)} different values "
            f"in {first.num_rows} rows; choose another target, use kind=regression for numbers, or list classes=."
        )
    integers = all(label.removeprefix("-").isdigit() for label in labels)
    return tuple(sorted(labels, key=int) if integers else sorted(labels))  # exact: integers


def _as_number(label: str) -> str:
    try:
        return number_label(float(label))
    except ValueError:
        return label


def _split(table: DataTable, labels: list[str] | None, fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows held back: of all, or of each node with two records or more."""
    if labels is None:
        train, test = split_rows(table.num_rows, fraction)
    else:
        _, owner = np.unique(labels, return_inverse=True)
        order, counts = np.argsort(owner, kind="stable"), np.bincount(owner)  # exact: integers
        parts = np.split(order, np.cumsum(counts)[:-1])
        cuts = [split_rows(len(rows), fraction) if len(rows) > 1 else (np.arange(1), np.arange(0)) for rows in parts]
        train, test = (
            np.concatenate([rows[cut[side]] for rows, cut in zip(parts, cuts, strict=True)]) for side in (0, 1)
        )
    if not len(train) or not len(test):
        raise InvalidInput(
            f"{table.where} must have records for training and for testing, got {table.num_rows} with test_fraction="
            f"{fraction}; add records, or give a test file, test=FILE."
        )
    return train, test
