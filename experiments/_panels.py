"""Panels of lines with spread, one caption, and the numbers beside the picture: what the figure scripts share."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mfdl import files
from mfdl.reporting.account import write_figure
from mfdl.reporting.output import versions

COLOURS = {
    "LDP": "#d55e00",
    "CDP": "#6e6e6e",
    "DECOR": "#0072b2",
    "pairwise": "#0072b2",
    "CorN": "#009e73",
    "no noise": "#000000",
}
MORE_COLOURS = ("#009e73", "#cc79a7", "#0072b2", "#e69f00")  # for names not listed, in order
MARKERS = {"LDP": "s", "CDP": "D", "DECOR": "^", "pairwise": "^", "CorN": "o", "no noise": "x"}
MORE_MARKERS = ("o", "v", "^", "P")


@dataclass
class Panel:
    """One panel: per name, values of shape (points, repetitions) over x; nan where there is none."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    lines: Mapping[str, np.ndarray]
    log_x: bool = False
    log_y: bool = True
    bounds: Mapping[str, np.ndarray] = field(default_factory=dict)


def draw(panels: Sequence[Panel], title: str, caption: str) -> Figure:
    """A row of panels; lines are means, bands reach from the smallest to the largest repetition."""
    width = max(4.3 * len(panels) + 0.6, 9.0)
    lines = textwrap.wrap(caption, int(width * 17))
    height = 4.6 + 0.16 * len(lines)
    figure = Figure(figsize=(width, height), facecolor="white")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    foot = (0.3 + 0.16 * len(lines)) / height
    figure.subplots_adjust(
        left=0.95 / width, right=1 - 0.15 / width, top=1 - 1.25 / height, bottom=foot + 0.62 / height
    )
    for axes, panel in zip(grid, panels, strict=True):
        others = [name for name in panel.lines if name not in COLOURS]
        more = {name: (MORE_COLOURS[i % 4], MORE_MARKERS[i % 4]) for i, name in enumerate(others)}
        for name, values in panel.lines.items():
            mean = np.nanmean(values, axis=1)
            colour, marker = more.get(name) or (COLOURS[name], MARKERS[name])
            style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4.5}
            axes.plot(panel.x, mean, label=name, linewidth=1.7, **style)
            axes.fill_between(
                panel.x, np.nanmin(values, axis=1), np.nanmax(values, axis=1), color=style["color"], alpha=0.16, lw=0
            )
        axes.set_title(panel.title, loc="left", fontsize=10.5, color="#222222")
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        if panel.log_x:
            axes.set_xscale("log")
            axes.set_xticks(panel.x, [f"{x:g}" for x in panel.x])
            axes.minorticks_off()
        if panel.log_y:
            axes.set_yscale("log")
        axes.grid(True, which="major", color="#e3e3e3", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.45 / width, 1 - 0.45 / height), ncols=6, frameon=False
    )
    figure.text(0.5 / width, 1 - 0.3 / height, title, fontsize=13, fontweight="bold", color="#222222", va="center")
    figure.text(0.5 / width, 0.12 / height, "\n".join(lines), fontsize=7.8, color="#6b6b6b", linespacing=1.4)
    return figure


def write(out: Path, name: str, figure: Figure, facts: dict[str, Any], panels: Sequence[Panel]) -> None:
    """NAME.png, NAME.svg and NAME.json (every repetition of every point) in a folder; prints where they are."""
    found = {
        **facts,
        "panels": [
            {
                "title": panel.title,
                "x": [float(x) for x in panel.x],
                "lines": {k: [[_number(v) for v in row] for row in values] for k, values in panel.lines.items()},
            }
            for panel in panels
        ],
        "versions": versions(),
    }
    path = out / f"{name}.json"
    files.atomic_write_text(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
    for written in [*write_figure(out, name, figure), path]:
        print(written)


def table(panel: Panel, x_format: str = "g") -> str:
    """Mean and standard deviation over repetitions as text."""
    names = list(panel.lines)
    width = max(22, *(len(name) + 2 for name in names))
    first = max(22, len(panel.x_label) + 1)
    rows = [f"{panel.title}", "  " + panel.x_label.ljust(first) + "".join(f"{name:>{width}}" for name in names)]
    for i, x in enumerate(panel.x):
        cells = []
        for name in names:
            values = panel.lines[name][i]
            spread = f" +- {np.nanstd(values, ddof=1):.3g}" if np.isfinite(values).sum() > 1 else ""
            cells.append(f"{np.nanmean(values):.4g}{spread}")
        rows.append("  " + format(x, x_format).ljust(first) + "".join(f"{cell:>{width}}" for cell in cells))
    return "\n".join(rows)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
