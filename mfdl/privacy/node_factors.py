"""What the noise of a step leaves of each victim where batches are secret: factors of the sensitivity.

Where noise is correlated over time by one encoder, or fresh, the factor is [Sigma^+]_uu of its covariance over nodes;
where it correlates time and nodes together the Gram over steps holds all, and the factor is 1 or infinite. Noise that
is added elsewhere than to sums of gradients is refused.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput, UnsupportedMechanism
from ..trust import TrustModel
from . import bin_gram
from .forms import injection_bound, known_gradient

Exposed = dict[int, tuple[float, str]]
"""Of each victim the largest [Sigma^+]_uu over members and steps, and what makes it infinite."""


def exposed_by_joint_noise(algorithm: LinearAlgorithm, trust: TrustModel, seen: TrustModel) -> Exposed:
    """Of noise that correlates time and nodes together: 1, its M holds all; inf for a victim whose gradient is known.

    Infinite for all victims of those who know all of the noise.
    Raises: UnsupportedMechanism: noise that is known in part, which leaves no block causal encoder.
    """
    require_noise_with_gradients(algorithm)
    labels, exposed = algorithm.dynamics.gossip.labels, dict[int, tuple[float, str]]()
    for model, victims in seen.members(algorithm):
        if not victims:
            continue
        against = model.view(algorithm, victims[0])
        known = against.knowledge.known_noise
        if known.any() and not known.all():
            raise UnsupportedMechanism(
                f"{algorithm.participation.describe()} is accounted for noise of {algorithm.name!r}, which correlates "
                f"time and nodes together, where attackers know none of it, and under trust model {trust.name!r} "
                f"{trust.attacker} know a part; take one encoder for all nodes (kronecker, mafalda), "
                "trust.Eavesdropper(), or a public participation."
            )
        for u in victims:
            why = known_gradient(against, u) or ("all noise is known" if known.all() else "")
            factor = (math.inf, f"Infinite for node {labels[u]!r}: {why}.") if why else (1.0, "")
            exposed[u] = max(exposed.get(u, factor), factor, key=lambda each: each[0])  # exact: 1 or infinity
    return _of_somebody(exposed, trust)


def _of_somebody(exposed: Exposed, trust: TrustModel) -> Exposed:
    if not exposed:
        raise InvalidInput(f"no victim is left: every node is an attacker ({trust.attacker}).")
    return exposed


def require_noise_with_gradients(algorithm: LinearAlgorithm) -> None:
    """Refuses noise elsewhere than in sums of gradients: divisors of batches would leave it undivided."""
    if algorithm.noise_on_messages or not algorithm.noise_enters_with_gradients:
        raise UnsupportedMechanism(
            f"amplification by sampling is proven where noise is added to sums of gradients, and {algorithm.name!r} "
            "adds it elsewhere; take dp_dsgd, decor or corn, or a public participation."
        )


def with_fresh_noise(algorithm: LinearAlgorithm) -> LinearAlgorithm:
    """The same with noise that is fresh in each step, for what its covariance over nodes leaves."""
    require_noise_with_gradients(algorithm)
    if algorithm.noise.is_zero:
        return algorithm
    return dataclasses.replace(algorithm, noise=bin_gram.fresh_part(algorithm))


def exposed_by_node_noise(algorithm: LinearAlgorithm, trust: TrustModel, seen: TrustModel) -> Exposed:
    """What each victim's noise over the nodes leaves, for noise that is fresh in every step.

    Args: trust: as it is named; seen: the one whose views are looked at.
    """
    noise = algorithm.noise
    require_noise_with_gradients(algorithm)
    if not noise.is_zero and (noise.causal is None or not noise.causal.fresh):
        raise UnsupportedMechanism(
            "amplification by sampling is proven for noise that is fresh in every step, and that of "
            f"{algorithm.name!r} is correlated over time; take dp_dsgd, decor or corn, or a public "
            "participation such as Cyclic."
        )
    labels, worst = algorithm.dynamics.gossip.labels, dict[int, tuple[float, str]]()
    for model, victims in seen.members(algorithm):
        if not victims:
            continue
        view = model.view(algorithm, victims[0])
        grams = injection_bound(view, victims)
        assert grams is not None
        for u, gram in zip(victims, grams, strict=True):
            assert gram.is_diagonal
            squared = np.where(gram.leaks, math.inf, (gram.values + gram.errors) * gram.inflation * (1 + 2.0**-50))
            largest = float(squared.max())
            why = f"Infinite for node {labels[u]!r}: {gram.why}." if math.isinf(largest) else ""
            worst[u] = max(worst.get(u, (0.0, "")), (largest, why), key=lambda each: each[0])  # bound
    return _of_somebody(worst, trust)
