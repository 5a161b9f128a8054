"""Cells to records: what is missing in a store is run, by any engine, and kept as soon as it is finished."""

from __future__ import annotations

import dataclasses
import io
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from .. import files
from ..algorithms import registry
from ..engines import Engine
from ..errors import InvalidInput
from ..factorization.solutions import Solutions
from ..mechanism import Mechanism
from ..progress import Progress, reporter
from ..training.run import Run
from .cells import Cell
from .comparing import Plan, record_of, trained
from .output import json_number
from .shared import Shared, shared_by
from .store import FACTORIZATIONS, Store


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
        report(0, "looking at what is finished")
        folder.begin(cells, header)
        missing = [cell for cell in cells if not folder.is_finished(cell.hash)]
        if len(missing) < len(cells):
            report(sum(cell.num_steps for cell in cells) - sum(cell.num_steps for cell in missing), "finished earlier")
        call = time.time_ns(), os.getpid()  # tells workers when what they keep is of an earlier call
        sent = [CellJob(cell, cell.hash, call, folder.folder.absolute()) for cell in in_good_order(missing)]
        reported = 0

        def tell(steps: int) -> None:  # of the one cell that is run in this process
            nonlocal reported
            reported += steps
            report(steps)

        for place, answer in engine.run(work, sent, here={"shared": shared, "progress": tell}):
            answer.keep(folder)
            report(sent[place].cell.num_steps - reported, described(sent[place].cell))
            reported = 0
    return [record for record in map(folder.record, cells) if record is not None]


def in_good_order(cells: Sequence[Cell]) -> list[Cell]:
    """Cells with one algorithm one after another, but the first of each before all others.

    So workers begin with different factorizations, and find them solved when they come to the rest.
    """
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(shared_by(cell.config), []).append(cell)
    first = [group[0] for group in groups.values()]
    return first + [cell for group in groups.values() for cell in group[1:]]


def described(cell: Cell) -> str:
    """In words short enough for a progress bar."""
    config = cell.config
    target = "" if cell.options["mu"] is None else f", mu {config.mu:g}"
    target = f", epsilon {config.epsilon:g}" if config.epsilon is not None else target
    return f"{cell.mechanism}{target}, lr {config.learning_rate:g}, seed {cell.seed}"


@dataclasses.dataclass(frozen=True)
class CellJob:
    """One cell on its way to a worker.

    Attributes: cell, hash: what and its name here; call: which call of `run_cells`; store: the folder of the store.
    """

    cell: Cell
    hash: str
    call: tuple[int, int]
    store: Path


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of a cell: a record with its steps (a Parquet file), or a failure."""

    cell: str
    record: dict[str, Any] | None
    steps: bytes
    failure: dict[str, Any] | None
    timing: dict[str, Any]

    def keep(self, store: Store) -> None:
        """Into the store."""
        if self.record is not None:
            store.add(self.cell, self.record, self.steps)
        elif self.failure is not None:
            store.add_failure(self.cell, self.failure)
        store.add_timing(self.timing)


def _nothing(steps: int) -> None:
    pass


_of_call: dict[tuple[int, int], Shared] = {}


def _shared_here(job: CellJob) -> Shared:
    """What this worker process made for the call so far; factorizations go to the store where the worker has it."""
    if job.call not in _of_call:
        _of_call.clear()
        _of_call[job.call] = Shared(Solutions(job.store / FACTORIZATIONS if job.store.is_dir() else None))
    return _of_call[job.call]


def work(job: CellJob, *, shared: Shared | None = None, progress: Callable[[int], None] | None = None) -> Answer:
    """Runs one cell; whatever goes wrong is an answer too."""
    began, record, steps, failure = time.perf_counter(), None, b"", None
    timing: dict[str, Any] = {"cell": job.hash, "host": platform.node()}
    try:
        record, steps, more = _trained(job, shared or _shared_here(job), progress or _nothing)
        timing |= more
    except Exception as error:
        cell = job.cell
        failure = {"cell": job.hash, "mechanism": cell.mechanism, "config": cell.options}
        failure |= {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    timing["seconds"] = time.perf_counter() - began
    return Answer(job.hash, record, steps, failure, timing)


def _trained(
    job: CellJob, shared: Shared, progress: Callable[[int], None] | None
) -> tuple[dict[str, Any], bytes, dict[str, Any]]:
    """The record, the steps as a Parquet file, and what the timings say besides."""
    if job.cell.with_shared(shared).hash != job.hash:
        raise InvalidInput(
            f"cell {job.hash} is another one on {platform.node()}: graph, task or version of mfdl differ there; "
            "install the same version and make the same files reachable."
        )
    cell = job.cell
    plan, accounted = Plan(cell.config, shared), shared.accounted(cell.config, cell.mechanism)
    mechanism = accounted.mechanism(cell.config.target)
    run = trained(mechanism, plan.task, cell.seed, cell.config, progress)
    numbers, table = record_of(run, cell.mechanism, mechanism, cell.config)
    timing = {"training_seconds": numbers.pop("seconds"), "node_steps_per_second": numbers.pop("node_steps_per_second")}
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return {**_circumstances(cell, plan, mechanism, run), **accounted.objective, **numbers}, buffer.getvalue(), timing


def _circumstances(cell: Cell, plan: Plan, mechanism: Mechanism, run: Run) -> dict[str, Any]:
    """All of a record that is said before the run, and what its loss is held against."""
    config, guarantee = cell.config, mechanism.guarantee
    _, weights = registry.split(cell.mechanism)
    (seed,) = run.seeds
    return {
        "cell": cell.hash,
        "config": cell.options,
        "label": cell.mechanism,
        "trust": guarantee.trust,
        "attacker": guarantee.attacker,
        "mu": json_number(guarantee.mu),
        "epsilon": json_number(guarantee.epsilon(config.delta)),
        **config.values("delta", "adjacency", "unit", "clip_norm", "graph", "task"),
        "lr": config.learning_rate,
        "error_weights": None if weights is None else weights.describe(),
        "graph_hash": plan.shared.graph_hash(config),
        "gossip": plan.gossip.name,
        "gossip_hash": plan.gossip.content_hash,
        "nodes": plan.gossip.num_nodes,
        "task_hash": plan.task.content_hash,
        "steps": cell.num_steps,
        "participation": plan.participation.scheme,
        "guarantee": run.statement(config.delta),
        "noise_std": mechanism.noise_std,
        "injected_noise_std": mechanism.injected_noise_std,
        "untrained_loss": json_number(seed.untrained_loss),
        "untrained_accuracy": json_number(seed.untrained_accuracy),
        "chance_loss": json_number(run.chance_loss),
        "chance_accuracy": json_number(run.chance_accuracy),
    }
