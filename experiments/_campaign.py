"""Random cases of named statements, tried on several processes, counted, and shown as a table.

A case is drawn from numpy's generator seeded with (seed, statement, number), so it can be drawn again. A statement
gives a relative difference; `Excluded` leaves a case out and says why. Cases may carry a label, counted apart, and a
size, so that the smallest that fails can be named.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mfdl import files
from mfdl.errors import UnusualSetting

CHUNK = 50  # cases of one task


class Excluded(Exception):
    """A case outside the domain of an oracle, with the reason."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What one case came to: how far off it is, what it was, how large, and in words."""

    difference: float
    label: str = ""
    size: int = 0
    words: str = ""


@dataclasses.dataclass(frozen=True)
class Statement:
    """`differ` draws a case and returns the relative difference (or excess, for "<="), alone or as a Case."""

    name: str
    differ: Callable[[np.random.Generator], float | Case]
    tolerance: float
    share: float


@dataclasses.dataclass
class Tally:
    """Cases compared, numbers of those that disagree, the largest difference, and how many were left out and why."""

    cases: int = 0
    disagreements: list[int] = dataclasses.field(default_factory=list)
    largest: float = 0.0
    excluded: Counter[str] = dataclasses.field(default_factory=Counter)
    seconds: float = 0.0
    labels: Counter[str] = dataclasses.field(default_factory=Counter)
    smallest: tuple[int, int, str] | None = None  # (size, number, words) of a disagreement

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.disagreements += other.disagreements
        self.largest = max(self.largest, other.largest)
        self.excluded += other.excluded
        self.seconds += other.seconds
        self.labels += other.labels
        if other.smallest is not None and (self.smallest is None or other.smallest < self.smallest):
            self.smallest = other.smallest


def compare(statements: Mapping[str, Statement], name: str, numbers: range, seed: int) -> Tally:
    """Tries the cases with these numbers."""
    tried, began = Tally(), time.perf_counter()
    statement = statements[name]
    warnings.simplefilter("ignore", UnusualSetting)  # drawn on purpose
    for number in numbers:
        try:
            case = statement.differ(np.random.default_rng([seed, list(statements).index(name), number]))
        except Excluded as reason:
            tried.excluded[str(reason)] += 1
            continue
        case = case if isinstance(case, Case) else Case(case)
        tried.cases += 1
        tried.largest = max(tried.largest, case.difference)
        if case.label:
            tried.labels[case.label] += 1
        if not case.difference <= statement.tolerance:
            tried.disagreements.append(number)
            tried.smallest = min(tried.smallest or (case.size, number, case.words), (case.size, number, case.words))
    tried.seconds = time.perf_counter() - began
    return tried


def tasks(statements: Mapping[str, Statement], cases: int, only: str) -> Iterator[tuple[str, range]]:
    for name, statement in statements.items():
        if only in name:
            count = max(1, math.ceil(cases * statement.share))
            yield from ((name, range(k, min(k + CHUNK, count))) for k in range(0, count, CHUNK))


def run(statements: Mapping[str, Statement], description: str, *, cases: int) -> int:
    """The command of a campaign: exit status 1 if a case disagrees."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cases", type=int, default=cases, help="of each statement; slow ones take a share")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="statements whose name holds this")
    parser.add_argument("--out", type=Path, help="the table as JSON")
    arguments = parser.parse_args()
    todo = list(tasks(statements, arguments.cases, arguments.only))
    tallies = {name: Tally() for name, _ in todo}
    console = Console(width=150)
    with Progress(console=Console(stderr=True)) as progress, ProcessPoolExecutor(arguments.jobs) as pool:
        bar = progress.add_task("cases", total=sum(len(numbers) for _, numbers in todo))
        running = {
            pool.submit(compare, statements, name, numbers, arguments.seed): (name, numbers) for name, numbers in todo
        }
        for done in as_completed(running):
            name, numbers = running[done]
            tallies[name].add(done.result())
            progress.advance(bar, len(numbers))
    console.print(_table(statements, tallies))
    for labels in _label_tables(tallies):
        console.print(labels)
    for name, t in tallies.items():
        if t.disagreements:
            console.print(
                f"{name}: seed {arguments.seed}, statement {list(statements).index(name)}, cases {t.disagreements[:9]}"
            )
            if t.smallest is not None and t.smallest[2]:
                console.print(f"the smallest, case {t.smallest[1]}: {t.smallest[2]}", markup=False)
    if arguments.out:
        rows = {name: vars(t) | {"largest": f"{t.largest:.3g}"} for name, t in tallies.items()}  # may be inf
        files.atomic_write_json(arguments.out, {"seed": arguments.seed, "cases": arguments.cases, "statements": rows})
    return int(any(t.disagreements for t in tallies.values()))


def _table(statements: Mapping[str, Statement], tallies: Mapping[str, Tally]) -> Table:
    table = Table("statement", "cases", "disagree", "largest", "allowed", "excluded", "ms each")
    for name, t in tallies.items():
        reasons = "; ".join(f"{count} {reason}" for reason, count in t.excluded.items())
        count = t.cases + t.excluded.total()
        table.add_row(
            name,
            str(t.cases),
            str(len(t.disagreements)),
            f"{t.largest:.0e}",
            f"{statements[name].tolerance:.0e}",
            reasons,
            f"{1e3 * t.seconds / max(count, 1):.2g}",
        )
    return table


def _label_tables(tallies: Mapping[str, Tally]) -> Iterator[Table]:
    """Labels "row | column | layer" counted over all statements, one table per layer."""
    total: Counter[str] = sum((t.labels for t in tallies.values()), Counter())
    cells: dict[str, dict[tuple[str, str], int]] = {}
    for label, count in total.items():
        row, column, layer = (part.strip() for part in label.split("|"))
        cells.setdefault(layer, {})[row, column] = count
    for layer, counted in sorted(cells.items()):
        columns = sorted({column for _, column in counted})
        table = Table(layer, *columns, title="cases")
        for row in sorted({row for row, _ in counted}):
            table.add_row(row, *(str(counted.get((row, column), "")) for column in columns))
        yield table


def shortfall(lower: Any, upper: float) -> float:
    """How far the lower one is above the upper, relative to itself; 0 where it is not, inf where it alone is."""
    if lower == math.inf or upper == math.inf:
        return 0.0 if upper == math.inf else math.inf
    return 0.0 if lower <= upper else float((lower - upper) / lower) if upper else math.inf
