"""How far noise N = C^-1, inverted in float64, is from that of its encoder C.

With C N = I + E, N^-1 = (I + E)^-1 C, so the exact X of N is at most C^T C / (1 - ||E||)^2 and at least
C^T C / (1 + ||E||)^2 >= C^T C (1 - ||E||)^2.
"""

from __future__ import annotations

import math

import numpy as np

from ..check import FloatArray
from ..floats import sum_rounding


def inflation_of(encoder: FloatArray, inverse: FloatArray) -> float:
    """(1 - ||C N - I||)^-2: by what factor X of the noise N exceeds, at most, that of C^-1."""
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite or undefined defect is not < 1: no claim
        defect = encoder @ inverse
        defect[np.diag_indices(len(encoder))] -= 1.0
        absolute = float(np.linalg.norm(np.abs(encoder) @ np.abs(inverse)))
        off = float(np.linalg.norm(defect)) + sum_rounding(len(encoder)) * absolute
    return math.inf if not off < 1 else (1 - off) ** -2
