"""Training runs of a figure: cells that are trained once, kept below the folder of the figure, and read again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mfdl.errors import InvalidInput
from mfdl.reporting.comparison_config import ComparisonConfig
from mfdl.sweeps import Cell, Engine, Store, run_cells

from .figure import PublishedFigure, RunScale

Key = TypeVar("Key")


def engine(scale: RunScale) -> Engine:
    """What computes the cells of a figure."""
    return Engine(scale.engine, jobs=scale.jobs, scheduler=scale.scheduler)


def losses(
    figure: PublishedFigure,
    scale: RunScale,
    points: Mapping[Key, Sequence[ComparisonConfig]],
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
    at, values = (steps[name].to_numpy() for name in ("step", column))
    late = at > cell.num_steps - last_steps
    return float("nan") if record["diverged"] else float(np.asarray(values[late], dtype=np.float64).mean())


def seeded(seeds: Sequence[int], **options: Any) -> list[ComparisonConfig]:
    """The same run with each of the seeds; a callable option is called with the seed."""
    return [
        ComparisonConfig(
            seeds=1, first_seed=seed, **{k: value(seed) if callable(value) else value for k, value in options.items()}
        )
        for seed in seeds
    ]
