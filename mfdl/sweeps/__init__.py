"""Many training runs, each once: cells, the store that keeps them, and running them.

    cells = [Cell(config) for config in configs]      # one mechanism, budget, rate and seed each
    records = run_cells(cells, "results/sweep", Engine("joblib", jobs=8))
    store = Store.load("results/sweep")               # later, and in another process

A cell is named by the content of all that decides its numbers, so it is trained once wherever it is asked for; a sweep
that was killed goes on, and what is on the disk at its end is what it would have been.
"""

from ..engines import Engine
from .cells import Cell
from .config import SweepConfig
from .running import run_cells
from .store import Store, rows
from .sweeping import sweep
from .tuning import Tuning

__all__ = ["Cell", "Engine", "Store", "SweepConfig", "Tuning", "rows", "run_cells", "sweep"]


def __dir__() -> list[str]:
    return sorted(__all__)
