"""From training runs of a figure to its panels: cells that are trained once and stored, then tables and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mfdl.errors import InvalidInput
from mfdl.pictures.line_charts import Panel, draw
from mfdl.runs import Cell, Engine, Store, run_cells
from mfdl.runs.experiment import Experiment

from .published_figures import PublishedFigure, Reproduction, RunScale, Table
from .verdicts import Verdict

Key = TypeVar("Key")


def engine(scale: RunScale) -> Engine:
    """The engine that computes the cells of a figure."""
    return Engine(scale.engine, jobs=scale.jobs, scheduler=scale.scheduler)


def losses(
    figure: PublishedFigure,
    scale: RunScale,
    points: Mapping[Key, Sequence[Experiment]],
    *,
    last_steps: int,
    column: str = "loss",
) -> dict[Key, np.ndarray]:
    """Per point one number for each of its runs: `column`, mean over nodes and the evaluations of the last steps.

    Args:
        points: configs of one mechanism and one seed each; runs that several points share are trained once.
        column: of the evaluated steps: loss, accuracy, or a metric that the configs ask for.

    Returns: arrays in the order of the configs; nan where a run diverged.
    Raises: InvalidInput: a cell failed; the message is that of the first one.
    """
    store = Store(scale.out / figure.name / "store")
    cells = {key: [Cell(config) for config in configs] for key, configs in points.items()}
    every = list(dict.fromkeys(cell for some in cells.values() for cell in some))
    run_cells(every, store, engine(scale), progress=scale.progress)
    require_finished(store, every)
    late = {cell: _late(store, cell, last_steps, column) for cell in every}
    return {key: np.array([late[cell] for cell in some]) for key, some in cells.items()}


def require_finished(store: Store, cells: Iterable[Cell]) -> None:
    """Raises: InvalidInput: a cell failed; the message is that of the first one."""
    for cell in cells:
        if store.record(cell) is None:
            errors = [failure["error"] for failure in store.failures() if failure["cell"] == cell.hash]
            raise InvalidInput(f"a run failed, {''.join(errors)}; see {store.folder / 'failed'}.")


def _late(store: Store, cell: Cell, last_steps: int, column: str) -> float:
    record = store.record(cell)
    assert record is not None
    steps = store.steps(cell)
    late = steps.steps > cell.num_steps - last_steps
    return float("nan") if record["diverged"] else float(steps.mean_over_nodes(column)[late].mean())


def seeded(seeds: Sequence[int], **options: Any) -> list[Experiment]:
    """The same run with each of the seeds; a callable option is called with the seed."""
    return [
        Experiment(
            seeds=1, first_seed=seed, **{k: value(seed) if callable(value) else value for k, value in options.items()}
        )
        for seed in seeds
    ]


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
    """A row for each x, a column for each line; a repetition that is nan in every line was not run."""
    repeated = ~np.all([np.isnan(values) for values in panel.lines.values()], axis=0)
    rows = [
        (f"{x:.4g}", *(spread(values[i][repeated[i]]) for values in panel.lines.values()))
        for i, x in enumerate(panel.x)
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
    """The reproduction of a figure of panels: a table and the numbers of each, and a picture if there is a panel.

    Args: words: title and caption of the picture. more: further fields of `Reproduction`, such as settings; tables and
        numbers replace those of the panels.
    """
    more = {
        "tables": [table_of(panel) for panel in panels],
        "numbers": {"panels": [numbers_of(panel) for panel in panels]},
        **more,
    }
    return Reproduction(figure, scale, verdicts, picture=draw(panels, *words) if panels else None, **more)
