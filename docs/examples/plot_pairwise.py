"""
Who learns what of whom
=======================

Every pair of Florentine families: mu of victim u (row) against attacker v (column), for non-adaptive gradients.
The diagonal is grey: an attacker knows its own data.
"""

import matplotlib.pyplot as plt

import mfdl

dynamics = mfdl.Dynamics(
    mfdl.gossip.metropolis_hastings("florentine"), learning_rate=0.5
)
algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.EveryStep(5))
losses = mfdl.pairwise(
    algorithm,
    mfdl.Privacy(
        adjacency="zero-out", clip_norm=1.0, release="none", method="certified"
    ),
)
_, axes = plt.subplots(figsize=(8, 7), layout="constrained")
losses.heatmap(axes, adaptive=False)
