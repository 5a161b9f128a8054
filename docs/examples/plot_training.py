"""
Two mechanisms, one guarantee, one task
=======================================

Fifteen nodes train on digits. Both mechanisms have mu = 2 for every record against an attacker who sees all messages;
they differ in the correlation of the noise over time.
"""

import mfdl

graph = mfdl.graphs.load("florentine")
dynamics = mfdl.Dynamics(
    mfdl.gossip.metropolis_hastings(graph), learning_rate=0.5
)
participation = mfdl.Cyclic(epochs=4, period=16)
task = mfdl.tasks.digits(graph)
question = {
    "trust": mfdl.trust.LDP(),
    "adjacency": "replace-one",
    "clip_norm": 1.0,
}

mechanism = mfdl.calibrate(
    mfdl.algorithms.mafalda(dynamics, participation),
    mfdl.Privacy(**question),
    mu=2.0,
)
run = mfdl.replay(mechanism, task, seeds=[0])
figure = run.plot()

# %%
# With independent noise:

baseline = mfdl.calibrate(
    mfdl.algorithms.dp_dsgd(dynamics, participation),
    mfdl.Privacy(**question),
    mu=2.0,
)
other = mfdl.replay(baseline, task, seeds=[0])
figure_of_baseline = other.plot()
