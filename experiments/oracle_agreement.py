"""The oracles of mfdl.testing against each other: who judges the judges.

Every line of the table is one statement of `_oracle_statements.py` on which two oracles, or an oracle and the library,
must agree, tried on random cases. A case is drawn from numpy's generator seeded with (seed, statement, number), so it
can be drawn again. Statements that solve a program or integrate take a share of the cases. Any disagreement ends the
command with status 1.

    python experiments/oracle_agreement.py [--cases 10000] [--seed 0] [--jobs 2] [--only WORDS] [--out table.json]
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from _oracle_statements import STATEMENTS, Excluded, Statement
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mfdl import files

__all__ = ["STATEMENTS", "Excluded", "Statement", "Tally", "compare"]

CHUNK = 50  # cases of one task


@dataclasses.dataclass
class Tally:
    """Cases compared, numbers of those that disagree, the largest difference, and how many were left out and why."""

    cases: int = 0
    disagreements: list[int] = dataclasses.field(default_factory=list)
    largest: float = 0.0
    excluded: Counter[str] = dataclasses.field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.disagreements += other.disagreements
        self.largest = max(self.largest, other.largest)
        self.excluded += other.excluded
        self.seconds += other.seconds


def compare(name: str, numbers: range, seed: int) -> Tally:
    """Tries the cases with these numbers."""
    tried, began = Tally(), time.perf_counter()
    for number in numbers:
        try:
            difference = STATEMENTS[name].differ(np.random.default_rng([seed, list(STATEMENTS).index(name), number]))
        except Excluded as reason:
            tried.excluded[str(reason)] += 1
            continue
        tried.cases += 1
        tried.largest = max(tried.largest, difference)
        if not difference <= STATEMENTS[name].tolerance:
            tried.disagreements.append(number)
    tried.seconds = time.perf_counter() - began
    return tried


def tasks(cases: int, only: str) -> Iterator[tuple[str, range]]:
    for name, one in STATEMENTS.items():
        if only in name:
            count = max(1, math.ceil(cases * one.share))
            yield from ((name, range(k, min(k + CHUNK, count))) for k in range(0, count, CHUNK))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000, help="of each statement; slow ones take a share")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="statements whose name holds this")
    parser.add_argument("--out", type=Path, help="the table as JSON")
    arguments = parser.parse_args()
    todo = list(tasks(arguments.cases, arguments.only))
    tallies = {name: Tally() for name, _ in todo}
    console = Console(width=150)
    with Progress(console=Console(stderr=True)) as progress, ProcessPoolExecutor(arguments.jobs) as pool:
        bar = progress.add_task("cases", total=sum(len(numbers) for _, numbers in todo))
        running = {pool.submit(compare, name, numbers, arguments.seed): (name, numbers) for name, numbers in todo}
        for done in as_completed(running):
            name, numbers = running[done]
            tallies[name].add(done.result())
            progress.advance(bar, len(numbers))
    table = Table("statement", "cases", "disagree", "largest", "allowed", "excluded", "ms each")
    for name, t in tallies.items():
        reasons = "; ".join(f"{count} {reason}" for reason, count in t.excluded.items())
        count = t.cases + t.excluded.total()
        table.add_row(
            name,
            str(t.cases),
            str(len(t.disagreements)),
            f"{t.largest:.0e}",
            f"{STATEMENTS[name].tolerance:.0e}",
            reasons,
            f"{1e3 * t.seconds / count:.2g}",
        )
    console.print(table)
    for name, t in tallies.items():
        if t.disagreements:
            console.print(
                f"{name}: seed {arguments.seed}, statement {list(STATEMENTS).index(name)}, cases {t.disagreements[:9]}"
            )
    if arguments.out:
        rows = {name: vars(t) | {"largest": f"{t.largest:.3g}"} for name, t in tallies.items()}  # may be inf
        files.atomic_write_json(arguments.out, {"seed": arguments.seed, "cases": arguments.cases, "statements": rows})
    return int(any(t.disagreements for t in tallies.values()))


if __name__ == "__main__":
    raise SystemExit(main())
