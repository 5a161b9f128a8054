"""The picture of an audit matrix: claimed / audited mu in each cell, coloured by their ratio.

In: the rows of an AuditMatrix. Out: a matplotlib Figure of its own (no global state).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, QUIET, REFUTED = "#222222", "#6b6b6b", "#d55e00"


def heat_map(cells: Sequence[Mapping[str, Any]], level: float, ax: Axes | None = None, *, delta: float = 1e-6) -> Any:
    """Mechanisms down, trust models across; a refuted claim is framed, a cell without a claim is hatched.

    Args:
        cells: as `Cell.row` gives them; level: of all bounds together; delta: of the epsilons below each mu.
        ax: axes to draw in and to return, default a Figure of its own.
    """
    rows, columns = (list(dict.fromkeys(cell[name] for cell in cells)) for name in ("mechanism", "trust"))
    ratios = np.full((len(rows), len(columns)), np.nan)
    size = (3.4 + 1.5 * len(columns), 2.2 + 0.42 * len(rows))
    axes = Figure(figsize=size, layout="constrained").add_subplot() if ax is None else ax
    for cell in cells:
        if cell["epsilon_claimed"] != "":
            name = "epsilon" if cell["mu_claimed"] == "" else "mu"  # secret bins have no mu
            ratio = cell[f"{name}_audited"] / max(cell[f"{name}_claimed"], 1e-300)  # epsilon may be 0 at a large delta
            ratios[rows.index(cell["mechanism"]), columns.index(cell["trust"])] = min(ratio, 1.5)
    image = axes.imshow(ratios, cmap="YlGnBu", vmin=0.0, vmax=1.5, aspect="auto")
    for cell in cells:
        i, j = rows.index(cell["mechanism"]), columns.index(cell["trust"])
        if cell["epsilon_claimed"] == "":
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, hatch="////", edgecolor="#e3e3e3", lw=0))
            axes.text(j, i, "no claim", ha="center", va="center", color=QUIET, fontsize=8)
            continue
        dark = ratios[i, j] > 0.8
        text = "" if cell["mu_claimed"] == "" else f"{cell['mu_claimed']:.3g} / {cell['mu_audited']:.3g}"
        colour = "white" if dark else INK
        middle: dict[str, Any] = {"ha": "center", "color": colour}
        axes.text(j, i, text, va="bottom", fontsize=9, **middle)
        epsilons = f"ε {cell['epsilon_claimed']:.3g} / {cell['epsilon_audited']:.3g}"
        axes.text(j, i + 0.06, epsilons, va="top", fontsize=7, **middle)
        if cell["violated"]:
            axes.add_patch(Rectangle((j - 0.46, i - 0.44), 0.92, 0.88, fill=False, edgecolor=REFUTED, lw=2.5))
    axes.set_xticks(range(len(columns)), columns, rotation=20, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    title = f"mu, and epsilon at delta = {delta:g}: claimed / audited\n(lower bounds, all at level {level:g})"
    axes.set_title(title, fontsize=10, color=INK)
    axes.spines[:].set_visible(False)
    axes.figure.colorbar(image, ax=axes, label="audited / claimed", shrink=0.8)
    count = sum(bool(cell["violated"]) and not cell.get("planted") for cell in cells)
    said = "No claim is refuted." if not count else f"{count} claim{'s are' if count > 1 else ' is'} refuted (framed)."
    how: dict[str, Any] = {"fontsize": 9, "color": REFUTED if count else QUIET}
    if ax is not None:
        axes.set_xlabel(said, **how)
        return axes
    axes.figure.supxlabel(said, **how)
    return axes.figure
