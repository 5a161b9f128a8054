"""Nodes shared by processes: rows and bytes that cross the cut against the cut, and node-steps per second by ranks.

First the models are those of one process. Linear models on 10,000 nodes of a torus, and of a random graph of degree 10,
which no partition cuts well.
"""

from __future__ import annotations

import numpy as np
import torch
from _measure import report, spread

import mfdl
from mfdl.training import distributed
from mfdl.training.distributed.shares import Shares

STEPS, REPEATS = 20, 3
GRAPHS = ("torus:rows=100,cols=100", "regular:n=10000,degree=10,seed=0")


def main() -> None:
    for spec in GRAPHS:
        graph = mfdl.graphs.load(spec)
        dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), 0.1)
        algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(epochs=STEPS, period=1))
        mechanism = mfdl.calibrate(algorithm, trust=mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0, mu=1.0)
        task = mfdl.tasks.least_squares(graph)
        alone = None
        for count in (1, 2, 4):
            with distributed.ranks(count) as group:
                runs = [mfdl.replay(mechanism, task, seeds=[0], eval_every=STEPS) for _ in range(REPEATS)]
            models = runs[0].seeds[0].models
            alone = models if alone is None else alone
            np.testing.assert_allclose(models, alone, rtol=1e-4, atol=1e-5)
            shares = None if count == 1 else Shares.of(algorithm, count)
            sent = group.sent_bytes / REPEATS / STEPS  # by the leader, in a step
            report(
                "ranks",
                graph=spec,
                ranks=count,
                threads=torch.get_num_threads(),
                edges=graph.number_of_edges(),
                cut_edges=0 if shares is None else shares.cut_edges,
                rows_sent_in_a_step=sent / (models.shape[1] * 4),
                bytes_sent_in_a_step=sent,
                node_steps_per_second=spread([run.node_steps_per_second for run in runs]),
            )


if __name__ == "__main__":
    main()
