"""Many training runs, each once: grids of cells, the store of their records, comparisons, sweeps and tuning.

    cells = [Cell(config) for config in configs]      # one mechanism, budget, rate and seed each
    records = run_cells(cells, "results/sweep", Engine("joblib", jobs=8))
    store = Store.load("results/sweep")               # later, and in another process

A cell is named by the content of all that decides its numbers, so it is trained once; a sweep that was killed resumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engines import Engine
    from .cells import Cell
    from .running import run_cells, sweep
    from .store import Store, load_steps, rows
    from .sweep_config import Tuning

__all__ = ["Cell", "Engine", "Store", "Tuning", "load_steps", "rows", "run_cells", "sweep"]


def __getattr__(name: str) -> Any:
    from ..extensions import public

    return public(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
