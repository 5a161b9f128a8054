"""Axes with few lines, names beside the ends of curves, captions, and figures written whole."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from .. import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, QUIET, GRID = "#222222", "#6b6b6b", "#e3e3e3"
LINE_INCHES = 0.165  # of a caption


@dataclasses.dataclass(frozen=True)
class End:
    """Where a curve ends and what stands beside it: its name, and words below it.

    Attributes: stop: the last x in data, from which a dotted line leads to the name; inf: the edge of the picture.
    """

    height: float
    name: str
    words: str
    colour: str
    stop: float = math.inf


def quiet(axes: Axes, *, grid: str) -> None:
    """Only the lines that help reading."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#bdbdbd")
    axes.tick_params(axis="x", colors=QUIET, labelsize=8.5)
    if grid == "y":
        axes.tick_params(axis="y", colors=QUIET, labelsize=8.5)
    axes.grid(axis="y" if grid == "y" else "x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def name_ends(axes: Axes, ends: Sequence[End], *, apart: float) -> None:
    """Names right of the picture, joined to the ends of their curves, none over another."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((1.0, end.height))[1]) for end in ends]
    order = sorted(range(len(ends)), key=lambda i: heights[i])
    places = spread([heights[i] for i in order], min(apart, 1 / max(len(ends), 1)))
    outside: dict[str, Any] = {"xycoords": "axes fraction", "annotation_clip": False}
    for i, y in zip(order, places, strict=True):
        end = ends[i]
        start = 1.0 if math.isinf(end.stop) else float(to_axes.transform((end.stop, 1.0))[0]) + 0.012
        how: dict[str, Any] = {
            "color": end.colour,
            "linewidth": 0.8,
            "alpha": 0.8,
            "linestyle": ":" if start < 1 else "-",
        }
        axes.plot([start, 1.0, 1.03], [heights[i], heights[i], y], transform=axes.transAxes, clip_on=False, **how)
        bold: dict[str, Any] = {"fontsize": 10, "fontweight": "bold", "va": "bottom" if end.words else "center"}
        axes.annotate(end.name, (1.04, y), color=end.colour, **bold, **outside)
        if end.words:
            axes.annotate(end.words, (1.04, y - 0.006), fontsize=8, color=QUIET, va="top", **outside)


def spread(wanted: Sequence[float], apart: float) -> list[float]:
    """Increasing positions near `wanted` (increasing), at least `apart` from each other, within [0, 1] if they fit.

    Neighbours that are too close are merged into blocks, each centred on what its members want.
    """
    blocks: list[tuple[float, list[float]]] = []  # start, wanted values
    for value in wanted:
        members = [value]
        while True:
            middle = sum(members) / len(members)
            length = apart * (len(members) - 1)
            start = min(max(middle - length / 2, 0.04), max(0.97 - length, 0.0))
            if not blocks or blocks[-1][0] + apart * len(blocks[-1][1]) <= start + 1e-12:
                break
            members = blocks.pop()[1] + members
        blocks.append((start, members))
    return [start + apart * i for start, members in blocks for i in range(len(members))]


def plain_decades(axis: Any, limits: tuple[float, float]) -> None:
    """Ticks at 1, 2, 5 where few decades are shown, at powers of ten where many are; written as plain numbers."""
    decades = math.log10(limits[1] / limits[0])
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.2 else (1.0,), numticks=12))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_locator(NullLocator())


def _plain(value: float, _: object) -> str:
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    power = round(math.log10(value))
    return f"$10^{{{power}}}$" if math.isclose(value, 10.0**power) else f"{value:.0e}"


def caption_lines(caption: str, width: int) -> list[str]:
    """A caption as it is wrapped below a figure, `width` characters to the line."""
    return textwrap.wrap(caption, width, break_on_hyphens=False)


def write_caption(figure: Figure, lines: Sequence[str], *, left: float, top: float) -> None:
    """The lines from a point given in fractions of the figure."""
    how: dict[str, Any] = {"fontsize": 7.6, "color": QUIET, "va": "top", "linespacing": 1.35}
    figure.text(left, top, "\n".join(lines), **how)


def write_figure(folder: str | os.PathLike[str], name: str, figure: Figure) -> list[Path]:
    """NAME.png and NAME.svg in the folder, each written whole or not at all."""
    written = []
    kinds: dict[str, dict[str, Any]] = {"png": {"dpi": 150}, "svg": {"metadata": {"Date": None}}}
    for kind, how in kinds.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, **how)
        written.append(files.atomic_write_bytes(Path(folder) / f"{name}.{kind}", buffer.getvalue()))
    return written
