"""Rows as a pandas data frame, where pandas is installed: it is an extra, nothing else here needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import InvalidInput

if TYPE_CHECKING:
    import pandas


def data_frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """One line a row, under these columns, also without any row.

    Raises: InvalidInput: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise InvalidInput(
            "a data frame needs pandas, which is not installed: pip install pandas (or pip install 'mfdl[tables]'); "
            "rows() gives the same as plain dictionaries."
        ) from None
    return pandas.DataFrame(list(rows), columns=list(columns))
