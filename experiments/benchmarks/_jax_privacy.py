"""jax_privacy's dense optimizer on a problem in a file, until its loss is at most a target or its times are over.

A process of its own, which imports nothing of mfdl, so that it may run under another interpreter (`MFDL_BENCH_PEER`).
The optimizer, its start, its objective and its projection are jax_privacy's; only the callback that ends it is ours:
the default ends at a gradient of 1e-3, whatever the units. Its first step compiles and is left out.
"""

from __future__ import annotations

import importlib.metadata
import json
import resource
import sys
import time

import numpy as np


def main() -> None:
    from jax_privacy.matrix_factorization import dense

    with np.load(sys.argv[1]) as given:
        workload, epochs = given["workload"], int(given["epochs"])
        target, limit, cpu_limit = (float(given[name]) for name in ("target", "limit", "cpu_limit"))
    T = len(workload)
    wall, cpu, losses = [time.perf_counter()], [time.process_time()], []

    def is_over(step: object) -> bool:
        losses.append(float(step.loss) * T)  # type: ignore[attr-defined]
        wall.append(time.perf_counter())
        cpu.append(time.process_time())
        over = wall[-1] - wall[1] > limit and cpu[-1] - cpu[1] > cpu_limit
        return losses[-1] <= target or over

    C = np.asarray(dense.optimize(T, epochs=epochs, A=workload, callback=is_over, max_optimizer_steps=20000))
    X = np.float64(C).T @ C
    sums = np.bincount(np.arange(T) % (T // epochs), weights=np.diagonal(X))
    steps = len(losses)
    share = steps / (steps - 1)  # of all steps in those that were timed
    answer = {
        "seconds": (wall[-1] - wall[1]) * share,
        "cpu": (cpu[-1] - cpu[1]) * share,
        "compile": wall[1] - wall[0],
        "reached": losses[-1] <= target,
        "steps": steps,
        "loss": losses[-1],
        "loss_of_answer": float(sums.max() * (np.linalg.solve(X, workload.T) * workload.T).sum()),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jax-privacy", "numpy")},
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
