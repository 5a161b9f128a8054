"""Data files of users as tables: CSV and TSV, Parquet, LIBSVM and NumPy archives, recognised by their suffix.

Cells become finite float64 numbers, or labels in one spelling for all formats: "1", "1.0" and the integer 1 are the
label "1". A value that is missing or of another kind, and a damaged file, is refused, never replaced.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import gzip
import importlib
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import errors
from ...errors import InvalidInput, did_you_mean

MISSING = frozenset({"", "na", "n/a", "nan", "null", "<na>", "?"})  # texts that stand for no value, in lower case
TRUTH = {"true": 1.0, "false": 0.0}


@dataclasses.dataclass(frozen=True, eq=False)
class TableColumn:
    """A column of a table.

    Attributes: cells: texts (dtype object, without blanks around them), or numbers, shape (rows,); foreign: the file's
        word for a type that holds neither numbers nor texts, such as "timestamp[ns]"; else empty.
    """

    name: str
    cells: NDArray[Any]
    foreign: str = ""

    @property
    def is_text(self) -> bool:
        return self.cells.dtype.kind == "O"

    @functools.cached_property
    def missing(self) -> NDArray[np.bool_]:
        missing = np.isnan(self._floats)
        if self.is_text:
            missing[missing] = [text.lower() in MISSING for text in self.cells[missing]]
        return missing

    @functools.cached_property
    def kind(self) -> str:
        """ "integers", "numbers", "true or false", "words", "empty", or the foreign type."""
        if self.foreign:
            return self.foreign
        if self.missing.all():
            return "empty"
        if self.cells.dtype.kind == "b":
            return "true or false"
        if self.is_text and all(text.lower() in TRUTH for text in self.cells[~self.missing]):
            return "true or false"
        if self._not_a_number is not None:
            return "words"
        values = self._floats[~self.missing]
        return "integers" if np.isfinite(values).all() and (values == np.rint(values)).all() else "numbers"

    @functools.cached_property
    def _not_a_number(self) -> int | None:
        """The first row whose text is neither missing nor a number."""
        return next(iter(np.flatnonzero(np.isnan(self._floats) & ~self.missing).tolist()), None)

    @functools.cached_property
    def _floats(self) -> NDArray[np.float64]:
        """Numbers, NaN for every other cell."""
        if not (self.is_text and any("_" in text for text in self.cells)):  # Python reads 1_000 as 1000
            with contextlib.suppress(ValueError):  # at once: a tenth of the time of one by one
                return self.cells.astype(np.float64)
        return np.array([np.nan if (number := _number(text)) is None else number for text in self.cells])

    def require_complete(self, where: str, labels: Iterable[str] = ()) -> None:
        """Refuses cells without a value; labels: texts that count as values."""
        known = frozenset(labels)
        missing = self.missing.copy()
        for place in np.flatnonzero(missing):
            missing[place] = self.cells[place] not in known
        if missing.any():
            row = int(np.argmax(missing))  # exact: booleans
            cell = repr(self.cells[row]) if self.is_text else "NaN"
            raise InvalidInput(
                f"column {self.name!r} of {where} must have a value in every row, got {cell} in row {row + 1} "
                f"({int(missing.sum())} of {len(missing)} rows lack one); fill them in, remove these rows, or leave "
                f"the column out with drop={self.name}."
            )

    def numbers(self, where: str) -> NDArray[np.float64]:
        """Finite numbers, shape (rows,); true and false are 1 and 0.

        Raises: InvalidInput: a missing value, a word, another type, an infinite number; the message names the row.
        """
        way_out = f"number its values, encode them as columns of 0 and 1, or leave it out with drop={self.name}"
        if self.foreign:
            raise InvalidInput(f"column {self.name!r} of {where} must hold numbers, got {self.foreign}; {way_out}.")
        self.require_complete(where)
        if self.is_text and self.kind == "true or false":
            return np.array([TRUTH[text.lower()] for text in self.cells])
        if (row := self._not_a_number) is not None:
            word = str(self.cells[row])
            short = repr(word if len(word) <= 40 else f"{word[:37]}...")
            hint = "write decimals with a point; else " if "," in word and _number(word.replace(",", ".")) else ""
            raise InvalidInput(
                f"column {self.name!r} of {where} must hold numbers, got {short} in row {row + 1}; {hint}{way_out}."
            )
        values = self._floats
        infinite = ~np.isfinite(values)
        if infinite.any():
            row = int(np.argmax(infinite))  # exact: booleans
            raise InvalidInput(
                f"column {self.name!r} of {where} must hold finite numbers, got {values[row]} in row {row + 1} "
                f"({int(infinite.sum())} of {len(infinite)} rows are not finite); remove or repair these rows."
            )
        return values

    @property
    def has_decimal_commas(self) -> bool:
        cells = self.cells[~self.missing] if self.kind == "words" else ()
        return len(cells) > 0 and all(_number(str(cell).replace(",", ".")) is not None for cell in cells)

    def labels(self) -> list[str]:
        """One text per row, alike for all spellings of a number; "true" and "false" in lower case."""
        if self.kind == "true or false":
            return [str(cell).lower() for cell in self.cells]
        # float64 may merge two large integers, as of identifiers
        if self.kind == "words" or (np.abs(self._floats[~self.missing]) >= 2.0**53).any():
            return [str(cell) for cell in self.cells]
        rows = zip(self.cells, self._floats, self.missing, strict=True)
        return [str(cell) if lacks else number_label(value) for cell, value, lacks in rows]


def number_label(value: float) -> str:
    """A number as the label of a class.

    >>> number_label(1.0), number_label(-0.5)
    ('1', '-0.5')
    """
    return str(int(value)) if np.isfinite(value) and value == np.rint(value) else repr(float(value))


def _number(text: str) -> float | None:
    if "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return None if np.isnan(value) else value


@dataclasses.dataclass(frozen=True, eq=False)
class DataTable:
    """The content of a data file.

    Attributes:
        where: the file, for messages: "'own.csv'".
        columns: of features and, in CSV, TSV and Parquet, of everything else; their names are distinct.
        target, node: of formats that have a place of their own for them.
        record_shape: of a record if it is no vector; then columns are its entries in order.
        test: records for testing of the same file.
    """

    where: str
    format: str
    columns: tuple[TableColumn, ...]
    target: TableColumn | None = None
    node: TableColumn | None = None
    record_shape: tuple[int, ...] | None = None
    test: DataTable | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if "" in names:
            raise InvalidInput(
                f"every column of {self.where} needs a name, got none for column {names.index('') + 1}; name it in the "
                "first line (an index that pandas wrote: to_csv(index=False))."
            )
        if len(self.by_name) < len(names):
            twice = next(name for row, name in enumerate(names) if name in names[:row])
            raise InvalidInput(
                f"names of columns of {self.where} must differ, got {twice!r} {names.count(twice)} times; rename them."
            )
        if self.num_rows == 0:
            raise InvalidInput(f"{self.where} must hold at least one record, got none; add rows below the header.")

    @functools.cached_property
    def by_name(self) -> dict[str, TableColumn]:
        return {column.name: column for column in self.columns}

    @property
    def num_rows(self) -> int:
        return len(self.columns[0].cells) if self.columns else 0

    def column(self, name: str, option: str) -> TableColumn:
        """The column of a name. Raises: InvalidInput: no such column; the message names the nearest."""
        if name not in self.by_name:
            raise unknown_column(self.where, name, option, [*self.by_name])
        return self.by_name[name]


def unknown_column(where: str, name: str, option: str, known: Sequence[str]) -> InvalidInput:
    some = ", ".join(known[:12]) + (f", ... ({len(known)} columns)" if len(known) > 12 else "")
    return InvalidInput(f"{option}: {where} has no column {name!r}{did_you_mean(name, known)} Columns: {some}.")


MAX_ENTRIES = 2**31  # largest size of a dense table
ARCHIVE_ARRAYS = ("X", "y", "X_test", "y_test", "node")
OTHER_FORMATS = {  # and how to get one that is read
    **dict.fromkeys((".txt", ".dat", ".data", ".tab"), "rename it to .csv or .tsv if it is a table of text"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as CSV, or pandas.read_excel(...).to_csv(..., index=False)"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "pandas.read_json(...).to_csv(..., index=False)"),
    **dict.fromkeys((".feather", ".arrow"), "pandas.read_feather(...).to_parquet(...)"),
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), "numpy.savez(..., X=features, y=targets)"),
    **dict.fromkeys((".npy", ".mat", ".pt", ".pth"), "numpy.savez(..., X=features, y=targets)"),
    **dict.fromkeys((".pkl", ".pickle"), "pandas.read_pickle(...).to_parquet(...), of files that you trust"),
    ".arff": "scipy.io.arff.loadarff(...) and pandas.DataFrame(...).to_csv(..., index=False)",
    **dict.fromkeys((".zip", ".xz", ".bz2", ".zst", ".tar", ".tgz"), "unpack it"),
}

_COMPRESSED = {b"PK\x03\x04": "a zip archive", b"\xfd7zXZ": "compressed by xz", b"BZh9": "compressed by bzip2"}
_COMPRESSED |= {b"\x28\xb5\x2f\xfd": "compressed by zstd", b"PAR1": "a Parquet file", b"\x93NUMPY": "a NumPy array"}


def read_table(path: Path) -> DataTable:
    """The table of a file; cost O(its size), CSV as texts of about 60 bytes a cell.

    Raises:
        InvalidInput: a file that is missing, damaged, empty or of another format; names of columns that repeat.
        MissingExtra: a Parquet file without pyarrow.
    Cost: O(size of the file); CSV as texts of about 60 bytes a cell.
    """
    suffix = format_suffix(path)
    if suffix is None:
        raise unknown_format(path)
    return READERS[suffix](path)


def format_suffix(path: Path) -> str | None:
    """The suffix that decides the format, without .gz; None of a file in another format."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in READERS if name.endswith(suffix)), None)


def unknown_format(path: Path) -> InvalidInput:
    way_out = OTHER_FORMATS.get(path.suffix.lower(), "give it the suffix of its format")
    return InvalidInput(f"data file {str(path)!r} must end in {', '.join(READERS)}, or be FILE.py:FUNCTION; {way_out}.")


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        near = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InvalidInput(f"data file {str(path)!r} does not exist{did_you_mean(path.name, near)}") from None
    except OSError as error:
        raise InvalidInput(f"data file {str(path)!r} cannot be read ({type(error).__name__}); give a file.") from None
    except ValueError as error:  # a NUL in the name
        raise InvalidInput(f"data file {str(path)!a} cannot be read ({error}); give another name.") from None
    if not raw:
        raise InvalidInput(f"data file {str(path)!r} must hold records, got an empty file; write it again.")
    return raw


def _unpacked(path: Path) -> bytes:
    raw = _bytes(path)
    if raw.startswith(b"\x1f\x8b"):
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise _damaged(path, f"gzip says: {error}") from None
    for start, words in _COMPRESSED.items():
        if raw.startswith(start):
            raise InvalidInput(
                f"data file {str(path)!r} must be text by its suffix, and is {words}; unpack or rename it."
            )
    return raw


def _damaged(path: Path, why: str) -> InvalidInput:
    return InvalidInput(f"data file {str(path)!r} is damaged or of another format ({why}); write or fetch it again.")


def _texts(path: Path) -> str:
    raw = _unpacked(path)
    try:
        if (nul := raw.find(b"\0")) >= 0:
            raise UnicodeDecodeError("utf-8", raw, nul, nul + 1, "NUL byte")
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"data file {str(path)!r}, line {line}: this is not UTF-8 text ({error.reason}); save it as UTF-8."
        ) from None


def _rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, [field.strip() for field in row]
    except csv.Error as error:
        raise InvalidInput(
            f"data file {str(path)!r}, line {reader.line_num}: quotes or fields do not fit together ({error}); write "
            'a quote inside a quoted field twice, as "".'
        ) from None


def _read_csv(path: Path) -> DataTable:
    text = _texts(path)
    header = re.sub('"[^"]*"', "", text[: 2**20]).lstrip("\r\n").partition("\n")[0].partition("\r")[0]
    # A task needs two columns, so a header without a comma that holds another separator was written with it.
    separator = next((mark for mark in ";\t" if "," not in header and mark in header), ",")
    return _separated(path, text, separator, "CSV")


def _separated(path: Path, text: str, separator: str, name: str) -> DataTable:
    rows = _rows(path, text, separator)
    _, header = next(rows, (0, []))
    if not header:
        raise InvalidInput(f"data file {str(path)!r} must begin with names of columns, got no line; write them first.")
    if all(re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", field, re.IGNORECASE) for field in header) and (
        len(set(header)) < len(header) or any(not field.isdigit() for field in header)
    ):
        raise InvalidInput(
            f"data file {str(path)!r} must begin with names of columns, got the numbers {', '.join(header[:4])} in its "
            "first line; write a line of names before it."
        )
    records = []
    for line, row in rows:
        if len(row) != len(header):
            raise InvalidInput(
                f"data file {str(path)!r}, line {line}: found {len(row)} fields, and the header names {len(header)} "
                "columns; quote a field that holds the separator, and complete a row that was cut off."
            )
        records.append(row)
    columns = zip(*records, strict=True) if records else [()] * len(header)
    return DataTable(repr(path.name), name, tuple(map(_text_column, header, columns)))


def _text_column(name: str, texts: Sequence[str]) -> TableColumn:
    cells = np.empty(len(texts), dtype=object)
    cells[:] = texts
    return TableColumn(name, cells)


def _read_parquet(path: Path) -> DataTable:
    raw = _bytes(path)
    arrow = errors.imported("pyarrow", f"reading {path.name}", "write it as CSV")
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        table = parquet.ParquetFile(io.BytesIO(raw), page_checksum_verification=True).read()
        table.validate(full=True)
    except (arrow.ArrowException, OSError, EOFError) as error:
        raise _damaged(path, f"pyarrow says: {(str(error).splitlines() or ['nothing'])[0]}") from None
    columns = (_parquet_column(arrow, name, table.column(at)) for at, name in enumerate(table.column_names))
    return DataTable(repr(path.name), "Parquet", tuple(columns))


def _parquet_column(arrow: Any, name: str, column: Any) -> TableColumn:
    name, types = name.strip(), arrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_string(column.type) or types.is_large_string(column.type):
        return _text_column(name, [(text or "").strip() for text in column.to_pylist()])
    if types.is_decimal(column.type):
        column = column.cast(arrow.float64())
    if types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type):
        if column.null_count:  # no value is NaN
            column = column.cast(arrow.float64(), safe=False)
        return TableColumn(name, np.asarray(column.to_numpy()))
    return TableColumn(name, np.zeros(len(column)), foreign=str(column.type))


def _read_libsvm(path: Path) -> DataTable:
    from sklearn.datasets import load_svmlight_file  # a second to import

    raw = _unpacked(path)
    try:
        matrix, target = load_svmlight_file(io.BytesIO(raw), zero_based=True)
    except (ValueError, OverflowError, MemoryError) as error:
        raise _damaged(path, f"scikit-learn says: {error}") from None
    _require_dense(path, matrix.shape)
    first = 0 if matrix.shape[1] and matrix[:, [0]].nnz else 1
    dense = matrix.toarray()
    columns = tuple(TableColumn(str(index), dense[:, index]) for index in range(first, dense.shape[1]))
    if not columns:
        raise InvalidInput(f"data file {str(path)!r} must hold records `label index:value ...`, got no feature.")
    return DataTable(repr(path.name), "LIBSVM", columns, target=TableColumn("label", target))


def _require_dense(path: Path, shape: Sequence[int]) -> None:
    if shape[0] * shape[1] > MAX_ENTRIES:
        raise InvalidInput(
            f"data file {str(path)!r} must hold at most {MAX_ENTRIES} numbers as a dense table, got {shape[0]} records "
            f"of {shape[1]} features; hash or select features first."
        )


def _read_npz(path: Path) -> DataTable:
    raw = _bytes(path)
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, f"numpy says: {(str(error).splitlines() or ['nothing'])[0]}") from None
    for name, array in arrays.items():
        if name not in ARCHIVE_ARRAYS:
            raise InvalidInput(
                f"arrays of data file {str(path)!r} must be {', '.join(ARCHIVE_ARRAYS)}, got "
                f"{name!r}{did_you_mean(name, ARCHIVE_ARRAYS)}"
            )
        if array.dtype.kind not in "biufU":
            raise InvalidInput(f"array {name} of {path.name!r} must hold numbers, got {array.dtype}; convert it.")
    if ("X_test" in arrays) != ("y_test" in arrays):
        raise InvalidInput(f"data file {str(path)!r} must hold both X_test and y_test, or neither; add the other one.")
    test = _archive_table(path, arrays, "X_test", "y_test") if "X_test" in arrays else None
    return _archive_table(path, arrays, "X", "y", test)


def _archive_table(
    path: Path, arrays: dict[str, NDArray[Any]], features: str, target: str, test: DataTable | None = None
) -> DataTable:
    for name in (features, target):
        if name not in arrays:
            raise InvalidInput(
                f"data file {str(path)!r} must hold the arrays X and y, got no {name}; numpy.savez adds it."
            )
    x = arrays[features]
    if x.ndim < 2 or 0 in x.shape:
        raise InvalidInput(f"array {features} of {path.name!r} must have one row per record, got shape {x.shape}.")
    sides = {name: arrays[name] for name in (target, "node") if name in arrays and (name != "node" or features == "X")}
    for name, side in sides.items():
        if side.shape != (len(x),):
            raise InvalidInput(
                f"array {name} of {path.name!r} must hold a value for each of {len(x)} records, got shape {side.shape}"
                f"; one column is {name}.ravel()."
            )
    flat = x.reshape(len(x), -1)
    _require_dense(path, flat.shape)
    return DataTable(
        repr(path.name), "NumPy archive",
        tuple(TableColumn(str(index), _cells(flat[:, index])) for index in range(flat.shape[1])),
        target=TableColumn("y", _cells(arrays[target])),
        node=TableColumn("node", _cells(sides["node"])) if "node" in sides else None,
        record_shape=x.shape[1:] if x.ndim > 2 else None, test=test,
    )  # fmt: skip


def _cells(array: NDArray[Any]) -> NDArray[Any]:
    return _text_column("", [text.strip() for text in array.tolist()]).cells if array.dtype.kind == "U" else array


READERS: dict[str, Callable[[Path], DataTable]] = {  # by the suffix of a file
    ".csv": _read_csv,
    ".tsv": lambda path: _separated(path, _texts(path), "\t", "TSV"),
    ".parquet": _read_parquet,
    ".libsvm": _read_libsvm,
    ".svm": _read_libsvm,
    ".npz": _read_npz,
}
