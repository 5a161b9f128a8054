"""
Two mechanisms, one guarantee, one task
=======================================

Fifteen nodes train on digits. Both mechanisms have mu = 2 for every record against an attacker who sees all messages;
they differ in the correlation of the noise over time.
"""

from matplotlib.figure import Figure

import mfdl

graph = mfdl.graphs.load("florentine")
gossip = mfdl.gossip.metropolis_hastings(graph)
dynamics = mfdl.Dynamics(gossip, learning_rate=0.5)
participation = mfdl.Cyclic(epochs=4, period=16)
task = mfdl.tasks.digits(graph)
privacy = mfdl.Privacy(
    mfdl.trust.LDP(), adjacency="replace-one", clip_norm=1.0
)

figure = Figure(figsize=(7, 4), layout="constrained")
axes = figure.add_subplot()
for build in (mfdl.algorithms.dp_dsgd, mfdl.algorithms.mafalda):
    algorithm = build(dynamics, participation)
    mechanism = mfdl.calibrate(algorithm, privacy, mu=2.0)
    mfdl.replay(mechanism, task, seeds=[0, 1]).plot(axes)
