"""
Noise correlated over nodes
===========================

Covariances of the noise of one step over the 20 nodes of a random graph, all with the same privacy against an
eavesdropper. Noise that averaging cancels costs nothing, so the best covariance is negative along edges.
"""

import numpy as np
from matplotlib.figure import Figure

import mfdl

graph = mfdl.graphs.load("erdos-renyi:n=20,p=0.6,seed=1")
dynamics = mfdl.Dynamics(
    mfdl.gossip.metropolis_hastings(graph), learning_rate=0.1
)
participation = mfdl.EveryStep(50)
panels = {
    "independent": mfdl.algorithms.dp_dsgd(dynamics, participation),
    "pairwise (DECOR)": mfdl.algorithms.corn_pairwise(dynamics, participation),
    "any covariance (CorN)": mfdl.algorithms.corn(dynamics, participation),
}

figure = Figure(figsize=(9.2, 3.4), layout="constrained")
for axes, (name, algorithm) in zip(
    figure.subplots(1, 3), panels.items(), strict=True
):
    mechanism = mfdl.calibrate(
        algorithm,
        mfdl.Privacy(
            mfdl.trust.Eavesdropper(), adjacency="zero-out", clip_norm=1.0
        ),
        mu=1.0,
    )
    N = (
        algorithm.workload().N.dense()[:20] * mechanism.noise_std
    )  # of the first step
    axes.imshow(N @ N.T, cmap="RdBu_r", vmin=-150, vmax=150)
    axes.set_title(
        f"{name}\nerror {mechanism.objective / 1e3:.1f} thousand", fontsize=10
    )
    axes.set_xticks([])
    axes.set_yticks([])

# %%
# Correlations exist where edges are:

covariance, edges = N @ N.T, dynamics.gossip.dense() > 0
print(
    f"mean covariance over an edge     {covariance[edges & ~np.eye(20, dtype=bool)].mean():6.2f}"
)
print(f"mean covariance where none is    {covariance[~edges].mean():6.2f}")
