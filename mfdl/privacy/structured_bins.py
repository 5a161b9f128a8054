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

from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..factorization.encoders import Banded, Inverse, bins
from ..factorization.sensitivity import coefficients_of, comparison_rows
from ..floats import UNIT
from ..noise.strategy import Encoder, shipped
from .curves.base import UP
from .forms.separable import streamed_gram

MAX_BINS = 4096
"""M of so many is an array of 128 MiB."""
MAX_PRODUCTS = 10**10
"""Of M, or of a substitution."""


def structured_gram(encoder: Encoder, num_bins: int) -> FloatArray | None:
    """M or above, shape (bins, bins); None for an encoder of the user's own, whose products are not known.

    Raises: UnsupportedMechanism: an encoder that is singular to working precision, or more than MAX_PRODUCTS.
    Cost: O(T bins) of coefficients, O(T width^2) of bands, O(T bins (width + bins)) where a banded inverse is given.
    """
    if not shipped(encoder):
        return None
    inflation = streamed_gram(encoder).inflation
    M = _of_structure(encoder, num_bins) if math.isfinite(inflation) else np.array([math.inf])
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


def _of_structure(encoder: Encoder, num_bins: int) -> FloatArray:
    T = encoder.size
    if isinstance(encoder, Banded):
        _require_products(T * encoder.bandwidth**2)
        return bins.of_rows(encoder.rows, num_bins)
    if isinstance(encoder, Inverse) and isinstance(encoder.noising, Banded):
        return _of_comparison(encoder.noising, num_bins)
    _require_products(T * num_bins)
    c = coefficients_of(encoder)
    if c is None or not np.isfinite(c.high).all():
        return np.array([math.inf])
    return bins.of_series(c.high, num_bins)


def _of_comparison(noising: Banded, num_bins: int) -> FloatArray:
    T, width = noising.rows.shape
    _require_products(T * num_bins * (width + num_bins))
    M = np.zeros((num_bins, num_bins))
    with np.errstate(over="ignore", invalid="ignore"):
        for row in comparison_rows(noising, num_bins, np.arange(num_bins)):
            M += np.outer(row, row)
    return np.asarray(M * (1 + 16 * (width + 4) * T * UNIT))


def _require_products(products: int) -> None:
    if products > MAX_PRODUCTS:
        raise UnsupportedMechanism(
            f"M of this encoder takes {products:.1e} products, allowed are {MAX_PRODUCTS:.0e}; take fewer steps, bins "
            "or diagonals, or a Toeplitz encoder."
        )
