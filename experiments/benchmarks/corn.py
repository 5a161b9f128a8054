"""The noise of CorN-DSGD, arXiv:2501.14644v2 problem (9): ours against an interior-point solver (cvxpy, Clarabel).

minimise tr(W R W^T) subject to [R^-1]_ii <= 1. The peer solves it as it is written there, with n constraints
[[R, e_i], [e_i^T, 1]] >= 0. Its R is scaled to meet the constraints exactly and judged by the same certificate as ours.
Both are asked for gap 1e-6, and the row says what they reached; larger graphs are ours alone, to gap 1e-4, with the
growth exponent between sizes.
"""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
from _measure import peak_megabytes, report, seconds

from mfdl import gossip
from mfdl_solvers import FactorizationProblem, Stopping, solve

GRAPH = "erdos-renyi:n={n},p=0.5,seed={seed}"
PEER_TOLERANCE = 1e-6  # its relative gap; the default 1e-8 takes longer
SEEDS = range(3)


def averaging(n: int, seed: int = 0) -> np.ndarray:
    """W, Metropolis-Hastings weights of an Erdos-Renyi graph."""
    return gossip.metropolis_hastings(GRAPH.format(n=n, seed=seed)).dense()


def problem(W: np.ndarray) -> FactorizationProblem:
    """H = W^T W, every node a class of its own."""
    return FactorizationProblem(W.T @ W, np.arange(len(W)))


def peer(W: np.ndarray) -> tuple[np.ndarray, float]:
    """R by cvxpy, and the seconds inside Clarabel alone."""
    n = len(W)
    R = cp.Variable((n, n), symmetric=True)
    unit = np.eye(n)
    constraints = [cp.bmat([[R, unit[:, [i]]], [unit[[i]], np.ones((1, 1))]]) >> 0 for i in range(n)]
    program = cp.Problem(cp.Minimize(cp.trace(W @ R @ W.T)), constraints)
    program.solve(solver=cp.CLARABEL, tol_gap_rel=PEER_TOLERANCE, tol_gap_abs=0.0, tol_feas=PEER_TOLERANCE)
    return R.value, float(program.solver_stats.solve_time)


def against_the_peer(n: int = 20) -> None:
    """Seconds of both on the same graphs; ours includes posing the problem, the peer's is also split."""
    for seed in SEEDS:
        W = averaging(n, seed)
        ours = solve(problem(W), Stopping(1e-6))
        R, _ = peer(W)
        gram = np.linalg.inv(R)
        scale = np.sqrt(np.diagonal(gram))
        peer_loss = problem(W).objective(gram / np.outer(scale, scale))
        assert abs(ours.objective / peer_loss - 1) < 1e-4, "the two solvers disagree"
        costs = seconds(lambda W=W: solve(problem(W), Stopping(1e-6)), repeats=21)
        inside: list[float] = []
        other = seconds(lambda W=W, inside=inside: inside.append(peer(W)[1]), repeats=3, warm_up=0)
        report(
            "corn",
            nodes=n,
            seed=seed,
            mfdl=costs,
            cvxpy=other,
            ratio=other["median"] / costs["median"],
            clarabel_alone=float(np.median(inside)),
            ratio_clarabel_alone=float(np.median(inside)) / costs["median"],
            gap=ours.gap,
            cvxpy_gap=peer_loss / ours.lower_bound - 1,
            objective=ours.objective,
            cvxpy_loss=peer_loss,
        )


def alone(sizes: tuple[int, ...] = (100, 300, 1000)) -> None:
    """Seconds, gap and growth of ours."""
    before: tuple[int, float] | None = None
    for n in sizes:
        W = averaging(n)
        posed = problem(W)
        solved = solve(posed)
        ours = seconds(lambda posed=posed: solve(posed), repeats=7 if n < 1000 else 3)
        growth = math.log(ours["median"] / before[1]) / math.log(n / before[0]) if before else None
        before = (n, ours["median"])
        report(
            "corn-large",
            nodes=n,
            mfdl=ours,
            gap=solved.gap,
            iterations=solved.iterations,
            growth_exponent=growth,
            peak_megabytes=peak_megabytes(),
        )


def main() -> None:
    against_the_peer()
    alone()


if __name__ == "__main__":
    main()
