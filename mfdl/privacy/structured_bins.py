"""M = (|C| E)^T (|C| E) of an encoder with structure, for the noise that is streamed: no array of T x T.

Toeplitz C, buffered ones and inverses of Toeplitz ones too, by their coefficients; banded C by its rows; where C^-1 = N
is banded |C| is at most the inverse of N's comparison matrix, entry by entry (`factorization.sensitivity`), row by row.

Rows of noise that are made step by step meet C y = z up to Delta z, rows of Delta of norms d_t, so the encoder of what
is added is (I + Delta)^-1 C. With off = ||d|| < 1 and V = |C| E, an entry of |(I + Delta)^-1 C| E is at most
V[t, r] + d_t ||V_r|| / (1 - off), and by Cauchy-Schwarz

    M'_rq <= M_rq + ((1 - off)^-2 - 1) ||V_r|| ||V_q||,    ||V_r||^2 = M_rr.
"""

from __future__ import annotations

import math

import numpy as np

from mfdl_solvers.encoders import Encoder
from mfdl_solvers.problem import ProblemError

from ..check import FloatArray
from ..errors import UnsupportedMechanism
from .curves.base import UP

MAX_BINS = 4096
"""M of so many is an array of 128 MiB."""


def structured_gram(encoder: Encoder, num_bins: int) -> FloatArray | None:
    """M or above, shape (bins, bins); None for an encoder of the user's own, whose products are not known.

    Raises: UnsupportedMechanism: an encoder that is singular to working precision, or more products than are allowed.
    Cost: O(T bins) of coefficients, O(T width^2) of bands, O(T bins (width + bins)) where a banded inverse is given.
    """
    inflation = encoder.inflation
    try:
        M = encoder.bin_gram(num_bins) if math.isfinite(inflation) else np.array([math.inf])
    except ProblemError as error:
        raise UnsupportedMechanism(str(error)) from None
    if M is None:
        return None
    if not np.isfinite(M).all():
        raise UnsupportedMechanism(
            "secret bins need the encoder that the streamed noise inverts, and this one is singular to working "
            "precision; take an encoder that is better conditioned."
        )
    return streamed(M, inflation)


def streamed(M: FloatArray, inflation: float) -> FloatArray:
    """M of the noise that is added, from that of C and (1 - off)^-2, rounded up."""
    norms = np.sqrt(M.diagonal())
    return np.asarray((M + (inflation - 1) * np.outer(norms, norms)) * UP)
