"""Sensitivities from coefficients and bands alone: never below the truth, the value where signs and steps allow it."""

import itertools
import math
from fractions import Fraction
from functools import partial
from itertools import combinations

import exact
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import toeplitz
from vocabulary import each, given, st

from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.participation import Cyclic, EveryStep, MinSeparation, OncePerEpoch, Single
from mfdl.sensitivity.encoder_bounds import BandedGram, Coefficients, banded_bound, structured_bound, toeplitz_bound
from mfdl.testing import participations
from mfdl.testing.oracles import largest_over_patterns, largest_signed_sum, signed_sum_over_patterns
from mfdl.testing.strategies import ALL_SCHEMES
from mfdl_solvers import chains
from mfdl_solvers.pattern_sets import Separated

SOLVER = 2e-6  # relative accuracy of the reference solver
HALVES = st.integers(-6, 6).map(lambda value: value / 2)


def numbers(size, sign=HALVES):
    return st.lists(sign, min_size=size, max_size=size).map(np.array)


def exactly(values):
    return Coefficients(np.asarray(values, dtype=float), np.zeros(len(values)))


@st.composite
def structured(draw):
    """(C, its bound as a function of the participation, participation)."""
    scheme = draw(participations(max_steps=6, schemes=ALL_SCHEMES))
    T = scheme.num_steps
    sign = HALVES if draw(st.booleans()) else HALVES.map(abs)
    if draw(st.booleans()):
        c = draw(numbers(T, sign))
        if draw(st.booleans()):
            c = np.sort(np.abs(c))[::-1]
        return np.tril(toeplitz(c)), partial(toeplitz_bound, exactly(c)), scheme
    w = draw(st.integers(1, T))
    bands = draw(numbers(T * w, sign)).reshape(T, w)
    C = sum(np.diag(bands[j:, j], -j) for j in range(w))
    return C, partial(banded_bound, BandedGram.from_rows(bands)), scheme


def listed(scheme):
    return [tuple(pattern.tolist()) for pattern in scheme.patterns()]


@given(150, case=structured())
def test_never_below_the_best_signs_nor_above_the_program(case):
    C, bound, scheme = case
    X, patterns = C.T @ C, listed(scheme)
    bounded, signed = bound(scheme), max(largest_signed_sum(X[np.ix_(p, p)]) for p in patterns)
    assert bounded.upper >= signed
    assert bounded.lower <= signed * (1 + 1e-12)  # it is that of signs
    assert scheme.allows(bounded.pattern)
    assert bounded.upper >= largest_over_patterns(X, patterns) * (1 - SOLVER) - SOLVER
    if bounded.exact:
        assert_allclose(bounded.upper, signed, rtol=2e-6)


@given(150, case=structured())
def test_gradients_that_add_up_are_exact_where_a_rule_says_so(case):
    C, bound, scheme = case
    X, b = C.T @ C, getattr(scheme, "separation", 0)
    lags = np.abs(np.subtract.outer(*[np.arange(len(C))] * 2))
    falls = (np.diff(C[:, 0]) <= 0).all() and all(len(set(np.diag(C, -j))) == 1 for j in range(len(C)))
    by_rule = {
        Cyclic: (C >= 0).all(), EveryStep: (C >= 0).all(), Single: True,
        MinSeparation: ((C >= 0).all() and falls) or (bound.func is banded_bound and not X[lags >= b].any())
    }  # fmt: skip
    if by_rule.get(type(scheme), False):
        truth = max(np.abs(X[np.ix_(p, p)]).sum() for p in listed(scheme))
        assert_allclose([bound(scheme).upper, bound(scheme).lower], truth, rtol=1e-12)


@given(40, data=st.data(), T=st.integers(2, 12), b=st.integers(1, 4))
def test_bands_up_to_twice_the_gap_are_a_chain(data, T, b):
    w = data.draw(st.integers(1, min(2 * b, T)))
    bands = data.draw(numbers(T * w, HALVES.map(abs))).reshape(T, w)
    C = sum(np.diag(bands[j:, j], -j) for j in range(w))
    scheme = MinSeparation(T, T, b)
    truth = max((C[:, p].sum(axis=1) ** 2).sum() for p in listed(scheme))
    bounded = banded_bound(BandedGram.from_rows(bands), scheme)
    assert_allclose([bounded.upper, bounded.lower], truth, rtol=1e-12)
    once = OncePerEpoch(-(-T // b), b)
    grown = np.pad(bands, ((0, once.num_steps - T), (0, 0)))
    if not (w > b + 1):  # links reach the epoch before alone
        C = np.pad(C, (0, once.num_steps - T))
        truth = max((C[:, p].sum(axis=1) ** 2).sum() for p in listed(once)) if once.num_patterns < 300 else None
        bounded = banded_bound(BandedGram.from_rows(grown), once)
        if truth is not None:
            assert_allclose(bounded.upper, truth, rtol=1e-12)


@given(40, data=st.data(), T=st.integers(2, 12), b=st.integers(1, 4), k=st.integers(1, 6))
def test_without_links_a_price_finds_the_best_pattern_of_few_uses(data, T, b, k):
    diagonal, scheme = data.draw(numbers(T, HALVES.map(abs))), MinSeparation(T, k, b)
    truth = max((diagonal[p] ** 2).sum() for p in scheme.patterns())
    bounded = banded_bound(BandedGram.from_rows(diagonal[:, None]), scheme)
    assert truth <= bounded.upper <= truth * (1 + 1e-5) + 1e-9


@given(40, data=st.data(), T=st.integers(2, 9), b=st.integers(1, 4), k=st.integers(1, 5))
def test_late_coefficients_count_where_uses_meet_them_alone(data, T, b, k):
    c = data.draw(numbers(T, HALVES.map(abs)))
    entries = np.correlate(c, c, "full")[T - 1 :]  # X[0, d]
    chosen = [p for m in range(k) for p in combinations(range(b, T), m) if (np.diff(p) >= b).all()]
    k = min(k, -(-T // b))
    seen = [max(entries[list(p)].sum() for p in chosen if len(p) <= m) for m in range(k)]
    most = sum((c[: T - i * b] ** 2).sum() for i in range(k)) + 2 * sum(seen)
    assert toeplitz_bound(exactly(c), MinSeparation(T, k, b)).upper <= most * (1 + 1e-9)


def test_errors_of_coefficients_count():
    rng = np.random.default_rng(0)
    c, errors = np.sort(rng.random(12))[::-1], np.full(12, 0.01)
    for scheme in (Cyclic(4, 3), MinSeparation(12, 3, 2), OncePerEpoch(4, 3), Single(12)):
        bounded = toeplitz_bound(Coefficients(c, errors), scheme)
        assert not bounded.exact
        for _ in range(20):
            C = np.tril(toeplitz(c + rng.choice([-0.01, 0.01], 12)))
            truth = max(np.abs((C.T @ C)[np.ix_(p, p)]).sum() for p in listed(scheme))
            assert bounded.lower <= truth <= bounded.upper
    assert toeplitz_bound(Coefficients(c, np.full(12, math.inf)), Single(12)).upper == math.inf


@pytest.mark.parametrize("T", [10**5])
def test_long_runs_take_arrays_of_the_size_of_their_structure(T):
    c = np.concatenate([[1.0], np.cumprod((2 * np.arange(1, T) - 1) / (2 * np.arange(1, T)))])
    bounded = toeplitz_bound(exactly(c), MinSeparation(T, 100, 1000))
    assert bounded.exact
    first = np.zeros(T)
    for start in range(0, T, 1000):
        first[start:] += c[: T - start]
    assert_allclose(bounded.upper, first @ first, rtol=1e-9)
    bands = np.broadcast_to(0.5 ** np.arange(20), (T, 20))
    assert_allclose(banded_bound(BandedGram.from_rows(bands), Cyclic(T // 20, 20)).upper, T / 20 * 4 / 3, rtol=1e-3)


@given(60, data=st.data(), T=st.integers(1, 12), b=st.integers(1, 4), k=st.integers(1, 6))
def test_prices_bound_what_a_table_of_steps_and_uses_finds(data, T, b, k):
    lam, record = data.draw(numbers(T, HALVES.map(abs))), Separated(T, k, b)
    exact, _ = record.heaviest(lam)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "MAX_TABLE", 0)
        priced, pattern = record.heaviest(lam)
    assert exact * (1 - 1e-12) <= priced <= exact * (1 + 1e-6) + 1e-9
    assert MinSeparation(T, k, b).allows(pattern)
    assert lam[list(pattern)].sum() <= exact


def test_uses_need_not_begin_at_the_first_multiples_of_the_gap():
    bounded = toeplitz_bound(exactly([1.0, 0.0, 2.0]), MinSeparation(3, 2, 1))
    assert 10 <= bounded.upper <= 10 * (1 + 1e-9)
    assert bounded.lower < 10


@pytest.mark.parametrize("width", [3, 12])
def test_the_sensitivity_of_an_inverse_is_never_that_of_what_substitution_leaves_of_it(width):
    T, series = 128, [0.7 * math.comb(width - 1, i) * 0.99**i for i in range(width)]
    N = [Fraction(x) for x in series]
    c: list[Fraction] = []
    for t in range(T):
        c.append(((t == 0) - sum(N[j] * c[t - j] for j in range(1, min(width, t + 1)))) / N[0])
    bounded = structured_bound(Inverse(Toeplitz(series, T)), Single(T))
    truth = sum(x * x for x in c)
    assert bounded.lower <= truth <= bounded.upper
    assert (bounded.upper < 1.001 * truth) == (width == 3)


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
    return np.array(exact.inverse([[Fraction(x) for x in row] for row in N]), dtype=float)


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


@each(
    "T, b, series", (3, 1, [0.5, 0, 0.25]), (12, 1, [1, 0] * 4 + [1]), (60, 5, [1, *[0] * 9, 0.9, *[0] * 9, 0.8]),
    (600, 5, [1, *[0] * 9, 0.9, *[0] * 9, 0.8])
)  # fmt: skip
def test_two_uses_of_a_column_with_gaps_meet(T, b, series):
    scheme, c = MinSeparation(T, 2, b), np.array(series)
    lags = np.correlate(c, c, "full")[len(c) - 1 :]
    truth = 2 * lags[0] + 2 * max(lags[b:], default=0) if 2 * len(c) <= T else None
    if truth is None:
        C = lower_triangular(np.tile(c, (T, 1)))
        truth = signed_sum_over_patterns(C.T @ C, itertools.combinations(range(T), 2))
    for encoder in (Banded(np.where(np.arange(len(c)) <= np.arange(T)[:, None], c, 0.0)), Toeplitz(c, T)):
        for method in ("exact", "certified"):
            bounded = structured_bound(encoder, scheme, method)
            assert truth <= bounded.upper <= truth * (1 + 1e-12)
            assert bounded.exact or method == "certified"


@given(400, data=st.data())
def test_never_below_all_patterns_and_signs(data):
    scheme = data.draw(schemes())
    encoder, C = data.draw(encoders(scheme.num_steps))
    attained = signed_sum_over_patterns(C.T @ C, [tuple(p) for p in scheme.patterns()])
    method = data.draw(st.sampled_from(["exact", "certified"]))
    bounded = structured_bound(encoder, scheme, method)
    assert bounded.upper >= attained * (1 - ROUNDING)
    assert scheme.allows(bounded.pattern)
    if bounded.exact:  # gradients of many coordinates may attain more than signs
        assert bounded.lower >= attained * (1 - 1e-5)


@given(300, data=st.data(), T=st.integers(1, 12), k=st.integers(1, 4))
def test_rules_of_bands_and_coefficients_alone_are_never_too_low(data, T, k):
    scheme = MinSeparation(T, k, data.draw(st.integers(1, T)))
    entries = GAPS if data.draw(st.booleans()) else GAPS.map(abs)
    patterns = [tuple(p) for p in scheme.patterns()]
    bands, series = bands_of(data.draw, T, entries), series_of(data.draw, T, entries)
    padded = np.pad(series, (0, T - len(series)))
    for C, bounded in (
        (lower_triangular(bands), banded_bound(BandedGram.from_rows(bands), scheme)),
        (
            lower_triangular(np.tile(series, (T, 1))),
            banded_bound(BandedGram.from_rows(np.tile(series, (T, 1))), scheme),
        ),
        (lower_triangular(np.tile(series, (T, 1))), toeplitz_bound(Coefficients(padded, np.zeros(T)), scheme)),
    ):
        assert bounded.lower <= signed_sum_over_patterns(C.T @ C, patterns) <= bounded.upper


@given(200, data=st.data(), T=st.integers(2, 12), k=st.integers(1, 5), separation=st.integers(1, 12))
def test_few_uses_are_counted_and_not_priced(data, T, k, separation):
    b = min(separation, T)
    bands = bands_of(data.draw, T, GAPS if k <= 2 else GAPS.map(abs))
    bands = bands if k <= 2 else bands[:, : 2 * b]
    scheme, C = MinSeparation(T, k, b), lower_triangular(bands)
    truth = signed_sum_over_patterns(C.T @ C, [tuple(p) for p in scheme.patterns()])
    bounded = banded_bound(BandedGram.from_rows(bands), scheme)
    assert_allclose([bounded.upper, bounded.lower], truth, rtol=1e-12)
    assert bounded.upper >= truth
    assert bounded.exact


@given(150, data=st.data(), T=st.integers(1, 10), gap=st.integers(1, 5), uses=st.integers(1, 5), counted=st.booleans())
def test_chains_are_never_below_the_heaviest_steps_and_links(data, T, gap, uses, counted):
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
    weights, linked = np.ones(6), [np.zeros(6), np.array([0, 0, 100.0, 100, 100, 100])]
    for table in (10**7, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chains, "MAX_TABLE", table)
            upper, steps = chains.at_most(2, weights, linked, 1)
        assert 102 <= upper <= 153  # the best three steps at their price
        assert steps == (0, 2) or table == 0
