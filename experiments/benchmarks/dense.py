"""The dense solver against jax_privacy's on the same Gram and classes, to 1e-4 of the optimum, on one and two cores.

Ours ends when its certificate says 1e-4; the peer, which has none, when its loss is within 1e-4 of our lower bound.
Each runs in a process of its own with as many cores and threads as the row says; `seconds` are wall, `cpu` those of all
its threads, which a busy machine distorts less. Ours includes posing the problem: checks and eigenvalues of H. The peer
runs where MFDL_BENCH_PEER names an interpreter that has jax_privacy, or this one has it. It is stopped at `--limit`
times our cpu seconds; then `reached` is false, and the ratio is what it is at least.

    python experiments/benchmarks/dense.py [SIZE ...] [--cores 1 2] [--limit 100]
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
from _measure import peak_megabytes, report, slope

import mfdl
from mfdl.error_gram import error_gram
from mfdl_solvers import FactorizationProblem, solve

EPOCHS = {320: 20, 1024: 16, 2048: 16}
TOLERANCE = 1e-4
REPEATS = 3


def grams(size: int) -> dict[str, np.ndarray]:
    """Gossip on a ring, on a random graph, and prefix sums."""
    graphs = ("ring:n=148", "erdos-renyi:n=148,p=0.15,seed=0")
    found = {graph: error_gram(mfdl.Dynamics(mfdl.gossip.uniform(graph)), size) for graph in graphs}
    return {**found, "prefix sums": np.tri(size).T @ np.tri(size)}


def own(file: str) -> None:
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
    spread = {"seconds": statistics.median(walls), "cpu": statistics.median(cpus), "min": min(walls), "max": max(walls)}
    certified = {"loss": answer.loss, "gap": answer.gap, "iterations": answer.iterations}
    print(json.dumps({**spread, **certified, "bound": answer.lower_bound, "megabytes": peak_megabytes()}))


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--limit", type=float, default=100)
    asked = parser.parse_args()
    here, sizes = Path(__file__), asked.sizes or list(EPOCHS)
    costs: dict[tuple[str, int], list[float]] = {}
    for size in sizes:
        for name, H in grams(size).items():
            values, vectors = np.linalg.eigh(H)
            problem = {"workload": (vectors * np.sqrt(np.clip(values, 0, None))).T, "epochs": EPOCHS.get(size, 16)}
            for cores in asked.cores:
                with tempfile.NamedTemporaryFile(suffix=".npz") as file:
                    np.savez(file, **problem)
                    file.flush()
                    ours = measured([sys.executable, str(here), "--own", file.name], cores)
                    assert ours is not None, "the solver failed"
                    assert ours["gap"] <= TOLERANCE, "not within the tolerance"
                    file.seek(0)
                    target, limit = ours["bound"] * (1 + TOLERANCE), asked.limit * ours["cpu"]
                    np.savez(file, **problem, target=target, limit=limit)
                    file.flush()
                    interpreter = os.environ.get("MFDL_BENCH_PEER", sys.executable)
                    peer = measured([interpreter, str(here.with_name("_jax_privacy.py")), file.name], cores)
                row: dict[str, Any] = {
                    "gram": name,
                    "steps": size,
                    "epochs": problem["epochs"],
                    "cores": cores,
                    "own": ours,
                }
                if peer is not None:
                    assert peer["loss_of_answer"] >= ours["bound"] * (1 - 1e-6), "the peer is below the lower bound"
                    row["jax_privacy"] = peer
                    row["ratio"], row["cpu_ratio"] = (peer[key] / ours[key] for key in ("seconds", "cpu"))
                report("dense", **row)
                costs.setdefault((name, cores), []).append(ours["seconds"])
    if len(sizes) > 1:
        for (name, cores), seconds in costs.items():
            report("dense-slope", gram=name, cores=cores, sizes=sizes, slope=slope(sizes, seconds))


if __name__ == "__main__":
    own(sys.argv[2]) if sys.argv[1:2] == ["--own"] else main()
