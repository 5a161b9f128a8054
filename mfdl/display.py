"""How objects show themselves: a paragraph in a terminal, a table and a picture in a notebook, rows as a data frame."""

from __future__ import annotations

import abc
import base64
import dataclasses
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


FEW = 6  # numbers of an array, or items of a sequence, that are shown
LONGEST = 300  # characters of one value
ROUNDING = 1e-12
"""Relative error that rounding up in float64 may add. It costs no digit: 1 + 1e-15 is printed as 1, not 1.00001."""
_EXACT = Context(prec=120)  # products of floats; that of the caller may have fewer digits


def short(value: Any) -> str:
    """A value in a few words: arrays by shape and type, long sequences by their first items and their length.

    >>> import numpy as np
    >>> short(np.zeros((3, 4))), short(list(range(100))), short(0.5)
    ('array (3, 4) float64', '[0, 1, 2, ... 100 items]', '0.5')
    """
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        if hasattr(value, "nnz"):
            return f"sparse {tuple(shape)} {value.dtype}, {value.nnz} stored"
        if len(shape) == 1 and shape[0] <= FEW:
            return str(value.tolist())
        return f"array {tuple(shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        items = [f"{short(key)}: {short(item)}" for key, item in list(value.items())[:FEW]]
        return "{" + ", ".join(items) + (f", ... {len(value)} items" if len(value) > FEW else "") + "}"
    if isinstance(value, list | tuple) and len(value) > FEW:
        left, right = "[]" if isinstance(value, list) else "()"
        return f"{left}{', '.join(short(item) for item in value[:3])}, ... {len(value)} items{right}"
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        left, right = "[]" if isinstance(value, list) else "()"
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        return f"{left}{', '.join(short(item) for item in value)}{comma}{right}"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return str(value.__qualname__)
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."


def short_repr(self: Any) -> str:
    """`__repr__` of a dataclass: its fields but those left at their defaults, each `short`."""
    fields = []
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        default = field.default
        if field.repr and not (default is not dataclasses.MISSING and (value is default or _same(value, default))):
            fields.append(f"{field.name}={short(value)}")
    return f"{type(self).__name__}({', '.join(fields)})"


def _same(value: Any, default: Any) -> bool:
    return isinstance(value, str | int | float | tuple) and type(value) is type(default) and value == default


def less_rounding(number: float) -> Decimal:
    """A number >= 0 minus what rounding may have added to it, before it is rounded up for display."""
    return _EXACT.multiply(Decimal(float(number)), _EXACT.subtract(Decimal(1), Decimal(ROUNDING)))


def rounded_up(number: float, digits: int) -> str:
    """A number >= 0 with so many digits: the least such number that is not below it by more than `ROUNDING`.

    >>> rounded_up(1.0000001, 6), rounded_up(1 + 1e-15, 6), rounded_up(0.5, 6)
    ('1.00001', '1', '0.5')
    """
    if number == math.inf:
        return "inf"
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(less_rounding(number))):.{digits}g}"


class Shown(abc.ABC):
    """An object that describes itself in a sentence, and in a notebook also shows a table and a picture."""

    @abc.abstractmethod
    def _sentence(self) -> str:
        """The object in one paragraph, without the name of its class."""

    def _rows(self) -> list[tuple[str, str]]:
        return []

    def _figure(self) -> Figure | None:
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self._sentence()}"

    def _repr_html_(self) -> str:
        """For notebooks; a picture that cannot be drawn is left out, never an error in place of the object."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self._rows()
        )
        table = f"<table>{rows}</table>" if rows else ""
        return f"<div><p>{html.escape(repr(self))}</p>{table}{_image(self._figure())}</div>"


def _image(figure: Figure | None) -> str:
    if figure is None:
        return ""
    from matplotlib import pyplot  # only where a picture is wanted

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90, bbox_inches="tight")
    pyplot.close(figure)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<img style='max-width:100%' alt='picture' src='data:image/png;base64,{data}'>"


def data_frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    installed = errors.imported("pandas", "a data frame", "take rows(), which gives plain dictionaries")
    frame: pandas.DataFrame = installed.DataFrame(list(rows), columns=list(columns))
    return frame
