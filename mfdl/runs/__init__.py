"""Many training runs, each once: grids of cells, the store of their records, comparisons, sweeps and tuning.

    cells = [Cell(config) for config in configs]      # one mechanism, budget, rate and seed each
    records = run_cells(cells, "results/sweep", Engine("joblib", jobs=8))
    store = Store.load("results/sweep")               # later, and in another process

A cell is named by the content of all that decides its numbers, so it is trained once wherever it is needed; a sweep
that was killed goes on, and what is on the disk at its end is what it would have been. Names load lazily: a config and
its options bring none of the libraries that train.
"""

import importlib
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Cell": "mfdl.runs.cells",
    "Engine": "mfdl.engines",
    "Store": "mfdl.runs.store",
    "Tuning": "mfdl.runs.tuning",
    "load_steps": "mfdl.runs.run_steps",
    "rows": "mfdl.runs.store",
    "run_cells": "mfdl.runs.running",
    "sweep": "mfdl.runs.running",
}

__all__ = ["Cell", "Engine", "Store", "Tuning", "load_steps", "rows", "run_cells", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        from ..extensions import submodule

        return submodule(__name__, name)
    globals()[name] = value = getattr(importlib.import_module(_EXPORTS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from ..engines import Engine
    from .cells import Cell
    from .run_steps import load_steps
    from .running import run_cells, sweep
    from .store import Store, rows
    from .tuning import Tuning
