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
    for one in algorithm.kinds:
        if one.state_from_message is not None:
            sizes = np.abs(one.state_from_message.data)
            found = min(found, float(sizes[sizes > 0].min(initial=np.inf)))
    return found
