"""Nodes shared by processes: rows and bytes that cross the cut against the cut, and node-steps per second by ranks.

First the models are those of one process. Linear models on 10,000 nodes of a torus, and of a random graph of degree 10,
which no partition cuts well.

    python experiments/benchmarks/ranks.py [--out FOLDER]

It also draws them, as FOLDER/ranks.png and .svg (default results/benchmarks).
"""

from __future__ import annotations

import argparse
import os
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import report, spread
from matplotlib.figure import Figure

import mfdl
from mfdl.pictures.line_charts import Panel, draw
from mfdl.pictures.style import write_figure
from mfdl.training import distributed
from mfdl.training.distributed import Shares

STEPS, REPEATS = 20, 5
GRAPHS = {"torus, 100 x 100": "torus:rows=100,cols=100", "random, degree 10": "regular:n=10000,degree=10,seed=0"}
RANKS = (1, 2, 4)
Row = dict[str, Any]


def measured(spec: str) -> list[Row]:
    """One graph with each number of ranks."""
    graph = mfdl.graphs.load(spec)
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), 0.1)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(epochs=STEPS, period=1))
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0)
    task = mfdl.tasks.least_squares(graph)
    alone, rows = None, []
    for count in RANKS:
        with distributed.ranks(count) as group:
            # the first run is there for what each process makes once
            _, *runs = [mfdl.replay(mechanism, task, seeds=[0], eval_every=STEPS) for _ in range(REPEATS + 1)]
        models = runs[0].seeds[0].models
        alone = models if alone is None else alone
        np.testing.assert_allclose(models, alone, rtol=1e-4, atol=1e-5)
        shares = None if count == 1 else Shares.from_algorithm(algorithm, count)
        sent = group.sent_bytes / (REPEATS + 1) / STEPS  # by the leader, in a step
        speeds = [run.node_steps_per_second for run in runs]
        row = {
            "graph": spec,
            "ranks": count,
            "threads": torch.get_num_threads(),
            "edges": graph.number_of_edges(),
            "cut_edges": 0 if shares is None else shares.cut_edges,
            "rows_sent_in_a_step": sent / (models.shape[1] * 4),
            "bytes_sent_in_a_step": sent,
            "node_steps_per_second": spread(speeds),
        }
        report("ranks", **row)
        rows.append(row | {"speeds": speeds})
    return rows


def picture(rows_of: dict[str, list[Row]]) -> Figure:
    """Parallel efficiency, and what the leader sends for each edge cut."""
    efficiency, volume = {}, {}
    for name, rows in rows_of.items():
        single = rows[0]["node_steps_per_second"]["median"]
        efficiency[name] = np.array([np.array(row["speeds"]) / (row["ranks"] * single) for row in rows])
        volume[name] = np.array([[row["bytes_sent_in_a_step"]] for row in rows[1:]])
        volume[f"{name}: edges cut"] = np.array([[float(row["cut_edges"])] for row in rows[1:]])
    colours = dict(zip(volume, ("#0072b2", "#0072b2", "#d55e00", "#d55e00"), strict=True))
    line_colours = {name: colours[name] for name in efficiency}
    cuts = [name for name in volume if name not in efficiency]
    return draw(
        [
            Panel("speed over that of one rank, per rank", "ranks", "parallel efficiency", RANKS, efficiency,
                  log_x=True,
                  log_y=False, colours=line_colours),
            Panel("sent by the leader in a step", "ranks", "bytes; edges cut", RANKS[1:], volume, log_x=True,
                  dashed=cuts, colours=colours),
        ],
        "Parallel efficiency of ranks where a step is short, and what crosses the cut",
        f"10,000 nodes, linear models of 10 weights, means of {REPEATS} runs of {STEPS} steps with their range, "
        f"{os.cpu_count()} cores, of which more ranks share what there is; {date.today().isoformat()}.",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder of the picture")
    arguments = parser.parse_args()
    write_figure(arguments.out, "ranks", picture({name: measured(spec) for name, spec in GRAPHS.items()}))


if __name__ == "__main__":
    main()
