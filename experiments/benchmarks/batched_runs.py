"""Runs of one mechanism that differ in seed and learning rate: together, and one after another.

Reports CPU seconds of one thread and, if CUDA is available, wall seconds on CUDA, for one batch of runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from _measure import report

import mfdl
from mfdl.training import replay
from mfdl.training.replay import replays
from mfdl.training.replay_config import ReplayConfig
from mfdl.training.run import SeedRun

TASKS = {"digits": 11, "logistic": 16}
"""Steps of an epoch: small batches, as in a sweep."""
RATES = (0.2, 0.4)
STEPS = 160


def configs(task: str, device: str, runs: int) -> list[ReplayConfig]:
    """So many runs in all, half of them at each rate."""
    graph, period = "torus:rows=10,cols=10", TASKS[task]
    gossip, scheme = mfdl.gossip.metropolis_hastings(graph), mfdl.Cyclic(STEPS // period, period)
    records = mfdl.tasks.load(task, graph)

    def mechanism(rate: float) -> mfdl.Mechanism:
        algorithm = mfdl.algorithms.mafalda(mfdl.Dynamics(gossip, learning_rate=rate), scheme)
        return mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=2.0)

    return [ReplayConfig(mechanism(r), records, seeds=range(runs // 2), device=device, progress=False) for r in RATES]


def trained(chosen: list[ReplayConfig]) -> list[SeedRun]:
    """All runs of all configs."""
    return [seed for run in replays(chosen, lambda *_: None) for seed in run.seeds]


def alone(chosen: list[ReplayConfig]) -> list[SeedRun]:
    """The same, one after another."""
    of_seeds = (ReplayConfig(**{**vars(config), "seeds": [seed]}) for config in chosen for seed in config.seeds or ())
    return [run for config in of_seeds for run in trained([config])]


def measured(work: Callable[[], list[SeedRun]], clock: Callable[[], float]) -> tuple[float, list[SeedRun]]:
    began = clock()
    runs = work()
    return clock() - began, runs


def main() -> None:
    torch.set_num_threads(1)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        clock = time.process_time if device == "cpu" else time.perf_counter
        for task in TASKS:
            chosen = configs(task, device, replay.MOST_RUNS[device])
            trained([ReplayConfig(**{**vars(chosen[0]), "seeds": [0]})])
            together, runs = measured(lambda: trained(chosen), clock)  # noqa: B023
            single, others = measured(lambda: alone(chosen), clock)  # noqa: B023
            for run, other in zip(runs, others, strict=True):
                assert run.key_id == other.key_id
                np.testing.assert_allclose(run.loss, other.loss, rtol=1e-3, atol=1e-5)
            steps = sum(run.finished_steps for run in runs) // len(runs)
            report(
                task, device=device, runs=len(runs), nodes=100, steps=steps,
                together=together, alone=single, ratio=single / together,
            )  # fmt: skip


if __name__ == "__main__":
    main()
