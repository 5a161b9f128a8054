"""Zip-DL: each node adds different noise to each message it sends, chosen to cancel in the averages of its receivers.

Node a draws Y_{a->v} for every v of its closed neighbourhood (d_a nodes, itself included) and sends

    x_a + Z_{a->v},    Z_{a->v} = Y_{a->v} - (1 / (d_a W_va)) sum_j W_ja Y_{a->j},

so that sum_v W_va Z_{a->v} = 0: the average model never sees the noise. Noise is on messages, not on gradients; the
message a -> a is never transmitted unless `self_messages`. Messages are indexed one by one: S = sum_a d_a rows.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from .. import check, matrices
from ..dynamics import Dynamics
from ..errors import InvalidInput, UnsupportedMechanism
from ..noise import StepNoise
from ..participation import Participation
from .linear_algorithm import LinearAlgorithm
from .round import Round


def zip_dl(
    dynamics: Dynamics, participation: Participation, *, sigma: float = 1.0, self_messages: bool = False
) -> LinearAlgorithm:
    """Zip-DL on a symmetric gossip matrix.

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
    W, n, T = gossip.weights, dynamics.num_nodes, participation.num_steps
    support = sp.coo_array(W)
    present = (support.data != 0) & (support.coords[0] != support.coords[1])
    sender = np.concatenate([support.coords[1][present], np.arange(n)])
    receiver = np.concatenate([support.coords[0][present], np.arange(n)])
    weight = np.concatenate([support.data[present], W.diagonal()])
    if (weight == 0).any():
        node = int(sender[np.argmax(weight == 0)])
        raise InvalidInput(
            f"zip-dl needs a positive self weight at every node, got 0 at node {gossip.labels[node]}; its noise is "
            "divided by it."
        )
    order = np.lexsort((receiver, sender))
    sender, receiver, weight = sender[order], receiver[order], weight[order]
    S = sender.size
    rows = np.arange(S)
    One = matrices.sparse_matrix(One=sp.csr_array((np.ones(S), (rows, sender)), shape=(S, n)))
    average = matrices.sparse_matrix(average=sp.csr_array((weight, (receiver, rows)), shape=(n, S)))
    noise_map = matrices.sparse_matrix(eye=sp.eye_array(S))
    degrees = np.bincount(sender, minlength=n)
    blocks = []
    for a in range(n):
        w = weight[sender == a]
        blocks.append(np.eye(w.size) - np.outer(1.0 / (degrees[a] * w), w))
    factor = sp.csr_array(sp.block_diag(blocks)) * scale
    holders = sp.csr_array((np.ones(S, dtype=bool), (rows, sender)), shape=(S, n))
    received = (sender != receiver) | self_messages
    receivers = sp.csr_array((np.ones(received.sum(), dtype=bool), (rows[received], receiver[received])), shape=(S, n))
    made: dict[float, Round] = {}
    rounds = []
    for eta in dynamics.learning_rates(T):
        if float(eta) not in made:
            made[float(eta)] = Round(
                message_from_state=One,
                message_from_gradient=sp.csr_array(-float(eta) * One),
                message_from_noise=noise_map,
                state_from_message=average,
                receivers=receivers,
            )
        rounds.append(made[float(eta)])
    return LinearAlgorithm(
        name="zip-dl",
        dynamics=dynamics,
        participation=participation,
        rounds=tuple(rounds),
        noise=StepNoise(factor, holders, T, n),
        model_from_state=sp.csr_array(sp.eye_array(n)),
        message_sender=sender,
        divisors=np.ones(n),
        transmitted=received,
        noise_on_messages=True,
    )
