"""Step rules and encoders with curvature, at one guarantee: test loss of each row at its best rate, on fresh seeds.

    python experiments/which_step_rule.py [--out DIR] [--scenes logistic/mafalda,...] [--report] [--quick]

LDP, zero-out, delta = 1e-5, epsilon = 0.726 (a9a: 0.331), a torus of 100 nodes, features, clipping and partition as in
which_mechanism.py. Designs: `full`, DP-D-SGD with full batches and five gossip rounds a step, mean of the last 80
models; `mafalda`, 10 epochs of 16 batches, mean of the last 48. Each row has a grid of three rates or more, extended by
a factor of 2.15 while the best is at its end, at most three times; the rate with the least mean loss on seeds 10000 and
10001 is tested once on seeds 500 to 504. Out: one line a row, with the mean and standard deviation over seeds, and the
share of the gap from MAFALDA's last model (10 epochs of 16, its own best rate) to no noise. Every run is a cell in OUT:
the same command resumes.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _paired_statistics import log_ratio, over_scenes, share
from _protocol import wider

from mfdl.planning import Design
from mfdl.runs import Store, run_cells
from mfdl.runs.cells import Cell
from mfdl.runs.comparison_config import ComparisonConfig

TUNING_SEEDS, TEST_SEEDS, EXTENSIONS = (10_000, 10_001), (500, 501, 502, 503, 504), 3
DESIGNS = {"full": "dp-dsgd,b=1,k=160,rounds=5,average:80", "mafalda": "mafalda,b=16,k=10,average:48"}
TASKS = {"logistic": 0.726, "housing-linear": 0.726, "a9a": 0.331}
"""Tasks and their epsilon."""
RELEASED, LAST = "final_test_loss", "last_test_loss"
SPECTRUM = "power:1:20:0.2"


@dataclass(frozen=True)
class RuleRow:
    """One row: options beside those of its design, and rates per design.

    Attributes: tasks: on which it is tried; measure: which model is tested.
    """

    name: str
    rates: dict[str, tuple[float, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] = ("logistic", "housing-linear")
    measure: str = RELEASED


LOW, MIDDLE, HIGH = (0.0215, 0.0464, 0.1), (0.215, 0.464, 1.0), (0.464, 1.0, 2.15)
WEIGHTS = "mafalda@released:average:48/on-the-way=1"
BOTH, LOGISTIC = ("logistic", "housing-linear"), ("logistic",)
NO_NOISE, REFERENCE = "no noise", "last model"
ROWS = (
    RuleRow(NO_NOISE, {"mafalda": HIGH}, {"mechanisms": ("none",)}, tuple(TASKS)),
    RuleRow(REFERENCE, {"mafalda": (0.0464, 0.1, 0.215)}, tasks=tuple(TASKS), measure=LAST),
    RuleRow("plain", {"full": HIGH, "mafalda": MIDDLE}, tasks=tuple(TASKS)),
    RuleRow("nesterov:0.9", {"full": LOW, "mafalda": LOW}, {"step_rule": "nesterov:0.9"}, tuple(TASKS)),
    RuleRow(
        "messages:0.25:0.8",
        {"full": MIDDLE, "mafalda": (0.0464, 0.1, 0.215)},
        {"step_rule": "messages:0.25:0.8"},
        tuple(TASKS),
    ),
    RuleRow("rms:0.25:0.9", {"full": MIDDLE, "mafalda": (0.1, 0.215, 0.464)}, {"step_rule": "rms:0.25:0.9"}, BOTH),
    RuleRow("normalised", {"full": (2.15, 4.64, 10.0)}, {"step_rule": "normalised"}, LOGISTIC),
    RuleRow("momentum 0.9", {"full": LOW, "mafalda": LOW}, {"momentum": 0.9}, LOGISTIC),
    RuleRow("inverse-time:40", {"full": (1.0, 2.15, 4.64)}, {"lr_schedule": "inverse-time:40"}, LOGISTIC),
    RuleRow("power:0.5", dict.fromkeys(DESIGNS, (0.1, 0.215, 0.464)), {"precondition": "power:0.5"}, LOGISTIC),
    RuleRow("curvature", {"mafalda": MIDDLE}, {"curvature": SPECTRUM}, BOTH),
    RuleRow("released", {"mafalda": MIDDLE}, {"mechanisms": (WEIGHTS,)}, BOTH),
    RuleRow("released, curvature", {"mafalda": MIDDLE}, {"mechanisms": (f"{WEIGHTS}/curvature={SPECTRUM}",)}, BOTH),
)
Place = tuple[RuleRow, str]
"""A row and its design."""


class Cells:
    """The runs of one task, kept in a store.

    Args: quick: a ring of four nodes and a few steps, to see that everything works; report: nothing is run.
    """

    def __init__(self, task: str, out: Path, *, quick: bool, report: bool) -> None:
        self.task, self.store, self.quick, self.report = task, Store(out / task), quick, report

    def losses(self, runs: Sequence[tuple[Place, float]], seeds: Sequence[int]) -> list[np.ndarray]:
        """Of each row and rate one loss for each seed; inf where a run diverged, nan where there is none yet."""
        cells = [Cell(self._config(place, rate, seed)) for place, rate in runs for seed in seeds]
        if not self.report:
            run_cells(cells, self.store)
        values = [
            _value(self.store.record(cell), row.measure)
            for cell, ((row, _), _) in zip(cells, _each(runs, seeds), strict=True)
        ]
        return list(np.array(values).reshape(len(runs), len(seeds)))

    def _config(self, place: Place, rate: float, seed: int) -> ComparisonConfig:
        row, design = place
        given = {"graph": "torus:n=100", **Design.parse(DESIGNS[design]).options(), **row.options}
        if self.quick:
            given |= {"graph": "ring:n=4", "epochs": 2, "period": 4, "release_model": "average:4"}
            given["mechanisms"] = tuple(name.replace("average:48", "average:4") for name in given["mechanisms"])
        return ComparisonConfig(
            **given,
            task=self.task,
            epsilon=TASKS[self.task],
            delta=1e-5,
            adjacency="zero-out",
            learning_rate=rate,
            seeds=1,
            first_seed=seed,
            eval_every=given["epochs"] * given["period"],
        )

    def chosen(self, places: Sequence[Place]) -> list[float]:
        """The rate of each row with the least mean loss, grids extended."""
        tried: list[dict[float, float]] = [{} for _ in places]
        wanted = [list(row.rates[design]) for row, design in places]
        for _ in range(1 if self.quick else EXTENSIONS + 1):
            runs = [(k, rate) for k, rates in enumerate(wanted) for rate in rates]
            for (k, rate), losses in zip(
                runs, self.losses([(places[k], r) for k, r in runs], TUNING_SEEDS), strict=True
            ):
                tried[k][rate] = math.inf if np.isnan(losses).any() else float(losses.mean())
            beyond = [wider(sorted(of_row), min(of_row, key=of_row.__getitem__)) for of_row in tried]
            wanted = [
                [] if rate is None or rate in of_row else [rate] for rate, of_row in zip(beyond, tried, strict=True)
            ]
            if not any(wanted):
                break
        return [min(of_row, key=of_row.__getitem__) for of_row in tried]


def _each(runs: Sequence[tuple[Place, float]], seeds: Sequence[int]) -> list[tuple[Place, float]]:
    return [run for run in runs for _ in seeds]


def _value(record: dict[str, Any] | None, measure: str) -> float:
    if record is None:
        return math.nan
    return math.inf if record[measure] is None else float(record[measure])


def compared(cells: Cells, designs: Sequence[str]) -> None:
    """Prints one line for each row of a task."""
    places = [
        (row, design)
        for row in ROWS
        for design in row.rates
        if cells.task in row.tasks and (design in designs or row.name in (NO_NOISE, REFERENCE))
    ]
    rates = cells.chosen(places)
    tested = cells.losses(list(zip(places, rates, strict=True)), TEST_SEEDS)
    losses = {(row.name, design): values for (row, design), values in zip(places, tested, strict=True)}
    for (row, design), rate in zip(places, rates, strict=True):
        print(line(cells.task, row.name, design, rate, losses), flush=True)
    for without, with_curvature in (("plain", "curvature"), ("released", "released, curvature")):
        pair = {"loss": losses.get((with_curvature, "mafalda")), "reference": losses.get((without, "mafalda"))}
        if all(values is not None and np.isfinite(values).all() for values in pair.values()):
            ratio = over_scenes(log_ratio, [pair])  # type: ignore[list-item]
            interval = f"[{ratio.low:.4f}, {ratio.high:.4f}]"
            print(f"{cells.task}: log({with_curvature} / {without}) {ratio.middle:.4f} {interval}", flush=True)


def line(task: str, name: str, design: str, rate: float, losses: dict[tuple[str, str], np.ndarray]) -> str:
    """One row of the table."""
    loss = losses[name, design]
    text = f"| {task} | {design} | {name} | {rate:g} | {loss.mean():.4f} +- {loss.std(ddof=1):.4f} |"
    ends = {"reference": losses.get((REFERENCE, "mafalda")), "none": losses.get((NO_NOISE, "mafalda"))}
    if any(end is None for end in ends.values()):
        return text
    gap = over_scenes(share, [{"loss": loss, **ends}])  # type: ignore[dict-item]
    return f"{text} {gap.middle:.0%} [{gap.low:.0%}, {gap.high:.0%}] |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/step_rules"))
    parser.add_argument("--scenes", default=",".join(f"{task}/{design}" for task in TASKS for design in DESIGNS))
    parser.add_argument("--report", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--quick", action="store_true", help="a ring of four nodes, a check that everything works")
    options = parser.parse_args(arguments)
    print("| task | design | row | rate | test loss | share of the gap |\n| --- | --- | --- | --- | --- | --- |")
    for scene in options.scenes.split(","):
        task, _, design = scene.partition("/")
        if task not in TASKS or design not in DESIGNS:
            parser.error(f"no scene {scene!r}: TASK/DESIGN with {', '.join(TASKS)} and {', '.join(DESIGNS)}.")
        compared(Cells(task, options.out, quick=options.quick, report=options.report), [design])
    return 0


if __name__ == "__main__":
    os.environ.setdefault("MFDL_PROGRESS", "0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
