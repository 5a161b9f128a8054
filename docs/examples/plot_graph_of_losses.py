"""
What one node sees, on the graph
================================

Each family is coloured by how much the Medici learn about it.
"""

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

import mfdl

graph = mfdl.graphs.load("florentine")
labels = list(mfdl.graphs.labels(graph))
me = labels.index("Medici")
dynamics = mfdl.Dynamics(
    mfdl.gossip.metropolis_hastings(graph), learning_rate=0.5
)
algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.EveryStep(5))
mu = np.full(len(labels), np.nan)
for loss in mfdl.privacy.sensitivity_by_victim(
    algorithm, mfdl.trust.PNDP([me]), release="none"
):
    mu[loss.victim] = np.sqrt(loss.sensitivity_squared)

spots = nx.spring_layout(graph, seed=7)
figure = Figure(figsize=(8.0, 5.0), layout="constrained")
axes = figure.subplots()
nx.draw_networkx_edges(graph, spots, ax=axes, edge_color="#cccccc")
places = np.array([spots[label] for label in labels])
seen = np.isfinite(mu)
image = axes.scatter(
    *places[seen].T,
    c=mu[seen],
    s=220,
    cmap="viridis",
    edgecolors="white",
    zorder=3,
)
axes.scatter(
    *places[me],
    marker="*",
    s=420,
    color="#d55e00",
    edgecolors="white",
    zorder=3,
)
for label in labels:
    axes.annotate(
        label,
        spots[label],
        xytext=(0, 11),
        textcoords="offset points",
        fontsize=8,
        ha="center",
    )
figure.colorbar(
    image, shrink=0.7, label="mu of the family against the Medici, unit noise"
)
axes.set_axis_off()
