"""
The matrices of an algorithm
============================

Everything an attacker sees is O = A G + B Z. ``workload()`` hands out A, B and C as operators; small ones can be drawn.
Here MAFALDA-SGD on a path of three nodes for four steps: rows are messages, columns gradients or base noise, time-major
(row of step t and node u: 3 t + u).
"""

import mfdl

dynamics = mfdl.Dynamics(
    mfdl.gossip.metropolis_hastings("path:n=3"), learning_rate=1.0
)
algorithm = mfdl.algorithms.mafalda(dynamics, mfdl.EveryStep(4))
workload = algorithm.workload()
print(workload)

# %%
# The blocks below the diagonal of A are powers of the gossip matrix: what a gradient becomes while it is averaged.

figure = workload.plot()
