"""The dense solver against jax_privacy's on the same Gram and classes, to 1e-4 of the optimum, on one and two cores.

Ours ends when its certificate says 1e-4; the peer, which has none, when its objective is within 1e-4 of our lower
bound. Each runs in a process of its own with as many cores and threads as the row says; `seconds` are wall, `cpu` those
of all its threads, which a busy machine distorts less. Ours includes posing the problem: checks and eigenvalues of H.
The peer runs where MFDL_BENCH_PEER names an interpreter that has jax_privacy, or this one has it. It is stopped at a
multiple of our seconds, wall and cpu both (LIMITS, or `--limit`); then `reached` is false, the ratios what they are at
least.

    python experiments/benchmarks/dense_peers.py [SIZE ...] [--cores 1 2] [--grams NAME ...] [--limit TIMES]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _measure import leave_out, peak_megabytes, report, slope, spread

import mfdl
from mfdl.objective import NoiseObjective
from mfdl_solvers import FactorizationProblem, solve

EPOCHS = {320: 20, 1024: 16, 2048: 16}
LIMITS = {320: 60.0, 1024: 10.0, 2048: 5.0}
"""Times our seconds that the peer is given: at the larger sizes what a page can wait for."""
GRAPHS = {"ring": "ring:n=148", "random": "erdos-renyi:n=148,p=0.15,seed=0"}
PREFIX = "prefix sums"
TOLERANCE = 1e-4
REPEATS = 3
BRIEF = 10.0
"""Seconds up to which a run of the peer's that came to its end is repeated."""
MISSING = (
    "jax_privacy is not installed in {}, so the dense solver stands alone; "
    "pip install -c constraints.txt -e '.[bench]', or name an interpreter that has it in MFDL_BENCH_PEER."
)


def gram(name: str, size: int) -> np.ndarray:
    """Of gossip on a ring or a random graph, or of prefix sums."""
    if name == PREFIX:
        return np.tri(size).T @ np.tri(size)
    return NoiseObjective(mfdl.Dynamics(mfdl.gossip.uniform(GRAPHS[name])), size).over_steps()


def our_times(file: str) -> None:
    """The worker: our seconds on the problem in a file."""
    with np.load(file) as given:
        H, epochs = given["workload"].T @ given["workload"], int(given["epochs"])
    classes = np.arange(len(H)) % (len(H) // epochs)
    walls, cpus = [], []
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        answer = solve(FactorizationProblem(H, classes))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    times = {"seconds": statistics.median(walls), "cpu": statistics.median(cpus), **spread(walls)}
    certified = {"objective": answer.objective, "gap": answer.gap, "iterations": answer.iterations}
    print(json.dumps({**times, **certified, "bound": answer.lower_bound, "megabytes": peak_megabytes()}))


def measured(command: list[str], cores: int) -> dict[str, Any] | None:
    """The JSON object that a worker prints, on so many cores; None where it fails."""
    threads = {f"{name}_NUM_THREADS": str(cores) for name in ("OMP", "OPENBLAS", "MKL")}
    single = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"} if cores == 1 else {}
    some = sorted(os.sched_getaffinity(0))[:cores]
    done = subprocess.run(
        command,
        env={**os.environ, **threads, **single},
        preexec_fn=lambda: os.sched_setaffinity(0, some),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print(done.stderr[-500:], file=sys.stderr)
        return None
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def has_peer(interpreter: str) -> bool:
    """Whether it runs and has jax_privacy."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('jax_privacy') is None)"
    try:
        return subprocess.run([interpreter, "-c", look], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def beside(H: np.ndarray, epochs: int, cores: int, limit: float, interpreter: str | None) -> dict[str, Any]:
    """What both take for one problem, or ours alone."""
    here, values = Path(__file__), np.linalg.eigh(H)
    root = (values[1] * np.sqrt(np.clip(values[0], 0, None))).T
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "problem.npz")
        np.savez(file, workload=root, epochs=epochs)
        ours = measured([sys.executable, str(here), "--mfdl", file], cores)
        assert ours is not None, "the solver failed"
        assert ours["gap"] <= TOLERANCE, "not within the tolerance"
        row: dict[str, Any] = {"steps": len(H), "epochs": epochs, "cores": cores, "mfdl": ours}
        row["peak_megabytes"] = ours["megabytes"]
        if interpreter is None:
            return row
        until = {"target": ours["bound"] * (1 + TOLERANCE), "limit": limit * ours["seconds"]}
        np.savez(file, workload=root, epochs=epochs, **until, cpu_limit=limit * ours["cpu"])
        command = [interpreter, str(here.with_name("_jax_privacy.py")), file]
        runs = [measured(command, cores)]
        while runs[-1] is not None and runs[-1]["reached"] and runs[-1]["seconds"] < BRIEF and len(runs) < REPEATS:
            runs.append(measured(command, cores))
    times = [peer for peer in runs if peer is not None]
    if len(times) < len(runs):
        return {**row, "left_out": "jax_privacy failed; its last words stand above"}
    assert min(peer["loss_of_answer"] for peer in times) >= ours["bound"] * (1 - 1e-6), "below the lower bound"
    median = {key: statistics.median(peer[key] for peer in times) for key in ("seconds", "cpu")}
    walls = [peer["seconds"] for peer in times]
    row["jax_privacy"] = {**times[0], **median, **spread(walls), "repeats": len(times)}
    row["reached"] = all(peer["reached"] for peer in times)
    return {**row, "ratio": median["seconds"] / ours["seconds"], "cpu_ratio": median["cpu"] / ours["cpu"]}


def main() -> None:
    names = [*GRAPHS, PREFIX]
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, default=list(EPOCHS))
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--grams", nargs="+", choices=names, default=names)
    parser.add_argument("--limit", type=float)
    arguments = parser.parse_args()
    interpreter: str | None = os.environ.get("MFDL_BENCH_PEER", sys.executable)
    if not has_peer(interpreter):
        leave_out("dense", MISSING.format(interpreter))
        interpreter = None
    costs: dict[tuple[str, int], list[float]] = {}
    for size in arguments.sizes:
        limit = LIMITS.get(size, min(LIMITS.values())) if arguments.limit is None else arguments.limit
        for name in arguments.grams:
            H = gram(name, size)
            for cores in arguments.cores:
                row = beside(H, EPOCHS.get(size, 16), cores, limit, interpreter)
                report("dense", gram=GRAPHS.get(name, name), **row)
                costs.setdefault((name, cores), []).append(row["mfdl"]["seconds"])
    if len(arguments.sizes) > 1:
        for (name, cores), times in costs.items():
            facts = {"gram": GRAPHS.get(name, name), "cores": cores, "sizes": arguments.sizes}
            report("dense-slope", **facts, seconds=times, slope=slope(arguments.sizes, times))


if __name__ == "__main__":
    our_times(sys.argv[2]) if sys.argv[1:2] == ["--mfdl"] else main()
