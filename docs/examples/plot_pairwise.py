"""
Who learns what of whom
=======================

Every pair of Florentine families: mu of victim u (row) against attacker v (column), for gradients fixed in advance.
Grey is the diagonal: who attacks itself learns everything.
"""

import numpy as np

import mfdl
from mfdl.reporting.account import plot_pairwise

graph = mfdl.graphs.load("florentine")
labels = list(mfdl.graphs.labels(graph))
dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), learning_rate=0.5)
algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.EveryStep(5))

mu = np.full((len(labels), len(labels)), np.nan)
for v in range(len(labels)):
    for loss in mfdl.victim_losses(algorithm, mfdl.trust.PNDP([v]), release="none", method="certified"):
        mu[loss.victim, v] = np.sqrt(loss.sensitivity_squared)

figure = plot_pairwise(
    mu,
    labels,
    title="Near families learn much, far ones little",
    caption="DP-D-SGD, five steps, unit noise, PNDP against single attackers, no model released.",
)
