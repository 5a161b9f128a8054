"""Runs of the loss table: what is trained on which scene, and the folder in which every finished run is kept.

In: scenes and settings. Out: a JSON file per setting and seed; the losses of settings whose runs are complete.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _training import models_after, record_losses
from joblib import Parallel, delayed
from rich.progress import Progress

import mfdl
from mfdl import files, trust
from mfdl.algorithms import LinearAlgorithm, registry
from mfdl.algorithms.dsgd import decentralized
from mfdl.errors import InvalidInput
from mfdl.factorization import NotConverged
from mfdl.mechanism import Mechanism, without_noise
from mfdl.training.tasks import Task

CLIP_NORM, ADJACENCY = 1.0, "zero-out"
RATES = (0.03, 0.1, 0.3)
WEIGHTS = ("all", "last:48:0.01", "last:16:0.01", "exponential:24")  # without a floor the solver stops at gap 8e-4


@dataclass(frozen=True)
class Scene:
    """A graph with a task, and the seeds of its table."""

    graph: str
    task: str
    epochs: int = 20
    period: int = 16
    seeds: int = 5
    rates: tuple[float, ...] = RATES
    weights: tuple[str, ...] = WEIGHTS

    @property
    def evaluated(self) -> tuple[int, ...]:
        """Ends of the last three epochs."""
        return tuple(self.period * e for e in range(max(1, self.epochs - 2), self.epochs + 1))


SCENES = {
    "ego": Scene("ego-facebook", "housing", seeds=10),
    "florentine": Scene("florentine", "housing"),
    "erdos-renyi": Scene("erdos-renyi:n=50,p=0.12,seed=0", "housing"),
    "a9a": Scene("erdos-renyi:n=50,p=0.12,seed=0", "a9a"),
    "quick": Scene("ring:n=4", "digits", 3, 2, seeds=2, rates=(0.1, 0.3), weights=("all", "last:2:0.01")),
}


@dataclass(frozen=True)
class Setting:
    """What is trained, but for the seed; budget None: without noise."""

    scene: str
    mechanism: str
    rate: float
    budget: float | None

    def path(self, folder: Path, seed: int) -> Path:
        """Where a run is kept: readable, and one file for one run."""
        name = re.sub(r"[^\w.@-]", "_", self.mechanism)
        return folder / "runs" / self.scene / f"{name}-mu{self.budget}-rate{self.rate:g}-seed{seed}.json"


def with_rate(algorithm: LinearAlgorithm, rate: float) -> LinearAlgorithm:
    """The algorithm at another constant learning rate: its factorization is the same, errors being in units of it."""
    dynamics = dataclasses.replace(algorithm.dynamics, learning_rate=rate)
    return decentralized(
        algorithm.name, dynamics, algorithm.participation, algorithm.noise, factorization=algorithm.factorization
    )


def held_to(name: str) -> trust.TrustModel:
    """The strictest trust model of the two rankings under which a mechanism protects as it is meant to."""
    entry = registry.entry_of(name)
    return trust.named("ldp" if entry is None or not entry.models or "ldp" in entry.models else "eavesdropper")


class Bench:
    """A scene with graph and task loaded; one factorization per mechanism."""

    def __init__(self, scene: Scene, data_home: Path | None) -> None:
        self.scene = scene
        graph = mfdl.graphs.load(scene.graph, data_home=data_home)
        self.dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph))
        self.participation = mfdl.Cyclic(epochs=scene.epochs, period=scene.period)
        self.task: Task = mfdl.tasks.load(scene.task, graph, data_home)
        self.made: dict[str, LinearAlgorithm] = {}

    def mechanism(self, setting: Setting) -> Mechanism:
        """Calibrated to the budget. Raises: NotConverged: no factorization for these weights."""
        name = setting.mechanism
        if name not in self.made:
            self.made[name] = registry.build_tuned(name, self.dynamics, self.participation)
        algorithm = with_rate(self.made[name], setting.rate)
        common: dict[str, Any] = {"trust": held_to(name), "adjacency": ADJACENCY, "clip_norm": CLIP_NORM}
        if setting.budget is None:
            return without_noise(algorithm, **common)
        return mfdl.calibrate(algorithm, **common, mu=setting.budget)


def one_run(mechanism: Mechanism, task: Task, scene: Scene, seed: int) -> dict[str, Any]:
    """What is kept of a run: losses of the last evaluations, each the mean over nodes; null if the run diverged."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    extreme = int(np.abs(task.test_features.reshape(len(task.test_features), -1)).max(axis=1).argmax())
    losses: list[np.ndarray] = []
    for instance, models in models_after(mechanism, task, seed, scene.evaluated, period=scene.period):
        losses.append(record_losses(instance, models))
    found = np.stack(losses)  # (evaluations, n, records)
    nodes = found.mean(axis=2)
    others = np.delete(found, extreme, axis=2)
    diverged = not np.isfinite(found).all()

    def number(value: Any) -> float | None:
        return None if diverged else float(value)

    return {
        "loss": number(nodes.mean()),
        "by_evaluation": [number(one) for one in nodes.mean(axis=1)],
        "worst_node": number(nodes.mean(axis=0).max()),
        "without_extreme": number(others.mean()),
        "median": number(np.median(found, axis=2).mean()),
        "diverged": diverged,
        "injected_noise_std": mechanism.injected_noise_std,
        "mu": mechanism.guarantee.mu if math.isfinite(mechanism.guarantee.mu) else None,
        "seconds": time.perf_counter() - began,
    }


class Runs:
    """The folder of finished runs, and what finishes the others."""

    def __init__(self, out: Path, scenes: dict[str, Scene], jobs: int, data_home: Path | None) -> None:
        self.out, self.scenes, self.jobs, self.data_home = out, scenes, jobs, data_home
        self.refused: dict[str, str] = {}
        self._benches: dict[str, Bench] = {}
        self._read: dict[Path, dict[str, Any]] = {}

    def bench(self, scene: str) -> Bench:
        """The scene, loaded once."""
        if scene not in self._benches:
            self._benches = {scene: Bench(self.scenes[scene], self.data_home)}
        return self._benches[scene]

    def record(self, setting: Setting, seed: int) -> dict[str, Any] | None:
        """A finished run, or None."""
        path = setting.path(self.out, seed)
        if path not in self._read and path.exists():
            self._read[path] = json.loads(path.read_text(encoding="utf-8"))
        return self._read.get(path)

    def losses(self, setting: Setting, seeds: Sequence[int], what: str = "loss") -> np.ndarray | None:
        """One value per seed, nan where the run diverged; None while one is missing."""
        found = [self.record(setting, seed) for seed in seeds]
        if None in found:
            return None
        return np.array([math.nan if one[what] is None else one[what] for one in found if one is not None])

    def finish(self, settings: Sequence[Setting], seeds: Sequence[int], what: str, progress: Progress) -> None:
        """Runs what is missing, a file each; a mechanism whose factorization does not converge is left out."""
        missing = [(one, seed) for one in settings for seed in seeds if self.record(one, seed) is None]
        bar = progress.add_task(
            what, total=len(settings) * len(seeds), completed=len(settings) * len(seeds) - len(missing)
        )
        for setting, seed, record in Parallel(
            n_jobs=self.jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs"
        )(self._work(missing)):
            path = setting.path(self.out, seed)
            files.atomic_write_json(path, {**dataclasses.asdict(setting), "seed": seed, **record})
            progress.advance(bar)
            if not progress.console.is_terminal:
                done = progress.tasks[bar]
                left = "" if done.time_remaining is None else f", {done.time_remaining:.0f} s left"
                loss = "diverged" if record["loss"] is None else f"{record['loss']:.4f}"
                print(f"{what}: {done.completed:.0f}/{done.total:.0f}{left}: {path.stem} {loss}", flush=True)

    def _work(self, missing: Sequence[tuple[Setting, int]]) -> Iterator[Any]:
        """Calls for the workers, each mechanism made when its turn comes."""
        last: tuple[Setting, Mechanism] | None = None
        for setting, seed in missing:
            bench = self.bench(setting.scene)
            if setting.mechanism in self.refused:
                continue
            if last is None or last[0] != setting:
                try:
                    last = setting, bench.mechanism(setting)
                except (NotConverged, InvalidInput) as error:
                    self.refused[setting.mechanism] = str(error)
                    print(f"left out: {setting.mechanism}: {error}", flush=True)
                    continue
            yield delayed(_labelled)(setting, seed, last[1], bench.task, bench.scene)


def _labelled(
    setting: Setting, seed: int, mechanism: Mechanism, task: Task, scene: Scene
) -> tuple[Setting, int, dict[str, Any]]:
    return setting, seed, one_run(mechanism, task, scene, seed)
