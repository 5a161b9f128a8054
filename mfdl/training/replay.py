"""replay: train with a mechanism on a task, all nodes at once, and evaluate.

The algorithm that was accounted is the one that runs: its maps by `Executor`, its noise by `noise_stream`. The unit of
privacy is the mechanism's: "record" adds noise to sums of clipped per-record gradients, "user" to clipped means. What
the guarantee does not cover is refused (`covered`). One seed is a `SeedReplay`; runs that differ in little train
together (`batched_runs`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import files
from ..progress import Advance, reporter
from ..spec import takes_fields_of
from . import batched_runs, covered, learned
from .distributed import Group, current
from .keys import NoiseKey
from .replay_config import EvaluatedStep, ReplayConfig
from .run import Run, SeedRun
from .seed_replay import SeedReplay
from .tasks.instance import TaskInstance


@takes_fields_of(ReplayConfig)
def replay(config: ReplayConfig) -> Run:
    """Trains once per seed; `ReplayConfig` has the arguments.

    Returns: Run with one SeedRun per seed.
    Raises:
        InvalidInput: node counts differ, a checkpoint of another run, an unseeded resume without its key, a period
            that the guarantee does not cover, seeded noise of a run to publish, a folder that another run uses.
        UnsupportedMechanism: at record level, a participation that says no batches: other than cyclic, every step,
            Poisson sampling or balls-in-bins.
    """
    doing = f"{config.mechanism.algorithm.name} on {config.task.name}"
    with reporter(config.progress).bar(doing, len(_seeds(config)) * config.last) as advance:
        return replays([config], advance)[0]


def replays(configs: Sequence[ReplayConfig], advance: Advance) -> list[Run]:
    """`replay` of each config; runs that may train together do (`batched_runs`). `advance` is told of steps."""
    wanted = [(config, seed) for config in configs for seed in _seeds(config)]
    finished: dict[int, SeedRun] = {}
    for place, (config, seed) in enumerate(wanted):
        if batched_runs.shared_by(config) is None:
            finished[place] = _alone(config, seed, advance)
    together = [place for place in range(len(wanted)) if place not in finished]
    chosen = [(*wanted[place], _root(*wanted[place])) for place in together]
    finished |= zip(together, batched_runs.trained(chosen, advance), strict=True)
    seed_runs, runs = (finished[place] for place in range(len(wanted))), []
    guesses = functools.cache(learned.chance)
    for config in configs:
        guess = guesses(config.task)
        known = {} if guess is None else {"chance_loss": guess.loss, "chance_accuracy": guess.accuracy}
        declared = covered.left_out(config.mechanism, config.task)
        of_config = tuple(itertools.islice(seed_runs, len(_seeds(config))))
        rule = "" if config.rule is None else str(config.rule)
        runs.append(
            Run(
                config.mechanism,
                config.task.name,
                of_config,
                **known,
                public_constants=declared,
                step_rule=rule,
                clipping=config.clipping,
                task=config.task,
            )
        )
    return runs


def _seeds(config: ReplayConfig) -> tuple[int | None, ...]:
    return (None,) if config.seeds is None else tuple(config.seeds)


def _alone(config: ReplayConfig, seed: int | None, advance: Advance) -> SeedRun:
    """One seed, with its checkpoint."""
    folder = None if config.checkpoint_folder is None else Path(config.checkpoint_folder) / f"seed-{seed}"
    with contextlib.nullcontext() if folder is None else files.held_alone(folder):
        return _trained(config, seed, _root(config, seed), folder, advance)


def fed(config: ReplayConfig) -> Iterator[tuple[TaskInstance, Iterator[TaskInstance]]]:
    """For each seed all records of the run, and those that it feeds in each step; nothing is trained or written."""
    for seed in _seeds(config):
        run = SeedReplay(config, seed, _root(config, seed), None, Group())
        yield run.instance, map(run.batch, range(config.last))


def _root(config: ReplayConfig, seed: int | None) -> NoiseKey:
    """The key of which that of a run is derived."""
    if config.key is not None:
        return config.key
    return NoiseKey.from_entropy() if seed is None else NoiseKey.from_seed(seed)


def _trained(config: ReplayConfig, seed: int | None, root: NoiseKey, folder: Path | None, advance: Advance) -> SeedRun:
    """One seed, by this process or by all ranks of its group."""
    group = current()
    if group.size == 1:
        return SeedReplay(config, seed, root, folder, group).run(advance)
    followed = dataclasses.replace(config, progress=False)
    if config.on_evaluation is not None:  # models are gathered for it on every rank, and the leader alone calls it
        object.__setattr__(followed, "on_evaluation", _untold)
    with group.doing(functools.partial(_followed, followed, seed, root, folder)):
        return SeedReplay(config, seed, root, folder, group).run(advance)


def _followed(config: ReplayConfig, seed: int | None, root: NoiseKey, folder: Path | None, group: Group) -> None:
    SeedReplay(config, seed, root, folder, group).run(lambda *_: None)


def _untold(_: EvaluatedStep) -> None: ...
