"""Accounts of one attacker over 500 steps on 100 nodes, each beside an anchor measured in the same run.

The anchors: one Newton step on the block-tridiagonal problem of adaptive gradients; the matrix products that whitening
every victim by the noise of the seen messages takes; the larger question; the same question with gossip in every step.
CPU seconds of one thread.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
from _measure import report, seconds

import mfdl
from mfdl.privacy.attacking_sets import sensitivity_by_victim

NODES, STEPS, EPOCHS = 100, 500, 10
GRAPH = "erdos-renyi:n={},p={},seed={}"
PARTICIPATION = mfdl.Cyclic(EPOCHS, STEPS // EPOCHS)


def gossip(nodes: int = NODES, seed: int = 0) -> mfdl.gossip.GossipMatrix:
    return mfdl.gossip.metropolis_hastings(mfdl.graphs.load(GRAPH.format(nodes, 0.1 if nodes == NODES else 0.2, seed)))


def account(algorithm: mfdl.algorithms.LinearAlgorithm, **given: Any) -> Any:
    return sensitivity_by_victim(algorithm, mfdl.trust.PNDP([0]), method="certified", progress=False, **given)


def beside(name: str, work: Callable[[], Any], anchor_name: str, anchor: Callable[[], Any], **facts: Any) -> None:
    """One row: both in turn, and the ratio of their medians."""
    clock = functools.partial(seconds, repeats=3, warm_up=0, clock=time.process_time)
    took, of_anchor = clock(work), clock(anchor)
    ratio = took["median"] / of_anchor["median"]
    report(name, cpu_seconds=took, anchor=anchor_name, anchor_cpu_seconds=of_anchor, ratio=ratio, **facts)


def newton_step(hidden: int) -> None:
    """A block-tridiagonal system of STEPS blocks, factored and solved."""
    block = np.eye(hidden) * 4 - np.ones((hidden, hidden)) / hidden
    right, lower = np.ones(hidden), np.eye(hidden)
    for _ in range(STEPS):
        factor = scipy.linalg.cho_factor(block - 0.1 * lower @ lower.T, lower=True)
        lower = scipy.linalg.solve_triangular(factor[0], np.eye(hidden), lower=True)
        right = scipy.linalg.cho_solve(factor, right)


def products(seen: int) -> None:
    """The factor of the covariance of all seen messages, and every victim's products with it."""
    covariance = np.eye(STEPS * seen) + 1 / (STEPS * seen)
    factor = scipy.linalg.cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
    columns = np.ascontiguousarray(factor[:, :STEPS])
    for _ in range(NODES - 1):
        columns.T @ columns


def main() -> None:
    dynamics = mfdl.Dynamics(gossip(), 0.1)
    degree = int(mfdl.graphs.load(GRAPH.format(NODES, 0.1, 0)).degree[0])
    plain, mafalda = (build(dynamics, PARTICIPATION) for build in (mfdl.algorithms.dp_dsgd, mfdl.algorithms.mafalda))
    beside(
        "adaptive bound, dp-dsgd",
        lambda: account(plain, lipschitz=1.0),
        "one Newton step",
        lambda: newton_step(NODES - 1 - degree),
        degree=degree,
    )
    beside("mafalda", lambda: account(mafalda), "its products", lambda: products(degree), degree=degree)
    changing = {
        nodes: mfdl.algorithms.dp_dsgd(
            mfdl.Dynamics(mfdl.gossip.sequence([gossip(nodes, seed) for seed in range(STEPS)]), 0.1), PARTICIPATION
        )
        for nodes in (25, NODES)
    }
    larger = functools.partial(account, changing[NODES])
    beside("gossip of every step, 25 nodes", lambda: account(changing[25]), "100 nodes, by their bound", larger)
    rarely = mfdl.algorithms.local_steps(dynamics, PARTICIPATION)
    beside("local steps", lambda: account(rarely), "gossip in every step", lambda: account(plain))
    for build in (mfdl.algorithms.banded, mfdl.algorithms.kronecker):
        beside(
            f"building {build.__name__}",
            functools.partial(build, dynamics, PARTICIPATION),
            "building mafalda",
            functools.partial(mfdl.algorithms.mafalda, dynamics, PARTICIPATION),
        )


if __name__ == "__main__":
    main()
