"""The picture of an audit matrix: claimed / audited mu in each cell, coloured by their ratio.

In: an AuditMatrix. Out: a matplotlib Figure of its own (no global state).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from .matrix import AuditMatrix

INK, QUIET, REFUTED = "#222222", "#6b6b6b", "#d55e00"


def heat_map(matrix: AuditMatrix) -> Figure:
    """Mechanisms down, trust models across; a refuted claim is framed, a cell without a claim is hatched."""
    rows = list(dict.fromkeys(cell.mechanism for cell in matrix.cells))
    columns = list(dict.fromkeys(cell.trust for cell in matrix.cells))
    ratios = np.full((len(rows), len(columns)), np.nan)
    figure = Figure(figsize=(3.4 + 1.5 * len(columns), 2.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for cell in matrix.cells:
        if cell.result is not None:
            one = cell.result.worst
            ratio = one.mu_audited / one.mu_claimed
            ratios[rows.index(cell.mechanism), columns.index(cell.trust)] = min(ratio, 1.5)
    image = axes.imshow(ratios, cmap="YlGnBu", vmin=0.0, vmax=1.5, aspect="auto")
    for cell in matrix.cells:
        i, j = rows.index(cell.mechanism), columns.index(cell.trust)
        if cell.result is None:
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, hatch="////", edgecolor="#e3e3e3", lw=0))
            axes.text(j, i, "no claim", ha="center", va="center", color=QUIET, fontsize=8)
            continue
        one = cell.result.worst
        dark = ratios[i, j] > 0.8
        text = f"{one.mu_claimed:.3g} / {one.mu_audited:.3g}"
        axes.text(j, i, text, ha="center", va="center", color="white" if dark else INK, fontsize=9)
        if cell.result.violated:
            axes.add_patch(Rectangle((j - 0.46, i - 0.44), 0.92, 0.88, fill=False, edgecolor=REFUTED, lw=2.5))
    axes.set_xticks(range(len(columns)), columns, rotation=20, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_title(f"mu claimed / audited (lower bounds, all at level {matrix.level:g})", fontsize=10, color=INK)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label="audited / claimed", shrink=0.8)
    count = len(matrix.violations)
    said = "No claim is refuted." if not count else f"{count} claim{'s are' if count > 1 else ' is'} refuted (framed)."
    figure.supxlabel(said, fontsize=9, color=REFUTED if count else QUIET)
    return figure
