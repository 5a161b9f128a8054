"""Noise that is optimal for a trust model (`trust_optimal`, against any one receiver): seconds by graph and size.

`all_blocks` is the general problem, one covariance a node and all attackers, where a symmetric graph needs one of each;
`cvxpy` the same semidefinite program by Clarabel, for small sizes. Accounting of the finished algorithm stands beside.
"""

from __future__ import annotations

import inspect
from unittest import mock

import cvxpy
import numpy as np
from _measure import report, seconds

import mfdl
from mfdl.algorithms import trust_optimal
from mfdl.factorization import trust_noise
from mfdl_solvers.local_noise import LocalNoiseProblem

SIZES = [
    ("ring:n=6", 1), ("erdos-renyi:n=10,p=0.3,seed=1", 1), ("ring:n=16", 1), ("torus:n=16", 1),
    ("erdos-renyi:n=16,p=0.3,seed=1", 1), ("ring:n=16", 4), ("erdos-renyi:n=24,p=0.2,seed=1", 1),
    ("ring:n=48", 1), ("torus:n=49", 1), ("erdos-renyi:n=40,p=0.12,seed=1", 1), ("ring:n=100", 1), ("torus:n=100", 1),
]  # fmt: skip
PEER_UNKNOWNS, GENERAL_UNKNOWNS, ACCOUNTED_NODES, ROUNDS = 150, 3600, 50, 4


def peer(problem: LocalNoiseProblem) -> float:
    """Optimum by cvxpy and Clarabel."""
    n, L = problem.num_blocks, problem.num_slots
    S = [cvxpy.Variable((L, L), PSD=True) for _ in range(n)]
    constraints = []
    for view in problem.whitened:
        gram = sum(view.noise[:, v] @ S[v] @ view.noise[:, v].T for v in range(n))
        constraints += [cvxpy.matrix_frac(a, (gram + gram.T) / 2) <= 1 for a in view.shifts.T]
    total = sum(cvxpy.trace(H @ matrix) for H, matrix in zip(problem.costs, S, strict=True))
    return float(cvxpy.Problem(cvxpy.Minimize(total), constraints).solve(solver="CLARABEL"))


def main() -> None:
    receiver = mfdl.trust.AnyReceiver()
    privacy = mfdl.Privacy(receiver, adjacency="zero-out", clip_norm=1.0)
    for graph, steps in SIZES:
        dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), gossip_rounds=ROUNDS)
        build = lambda run=dynamics, T=steps: trust_optimal(run, mfdl.EveryStep(T), receiver)  # noqa: E731
        algorithm, row = build(), {"build": seconds(build, repeats=3, warm_up=0)["median"]}
        n, slots = dynamics.num_nodes, steps * (ROUNDS + 1)
        unknowns = n * slots * (slots + 1) // 2
        posed: list[LocalNoiseProblem] = []
        solve = trust_noise.solve_local_noise

        def kept(problem, stopping, posed=posed, solve=solve):  # type: ignore[no-untyped-def]
            posed.append(problem)
            return solve(problem, stopping)

        if unknowns <= GENERAL_UNKNOWNS:
            alone = mock.patch.object(inspect.getmodule(trust_optimal), "_symmetric", return_value=False)
            with alone, mock.patch.object(trust_noise, "solve_local_noise", kept):
                row["all_blocks"] = seconds(build, repeats=1, warm_up=0)["median"]
        if unknowns <= PEER_UNKNOWNS:
            answers: list[float] = []
            row["cvxpy"] = seconds(lambda p=posed[0], a=answers: a.append(peer(p)), repeats=1, warm_up=0)["median"]
            row["ratio"] = row["cvxpy"] / row["all_blocks"]
            assert np.isclose(answers[0], algorithm.factorization.objective, rtol=2e-3), "they disagree"
        if n <= ACCOUNTED_NODES:
            account = lambda a=algorithm: mfdl.account(a, privacy, noise_std=1.0, progress=False)  # noqa: E731
            row["account"] = seconds(account, repeats=1, warm_up=0)["median"]
        gap = algorithm.factorization.gap
        report("optimal-noise", graph=graph, steps=steps, rounds=ROUNDS, unknowns=unknowns, gap=gap, **row)


if __name__ == "__main__":
    main()
