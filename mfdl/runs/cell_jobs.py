"""A job: cells that are trained together, and their records.

In: cells that differ in seed and learning rate, and a store's folder. Out: an `Answer` for each, a record with its
steps or a failure. What cells share (graph, task, factorization, accounting) is made once by each process.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithms import registry
from ..errors import InvalidInput
from ..factorization.solutions import Solutions
from ..given import label_of
from ..mechanism import Mechanism
from ..metrics import metric_of
from ..training import tasks
from ..training.replay import replays
from ..training.replay_config import ReplayConfig
from ..training.run import Run
from .cells import Cell
from .columns import RunSteps
from .experiment import Experiment
from .output import json_number, objective_fields, sensitivity_of
from .shared import Plan, Shared
from .store import FACTORIZATIONS, Store


@dataclasses.dataclass(frozen=True)
class CellJob:
    """Cells on their way to a worker, which trains them together.

    Attributes:
        cells, hashes: what and their names here.
        wanted: which of them the store lacks; the others are trained again beside them.
        call: which call, so that a worker knows when what it has made is of an earlier one.
        store: the folder of the store; mechanisms, checkpoints, strict: as for `run_missing`.
    """

    cells: tuple[Cell, ...]
    hashes: tuple[str, ...]
    wanted: tuple[bool, ...]
    call: tuple[int, int]
    store: Path
    mechanisms: tuple[Mechanism | None, ...]
    checkpoints: Path | None = None
    strict: bool = False

    @property
    def steps(self) -> int:
        """Of the cells that the store lacks."""
        return sum(cell.num_steps for cell, wanted in zip(self.cells, self.wanted, strict=True) if wanted)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of a cell: a record with its steps, or a failure."""

    cell: str
    record: dict[str, Any] | None
    steps: RunSteps | None
    failure: dict[str, Any] | None
    timing: dict[str, Any]

    def keep(self, store: Store) -> None:
        """Into the store; the timing first, so that no finished cell is without."""
        store.add_timing(self.timing)
        if self.record is not None and self.steps is not None:
            store.add(self.cell, self.record, self.steps)
        elif self.failure is not None:
            store.add_failure(self.cell, self.failure)


def all_but(cell: Cell, *names: str) -> tuple[Any, ...]:
    """The options of a cell but for these."""
    return tuple(getattr(cell.config, field) for field in cell.config.fields() if field not in names)


_of_call: dict[tuple[int, int], Shared] = {}


def _shared_here(job: CellJob) -> Shared:
    """What this worker process made for the call so far; factorizations go to the store where the worker has it."""
    if job.call not in _of_call:
        _of_call.clear()
        _of_call[job.call] = Shared(Solutions(job.store / FACTORIZATIONS if job.store.is_dir() else None))
    return _of_call[job.call]


def work(
    job: CellJob, *, shared: Shared | None = None, progress: Callable[[Cell, int], None] | None = None
) -> list[Answer]:
    """Runs cells together; whatever goes wrong with one of them is an answer too, unless the job is strict."""
    began, shared = time.perf_counter(), shared or _shared_here(job)
    outcomes: dict[int, Outcome] = {}
    prepared: dict[int, PreparedCell] = {}
    calibrated: dict[Any, tuple[Mechanism, dict[str, Any]]] = {}
    tell = None if progress is None else functools.partial(progress, job.cells[0])
    for number in range(len(job.cells)):
        try:
            if tell is not None:
                tell(0)
            prepared[number] = _prepared(job, number, shared, calibrated)
        except Exception as error:
            if job.strict:
                raise
            outcomes[number] = error
    if any(job.wanted[number] for number in prepared):
        outcomes |= zip(prepared, _trained(list(prepared.values()), tell, strict=job.strict), strict=True)
    seconds = (time.perf_counter() - began) / len(job.cells)
    return [_answer(job, i, prepared.get(i), outcomes.get(i), seconds) for i in range(len(job.cells))]


@dataclasses.dataclass(frozen=True)
class PreparedCell:
    """A cell with its plan and what trains it; objective: as results say it."""

    cell: Cell
    plan: Plan
    mechanism: Mechanism
    objective: dict[str, Any]
    replay: ReplayConfig


Outcome = Run | Exception
"""Of one cell."""


def _prepared(
    job: CellJob, number: int, shared: Shared, calibrated: dict[Any, tuple[Mechanism, dict[str, Any]]]
) -> PreparedCell:
    """Everything before training; `calibrated` keeps what cells share that differ in their seeds alone."""
    cell, config, mechanism = job.cells[number].with_shared(shared), job.cells[number].config, job.mechanisms[number]
    if cell.hash != job.hashes[number]:
        raise InvalidInput(
            f"cell {job.hashes[number]} differs on {platform.node()}: its graph, task or version of mfdl is another "
            "one there; install the same version and make the same files reachable."
        )
    plan, key = Plan(config, shared, checked=mechanism is not None), all_but(cell, "first_seed")
    if key not in calibrated:
        accounted = shared.accounted(config, cell.mechanism) if mechanism is None else None
        chosen = accounted.mechanism(config.target) if accounted is not None else mechanism
        assert chosen is not None
        shares = accounted is not None and chosen.sampling is None
        calibrated[key] = chosen, accounted.objective if accounted and shares else objective_fields(chosen)
    mechanism, objective = calibrated[key]
    checkpoints = None if job.checkpoints is None else job.checkpoints / cell.hash
    run_config = replay_config(mechanism, plan.task, cell.seed, config, checkpoints)
    return PreparedCell(cell, plan, mechanism, objective, run_config)


def _trained(
    prepared: Sequence[PreparedCell], progress: Callable[[int], None] | None, *, strict: bool
) -> list[Outcome]:
    """The run of each, together; where that fails, in halves, down to the one that fails alone."""
    stopped = False

    def advance(steps: int = 1, *_: str) -> None:
        nonlocal stopped
        if progress is not None:
            stopped = True  # unless it comes back
            progress(steps)
            stopped = False

    try:
        return list(replays([each.replay for each in prepared], advance))
    except Exception as error:
        if len(prepared) == 1 or stopped:
            if strict:
                raise
            return [error] * len(prepared)
    middle = len(prepared) // 2
    return [run for half in (prepared[:middle], prepared[middle:]) for run in _trained(half, progress, strict=strict)]


def _answer(
    job: CellJob, number: int, prepared: PreparedCell | None, outcome: Outcome | None, seconds: float
) -> Answer:
    """The record, the steps, and what the timings say besides; or the failure."""
    cell, name = job.cells[number], job.hashes[number]
    timing: dict[str, Any] = {"cell": name, "host": platform.node()}
    try:
        if isinstance(outcome, Exception):
            raise outcome
        if prepared is None or outcome is None:  # finished earlier, and nothing beside it was trained
            return Answer(name, None, None, None, timing)
        timing |= {
            "training_seconds": outcome.seeds[0].training_seconds,
            "node_steps_per_second": json_number(outcome.node_steps_per_second),
        }
        record = _record(cell, prepared.plan, prepared.mechanism, outcome) | prepared.objective
        steps = _steps(outcome, prepared.mechanism, cell.config)
    except Exception as error:
        if job.strict:
            raise
        failure = {"cell": name, "mechanism": cell.mechanism, "config": cell.options}
        failure |= {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        return Answer(name, None, None, failure, timing | {"seconds": seconds})
    return Answer(name, record, steps, None, timing | {"seconds": seconds})


def replay_config(
    mechanism: Mechanism, task: tasks.Task, seed: int, config: Experiment, checkpoints: Path | None = None
) -> ReplayConfig:
    """One seed of a mechanism, as a config says; checkpoints: their folder."""
    return ReplayConfig(
        mechanism,
        task,
        seeds=[seed],
        eval_every=config.eval_every or config.period,
        metrics=config.metrics,
        clip_schedule=config.clips,
        clipping=config.clipping,
        step_rule=config.step_rule,
        period=config.period if config.unit == "user" else None,
        device=config.device,
        checkpoint_folder=checkpoints,
        progress=False,
    )


def _steps(run: Run, mechanism: Mechanism, config: Experiment) -> RunSteps:
    """Every evaluated step of the one seed of a run, with the conditions of the run."""
    (name,), (seed,), guarantee = config.mechanisms, run.seeds, mechanism.guarantee
    conditions = {
        "mechanism": name,
        "seed": seed.seed,
        "trust": guarantee.trust,
        "mu": guarantee.mu,
        "epsilon": guarantee.epsilon(config.delta),
        "delta": config.delta,
        "task": run.task_name,
        "graph": config.graph,
        "lr": config.learning_rate,
    }
    nodes = tuple(str(label) for label in mechanism.algorithm.dynamics.gossip.labels)
    values = {name: np.asarray(measured, dtype=np.float64) for name, measured in seed.measured.items()}
    return RunSteps(conditions, np.asarray(seed.steps, dtype=np.int64), nodes, values)


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
        **({"dropped_records": seed.dropped_records} if seed.dropped_records else {}),
        "cell": cell.hash,
        "config": cell.options,
        "mechanism": cell.mechanism,
        "label": label_of(cell.mechanism),
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
        "sensitivity": sensitivity_of(mechanism),
        "untrained_loss": json_number(seed.untrained_loss),
        "untrained_accuracy": json_number(seed.untrained_accuracy),
        "chance_loss": json_number(run.chance_loss),
        "chance_accuracy": json_number(run.chance_accuracy),
    }
