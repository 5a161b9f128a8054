"""
What one node sees, on the graph
================================

The same numbers on the map: each family in the colour of what the Medici learn of it.
"""

import networkx as nx
import numpy as np

import mfdl
from mfdl.reporting.account import plot_graph

graph = mfdl.graphs.load("florentine")
labels = list(mfdl.graphs.labels(graph))
me = labels.index("Medici")
dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), learning_rate=0.5)
algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.EveryStep(5))
mu = np.full(len(labels), np.nan)
for loss in mfdl.victim_losses(algorithm, mfdl.trust.PNDP([me]), release="none"):
    mu[loss.victim] = np.sqrt(loss.sensitivity_squared)

place = {label: i for i, label in enumerate(labels)}
positions = {place[label]: spot for label, spot in nx.spring_layout(graph, seed=7).items()}
figure = plot_graph(
    [(place[a], place[b]) for a, b in graph.edges],
    positions,
    mu,
    [me],
    labels,
    title="What the Medici learn of each family",
    caption="DP-D-SGD, five steps, unit noise, gradients fixed in advance, no model released.",
)
