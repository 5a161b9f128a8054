"""Does a plan rank designs as training does? Spearman's rank correlation of predicted and measured loss.

    python experiments/plan_ranks.py [--seeds 2] [--first-seed 200]
    python experiments/plan_ranks.py --comparison results/which_mechanism/results.json

In: designs on the task `logistic`, 16 nodes of a torus, dimension 20, 200 records a node. The curvature that the plan
gets is declared: eigenvalues 0.2 / j for the weights, from the features' covariance and p (1 - p) = 0.1 (the task has
two scores, which doubles it). Out: one row a design, predicted at the best rate of the plan's grid and measured at the
best of the rates `FACTORS` times that, mean over seeds; then the correlation.

With `--comparison`: the designs of the comparison (`which_mechanism.py`) in each of its scenes, by their test losses at
tuned rates; rows with a preconditioner or another clipping norm than 1 are left out. The curvature of a task is a power
law (`CURVATURES`) whose trace is the second derivative of the loss times the mean square of the features.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

import mfdl
from mfdl.planning import Design

GRAPH, DIMENSION, NODES, RECORDS = "torus:rows=4,cols=4", 20, 16, 200
BUDGET = {"epsilon": 0.726, "delta": 1e-5}
PRIVACY = mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0)
CURVATURE, START_DISTANCE = f"power:1:{DIMENSION}:0.2", 1.5
CURVATURES = {
    "logistic": CURVATURE,
    "housing-linear": "power:1:9:3.18",  # 9 features of mean square 1, Huber's loss
    "a9a": "power:1:123:0.26",  # 14 ones a record, p (1 - p) = 0.1
    "housing-mlp": "power:1:9:3.18",  # of the linear model: few directions of a network are curved
}
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
    rounds = {"gossip_rounds": design.gossip_rounds, "polynomial": design.polynomial}
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(GRAPH), rate, **rounds)
    algorithm = mfdl.algorithms.build(design.mechanism, dynamics, design.scheme()).releasing(design.release_model)
    mechanism = mfdl.calibrate(algorithm, PRIVACY, **BUDGET)
    run = mfdl.replay(mechanism, task, seeds=seeds, eval_every=design.num_steps, progress=False)
    return statistics.mean(float("inf") if seed.diverged else seed.final("loss") for seed in run.seeds)


def of_comparison(results: Path) -> None:
    """Prints predicted beside measured losses of every scene of a comparison, and their rank correlation."""
    for scene in json.loads(results.read_text(encoding="utf-8"))["scenes"]:
        losses = _measured_designs(scene)
        if len(losses) < 3:
            continue
        task = mfdl.tasks.load(scene["task"], scene["graph"])
        records = len(task.features) // task.num_nodes
        plan = mfdl.plan(
            scene["graph"],
            records,
            PRIVACY,
            designs=list(losses),
            curvature=CURVATURES[scene["task"]],
            start_distance=START_DISTANCE,
            **(BUDGET | {"epsilon": scene["epsilon"]}),
        )
        predicted = {planned.design.name: planned.loss for planned in plan.designs}
        for name, loss in losses.items():
            print(f"{scene['name']:<24} {name:<44} {predicted[name]:9.4f} {loss:9.4f}")
        ranks = spearmanr([predicted[name] for name in losses], list(losses.values())).statistic
        print(f"{scene['name']}: Spearman's rank correlation {ranks:.3f} over {len(losses)} designs", flush=True)


def _measured_designs(scene: dict[str, Any]) -> dict[str, float]:
    """Mean test loss by the name of the design, of the rows that a plan covers."""
    losses = {}
    for row in scene["rows"]:
        design = Design.parse(row["design"])
        covered = design.mechanism in ("dp-dsgd", "mafalda") and not row["preconditioned"] and row["clip_norm"] == 1
        if covered and "ldp" in row["rankings"] and None not in row["losses"]:
            last = dataclasses.replace(design, release_model="last")
            losses[(last if row["measure"] == "last" else design).name] = statistics.mean(row["losses"])
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--comparison", type=Path, help="results.json of which_mechanism.py")
    given = parser.parse_args()
    if given.comparison is not None:
        of_comparison(given.comparison)
        return
    seeds = list(range(given.first_seed, given.first_seed + given.seeds))
    task = mfdl.tasks.logistic(GRAPH, dimension=DIMENSION, train_records=NODES * RECORDS)
    plan = mfdl.plan(
        GRAPH, RECORDS, PRIVACY, designs=DESIGNS, curvature=CURVATURE, start_distance=START_DISTANCE, **BUDGET
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
