"""A sweep from its config to its table: rates chosen first where there is a table of tuning, then every cell."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engines import Engine
from ..progress import Progress, reporter
from .cells import Cell
from .store import Store, answer
from .sweep_config import SweepConfig
from .tuning import halved


def sweep(
    config: SweepConfig | str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str],
    engine: Engine | None = None,
    progress: Progress = "auto",
    **options: Any,
) -> dict[str, Any]:
    """Runs a sweep, or what is missing of it, and keeps it in a folder (`mfdl.runs.store`).

    Args:
        config: a `SweepConfig`, or a TOML file of one; None: the options alone.
        out: the folder; made when missing.
        engine: default one after another in this process; `jobs` of the config is for the command line.
        progress: as for `run_cells`.
        options: those of `SweepConfig`; over a file they win.

    Returns: the answer of `mfdl sweep --json`: `answer`.
    Raises: InvalidInput: a config that is refused, options beside a `SweepConfig`, and all of `run_cells`.

    Cells that fail are listed in the answer and tried again by the next call.
    """
    if config is None:
        config = SweepConfig(**options)
    elif not isinstance(config, SweepConfig):
        config = SweepConfig.load(config, **options)
    elif options:
        raise TypeError(f"give options to the SweepConfig, not beside it: {', '.join(options)}.")
    from .running import run_cells  # torch only where cells are run

    store, screen = Store(out), reporter(progress, words=2)
    header: dict[str, Any] = {"config": config.options()}
    if config.converted:
        header["converted"] = config.converted
    cells = config.cells()
    if config.tuning is not None:
        cells, header["chosen"] = _tuned(config, cells, store, engine, screen)
    run_cells(cells, store, engine, progress=screen, header=header)
    return answer(store)


def _tuned(
    config: SweepConfig, cells: Sequence[Cell], store: Store, engine: Engine | None, screen: Any
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """The cells of the chosen rates, and these beside what each was chosen for."""
    from .running import run_cells

    assert config.tuning is not None
    groups: dict[str, dict[float, Cell]] = {}
    for cell in cells:
        groups.setdefault(_but_rate(cell), {}).setdefault(cell.config.learning_rate, cell)

    def losses_of(settings: Sequence[tuple[str, float]], seeds: Sequence[int]) -> dict[tuple[str, float], np.ndarray]:
        tried = {s: [_at(groups[s[0]][s[1]], seed) for seed in seeds] for s in settings}
        every = [cell for cells_of_one in tried.values() for cell in cells_of_one]
        run_cells(every, store, engine, progress=screen, header={"config": config.options()})
        return {
            setting: np.array([_loss(store, cell) for cell in cells_of_one]) for setting, cells_of_one in tried.items()
        }

    best = halved({name: [(name, rate) for rate in rates] for name, rates in groups.items()}, config.tuning, losses_of)
    chosen = {name: rate for name, (_, rate) in best.items()}
    choices = [{**_named_target(next(iter(groups[name].values()))), "lr": rate} for name, rate in chosen.items()]
    return [cell for cell in cells if chosen[_but_rate(cell)] == cell.config.learning_rate], choices


def _named_target(cell: Cell) -> dict[str, Any]:
    names = ("trust", "participation", "mu", "epsilon", "graph", "task")
    options = {name: cell.options[name] for name in names if name in cell.options}
    return {"mechanism": cell.mechanism, **options}


def _but_rate(cell: Cell) -> str:
    """All options but the rate and the seed."""
    options = {name: value for name, value in cell.options.items() if name not in ("lr", "first_seed", "seeds")}
    return json.dumps(options, sort_keys=True)


def _at(cell: Cell, seed: int) -> Cell:
    return Cell(dataclasses.replace(cell.config, first_seed=seed), cell.shared)


def _loss(store: Store, cell: Cell) -> float:
    record = store.record(cell)
    loss = None if record is None else record["final_test_loss"]
    return float("nan") if loss is None else float(loss)
