"""Claims about balls-in-bins (docs/balls_in_bins_theorem.md): the theorem, and statements close to it, some false.

Losses are hockey sticks at noise of std 1, by integration over the plane of two bins; those of adaptive attackers by
dynamic programming, never above the true ones.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from scipy.stats import norm

from mfdl.check import FloatArray
from mfdl.privacy import gaussian
from mfdl.testing.oracles.curve_oracles import attacked, bins_of_steps, means_delta, two_bin_delta

from ..paper_claims import statements

ENTRIES = st.sampled_from([0.0, 1.0, -1.0, 0.5, -0.5])
EPSILONS = (0.0, 0.5, 1.5)
WAYS = st.sampled_from(["kept", "lost", "replaced"])

published_claim = statements(
    sigma=st.sampled_from([1.0, 2.0]), way=WAYS, epsilon=st.sampled_from(EPSILONS), tolerance=1e-4
)


@st.composite
def encoders(draw: st.DrawFn, steps: int) -> FloatArray:
    """Lower triangular, ones on the diagonal."""
    C = np.eye(steps)
    for t, s in zip(*np.tril_indices(steps, -1), strict=True):
        C[t, s] = draw(ENTRIES)
    return C


@st.composite
def grams(draw: st.DrawFn) -> FloatArray:
    """Gram of two vectors with an angle of at most 90 degrees."""
    d = draw(st.sampled_from([1.0, 0.05, 0.25, 2.0])), draw(st.sampled_from([1.0, 0.05, 0.25, 2.0]))
    c = draw(st.sampled_from([0.0, 0.7, 0.3, 0.9])) * math.sqrt(d[0] * d[1])
    return np.array([[d[0], c], [c, d[1]]])


@st.composite
def three_bin_means(draw: st.DrawFn) -> FloatArray:
    """Means in the plane, no two at more than 90 degrees."""
    lengths = draw(st.lists(st.sampled_from([1.0, 0.25, 0.5, 2.0]), min_size=3, max_size=3))
    angles = draw(st.lists(st.sampled_from([0.0, 90.0, 30.0, 45.0, 60.0]), min_size=3, max_size=3))
    return np.array(lengths)[:, None] * np.column_stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))])


@published_claim("balls-in-bins-public", bins=st.just(2))
def public(bins: int, sigma: float) -> tuple[float, float]:
    return two_bin_delta(np.eye(bins) / sigma**2, 0.0, "kept"), gaussian.delta_from_mu(1 / sigma, 0.0)


@published_claim("balls-in-bins-equal-sizes", other=st.sampled_from([0.0, 1.0, -1.0]))
def equal_sizes(other: float, sigma: float) -> tuple[float, float]:
    """The other record's gradient is known; it lies in the bin that is left."""
    grid = np.linspace(-8, 8, 321) * sigma
    step = grid[1] - grid[0]

    def density(first: float, second: float) -> FloatArray:
        return np.outer(norm.pdf(grid, first, sigma), norm.pdf(grid, second, sigma)) * step**2

    present = (density(1, other) + density(other, 1)) / 2
    gone = (density(0, other) + density(other, 0)) / 2
    sides = (present, gone), (gone, present)
    true = max(float(np.clip(a - math.exp(1.5) * b, 0, None).sum()) for a, b in sides)
    return max(two_bin_delta(np.eye(2) / sigma**2, 1.5, way) for way in ("kept", "lost")), true


@published_claim("balls-in-bins-signs", encoder=encoders(2))
def signs(encoder: FloatArray) -> tuple[float, float]:
    claimed = float(np.square(encoder.sum(axis=1)).sum())
    return claimed, max(float(np.square(encoder @ g).sum()) for g in itertools.product((1, -1), repeat=2))


@published_claim("balls-in-bins-doubled-shift", gram=grams(), sigma=st.sampled_from([1.0, 0.5]))
def doubled_shift(gram: FloatArray, sigma: float) -> tuple[float, float]:
    M = gram / sigma**2
    return max(two_bin_delta(4 * M, 0.0, way) for way in ("kept", "lost")), two_bin_delta(M, 0.0, "replaced")


@published_claim("balls-in-bins-monotone", examples=60, gram=grams(), raised=grams())
def monotone(gram: FloatArray, raised: FloatArray, epsilon: float, way: str) -> tuple[float, float]:
    assume((raised >= gram).all())
    return two_bin_delta(raised, epsilon, way), two_bin_delta(gram, epsilon, way)


@published_claim("balls-in-bins-stride", examples=60, means=three_bin_means())
def stride(means: FloatArray, epsilon: float, way: str) -> tuple[float, float]:
    """A = {0, 1}, so that shifts are {0, 1}, {1, 2} and {2, 0}."""
    pairs = [means_delta(np.roll(means, -shift, axis=0)[:2], epsilon, way) for shift in range(3)]
    return float(np.mean(pairs)), means_delta(means, epsilon, way)


def _against(M: FloatArray, encoder: FloatArray, sigma: float, way: str) -> tuple[FloatArray, FloatArray]:
    assume(float(np.linalg.eigvalsh(M)[0]) >= 0)
    true = attacked(encoder, bins_of_steps(len(encoder), 2), sigma, EPSILONS, way, 4)
    return np.array([two_bin_delta(M / sigma**2, epsilon, way) for epsilon in EPSILONS]), true


def _by_bins(X: FloatArray) -> FloatArray:
    """E^T X E for two bins."""
    bins = np.arange(len(X)) % 2
    return np.array([[X[np.ix_(bins == r, bins == q)].sum() for q in range(2)] for r in range(2)])


@published_claim("balls-in-bins-theorem", examples=60, encoder=encoders(4))
def theorem(encoder: FloatArray, sigma: float, way: str) -> tuple[FloatArray, FloatArray]:
    """k = 2, b = 2; a record is replaced in the first three steps."""
    encoder = encoder[:3, :3] if way == "replaced" else encoder
    return _against(_by_bins(np.abs(encoder).T @ np.abs(encoder)), encoder, sigma, way)


@published_claim(
    "balls-in-bins-absolute-gram", examples=100, encoder=encoders(4), way=st.sampled_from(["kept", "lost"])
)
def absolute_gram(encoder: FloatArray, sigma: float, way: str) -> tuple[FloatArray, FloatArray]:
    """k = 2, b = 2, where E^T |C^T C| E has no negative eigenvalue."""
    return _against(_by_bins(np.abs(encoder.T @ encoder)), encoder, sigma, way)
