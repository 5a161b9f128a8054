"""Which mechanism for which trust model: final test loss at one privacy guarantee, all mechanisms on the same seeds.

The protocol was fixed before any run of the table:

- loss: mean over the nodes and the evaluations at the ends of the last three epochs; beside it the loss without the
  test record that lies farthest out, which dominates the squared error of noisy models on housing, and the median;
- 20 epochs of 16 steps, (20, 16)-cyclic participation, zero-out adjacency, clipping at 1, Metropolis-Hastings weights;
- learning rates 0.03, 0.1 and 0.3 for every mechanism alike; of a mechanism that optimises also the error weights are
  chosen (its row "weighted"). Seeds 0 and 1 try everything, the best third, at least two, goes on to seeds 2 to 4, and
  the best mean of the five is taken. Weights are chosen at the first budget, rates at every budget. Where one
  factorization lasts minutes on a large graph, rate and weights are those of a relative: encoders per node or per class
  of nodes take MAFALDA's, the adapted form takes those of time (x) space;
- the table: seeds from 100 on, run once. Intervals are Student t at 95 %, paired by seed with MAFALDA;
- a mechanism that holds under LDP holds under the eavesdropper with the same noise (every message is seen in both), so
  its runs serve both rankings.

Every finished run is a file of its own in OUT/runs: the same command goes on where it was stopped. Files are known by
their settings alone, so use a new folder after a change of the library. Writes table.csv, table.md and runs.json
after every mechanism and the trade-off picture (loss against epsilon) after every budget.

    python experiments/which_mechanism.py [--out DIR] [--scenes ego,florentine,...] [--budgets 0.5,0.2,1] [--seeds 10]
        [--mechanisms mafalda,corn,...] [--jobs 2] [--quick]
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _ranking import Against, Interval, advancing, against, markdown, of_mean, ordered
from _tradeoff import Point, draw
from _training import models_after, record_losses
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import mfdl
from mfdl import files, trust
from mfdl.algorithms import LinearAlgorithm, registry
from mfdl.algorithms.dsgd import decentralized
from mfdl.errors import InvalidInput
from mfdl.factorization import NotConverged
from mfdl.mechanism import Mechanism, without_noise
from mfdl.privacy import gaussian
from mfdl.reporting.account import write_figure
from mfdl.reporting.output import versions
from mfdl.training.tasks import Task

CLIP_NORM, ADJACENCY, DELTA = 1.0, "zero-out", 1e-5
RATES, BUDGETS = (0.03, 0.1, 0.3), (0.5, 0.2, 1.0)
WEIGHTS = ("all", "last:48:0.01", "last:16:0.01", "exponential:24")  # without a floor the solver stops at gap 8e-4
FIRST_SEEDS, MORE_SEEDS, TABLE_SEED = (0, 1), (2, 3, 4), 100
GOES_ON, AT_LEAST = 1 / 3, 2
MEASURES = ("loss", "without_extreme", "median")
WITHOUT_NOISE, REFERENCE = "none", "mafalda"
MECHANISMS = (
    "none",
    "dp-dsgd",
    "bsr",
    "d-mf",
    "mafalda",
    "mafalda-l",
    "mafalda-classes",
    "corn",
    "time-space",
    "adapted",
)
FOLLOWS = {"mafalda-classes": "mafalda", "mafalda-l": "mafalda", "adapted": "time-space"}  # take its rate and weights
UNWEIGHTED = ("mafalda-l",)  # an encoder per node: one factorization is enough
COUNTS_ONE_STEP = (
    "corn",
)  # without weights the model after one step counts, as published: "@all" is another mechanism
RANKINGS = {"ldp": "everybody sees every message (LDP)", "eavesdropper": "an outsider sees every message (SecLDP)"}
WEIGHTED = "weighted"


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


# ---- one run ---------------------------------------------------------------------------------------------------------


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
        self._made: dict[str, LinearAlgorithm] = {}

    def mechanism(self, setting: Setting) -> Mechanism:
        """Calibrated to the budget. Raises: NotConverged: no factorization for these weights."""
        name = setting.mechanism
        if name not in self._made:
            self._made[name] = registry.build_tuned(name, self.dynamics, self.participation)
        algorithm = with_rate(self._made[name], setting.rate)
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


# ---- many runs -------------------------------------------------------------------------------------------------------


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


# ---- the protocol ----------------------------------------------------------------------------------------------------


def candidates(name: str, weights: Sequence[str]) -> list[str]:
    """The names among which the weighted row of a mechanism is chosen; none if it has no such row."""
    entry = registry.MECHANISMS[name]
    if not entry.weighted or name in FOLLOWS:
        return []
    return [name, *(f"{name}@{text}" for text in weights if text != "all" or name in COUNTS_ONE_STEP)]


class Protocol:
    """The stages for one scene; `chosen[row, budget]` is what the table runs."""

    def __init__(self, runs: Runs, scene: str, mechanisms: Sequence[str], seeds: int) -> None:
        self.runs, self.scene, self.mechanisms = runs, scene, mechanisms
        self.table_seeds = range(TABLE_SEED, TABLE_SEED + seeds)
        self.chosen: dict[tuple[str, float], Setting] = {}

    def choose(self, name: str, budget: float, main: float, progress: Progress) -> None:
        """Rate, and at the main budget weights, on the first seeds."""
        if name in FOLLOWS:
            self._follow(name, FOLLOWS[name], budget)
            return
        self._take(name, budget, [name], progress)
        weighted = f"{name}, {WEIGHTED}"
        if budget == main:
            names = candidates(name, self.runs.scenes[self.scene].weights)
        else:
            names = [self.chosen[weighted, main].mechanism] if (weighted, main) in self.chosen else []
        if names:
            self._take(weighted, budget, names, progress)

    def _follow(self, name: str, leader: str, budget: float) -> None:
        for row in ("", f", {WEIGHTED}"):
            taken = self.chosen.get((leader + row, budget))
            if taken is None or (row and name in UNWEIGHTED):
                continue
            mechanism = name + taken.mechanism.removeprefix(leader)
            self.chosen[name + row, budget] = dataclasses.replace(taken, mechanism=mechanism)

    def run_table(self, budget: float, progress: Progress) -> None:
        """The chosen settings on the seeds of the table."""
        settings = list(dict.fromkeys(one for (_, mu), one in self.chosen.items() if mu == budget))
        self.runs.finish(settings, self.table_seeds, f"{self.scene}: table, mu {budget:g}", progress)

    def _take(self, row: str, budget: float, names: Sequence[str], progress: Progress) -> None:
        """The best of names and rates: everything on the first seeds, then the best of it on more."""
        of = None if list(names) == [WITHOUT_NOISE] else budget
        options = [Setting(self.scene, name, rate, of) for name in names for rate in self.runs.scenes[self.scene].rates]
        further = advancing(self._tried(options, FIRST_SEEDS, f"choose {row}", progress), GOES_ON, AT_LEAST)
        found = self._tried(further, (*FIRST_SEEDS, *MORE_SEEDS), f"choose {row}, the best", progress)
        if found:
            self.chosen[row, budget] = ordered(found)[0]

    def _tried(
        self, options: Sequence[Setting], seeds: Sequence[int], what: str, progress: Progress
    ) -> dict[Setting, np.ndarray]:
        self.runs.finish(options, seeds, f"{self.scene}: {what}", progress)
        found = {one: self.runs.losses(one, seeds) for one in options}
        return {one: losses for one, losses in found.items() if losses is not None}

    def rows(self) -> list[Row]:
        """Of all budgets whose runs are complete."""
        out = []
        for (label, budget), setting in self.chosen.items():
            loss = self.runs.losses(setting, self.table_seeds)
            if loss is None:
                continue
            losses = {what: self.runs.losses(setting, self.table_seeds, what) for what in MEASURES}
            compared = {what: self._compared(label, budget, what, found) for what, found in losses.items()}
            out.append(Row(self.scene, label, budget, setting, loss, losses, compared))
        return out

    def _compared(self, label: str, budget: float, what: str, found: np.ndarray | None) -> Against | None:
        reference = self._of(REFERENCE, budget, what)
        if found is None or reference is None or label in (REFERENCE, WITHOUT_NOISE):
            return None
        return against(found, reference, self._of(WITHOUT_NOISE, budget, what))

    def _of(self, label: str, budget: float, what: str) -> np.ndarray | None:
        setting = self.chosen.get((label, budget))
        return None if setting is None else self.runs.losses(setting, self.table_seeds, what)


@dataclass(frozen=True, eq=False)
class Row:
    """One mechanism at one budget on the seeds of the table."""

    scene: str
    label: str
    budget: float
    setting: Setting
    loss: np.ndarray
    losses: dict[str, np.ndarray | None]
    against: dict[str, Against | None]

    @property
    def rankings(self) -> list[str]:
        """The rankings it takes part in."""
        entry = registry.entry_of(self.setting.mechanism)
        everywhere = entry is None or not entry.models
        return [name for name in RANKINGS if everywhere or (entry is not None and name in entry.models)]

    def facts(self) -> dict[str, Any]:
        """A line of table.csv."""
        mean, compared = of_mean(self.loss), self.against["loss"]
        line: dict[str, Any] = {
            "scene": self.scene,
            "rankings": "+".join(self.rankings),
            "mechanism": self.label,
            "setting": self.setting.mechanism,
            "rate": self.setting.rate,
            "mu": self.budget,
            "seeds": len(self.loss),
            "loss": mean.middle,
            "loss_half": mean.half,
        }
        for what in ("difference", "reduction", "share"):
            line |= _both(what, None if compared is None else getattr(compared, what))
        line["wins"] = "" if compared is None else f"{compared.wins}/{compared.pairs}"
        for what in MEASURES[1:]:
            values, other = self.losses[what], self.against[what]
            line[what] = "" if values is None else float(values.mean())
            line |= _both(f"{what}_reduction", None if other is None else other.reduction)
        return line


def _both(name: str, interval: Interval | None) -> dict[str, Any]:
    """Middle and half of an interval as two cells."""
    return {
        name: "" if interval is None else interval.middle,
        f"{name}_half": "" if interval is None else interval.half,
    }


HEADER = (
    *("mechanism", "chosen", "loss", "minus MAFALDA", "reduction", "of the way to no noise", "wins"),
    *("without extreme", "reduction", "median", "reduction"),
)


def table(rows: Sequence[Row]) -> str:
    """All rankings as Markdown, best first."""
    parts = []
    for scene, budget in dict.fromkeys((row.scene, row.budget) for row in rows):
        for ranking, words in RANKINGS.items():
            some = [row for row in rows if (row.scene, row.budget) == (scene, budget) and ranking in row.rankings]
            some.sort(key=lambda row: float(np.where(np.isnan(row.loss), np.inf, row.loss).mean()))
            if some:
                parts.append(f"**{scene}, mu = {budget:g}, {words}**, {len(some[0].loss)} seeds\n\n")
                parts.append(markdown(HEADER, [_cells(row) for row in some]) + "\n")
    return "".join(parts)


def _cells(row: Row) -> list[str]:
    setting, compared = row.setting, row.against["loss"]
    chosen = f"rate {setting.rate:g}"
    if row.label.endswith(WEIGHTED):
        chosen = f"{setting.mechanism.partition('@')[2] or 'unweighted'}, {chosen}"
    cells = [row.label, chosen, of_mean(row.loss).text()]
    if compared is None:
        cells += ["", "", "", ""]
    else:
        cells += [compared.difference.text(), _percent(compared.reduction), _percent(compared.share)]
        cells.append(f"{compared.wins}/{compared.pairs}")
    for what in MEASURES[1:]:
        values, other = row.losses[what], row.against[what]
        cells.append("" if values is None else f"{values.mean():.3f}")
        cells.append("" if other is None else _percent(other.reduction))
    return cells


def _percent(interval: Interval | None) -> str:
    return "" if interval is None else f"{100 * interval.middle:.1f} ± {100 * interval.half:.1f} %"


def write(out: Path, protocols: Sequence[Protocol]) -> list[Row]:
    """table.csv, table.md and runs.json of what is complete."""
    rows = [row for one in protocols for row in one.rows()]
    if not rows:
        return rows
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0].facts()))
    writer.writeheader()
    writer.writerows(row.facts() for row in rows)
    files.atomic_write_text(out / "table.csv", text.getvalue())
    files.atomic_write_text(out / "table.md", table(rows))
    kept = sorted((out / "runs").rglob("*.json"))
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in kept]
    files.atomic_write_json(out / "runs.json", {"versions": versions(), "runs": runs})
    return rows


def write_pictures(out: Path, rows: Sequence[Row]) -> None:
    """One per scene."""
    for scene in dict.fromkeys(row.scene for row in rows):
        points = {
            words: [
                Point(row.label, gaussian.epsilon_from_mu(row.budget, DELTA), of_mean(row.loss[~np.isnan(row.loss)]))
                for row in rows
                if row.scene == scene and ranking in row.rankings
            ]
            for ranking, words in RANKINGS.items()
        }
        write_figure(out, f"tradeoff-{scene}", draw(points, scene, DELTA))


def known(mechanisms: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Those that this version of the library has; the others are named."""
    missing = [name for name in mechanisms if name not in registry.MECHANISMS]
    for name in missing:
        say(f"left out: {name}: this version has no mechanism of that name; it has {', '.join(registry.MECHANISMS)}.")
    return [name for name in mechanisms if name not in missing]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/which_mechanism"))
    parser.add_argument("--scenes", default="ego", help=f"of {', '.join(SCENES)}")
    parser.add_argument(
        "--budgets", default=",".join(f"{mu:g}" for mu in BUDGETS), help="mu; weights are chosen at the first"
    )
    parser.add_argument("--mechanisms", default=",".join(MECHANISMS))
    parser.add_argument("--seeds", type=int, default=None, help="of the table; default 10 for ego, else 5")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a ring of four nodes, a check that everything works")
    parser.add_argument("--data-home", type=Path, default=None)
    options = parser.parse_args(arguments)
    wanted = ["quick"] if options.quick else options.scenes.split(",")
    unknown = [name for name in wanted if name not in SCENES]
    if unknown:
        parser.error(f"no scene {unknown[0]!r}; there are {', '.join(SCENES)}.")
    budgets = [float(text) for text in options.budgets.split(",")]
    mechanisms = known(options.mechanisms.split(","), lambda text: print(text, flush=True))
    runs = Runs(options.out, SCENES, options.jobs, options.data_home)
    protocols = [Protocol(runs, name, mechanisms, options.seeds or SCENES[name].seeds) for name in wanted]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for protocol in protocols:
            for budget in budgets:
                for name in mechanisms:
                    protocol.choose(name, budget, budgets[0], progress)
                    protocol.run_table(budget, progress)
                    rows = write(options.out, protocols)
                write_pictures(options.out, rows)
    print(table(rows))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
