"""The bound of Sabater, Bellet and Ramon (arXiv:2006.07218) on noise that cancels along edges, beside DECOR's.

A change x of one value is hidden by a change of private noise, spread evenly over the n nodes, and a flow t over the
edges that carries the rest. The squared distance of two Gaussians, for |x| = 1, is at most

    theta = 1 / (n s_local^2) + |t|^2 / s_pair^2

for every flow t from the victim to all nodes evenly. The least |t|^2 is [L^+]_ii, L the Laplacian. (epsilon, delta)
follows if theta is at most `largest_theta`. Both steps are upper bounds: the exact theta is
[(s_local^2 I + s_pair^2 L)^-1]_ii = sum_k v_ki^2 / (s_local^2 + s_pair^2 lambda_k), of which this one drops
s_local^2 wherever lambda_k > 0, and DECOR's Theorem 1 puts the least lambda_k > 0 for every other.
"""

from __future__ import annotations

import math

import numpy as np

from mfdl import check, node_covariances
from mfdl.spec import takes_fields_of

from ..published import PublishedBound
from .pairwise_bounds import PairwiseNoise

FLOW_SOURCE = "Sabater, Bellet, Ramon, arXiv:2006.07218"


@takes_fields_of(PairwiseNoise)
def flow_theorem(noise: PairwiseNoise) -> PublishedBound:
    """Upper bound on the Rényi slope of pairwise noise, from the flow of least energy.

        2 C^2 T max_i (1 / (m s_local^2) + [L^+]_ii / s_pair^2),  m the nodes of the component of i without colluders

    Source: arXiv:2006.07218, theta of Theorem 1, times (2 C)^2 T / 2; its honest users are connected, here each
        component is by itself.
    Claims: the slope for any victim and any q colluders; infinite without pairwise noise, unless a node is alone.
    Validity: "bound", also for adaptive gradients, under replace-one.

    Args, Raises: those of `decor_theorem`.
    Cost: O(n^3) for each of at most 20,000 coalitions.
    """
    local, pair, scale = noise.levels()
    worst = 0.0
    for batch, _ in node_covariances.laplacians_after_deletion(noise.graph, noise.num_colluders):
        eigenvalues, vectors = np.linalg.eigh(batch)
        connected = eigenvalues > 1e-9 * max(1.0, float(eigenvalues.max()))
        inverse = np.divide(1.0, eigenvalues, out=np.zeros_like(eigenvalues), where=connected)
        flow = np.einsum("bik,bk->bi", vectors**2, inverse)
        even = np.einsum("bik,bk->bi", vectors**2, 1.0 - connected)
        carried = np.divide(flow, pair, out=np.where(flow > 0, math.inf, 0.0), where=np.full(flow.shape, pair > 0))
        worst = max(worst, float((even / local + carried).max()))
    return PublishedBound(scale * worst, "renyi slope", f"{FLOW_SOURCE}, Theorem 1", "", "bound under replace-one adjacency")


def largest_theta(epsilon: float, delta: float) -> float:
    """Theta_max: the largest theta for which the paper's proof gives (epsilon, delta).

        epsilon >= theta / 2 + sqrt(theta)  and  (epsilon - theta / 2)^2 >= 2 log(2 / (delta sqrt(2 pi))) theta

    Args: epsilon > 0; 0 < delta < 1.
    Raises: InvalidInput: a number out of range.
    Source: arXiv:2006.07218, (7) and (8).
    """
    e = check.positive(epsilon=epsilon)
    square = max(1.0, 2 * math.log(2 / (check.open_unit(delta=delta) * math.sqrt(2 * math.pi))))
    # epsilon - theta / 2 = sqrt(square theta), whose root sqrt(theta) is sqrt(square + 2 epsilon) - sqrt(square)
    return (2 * e / (math.sqrt(square + 2 * e) + math.sqrt(square))) ** 2
