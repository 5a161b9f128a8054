"""CPU seconds of a command from start to end, beside the imports that it cannot do without; a ring of a million nodes.

Starts run in turn, each in a process of its own, and count user and system seconds of all threads. A graph with its
gossip matrix and the losses under LDP is measured beside the arrays that hold a sparse matrix of its size.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from _measure import peak_megabytes, report, spread
from scipy.sparse import csr_array

import mfdl

STARTS = {  # what is measured, and the imports beside it
    "--version": "typer",
    "--help": "typer",
    "account --help": "typer",
    "account": "numpy, scipy.linalg",
    "compare": "torch, matplotlib.figure",
}
REPEATS = 5
NODES = 10**6


def cpu_seconds(command: list[str]) -> float:
    """User and system seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def starts() -> None:
    for words, imports in STARTS.items():
        ours, anchor = [], []
        for _ in range(REPEATS if words != "compare" else 1):
            ours.append(cpu_seconds([sys.executable, "-m", "mfdl", *words.split()]))
            anchor.append(cpu_seconds([sys.executable, "-c", f"import {imports}"]))
        ratio = spread(ours)["median"] / spread(anchor)["median"]
        report("starts", command=f"mfdl {words}", cpu=spread(ours), imports=imports, anchor=spread(anchor), ratio=ratio)


def seconds_and_megabytes(work: Callable[[], object]) -> tuple[float, float]:
    before, began = peak_megabytes(), time.process_time()
    kept = work()
    done = time.process_time() - began, peak_megabytes() - before
    del kept
    return done


def ring(nodes: int) -> object:
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(mfdl.graphs.load_sparse(f"ring:n={nodes}")))
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(epochs=1, period=4))
    return mfdl.losses(algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0), progress=False)


def arrays(nodes: int) -> object:
    """A csr matrix with the links of a ring and its diagonal, float64."""
    own = np.arange(nodes)
    columns = np.sort(np.stack([own, np.roll(own, 1), np.roll(own, -1)], axis=1), axis=1)
    return csr_array((np.full(columns.size, 1 / 3), columns.ravel(), np.arange(nodes + 1) * 3), shape=(nodes, nodes))


def main() -> None:
    starts()
    ring(100)  # imports
    anchor, anchor_megabytes = seconds_and_megabytes(lambda: arrays(NODES))
    ours, megabytes = seconds_and_megabytes(lambda: ring(NODES))
    report("million", nodes=NODES, cpu=ours, megabytes=megabytes, anchor=anchor, anchor_megabytes=anchor_megabytes)


if __name__ == "__main__":
    main()
