"""Encoders: what `CausalNoise` takes instead of an array, and wraps one in (`mfdl_solvers.encoders`)."""

import numpy as np

from mfdl_solvers.encoders import Banded, Buffered, Dense, Encoder, Identity, Inverse, PerColumn, Toeplitz, bins

from ..check import FloatArray

__all__ = [
    "Banded", "Buffered", "Dense", "Encoder", "Identity", "Inverse", "PerColumn", "Toeplitz", "bins",
    "square_root_series",
]  # fmt: skip


def square_root_series(width: int, *, inverse: bool = False) -> FloatArray:
    """The first coefficients of the square root of the prefix sum, (1 - x)^(-1/2), or of its inverse, (1 - x)^(1/2).

    >>> square_root_series(3).tolist(), square_root_series(3, inverse=True).tolist()
    ([1.0, 0.5, 0.375], [1.0, -0.5, -0.125])
    """
    j = np.arange(1, width)
    shares = (2 * j - 3) / (2 * j) if inverse else (2 * j - 1) / (2 * j)
    return np.concatenate([[1.0], np.cumprod(shares)])
