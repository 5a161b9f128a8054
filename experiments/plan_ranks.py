"""Does a plan rank designs as training does? Spearman's rank correlation of predicted and measured loss.

    python experiments/plan_ranks.py [--seeds 2] [--first-seed 200]
    python experiments/plan_ranks.py --trust all --out docs/tables/plan_ranks_by_trust.csv
    python experiments/plan_ranks.py --comparison results/which_mechanism/results.json

In: designs on the task `logistic`, 16 nodes of a torus, dimension 20, 200 records a node. The curvature that the plan
gets is declared: eigenvalues 0.2 / j for the weights, from the features' covariance and p (1 - p) = 0.1 (the task has
two scores, which doubles it). Out: one row a design, predicted at the best rate of the plan's grid and measured at the
best of the rates `FACTORS` times that, mean over seeds; then the correlation.

With `--trust`: the eight designs of `BY_TRUST` under that trust model (or all of them, one row each), rates chosen on
seeds 400 to 402, losses over seeds 500 to 504. Designs were fixed before any run; a first one, on seeds 200 and 201
(rates) and 300 to 304, led to the largest rate of the plan's grid. Predictions count as equal to three digits.

With `--comparison`: the designs of the comparison (`which_mechanism.py`) in each of its scenes, by their test losses at
tuned rates; rows with a preconditioner or another clipping norm than 1 are left out. The curvature of a task is a power
law (`CURVATURES`) whose trace is the second derivative of the loss times the mean square of the features.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import json
import statistics
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

import mfdl
from mfdl.algorithms import registry
from mfdl.algorithms.gossip_sgd import decentralized
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
SEEDED = (
    "dp-dsgd,b=1,k=40,rounds=5",
    "mafalda,b=4,k=10,rounds=5,average:20",
    "corn,b=1,k=40,rounds=5",
    "corn,b=1,k=20",
    "corn,b=4,k=10,rounds=5",
    "kronecker,b=4,k=10,rounds=5",
)
AGAINST_NODES = (*SEEDED, "decor,b=1,k=40,rounds=20,average:20", "decor,b=1,k=20")
HIDDEN = (
    "dp-dsgd,b=1,k=40,rounds=5",
    "dp-dsgd,b=1,k=20",
    "dp-dsgd,b=1,k=10,rounds=5",
    "dp-dsgd,b=4,k=10",
    "dp-dsgd,b=4,k=10,rounds=5,average:20",
    "mafalda,b=4,k=10",
    "mafalda,b=4,k=10,rounds=5,average:20",
    "mafalda,b=4,k=5",
)
CENTRAL = (
    "cdp,b=1,k=160,average:80",
    "cdp,b=1,k=40",
    "cdp,b=1,k=10",
    "cdp,b=4,k=40,average:80",
    "cdp,b=4,k=10",
    "cdp,b=16,k=10",
    "cdp,b=16,k=2",
    "dp-dsgd,b=1,k=20,rounds=5",
)
BY_TRUST = {
    "ldp": (mfdl.trust.LDP(), DESIGNS[:1] + DESIGNS[2:5] + DESIGNS[8:]),
    "eavesdropper": (mfdl.trust.Eavesdropper(), (*SEEDED, "corn,b=1,k=40,rounds=20,average:20", "per-mode,b=4,k=10")),
    "coalitions of 1": (mfdl.trust.Coalitions(1), AGAINST_NODES),
    "coalitions of 2": (mfdl.trust.Coalitions(2), AGAINST_NODES),
    "coalitions of 3": (mfdl.trust.Coalitions(3), AGAINST_NODES),
    "secure-sum": (mfdl.trust.SecureSum(), HIDDEN),
    "pndp": (mfdl.trust.AnyReceiver(), HIDDEN),
    "central": (mfdl.trust.Central(), CENTRAL),
}
CHOOSING, TESTING = [400, 401, 402], list(range(500, 505))


@functools.cache
def _built(design: Design, coalition_size: int) -> mfdl.LinearAlgorithm:
    """At a learning rate of 1: no noise here depends on it."""
    rounds = {"gossip_rounds": design.gossip_rounds, "polynomial": design.polynomial}
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(GRAPH), 1.0, **rounds)
    return registry.build_tuned(design.mechanism, dynamics, design.scheme(), coalition_size=coalition_size)


def measured(
    design: Design, rate: float, task: mfdl.tasks.Task, seeds: list[int], privacy: mfdl.Privacy = PRIVACY
) -> float:
    """Test loss of the published models, mean over nodes and seeds."""
    size = privacy.trust.size if isinstance(privacy.trust, mfdl.trust.Coalitions) else 0
    built = _built(design, size)
    dynamics = dataclasses.replace(built.dynamics, learning_rate=rate)
    algorithm = decentralized(built.name, dynamics, built.participation, built.noise).releasing(design.release_model)
    mechanism = mfdl.calibrate(algorithm, privacy, **BUDGET)
    run = mfdl.replay(mechanism, task, seeds=seeds, eval_every=design.num_steps, progress=False)
    return statistics.mean(float("inf") if seed.diverged else seed.final("loss") for seed in run.seeds)


def ranks_under(name: str) -> dict[str, Any]:
    """A row of the table: the plan of eight designs under a trust model beside their test losses."""
    trust, designs = BY_TRUST[name]
    privacy = mfdl.Privacy(trust, adjacency="zero-out", clip_norm=1.0)
    expected = {"curvature": CURVATURE, "start_distance": START_DISTANCE}
    plan = mfdl.plan(GRAPH, RECORDS, privacy, designs=designs, **expected, **BUDGET)
    task = mfdl.tasks.logistic(GRAPH, dimension=DIMENSION, train_records=NODES * RECORDS)
    losses = []
    for planned in plan.designs:
        rates = [factor * planned.excess.learning_rate for factor in FACTORS]
        rate = min(rates, key=lambda rate: measured(planned.design, rate, task, CHOOSING, privacy))
        losses.append(measured(planned.design, rate, task, TESTING, privacy))
        print(f"{name:<16} {planned.design.name:<42} {planned.loss:9.4f} {losses[-1]:9.4f}", flush=True)
    best = min(range(len(losses)), key=losses.__getitem__)
    return {
        "trust model": name,
        "rank correlation": f"{spearmanr([float(f'{each.loss:.3g}') for each in plan.designs], losses).statistic:.2f}",
        "first in the plan": f"`{plan.designs[0].design.name}`",
        "its test loss": f"{losses[0]:.4f}",
        "least test loss": f"{losses[best]:.4f}",
        "its rank in the plan": best + 1,
        "least predicted excess": f"{plan.designs[0].loss:.4f}",
        "limit": f"{plan.limit.loss:.4f}",
    }


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
    parser.add_argument("--trust", choices=[*BY_TRUST, "all"], help="designs of one trust model, or of each")
    parser.add_argument("--out", type=Path, help="with --trust: the table, written after each row")
    given = parser.parse_args()
    if given.trust is not None:
        rows = []
        for name in BY_TRUST if given.trust == "all" else [given.trust]:
            rows.append(ranks_under(name))
            print(rows[-1], flush=True)
            if given.out is not None:
                with given.out.open("w", encoding="utf-8", newline="") as file:
                    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)
        return
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
