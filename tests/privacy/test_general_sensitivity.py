"""sens_Pi(C; B) against rational arithmetic that shares nothing with it: never too low, whatever ranks and scales."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from _scaled import integers, scales
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from scipy.sparse.linalg import aslinearoperator

import mfdl
from mfdl.errors import UnsupportedMechanism
from mfdl.participation import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, ParticipationByNode, Single
from mfdl.privacy.forms import dense_form as rational_form
from mfdl.testing.oracles import exact_leaks, exact_view_gram, largest_signed_sum, rational

SCHEMES = (EveryStep(2), Single(2), Explicit([[1]], 2), Cyclic(1, 2), Cyclic(2, 1))


@st.composite
def factors(draw):
    """(C, B, number of nodes) over two steps, B often of deficient rank; rows of B and both sides of C are scaled."""
    n, p, m = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rank = draw(st.integers(0, min(p, m)))
    B = integers(draw, m, rank) @ integers(draw, rank, p)
    C = integers(draw, p, 2 * n)
    if draw(st.booleans()):
        B, C = B * scales(draw, m)[:, None], C * scales(draw, 2 * n)
    return C, B, n


def product(B, C):
    return [
        [
            sum((Fraction(b) * Fraction(c) for b, c in zip(row, column, strict=True)), Fraction(0))
            for column in C.T.tolist()
        ]
        for row in B.tolist()
    ]


def truth(A, B, patterns, n):
    """The largest sensitivity of any node, squared: gradients of two steps are best along one line."""
    X = exact_view_gram(A, B)
    return max(
        largest_signed_sum([[X[s * n + u][t * n + u] for t in pattern] for s in pattern])
        for u in range(n)
        for pattern in patterns
    )


@examples(600)
@given(case=factors(), scheme=st.sampled_from(SCHEMES), small=st.booleans())
def test_is_never_below_the_rational_truth_and_exact_where_it_says_so(case, scheme, small):
    C, B, n = case
    exact = truth(product(B, C), rational(B), list(scheme.patterns()), n)
    with pytest.MonkeyPatch.context() as patched:
        if not small:
            patched.setattr(rational_form, "MAX_RATIONAL_ENTRIES", -1)
        answer = mfdl.privacy.general_sensitivity(C, B, scheme, num_nodes=n)
    assert Fraction(answer.squared) >= exact >= Fraction(answer.lower)
    assert Fraction(answer.value) ** 2 >= exact
    if small:
        assert answer.exact
    if answer.exact:
        assert answer.squared <= float(exact) * (1 + 2e-6)


@examples(100)
@given(case=factors())
def test_is_the_sensitivity_of_the_view_that_it_factors(case):
    C, B, n = case
    A = np.array(product(B, C), dtype=object)
    answer = mfdl.privacy.general_sensitivity(C, B, EveryStep(2), num_nodes=n)
    losses = mfdl.privacy.view_losses(mfdl.View(A, B, num_nodes=n), EveryStep(2))
    largest = max((loss.non_adaptive_sensitivity for loss in losses), key=lambda sensitivity: sensitivity.squared)
    # upper bounds both, each with the rounding that it states
    assert answer.lower <= largest.squared
    assert largest.lower <= answer.squared == pytest.approx(largest.squared, rel=2e-6)
    checked = mfdl.privacy.general_sensitivity(C, B, EveryStep(2), num_nodes=n, workload=A)
    assert checked.squared == pytest.approx(answer.squared, rel=1e-9)


@examples(100)
@given(case=factors(), data=st.data())
def test_is_infinite_just_where_no_c_gives_the_workload(case, data):
    """Columns of A outside the range of B: infinite for records of that step, whatever C is there."""
    C, B, n = case
    A = np.array(product(B, C), dtype=object)
    row, column = data.draw(st.integers(0, len(B) - 1)), data.draw(st.integers(0, 2 * n - 1))
    A[row, column] += 1
    outside = exact_leaks(A.tolist(), rational(B))[column]
    scheme = Explicit([[column // n]], 2)
    if outside:
        answer = mfdl.privacy.general_sensitivity(C, B, scheme, num_nodes=n, workload=A)
        assert answer.squared == answer.lower == math.inf
        assert f"step {column // n} without noise" in answer.why
        other = mfdl.privacy.general_sensitivity(C, B, Explicit([[1 - column // n]], 2), num_nodes=n, workload=A)
        assert other.squared < math.inf
    elif np.abs((B @ C)[row, column]) < 1e8:
        refuses("C must give workload = B C", mfdl.privacy.general_sensitivity, C, B, scheme, num_nodes=n, workload=A)


def test_encoders_with_all_noise_seen():
    """Anti-PGD, k = T = 6: the sum of the squares to 36; once in each epoch of a (2, 3)-participation."""
    prefix = np.tril(np.ones((6, 6)))
    every = mfdl.privacy.general_sensitivity(prefix, np.eye(6), EveryStep(6))
    assert every.squared == pytest.approx(91, rel=1e-6)
    for scheme in (Cyclic(2, 3), MinSeparation(6, 2, 3), OncePerEpoch(2, 3)):
        answer = mfdl.privacy.general_sensitivity(prefix, np.eye(6), scheme)
        gram = prefix.T @ prefix
        expected = max(gram[np.ix_(pattern, pattern)].sum() for pattern in scheme.patterns())
        assert answer.squared == pytest.approx(expected, rel=1e-6)
    assert mfdl.privacy.general_sensitivity(prefix, np.zeros((2, 6)), EveryStep(6)).squared == 0  # nothing is seen
    many = np.kron(prefix, np.eye(3))
    by_node = ParticipationByNode([Single(6), EveryStep(6), Single(6)])
    answer = mfdl.privacy.general_sensitivity(many, np.eye(18), by_node, num_nodes=3)
    assert answer.node == 1
    assert answer.squared == pytest.approx(91, rel=1e-6)


def test_matrices_of_many_kinds():
    C, B = [[1, 0], [1, 1]], [[1, -1]]
    for make in (np.asarray, sp.csr_array, lambda x: np.array(x, dtype=object) * Fraction(1)):
        assert mfdl.privacy.general_sensitivity(make(C), make(B), EveryStep(2)).squared == pytest.approx(0.5)


def test_a_large_rank_deficient_b_has_both_bounds():
    rng = np.random.default_rng(0)
    B = rng.integers(-2, 3, (90, 20)) @ rng.integers(-2, 3, (20, 80))
    C = rng.standard_normal((80, 60))
    answer = mfdl.privacy.general_sensitivity(C, B, Cyclic(3, 5), num_nodes=4)
    assert answer.bound == "exact"
    Q = np.linalg.svd(B)[2][:20]
    X = (Q @ C).T @ (Q @ C)
    sums = [
        np.abs(X[np.ix_(pattern * 4 + u, pattern * 4 + u)]).sum()
        for u in range(4)
        for pattern in Cyclic(3, 5).patterns()
    ]
    assert answer.lower <= answer.squared <= max(sums) * (1 + 1e-9)
    faint = B.astype(float)
    faint[0, 0] += 2.0**-40  # of full rank 21, as exact arithmetic alone can tell from rounding
    bounded = mfdl.privacy.general_sensitivity(C, faint, Cyclic(3, 5), num_nodes=4)
    assert bounded.squared >= answer.lower
    if not bounded.exact:
        assert bounded.why


@pytest.mark.parametrize(
    ("C", "B", "options", "text"),
    [
        (np.eye(3), np.eye(3), {}, r"C must have shape \(p, 2\) for 2 steps of 1 nodes"),
        (np.eye(2), np.eye(3), {}, "B shape"),
        (np.eye(2), np.eye(2), {"num_nodes": 0}, "num_nodes"),
        (np.eye(2), [[np.nan, 1]], {}, "B must be finite"),
        (np.eye(2), np.ones(2), {}, "B must have 2 dimensions"),
        (np.eye(2) * 1e80, np.eye(2), {}, "C must have entries that are 0 or between 1e-60 and 1e"),
        (aslinearoperator(np.eye(2)), np.eye(2), {}, r"C must be an array or a sparse matrix"),
        (np.eye(2), np.eye(2), {"method": "fast"}, "method"),
        (np.eye(2), np.eye(2), {"workload": np.eye(3)}, "workload must have shape"),
    ],
)
def test_factors_that_do_not_fit(C, B, options, text):
    refuses(text, lambda: mfdl.privacy.general_sensitivity(C, B, EveryStep(2), **options))


def test_secret_batches_have_no_patterns():
    with pytest.raises(UnsupportedMechanism, match="no public patterns"):
        mfdl.privacy.general_sensitivity(np.eye(2), np.eye(2), mfdl.PoissonSampling(0.5, 2))
    refuses("participation", mfdl.privacy.general_sensitivity, np.eye(2), np.eye(2), None)
