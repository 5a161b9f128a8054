"""Dense solver against an interior-point solver (cvxpy, Clarabel) on the same problem; ratio of seconds.

The peer solves the semidefinite program of the restricted problem: minimise tr(H X^-1), X zero off-diagonal within
classes, diagonal sums 1. Its cost explodes with T, so sizes are small; the large size is ours alone.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from _measure import peak_megabytes, report, seconds

import mfdl
from mfdl.factorization import problem, solve_problem
from mfdl_solvers import FactorizationProblem


def peer(posed: FactorizationProblem) -> float:
    """Optimum by cvxpy."""
    T = posed.size
    X = cp.Variable((T, T), symmetric=True)
    same = posed.same_class & ~np.eye(T, dtype=bool)
    constraints = [X[i, j] == 0 for i, j in zip(*np.nonzero(np.triu(same)), strict=True)]
    constraints += [cp.sum(cp.diag(X)[posed.classes == c]) <= 1 for c in range(posed.num_classes)]
    values, vectors = np.linalg.eigh(posed.error_gram)
    root = (vectors * np.sqrt(np.clip(values, 0, None))).T
    program = cp.Problem(cp.Minimize(cp.matrix_frac(root.T, X)), constraints)
    return float(program.solve(solver=cp.CLARABEL))


def main() -> None:
    dynamics = mfdl.Dynamics(mfdl.gossip.uniform("florentine"))
    for epochs, period in ((2, 4), (2, 8), (4, 8)):
        posed = problem(dynamics, mfdl.Cyclic(epochs=epochs, period=period))
        ours = solve_problem(posed, tolerance=1e-6)
        assert abs(ours.loss / peer(posed) - 1) < 1e-4, "the two solvers disagree"
        own = seconds(lambda posed=posed: solve_problem(posed, tolerance=1e-6))
        other = seconds(lambda posed=posed: peer(posed), repeats=3, warm_up=0)
        report(
            "factorize",
            steps=posed.size,
            own=own,
            cvxpy=other,
            ratio=other["median"] / own["median"],
            gap=ours.gap,
        )
    participation = mfdl.Cyclic(epochs=20, period=16)
    for graph in ("ring:n=148", "erdos-renyi:n=148,p=0.15,seed=0"):
        dynamics = mfdl.Dynamics(mfdl.gossip.uniform(graph))
        own = seconds(lambda dynamics=dynamics: mfdl.factorization.factorize(dynamics, participation), repeats=3)
        report("factorize-large", graph=graph, steps=320, own=own, peak_megabytes=peak_megabytes())


if __name__ == "__main__":
    main()
