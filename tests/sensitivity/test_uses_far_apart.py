"""Encoders whose columns meet at lags of any length, with gaps and sign changes, against all patterns and signs."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.factorization.structured_sensitivity import structured_bound
from mfdl.participation import MinSeparation, OncePerEpoch
from mfdl.sensitivity.structured_bounds import BandedGram, Coefficients, banded_bound, toeplitz_bound
from mfdl.testing.oracles import signed_sum_over_patterns
from mfdl_solvers import chains

HALVES = st.integers(-6, 6).map(lambda value: value / 2)
GAPS = HALVES | st.just(0.0) | st.just(0.0)
SCALES = [[0.25], [0.25, 0.125], [-0.25, 0.5]]
ROUNDING = 1e-11  # of C as written by the oracle, where it is the inverse of what was drawn


def bands_of(draw, T, entries):
    """(T, w) rows back from a positive diagonal, zero before step 0."""
    w = draw(st.integers(1, T))
    bands = np.array(draw(st.lists(entries, min_size=T * w, max_size=T * w))).reshape(T, w)
    bands[:, 0] = np.abs(bands[:, 0]) + 0.5
    return np.where(np.arange(w) <= np.arange(T)[:, None], bands, 0.0)


def series_of(draw, T, entries):
    w = draw(st.integers(1, T))
    return np.array([draw(st.integers(1, 4)) / 2, *draw(st.lists(entries, min_size=w - 1, max_size=w - 1))])


def lower_triangular(bands):
    T, w = bands.shape
    return np.array([[bands[t, t - s] if 0 <= t - s < w else 0.0 for s in range(T)] for t in range(T)])


def inverse_of(N):
    """The inverse of a lower triangular N in fractions, as floats."""
    T = len(N)
    C = [[Fraction(0)] * T for _ in range(T)]
    for s in range(T):
        for t in range(s, T):
            known = sum((Fraction(N[t, r]) * C[r][s] for r in range(s, t)), Fraction(0))
            C[t][s] = (Fraction(int(s == t)) - known) / Fraction(N[t, t])
    return np.array([[float(x) for x in row] for row in C])


@st.composite
def encoders(draw, T):
    """(encoder, C as an array)."""
    kind = draw(st.sampled_from(["banded", "toeplitz", "buffered", "inverse", "inverse toeplitz"]))
    entries = GAPS if draw(st.booleans()) else GAPS.map(abs)
    if kind == "buffered":
        scales = draw(st.sampled_from(SCALES))
        decays = draw(st.lists(st.sampled_from([0.5, -0.5, 0.75]), min_size=len(scales), max_size=len(scales)))
        series = [sum(w * x**j for w, x in zip(scales, decays, strict=True)) for j in range(T - 1)]
        return Buffered(scales, decays, T), lower_triangular(np.tile([1.0, *series], (T, 1)))
    if kind in ("banded", "inverse"):
        bands = bands_of(draw, T, entries)
        encoder = Banded(bands)
    else:
        series = series_of(draw, T, entries)
        bands, encoder = np.tile(series, (T, 1)), Toeplitz(series, T)
    C = lower_triangular(bands)
    if kind.startswith("inverse"):
        C = inverse_of(C)
        return (Inverse(encoder), C) if np.abs(C).max() < 1e4 else (encoder, lower_triangular(bands))
    return encoder, C


@st.composite
def schemes(draw, most=12):
    if draw(st.integers(0, 4)):
        T = draw(st.integers(1, most))
        return MinSeparation(T, draw(st.integers(1, 4)), draw(st.integers(1, T)))
    k = draw(st.integers(1, 4))
    return OncePerEpoch(k, draw(st.integers(1, 12 // k if k < 4 else 2)))


@pytest.mark.parametrize(
    ("T", "b", "series"),
    [
        (3, 1, [0.5, 0, 0.25]),
        (12, 1, [1, 0] * 4 + [1]),
        (60, 5, [1, *[0] * 9, 0.9, *[0] * 9, 0.8]),
        (600, 5, [1, *[0] * 9, 0.9, *[0] * 9, 0.8]),
    ],
)
def test_two_uses_of_a_column_with_gaps_meet(T, b, series):
    """X of two steps is the autocorrelation of the column at their lag, all of it where the last rows do not cut it."""
    scheme, c = MinSeparation(T, 2, b), np.array(series)
    lags = np.correlate(c, c, "full")[len(c) - 1 :]
    truth = 2 * lags[0] + 2 * max(lags[b:], default=0) if 2 * len(c) <= T else None
    if truth is None:
        C = lower_triangular(np.tile(c, (T, 1)))
        truth = signed_sum_over_patterns(C.T @ C, itertools.combinations(range(T), 2))
    for encoder in (Banded(np.where(np.arange(len(c)) <= np.arange(T)[:, None], c, 0.0)), Toeplitz(c, T)):
        for method in ("exact", "certified"):
            found = structured_bound(encoder, scheme, method)
            assert truth <= found.upper <= truth * (1 + 1e-12)
            assert found.exact or method == "certified"


@examples(400)
@given(data=st.data())
def test_never_below_all_patterns_and_signs(data):
    scheme = data.draw(schemes())
    encoder, C = data.draw(encoders(scheme.num_steps))
    attained = signed_sum_over_patterns(C.T @ C, [tuple(p) for p in scheme.patterns()])
    method = data.draw(st.sampled_from(["exact", "certified"]))
    found = structured_bound(encoder, scheme, method)
    assert found.upper >= attained * (1 - ROUNDING)
    assert scheme.allows(found.pattern)
    if found.exact:  # gradients of many coordinates may attain more than signs
        assert found.lower >= attained * (1 - 1e-5)


@examples(300)
@given(data=st.data(), T=st.integers(1, 12), k=st.integers(1, 4))
def test_rules_of_bands_and_coefficients_alone_are_never_too_low(data, T, k):
    """Without the Gram matrix, which improves short runs; entries are halves, so all sums are exact."""
    scheme = MinSeparation(T, k, data.draw(st.integers(1, T)))
    entries = GAPS if data.draw(st.booleans()) else GAPS.map(abs)
    patterns = [tuple(p) for p in scheme.patterns()]
    bands, series = bands_of(data.draw, T, entries), series_of(data.draw, T, entries)
    padded = np.pad(series, (0, T - len(series)))
    for C, found in (
        (lower_triangular(bands), banded_bound(BandedGram.of_rows(bands), scheme)),
        (lower_triangular(np.tile(series, (T, 1))), banded_bound(BandedGram.of_rows(np.tile(series, (T, 1))), scheme)),
        (lower_triangular(np.tile(series, (T, 1))), toeplitz_bound(Coefficients(padded, np.zeros(T)), scheme)),
    ):
        attained = signed_sum_over_patterns(C.T @ C, patterns)
        assert found.lower <= attained <= found.upper


@examples(200)
@given(data=st.data(), T=st.integers(2, 12), k=st.integers(1, 5), separation=st.integers(1, 12))
def test_few_uses_are_counted_and_not_priced(data, T, k, separation):
    """Two uses are exact with bands of any width; more where those before the last but one are out of reach."""
    b = min(separation, T)
    bands = bands_of(data.draw, T, GAPS if k <= 2 else GAPS.map(abs))
    bands = bands if k <= 2 else bands[:, : 2 * b]
    scheme, C = MinSeparation(T, k, b), lower_triangular(bands)
    truth = signed_sum_over_patterns(C.T @ C, [tuple(p) for p in scheme.patterns()])
    found = banded_bound(BandedGram.of_rows(bands), scheme)
    assert_allclose([found.upper, found.lower], truth, rtol=1e-12)
    assert found.upper >= truth
    assert found.exact


@examples(150)
@given(data=st.data(), T=st.integers(1, 10), gap=st.integers(1, 5), uses=st.integers(1, 5), counted=st.booleans())
def test_chains_are_never_below_the_heaviest_steps_and_links(data, T, gap, uses, counted):
    """By all sets of steps; counted chains find the heaviest, prices bound it."""
    numbers = st.lists(GAPS.map(abs), min_size=T, max_size=T).map(np.array)
    weights, links = data.draw(numbers), data.draw(st.lists(numbers, max_size=T))
    linked = [np.where(np.arange(T) >= gap + i, link, 0.0) for i, link in enumerate(links)]

    def sum_of(steps):
        lags = [(t, t - s - gap) for s, t in itertools.pairwise(steps)]
        return sum(weights[t] for t in steps) + sum(linked[i][t] for t, i in lags if i < len(linked))

    chosen = [p for m in range(uses + 1) for p in itertools.combinations(range(T), m) if (np.diff(p) >= gap).all()]
    truth = max(sum_of(p) for p in chosen)
    with pytest.MonkeyPatch.context() as patch:
        if not counted:
            patch.setattr(chains, "MAX_TABLE", 0)
        upper, steps = chains.at_most(uses, weights, linked, gap)
    assert upper >= truth >= sum_of(steps)
    assert steps in chosen
    if counted:
        assert upper <= truth * (1 + 1e-12)
        assert sum_of(steps) == truth


def test_a_price_counts_links_longer_than_twice_the_gap():
    """Six steps that meet at a difference of two alone, with and without a table of steps and uses."""
    weights, linked = np.ones(6), [np.zeros(6), np.array([0, 0, 100.0, 100, 100, 100])]
    for table in (10**7, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chains, "MAX_TABLE", table)
            upper, steps = chains.at_most(2, weights, linked, 1)
        assert 102 <= upper <= 153  # the best three steps at their price
        assert steps == (0, 2) or table == 0
