"""Runs and bounds that tests of noise over time and nodes share."""

import itertools

import numpy as np

from mfdl import gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.factorization import optimal_adapted, optimal_space_time, optimal_time_space
from mfdl.participation import Cyclic
from mfdl.privacy.victim_loss import victim_losses

KINDS = {"time-space": optimal_time_space, "adapted": optimal_adapted, "space-time": optimal_space_time}
OUTSIDER = trust.SecLDP()
PATH = Dynamics(gossip.metropolis_hastings("path:n=4"))
RING = Dynamics(gossip.metropolis_hastings("ring:n=5"))
SCHEME = Cyclic(2, 3)


def half_lazy(graph) -> gossip.GossipMatrix:
    """(I + W) / 2: no mode is averaged away in a step, so no noise is free and every optimum is attained."""
    W = gossip.metropolis_hastings(graph).dense()
    return gossip.from_array((np.eye(len(W)) + W) / 2)


def worst_loss(algorithm, model=OUTSIDER):
    return max(loss.adaptive_sensitivity_squared for loss in victim_losses(algorithm, model))


def sensitivities_squared(X, scheme, n):
    """For each node bounds (from below, from above) on the worst sum over a pattern of X[s, t] <g_s, g_t>, |g| <= 1."""
    found = []
    for u in range(n):
        blocks = [X[u::n, u::n][np.ix_(steps, steps)] for steps in scheme.patterns()]
        attained = [s @ B @ s for B in blocks for s in map(np.array, itertools.product([-1, 1], repeat=len(B)))]
        found.append((max(attained), max(np.abs(B).sum() for B in blocks)))
    return np.array(found)
