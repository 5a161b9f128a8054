"""Comparison of mechanisms at one privacy guarantee: train each with the same seeds, keep everything, draw it.

In: a `ComparisonConfig` and a folder. Out: the result as one JSON-ready dict, and the files of `comparison_folder`. All
mechanisms of one seed share data split, initial model and batch order.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .. import __version__, check, files, graphs
from ..algorithms import registry
from ..dynamics import Dynamics
from ..engines import Engine
from ..mechanism import Mechanism
from ..metrics import metric_of, require_measured, result_key
from ..participation import Cyclic
from ..privacy import gaussian
from ..progress import Advance, Progress, reporter
from ..training import distributed, learned, tasks
from ..training.distributed import Group, current
from ..training.learned import Baseline, mean_baseline
from ..training.replay import replay
from ..training.run import Run, SeedRun
from .columns import schema_of
from .comparison_folder import Folder, Key
from .output import json_number
from .shared import Shared, built, trust_of

if TYPE_CHECKING:
    from .comparison_config import ComparisonConfig


CHECKPOINTS = "checkpoints"
"""In the folder of a comparison whose runs are shared by ranks: where a run that was stopped goes on from."""

Finished = tuple[Key, dict[str, Any], pa.Table]


def run_comparison(
    config: ComparisonConfig,
    out: str | os.PathLike[str],
    *,
    resume: bool = True,
    overwrite: bool = False,
    progress: Progress = "auto",
    shared: Shared | None = None,
) -> dict[str, Any]:
    """Runs what is missing of a comparison and writes it to a folder.

    Args:
        config: what to compare.
        out: folder of the files named above; made when missing.
        resume: keep the finished runs that the folder holds for this very config.
        overwrite: replace the files of another config instead of refusing.
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called with the number of steps just
            finished (or found finished) and what is being done; an exception it raises stops the comparison, finished
            runs stay readable.

    Returns: the content of results.json.
    Raises:
        InvalidInput: anything that cannot be used, also a folder that another comparison is writing to, found before
            any work is done or any file is written.
        NotConverged: a mechanism's factorization stopped before its tolerance.
    """
    plan, screen = Plan(config, shared), reporter(progress, words=2)
    folder = Folder(Path(out), plan, resume=resume, overwrite=overwrite)
    with files.held_alone(out), screen.bar("comparing", config.total_steps) as report:
        mechanisms: dict[str, Mechanism] = {}
        for name in config.mechanisms:
            report(0, f"building {name}")
            mechanisms[name] = plan.mechanism(name)
        folder.begin(mechanisms)
        missing = [key for key in config.runs if key not in folder.records]
        if len(missing) < len(config.runs):
            report((len(config.runs) - len(missing)) * plan.participation.num_steps, "finished earlier")
        with _sharing(config.ranks) as group:
            shared_nodes = config.ranks is not None or group.size > 1
            checkpoints = Path(out) / CHECKPOINTS / plan.identity if shared_nodes else None
            for key, record, table in _runs(plan, mechanisms, missing, report, checkpoints):
                folder.add(key, record, table)
            if checkpoints is not None:
                shutil.rmtree(checkpoints.parent)
        return folder.finish()


def _sharing(ranks: int | None) -> contextlib.AbstractContextManager[Group]:
    """The processes that share the nodes of each run: those that torchrun started, or as many as are asked for."""
    if ranks is None or current().size > 1:
        return contextlib.nullcontext(current())
    return distributed.ranks(ranks)


class Plan:
    """A config with its graph, gossip matrix and task loaded: all that can be refused was refused.

    Args: shared: what other plans of this call have made already.
    """

    def __init__(self, config: ComparisonConfig, shared: Shared | None = None) -> None:
        self.config, self.shared = config, shared or Shared()
        self.graph, self.gossip = self.shared.network(config)
        self.dynamics = config.dynamics(self.gossip)
        self.participation = config.scheme()
        check.device(device=config.device)
        self.task = self.shared.task(config)
        require_measured(config.metrics, self.task.kind, self.task.name)
        self.shared.require_fed(config)
        files_of = [name for name in config.mechanisms if name.startswith(registry.FILE_PREFIX)]
        self.from_files = {name: built(config, name, self.gossip) for name in files_of}
        probe = registry.build("dp-dsgd", Dynamics(self.gossip), Cyclic(epochs=1, period=1))
        for name in config.mechanisms:  # refuses nodes that are not there, or coalitions of everybody
            model, _ = trust_of(config, name, self.from_files.get(name))
            next(iter(model.members(probe)))
        self.mu: float | None = config.target_mu_or_default
        self.epsilon: float | None = config.epsilon
        if self.mu is not None:  # else batches are secret
            if self.epsilon is None:
                self.epsilon = gaussian.epsilon_from_mu(self.mu, config.delta)
            else:
                self.mu = gaussian.mu_from_epsilon(self.epsilon, config.delta)

    def mechanism(self, name: str) -> Mechanism:
        """The calibrated mechanism of a name."""
        return self.shared.accounted(self.config, name).mechanism(self.config.target)

    @functools.cached_property
    def untrained(self) -> Baseline | None:
        """The first models, tested: mean over the seeds."""
        return mean_baseline(learned.untrained(self.task, seed) for seed in self.config.seed_list)

    @functools.cached_property
    def chance(self) -> Baseline | None:
        """A guess that looks at no record, tested."""
        return learned.chance(self.task)

    @property
    def identity(self) -> str:
        """16 hex digits of all that decides the numbers; where and with how many workers does not count."""
        content = {
            "options": self.config.deciding_options(),
            "mfdl": __version__,
            "graph": graphs.content_hash(self.graph),
            "gossip": self.gossip.content_hash,
            "task": self.task.content_hash,
            "files": {name: algorithm.content_hash for name, algorithm in self.from_files.items()},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _runs(
    plan: Plan, mechanisms: dict[str, Mechanism], missing: list[Key], report: Advance, checkpoints: Path | None
) -> Iterator[Finished]:
    """The missing runs as they finish; checkpoints: their folder until then."""
    config, steps_done = plan.config, dict.fromkeys(missing, 0)

    def tell(key: Key, steps: int) -> None:
        steps_done[key] += steps
        report(steps, "{}, seed {}".format(*key))

    items = [(name, seed, mechanisms[name], plan.task, config, checkpoints) for name, seed in missing]
    for _, finished in Engine(jobs=config.jobs).run(_worker, items, here={"tell": tell}):
        yield finished
        key = finished[0]
        if left := plan.participation.num_steps - steps_done[key]:
            report(left, "{}, seed {}".format(*key))


def _worker(
    item: tuple[str, int, Mechanism, tasks.Task, ComparisonConfig, Path | None],
    tell: Callable[[Key, int], None] | None = None,
) -> Finished:
    name, seed, mechanism, task, config, checkpoints = item
    progress = None if tell is None else functools.partial(tell, (name, seed))
    if progress is not None:
        progress(0)
    return (name, seed), *_one_run(name, mechanism, task, seed, config, progress, checkpoints)


def _one_run(
    name: str,
    mechanism: Mechanism,
    task: tasks.Task,
    seed: int,
    config: ComparisonConfig,
    progress: Callable[[int], None] | None,
    checkpoints: Path | None,
) -> tuple[dict[str, Any], pa.Table]:
    folder = None if checkpoints is None else checkpoints / mechanism.content_hash
    return record_of(trained(mechanism, task, seed, config, progress, folder), name, mechanism, config)


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
        period=config.period if config.unit == "user" else None,
        device=config.device,
        checkpoint_folder=checkpoints,
        progress=progress,
    )


def _measured(finished: SeedRun, name: str) -> float | None:
    """Of the released model, `final_NAME`, or of the last ones, `last_NAME`."""
    value = finished.final if name.startswith("final_") else finished.last
    return value(metric_of(name))


def record_of(run: Run, name: str, mechanism: Mechanism, config: ComparisonConfig) -> tuple[dict[str, Any], pa.Table]:
    """A run of one seed: its numbers, as they stand in results.json, and its steps."""
    (finished,) = run.seeds
    record = {
        "mechanism": name,
        "seed": finished.seed,
        **{result_key("final", name): json_number(finished.final(name)) for name in ("loss", "accuracy")},
        **{name: json_number(_measured(finished, name)) for name in config.measured_besides},
        "diverged": finished.diverged,
        "seconds": finished.training_seconds,
        "node_steps_per_second": json_number(run.node_steps_per_second),
    }
    guarantee = mechanism.guarantee
    epsilon = guarantee.epsilon(config.delta)
    same = {
        "trust": guarantee.trust,
        "mu": guarantee.mu,
        "epsilon": epsilon,
        "delta": config.delta,
        "task": run.task_name,
    }
    same |= {"mechanism": name, "graph": config.graph, "lr": config.learning_rate}
    return record, pa.Table.from_pylist([{**row, **same} for row in run.rows()], schema=schema_of(config.metrics))
