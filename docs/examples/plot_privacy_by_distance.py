"""
Privacy by distance
===================

What one node learns about the others falls with the distance, if it sees only the messages it receives. Two numbers:
for non-adaptive gradients, and for adaptive gradients, which react to models that the attacker has not seen (training).
"""

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

import mfdl

graph = mfdl.graphs.load("torus:n=25")
dynamics = mfdl.Dynamics(
    mfdl.gossip.metropolis_hastings(graph), learning_rate=0.5
)
algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.EveryStep(6))
losses = mfdl.privacy.sensitivity_by_victim(
    algorithm, mfdl.trust.PNDP([0]), release="none", lipschitz=1.0
)

labels = mfdl.graphs.labels(graph)
hops = nx.single_source_shortest_path_length(graph, labels[0])
distance = np.array([hops[labels[loss.victim]] for loss in losses])
non_adaptive = np.sqrt([loss.sensitivity_squared for loss in losses])
adaptive = np.sqrt([loss.adaptive_sensitivity_squared for loss in losses])

figure = Figure(figsize=(7.4, 3.4), layout="constrained")
axes = figure.subplots()
axes.plot(
    distance - 0.06,
    non_adaptive,
    "o",
    color="#0072b2",
    label="non-adaptive gradients",
)
axes.plot(
    distance + 0.06,
    adaptive,
    "s",
    color="#009e73",
    label="adaptive gradients, Lipschitz constant 1",
)
axes.axhline(
    np.sqrt(6),
    color="#d55e00",
    linestyle="--",
    label="anyone who sees all messages",
)
axes.set_xticks(np.unique(distance))
axes.set_ylim(0, 2.8)
axes.set_xlabel("hops between victim and attacker")
axes.set_ylabel("mu at unit noise")
axes.legend(frameon=False, fontsize=9)
axes.spines[["top", "right"]].set_visible(False)
