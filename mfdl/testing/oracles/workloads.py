"""Workloads, error Grams and noise written out, block by block.

The dense forms are written from the definitions: block (t, s) of the workload is W_{t-1} ... W_s, and the noising
matrix holds C_u^-1 of every node. They take (T n)^2 numbers: keep T n below a few hundred.
"""

from __future__ import annotations

import numpy as np

from ...algorithms import LinearAlgorithm
from ...check import FloatArray
from ...gossip import Gossip
from .views import gossip_messages, of_node


def dense_gossip_workload(gossip: Gossip, num_steps: int) -> FloatArray:
    """W_T, shape (T n, T n): block (t, s) is the product W_{t-1} ... W_s, the identity for t = s."""
    return gossip_messages(gossip, num_steps, rate=-1.0)[0]


def dense_averaged_workload(gossip: Gossip, num_steps: int) -> FloatArray:
    """blockdiag(W_t) W_T: what enters the models after averaging; (T n, T n)."""
    n = gossip.num_nodes
    blocks = dense_gossip_workload(gossip, num_steps).reshape(num_steps, n, -1)
    averaged = [gossip.at(t).weights.toarray() @ blocks[t] for t in range(num_steps)]
    return np.concatenate(averaged)


def dense_noising(algorithm: LinearAlgorithm) -> FloatArray:
    """N, with F[i, k] C_k^-1 in its rows of slot i and columns of part k, both time-major; or C^-1 of joint noise."""
    if (joint := algorithm.noise.joint) is not None:
        return np.asarray(np.linalg.inv(joint.encoder.array))
    noise = algorithm.noise.causal
    assert noise is not None
    N = np.zeros((noise.num_steps, noise.slots_per_step, noise.num_steps, noise.columns_per_step))
    for (i, k), entry in np.ndenumerate(noise.mixing.toarray()):
        N[:, i, :, k] = entry * np.linalg.inv(noise.encoder_of(k))
    return N.reshape(noise.shape)


def dense_node_error_grams(gossip: Gossip, num_steps: int, objective: str = "post-average") -> FloatArray:
    """H_u = A_u^T A_u, shape (n, T, T); A_u: the columns of node u in the workload of the counted models."""
    counted = dense_averaged_workload if objective == "post-average" else dense_gossip_workload
    by_node = [of_node(counted(gossip, num_steps), node, gossip.num_nodes) for node in range(gossip.num_nodes)]
    return np.stack([A.T @ A for A in by_node])


def dense_error_gram(gossip: Gossip, num_steps: int, objective: str = "post-average") -> FloatArray:
    """H = sum over nodes of H_u, shape (T, T)."""
    return dense_node_error_grams(gossip, num_steps, objective).sum(axis=0)


def prefix_sum(num_steps: int) -> FloatArray:
    """Ones on and below the diagonal, shape (T, T).

    >>> prefix_sum(2)
    array([[1., 0.],
           [1., 1.]])
    """
    return np.array([[float(s <= t) for s in range(num_steps)] for t in range(num_steps)])
