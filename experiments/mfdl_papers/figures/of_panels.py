"""What a panel shows, as a table with spread and as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mfdl.pictures.panels import Panel, draw

from .figure import PublishedFigure, RunScale
from .reproduction import Reproduction, Table
from .verdicts import Verdict


def spread(values: np.ndarray) -> str:
    """Mean and standard deviation over repetitions as text; nan and inf are runs that diverged.

    >>> spread(np.array([1.0, 3.0])), spread(np.array([2.0])), spread(np.array([1.0, np.nan]))
    ('2 +- 1.4', '2', 'diverged')
    """
    if not np.isfinite(values).all():
        return "diverged"
    deviation = f" +- {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.3g}{deviation}"


def table_of(panel: Panel) -> Table:
    """A row for each x, a column for each line; repetitions that are nan in every line were not made."""
    made = ~np.all([np.isnan(values) for values in panel.lines.values()], axis=0)
    rows = [
        (f"{x:.4g}", *(spread(values[i][made[i]]) for values in panel.lines.values())) for i, x in enumerate(panel.x)
    ]
    return Table(panel.title, (panel.x_label, *panel.lines), rows)


def numbers_of(panel: Panel) -> dict[str, Any]:
    """Every repetition of every point, JSON-ready; null where there is none, or where a run diverged."""
    lines = {
        name: [[float(v) if np.isfinite(v) else None for v in row] for row in values]
        for name, values in panel.lines.items()
    }
    return {"title": panel.title, "x": [float(x) for x in panel.x], "lines": lines}


def of_panels(
    figure: PublishedFigure,
    scale: RunScale,
    verdicts: Sequence[Verdict],
    panels: Sequence[Panel],
    words: tuple[str, str],
    **more: Any,
) -> Reproduction:
    """What a figure of panels comes to: a table and the numbers of each, and no picture where there is none.

    Args: words: title and caption of the picture. more: further fields of `Reproduction`, such as settings; tables and
        numbers replace those of the panels.
    """
    more = {
        "tables": [table_of(panel) for panel in panels],
        "numbers": {"panels": [numbers_of(panel) for panel in panels]},
        **more,
    }
    return Reproduction(figure, scale, verdicts, picture=draw(panels, *words) if panels else None, **more)
