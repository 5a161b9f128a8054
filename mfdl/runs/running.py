"""Cells to records: what is missing in a store is run, by any engine, and kept as soon as it is finished."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from .. import files
from ..algorithms import registry
from ..engines import Engine
from ..errors import InvalidInput
from ..factorization.solutions import Solutions
from ..mechanism import Mechanism
from ..metrics import metric_of
from ..progress import Advance, Progress, reporter
from ..training import tasks
from ..training.replay import replay
from ..training.run import Run
from .cells import Cell
from .columns import schema_of
from .comparison_config import ComparisonConfig
from .output import json_number, objective_fields, parquet
from .shared import Plan, Shared, shared_by
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
    missing = [cell for cell in cells if not store.is_finished(cell)]
    if len(missing) < len(cells):
        report(sum(cell.num_steps for cell in cells) - sum(cell.num_steps for cell in missing), "finished earlier")
    call, place = (time.time_ns(), os.getpid()), store.folder.absolute()
    sent = [
        CellJob(cell, cell.hash, call, place, (mechanisms or {}).get(cell), checkpoints, strict)
        for cell in in_good_order(missing)
    ]
    reported = 0

    def tell(cell: Cell, steps: int) -> None:  # of the one cell that is run in this process
        nonlocal reported
        reported += steps
        report(steps, described(cell))

    for number, answer in engine.run(work, sent, here={"shared": shared, "progress": tell}):
        answer.keep(store)
        cell = sent[number].cell
        yield cell
        report(cell.num_steps - reported, described(cell))
        reported = 0


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

    Attributes:
        cell, hash: what and its name here.
        call: which call, so that a worker knows when what it has made is of an earlier one.
        store: the folder of the store; mechanism, checkpoints, strict: as for `run_missing`.
    """

    cell: Cell
    hash: str
    call: tuple[int, int]
    store: Path
    mechanism: Mechanism | None = None
    checkpoints: Path | None = None
    strict: bool = False


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of a cell: a record with its steps (a Parquet file), or a failure."""

    cell: str
    record: dict[str, Any] | None
    steps: bytes
    failure: dict[str, Any] | None
    timing: dict[str, Any]

    def keep(self, store: Store) -> None:
        """Into the store; the timing first, so that no finished cell is without."""
        store.add_timing(self.timing)
        if self.record is not None:
            store.add(self.cell, self.record, self.steps)
        elif self.failure is not None:
            store.add_failure(self.cell, self.failure)


_of_call: dict[tuple[int, int], Shared] = {}


def _shared_here(job: CellJob) -> Shared:
    """What this worker process made for the call so far; factorizations go to the store where the worker has it."""
    if job.call not in _of_call:
        _of_call.clear()
        _of_call[job.call] = Shared(Solutions(job.store / FACTORIZATIONS if job.store.is_dir() else None))
    return _of_call[job.call]


def work(job: CellJob, *, shared: Shared | None = None, progress: Callable[[Cell, int], None] | None = None) -> Answer:
    """Runs one cell; whatever goes wrong is an answer too, unless the job is strict."""
    began, record, steps, failure = time.perf_counter(), None, b"", None
    timing: dict[str, Any] = {"cell": job.hash, "host": platform.node()}
    tell = None if progress is None else functools.partial(progress, job.cell)
    try:
        record, steps, more = _trained(job, shared or _shared_here(job), tell)
        timing |= more
    except Exception as error:
        if job.strict:
            raise
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
            f"cell {job.hash} differs on {platform.node()}: its graph, task or version of mfdl is another "
            "one there; install the same version and make the same files reachable."
        )
    cell = job.cell
    if progress is not None:
        progress(0)
    mechanism = job.mechanism
    plan = Plan(cell.config, shared, checked=mechanism is not None)
    if mechanism is None:
        accounted = shared.accounted(cell.config, cell.mechanism)
        mechanism = accounted.mechanism(cell.config.target)
        objective = accounted.objective if mechanism.sampling is None else objective_fields(mechanism)
    else:
        objective = objective_fields(mechanism)
    checkpoints = None if job.checkpoints is None else job.checkpoints / job.hash
    run = trained(mechanism, plan.task, cell.seed, cell.config, progress, checkpoints)
    timing = {
        "training_seconds": run.seeds[0].training_seconds,
        "node_steps_per_second": json_number(run.node_steps_per_second),
    }
    record = _record(cell, plan, mechanism, run) | objective
    return record, parquet(_steps(run, mechanism, cell.config)), timing


def trained(
    mechanism: Mechanism,
    task: tasks.Task,
    seed: int,
    config: ComparisonConfig,
    progress: Callable[[int], None] | None = None,
    checkpoints: Path | None = None,
) -> Run:
    """One seed of a mechanism, as a config says; checkpoints: their folder."""
    return replay(
        mechanism,
        task,
        seeds=[seed],
        eval_every=config.eval_every or config.period,
        metrics=config.metrics,
        clip_schedule=config.clips,
        step_rule=config.step_rule,
        period=config.period if config.unit == "user" else None,
        device=config.device,
        checkpoint_folder=checkpoints,
        progress=progress,
    )


def _steps(run: Run, mechanism: Mechanism, config: ComparisonConfig) -> pa.Table:
    """Every evaluated step, with what it was run with."""
    (name,), guarantee = config.mechanisms, mechanism.guarantee
    same = {
        "mechanism": name,
        "trust": guarantee.trust,
        "mu": guarantee.mu,
        "epsilon": guarantee.epsilon(config.delta),
        "delta": config.delta,
        "task": run.task_name,
        "graph": config.graph,
        "lr": config.learning_rate,
    }
    return pa.Table.from_pylist([{**row, **same} for row in run.rows()], schema=schema_of(config.metrics))


def _record(cell: Cell, plan: Plan, mechanism: Mechanism, run: Run) -> dict[str, Any]:
    """How the one seed of a run ended, under which guarantee, and what its loss is held against."""
    config, guarantee = cell.config, mechanism.guarantee
    _, weights = registry.split(cell.mechanism)
    (seed,) = run.seeds
    ended = {  # of the released model, or of the last ones
        name: (seed.final if name.startswith("final_") else seed.last)(metric_of(name))
        for name in ("final_test_loss", "final_accuracy", *config.measured_besides)
    }
    return {
        **{name: json_number(value) for name, value in ended.items()},
        "seed": seed.seed,
        "diverged": seed.diverged,
        "cell": cell.hash,
        "config": cell.options,
        "mechanism": cell.mechanism,
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
