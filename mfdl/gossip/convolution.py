"""Gossip that is a convolution over a product of cycles (ring, torus, hypercube, complete graph): its spectrum by FFT.

Seen from the weights themselves, never from a name: node i gives i + c the weight that node 0 gives c, for a sum taken
in some Z_a x Z_b x ..., nodes numbered row by row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.fft
from scipy.sparse import csr_array

from ..check import FloatArray

TOLERANCE = 1e-12  # weights are at most 1; differences of rounding only
BLOCK_ENTRIES = 2**21
MAX_SHAPES = 32


def convolution_spectrum(W: csr_array) -> FloatArray | None:
    """All n eigenvalues of a symmetric W, in no order, where it is such a convolution; else None.

    Args: W: symmetric, indices sorted.
    Cost: O(stored entries) for each shape tried, O(n log n) where one fits; memory O(n).
    """
    n = W.shape[0]
    if (np.diff(W.indptr) != W.indptr[1]).any():
        return None
    first = W.indices[: W.indptr[1]].astype(np.int64)
    for shape in _shapes(n, first):
        if _is_convolution(W, first, shape):
            row = np.zeros(n)
            row[first] = W.data[: first.size]
            return np.asarray(scipy.fft.fftn(row.reshape(shape)).real.ravel())
    return None


def _shapes(n: int, first: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Of groups that row 0 may be a kernel on: a cycle, a cube, tori whose second row starts at a neighbour of 0."""
    yield (n,)
    if n & (n - 1) == 0 and n > 2:
        yield (2,) * (n.bit_length() - 1)
    yield from ((n // c, c) for c in [int(c) for c in first if 1 < c < n and n % c == 0][:MAX_SHAPES])


def _is_convolution(W: csr_array, first: np.ndarray, shape: tuple[int, ...]) -> bool:
    n, degree, weights = W.shape[0], first.size, W.data[: first.size]
    offsets = np.unravel_index(first, shape)
    width = max(1, BLOCK_ENTRIES // degree)
    for start in range(0, n, width):
        rows = np.arange(start, min(n, start + width))
        to = np.zeros((rows.size, degree), dtype=np.int64)
        for length, at, offset in zip(shape, np.unravel_index(rows, shape), offsets, strict=True):
            to = to * length + (at[:, None] + offset) % length
        order = np.argsort(to, axis=1)  # exact: integers
        entries = slice(W.indptr[start], W.indptr[rows[-1] + 1])
        if not np.array_equal(np.take_along_axis(to, order, 1).ravel(), W.indices[entries]):
            return False
        if np.abs(weights[order].ravel() - W.data[entries]).max() > TOLERANCE:
            return False
    return True
