"""replay: train with a mechanism on a task, all nodes at once, and evaluate.

The accounted algorithm runs: its maps by `Executor`, its noise by `noise_stream`; what the guarantee does not cover is
refused (`replay_config`). Runs whose algorithms are the same but for constants on inputs (`input_scales`) train
together (`BatchedRuns`), R runs as R blocks of columns of one state. Each equals the run alone up to rounding, with the
same noise; no map mixes columns and no gradient mixes nodes, so a run that diverges leaves the others alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import files, metrics
from ..algorithms.error_in_models import InputScales, input_scales
from ..check import FloatArray
from ..noise.stream import kept_bytes
from ..progress import Advance, reporter
from ..spec import takes_fields_of
from . import learned, replay_config
from .clipping import counting_dropped
from .distributed import Group, current
from .executor import Releasing
from .keys import NoiseKey
from .replay_config import ReplayConfig, chosen_device
from .run import Run, SeedRun
from .seed_replay import SeedReplay, few_threads
from .tasks.instance import TaskInstance, evaluate, fit_together, stacked, without_copies

MOST_RUNS = {"cpu": 4, "cuda": 64}  # runs at a time, by type of device; on a CPU eight gain no more than four
RECORD_BYTES = {"cpu": 2**28, "cuda": 2**31}  # largest size of their records
NOISE_BYTES = 2**31  # largest size of base noise that their streams keep
Wanted = tuple[ReplayConfig, int | None, NoiseKey]  # a run by its config, its seed and its root key


def shared_by(config: ReplayConfig) -> tuple[Hashable, ...] | None:
    """Properties that runs must share to train together; None for a run that trains alone."""
    alone = config.checkpoint_folder is not None or config.keep_messages or config.on_evaluation is not None
    if alone or config.rule is not None or current().size > 1:
        return None
    mechanism, last = config.mechanism, config.last
    clips = None if config.clip_schedule is None else np.asarray(config.clip_schedule).tobytes()
    settings = mechanism.unit, config.clip_rule, mechanism.sampling, clips, config.fed_every, last, config.eval_every
    task = config.task.content_hash  # threads of one process may each have loaded the same task
    return task, mechanism.algorithm.num_steps, *settings, tuple(config.metrics), config.dtype, config.where


def most_on(device: str | torch.device | None) -> int:
    return MOST_RUNS["cpu" if chosen_device(device).type == "cpu" else "cuda"]


def _batches(wanted: Sequence[Wanted], places: Sequence[int]) -> Iterator[list[tuple[int, SeedReplay]]]:
    """Runs by their places, as many at a time as memory has room for."""
    batch: list[tuple[int, SeedReplay]] = []
    for place in places:
        like = batch[-1][1] if batch else None
        run = SeedReplay(*wanted[place], None, Group(), like)
        batch.append((place, run))
        if len(batch) >= _most(run):
            yield batch
            batch = []
    if batch:
        yield batch


def _most(run: SeedReplay) -> int:
    kind = "cpu" if run.device.type == "cpu" else "cuda"
    noise_bytes = kept_bytes(run.algorithm.noise, run.instance.dimension)
    room = RECORD_BYTES[kind] // max(1, run.instance.features.nbytes), NOISE_BYTES // max(1, noise_bytes)
    return max(1, min(MOST_RUNS[kind], *room))


def _train(batch: list[tuple[int, SeedReplay]], advance: Advance, finished: dict[int, SeedRun]) -> None:
    """Trains together the runs whose maps are the first one's up to scales of inputs, group by group."""
    while batch:
        (_, first), *_ = batch
        fits = {place: run is first or fit_together(run.instance, first.instance) for place, run in batch}
        scales = {place: input_scales(run.algorithm, first.algorithm) for place, run in batch if fits[place]}
        constants = {place: scale for place, scale in scales.items() if scale is not None}
        together = [run for place, run in batch if place in constants]
        batch = [(place, run) for place, run in batch if place not in constants]
        if len(together) == 1:
            results = [together[0].run(advance)]
        else:
            results = BatchedRuns(together, [*constants.values()]).run(advance)
        finished |= zip(constants, results, strict=True)


class BatchedRuns:
    """R runs with the `shared_by` of the first one, whose executor they share; scales: of the inputs of each."""

    def __init__(self, runs: Sequence[SeedReplay], scales: Sequence[InputScales]) -> None:
        self.runs, self.first, self.executor = runs, runs[0], runs[0].executor
        self._dimension, device = self.first.instance.dimension, self.first.device
        factors = [np.stack([getattr(x, name) for x in scales], axis=1) for name in ("gradient", "noise")]
        self._scales: tuple[torch.Tensor, torch.Tensor] | None = None
        if any((factor != 1).any() for factor in factors):
            wide = (np.repeat(factor, self._dimension, axis=1) for factor in factors)
            gradient, noise = (torch.tensor(factor, dtype=torch.float64, device=device) for factor in wide)
            self._scales = gradient, noise
        self._instances = [run.instance for run in runs]
        self._start = torch.cat([instance.initial_parameters for instance in self._instances])
        self._stacks: dict[int, TaskInstance] = {}
        if self.first.batches is None:
            self._stacks[0] = stacked(self._instances)
            self._instances = without_copies(self._instances, self._stacks[0])
            for run, instance in zip(runs, self._instances, strict=True):
                run.instance = instance
        self._evaluated: list[tuple[int, dict[str, torch.Tensor]]] = []

    def run(self, advance: Advance) -> list[SeedRun]:
        with few_threads(self._instances):
            return self._run(advance)

    def _run(self, advance: Advance) -> list[SeedRun]:
        runs, first, executor, seconds = self.runs, self.first, self.executor, 0.0
        last, every, T = first.config.last, first.evaluated_every, first.algorithm.num_steps
        streams = [run.stream() for run in runs]
        state = executor.initial_state(self._columns(self._start))
        releasing = Releasing(executor, len(runs) * self._dimension)
        for t in range(last):
            began = time.perf_counter()
            models = self._rows(executor.models(state))
            with counting_dropped() as dropped:
                gradients = first.clipped(self._batch(t), models, t)
            if dropped():
                self._count_dropped(t, models)
            noise = np.concatenate([stream.step(t) for stream in streams], axis=1)
            state = self._stepped(t, state, self._columns(gradients), noise)
            releasing.after(t, state)
            seconds += time.perf_counter() - began
            if (t + 1) % every == 0 or t + 1 == T:
                self._evaluated.append((t + 1, self._measured(self._rows(executor.models(state)))))
            advance(len(runs))
        released: dict[str, torch.Tensor] = {}
        models = self._rows(executor.models(state))
        if last == T and releasing.total is not None:
            models = self._rows(releasing.models(state))
            released = self._measured(models)
        return self._results(models, released, last, seconds / len(runs))

    def _count_dropped(self, t: int, models: torch.Tensor) -> None:
        """Counts dropped gradients by run, which takes the gradients again."""
        for run, of_run in zip(self.runs, models.chunk(len(self.runs)), strict=True):
            with counting_dropped() as dropped:
                run.clipped(run.batch(t), of_run, t)
            run.dropped += dropped()

    def _stepped(self, t: int, state: torch.Tensor, gradients: torch.Tensor, noise: FloatArray) -> torch.Tensor:
        """The state after a step; where noise enters with gradients, their sum is scaled."""
        if self._scales is None:
            return self.executor.step(t, state, gradients, noise)[1]
        of_gradients, of_noise = self._scales
        if self.executor.noise_on_gradients:
            return self.executor.step(t, state, gradients, noise, of_gradients.mul)[1]
        scaled = torch.tensor(noise, device=of_noise.device) * of_noise
        return self.executor.step(t, state, gradients * of_gradients, scaled)[1]

    def _rows(self, columns: torch.Tensor) -> torch.Tensor:
        """(n, R d), run by run of columns, as (R n, d)."""
        return columns.unflatten(1, (len(self.runs), -1)).transpose(0, 1).flatten(0, 1)

    def _columns(self, rows: torch.Tensor) -> torch.Tensor:  # the inverse of `_rows`
        return rows.unflatten(0, (len(self.runs), -1)).transpose(0, 1).flatten(1)

    def _batch(self, step: int) -> TaskInstance:
        """The records of all runs in a step: all of its class, or those drawn; bins are stacked once."""
        if (batches := self.first.batches) is None:
            return self._stacks[0]
        if batches.repeats_after is None:
            return stacked([run.batch(step) for run in self.runs])
        if (place := step % batches.repeats_after) not in self._stacks:
            self._stacks[place] = stacked([run.batch(step) for run in self.runs])
        return self._stacks[place]

    def _measured(self, models: torch.Tensor) -> dict[str, torch.Tensor]:
        """Metrics of all runs, shape (R, n), or (R,) for those of average models, and which runs are finite.

        They stay on the device until the end, so that no step waits for them.
        """
        result = evaluate(self._instances, models, self.first.metrics)
        measured = {"loss": result.loss, "accuracy": result.accuracy, **result.metrics}
        finite = torch.isfinite(result.loss) & torch.isfinite(models).all(1)
        R = len(self.runs)
        of_runs = {
            name: values.unflatten(0, (R, -1)) if metrics.is_of_nodes(name) else values
            for name, values in measured.items()
            if values is not None
        }
        return of_runs | {"finite": finite.unflatten(0, (R, -1)).all(1)}

    def _results(
        self, models: torch.Tensor, released: dict[str, torch.Tensor], finished_steps: int, seconds: float
    ) -> list[SeedRun]:
        tables = [(step, _on_cpu(table)) for step, table in self._evaluated]
        at_end, of_runs = _on_cpu(released), models.unflatten(0, (len(self.runs), -1)).double().cpu().numpy()
        results = []
        for place, run in enumerate(self.runs):
            for step, table in tables:
                run.record(step, {name: values[place] for name, values in table.items() if name != "finite"})
            finite = [table["finite"][place] for table in (*(table for _, table in tables), at_end) if table]
            run.diverged = not all(finite)
            values_at_end = {name: values[place] for name, values in at_end.items() if name != "finite"}
            results.append(run.result(of_runs[place], values_at_end, finished_steps, seconds))
        return results


def _on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: values.double().cpu().numpy() for name, values in tensors.items()}


@takes_fields_of(ReplayConfig)
def replay(config: ReplayConfig) -> Run:
    """Trains once per seed; `ReplayConfig` has the arguments.

    Raises:
        InvalidInput: node counts differ, a checkpoint of another run, an unseeded resume without its key, a period that
            the guarantee does not cover, seeded noise of a run to publish, a folder that another run uses.
        UnsupportedMechanism: at record level, a participation without a rule for batches.
    """
    doing = f"{config.mechanism.algorithm.name} on {config.task.name}"
    with reporter(config.progress).bar(doing, len(_seeds(config)) * config.last) as advance:
        return replays([config], advance)[0]


def replays(configs: Sequence[ReplayConfig], advance: Advance) -> list[Run]:
    """`replay` of each config; runs that may train together do. `advance` counts steps."""
    wanted = [(config, seed, _root(config, seed)) for config in configs for seed in _seeds(config)]
    finished, groups = dict[int, SeedRun](), dict[Hashable, list[int]]()
    for place, (config, seed, root) in enumerate(wanted):
        if (shared := shared_by(config)) is None:
            finished[place] = _alone(config, seed, root, advance)
        else:
            groups.setdefault(shared, []).append(place)
    for places in groups.values():
        for batch in _batches(wanted, places):
            _train(batch, advance, finished)
    seed_runs, runs = (finished[place] for place in range(len(wanted))), []
    guesses = functools.cache(learned.chance)
    for config in configs:
        guess = guesses(config.task)
        known: dict[str, Any] = {} if guess is None else {"chance_loss": guess.loss, "chance_accuracy": guess.accuracy}
        known["public_constants"] = replay_config.left_out(config.mechanism, config.task)
        known |= {"step_rule": "" if config.rule is None else str(config.rule), "clipping": config.clipping}
        of_config = tuple(itertools.islice(seed_runs, len(_seeds(config))))
        runs.append(Run(config.mechanism, config.task.name, of_config, **known, task=config.task))
    return runs


def _seeds(config: ReplayConfig) -> tuple[int | None, ...]:
    return (None,) if config.seeds is None else tuple(config.seeds)


def fed(config: ReplayConfig) -> Iterator[tuple[TaskInstance, Iterator[TaskInstance]]]:
    """For each seed all records of the run, and those that it feeds in each step; nothing is trained or written."""
    for seed in _seeds(config):
        run = SeedReplay(config, seed, _root(config, seed), None, Group())
        yield run.instance, map(run.batch, range(config.last))


def _root(config: ReplayConfig, seed: int | None) -> NoiseKey:
    if config.key is not None:
        return config.key
    return NoiseKey.from_entropy() if seed is None else NoiseKey.from_seed(seed)


def _alone(config: ReplayConfig, seed: int | None, root: NoiseKey, advance: Advance) -> SeedRun:
    """One seed with its checkpoint, by this process or by all ranks of its group."""
    folder = None if config.checkpoint_folder is None else Path(config.checkpoint_folder) / f"seed-{seed}"
    group = current()
    with contextlib.ExitStack() as until_the_end:
        if folder is not None:
            until_the_end.enter_context(files.held_alone(folder))
        if group.size > 1:
            followed = dataclasses.replace(config, progress=False)
            if config.on_evaluation is not None:  # its models are gathered on every rank, the leader alone calls it
                object.__setattr__(followed, "on_evaluation", lambda _: None)
            work = functools.partial(_followed, followed, seed, root, folder)
            until_the_end.enter_context(group.doing(work))
        return SeedReplay(config, seed, root, folder, group).run(advance)


def _followed(config: ReplayConfig, seed: int | None, root: NoiseKey, folder: Path | None, group: Group) -> None:
    SeedReplay(config, seed, root, folder, group).run(lambda *_: None)
