"""Bounds over participation patterns: enumerated ones are exact, one lam for all patterns never falls below."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from hypothesis import settings
from last_bits import nudged
from numpy.testing import assert_allclose
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st, unsupported

from mfdl import Cyclic, EveryStep, InvalidInput, MinSeparation, Privacy, algorithms, calibrate, trust
from mfdl.factorization import FactorizationProblem, solve_problem
from mfdl.factorization.encoders import Toeplitz
from mfdl.factorization.temporal import prefix_sum_gram
from mfdl.participation import Explicit, OncePerEpoch, Participation, PatternSet
from mfdl.sensitivity import patterns as pattern_bounds
from mfdl.sensitivity.encoder_bounds import BandedGram, banded_bound, structured_bound
from mfdl.sensitivity.patterns import bound, bounds, diagonal_bounds
from mfdl.testing import (
    ALL_SCHEMES,
    elliptope_reference,
    largest_over_patterns,
    largest_signed_sum,
    once_per_epoch_patterns,
    participations,
    separated_patterns,
)

SOLVER = 2e-6  # relative accuracy of the reference solver


@pytest.fixture
def without_enumeration(monkeypatch):
    monkeypatch.setattr(pattern_bounds, "MAX_ENUMERATED", 0)


@st.composite
def spread_schemes(draw):
    """(a scheme with many overlapping patterns, its patterns listed independently)."""
    if draw(st.booleans()):
        k, b = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        return OncePerEpoch(k, b), once_per_epoch_patterns(k, b)
    T, k, b = draw(st.integers(1, 7)), draw(st.integers(1, 4)), draw(st.integers(1, 8))
    return MinSeparation(T, k, b), separated_patterns(T, k, b)


@st.composite
def cases(draw):
    scheme, patterns = draw(spread_schemes())
    T = scheme.num_steps
    rows = draw(st.integers(1, T))
    C = np.array(draw(st.lists(st.integers(-3, 3), min_size=rows * T, max_size=rows * T))).reshape(rows, T)
    return scheme, patterns, C


def gram(C):
    return (C.T @ C).astype(float)


def random_gram(T, seed):
    C = np.tril(np.random.default_rng(seed).standard_normal((T, T)))
    return C.T @ C


@given(25, case=cases())
def test_enumerated_is_exact_against_a_program_for_every_pattern(case):
    scheme, patterns, C = case
    X = gram(C)
    truth, bounded = largest_over_patterns(X, patterns), bound(X, scheme)
    assert bounded.exact
    assert_allclose([bounded.upper, bounded.lower], truth, rtol=SOLVER, atol=SOLVER)
    assert bounded.pattern in patterns
    assert bound(X, scheme, "certified").upper >= bounded.lower


@settings(max_examples=25, deadline=None, suppress_health_check=[])
@given(case=cases(), method=st.sampled_from(["exact", "certified"]))
def test_one_lam_for_all_patterns_never_falls_below_the_rational_truth(case, method):
    scheme, patterns, C = case
    X = C.T.astype(object) @ C.astype(object)
    over_signs = max(largest_signed_sum(X[np.ix_(p, p)].tolist()) for p in patterns)
    record = scheme.patterns_of_record()
    upper, lower, pattern = pattern_bounds._by_one_dual(gram(C), np.zeros(X.shape), record, method, 1e-6)
    assert Fraction(upper) >= over_signs
    truth = bound(gram(C), scheme)
    assert upper >= truth.lower
    assert lower <= truth.upper
    assert any(set(pattern) <= set(other) for other in patterns)
    assert lower <= elliptope_reference(gram(C)[np.ix_(pattern, pattern)]) * (1 + SOLVER) + SOLVER


@given(60, scheme=spread_schemes(), data=st.data())
def test_the_heaviest_pattern_is_the_heaviest_listed_one(scheme, data):
    scheme, patterns = scheme
    T = scheme.num_steps
    lam = np.array(data.draw(st.lists(st.integers(0, 9), min_size=T, max_size=T)), dtype=float)
    record = scheme.patterns_of_record()
    value, pattern = record.heaviest(lam)
    heaviest = max(lam[list(p)].sum() for p in patterns)
    assert heaviest <= value <= heaviest * (1 + 1e-13)
    assert lam[list(pattern)].sum() == heaviest  # of integers: exact
    assert any(set(pattern) <= set(other) for other in patterns)
    free = record.free()
    together = {(s, t) for p in patterns for s in p for t in p}
    assert not any(free[s, t] for s, t in together)
    assert not free.diagonal().any()
    # smooth version: an upper bound with the gradient of its own differences
    log_sum, share = record.log_sum(lam / 4)
    assert log_sum >= heaviest / 4 - 1e-12
    step = 1e-6
    for t in range(T):
        nudge = step * np.eye(T)[t]
        slope = (record.log_sum(lam / 4 + nudge)[0] - record.log_sum(lam / 4 - nudge)[0]) / (2 * step)
        assert_allclose(share[t], slope, atol=1e-7)
    for other in record.neighbours(patterns[0]):
        assert any(set(other) <= set(listed) for listed in patterns)


@pytest.mark.parametrize("scheme", [MinSeparation(12, 3, 3), OncePerEpoch(3, 4), MinSeparation(24, 4, 5)])
@pytest.mark.parametrize("kind", ["random", "positive", "square-root"])
def test_without_enumeration_the_bounds_enclose_and_come_close(without_enumeration, monkeypatch, scheme, kind):
    T = scheme.num_steps
    X = random_gram(T, 3)
    if kind != "random":
        C = np.tril(np.abs(random_gram(T, 4))) if kind == "positive" else np.tril(toeplitz_square_root(T))
        X = C.T @ C
    loose, tight = bound(X, scheme, "certified"), bound(X, scheme)
    monkeypatch.setattr(pattern_bounds, "MAX_ENUMERATED", 10**6)
    truth = bound(X, scheme)
    assert truth.exact
    assert truth.lower <= tight.upper <= loose.upper
    assert max(tight.lower, loose.lower) <= truth.upper
    assert tight.upper <= 1.15 * truth.upper  # what one lam for all patterns can lose here
    assert loose.upper <= 1.4 * truth.upper
    assert tight.lower >= 0.95 * truth.lower


def toeplitz_square_root(T):
    coefficients = np.cumprod([1.0, *[(2 * i - 1) / (2 * i) for i in range(1, T)]])
    return np.array([[coefficients[abs(s - t)] for s in range(T)] for t in range(T)])


@given(80, scheme=spread_schemes(), kind=st.sampled_from(["spread", "cyclic", "every", "explicit"]), data=st.data())
def test_a_diagonal_gram_is_worth_its_heaviest_pattern(scheme, kind, data):
    part, patterns = scheme
    T = part.num_steps
    if kind == "cyclic":
        part, patterns = Cyclic(2, T), [(r, r + T) for r in range(T)]
    elif kind == "every":
        part, patterns = EveryStep(T), [tuple(range(T))]
    elif kind == "explicit":
        part, patterns = Explicit([[0], [T - 1]], T), [(0,), (T - 1,)]
    T = part.num_steps
    x = np.array(data.draw(st.lists(st.floats(0, 1e3), min_size=T, max_size=T)))
    error = np.array(data.draw(st.lists(st.sampled_from([0.0, 1e-9, 0.5]), min_size=T, max_size=T)))
    plain = diagonal_bounds(x[None], part, np.zeros((1, T)))
    slack = diagonal_bounds(x[None], part, error[None])
    heaviest = max(sum(Fraction(float(x[t])) for t in pattern) for pattern in patterns)
    with_errors = max(sum(Fraction(float(x[t])) + Fraction(float(error[t])) for t in pattern) for pattern in patterns)
    assert Fraction(float(plain.lower[0])) <= heaviest <= Fraction(float(plain.upper[0]))
    assert plain.exact[0]
    assert_allclose(plain.upper[0], float(heaviest), rtol=1e-12)
    assert Fraction(float(slack.upper[0])) >= with_errors
    assert Fraction(float(slack.lower[0])) <= heaviest
    used = set(plain.patterns[0])  # of steps that count: a part of some listed pattern is as good
    assert any(used <= set(pattern) for pattern in patterns)


def test_reshuffled_epochs_move_more_than_fixed_ones():
    cyclic = Cyclic(4, 8)
    X = solve_problem(FactorizationProblem(prefix_sum_gram(32), cyclic.classes())).gram
    fixed, shuffled, apart = bound(X, cyclic), bound(X, OncePerEpoch(4, 8)), bound(X, MinSeparation(32, 4, 8))
    assert_allclose(fixed.upper, 1, rtol=1e-6)
    assert shuffled.exact
    assert_allclose(shuffled.upper, 1.58, atol=0.01)
    assert shuffled.pattern == (7, 8, 23, 24)  # last step of one epoch, first of the next; all others have 1.6 % less
    assert 1.1 < apart.upper < shuffled.upper


@pytest.mark.parametrize("method", ["exact", "certified"])
def test_a_batch_is_its_victims_one_by_one(method):
    X = np.stack([random_gram(6, seed) for seed in range(5)])
    for scheme in (Cyclic(2, 3), Explicit([[0, 1, 2], [3, 5], [4]], 6), MinSeparation(6, 2, 2)):
        together = bounds(X, scheme, method)
        for v in range(5):
            alone = bound(X[v], scheme, method)
            assert_allclose(together[v].upper, alone.upper, rtol=1e-9)
            assert_allclose(together[v].lower, alone.lower, rtol=1e-9)
            assert together[v].pattern == alone.pattern
        assert bounds(X[:0], scheme, method).upper.shape == (0,)


@st.composite
def schemes_of_six(draw):
    listed = [[0, 1, 2], [3, 4], [4, 5], [3, 4, 5]]
    return draw(st.sampled_from([Cyclic(2, 3), OncePerEpoch(2, 3), MinSeparation(6, 2, 2), Explicit(listed, 6)]))


@given(
    40, scheme=schemes_of_six(), lags=st.lists(st.integers(-3, 3), min_size=5, max_size=5),
    method=st.sampled_from(["exact", "certified"]), seed=st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_of_patterns_that_show_the_same_the_last_bits_choose_none(scheme, lags, method, seed):
    X = scipy.linalg.toeplitz([20.0, *lags])
    assert bound(nudged(X, seed), scheme, method).pattern == bound(X, scheme, method).pattern
    x, none = np.abs(X[:1]), np.zeros((1, 6))
    size = 1e-14 if isinstance(scheme, MinSeparation) else 1e-12
    assert diagonal_bounds(nudged(x, seed, size), scheme, none).patterns == diagonal_bounds(x, scheme, none).patterns


@given(20, seed=st.integers(0, 2**32 - 1))
def test_of_classes_and_blocks_of_equal_bands_the_first_ones_are_named(seed):
    bands = np.tile([1.0, 0.5, 0.25], (12, 1))
    bands[-3:] = 0.0
    for scheme, pattern in (
        (Cyclic(2, 6), (0, 6)), (OncePerEpoch(2, 6), (5, 6)), (Explicit([[0], [1], [2, 5], [3, 6]], 12), (2, 5))
    ):  # fmt: skip
        assert banded_bound(BandedGram.from_rows(nudged(bands, seed)), scheme).pattern == pattern


@pytest.mark.parametrize("method", ["exact", "certified"])
def test_entry_error_is_added_in_full(without_enumeration, method):
    X = random_gram(6, 1)
    for scheme in (MinSeparation(6, 2, 3), OncePerEpoch(2, 3), Cyclic(2, 3)):
        bounded = bound(X - 0.01 * np.eye(6), scheme, method, np.full((6, 6), 0.0101))
        truth = bound(X, scheme)
        assert bounded.upper >= truth.lower
        assert bounded.lower <= truth.upper


def test_a_lopsided_entry_error_counts_as_its_mean(without_enumeration):
    truth = np.diag([0.0, 0.0, 0.0, 1.0])
    truth[0, 3] = truth[3, 0] = 0.5
    seen, error = np.diag([0.0, 0.0, 0.0, 1.0]), np.zeros((4, 4))
    error[0, 3] = 1.0  # the form moves by up to 2 * 0.5 on {0, 3}, whichever of the two entries carries it
    for scheme in (MinSeparation(4, 2, 3), OncePerEpoch(2, 2)):
        assert bound(seen, scheme, entry_error=error).upper >= elliptope_reference(truth) - 1e-6


def test_infinite_and_zero_grams(without_enumeration):
    X = np.zeros((6, 6))
    for scheme in (MinSeparation(6, 2, 3), OncePerEpoch(2, 3), EveryStep(6)):
        bounded = bound(X, scheme)
        assert bounded.upper == bounded.lower == 0
        assert bounded.exact
        leak = X.copy()
        leak[4, 4] = math.inf
        bounded = bound(leak, scheme)
        assert bounded.upper == bounded.lower == math.inf
        assert 4 in bounded.pattern
        assert bounded.exact


def test_extreme_scales_neither_overflow_nor_vanish(without_enumeration):
    X, scheme = random_gram(6, 2), MinSeparation(6, 2, 3)
    plain = bound(X, scheme)
    for exponent in (-900, 900):
        scaled = bound(np.ldexp(X, exponent), scheme)
        assert_allclose(math.ldexp(scaled.upper, -exponent), plain.upper, rtol=1e-9)


@each(
    "call, message",
    (lambda: bound(np.eye(3), EveryStep(4)), "participation must have the mechanism's 3 steps, got 4"),
    (lambda: bound(np.eye(3), EveryStep(3), "best"), "method must be one of exact, certified, got 'best'"),
    (lambda: bound(np.full((3, 3), math.nan), EveryStep(3)), r"must not be nan, got nan at index \(0, 0, 0\)"),
    (lambda: bound(np.eye(3)[None], EveryStep(3)), r"gram must have shape \(T, T\)"),
    (lambda: bounds(np.eye(3), EveryStep(3)), r"grams must have shape \(V, T, T\)"),
    (lambda: bound(np.eye(3), EveryStep(3), entry_error=-np.eye(3)), "entry_error must be >= 0"),
)
def test_bad_input_is_refused(call, message):
    refuses(message, call)


ONE_LAM = 1.5  # what one lam for all patterns may lose on these


@dataclasses.dataclass(frozen=True)
class HeaviestAlone(PatternSet):
    known: PatternSet

    def heaviest(self, weights):
        return self.known.heaviest(weights)


@dataclasses.dataclass(frozen=True)
class Mine(Participation):
    known: Participation
    scheme = "mine"

    @property
    def num_steps(self):
        return self.known.num_steps

    def patterns_of_record(self):
        record = self.known.patterns_of_record()
        return HeaviestAlone(record.num_steps, record.uses, record.gap, record)

    def describe(self):
        return f"my {self.known.describe()}"

    def to_dict(self):
        return {"scheme": self.scheme, **self.known.to_dict()}


SCHEMES = participations(max_steps=6, schemes=ALL_SCHEMES)


@given(20, scheme=SCHEMES, data=st.data(), method=st.sampled_from(["exact", "certified"]))
def test_arrays_are_bounded_by_the_heaviest_pattern(scheme, data, method):
    T, patterns = scheme.num_steps, [tuple(pattern.tolist()) for pattern in scheme.patterns()]
    C = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=T * T, max_size=T * T))).reshape(T, T)
    truth = largest_over_patterns((C.T @ C).astype(float), patterns)
    bounded = bound(C.T @ C, Mine(scheme), method)
    assert bounded.upper >= truth * (1 - SOLVER)
    assert bounded.lower <= truth * (1 + SOLVER) + SOLVER
    assert scheme.allows(bounded.pattern)


@given(30, scheme=SCHEMES, data=st.data())
def test_diagonals_and_what_is_allowed_need_no_more(scheme, data):
    T = scheme.num_steps
    weights = np.array(data.draw(st.lists(st.floats(0, 9), min_size=T, max_size=T)))[None]
    alone, known = (diagonal_bounds(weights, each, np.zeros((1, T))) for each in (Mine(scheme), scheme))
    assert alone.upper[0] == pytest.approx(known.upper[0], rel=1e-12)
    assert alone.upper[0] >= known.lower[0]
    steps = data.draw(st.lists(st.integers(0, T), max_size=3, unique=True))
    if Mine(scheme).allows(steps):
        assert scheme.allows(steps)


@pytest.mark.parametrize("scheme", [Cyclic(3, 4), MinSeparation(12, 3, 3), OncePerEpoch(3, 4)])
def test_encoders_with_structure_get_the_bound_of_the_array(scheme):
    encoder = Toeplitz(0.7 ** np.arange(12), 12)
    alone, known = (structured_bound(encoder, each) for each in (Mine(scheme), scheme))
    assert known.lower <= alone.upper <= ONE_LAM * known.upper


@pytest.mark.parametrize("scheme", [Cyclic(2, 3), MinSeparation(6, 2, 2)])
def test_it_is_calibrated_and_trained_by_hand_but_not_by_the_executor(scheme):
    ring = dynamics_on("ring:n=4")
    circumstances = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}
    mine, known = (
        calibrate(algorithms.bsr(ring, each, bandwidth=3), Privacy(**circumstances), mu=1.0)
        for each in (Mine(scheme), scheme)
    )
    assert known.noise_std * (1 - 1e-9) <= mine.noise_std <= ONE_LAM * known.noise_std
    assert mine.algorithm.participation.fed_every is None
    assert mine.algorithm.participation.allows([0, 3])


def test_what_takes_the_patterns_themselves_is_refused():
    mine = Mine(OncePerEpoch(2, 2))
    unsupported("my participation once per epoch.*only", mine.patterns)
    unsupported("not listed", mine.classes)
    with pytest.raises(InvalidInput, match="unit 'user' needs participation in every step"):
        calibrate(
            algorithms.dp_dsgd(dynamics_on("ring:n=4"), mine), Privacy(trust.LDP(), unit="user", **ZERO_OUT), mu=1.0
        )
