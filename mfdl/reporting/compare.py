"""Comparison of mechanisms at one privacy guarantee: train each with the same seeds, keep everything, draw it.

In: a `ComparisonConfig` and a folder. Out: the result as one JSON-ready dict, and in the folder

    results.json     the same dict, rewritten after every finished run (`complete` says whether all are there)
    steps.parquet    every evaluated step of every node and seed
    compare.png/svg  the picture

Each file is the old one or the new one, whole, at any moment, so that a comparison that was stopped is readable and
goes on from the runs it has. All mechanisms of one seed share data split, initial model and batch order.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from .. import __version__, files, gossip, graphs, trust
from ..algorithms import LinearAlgorithm, registry
from ..errors import InvalidInput, UnsupportedMechanism
from ..mechanism import Mechanism, calibrate, without_noise
from ..participation import Cyclic
from ..privacy import gaussian
from ..training import tasks
from ..training.replay import replay
from ..training.run import Run
from ..trust import TrustModel
from .comparison_config import ComparisonConfig
from .output import json_number, require_device, require_writable, versions
from .plots import plot_comparison

NOT_PRIVATE = ("loss", "accuracy", "final_loss", "final_accuracy", "diverged", "seconds", "node_steps_per_second")
"""What of steps.parquet and of the runs in results.json no guarantee covers, as `training.not_private` explains."""

RESULTS, STEPS, PNG, SVG = "results.json", "steps.parquet", "compare.png", "compare.svg"
WITHOUT_NOISE = "none"
SCHEMA = pa.schema(
    [
        ("mechanism", pa.string()),
        ("seed", pa.int64()),
        ("step", pa.int64()),
        ("node", pa.string()),
        ("loss", pa.float64()),
        ("accuracy", pa.float64()),
    ]
)

Progress = Callable[[int, str], None]
"""Called with the number of steps just finished (or found finished) and what is being done."""

Key = tuple[str, int]  # mechanism, seed


def run_comparison(
    config: ComparisonConfig,
    out: str | os.PathLike[str],
    *,
    resume: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Runs what is missing of a comparison and writes it to a folder.

    Args:
        config: what to compare.
        out: folder of the files named above; made when missing.
        resume: keep the finished runs that the folder holds for this very config.
        overwrite: replace the files of another config instead of refusing.
        progress: see `Progress`; an exception it raises stops the comparison, finished runs stay readable.

    Returns: the content of results.json.
    Raises:
        InvalidInput: anything that cannot be used, also a folder that another comparison is writing to, found before
            any work is done or any file is written.
        NotConverged: a mechanism's factorization stopped before its tolerance.
    """
    plan = _Plan(config)
    store = _Store(Path(out), plan, resume=resume, overwrite=overwrite)
    with files.held_alone(out):
        return _run_missing(plan, store, progress or (lambda steps, doing: None))


def _run_missing(plan: _Plan, store: _Store, report: Progress) -> dict[str, Any]:
    config = plan.config
    report(0, "building mechanisms")
    mechanisms: dict[str, Mechanism] = {}
    for name in config.mechanisms:
        report(0, f"building {name}")
        mechanisms[name] = plan.mechanism(name)
    store.begin(mechanisms)
    wanted: list[Key] = [(name, seed) for name in config.mechanisms for seed in config.seed_list]
    missing = [key for key in wanted if key not in store.records]
    if len(missing) < len(wanted):
        report((len(wanted) - len(missing)) * plan.participation.num_steps, "finished earlier")
    for name, seed, record, table in _runs(plan, mechanisms, missing, report):
        store.add((name, seed), record, table)
    return store.finish()


class _Plan:
    """A config with its graph, gossip matrix and task loaded: all that can be refused was refused."""

    def __init__(self, config: ComparisonConfig) -> None:
        self.config = config
        self.graph = graphs.load(config.graph, largest_component=config.largest_component, data_home=config.data_home)
        graphs.require_connected(self.graph)
        self.gossip = gossip.load(config.gossip, self.graph)
        self.dynamics = config.dynamics(self.gossip)
        self.participation = config.participation
        require_device(config.device)
        chosen = {} if config.partition is None else {"partition": config.partition}
        self.task = tasks.load(config.task, self.graph, config.data_home, **chosen)
        split_by_seed = self.task.batch_sizes_depend_on_seed
        for seed in config.seed_list if split_by_seed else [config.first_seed]:
            self.task.instance(seed, config.period)  # refuses nodes with fewer records than batches
        self.from_files = {
            name: self._build(name) for name in config.mechanisms if name.startswith(registry.FILE_PREFIX)
        }
        for name in config.mechanisms:
            self._require_trust(self.trust_of(name)[0])
        if config.epsilon is None:
            self.mu, self.epsilon = (
                config.target_mu_or_default,
                gaussian.epsilon_from_mu(config.target_mu_or_default, config.delta),
            )
        else:
            self.mu, self.epsilon = gaussian.mu_from_epsilon(config.epsilon, config.delta), config.epsilon

    def _build(self, name: str) -> LinearAlgorithm:
        given = self.config.parameters(name)
        if given:
            return registry.build(name, self.dynamics, self.participation, **given)
        size = self.config.coalition_size or len(self.config.colluders or ())
        return registry.build_tuned(name, self.dynamics, self.participation, coalition_size=size)

    def trust_of(self, name: str) -> tuple[TrustModel, str | None]:
        """The trust model and the released models that a mechanism is held to.

        Raises: UnsupportedMechanism: it is not meant for the trust model of the ranking.
        """
        config = self.config
        meant = registry.models_of(name, self.from_files[name]) if name in self.from_files else _meant(name)
        if not meant or config.trust in meant:
            return config.trust_model(), config.release
        if not config.across_trust_models:
            raise UnsupportedMechanism(
                f"this ranking is under trust model {config.trust}, where {name!r} does not protect as it is meant to; "
                f"it is meant for {', '.join(meant)}: choose --trust, leave it out, or compare across trust models "
                "(--across-trust-models), where each mechanism is labelled with its own."
            )
        entry = registry.entry_of(name)
        return trust.named(meant[0]), None if entry is None else entry.release

    def _require_trust(self, model: TrustModel) -> None:
        """Refuses nodes that are not there, or coalitions of everybody, before anything is built."""
        probe = registry.build("dp-dsgd", self.dynamics, Cyclic(epochs=1, period=1))
        next(iter(model.members(probe)))

    def mechanism(self, name: str) -> Mechanism:
        """The calibrated mechanism of a name."""
        algorithm = self.from_files.get(name) or self._build(name)
        model, release = self.trust_of(name)
        if self.config.unit == "record" and not (
            algorithm.divisors_cancel and model.default_release == "not applicable"
        ):
            # divisors do not cancel in views that mix nodes; sizes that follow the seed are refused there
            algorithm = algorithm.with_divisors(self.task.public_batch_sizes(self.config.period))
        common: dict[str, Any] = {
            "trust": model,
            "adjacency": self.config.adjacency,
            "clip_norm": self.config.clip_norm,
            "unit": self.config.unit,
        }
        if name == WITHOUT_NOISE:
            return without_noise(algorithm, **common)
        return calibrate(algorithm, **self.config.target, **common, release=release)

    @property
    def identity(self) -> str:
        """16 hex digits of all that decides the numbers; where and with how many workers does not count."""
        options = self.config.options()
        for name in ("jobs", "device", "data_home"):
            options.pop(name)
        content = {
            "options": options,
            "mfdl": __version__,
            "graph": graphs.content_hash(self.graph),
            "gossip": self.gossip.content_hash,
            "task": self.task.content_hash,
            "files": {name: algorithm.content_hash for name, algorithm in self.from_files.items()},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _meant(name: str) -> tuple[str, ...]:
    entry = registry.entry_of(name)
    return () if entry is None else entry.models


def _runs(
    plan: _Plan, mechanisms: dict[str, Mechanism], missing: list[Key], report: Progress
) -> Iterator[tuple[str, int, dict[str, Any], pa.Table]]:
    """The missing runs as they finish."""
    config = plan.config
    if min(config.jobs, len(missing)) <= 1:
        for name, seed in missing:
            doing = f"{name}, seed {seed}"
            report(0, doing)
            finished = _one_run(name, mechanisms[name], plan.task, seed, config, _naming(report, doing))
            yield name, seed, *finished
        return
    from joblib import Parallel, delayed  # processes are started only here

    report(0, f"{config.jobs} workers")
    pool = Parallel(n_jobs=min(config.jobs, len(missing)), return_as="generator_unordered")
    finished_runs = pool(delayed(_worker)(name, mechanisms[name], plan.task, seed, config) for name, seed in missing)
    with contextlib.closing(finished_runs):
        for name, seed, record, table in finished_runs:
            yield name, seed, record, table
            report(plan.participation.num_steps, f"{name}, seed {seed}")


def _naming(report: Progress, doing: str) -> Callable[[int], None]:
    return lambda steps: report(steps, doing)


def _worker(
    name: str, mechanism: Mechanism, task: tasks.Task, seed: int, config: ComparisonConfig
) -> tuple[str, int, dict[str, Any], pa.Table]:
    torch.set_num_threads(1)
    return name, seed, *_one_run(name, mechanism, task, seed, config, None)


def _one_run(
    name: str,
    mechanism: Mechanism,
    task: tasks.Task,
    seed: int,
    config: ComparisonConfig,
    progress: Callable[[int], None] | None,
) -> tuple[dict[str, Any], pa.Table]:
    run = replay(
        mechanism,
        task,
        seeds=[seed],
        eval_every=config.eval_every or config.period,
        period=config.period if config.unit == "user" else None,
        device=config.device,
        progress=progress,
    )
    (one,) = run.seeds
    record = {
        "mechanism": name,
        "seed": seed,
        "final_loss": json_number(one.final_loss),
        "final_accuracy": json_number(one.final_accuracy),
        "diverged": one.diverged,
        "seconds": one.training_seconds,
        "node_steps_per_second": json_number(run.node_steps_per_second),
    }
    return record, _table(name, run)


def _table(name: str, run: Run) -> pa.Table:
    rows = [{**row, "mechanism": name} for row in run.rows()]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


RUN_FIELDS = ("final_loss", "final_accuracy", "diverged", "seconds", "node_steps_per_second")


def _runs_of(earlier: dict[str, Any]) -> list[dict[str, Any]]:
    """The finished runs that results.json names; what this version would not have written is not finished."""
    found = earlier.get("runs")
    wanted = {"mechanism", "seed", *RUN_FIELDS}
    rows = found if isinstance(found, list) else []
    return [
        one
        for one in rows
        if isinstance(one, dict)
        and set(one) == wanted
        and isinstance(one["mechanism"], str)
        and type(one["seed"]) is int
        and isinstance(one["diverged"], bool)
        and all(isinstance(one[name], float | None) for name in ("final_loss", "final_accuracy"))
        and isinstance(one["seconds"], float)
    ]


class _Store:
    """The folder: which runs it holds, and writing them so that it is readable at any moment."""

    def __init__(self, folder: Path, plan: _Plan, *, resume: bool, overwrite: bool) -> None:
        self.folder, self.plan, self.identity = folder, plan, plan.identity
        if folder.exists() and not folder.is_dir():
            raise InvalidInput(f"cannot write to {folder}: it is a file; give a folder.")
        for name in (RESULTS, STEPS, PNG, SVG):
            require_writable(folder / name)
        self.records: dict[Key, dict[str, Any]] = {}
        self.tables: dict[Key, pa.Table] = {}
        self.mechanisms: dict[str, Mechanism] = {}
        earlier = self._earlier_result()
        self._drawn = earlier is not None and resume and earlier.get("complete") is True
        if earlier is None:
            held = [name for name in (RESULTS, STEPS, PNG, SVG) if (folder / name).exists()]
            if held and not overwrite:
                raise InvalidInput(
                    f"{folder} holds {held[0]} of another comparison; choose another folder, or replace it with "
                    "overwrite=True (command line: --overwrite)."
                )
        elif resume:
            self._take_over(earlier)

    def _earlier_result(self) -> dict[str, Any] | None:
        """results.json if it is of this very config, else None."""
        try:
            found = json.loads((self.folder / RESULTS).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and found.get("config_hash") == self.identity else None

    def _take_over(self, earlier: dict[str, Any]) -> None:
        try:
            table = pq.read_table(io.BytesIO((self.folder / STEPS).read_bytes())).cast(SCHEMA)
        except (OSError, ValueError, pa.ArrowException):  # ValueError: other columns
            return  # without its steps a run is not finished
        names, seeds = np.asarray(table["mechanism"]), np.asarray(table["seed"])
        for record in _runs_of(earlier):
            key = (record["mechanism"], record["seed"])
            rows = table.filter(pa.array((names == key[0]) & (seeds == key[1])))
            if rows.num_rows:
                self.records[key], self.tables[key] = record, rows

    def begin(self, mechanisms: dict[str, Mechanism]) -> None:
        """Takes the folder: from here on it holds this comparison and nothing of an earlier one."""
        self.mechanisms = mechanisms
        # first of all, so that a full disk leaves the earlier comparison; from then on nothing of it counts
        files.atomic_write_json(self.folder / RESULTS, self.result(complete=False))
        # also what stayed of an earlier one because a process was killed right here
        stale = (*(() if self.records else (STEPS,)), *(() if self._drawn else (PNG, SVG)))
        gone = [self.folder / name for name in stale]
        for name in (RESULTS, STEPS, PNG, SVG):  # what killed runs left: a folder belongs to one comparison at a time
            gone += self.folder.glob(f".{name}.*.tmp")
        for path in gone:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise InvalidInput(f"cannot remove {path}: {error.strerror}; choose another folder.") from error

    def add(self, key: Key, record: dict[str, Any], table: pa.Table) -> None:
        """Records one finished run; the steps first, so that results.json never names a run without them."""
        self.records[key], self.tables[key] = record, table
        self._write_steps()
        files.atomic_write_json(self.folder / RESULTS, self.result(complete=False))

    def finish(self) -> dict[str, Any]:
        """Draws the picture and marks the result complete, last of all."""
        result = self.result(complete=True)
        steps = self._write_steps()
        figure = plot_comparison(result, steps)
        for name, kind in ((PNG, {"format": "png", "dpi": 150}), (SVG, {"format": "svg", "metadata": {"Date": None}})):
            buffer = io.BytesIO()
            figure.savefig(buffer, **kind)
            files.atomic_write_bytes(self.folder / name, buffer.getvalue())
        files.atomic_write_json(self.folder / RESULTS, result)
        return result

    def _ordered(self) -> list[Key]:
        config = self.plan.config
        order = [(name, seed) for name in config.mechanisms for seed in config.seed_list]
        return [key for key in order if key in self.records]

    def _write_steps(self) -> pa.Table:
        table = pa.concat_tables([SCHEMA.empty_table(), *(self.tables[key] for key in self._ordered())])
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        files.atomic_write_bytes(self.folder / STEPS, buffer.getvalue())
        return table

    def result(self, *, complete: bool) -> dict[str, Any]:
        """Everything known so far."""
        plan, config = self.plan, self.plan.config
        return {
            "graph": config.graph,
            "graph_hash": graphs.content_hash(plan.graph),
            "gossip": plan.gossip.name,
            "gossip_hash": plan.gossip.content_hash,
            "nodes": plan.dynamics.num_nodes,
            "task": plan.task.name,
            "steps": plan.participation.num_steps,
            "participation": {
                **plan.participation.to_dict(),
                "epochs": config.epochs,
                "period": config.period,
            },
            "unit": config.unit,
            "trust": config.trust,
            "across_trust_models": self._across(),
            "adjacency": config.adjacency,
            "clip_norm": config.clip_norm,
            "learning_rate": config.learning_rate,
            "momentum": config.momentum,
            "weight_decay": config.weight_decay,
            "mu": json_number(plan.mu),
            "epsilon": json_number(plan.epsilon),
            "delta": config.delta,
            "seeds": config.seed_list,
            "guarantee": self._guarantee(),
            "noise": "seeded",
            "not_private": list(NOT_PRIVATE),
            "mechanisms": [self._summary(name) for name in config.mechanisms],
            "runs": [self.records[key] for key in self._ordered()],
            "complete": complete,
            "config": {**config.options(), "out": str(self.folder)},
            "config_hash": self.identity,
            "versions": versions(),
        }

    def _guarantee(self) -> str:
        """The sentence of the weakest guarantee among the mechanisms with noise; it holds for each of them."""
        if self._across():
            return "Each mechanism is held to its own trust model, named beside it: their losses are no ranking."
        noisy = [one.guarantee for one in self.mechanisms.values() if math.isfinite(one.guarantee.mu)]
        every = noisy or [one.guarantee for one in self.mechanisms.values()]
        return max(every, key=lambda one: (one.mu, one.bound == "upper")).sentence()

    def _across(self) -> bool:
        """Whether mechanisms with noise are held to different trust models."""
        noisy = [one.guarantee for one in self.mechanisms.values() if math.isfinite(one.guarantee.mu)]
        return len({(one.trust, one.attacker, one.release) for one in noisy}) > 1

    def _label(self, name: str) -> str:
        mechanism = self.mechanisms[name]
        if not self._across() or not math.isfinite(mechanism.guarantee.mu):
            return name
        return f"{name} [{mechanism.guarantee.trust}]"

    def _summary(self, name: str) -> dict[str, Any]:
        mechanism = self.mechanisms[name]
        runs = [self.records[key] for key in self._ordered() if key[0] == name]
        losses, accuracies = [one["final_loss"] for one in runs], [one["final_accuracy"] for one in runs]
        diverged = [one["seed"] for one in runs if one["diverged"]]
        usable = bool(runs) and None not in losses
        seconds = sum(one["seconds"] for one in runs)
        steps = len(runs) * self.plan.dynamics.num_nodes * self.plan.participation.num_steps
        with_accuracy = usable and None not in accuracies
        return {
            "mechanism": name,
            "label": self._label(name),
            "trust": mechanism.guarantee.trust,
            "guarantee": mechanism.guarantee.sentence(),
            "noise_std": mechanism.noise_std,  # nu, what `mfdl account --noise-std` takes
            "injected_noise_std": mechanism.injected_noise_std,
            "objective": json_number(mechanism.objective),
            "final_loss_mean": float(np.mean(losses)) if usable else None,
            # of the sample; one seed has no spread
            "final_loss_std": (float(np.std(losses, ddof=1)) if len(runs) > 1 else 0.0) if usable else None,
            "final_accuracy_mean": float(np.mean(accuracies)) if with_accuracy else None,
            "diverged": diverged,
            "seconds": seconds,
            "node_steps_per_second": json_number(steps / seconds) if seconds > 0 else None,
        }
