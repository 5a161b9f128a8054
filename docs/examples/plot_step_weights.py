"""
Say which models you use
========================

If you deploy the average of the last models, say so: the encoder that is best for the last eight of 64 steps moves its
noise elsewhere. Privacy does not depend on the weights.
"""

import numpy as np
from matplotlib.figure import Figure

import mfdl

dynamics = mfdl.Dynamics(
    mfdl.gossip.metropolis_hastings("florentine"), learning_rate=0.5
)
participation = mfdl.Cyclic(epochs=4, period=16)
late = mfdl.ErrorWeights("last:8:0.01")
algorithms = {
    "independent": mfdl.algorithms.dp_dsgd(dynamics, participation),
    "best for all models": mfdl.algorithms.mafalda(dynamics, participation),
    "best for the last eight": mfdl.algorithms.mafalda(
        dynamics, participation, weights=late
    ),
}

figure = Figure(figsize=(7.4, 3.4), layout="constrained")
axes = figure.subplots()
for colour, (name, algorithm) in zip(
    ("#999999", "#0072b2", "#009e73"), algorithms.items(), strict=True
):
    mechanism = mfdl.calibrate(
        algorithm,
        mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0),
        mu=1.0,
    )
    B = algorithm.workload("models").B.dense() * mechanism.noise_std
    std = np.sqrt((B**2).sum(axis=1).reshape(64, -1).mean(axis=1))
    axes.plot(range(1, 65), std, color=colour)
    axes.text(65, std[-1], name, color=colour, va="center", fontsize=9)
axes.axvspan(56.5, 64.5, color="#f0f0f0", zorder=0)
axes.set_xlim(0, 84)
axes.set_xlabel("step")
axes.set_ylabel("noise in a model (std)")
axes.spines[["top", "right"]].set_visible(False)
