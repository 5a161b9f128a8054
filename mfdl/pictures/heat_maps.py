"""A matrix as colours, with names of rows and columns and, where there is room, the number in every cell.

The colours run from dark to bright, so they are readable in grey too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.colors import FuncNorm, LogNorm, Normalize, to_hex
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from ..shown import less_rounding
from .looks import contrast
from .style import CHARACTER, GRID, INK, LOG_RATIO, MAX_LABELLED, QUIET, WHOLE_RANGE, plain, plain_decades, short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

MAP = "viridis"
IN_CELLS = ("#fefefe", "#010101")  # text on dark and on bright cells, which are the same in every theme of a page
MAX_NUMBERED = 20  # rows and columns up to which every cell carries its number
SIDE, TICK, LABEL, BAR = 225.0, 7.5, 9.0, 9.0  # points: of a page's map, its fonts, the height of its colour bar
MOST_PIXELS = 400  # rows and columns of a page's map: of more, every second or third is drawn


def draw_matrix(
    axes: Axes,
    matrix: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    numbers: bool | None = None,
    norm: Normalize | None = None,
    text: Callable[[float], str] | None = None,
) -> tuple[ScalarMappable, str]:
    """Draws values and returns what a colour bar needs, and words on its scale; grey: infinite or not known.

    Args:
        rows, columns: their names; drawn up to MAX_LABELLED.
        numbers: in the cells, default up to MAX_NUMBERED rows and columns; text: how they are written.
        norm: from values to colours; default `scale`, which is for values >= 0.
    """
    values = np.asarray(matrix, dtype=np.float64)
    fitting, words = scale(values)
    norm = norm or fitting
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colour_map(), norm=norm, interpolation="none", aspect="auto")
    for names, along in ((columns, axes.xaxis), (rows, axes.yaxis)):
        if len(names) <= MAX_LABELLED:
            along.set_ticks(range(len(names)), labels=names)
            along.set_tick_params(length=0, rotation=90 if along is axes.xaxis else 0)
    axes.tick_params(labelsize=8 if max(values.shape) <= MAX_NUMBERED or max(values.shape) > MAX_LABELLED else 6.5)
    axes.tick_params(colors=QUIET)
    axes.spines[:].set_visible(False)
    if max(values.shape) <= MAX_NUMBERED if numbers is None else numbers:
        _write_numbers(axes, values, norm, text or cell_text)
    return image, words


def heat_map(
    matrix: ArrayLike, rows: Sequence[str], columns: Sequence[str], words: str, *, title: str, ax: Axes | None = None
) -> Axes:
    """Heat map of victims down and attackers across, with its colour bar.

    Args: words: what the numbers are; ax: axes of the caller's, default those of a Figure of its own (`ax.figure`).
    """
    if ax is None:
        size = (max(5.0, 2.6 + 0.5 * min(len(columns), 24)), 1.8 + 0.40 * min(len(rows), 24))
        ax = Figure(figsize=size, layout="constrained", facecolor="white").add_subplot()
    image, scaling = draw_matrix(ax, matrix, rows, columns)
    ax.set_xlabel("attacker", fontsize=9.5, color=QUIET)
    ax.set_ylabel("victim", fontsize=9.5, color=QUIET)
    ax.set_title(title, fontsize=11, color=INK, loc="left")
    name_bar(ax.figure.colorbar(image, ax=ax), f"{words}{scaling}")
    return ax


def square_map(
    matrix: NDArray[np.float64],
    names: Sequence[str],
    labels: tuple[str, str],
    *,
    norm: Normalize | None = None,
    text: Callable[[float], str] | None = None,
) -> Figure:
    """For a page: a matrix with its colour bar below; infinite and unknown cells are empty.

    Args: names: of rows and columns, drawn up to MAX_LABELLED; empty: they are steps, counted from 1, without numbers
        in their cells. labels: of the axes, across and down. norm, text: as in `draw_matrix`.
    """
    n, named = len(matrix), 0 < len(names) <= MAX_LABELLED
    longest = max((len(short_name(name)) for name in names), default=0) if named else 2
    left, gap = 22 + CHARACTER * TICK * longest, 5.0
    under = CHARACTER * TICK * longest + 2.2 * LABEL
    width, height = left + SIDE + 6, gap + SIDE + under + BAR + 2 * TICK
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    axes = figure.add_axes((left / width, 1 - (gap + SIDE) / height, SIDE / width, SIDE / height))
    step = -(-n // MOST_PIXELS)
    drawn = matrix[::step, ::step]
    norm = norm or scale(matrix)[0]
    image, _ = draw_matrix(axes, drawn, [], [], norm=norm, text=text, numbers=None if names else False)
    image.set_cmap(matplotlib.colormaps[MAP])  # no colour where there is no number
    places = range(n) if named else sorted({0, n // 4, n // 2, 3 * n // 4, n - 1})
    words = [short_name(names[i]) if named else str(i + 1) for i in places]
    upright: dict[str, Any] = {"rotation": 90, "ha": "right", "va": "center", "rotation_mode": "anchor"}
    axes.set_xticks([i / step for i in places], words, **(upright if named else {"rotation": 0}))
    axes.set_yticks([i / step for i in places], words)
    axes.tick_params(length=0, labelsize=TICK, colors=QUIET, pad=3)
    axes.spines[:].set(visible=True, color=GRID)
    label: dict[str, Any] = {"ha": "center", "fontsize": LABEL, "color": QUIET}
    figure.text((left + SIDE / 2) / width, (BAR + 2 * TICK + 4) / height, labels[0], **label)
    figure.text(LABEL / width, 1 - (gap + SIDE / 2) / height, labels[1], rotation=90, rotation_mode="anchor", **label)
    bar = figure.add_axes((left / width, 1.5 * TICK / height, SIDE / width, BAR / height))
    colours = np.array([[float(norm.inverse(share)) for share in np.linspace(0, 1, 64)]])
    bar.imshow(colours, cmap=MAP, norm=norm, interpolation="none", aspect="auto")
    bar.set_axis_off()
    for share, side in ((0.0, "left"), (0.25, "center"), (0.5, "center"), (0.75, "center"), (1.0, "right")):
        word = plain(float(f"{float(norm.inverse(share)):.2g}"))
        bar.text(share, -0.3, word, transform=bar.transAxes, ha=side, va="top", fontsize=TICK, color=QUIET)
    return figure


def _write_numbers(axes: Axes, values: NDArray[np.float64], norm: Normalize, text: Callable[[float], str]) -> None:
    """A number in each cell, readable on its colour; infinity as such, nothing where nothing is known."""
    box, colours = axes.get_window_extent(), colour_map()
    cell = min(box.width / values.shape[1], box.height / values.shape[0]) * 72 / axes.figure.get_dpi()
    for (i, j), value in np.ndenumerate(values):
        if math.isnan(value):
            continue
        if math.isinf(value):
            word, colour = "∞", INK
        else:
            word, ground = text(value), to_hex(colours(float(norm(max(value, norm.vmin or 0.0)))))
            colour = max(IN_CELLS, key=partial(contrast, ground))
        size = min(9.0, 0.46 * cell, 1.5 * cell / len(word))
        axes.text(j, i, word, color=colour, fontsize=size, ha="center", va="center")


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
        return plain(float(Context(prec=1, rounding=ROUND_CEILING).create_decimal(decimal)))
    return str(decimal.quantize(Decimal(1).scaleb(min(place - 1, 0)), rounding=ROUND_CEILING))


def signed_text(value: float) -> str:
    """Two digits behind the point, and nothing before it where that is zero.

    >>> [signed_text(value) for value in (-0.123, 0.5, 0.001, 1.0)]
    ['-.12', '.50', '0', '1.00']
    """
    text = f"{value:.2f}"
    return "0" if float(text) == 0 else text.replace("0.", ".", 1)


def scale(values: NDArray[np.float64]) -> tuple[Normalize, str]:
    """Logarithmic when the values span more than `LOG_RATIO`; the words say so."""
    finite = values[np.isfinite(values)]
    positive = finite[finite > WHOLE_RANGE * finite.max()] if finite.size else finite
    if not positive.size:
        return Normalize(0.0, 1.0), ""
    low, high = float(positive.min()), float(positive.max())
    if high / low > LOG_RATIO:
        return LogNorm(low, high, clip=True), " (logarithmic)"
    return Normalize(0.0, high), ""


def signed_scale(values: NDArray[np.float64]) -> Normalize:
    """From minus the largest size to it, by the square root of the size, which makes small values visible."""
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    return FuncNorm((lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda y: np.sign(y) * np.square(y)), -largest, largest)


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
