"""Zip-DL: each node adds different noise to each message it sends, chosen to cancel in the averages of its receivers.

Node a draws Y_{a->v} for every v of its closed neighbourhood (d_a nodes, itself included) and sends

    x_a + Z_{a->v},    Z_{a->v} = Y_{a->v} - (1 / (d_a W_va)) sum_j W_ja Y_{a->j},

so that sum_v W_va Z_{a->v} = 0: the average model never sees the noise. Noise is on messages, not on gradients; the
message a -> a is never transmitted unless `self_messages`. Messages are indexed one by one: S = sum_a d_a rows.
"""

from __future__ import annotations

import functools

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import check, matrices
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput, UnsupportedMechanism
from ..gossip import GossipMatrix
from ..noise import StepNoise
from ..participation import Participation
from .checks import builder
from .linear_algorithm import LinearAlgorithm
from .mechanism_names import MECHANISMS
from .round import Round


@MECHANISMS.register(
    paper="arXiv:2403.11795, Algorithm 1",
    erratum="infinite loss where self-messages count as seen; grows with T where they do not (as 2510.17480 has it)",
    trust="pndp",
    models=("pndp",),
    release="none",
)
@builder
def zip_dl(
    dynamics: Dynamics, participation: Participation, *, sigma: float = 1.0, self_messages: bool = False
) -> LinearAlgorithm:
    """Zip-DL: noise per message that cancels in the average: nothing is private once final models are released.

    On a symmetric gossip matrix.

    Args:
        sigma: standard deviation of Y in units of the mechanism's noise_std, > 0 (of the messages, i.e. after the
            learning rate).
        self_messages: count a -> a as transmitted; then a node's messages average to its model without noise, and
            nothing is private.
    Raises: InvalidInput: W not symmetric (the cancellation is defined for symmetric W); UnsupportedMechanism:
        time-varying W, several gossip rounds, momentum or weight decay.
    Source: arXiv:2403.11795, Algorithm 1.
    """
    if not dynamics.gossip.is_constant or dynamics.gossip_rounds != 1:
        raise UnsupportedMechanism("zip-dl covers constant gossip with one round per step.")
    if not dynamics.is_plain:
        raise UnsupportedMechanism("zip-dl covers neither momentum nor weight decay; its noise is on the messages.")
    gossip = dynamics.gossip.at(0)
    if not gossip.is_symmetric:
        raise InvalidInput("zip-dl needs a symmetric gossip matrix, so that weights cancel; use metropolis-hastings.")
    scale = check.positive(sigma=sigma)
    n, T = dynamics.num_nodes, participation.num_steps
    self_messages = check.flag(self_messages=self_messages)
    sender, receiver, weight = _links(gossip)
    S = sender.size
    rows = np.arange(S)
    sends = matrices.sparse_matrix(sends=sp.csr_array((np.ones(S), (rows, sender)), shape=(S, n)))
    average = matrices.sparse_matrix(average=sp.csr_array((weight, (receiver, rows)), shape=(n, S)))
    received = (sender != receiver) | self_messages
    receivers = sp.csr_array((received, (rows, receiver)), shape=(S, n))

    @functools.cache
    def at_rate(eta: float) -> Round:
        return Round(
            message_from_state=sends,
            message_from_gradient=-eta * sends,
            message_from_noise=sp.eye_array(S),
            state_from_message=average,
            receivers=receivers,
        )

    return LinearAlgorithm(
        name="zip-dl",
        dynamics=dynamics,
        participation=participation,
        rounds=tuple(map(at_rate, dynamics.learning_rates(T).tolist())),
        noise=StepNoise(scale * _cancelling(sender, weight), sends != 0, T, n),
        model_from_state=sp.csr_array(sp.eye_array(n)),
        message_sender=sender,
        divisors=np.ones(n),
        transmitted=received,
        noise_on_messages=True,
    )


def _links(gossip: GossipMatrix) -> tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]:
    """(sender, receiver, weight) of each message, by sender; every node sends one to itself."""
    if (alone := gossip.weights.diagonal() == 0).any():
        raise InvalidInput(
            f"zip-dl needs a positive self weight at every node, got 0 at node {gossip.labels[np.argmax(alone)]}; its "
            "noise is divided by it."
        )
    W = sp.coo_array(sp.csr_array(gossip.weights.T))
    sender, receiver = (nodes.astype(np.intp) for nodes in W.coords)
    return sender, receiver, W.data


def _cancelling(sender: NDArray[np.intp], weight: FloatArray) -> sp.csr_array:
    """Z <- Y, csr (messages, messages): I - 1 w^T / (d w) for the messages of each sender."""
    weights = (weight[sender == node] for node in np.unique(sender))
    return sp.csr_array(sp.block_diag([np.eye(w.size) - np.outer(1.0 / (w.size * w), w) for w in weights]))
