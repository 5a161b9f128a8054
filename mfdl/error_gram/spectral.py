"""Where the spectral measure of what is counted comes from: closed forms, or one eigendecomposition."""

from __future__ import annotations

import numpy as np

from .. import check
from ..dynamics import Dynamics
from ..error_weights import ErrorWeights, Target
from ..errors import UnsupportedMechanism
from ..threads import blas_threads
from ._counted import Counted
from ._modes import Modes
from .measure import SpectralMeasure

MAX_DENSE = 5000
"""Nodes up to which eigenvectors are computed: minutes, and three arrays of 200 MB."""


def spectral_measure(dynamics: Dynamics, *, weights: ErrorWeights | None = None) -> SpectralMeasure:
    """The measure of one step's averaging of constant symmetric gossip, exact up to rounding.

    In closed form where the average of the models counts, or where gossip is a convolution over a product of cycles
    (`GossipMatrix.closed_spectrum`: rings, tori, hypercubes, complete graphs of any size); otherwise by the
    eigenvectors of W, up to MAX_DENSE nodes.

    Args: weights: their target is what Q is; steps play no part.
    Raises: UnsupportedMechanism: other gossip, or too large.
    Cost: O(weights of W + n log n) in closed form, else n^3.

    >>> from mfdl import gossip
    >>> ring = spectral_measure(Dynamics(gossip.metropolis_hastings("ring:n=6")))
    >>> ring.eigenvalues.round(3), ring.weights
    (array([-0.333,  0.   ,  0.667,  1.   ]), array([1., 2., 2., 1.]))
    """
    check.instance(Dynamics, dynamics=dynamics)
    measure = known_measure(Counted.of(dynamics, 1, _target_alone(weights), "message"))
    if measure is None:
        raise UnsupportedMechanism(
            f"the spectral measure is known of constant symmetric gossip, in closed form or up to {MAX_DENSE} nodes, "
            f"got {dynamics.gossip.describe()}; take metropolis-hastings, or error_gram."
        )
    return measure


def known_measure(counted: Counted) -> SpectralMeasure | None:
    """That of constant symmetric gossip where it has a closed form or few enough nodes; else None."""
    gossip, rounds = counted.dynamics.gossip, counted.dynamics.gossip_rounds
    if not (gossip.is_constant and gossip.at(0).is_symmetric):
        return None
    if counted.of_average:
        return SpectralMeasure(np.ones(1), np.ones(1))
    if (closed := gossip.at(0).closed_spectrum) is not None:
        # every eigenspace has |u(i)|^2 alike at all nodes
        measure = SpectralMeasure.of_spectrum(closed, counted.weight_of_nodes / closed.size)
        if (released := counted.released) is not None:  # |W^g u|^2
            measure = measure.weighted(measure.eigenvalues ** (2 * released.rounds_of_gossip))
        return measure.after_rounds(rounds)
    if gossip.num_nodes > MAX_DENSE:
        return None
    with blas_threads(gossip.num_nodes):
        modes = Modes.of(counted)
        if modes is None:
            return None
        return SpectralMeasure(np.clip(modes.lam, -1.0, 1.0), (counted.of_nodes(modes.vectors) ** 2).sum(axis=0))


def _target_alone(weights: ErrorWeights | None) -> ErrorWeights | None:
    return None if weights is None else ErrorWeights("all", Target(weights=weights).weights.target)
