"""Columns of a user's table: which kind of values a column holds, as numbers or as labels of classes.

In: the cells of a column as the file has them, texts or numbers. Out: finite float64 numbers, or labels in one spelling
for all formats: "1", "1.0" and the integer 1 are the label "1". A value that is missing or of another kind is refused,
never replaced.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput, did_you_mean

MISSING = frozenset({"", "na", "n/a", "nan", "null", "<na>", "?"})
"""Texts that stand for no value, in lower case."""

TRUTH = {"true": 1.0, "false": 0.0}
LISTED_NAMES = 12


@dataclasses.dataclass(frozen=True, eq=False)
class TableColumn:
    """A column of a table.

    Attributes:
        name: of the column, without blanks around it.
        cells: texts (dtype object, without blanks around them), or bool, integer or floating numbers, shape (rows,).
        foreign: the file's word for a type that holds neither numbers nor texts, such as "timestamp[ns]"; else empty.
    """

    name: str
    cells: NDArray[Any]
    foreign: str = ""

    @property
    def is_text(self) -> bool:
        """Whether cells are texts."""
        return self.cells.dtype.kind == "O"

    @functools.cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Cells without a value: empty ones, NaN and the texts of MISSING."""
        if self._all_numbers is not None:
            return np.isnan(self._all_numbers)
        if self.is_text:
            return np.array([text.lower() in MISSING for text in self.cells], dtype=bool)
        return np.isnan(self.cells) if self.cells.dtype.kind == "f" else np.zeros(len(self.cells), dtype=bool)

    @functools.cached_property
    def _all_numbers(self) -> NDArray[np.float64] | None:
        """Texts as numbers, at once where each is one or "nan": a tenth of the time of one by one."""
        if not self.is_text or any("_" in text for text in self.cells):  # Python reads 1_000 as 1000
            return None
        try:
            return self.cells.astype(np.float64)
        except ValueError:
            return None

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
        if not self.is_text or self._all_numbers is not None:
            return None
        rows = np.flatnonzero(~self.missing)
        return next((int(row) for row in rows if _number(self.cells[row]) is None), None)

    @property
    def _floats(self) -> NDArray[np.float64]:
        """Numbers, NaN where a value is missing, of a column without words."""
        return self._text_floats if self.is_text else self.cells.astype(np.float64)

    @functools.cached_property
    def _text_floats(self) -> NDArray[np.float64]:
        if self._all_numbers is not None:
            return self._all_numbers
        pairs = zip(self.cells, self.missing, strict=True)
        return np.array([np.nan if lacks else _number(text) for text, lacks in pairs], dtype=np.float64)

    def require_complete(self, where: str, labels: Iterable[str] = ()) -> None:
        """Refuses cells without a value. Args: where: the file; labels: texts that count as values."""
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
            hint = "write decimals with a point; else " if "," in word and _number(word.replace(",", ".")) else ""
            raise InvalidInput(
                f"column {self.name!r} of {where} must hold numbers, got {_short(word)} in row {row + 1}; {hint}"
                f"{way_out}."
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
        """Whether words are numbers once each comma is a point."""
        cells = self.cells[~self.missing] if self.kind == "words" else ()
        return len(cells) > 0 and all(_number(str(cell).replace(",", ".")) is not None for cell in cells)

    def labels(self) -> list[str]:
        """One text per row, alike for all spellings of a number; "true" and "false" in lower case."""
        if self.kind == "true or false":
            return [str(cell).lower() for cell in self.cells]
        if self.kind == "words" or self._has_large_integers:
            return [str(cell) for cell in self.cells]
        rows = zip(self.cells, self._floats, self.missing, strict=True)
        return [str(cell) if lacks else number_label(value) for cell, value, lacks in rows]

    @property
    def _has_large_integers(self) -> bool:
        """Whether float64 may merge two integers, as of identifiers."""
        return bool((np.abs(self._floats[~self.missing]) >= 2.0**53).any())


def number_label(value: float) -> str:
    """A number as the label of a class.

    >>> number_label(1.0), number_label(-0.5)
    ('1', '-0.5')
    """
    return str(int(value)) if np.isfinite(value) and value == np.rint(value) else repr(float(value))


def _number(text: str) -> float | None:
    """The number that a text is, NaN excluded."""
    if "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return None if np.isnan(value) else value


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


@dataclasses.dataclass(frozen=True, eq=False)
class DataTable:
    """What a data file holds.

    Attributes:
        where: the file, for messages: "'own.csv'".
        format: "CSV", "TSV", "Parquet", "LIBSVM" or "NumPy archive".
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
        """Columns by their names, in the order of the file."""
        return {column.name: column for column in self.columns}

    @property
    def num_rows(self) -> int:
        """N, the number of records."""
        return len(self.columns[0].cells) if self.columns else 0

    def column(self, name: str, option: str) -> TableColumn:
        """The column of a name. Raises: InvalidInput: no such column; the message names the nearest."""
        if name not in self.by_name:
            raise unknown_column(self.where, name, option, [*self.by_name])
        return self.by_name[name]


def unknown_column(where: str, name: str, option: str, known: Sequence[str]) -> InvalidInput:
    """The error for a column that a file lacks."""
    some = ", ".join(known[:LISTED_NAMES]) + (f", ... ({len(known)} columns)" if len(known) > LISTED_NAMES else "")
    return InvalidInput(f"{option}: {where} has no column {name!r}{did_you_mean(name, known)} Columns: {some}.")
