"""Training behind the figures of the MAFALDA paper; Figures 3 to 5 are of California housing, at published settings.

An MLP 8-64-1 on 80 % of the records, split uniformly over the nodes; 20 epochs of b steps, rate 0.1, records clipped at
1, gossip uniform over closed neighbourhoods, zero-out adjacency, delta = 1e-6, LDP; b is 19 in the text, 16 in code.
All mechanisms of one seed share data, first model and batch order. Figures share their cells, so that a run of one
figure serves the others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mfdl import graphs
from mfdl.errors import InvalidInput
from mfdl.runs import Cell, Store, run_cells
from mfdl.runs.experiment import Experiment
from mfdl.training import tasks

from ..figures import RunScale
from ..figures.trained_panels import engine, guess_loss, require_finished

WITHOUT_NOISE, OURS = "none", "mafalda"
BASELINES = ("dp-dsgd", "anti-pgd", "d-mf")
NAMES = {WITHOUT_NOISE: "no noise", "dp-dsgd": "DP-D-SGD", "anti-pgd": "Anti-PGD", "d-mf": "D-MF", OURS: "MAFALDA"}
COLOURS = {"no noise": "#222222", "DP-D-SGD": "#d55e00", "Anti-PGD": "#cc79a7", "D-MF": "#0072b2", "MAFALDA": "#009e73"}
NAMED = {"Florentine": "florentine", "Ego": "ego-facebook"}
EPOCHS, FIRST_SEED = 20, 421
PERIODS = (16,), (16, 19)  # of the code; of code and text
BUDGETS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
BLOCK = 5  # seeds of one mechanism in a row: its factorization serves all of them, and a stopped run has whole blocks


@dataclasses.dataclass(frozen=True)
class TrainedTask:
    """What is trained, and how it is measured.

    Attributes:
        task: its text. rate, lr_schedule: as `mfdl compare` takes them.
        eval_every: steps between evaluations; None: an epoch.
        by_accuracy: the test error 1 - accuracy counts, instead of the test loss.
    """

    task: str = "housing"
    rate: float = 0.1
    lr_schedule: str | None = None
    epochs: int = EPOCHS
    eval_every: int | None = None
    by_accuracy: bool = False


@dataclasses.dataclass(frozen=True)
class Place:
    """A graph (its spec, or a file of which the largest component is taken), the steps of an epoch and the task."""

    name: str
    graph: str
    period: int
    of_file: bool = False
    training: TrainedTask = TrainedTask()

    @property
    def title(self) -> str:
        return f"{self.name}, b = {self.period}"


@dataclasses.dataclass(frozen=True)
class TrainedPoint:
    """A point of a line: a mechanism at a budget (mu; None without noise) on a graph."""

    place: Place
    mechanism: str
    mu: float | None

    def config(self, seed: int, data_home: Path | None = None) -> Experiment:
        """Its run with a seed, as `mfdl compare` takes it."""
        place, training = self.place, self.place.training
        options: dict[str, Any] = {
            name: getattr(training, name) for name in ("task", "lr_schedule", "epochs", "eval_every")
        }
        options |= {"graph": place.graph, "largest_component": place.of_file, "period": place.period, "mu": self.mu}
        options |= {"mechanisms": (self.mechanism,), "learning_rate": training.rate, "first_seed": seed, "seeds": 1}
        options |= {"gossip": "uniform", "adjacency": "zero-out", "clip_norm": 1.0, "delta": 1e-6}
        return Experiment(data_home=data_home, **options)


def housing_seeds(scale: RunScale) -> list[int]:
    """421 to 440; three of them in quick mode."""
    count = scale.pick(3, 20)
    return list(range(FIRST_SEED, FIRST_SEED + count))


def settings(seeds: Sequence[int], training: TrainedTask | None = None) -> dict[str, Any]:
    """What all runs share, JSON-ready."""
    place = Place("", "florentine", 16, training=training or TrainedTask())
    options = TrainedPoint(place, OURS, 1.0).config(FIRST_SEED).options()
    names = ("task", "gossip", "adjacency", "trust", "unit", "epochs", "lr", "clip_norm", "delta")
    return {**{name: options[name] for name in names}, "seeds": list(seeds)}


def guess(scale: RunScale) -> float | None:
    """Test loss of the best constant prediction, the mean target of the train records: 1.304."""
    return guess_loss(tasks.load("housing", 1, scale.data_home))


def housing_budgets(scale: RunScale) -> tuple[float, ...]:
    """The seven of the paper; in quick mode three, between which the claimed test loss lies."""
    return scale.pick((0.5, 1.0, 2.0), BUDGETS)


def places(scale: RunScale, *names: str) -> tuple[list[Place], dict[str, str]]:
    """The available graphs, with the steps of text and code (quick: of the code), and why others are missing."""
    available: list[Place] = []
    missing: dict[str, str] = {}
    for name in names:
        of_file = name not in NAMED
        try:
            if of_file:
                scale.brought_graph(name.lower())
            else:
                graphs.load(NAMED[name], data_home=scale.data_home)
        except InvalidInput as error:
            missing[name] = f"{name}: {error}"
        else:
            graph = str(scale.graph_files[name.lower()]) if of_file else NAMED[name]
            available += [Place(name, graph, period, of_file) for period in scale.pick(*PERIODS)]
    return available, missing


def points(place: Place, mechanisms: Iterable[str], budgets: Iterable[float]) -> list[TrainedPoint]:
    """Every mechanism at every budget, that without noise once."""
    budgets = list(budgets)
    return [
        TrainedPoint(place, mechanism, mu)
        for mechanism in mechanisms
        for mu in ([None] if mechanism == WITHOUT_NOISE else budgets)
    ]


def runs(points: Sequence[TrainedPoint], seeds: Sequence[int]) -> Iterator[tuple[TrainedPoint, int]]:
    """Points and seeds in the order in which they are trained: a mechanism's budgets and a block of seeds together."""
    for start in range(0, len(seeds), BLOCK):
        yield from itertools.product(points, seeds[start : start + BLOCK])


@dataclasses.dataclass(frozen=True)
class Results:
    """Results of trained points, each with the same seeds."""

    store: Store
    cells: Mapping[TrainedPoint, Sequence[Cell]]

    def final(self, point: TrainedPoint) -> np.ndarray:
        """Test loss or error, mean over nodes and the last 50 steps, shape (seeds,); inf where a run diverged."""

        def loss(record: dict[str, Any]) -> float:
            accuracy = point.place.training.by_accuracy
            return float(1 - record["final_accuracy"] if accuracy else record["final_test_loss"])

        return np.array([math.inf if record["diverged"] else loss(record) for record in self._records(point)])

    def over_time(self, point: TrainedPoint) -> tuple[np.ndarray, np.ndarray]:
        """The evaluated steps and the test loss there, mean over nodes, shapes (steps,), (steps, seeds)."""
        by_seed = [self.store.steps(cell) for cell in self.cells[point]]
        columns = [steps.mean_over_nodes() for steps in by_seed]
        return by_seed[-1].steps, np.where(np.isfinite(columns), columns, math.inf).T

    def guarantee(self, point: TrainedPoint) -> tuple[float, float]:
        """mu and epsilon of the runs, the largest over seeds."""
        records = self._records(point)
        return max(float(record["mu"]) for record in records), max(float(record["epsilon"]) for record in records)

    def _records(self, point: TrainedPoint) -> list[dict[str, Any]]:
        return [record for cell in self.cells[point] if (record := self.store.record(cell)) is not None]


def trained(scale: RunScale, points: Iterable[TrainedPoint]) -> Results:
    """Runs the cells that the store of these figures lacks. Raises: as `require_finished`."""
    shared, points, seeds = Store(scale.out / "mafalda" / "store"), list(points), housing_seeds(scale)
    cells = {(point, seed): Cell(point.config(seed, scale.data_home)) for point, seed in runs(points, seeds)}
    run_cells(list(cells.values()), shared, engine(scale), progress=scale.progress)
    require_finished(shared, cells.values())
    return Results(shared, {point: [cells[point, seed] for seed in seeds] for point in points})
