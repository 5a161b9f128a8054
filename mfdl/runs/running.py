"""Cells to records: what is missing in a store is run, by any engine, and kept as soon as it is finished.

`sweep` goes from a config to its table: rates chosen first where there is a table of tuning, then every cell.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import files
from ..engines import Engine
from ..factorization.solutions import Solutions
from ..mechanism import Mechanism
from ..progress import Advance, Progress, reporter
from ..training import replay
from .cell_jobs import CellJob, all_but, work
from .cells import Cell
from .shared import Shared, shared_by
from .store import FACTORIZATIONS, Store, answer
from .sweep_config import SweepConfig, halved


def run_cells(
    cells: Iterable[Cell],
    store: Store | str | os.PathLike[str],
    engine: Engine | None = None,
    *,
    progress: Progress = "auto",
    header: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Runs the cells that the store lacks, and keeps each as soon as it is finished; killed, it goes on from there.

    Args:
        cells: any; what cells have in common (graph, task, factorization, accounting) is made once by each process.
        store: a folder, made when missing, or its `Store`; the cells come after those it lists.
        engine: default one after another in this process.
        progress: as for `mfdl.runs.comparing.run_comparison`; one step is one training step.
        header: what sweep.json says besides; then these cells are all that it lists.

    Returns: the records of the finished cells, in the order of `cells`; those that failed are in `Store.failures()`.
    Raises: InvalidInput: a graph or task that cannot be loaded, a folder that another process is writing, a scheduler
        that cannot be reached. What goes wrong in a cell does not stop the others.
    """
    folder = store if isinstance(store, Store) else Store(store)
    shared = Shared(Solutions(folder.folder / FACTORIZATIONS))
    cells = list(dict.fromkeys(cell.with_shared(shared) for cell in cells))
    screen, engine = reporter(progress, words=2), engine or Engine()
    with files.held_alone(folder.folder), screen.bar("sweeping", sum(cell.num_steps for cell in cells)) as report:
        report(0, "checking finished cells")
        folder.begin(cells, header)
        for _ in run_missing(cells, folder, engine, report, shared):
            pass
    return [record for record in map(folder.record, cells) if record is not None]


def run_missing(
    cells: Sequence[Cell],
    store: Store,
    engine: Engine,
    report: Advance,
    shared: Shared,
    *,
    mechanisms: Mapping[Cell, Mechanism] | None = None,
    checkpoints: Path | None = None,
    strict: bool = False,
) -> Iterator[Cell]:
    """Each cell that the store lacks, once it was run and is kept there.

    Args:
        report: called with steps just finished, and what is being done.
        shared: of the cells that run in this process.
        mechanisms: those of cells, calibrated; others are made where their cell runs.
        checkpoints: a folder from which a run that was stopped goes on; None: it begins again.
        strict: what goes wrong in a cell is raised, instead of kept as its failure.
    """
    wanted = {cell for cell in cells if not store.is_finished(cell)}
    if len(wanted) < len(cells):
        report(sum(cell.num_steps for cell in cells if cell not in wanted), "finished earlier")
    call, place = (time.time_ns(), os.getpid()), store.folder.absolute()
    jobs = [
        CellJob(
            batch,
            tuple(cell.hash for cell in batch),
            tuple(cell in wanted for cell in batch),
            call,
            place,
            tuple((mechanisms or {}).get(cell) for cell in batch),
            checkpoints,
            strict,
        )
        for batch in in_good_order(batches(cells, 1 if checkpoints is not None else None))
        if not wanted.isdisjoint(batch)
    ]
    left = {job.cells[0]: job.steps for job in jobs}
    if jobs:
        report(0, f"{len(wanted)} of {len(cells)} runs to train, first {described(jobs[0].cells[0])}")

    def tell(cell: Cell, steps: int) -> None:  # of the one job that is done in this process, by its first cell
        done_now = min(steps, left[cell])
        left[cell] -= done_now
        report(done_now, described(cell))

    for number, answers in engine.run(work, jobs, here={"shared": shared, "progress": tell}):
        job = jobs[number]
        for cell, outcome in zip(job.cells, answers, strict=True):
            if cell in wanted:
                outcome.keep(store)
                yield cell
                tell(job.cells[0], cell.num_steps)  # as far as it was not told while it was trained


def batches(cells: Sequence[Cell], most: int | None = None) -> list[tuple[Cell, ...]]:
    """Cells that differ in seed and learning rate only, at most so many together: they are trained in one job.

    Which cells are together follows from the list alone, not from what is finished, so that a sweep that was stopped
    ends with the same bytes: the last digits of a run depend on the runs beside it.
    """
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(all_but(cell, "first_seed", "learning_rate"), []).append(cell)
    parts: list[tuple[Cell, ...]] = []
    for group in groups.values():
        size = most or replay.most_on(group[0].config.device)
        parts += [tuple(group[start : start + size]) for start in range(0, len(group), size)]
    return parts


def in_good_order(parts: Sequence[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """Batches with one algorithm one after another, but the first of each before all others.

    So workers begin with different factorizations, and find them solved when they come to the rest.
    """
    groups: dict[Any, list[tuple[Cell, ...]]] = {}
    for part in parts:
        groups.setdefault(shared_by(part[0].config), []).append(part)
    first = [group[0] for group in groups.values()]
    return first + [part for group in groups.values() for part in group[1:]]


def described(cell: Cell) -> str:
    """In words short enough for a progress bar."""
    config = cell.config
    target = "" if cell.options["mu"] is None else f", mu {config.mu:g}"
    target = f", epsilon {config.epsilon:g}" if config.epsilon is not None else target
    return f"{cell.mechanism}{target}, lr {config.learning_rate:g}, seed {cell.seed}"


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
