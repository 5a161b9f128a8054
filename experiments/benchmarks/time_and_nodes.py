"""Noise over time and nodes: the forms that scale against the dense program and against cvxpy; ratios of seconds.

On a ring the per-mode form reaches the optimum of any noise, so all three solve the same problem,
each from the graph on.

    python experiments/benchmarks/time_and_nodes.py [--large]

`--large`: the Kronecker and per-mode forms on ego-Facebook, 20 epochs of 16 steps (minutes; needs the
graph, see `mfdl data`).
"""

from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np
from _measure import peak_megabytes, report, seconds

import mfdl
from mfdl.factorization import optimal_joint, optimal_kronecker, optimal_per_mode
from mfdl.objective import NoiseObjective
from mfdl_solvers.kronecker_encoder import joint_classes

TOLERANCE = 1e-4


def ring(nodes: int, epochs: int, period: int) -> tuple[mfdl.Dynamics, mfdl.Cyclic]:
    gossip = mfdl.gossip.metropolis_hastings(mfdl.graphs.load(f"ring:n={nodes}"))
    return mfdl.Dynamics(gossip), mfdl.Cyclic(epochs=epochs, period=period)


def by_cvxpy(dynamics: mfdl.Dynamics, participation: mfdl.Cyclic) -> float:
    """min tr(H X^-1) as an interior-point solver takes it; in-class entries zero, which costs nothing."""
    H = NoiseObjective(dynamics, participation.num_steps).over_both()
    values, vectors = np.linalg.eigh(H)
    root = vectors * np.sqrt(np.clip(values, 0, None))
    labels = joint_classes(participation.classes(), dynamics.num_nodes)
    X = cp.Variable(H.shape, PSD=True)
    same = (labels[:, None] == labels[None, :]) & ~np.eye(len(labels), dtype=bool)
    member = (labels[None, :] == np.unique(labels)[:, None]).astype(float)
    problem = cp.Problem(cp.Minimize(cp.matrix_frac(root, X)), [member @ cp.diag(X) <= 1, cp.multiply(same, X) == 0])
    return float(problem.solve(solver=cp.CLARABEL))


def main() -> None:
    dynamics, participation = ring(4, 2, 2)
    exact = optimal_joint(dynamics, participation, tolerance=TOLERANCE).objective
    assert abs(by_cvxpy(dynamics, participation) / exact - 1) < 1e-3, "the two optima disagree"
    ours = seconds(lambda: optimal_joint(dynamics, participation, tolerance=TOLERANCE))
    other = seconds(lambda: by_cvxpy(dynamics, participation), repeats=3)
    report("joint", nodes=4, steps=4, mfdl=ours, cvxpy=other, ratio=other["median"] / ours["median"])
    for nodes, epochs, period in ((8, 4, 8), (16, 4, 16)):
        dynamics, participation = ring(nodes, epochs, period)
        scaled, dense = (
            search(dynamics, participation, tolerance=TOLERANCE) for search in (optimal_per_mode, optimal_joint)
        )
        ours = seconds(lambda d=dynamics, p=participation: optimal_per_mode(d, p, tolerance=TOLERANCE), repeats=3)
        other = seconds(
            lambda d=dynamics, p=participation: optimal_joint(d, p, tolerance=TOLERANCE), repeats=1, warm_up=0
        )
        report(
            "per-mode",
            nodes=nodes,
            steps=participation.num_steps,
            mfdl=ours,
            dense=other,
            ratio=other["median"] / ours["median"],
            loss_ratio=scaled.objective / dense.objective,
        )
    if "--large" in sys.argv[1:]:
        gossip = mfdl.gossip.metropolis_hastings(mfdl.graphs.load("ego-facebook"))
        dynamics, participation = mfdl.Dynamics(gossip), mfdl.Cyclic(epochs=20, period=16)
        for name, solve in (("kronecker", optimal_kronecker), ("per-mode", optimal_per_mode)):
            solved = solve(dynamics, participation)
            facts = {
                "seconds": solved.seconds,
                "objective": solved.objective,
                "gap": solved.gap,
                "megabytes": peak_megabytes(),
            }
            report(f"{name}-large", nodes=148, steps=320, **facts)


if __name__ == "__main__":
    main()
