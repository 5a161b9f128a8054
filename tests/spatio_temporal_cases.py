"""Runs and bounds that tests of noise over time and nodes share."""

import itertools

import numpy as np
from vocabulary import dynamics_on

from mfdl import Cyclic, gossip, trust
from mfdl.factorization import optimal_joint, optimal_kronecker, optimal_per_mode
from mfdl.privacy import sensitivity_by_victim

KINDS = {"kronecker": optimal_kronecker, "per-mode": optimal_per_mode, "joint": optimal_joint}
OUTSIDER = trust.Eavesdropper()
PATH = dynamics_on("path:n=4")
RING = dynamics_on("ring:n=5")
SCHEME = Cyclic(2, 3)


def half_lazy(graph) -> gossip.GossipMatrix:
    """(I + W) / 2: no mode is averaged away in a step, so no noise is free and every optimum is attained."""
    W = gossip.metropolis_hastings(graph).dense()
    return gossip.from_array((np.eye(len(W)) + W) / 2)


def worst_loss(algorithm, model=OUTSIDER):
    return max(loss.adaptive_sensitivity_squared for loss in sensitivity_by_victim(algorithm, model))


def sensitivities_squared(X, scheme, n):
    """For each node bounds (from below, from above) on the worst sum over a pattern of X[s, t] <g_s, g_t>, |g| <= 1."""
    collected = []
    for u in range(n):
        blocks = [X[u::n, u::n][np.ix_(steps, steps)] for steps in scheme.patterns()]
        attained = [s @ B @ s for B in blocks for s in map(np.array, itertools.product([-1, 1], repeat=len(B)))]
        collected.append((max(attained), max(np.abs(B).sum() for B in blocks)))
    return np.array(collected)
