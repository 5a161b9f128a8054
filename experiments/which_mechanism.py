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
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from _loss_runs import SCENES, Runs, Setting
from _loss_table import MEASURES, WEIGHTED, Row, table, write, write_pictures
from _ranking import Against, advancing, against, ordered
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mfdl.algorithms import registry

BUDGETS = (0.5, 0.2, 1.0)
FIRST_SEEDS, MORE_SEEDS, TABLE_SEED = (0, 1), (2, 3, 4), 100
GOES_ON, AT_LEAST = 1 / 3, 2
WITHOUT_NOISE, REFERENCE = "none", "mafalda"
MECHANISMS = (
    "none", "dp-dsgd", "bsr", "d-mf", "mafalda", "mafalda-l", "mafalda-classes", "corn", "time-space", "adapted",
)  # fmt: skip
FOLLOWS = {"mafalda-classes": "mafalda", "mafalda-l": "mafalda", "adapted": "time-space"}  # take its rate and weights
UNWEIGHTED = ("mafalda-l",)  # an encoder per node: one factorization is enough
COUNTS_ONE_STEP = ("corn",)  # unweighted, as published, the model after one step counts: "@all" is another mechanism


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
                    rows = [row for some in protocols for row in some.rows()]
                    write(options.out, rows)
                write_pictures(options.out, rows)
    print(table(rows))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("MFDL_PROGRESS", "0")  # the bar of the whole experiment is enough
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
