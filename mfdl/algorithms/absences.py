"""Nodes that are away in some steps: what runs then, and so what is accounted.

A node that is away takes no gradient, adds no noise and sends nothing; noise that others share with it, and that it
would have cancelled, stays in their models, unless it is repaired. The pattern is public, drawn before training.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from .. import check, matrices
from ..errors import InvalidInput
from ..gossip.changing import presence
from ..operators.recursions import Map
from .linear_algorithm import LinearAlgorithm
from .repairs import repaired
from .round import MAPS, SHAPES

ENTERING = tuple(name for name in MAPS if SHAPES[name][1] in ("nodes", "injection slots"))


def with_absences(algorithm: LinearAlgorithm, present: ArrayLike, *, repair: str | None = None) -> LinearAlgorithm:
    """The algorithm as it runs where nodes are away in some steps.

    >>> import mfdl
    >>> W = mfdl.gossip.metropolis_hastings("ring:n=4")
    >>> there = mfdl.gossip.drawn_presence(num_nodes=4, rounds=6, rate=0.2, seed=0)
    >>> dynamics = mfdl.Dynamics(mfdl.gossip.absences(W, there), 0.1)
    >>> with_absences(mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(epochs=2, period=3)), there).name
    'dp-dsgd with absences'

    Args:
        algorithm: on gossip in which who is away exchanges nothing (`gossip.absences`, of the same pattern), with one
            injection slot for each node.
        present: which nodes are there in each step, bool (T, n), public.
        repair: what is done about the noise that absent nodes do not add, see `repairs.repaired`: "leave-out",
            "stand-in" or "catch-up"; default nothing. It changes the noise, so what is lost may grow.

    Returns: an algorithm under the same participation, of which steps that a record misses are a part: its loss is that
        of the steps in which it can be there. Noise is the same function of key and step, so what a node misses is
        never used, by itself later or by anybody else; with "catch-up" once, when it comes back.
    Guarantees: where noise enters with gradients, and the messages that are seen show every injected sum of
        `algorithm`, no loss without a repair is above that of `algorithm`; nor, of noise fresh in each step that is
        left out where up to q nodes are away, against c of the nodes together, above that of `algorithm` under
        `trust.Coalitions(q + c)`. Where messages are hidden, or are sums of several steps (`local_steps`), it may be,
        as noise of steps missed covers nothing: account for what comes back.
    Raises: InvalidInput: another shape, slots that are no nodes, a node that is away and whose messages others use, or
        a repair that there is not, or not for this noise.
    Cost: one round for each distinct pattern.
    """
    check.instance(LinearAlgorithm, algorithm=algorithm)
    there = presence(present, algorithm.num_nodes, algorithm.num_steps)
    if algorithm.noise.slots_per_step != algorithm.num_nodes:
        raise InvalidInput(
            f"absences need noise with one slot for each node, and {algorithm.name!r} has "
            f"{algorithm.noise.slots_per_step} for {algorithm.num_nodes} nodes; take noise that enters with gradients."
        )
    noise = algorithm.noise if repair is None else repaired(algorithm.noise, there, repair)
    rounds, steps = [], np.maximum.accumulate(np.array(algorithm.step_of_round))
    made: dict[tuple[int, bytes], Map] = {}
    number = matrices.numbered()

    def without(matrix: Map, up: np.ndarray) -> Map:
        if matrix is None:
            return None
        key = number(matrix), up.tobytes()
        if key not in made:
            made[key] = sp.csr_array(matrix @ sp.diags_array(up.astype(float)))
        return made[key]

    for exchange, step in zip(algorithm.rounds, steps.tolist(), strict=True):
        changed = {name: without(getattr(exchange, name), there[step]) for name in ENTERING}
        rounds.append(exchange.with_maps(**changed))
    sent = algorithm.sent & there[steps][:, algorithm.message_sender]
    name = f"{algorithm.name} with absences" + (f", {repair}" if repair else "")
    return dataclasses.replace(algorithm, name=name, rounds=tuple(rounds), transmitted=sent, noise=noise)
