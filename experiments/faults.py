"""Fuzzing and fault injection: malformed input by the thousand, and processes killed at random times.

    python experiments/faults.py fuzz --cases 10000 --seed 0 --jobs 2 [--out report.json]
    python experiments/faults.py kill --runs 50 --seed 0 [--out report.json]

`fuzz` draws case k of a seed from Random(f"{seed} {k}"), in the surfaces of `_fault_cases.py` in turn; any traceback,
hang, partial file or refusal without a message ends it with status 1. `kill` is described in `_fault_kills.py`. POSIX
only.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from random import Random
from typing import Any

from _fault_cases import ORDER, SURFACES, run_case
from _fault_judge import FAULTS, Outcome
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mfdl import files

CHUNK = 20  # cases of one task
MEMORY_BYTES = 6 * 2**30  # of one process beyond what it starts with: a wish for more must be refused in words
SHOWN = 5  # faults of one surface that are printed


def fuzz_case(seed: int, k: int) -> tuple[str, str, str, float]:
    """Surface, outcome, its words and seconds of case k."""
    surface = ORDER[k % len(ORDER)]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mfdl-fault-") as folder:
        try:
            outcome = run_case(surface, Random(f"{seed} {k}"), Path(folder))
        except Exception:
            outcome = Outcome("traceback", f"while the case was drawn or judged: {traceback.format_exc()[-2000:]}")
    return surface, outcome.kind, outcome.detail, time.perf_counter() - began


def _fuzz_chunk(seed: int, numbers: Sequence[int]) -> list[tuple[int, str, str, str, float]]:
    return [(k, *fuzz_case(seed, k)) for k in numbers]


def _start_worker() -> None:
    import torch

    torch.set_num_threads(1)
    resident = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (resident + MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def fuzz(cases: Sequence[int], seed: int, jobs: int) -> dict[str, Any]:
    """Tries the numbered cases; counts by surface and outcome, and every fault."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in SURFACES}
    faults: list[dict[str, Any]] = []
    slowest = (0.0, -1)
    began = time.perf_counter()
    chunks = [cases[i : i + CHUNK] for i in range(0, len(cases), CHUNK)]
    with (
        Progress(console=Console(stderr=True)) as progress,
        ProcessPoolExecutor(jobs, initializer=_start_worker) as pool,
    ):
        bar = progress.add_task("cases", total=len(cases))
        for done in as_completed([pool.submit(_fuzz_chunk, seed, chunk) for chunk in chunks]):
            for k, surface, kind, detail, seconds in done.result():
                counts[surface][kind] += 1
                slowest = max(slowest, (seconds, k))
                if kind in FAULTS:
                    faults.append(
                        {
                            "case": k,
                            "surface": surface,
                            "fault": kind,
                            "detail": detail.encode("ascii", "backslashreplace").decode(),
                        }
                    )
                progress.advance(bar)
    return {
        "seed": seed,
        "cases": len(cases),
        "seconds": round(time.perf_counter() - began, 1),
        "slowest_case": {"case": slowest[1], "seconds": round(slowest[0], 2)},
        "surfaces": {name: dict(sorted(count.items())) for name, count in counts.items()},
        "faults": sorted(faults, key=lambda fault: fault["case"]),
    }


def _show_fuzz(report: dict[str, Any]) -> None:
    console = Console(width=150)
    kinds = ["accepted", "refused", "stopped", *FAULTS]
    table = Table("surface", *kinds)
    for name, count in report["surfaces"].items():
        table.add_row(name, *(str(count.get(kind, 0)) for kind in kinds))
    console.print(table)
    counts: Counter[str] = Counter()
    for fault in report["faults"]:
        counts[fault["surface"]] += 1
        if counts[fault["surface"]] <= SHOWN:
            place = f"case {fault['case']} ({fault['surface']})"
            console.print(f"{place}, {fault['fault']}: {fault['detail']}", markup=False)
    console.print(f"{report['cases']} cases in {report['seconds']} s, slowest {report['slowest_case']}", markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    fuzz_parser = commands.add_parser("fuzz", help="malformed configurations, graphs, files and arguments")
    fuzz_parser.add_argument("--cases", type=int, default=10_000)
    fuzz_parser.add_argument("--start", type=int, default=0, help="number of the first case")
    fuzz_parser.add_argument("--seed", type=int, default=0)
    fuzz_parser.add_argument("--jobs", type=int, default=1, help="processes")
    fuzz_parser.add_argument("--only", type=int, nargs="+", help="numbers of cases to repeat")
    fuzz_parser.add_argument("--out", type=Path, help="the report as JSON")
    two = commands.add_parser("kill", help="training, compare and factorize under SIGKILL")
    two.add_argument("--runs", type=int, default=50)
    two.add_argument("--seed", type=int, default=0)
    two.add_argument("--out", type=Path, help="the report as JSON")
    arguments = parser.parse_args()
    if arguments.command == "fuzz":
        report = fuzz(
            arguments.only or range(arguments.start, arguments.start + arguments.cases), arguments.seed, arguments.jobs
        )
        _show_fuzz(report)
        bad = bool(report["faults"])
    else:
        from _fault_kills import kill

        report = kill(arguments.runs, arguments.seed)
        Console(width=150).print_json(data=report)
        bad = bool(report["faults"])
    if arguments.out:
        files.atomic_write_json(arguments.out, report)
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
