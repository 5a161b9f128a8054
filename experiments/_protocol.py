"""One scene of the comparison: rates chosen on seeds of their own, whether the scene counts, then the test.

In: a scene, its rows, a folder. Out: the results, from the cells of a sweep stored in that folder: the same call
resumes where it was stopped and trains nothing twice.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _scenes import DELTA, INDEPENDENT, MEASURES, NO_NOISE, ROWS, Row, Scene

from mfdl import files
from mfdl.runs import Cell, Engine, Store, Tuning, run_cells
from mfdl.runs.sweep_config import halved, ordered

RATES = (0.01, 0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0)
FACTOR = 100 ** (1 / 6)
TUNING = Tuning(seeds=5, first_seed=10_000, first_round=2, share=3 / 7, at_least=3, by="rank")
TEST_SEEDS = tuple(range(600, 620))
COUNTS_FROM = 1.2
EXTENSIONS = 4
RESULT = "result.json"

Key = tuple[str, str, float]
"""Label of a row, measure, rate."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is run: the protocol, or less of it for a check that everything works."""

    rates: tuple[float, ...] = RATES
    tuning: Tuning = TUNING
    seeds: tuple[int, ...] = TEST_SEEDS
    counts_from: float = COUNTS_FROM
    extensions: int = EXTENSIONS
    device: str | None = None


class Trial:
    """A scene at one budget.

    Args: engine: None: nothing is run, and runs that are not stored count as failed; rows: by label.
    Attributes: chosen: the rate of each (label, measure).
    """

    def __init__(
        self,
        scene: Scene,
        epsilon: float,
        store: Store,
        engine: Engine | None,
        plan: Plan,
        rows: Mapping[str, Row] = ROWS,
    ) -> None:
        self.scene, self.epsilon, self.store, self.engine, self.plan = scene, epsilon, store, engine, plan
        self.rows = rows
        self.chosen: dict[tuple[str, str], float] = {}
        self._cells: dict[tuple[str, float, int], Cell] = {}
        self._records: dict[tuple[str, float, int], dict[str, Any]] = {}

    def cell(self, label: str, rate: float, seed: int) -> Cell:
        """One run."""
        key = label, rate, seed
        if key not in self._cells:
            self._cells[key] = Cell(self.scene.config(self.rows[label], self.epsilon, rate, seed, self.plan.device))
        return self._cells[key]

    def run(self, wanted: Iterable[tuple[str, float]], seeds: Sequence[int]) -> None:
        """What is missing of these rows and rates."""
        keys = [(label, rate, seed) for label, rate in dict.fromkeys(wanted) for seed in seeds]
        missing = [key for key in keys if key not in self._records]
        if not missing:
            return
        if self.engine is not None:
            run_cells([self.cell(*key) for key in missing], self.store, self.engine)
        for key in missing:
            record = self.store.record(self.cell(*key))
            self._records[key] = {} if record is None else record

    def losses(self, label: str, measure: str, rate: float, seeds: Sequence[int]) -> np.ndarray:
        """One for each seed; nan where the run diverged or failed."""
        every = [self._records[label, rate, seed].get(MEASURES[measure]) for seed in seeds]
        return np.array([math.nan if value is None else value for value in every])

    def _tried(self, keys: Sequence[Key], seeds: Sequence[int]) -> Mapping[Key, np.ndarray]:
        self.run([(label, rate) for label, _, rate in keys], seeds)
        return {key: self.losses(*key, seeds) for key in keys}

    def choose(self, labels: Sequence[str]) -> None:
        """The rate of each of these rows, for each of its measures apart; that of another row where a row says so."""
        followers = {label: leader for label in labels if (leader := self.rows[label].rate_of)}
        labels = [label for label in labels if label not in followers]
        places = {f"{label}, {measure}": (label, measure) for label in labels for measure in self.rows[label].measures}
        grids = {name: list(self.rows[label].rates or self.plan.rates) for name, (label, _) in places.items()}
        groups = {name: [(*places[name], rate) for rate in grid] for name, grid in grids.items()}
        best = halved(groups, self.plan.tuning, self._tried)
        for _ in range(self.plan.extensions):
            beyond = {name: wider(grids[name], key[2]) for name, key in best.items()}
            rivals = {name: (best[name], (*places[name], rate)) for name, rate in beyond.items() if rate is not None}
            losses = self._tried([key for pair in rivals.values() for key in pair], self.plan.tuning.rounds()[-1])
            for name, pair in rivals.items():
                grids[name] = sorted({*grids[name], pair[1][2]})
                best[name] = ordered({key: losses[key] for key in pair}, self.plan.tuning.by)[0]
        self.chosen |= {places[name]: key[2] for name, key in best.items()}
        for label, leader in followers.items():
            self.chosen |= {(label, measure): self.chosen[leader, measure] for measure in self.rows[label].measures}

    def tuned(self, label: str, measure: str) -> float:
        """Mean loss of the chosen rate on the seeds it was chosen on."""
        return float(self.losses(label, measure, self.chosen[label, measure], self.plan.tuning.rounds()[-1]).mean())

    @property
    def cost(self) -> float:
        """What noise costs: the loss of independent noise over that without, each at its best rate."""
        return self.tuned(INDEPENDENT, "last") / self.tuned(NO_NOISE, "last")

    def test(self, labels: Sequence[str]) -> None:
        """The chosen rates on the seeds of the test."""
        rates = [(label, rate) for (label, _), rate in self.chosen.items() if label in labels]
        self.run(rates, self.plan.seeds)

    def answer(self) -> dict[str, Any]:
        """All that came of it: losses of the test, chosen rates, and the losses that every rate had."""
        rows = [self._row(label, measure, rate) for (label, measure), rate in self.chosen.items()]
        return {
            **{name: getattr(self.scene, name) for name in ("name", "task", "graph", "partition")},
            "epsilon": self.epsilon,
            "delta": DELTA,
            "cost_of_noise": self.cost,
            "counts": self.cost >= self.plan.counts_from,
            "rows": [row for row in rows if row["losses"]],
            "rates": self._by_rate(),
        }

    def _row(self, label: str, measure: str, rate: float) -> dict[str, Any]:
        row, tested = self.rows[label], (label, rate, self.plan.seeds[0]) in self._records
        design = self.scene.design(row)
        losses = self.losses(label, measure, rate, self.plan.seeds).tolist() if tested else []
        seeds = (self.plan.tuning.first_seed, self.plan.seeds[0])
        record = next(self._records[key] for seed in seeds if (key := (label, rate, seed)) in self._records)
        guarantee = {name: record.get(name) for name in ("mu", "epsilon", "delta", "adjacency", "trust", "guarantee")}
        return {
            "label": label,
            "measure": measure,
            "batches": row.batches,
            "rankings": row.rankings,
            "design": design.name,
            "preconditioned": row.preconditioned,
            "clip_norm": row.clip_norm,
            "gradient_evaluations": design.epochs,
            "exchanges": design.num_steps * design.gossip_rounds,
            "lr": rate,
            "losses": [None if math.isnan(loss) else loss for loss in losses],
            **guarantee,
        }

    def _by_rate(self) -> list[dict[str, Any]]:
        """Mean loss over the seeds of the first round, of every row, measure and rate tried."""
        seeds = self.plan.tuning.rounds()[0]
        tried = dict.fromkeys((label, rate) for label, rate, seed in self._records if seed == seeds[0])
        means = [
            (label, measure, rate, float(self.losses(label, measure, rate, seeds).mean()))
            for label, rate in tried
            for measure in self.rows[label].measures
        ]
        return [
            {"label": label, "measure": measure, "lr": rate, "loss": None if math.isnan(loss) else loss}
            for label, measure, rate, loss in sorted(means)
        ]


def wider(grid: Sequence[float], best: float) -> float | None:
    """The rate beyond the end of a sorted grid where the best one stands, else None.

    >>> wider([0.1, 0.215, 0.464], 0.464), wider([0.1, 0.215, 0.464], 0.215)
    (1.0, None)
    """
    if best == grid[-1]:
        return float(f"{best * FACTOR:.3g}")
    return float(f"{best / FACTOR:.3g}") if best == grid[0] else None


def compared(
    scene: Scene, rows: Sequence[Row], out: Path, engine: Engine, plan: Plan, say: Callable[[str], None]
) -> dict[str, Any]:
    """The whole scene, kept in out/NAME: the answer of its first budget at which it counts, else of the last.

    Rows of an earlier answer at that budget that are not asked for, or not yet run again, stay in it.
    """
    store = Store(out / scene.name.replace("/", "-"))
    earlier = _earlier(store.folder / RESULT)

    def summary(trial: Trial) -> dict[str, Any]:
        answer = with_earlier(trial.answer(), earlier)
        files.atomic_write_json(store.folder / RESULT, answer)
        return answer

    labels = [row.label for row in rows if scene.has(row)]
    first = [label for label in (NO_NOISE, INDEPENDENT) if label in labels]
    for epsilon in scene.epsilons:
        trial = Trial(scene, epsilon, store, engine, plan, {row.label: row for row in rows})
        trial.choose(first)
        say(f"{scene.name}, epsilon {epsilon:g}: noise costs a factor {trial.cost:.3f}")
        if trial.cost >= plan.counts_from:
            break
    if trial.cost >= plan.counts_from:
        trial.choose([label for label in labels if label not in first])
        trial.test(labels)
        for (label, measure), rate in trial.chosen.items():
            loss = float(trial.losses(label, measure, rate, plan.seeds).mean())
            say(f"{scene.name}: {label}, {measure}: rate {rate:g}, loss {loss:.4f}")
    return summary(trial)


def with_earlier(answer: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """An answer with the rows that only an earlier one of the same budget has, and what their rates had."""
    if not answer["counts"] or earlier.get("epsilon") != answer["epsilon"]:
        return answer
    added = {name: [*answer[name], *_missing(answer[name], earlier[name])] for name in ("rows", "rates")}
    added["rates"].sort(key=lambda tried: (tried["label"], tried["measure"], tried["lr"]))
    return answer | added


def _missing(some: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of labels that `some` lacks."""
    known = {each["label"] for each in some}
    return [each for each in others if each["label"] not in known]


def _earlier(path: Path) -> dict[str, Any]:
    """The answer in a file; empty where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
