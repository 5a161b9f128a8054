"""A matrix as colours, with names of rows and columns and, where there is room, the number in every cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from ..shown import less_rounding
from .networks import MAX_LABELLED
from .style import INK, QUIET, plain_decades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

MAP = "viridis"
MAX_NUMBERED = 20  # rows and columns up to which every cell carries its number
WHOLE_RANGE = 1e-12  # what is below this fraction of the largest value is zero in all but rounding


def draw_matrix(
    axes: Axes, matrix: ArrayLike, rows: Sequence[str], columns: Sequence[str], *, numbers: bool | None = None
) -> tuple[ScalarMappable, str]:
    """Draws values >= 0 and returns what a colour bar needs, and words on its scale; grey: infinite or not known.

    Args: rows, columns: their names; numbers: in the cells, default up to MAX_NUMBERED rows and columns.
    """
    values = np.asarray(matrix, dtype=np.float64)
    norm, over = scale(values)
    image = axes.imshow(
        np.ma.masked_invalid(values), cmap=colour_map(), norm=norm, interpolation="nearest", aspect="auto"
    )
    for names, along in ((columns, axes.xaxis), (rows, axes.yaxis)):
        if len(names) <= MAX_LABELLED:
            along.set_ticks(range(len(names)), labels=names)
            along.set_tick_params(length=0, rotation=90 if along is axes.xaxis else 0)
    axes.tick_params(labelsize=8 if max(values.shape) <= MAX_NUMBERED or max(values.shape) > MAX_LABELLED else 6.5)
    axes.tick_params(colors=QUIET)
    axes.spines[:].set_visible(False)
    if max(values.shape) <= MAX_NUMBERED if numbers is None else numbers:
        _write_numbers(axes, values, norm)
    return image, over


def heat_map(
    matrix: ArrayLike, rows: Sequence[str], columns: Sequence[str], words: str, *, title: str, ax: Axes | None = None
) -> Axes:
    """Heat map of victims down and attackers across, with its colour bar.

    Args: words: what the numbers are; ax: axes of the caller's, default those of a Figure of its own (`ax.figure`).
    """
    if ax is None:
        size = (max(5.0, 2.6 + 0.5 * min(len(columns), 24)), 1.8 + 0.40 * min(len(rows), 24))
        ax = Figure(figsize=size, layout="constrained", facecolor="white").add_subplot()
    image, over = draw_matrix(ax, matrix, rows, columns)
    ax.set_xlabel("attacker", fontsize=9.5, color=QUIET)
    ax.set_ylabel("victim", fontsize=9.5, color=QUIET)
    ax.set_title(title, fontsize=11, color=INK, loc="left")
    name_bar(ax.figure.colorbar(image, ax=ax), f"{words}{over}")
    return ax


def _write_numbers(axes: Axes, values: NDArray[np.float64], norm: Normalize) -> None:
    """A number in each cell, readable on its colour; infinity as such, nothing where nothing is known."""
    size = float(np.clip(112 / max(values.shape), 6.0, 9.0))
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size}
    for (i, j), value in np.ndenumerate(values):
        if math.isnan(value):
            continue
        if math.isinf(value):
            axes.text(j, i, "∞", color=INK, **middle)
        else:
            dark = float(norm(max(value, norm.vmin or 0.0))) < 0.6
            axes.text(j, i, cell_text(value), color="white" if dark else INK, **middle)


def cell_text(value: float) -> str:
    """Two digits, more where a whole number has them; never below the value by more than rounding.

    >>> [cell_text(value) for value in (0.0, 0.0123, 0.5, 1.234, 12.34, 123.4, 12345.0, 1e-9)]
    ['0', '0.013', '0.50', '1.3', '13', '124', '2e4', '1e-9']
    """
    if value == 0:
        return "0"
    decimal = less_rounding(float(value))
    place = decimal.adjusted()
    if not -3 <= place < 4:
        shown = Context(prec=1, rounding=ROUND_CEILING).create_decimal(decimal)
        return f"{shown:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return str(decimal.quantize(Decimal(1).scaleb(min(place - 1, 0)), rounding=ROUND_CEILING))


def scale(values: NDArray[np.float64]) -> tuple[Normalize, str]:
    """Logarithmic when the values span more than a factor of 8; the words say so."""
    finite = values[np.isfinite(values)]
    positive = finite[finite > WHOLE_RANGE * finite.max()] if finite.size else finite
    if not positive.size:
        return Normalize(0.0, 1.0), ""
    low, high = float(positive.min()), float(positive.max())
    if high / low > 8:
        return LogNorm(low, high, clip=True), " (logarithmic)"
    return Normalize(0.0, high), ""


def colour_map() -> Any:
    """The colours of all losses; grey where there is no number."""
    return matplotlib.colormaps[MAP].with_extremes(bad="#d9d9d9")


def name_bar(bar: Any, words: str) -> None:
    """Words and plain ticks of a colour bar."""
    bar.set_label(words, fontsize=9, color=QUIET)
    if isinstance(bar.mappable.norm, LogNorm):
        plain_decades(bar.ax.yaxis, bar.mappable.get_clim())
    bar.ax.tick_params(labelsize=8, colors=QUIET)
    bar.outline.set_visible(False)
