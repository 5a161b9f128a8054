"""Cells to records: cells that a store lacks are run, by any engine, and stored as soon as they are finished.

`sweep` goes from a config to its table: rates are tuned first if there is a table of tuning, then every cell is run.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import files
from ..algorithms import registry
from ..engines import Engine
from ..errors import InvalidInput
from ..factorization.solutions import Solutions
from ..mechanism import Mechanism
from ..metrics import metric_of
from ..progress import Advance, Progress, reporter
from ..spec import text_label
from ..training import replay, tasks
from ..training.replay import replays
from ..training.replay_config import ReplayConfig
from ..training.run import Run
from .cells import Cell, Plan, Shared, shared_by
from .experiment import Experiment
from .output import json_number, objective_fields, result_sensitivity
from .store import FACTORIZATIONS, RunSteps, Store, answer
from .sweep_config import SweepConfig, halved


@dataclasses.dataclass(frozen=True)
class CellJob:
    """Cells on their way to a worker, which trains them together.

    Attributes: wanted: which the store lacks, the others are trained again beside them; call: identifies the call, so
        that a worker discards parts of an earlier one; mechanisms, checkpoints, strict: as for `run_missing`.
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
        return sum(cell.num_steps for cell, wanted in zip(self.cells, self.wanted, strict=True) if wanted)


@dataclasses.dataclass(frozen=True)
class Answer:
    cell: str
    record: dict[str, Any] | None
    steps: RunSteps | None
    failure: dict[str, Any] | None
    timing: dict[str, Any]

    def keep(self, store: Store) -> None:
        """Stores the answer; the timing first, so that every finished cell has one."""
        store.add_timing(self.timing)
        if self.record is not None and self.steps is not None:
            store.add(self.cell, self.record, self.steps)
        elif self.failure is not None:
            store.add_failure(self.cell, self.failure)


def all_but(cell: Cell, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(cell.config, field) for field in cell.config.fields() if field not in names)


_of_call: dict[tuple[int, int], Shared] = {}


def _shared_here(job: CellJob) -> Shared:
    """Parts that this worker made for the call so far; factorizations go to the store if the worker has it."""
    if job.call not in _of_call:
        _of_call.clear()
        _of_call[job.call] = Shared(Solutions(job.store / FACTORIZATIONS if job.store.is_dir() else None))
    return _of_call[job.call]


def work(
    job: CellJob, *, shared: Shared | None = None, progress: Callable[[Cell, int], None] | None = None
) -> list[Answer]:
    """Runs cells together; an error is an answer too, unless the job is strict."""
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
    """A cell with its plan and the arguments of its training; objective: as in results."""

    cell: Cell
    plan: Plan
    mechanism: Mechanism
    objective: dict[str, Any]
    replay: ReplayConfig


Outcome = Run | Exception


def _prepared(
    job: CellJob, number: int, shared: Shared, calibrated: dict[Any, tuple[Mechanism, dict[str, Any]]]
) -> PreparedCell:
    """Everything before training; `calibrated` keeps parts of cells that differ in their seeds alone."""
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
    """The runs, together; where that fails, in halves, down to the one that fails alone."""
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
    same = config.values("metrics", "clipping", "step_rule", "device")
    same |= {"eval_every": config.eval_every or config.period, "clip_schedule": config.clips}
    same |= {"period": config.period if config.unit == "user" else None, "checkpoint_folder": checkpoints}
    return ReplayConfig(mechanism, task, seeds=[seed], progress=False, **same)


def _steps(run: Run, mechanism: Mechanism, config: Experiment) -> RunSteps:
    (name,), (seed,), guarantee = config.mechanisms, run.seeds, mechanism.guarantee
    conditions = {"mechanism": name, "seed": seed.seed, "trust": guarantee.trust, "mu": guarantee.mu}
    conditions |= {"epsilon": guarantee.epsilon(config.delta), "delta": config.delta}
    conditions |= {"task": run.task_name, "graph": config.graph, "lr": config.learning_rate}
    nodes = tuple(str(label) for label in mechanism.algorithm.dynamics.gossip.labels)
    values = {name: np.asarray(measured, dtype=np.float64) for name, measured in seed.measured.items()}
    return RunSteps(conditions, np.asarray(seed.steps, dtype=np.int64), nodes, values)


def _record(cell: Cell, plan: Plan, mechanism: Mechanism, run: Run) -> dict[str, Any]:
    config, guarantee = cell.config, mechanism.guarantee
    _, weights = registry.split(cell.mechanism)
    (seed,) = run.seeds
    ended = {  # of the released model, or of the last ones
        name: (seed.final if name.startswith("final_") else seed.last)(metric_of(name))
        for name in ("final_test_loss", "final_accuracy", *config.measured_besides)
    }
    return {
        **{name: json_number(value) for name, value in ended.items()}, "seed": seed.seed, "diverged": seed.diverged,
        **({"dropped_records": seed.dropped_records} if seed.dropped_records else {}), "cell": cell.hash,
        "config": cell.options, "mechanism": cell.mechanism, "label": text_label(cell.mechanism),
        **{name: getattr(guarantee, name) for name in ("trust", "attacker")}, "mu": json_number(guarantee.mu),
        "epsilon": json_number(guarantee.epsilon(config.delta)),
        **config.values("delta", "adjacency", "unit", "clip_norm", "graph", "task"), "lr": config.learning_rate,
        "error_weights": None if weights is None else weights.describe(),
        "graph_hash": plan.shared.graph_hash(config), "gossip": plan.gossip.name,
        "gossip_hash": plan.gossip.content_hash, "nodes": plan.gossip.num_nodes, "task_hash": plan.task.content_hash,
        "steps": cell.num_steps, "participation": plan.participation.scheme, "guarantee": run.statement(config.delta),
        **{name: getattr(mechanism, name) for name in ("noise_std", "injected_noise_std")},
        "sensitivity": result_sensitivity(mechanism),
        **{name: json_number(getattr(seed, name)) for name in ("untrained_loss", "untrained_accuracy")},
        **{name: json_number(getattr(run, name)) for name in ("chance_loss", "chance_accuracy")},
    }  # fmt: skip


def run_cells(
    cells: Iterable[Cell],
    store: Store | str | os.PathLike[str],
    engine: Engine | None = None,
    *,
    progress: Progress = "auto",
    header: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Runs the cells that the store lacks, and stores each as soon as it is finished; a killed call resumes.

    Args:
        cells: any; shared parts (graph, task, factorization, accounting) are made once by each process.
        store: a folder, made when missing, or its `Store`; the cells come after those it lists.
        engine: default one after another in this process.
        progress: as for `mfdl.runs.comparing.run_comparison`; one step is one training step.
        header: further content of sweep.json; then these cells are all that it lists.
    Returns: the records of the finished cells, in the order of `cells`; those that failed are in `Store.failures()`.
    Raises: InvalidInput: a graph or task that cannot be loaded, a folder that another process is writing. An error in a
        cell does not stop the others.
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
    """Yields each cell that the store lacked, once it is stored.

    Args: report: called with steps just finished, and a description; shared: of the cells that run in this process;
        mechanisms: calibrated ones by cell, others are made where their cell runs; checkpoints: a folder from which a
        stopped run resumes; strict: errors of a cell are raised, instead of stored as its failure.
    """
    wanted = {cell for cell in cells if not store.is_finished(cell)}
    if len(wanted) < len(cells):
        report(sum(cell.num_steps for cell in cells if cell not in wanted), "finished earlier")
    call, place = (time.time_ns(), os.getpid()), store.folder.absolute()
    jobs = []
    for batch in in_good_order(batches(cells, 1 if checkpoints is not None else None)):
        if not wanted.isdisjoint(batch):
            hashes, lacking = tuple(cell.hash for cell in batch), tuple(cell in wanted for cell in batch)
            chosen = tuple((mechanisms or {}).get(cell) for cell in batch)
            jobs.append(CellJob(batch, hashes, lacking, call, place, chosen, checkpoints, strict))
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
    """Cells that differ in seed and learning rate only, at most `most` together: they are trained in one job.

    They follow from the list alone, not from what is finished: the last digits of a run depend on the runs beside it.
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
    """Runs the missing cells of a sweep, and stores it in a folder (`mfdl.runs.store`); returns `answer`.

    Args:
        config: a `SweepConfig`, or a TOML file of one; None: the options alone.
        engine: default one after another in this process; `jobs` of the config is for the command line.
        progress: as for `run_cells`.
        options: those of `SweepConfig`; over a file they win.
    Raises: InvalidInput: a config that is refused, and refusals of `run_cells`; failed cells raise nothing.
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
    assert config.tuning is not None
    groups: dict[str, dict[float, Cell]] = {}
    for cell in cells:
        groups.setdefault(_but_rate(cell), {}).setdefault(cell.config.learning_rate, cell)

    def seed_losses(settings: Sequence[tuple[str, float]], seeds: Sequence[int]) -> dict[tuple[str, float], np.ndarray]:
        tried = {s: [_at(groups[s[0]][s[1]], seed) for seed in seeds] for s in settings}
        every = [cell for of_one in tried.values() for cell in of_one]
        run_cells(every, store, engine, progress=screen, header={"config": config.options()})
        return {setting: np.array([_loss(store, cell) for cell in of_one]) for setting, of_one in tried.items()}

    settings = {name: [(name, rate) for rate in rates] for name, rates in groups.items()}
    best = halved(settings, config.tuning, seed_losses)
    chosen = {name: rate for name, (_, rate) in best.items()}
    named, choices = ("trust", "participation", "mu", "epsilon", "graph", "task"), []
    for name, rate in chosen.items():
        (cell, *_) = groups[name].values()
        options = {name: cell.options[name] for name in named if name in cell.options}
        choices.append({"mechanism": cell.mechanism, **options, "lr": rate})
    return [cell for cell in cells if chosen[_but_rate(cell)] == cell.config.learning_rate], choices


def _but_rate(cell: Cell) -> str:
    options = {name: value for name, value in cell.options.items() if name not in ("lr", "first_seed", "seeds")}
    return json.dumps(options, sort_keys=True)


def _at(cell: Cell, seed: int) -> Cell:
    return Cell(dataclasses.replace(cell.config, first_seed=seed), cell.shared)


def _loss(store: Store, cell: Cell) -> float:
    record = store.record(cell)
    loss = None if record is None else record["final_test_loss"]
    return float("nan") if loss is None else float(loss)
