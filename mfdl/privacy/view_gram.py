"""The Gram matrix X_u of what an attacker's view reveals about one node, with its rounding error.

X_u = A_u^T (B B^T)^+ A_u, T x T, so that sens_u^2 = max over patterns and ||g_t|| <= 1 of
sum X_u[s, t] <g_s, g_t>. Under LDP the gossip W_T is a left factor of both A and B and is injective, so it
drops out: for node-local noise N_u = C_u^-1, X_u = C_u^T C_u whatever the graph.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..operators import IndependentNoise, LocalNoise, ZeroNoise
from ..trust import LDP, TrustModel

UNIT = float(np.finfo(np.float64).eps) / 2  # unit roundoff


@dataclasses.dataclass(frozen=True, eq=False)
class ViewGram:
    """X of one victim with bounds on how far the float64 array can be from the truth.

    The true X is at most `inflation` (in the positive semidefinite order) times a matrix within `entry_error`
    of `matrix`, entrywise. An infinite `inflation` means infinite loss.
    """

    matrix: FloatArray
    entry_error: FloatArray
    inflation: float = 1.0


def view_gram(algorithm: LinearAlgorithm, trust: TrustModel, node: int) -> ViewGram:
    """X_u of one node under a trust model.

    Raises: UnsupportedMechanism: a trust model or noise that is not covered.
    Cost under LDP: O(T^3) per distinct encoder, independent of the graph.
    """
    if not isinstance(trust, LDP):
        raise UnsupportedMechanism(f"trust model {trust!r} is not covered; covered: LDP().")
    noise = algorithm.noise
    T = noise.num_steps
    if isinstance(noise, ZeroNoise):
        return ViewGram(np.eye(T), np.zeros((T, T)), math.inf)
    if isinstance(noise, IndependentNoise):
        return ViewGram(np.eye(T), np.zeros((T, T)))
    if isinstance(noise, LocalNoise):
        return _local_gram(noise.encoder_of(node), noise.inverse_of(node))
    raise UnsupportedMechanism(f"noise {type(noise).__name__} is not covered under LDP.")


def _local_gram(encoder: FloatArray, inverse: FloatArray) -> ViewGram:
    """C^T C for the noise N that is really injected, N = C^-1 up to rounding.

    The exact X is N^-T N^-1. With C N = I + E, N^-1 = (I + E)^-1 C, so X <= C^T C / (1 - ||E||)^2. Both the
    products C^T C and C N carry at most T unit roundoffs per entry, relative to the products of absolute values.
    """
    T = encoder.shape[0]
    rounding = T * UNIT / (1 - T * UNIT)
    absolute = np.abs(encoder)
    defect = encoder @ inverse
    defect[np.diag_indices(T)] -= 1.0
    size = float(np.linalg.norm(defect)) + rounding * float(np.linalg.norm(absolute @ np.abs(inverse)))
    inflation = math.inf if not size < 1 else (1 - size) ** -2
    return ViewGram(encoder.T @ encoder, rounding * (absolute.T @ absolute), inflation)
