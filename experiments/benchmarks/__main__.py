"""Runs benchmarks, each in a process of its own, and keeps their JSON rows.

    python -m experiments.benchmarks [NAME ...]

A benchmark is a script beside this file: it checks its answer against the peer's first, then prints one JSON row per
measurement (`_measure.report`). Names are those of the files; none means all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("[a-z]*.py"))


def run(name: str, path: Path) -> int:
    """Runs one benchmark, prints its rows and appends them to a file; its exit status."""
    root = HERE.parents[1]
    paths = [str(root), str(root / "solvers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(HERE / f"{name}.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        with path.open("a") as rows:
            for line in process.stdout:
                print(line, end="", flush=True)
                rows.write(line)
                rows.flush()
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks", description="Benchmarks, each in a process of its own."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder of the rows")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    failed = [name for name in arguments.names or NAMES if run(name, arguments.out / f"{name}.jsonl")]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
