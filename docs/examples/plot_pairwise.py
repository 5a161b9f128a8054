"""
Who learns what of whom
=======================

Every pair of Florentine families: mu of victim u (row) against attacker v (column), for gradients fixed in advance.
White is the diagonal: who attacks itself learns everything.
"""

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import mfdl

graph = mfdl.graphs.load("florentine")
labels = list(mfdl.graphs.labels(graph))
dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), learning_rate=0.5)
algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.EveryStep(5))

mu = np.full((len(labels), len(labels)), np.nan)
for v in range(len(labels)):
    for loss in mfdl.victim_losses(algorithm, mfdl.trust.PNDP([v]), release="none", method="certified"):
        mu[loss.victim, v] = np.sqrt(loss.sensitivity_squared)

figure = Figure(figsize=(7.4, 6.2), layout="constrained")
axes = figure.subplots()
image = axes.imshow(mu, cmap="viridis", norm=LogNorm())
axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8)
axes.set_yticks(range(len(labels)), labels, fontsize=8)
axes.set_xlabel("attacker v")
axes.set_ylabel("victim u")
figure.colorbar(image, label="mu of u against v, unit noise, five steps")
