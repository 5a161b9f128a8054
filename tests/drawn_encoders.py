"""Encoders of all kinds beside the dense C that they stand for, written by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from mfdl_solvers.encoders import Banded, Buffered, Dense, Identity, Inverse, Toeplitz

ENTRIES = st.integers(-8, 8).map(lambda k: k / 8)
SHARES = st.integers(0, 8).map(lambda k: k / 8)
DIAGONALS = st.integers(4, 12).map(lambda k: k / 8)


@st.composite
def toeplitz(draw, size, entries=ENTRIES):
    width = draw(st.integers(1, size))
    c = [draw(DIAGONALS), *(draw(entries) for _ in range(width - 1))]
    C = sum((c[j] * np.eye(size, k=-j) for j in range(width)), np.zeros((size, size)))
    return Toeplitz(c, size), C


@st.composite
def banded(draw, size, entries=ENTRIES):
    width = draw(st.integers(1, size))
    bands, C = np.zeros((size, width)), np.zeros((size, size))
    for t in range(size):
        for j in range(min(width, t + 1)):
            C[t, t - j] = bands[t, j] = draw(entries if j else DIAGONALS)
    return Banded(bands), C


@st.composite
def buffered(draw, size, entries=ENTRIES):
    count = draw(st.integers(1, 3))
    scales, decays = ([draw(kind) for _ in range(count)] for kind in (entries, entries))
    diagonal = draw(DIAGONALS)
    C = diagonal * np.eye(size)
    for t in range(size):
        for s in range(t):
            C[t, s] = diagonal * sum(a * d ** (t - s - 1) for a, d in zip(scales, decays, strict=True))
    return Buffered(scales, decays, size, diagonal), C


@st.composite
def inverse(draw, size, entries=ENTRIES):
    noising, N = draw(st.one_of(toeplitz(size, entries), banded(size, entries)))
    return Inverse(noising), np.linalg.inv(N)


@st.composite
def dense(draw, size, entries=ENTRIES):
    C = np.zeros((size, size))
    for t in range(size):
        C[t, : t + 1] = [*(draw(entries) for _ in range(t)), draw(DIAGONALS)]
    return Dense(C), C


def identity(size, entries=ENTRIES):
    return st.just((Identity(size), np.eye(size)))


KINDS = (toeplitz, banded, buffered, inverse, dense, identity)


@st.composite
def encoders(draw, max_size=8, kinds=KINDS):
    """(encoder, C); one in two without entries below 0."""
    size = draw(st.integers(1, max_size))
    kind = draw(st.sampled_from(kinds))
    if draw(st.booleans()):
        return draw(kind(size, SHARES.map(lambda x: -x) if kind is inverse else SHARES))
    return draw(kind(size))
