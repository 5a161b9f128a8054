"""Push-sum training: D-SGD over links that go one way."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ..dynamics import Dynamics
from ..errors import InvalidInput, UnsupportedMechanism
from ..gossip import PushSum
from ..noise import NoiseOperator
from ..participation import Participation
from .checks import builder
from .dsgd import receivers
from .linear_algorithm import LinearAlgorithm
from .maps import Maps, from_maps


@builder
def push_sum(
    dynamics: Dynamics, participation: Participation, *, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """Stochastic gradient push: sums x take the steps, models are z = x / w, and the average of x is kept.

        x_{t+1} = S_t (x_t - eta_t i_t(z_t)),  that is  z_{t+1} = W_t (z_t - (eta_t / w_t) i_t),  i = g + e

    A node sends shares of its sum; weights and shares are public, so whoever gets one has its z_t - (eta_t / w_t) i_t.
    D-SGD on the same gossip (`dp_dsgd`) leaves 1 / w_t out: then nodes that many send to count more than others.

    >>> import mfdl, networkx
    >>> links = networkx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
    >>> dynamics = mfdl.Dynamics(mfdl.gossip.push_sum(links, rounds=6), 0.1)
    >>> push_sum(dynamics, mfdl.Cyclic(epochs=2, period=3)).name
    'push-sum'

    Args:
        dynamics: on gossip of `gossip.push_sum`, of at least as many rounds as steps.
        noise: on gradient sums; default fresh independent noise. `mafalda(...).noise`, for one, is another.
    Guarantees: where all messages are seen losses are those of D-SGD with the same noise, whatever the graph.
    Raises: InvalidInput: other gossip, or fewer rounds than steps. UnsupportedMechanism: momentum, weight decay, or
        several gossip rounds per step.
    Cost: one round for each step, O(nodes + edges).
    Source: arXiv:1811.10792, Algorithm 1.
    """
    gossip = dynamics.gossip
    if not isinstance(gossip, PushSum):
        raise InvalidInput(
            f"push-sum needs gossip of gossip.push_sum(graph, rounds), which knows its weights, got {gossip.name!r}."
        )
    if dynamics.gossip_rounds != 1 or not dynamics.is_plain:
        raise UnsupportedMechanism("push-sum covers one gossip round per step, neither momentum nor weight decay.")
    T, n = participation.num_steps, dynamics.num_nodes
    eye = sp.csr_array(sp.eye_array(n))
    if len(gossip.matrices) < T:
        raise InvalidInput(f"push-sum needs a round for each of {T} steps, got {len(gossip.matrices)} rounds.")
    rates = dynamics.learning_rates(T)[:, None] / gossip.push_weights[:T]

    def step(t: int) -> Maps:
        W, entering = gossip.at(t).weights, sp.diags_array(-rates[t])
        return {"P": eye, "Q": entering, "R": entering, "K": W, "receivers": receivers(W)}

    return from_maps(step, participation, dynamics, noise=noise, name="push-sum", message_sender=np.arange(n))
