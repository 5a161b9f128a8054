"""Dense solver against an interior-point solver (cvxpy, Clarabel) on the same problem; ratio of seconds.

The peer solves the semidefinite program of the restricted problem: minimise tr(H X^-1), X zero off-diagonal within
classes, diagonal sums 1. Both are asked for 1e-6. The program has T^2 unknowns, so the peer's cost grows as T^4 and
more: at 64 steps it is stopped after LIMIT seconds, `reached` is false and the ratio is what it is at least; the large
size is ours alone.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from _measure import report, seconds, slope

import mfdl
from mfdl.factorization import problem, solve_problem
from mfdl_solvers import FactorizationProblem

LIMIT = 120.0
TOLERANCE = 1e-6


def peer(posed: FactorizationProblem) -> float | None:
    """Optimum by cvxpy; None: stopped before."""
    T = posed.size
    X = cp.Variable((T, T), symmetric=True)
    same = posed.same_class & ~np.eye(T, dtype=bool)
    constraints = [X[i, j] == 0 for i, j in zip(*np.nonzero(np.triu(same)), strict=True)]
    constraints += [cp.sum(cp.diag(X)[posed.classes == c]) <= 1 for c in range(posed.num_classes)]
    values, vectors = np.linalg.eigh(posed.error_gram)
    root = (vectors * np.sqrt(np.clip(values, 0, None))).T
    program = cp.Problem(cp.Minimize(cp.matrix_frac(root.T, X)), constraints)
    accuracy = {"tol_gap_rel": TOLERANCE, "tol_gap_abs": 0.0, "tol_feas": TOLERANCE, "time_limit": LIMIT}
    try:
        program.solve(solver=cp.CLARABEL, **accuracy)
    except cp.error.SolverError:  # so it says that its time is over
        return None
    return float(program.value) if program.status == cp.OPTIMAL else None


def main() -> None:
    dynamics = mfdl.Dynamics(mfdl.gossip.uniform("florentine"))
    sizes, costs = [], []
    for epochs, period in ((2, 4), (2, 8), (4, 8), (4, 16)):
        posed = problem(dynamics, mfdl.Cyclic(epochs=epochs, period=period))
        ours = solve_problem(posed, tolerance=TOLERANCE)
        answers: list[float | None] = []
        large = posed.size > 32
        other = seconds(lambda p=posed, a=answers: a.append(peer(p)), repeats=1 if large else 3, warm_up=0)
        our_times = seconds(lambda posed=posed: solve_problem(posed, tolerance=TOLERANCE))
        reached = None not in answers
        assert all(answer is None or abs(ours.objective / answer - 1) < 1e-4 for answer in answers), "they disagree"
        report(
            "factorize",
            steps=posed.size,
            mfdl=our_times,
            cvxpy=other,
            reached=reached,
            ratio=other["median"] / our_times["median"],
            gap=ours.gap,
        )
        if reached:
            sizes.append(float(posed.size))
            costs.append(other["median"])
    report("factorize-slope", sizes=sizes, cvxpy_slope=slope(sizes[-2:], costs[-2:]))
    participation = mfdl.Cyclic(epochs=20, period=16)
    for graph in ("ring:n=148", "erdos-renyi:n=148,p=0.15,seed=0"):
        dynamics = mfdl.Dynamics(mfdl.gossip.uniform(graph))
        our_times = seconds(lambda dynamics=dynamics: mfdl.factorization.factorize(dynamics, participation), repeats=3)
        report("factorize-large", graph=graph, steps=320, mfdl=our_times)


if __name__ == "__main__":
    main()
