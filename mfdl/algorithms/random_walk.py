"""Token algorithms: one model walks over the graph, and whoever holds it takes a step with it.

Noise is each holder's own, so an attacker that sees the token now and then sees it under the noise of all steps since.
The walk is public, drawn before training: losses hold given the walk (docs/random_walks.md).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from ..dynamics import Dynamics
from ..errors import UnsupportedMechanism
from ..gossip.changing import checked_walk, token_passing
from ..noise import NoiseOperator
from ..participation import Participation
from .absences import with_absences
from .checks import builder
from .dsgd import decentralized
from .linear_algorithm import LinearAlgorithm


@builder
def random_walk(
    dynamics: Dynamics,
    participation: Participation,
    *,
    walk: ArrayLike,
    to_all: bool = True,
    noise: NoiseOperator | None = None,
) -> LinearAlgorithm:
    """Random-walk SGD: in step t node walk[t] sends theta - eta_t (g + e) to node walk[t + 1], whose model it becomes.

    All others keep the token as they last had it. What stays at its node is not sent.

    >>> import mfdl
    >>> W = mfdl.gossip.metropolis_hastings("ring:n=4")
    >>> walk = mfdl.gossip.drawn_walk(W, steps=8, seed=0)
    >>> algorithm = random_walk(mfdl.Dynamics(W, 0.1), mfdl.EveryStep(8), walk=walk)
    >>> int(algorithm.sent.sum()), int((walk[1:-1] != walk[:-2]).sum()) + 1  # the last goes to everybody
    (5, 5)

    Args:
        dynamics: its gossip holds the probabilities of the walk; only its weights other than zero matter here.
        participation: of all steps; a record takes part in those of them in which its node holds the token.
        walk: node indices (T + 1,), as `gossip.drawn_walk` makes it.
        to_all: after the last step everybody gets the token, so that final models are the token; else only walk[T]
            does, and final models are what each node had last.
        noise: on gradient sums; default fresh independent noise.

    Guarantees: without hidden messages each visit is seen under its own noise; an attacker that the token reaches now
        and then sees the m visits of a record between two of its own under the noise of all L steps between them:
        sens^2 = sum m^2 / L for gradients fixed in advance, where noise is fresh and the rate constant.
    Raises: InvalidInput: another length, no node, a move of no probability. UnsupportedMechanism: momentum, weight
        decay, or several gossip rounds per step.
    Cost: one round for each distinct move, O(nodes). Training takes gradients at all nodes and drops those of others.
    Source: random-walk SGD, private in arXiv:2402.07471 and arXiv:2510.19934.
    """
    if dynamics.gossip_rounds != 1 or not dynamics.is_plain:
        raise UnsupportedMechanism(
            "random-walk covers one round per step, neither momentum nor weight decay: both would move models of nodes "
            "that do not hold the token."
        )
    T, n = participation.num_steps, dynamics.num_nodes
    nodes = checked_walk(walk, dynamics.gossip, T)
    token = dataclasses.replace(dynamics, gossip=token_passing(nodes, dynamics.gossip.labels, to_all=to_all))
    holds = np.arange(n) == nodes[:-1, None]
    algorithm = with_absences(decentralized("random-walk", token, participation, noise), holds)
    leaves = nodes[1:] != nodes[:-1]
    if to_all:
        leaves[-1] = n > 1
    return dataclasses.replace(algorithm, name="random-walk", transmitted=algorithm.sent & leaves[:, None])
