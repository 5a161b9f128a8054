"""
One noise, three statements
===========================

The same mechanism under two adjacencies: replacing a record moves a clipped gradient twice as far as removing it. The
curves are the exact epsilon(delta) of a Gaussian mechanism.
"""

import numpy as np
from matplotlib.figure import Figure

import mfdl

dynamics = mfdl.Dynamics(
    mfdl.gossip.metropolis_hastings("ring:n=8"), learning_rate=0.5
)
algorithm = mfdl.algorithms.mafalda(dynamics, mfdl.Cyclic(epochs=4, period=8))

figure = Figure(figsize=(7.4, 3.4), layout="constrained")
axes = figure.subplots()
deltas = np.logspace(-10, -1, 60)
for adjacency, colour in (("zero-out", "#0072b2"), ("replace-one", "#d55e00")):
    guarantee = mfdl.account(
        algorithm,
        mfdl.Privacy(mfdl.trust.LDP(), adjacency=adjacency, clip_norm=1.0),
        noise_std=2.0,
    )
    axes.plot(
        deltas, [guarantee.epsilon(delta) for delta in deltas], color=colour
    )
    axes.text(
        1.3e-10,
        guarantee.epsilon(1e-10),
        f"  {adjacency}, mu = {guarantee.mu:.2f}",
        color=colour,
        va="bottom",
    )
    print(
        f"{adjacency}: epsilon = {guarantee.epsilon(1e-5):.2f} at delta = 1e-5"
    )
axes.set_xscale("log")
axes.set_xlabel("delta")
axes.set_ylabel("epsilon")
axes.margins(y=0.15)
axes.spines[["top", "right"]].set_visible(False)
