"""Does a plan rank designs as training does? Spearman's rank correlation of predicted and measured loss.

    python experiments/plan_ranks.py [--seeds 2] [--first-seed 200]

In: designs on the task `logistic`, 16 nodes of a torus, dimension 20, 200 records a node. The curvature that the plan
gets is declared: eigenvalues 0.2 / j for the weights, from the features' covariance and p (1 - p) = 0.1 (the task has
two scores, which doubles it). Out: one row a design, predicted at the best rate of the plan's grid and measured at the
best of the rates `FACTORS` times that, mean over seeds; then the correlation.
"""

from __future__ import annotations

import argparse
import statistics

from scipy.stats import spearmanr

import mfdl
from mfdl.planning import Design

GRAPH, DIMENSION, NODES, RECORDS = "torus:rows=4,cols=4", 20, 16, 200
BUDGET = {"epsilon": 0.726, "delta": 1e-5, "adjacency": "zero-out"}
CURVATURE, START_DISTANCE = f"power:1:{DIMENSION}:0.2", 1.5
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0)
DESIGNS = (
    "dp-dsgd,b=1,k=160,rounds=5,average:80",
    "dp-dsgd,b=1,k=160",
    "dp-dsgd,b=1,k=20,rounds=5",
    "dp-dsgd,b=4,k=40,average:80",
    "dp-dsgd,b=16,k=10",
    "dp-dsgd,b=16,k=10,rounds=5,average:80",
    "dp-dsgd,b=16,k=10,bins,average:80",
    "dp-dsgd,b=16,k=10,bins,rounds=5",
    "mafalda,b=16,k=10",
    "mafalda,b=16,k=10,average:80",
    "mafalda,b=4,k=40,rounds=5,average:80",
    "mafalda,b=1,k=40",
)


def measured(design: Design, rate: float, task: mfdl.tasks.Task, seeds: list[int]) -> float:
    """Test loss of the published models, mean over nodes and seeds."""
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(GRAPH), rate, gossip_rounds=design.gossip_rounds)
    algorithm = mfdl.algorithms.build(design.mechanism, dynamics, design.scheme()).releasing(design.release_model)
    mechanism = mfdl.calibrate(algorithm, trust=mfdl.trust.LDP(), clip_norm=1.0, **BUDGET)
    run = mfdl.replay(mechanism, task, seeds=seeds, eval_every=design.num_steps, progress=False)
    return statistics.mean(float("inf") if seed.diverged else seed.final("loss") for seed in run.seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=200)
    given = parser.parse_args()
    seeds = list(range(given.first_seed, given.first_seed + given.seeds))
    task = mfdl.tasks.logistic(GRAPH, dimension=DIMENSION, train_records=NODES * RECORDS)
    plan = mfdl.plan(
        GRAPH,
        RECORDS,
        designs=DESIGNS,
        curvature=CURVATURE,
        start_distance=START_DISTANCE,
        **BUDGET,
    )
    predicted, losses = [], []
    print(f"{'design':<42} predicted at rate  test loss at rate")
    for planned in plan.designs:
        rates = [factor * planned.excess.learning_rate for factor in FACTORS]
        by_rate = {rate: measured(planned.design, rate, task, seeds) for rate in rates}
        best = min(by_rate, key=by_rate.__getitem__)
        predicted.append(planned.loss)
        losses.append(by_rate[best])
        at = planned.excess.learning_rate
        print(f"{planned.design.name:<42} {planned.loss:9.4f} {at:7.3g} {by_rate[best]:10.4f} {best:7.3g}", flush=True)
    print(f"Spearman's rank correlation: {spearmanr(predicted, losses).statistic:.3f}, seeds {seeds}")


if __name__ == "__main__":
    main()
