"""
Whose gradients can be solved for
=================================

Gossip without noise reveals gradients: one family sees the messages of values that are averaged on the graph of
Florentine families. They are a linear system, which determines some gradients exactly.
"""

import networkx as nx
from matplotlib.figure import Figure

import mfdl
from mfdl.audit import reconstruct

graph = mfdl.graphs.load("florentine")
labels = list(mfdl.graphs.labels(graph))
dynamics = mfdl.Dynamics(
    mfdl.gossip.metropolis_hastings(graph), learning_rate=0.5
)
algorithm = mfdl.algorithms.dsgd(dynamics, mfdl.Cyclic(epochs=1, period=12))
spots = nx.spring_layout(graph, seed=7)
colours = {
    "attacker": "#d55e00",
    "exposed": "#222222",
    "in a combination": "#56b4e9",
    "hidden": "#bbbbbb",
}

figure = Figure(figsize=(9.6, 4.2), layout="constrained")
for axes, me in zip(figure.subplots(1, 2), ("Medici", "Pazzi"), strict=True):
    exposure = reconstruct(
        algorithm,
        mfdl.trust.PNDP([me]),
        gradients="first step",
        release="none",
    )
    status = exposure.node_status()
    nx.draw_networkx_edges(graph, spots, ax=axes, edge_color="#cccccc")
    for label, node_status in zip(labels, status, strict=True):
        axes.scatter(
            *spots[label],
            s=160,
            color=colours.get(node_status, "#56b4e9"),
            edgecolors="white",
            zorder=3,
        )
        axes.annotate(
            label,
            spots[label],
            xytext=(0, 9),
            textcoords="offset points",
            fontsize=7.5,
            ha="center",
        )
    axes.set_title(
        f"{me} sees {status.count('exposed')} of {len(labels) - 1} gradients exactly",
        fontsize=10,
    )
    axes.set_axis_off()

# %%
# Black: solved for. Blue: known in combinations with others. Grey: hidden. Orange: the attacker. With noise the same
# system is solved in the same way, and each solution carries the noise that the guarantee counts: see
# :doc:`/howto_attack`.
