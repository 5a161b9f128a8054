"""How fast gossip averages: the contraction of one round towards the average of all nodes."""

from __future__ import annotations

import numpy as np

from .. import check
from ..errors import InvalidInput
from .matrix import GossipMatrix


def mixing_parameter(gossip: GossipMatrix) -> float:
    """p = 1 - lambda_2(W^T W): one averaging shrinks the squared distance to the average to at most 1 - p of it.

    >>> from mfdl.gossip import metropolis_hastings
    >>> round(mixing_parameter(metropolis_hastings("torus:n=16")), 4)
    0.64

    Returns: 0 <= p <= 1; 0 if some nodes never hear of others or a difference never decays, 1 for one node.
    Raises: InvalidInput: W is not doubly stochastic, so that the average itself moves.
    Cost: O(n^3) time, O(n^2) memory.
    """
    check.instance(GossipMatrix, gossip=gossip)
    if not gossip.is_doubly_stochastic:
        raise InvalidInput(
            "gossip must be doubly stochastic: otherwise the average moves, and noise that sums to zero over the nodes "
            "does not cancel in it; use metropolis-hastings."
        )
    n = gossip.num_nodes
    shrinkage = float(np.linalg.norm(gossip.dense() - 1.0 / n, 2)) ** 2
    p = min(1.0, 1.0 - shrinkage)
    return p if p > 8 * n * np.finfo(np.float64).eps else 0.0  # rounding of a norm of one is not mixing
