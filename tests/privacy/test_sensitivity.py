"""Sensitivity: never below brute force, ascent or exact rational arithmetic; exact where it says so."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from _guarantees import sensitivity_of_gram, worst_sensitivity
from exact import inverse
from numpy.testing import assert_allclose
from vocabulary import example, given, refuses, st

from mfdl import Cyclic, Dynamics, EveryStep, algorithms, gossip, trust
from mfdl.factorization import square_root_encoder
from mfdl.noise import LocalNoise
from mfdl.participation import Single
from mfdl.privacy.forms import ViewGram, view_gram
from mfdl.testing import NAMES, build_algorithm, integer_encoders, participations, random_encoder
from mfdl.testing.oracles import ascended_value, largest_signed_sum, rational

DYN = Dynamics(gossip.uniform("star:n=3"), 0.5)
LDP = trust.LDP()


def sensitivity(encoder, participation):
    return worst_sensitivity(algorithms.mf_dsgd(DYN, participation, encoder), LDP)


def exact_gram(X):
    return ViewGram(np.asarray(X, dtype=float), np.zeros(np.shape(X)))


def brute_force_squared(X, participation):
    """Oracle for scalar gradients, whose maximum sits at a corner: every pattern, every sign."""
    return max(largest_signed_sum(X[np.ix_(steps, steps)]) for steps in participation.patterns())


def ascended_squared(X, participation):
    """A value attained by vectors in R^k, k = |pi|."""
    parts = [X[np.ix_(steps, steps)] for steps in participation.patterns()]
    return max(ascended_value(part, dimension=len(part), starts=3, rounds=30) for part in parts)


def exact_squared(encoder, participation):
    """The corner maximum for a lower-triangular encoder of Fractions, without any rounding."""
    best = Fraction(0)
    for steps in participation.patterns():
        for signs in itertools.product((-1, 1), repeat=len(steps)):
            moved = [sum(s * row[t] for s, t in zip(signs, steps, strict=True)) for row in encoder]
            best = max(best, sum((x * x for x in moved), Fraction(0)))
    return best


@st.composite
def cases(draw, max_steps=7):
    T = draw(st.integers(1, max_steps))
    seed = draw(st.integers(0, 2**32 - 1))
    kind = draw(st.sampled_from(["mixed", "mixed", "non-negative", "increasing", "alternating"]))
    C = random_encoder(np.random.default_rng(seed), T)
    if kind == "non-negative":
        C = np.abs(C)
    elif kind == "increasing":  # increasing Toeplitz coefficients
        lag = np.subtract.outer(np.arange(T), np.arange(T))
        C = np.where(lag >= 0, 1.0 + lag, 0.0)
    elif kind == "alternating":
        C = np.tri(T) * (-1.0) ** np.add.outer(np.arange(T), np.arange(T))
    return C, draw(participations(num_steps=T))


@given(200, case=cases())
def test_never_below_the_true_value_and_exact_when_it_says_so(case):
    C, part = case
    X = C.T @ C
    answer = sensitivity(C, part)
    truth = brute_force_squared(X, part)
    # The oracle itself rounds, at most at 1e-13 relative for T <= 7.
    assert answer.squared >= truth * (1 - 1e-13)
    reached = ascended_squared(X, part)
    assert answer.squared >= reached * (1 - 1e-13)
    assert answer.value**2 >= answer.squared * (1 - 1e-15)
    steps = np.ix_(answer.pattern, answer.pattern)
    assert tuple(answer.pattern) in {tuple(p.tolist()) for p in part.patterns()}
    assert answer.squared <= np.abs(X[steps]).sum() * (1 + 1e-12)
    assert answer.squared <= len(answer.pattern) * np.linalg.eigvalsh(X[steps])[-1] * (1 + 1e-12)
    if answer.exact:  # ascent stops within 1e-4 of the maximum over vectors
        assert answer.squared <= max(truth, reached) * (1 + 1e-4)
        assert answer.tolerance < 1e-4
    if (X >= 0).all():
        assert answer.exact
        assert_allclose(answer.squared, truth, rtol=1e-12)


@given(100, case=cases(), data=st.data())
def test_exact_when_the_gram_is_non_negative_up_to_signs(case, data):
    C, part = case
    T = len(C)
    signs = np.array(data.draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=T, max_size=T)))
    X = np.abs(C).T @ np.abs(C) * np.outer(signs, signs)
    sensitivity = sensitivity_of_gram(exact_gram(X), part)
    assert sensitivity.exact
    assert_allclose(sensitivity.squared, brute_force_squared(X, part), rtol=1e-12)


SEEDS, SCALES = st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e-8, 1e8])
REAL_ENCODERS = st.builds(lambda seed, scale: scale * random_encoder(np.random.default_rng(seed), 6), SEEDS, SCALES)


@given(200, encoder=st.one_of(integer_encoders(max_steps=6), REAL_ENCODERS), data=st.data())
@example(encoder=np.array([[1.0, 0.0], [3.0, 1.0]]), data=None)
def test_the_float_bound_is_never_below_the_exact_rational_value(encoder, data):
    part = EveryStep(2) if data is None else data.draw(participations(num_steps=len(encoder)))
    algorithm = algorithms.mf_dsgd(DYN, part, encoder)
    sensitivity = worst_sensitivity(algorithm, LDP)
    # Of the encoder as written, and of the noise really injected, whose C^-1 is rounded to floats.
    assert Fraction(sensitivity.squared) >= exact_squared(rational(encoder), part)
    injected = exact_squared(inverse(rational(algorithm.noise.inverse)), part)
    assert Fraction(sensitivity.squared) >= injected
    assert Fraction(sensitivity.value) ** 2 >= injected


@pytest.mark.parametrize("growth", [3, 10, 1e3, 1e6, -10])
@pytest.mark.parametrize("T", [4, 8, 14, 20])
def test_an_ill_conditioned_encoder_has_the_loss_of_the_noise_it_makes(T, growth):
    """1 on the diagonal, `growth` below: C^-1 has entries growth^(T-1), beyond what floats resolve."""
    C = np.eye(T) + growth * (np.eye(T, k=-1) + np.eye(T, k=-2))
    part = Cyclic(2, T // 2)
    algorithm = algorithms.mf_dsgd(DYN, part, C)
    sensitivity = worst_sensitivity(algorithm, LDP)
    truth = exact_squared(inverse(rational(algorithm.noise.inverse)), part)
    assert truth <= Fraction(sensitivity.squared) <= truth * (1 + Fraction(1, 10**5))


@pytest.mark.parametrize("growth", [100, 700, 1000])
def test_the_noise_injected_may_protect_less_than_its_encoder_says(growth):
    """At condition numbers of 1e9 to 1e13 the rounded C^-1 is another mechanism, more sensitive by up to 5e-7.

    Which way rounding goes depends on the processor, so the first case that goes the wrong way is looked for.
    """
    part = Cyclic(2, 3)
    for seed in range(40):
        C = np.eye(6) + growth * np.tril(np.random.default_rng(seed).uniform(-1, 1, (6, 6)), -1)
        algorithm = algorithms.mf_dsgd(DYN, part, C)
        injected = exact_squared(inverse(rational(algorithm.noise.inverse)), part)
        assert Fraction(worst_sensitivity(algorithm, LDP).squared) >= injected
        if injected > exact_squared(rational(C), part) * (1 + Fraction(1, 10**11)):
            return
    pytest.fail("no encoder whose injected noise protects less; the test shows nothing")


def test_the_eigenvalue_bound_is_used_where_it_is_smaller():
    """Three vectors at 120 degrees: rows of |X| sum to 2, lambda_max is 1.5; the truth in R^2 is 4.5."""
    X = np.array([[1, -0.5, -0.5], [-0.5, 1, -0.5], [-0.5, -0.5, 1]])
    sensitivity = sensitivity_of_gram(exact_gram(X), EveryStep(3))
    assert_allclose(sensitivity.squared, 4.5, rtol=1e-13)
    assert sensitivity.squared >= 4.5
    assert_allclose(ascended_squared(X, EveryStep(3)), 4.5, rtol=1e-9)
    assert_allclose(brute_force_squared(X, EveryStep(3)), 4.0)  # scalar gradients miss it


@given(60, seed=st.integers(0, 2**32 - 1), k=st.integers(2, 6))
def test_vector_gradients_may_exceed_every_sign_pattern_but_never_the_bound(seed, k):
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((k, rng.integers(2, k + 1)))
    X = V @ V.T
    part = EveryStep(k)
    sensitivity = sensitivity_of_gram(exact_gram(X), part)
    reached = ascended_squared(X, part)
    assert sensitivity.squared >= reached * (1 - 1e-13)
    directions = np.linalg.qr(rng.standard_normal((k, k)))[0]  # orthogonal contributions
    assert sensitivity.squared >= np.sum(X * (directions @ directions.T)) * (1 - 1e-13)


@pytest.mark.parametrize(("k", "b"), [(1, 1), (1, 5), (3, 2), (20, 16)])
def test_closed_forms(k, b):
    part = Cyclic(k, b)
    identity = worst_sensitivity(algorithms.dp_dsgd(DYN, part), LDP)
    assert_allclose(identity.squared, k, rtol=1e-13)
    assert identity.exact
    # The slack for rounding grows with T: 1e-12 relative for the identity at T = 320, 3e-11 for Anti-PGD.
    assert_allclose(sensitivity(np.eye(k * b), part).squared, k, rtol=1e-11)
    anti = worst_sensitivity(algorithms.anti_pgd(DYN, part), LDP)
    value = b * k * (k + 1) * (2 * k + 1) / 6
    assert value <= anti.squared <= value * (1 + 1e-10)
    assert anti.exact
    assert anti.pattern == tuple(range(0, k * b, b))  # the record of the first step


@pytest.mark.parametrize("other", [Cyclic(1, 3), Cyclic(4, 3), Single(5), EveryStep(7)])
def test_a_participation_of_another_length_is_refused(other):
    """Fewer steps would leave out steps that a record can join: an understated sensitivity."""
    refuses("participation must have", lambda: worst_sensitivity(algorithms.dp_dsgd(DYN, Cyclic(2, 3)), LDP, other))


def test_the_tolerance_covers_what_was_added():
    C = np.eye(72) + 1.4 * np.eye(72, k=-1)  # more steps than are computed in intervals
    noise = LocalNoise(C, 3)
    answer = sensitivity(C, Cyclic(2, 36))
    plain = np.abs(C.T @ C)[::36, ::36].sum()
    assert np.linalg.cond(noise.encoder.array) > 1e9
    assert answer.squared > plain
    assert_allclose(answer.squared, answer.lower * (1 + answer.tolerance), rtol=1e-12)
    assert answer.lower < plain * (1 - answer.tolerance / 4)  # what the rounding of C^-1 may take away is left out
    assert not answer.exact  # and is more than an exact value may lack


@pytest.mark.parametrize(("k", "b"), [(3, 4), (5, 2)])
def test_a_band_no_wider_than_the_period_has_no_cross_terms(k, b):
    C = square_root_encoder(k * b, b)
    column = np.sum((C**2).sum(axis=0)[0::b])  # squared column norms of the first pattern, none cut off but the last
    squared_sensitivity = sensitivity(C, Cyclic(k, b))
    assert_allclose(squared_sensitivity.squared, max(np.sum((C**2).sum(axis=0)[r::b]) for r in range(b)), rtol=1e-13)
    assert_allclose(squared_sensitivity.squared, column, rtol=1e-13)
    assert squared_sensitivity.exact
    wider = square_root_encoder(k * b, b + 1)
    assert sensitivity(wider, Cyclic(k, b)).squared > np.sum((wider**2).sum(axis=0)[0::b]) * 1.01


def test_the_worst_node_decides():
    C_u = np.stack([np.eye(4), 3 * np.eye(4), 2 * np.eye(4)])
    squared_sensitivity = sensitivity(C_u, Cyclic(2, 2))
    assert squared_sensitivity.node == 1
    assert_allclose(squared_sensitivity.squared, 18, rtol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_the_sensitivity_of_every_builder(name):
    part = Cyclic(2, 3)
    algorithm = build_algorithm(name, DYN, part)
    sensitivity = worst_sensitivity(algorithm, LDP)
    if name == "none":
        assert (sensitivity.squared, sensitivity.value) == (math.inf, math.inf)
        return
    grams = [view_gram(algorithm, LDP, u).matrix for u in range(3)]
    truth = max(brute_force_squared(X, part) for X in grams)
    assert_allclose(sensitivity.squared, truth, rtol=1e-12)
    assert sensitivity.exact
    if name in ("d-mf", "mafalda", "mafalda-l"):
        assert_allclose(sensitivity.squared, 1, rtol=1e-9)
