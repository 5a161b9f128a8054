"""When does a remainder at rounding level count as zero? Constants and one guard of the tests that decide it.

A linear algorithm is given in float64, so a relation such as "the weights of the messages cancel" holds up to rounding
at best. A remainder at that level is taken for zero, which is safe only where a true remainder cannot be as small.
"""

from __future__ import annotations

import numpy as np

from ..algorithms import LinearAlgorithm

ROUNDING = 16 * float(np.finfo(np.float64).eps)  # times the size: relative remainder that counts as zero
SMALLEST_WEIGHT = 1e-6  # with smaller weights a true remainder could pass for rounding


def smallest_weight(algorithm: LinearAlgorithm) -> float:
    """The smallest weight, in magnitude and other than zero, with which a message enters a state; inf if none does."""
    found = np.inf
    for one in {id(r): r for r in algorithm.rounds}.values():
        if one.state_from_message is not None:
            sizes = np.abs(one.state_from_message.data)
            found = min(found, float(sizes[sizes > 0].min(initial=np.inf)))
    return found


def has_tiny_weights(algorithm: LinearAlgorithm) -> bool:
    """Whether an injection can enter a model with a relative weight below SMALLEST_WEIGHT.

    The weight is that of one message in a state, times the smallest over the largest scale at which gradients are
    injected, over all nodes and steps: learning rates and public divisors spread them.
    """
    small, large = np.inf, 0.0
    for one in {id(r): r for r in algorithm.rounds}.values():
        if one.message_from_gradient is not None:
            sizes = np.abs(one.message_from_gradient.data)
            small = min(small, float(sizes[sizes > 0].min(initial=np.inf)))
            large = max(large, float(sizes.max(initial=0.0)))
    spread = small / large if large > 0 else 1.0
    return smallest_weight(algorithm) * spread < SMALLEST_WEIGHT
