"""Secret patterns and sens_Pi(C; B) against all patterns and rational arithmetic: never too low."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from _scaled import integers, scales
from scipy.sparse.linalg import aslinearoperator
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import BallsInBins, Cyclic, EveryStep, PoissonSampling, Privacy, algorithms, trust
from mfdl.noise import LocalNoise
from mfdl.participation import (
    CyclicPoisson,
    Explicit,
    MinSeparationSampling,
    ParticipationByNode,
    RandomAllocation,
    Single,
)
from mfdl.privacy import BallsInBinsGaussian, Gaussian, PoissonGaussian, ProductGaussian, bin_gram
from mfdl.privacy.forms import dense_form as rational_form
from mfdl.testing.oracles import exact_leaks, exact_view_gram, largest_signed_sum, rational
from mfdl.testing.oracles.curve_oracles import attacked, pattern_laws

DYNAMICS = dynamics_on("ring:n=3", 0.1)
ASKED = {"trust": trust.LDP(), "clip_norm": 1.0}


def with_encoder(scheme, C=None):
    algorithm = algorithms.dp_dsgd(DYNAMICS, scheme)
    return algorithm if C is None else dataclasses.replace(algorithm, noise=LocalNoise(C, num_nodes=3))


def curve_of(scheme, C=None, noise_std=1.0, adjacency="zero-out"):
    return mfdl.account(with_encoder(scheme, C), Privacy(adjacency=adjacency, **ASKED), noise_std=noise_std).curve


def schemes(most):
    sizes = [(k, b) for k in range(1, most + 1) for b in range(1, most + 1) if k * b <= most]
    return st.tuples(st.sampled_from(sizes), st.floats(0.05, 0.95), st.integers(0, 3)).map(
        lambda drawn: (
            CyclicPoisson(*drawn[0], drawn[1]),
            RandomAllocation(*drawn[0]),
            RandomAllocation(*drawn[0], per_epoch=False),
            MinSeparationSampling(math.prod(drawn[0]), drawn[0][1], drawn[1]),
        )[drawn[2]]
    )


@st.composite
def cases(draw, most):
    scheme = draw(schemes(most))
    rng, T = np.random.default_rng(draw(st.integers(0, 10**6))), scheme.num_steps
    C = np.tril(rng.uniform(-1, 1, (T, T)), -1) + np.diag(rng.uniform(0.5, 1.5, T))
    if draw(st.booleans()):
        C *= np.subtract.outer(range(T), range(T)) < draw(st.integers(1, 3))
    return scheme, C


BOUNDS = {
    CyclicPoisson: bin_gram.cyclic_poisson_bound,
    RandomAllocation: bin_gram.random_allocation_bound,
    MinSeparationSampling: bin_gram.min_separation_bound,
}


@given(200, case=cases(8))
def test_the_gram_of_patterns_is_below_that_of_the_product(case):
    """Of every two patterns; draws in common count with the largest d, as the bound does not say which they are.

    Where random allocation is to fewer places than an epoch has, remainders are public: patterns of equal ones count.
    """
    scheme, C = case
    N = np.abs(C).T @ np.abs(C)
    bound = BOUNDS[type(scheme)](N, scheme)
    draws = np.sort(np.concatenate([np.full(count, d) for d, count in bound.draws]))[::-1]
    for law in pattern_laws(scheme):
        sets = np.zeros((len(law), len(N)))
        for row, (_, steps) in zip(sets, law, strict=True):
            row[list(steps)] = 1
        M, common = sets @ N @ sets.T, (sets @ sets.T).astype(int)
        at_most = bound.common + np.concatenate([[0.0], np.cumsum(draws)])[common]
        step = scheme.period // bound.places if isinstance(scheme, RandomAllocation) else 1
        known = np.array([[s % step for s in steps] if step > 1 else [] for _, steps in law])
        alike = (known[:, None] == known).all(axis=2)
        assert (at_most * (1 + 1e-9) >= M)[alike].all()
        assert bound.public * (1 + 1e-9) >= M.max()
    assert bound.largest == pytest.approx(N.diagonal().max())


@pytest.mark.parametrize("way", ["kept", "lost", "replaced"])
@given(12, case=cases(4), noise_std=st.floats(0.5, 3))
def test_attackers_that_choose_gradients_stay_below(way, case, noise_std):
    (scheme, C), replaced = case, way == "replaced"
    cells = {1: 20, 2: 8, 3: 4, 4: 2}[len(C)] if replaced else {1: 20, 2: 12, 3: 6, 4: 4}[len(C)]
    curve, epsilons = curve_of(scheme, C, noise_std, "replace-one" if replaced else "zero-out"), [0.0, 0.4, 1.5]
    for law in pattern_laws(scheme):
        true = attacked(C, law, noise_std, epsilons, way, cells)
        assert all(curve.delta(e) >= delta * (1 - 1e-9) for e, delta in zip(epsilons, true, strict=True))


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
def test_special_cases_agree(adjacency):
    """Cyclic Poisson of one group, or with fresh noise, is Poisson; one epoch of allocation is balls-in-bins."""
    poisson = curve_of(PoissonSampling(0.1, 12), adjacency=adjacency)
    assert curve_of(CyclicPoisson(12, 1, 0.1), adjacency=adjacency) == poisson
    assert curve_of(CyclicPoisson(12, 3, 0.1), adjacency=adjacency) == poisson
    for scheme in (RandomAllocation(1, 8), RandomAllocation(1, 8, per_epoch=False)):
        curve, bins = curve_of(scheme, adjacency=adjacency), curve_of(BallsInBins(1, 8), adjacency=adjacency)
        assert curve.epsilon(1e-5) == pytest.approx(bins.epsilon(1e-5), rel=0.02)
    alone = curve_of(MinSeparationSampling(12, 1, 0.1), adjacency=adjacency)
    assert alone.epsilon(1e-5) == pytest.approx(poisson.epsilon(1e-5), rel=1e-3)


@given(20, rate=st.floats(0.05, 0.9), bands=st.integers(1, 3), seed=st.integers(0, 99))
def test_bands_up_to_the_period_cost_cyclic_poisson_nothing_but_their_norm(rate, bands, seed):
    T, rng = 9, np.random.default_rng(seed)
    column = np.concatenate([[1.0], rng.uniform(-1, 1, bands - 1)])
    C = sum(np.diag(np.full(T - lag, x), -lag) for lag, x in enumerate(column))
    curve = curve_of(CyclicPoisson(3, 3, rate), C, 2.0)
    at_most = PoissonGaussian(2.0 / float(np.linalg.norm(column)), rate, 3, "zero-out").epsilon(1e-4)
    assert curve.epsilon(1e-4) <= at_most * 1.003 + 1e-4
    assert curve.noise_multiplier == pytest.approx(2.0 / float(np.linalg.norm(column)))


def test_shared_sensitivity_alone_is_gaussian():
    faint = PoissonGaussian(1e4, 1e-6, 1, "zero-out")
    curve = ProductGaussian(1.0, 1.0, (faint,), (1,), 2.0, "zero-out")
    assert curve.epsilon(1e-5) == pytest.approx(Gaussian(1.0, "zero-out").epsilon(1e-5), rel=1e-3)
    assert curve.epsilon(1e-5) >= Gaussian(1.0, "zero-out").epsilon(1e-5)
    assert (curve.at(0.0).epsilon(1e-5), curve.at(0.0).delta(1.0)) == (math.inf, 1.0)
    both = curve.composed_with(BallsInBinsGaussian(2.0, 4, ((4, 0.0),), "zero-out"))
    assert both.epsilon(1e-5) > curve.epsilon(1e-5)
    refuses("same adjacency", ProductGaussian, 1.0, 1.0, (faint,), (1,), 2.0, "replace-one")
    refuses("at least one", ProductGaussian, 1.0, 1.0, (), (), 2.0, "zero-out")


SCHEMES = [CyclicPoisson(4, 3, 0.3), RandomAllocation(4, 3), MinSeparationSampling(12, 3, 0.3)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.scheme)
def test_calibrated_noise_meets_its_target_and_little_more(scheme):
    C = np.tril(np.full((12, 12), 0.2), -1) * np.tri(12, 12, 1).T + np.eye(12)
    mechanism = mfdl.calibrate(with_encoder(scheme, C), Privacy(adjacency="zero-out", **ASKED), epsilon=1.0, delta=1e-5)
    assert 0.995 < mechanism.guarantee.epsilon(1e-5) <= 1.0
    assert mechanism.guarantee.participation == scheme.describe()
    hidden, seen = (
        mfdl.account(with_encoder(scheme, C), Privacy(model, **ZERO_OUT), noise_std=2.0)
        for model in (trust.PNDP(attackers=[0]), trust.LDP())
    )
    assert hidden.epsilon(1e-5) >= seen.epsilon(1e-5) * (1 - 1e-9)


def test_what_only_public_patterns_have_is_refused():
    algorithm = with_encoder(CyclicPoisson(4, 3, 0.3))
    unsupported("no mu", lambda: mfdl.calibrate(algorithm, Privacy(adjacency="zero-out", **ASKED), mu=1.0))
    sampled = Privacy(adjacency="zero-out", method="monte-carlo", **ASKED)
    unsupported("leave out method", mfdl.account, algorithm, sampled, noise_std=1.0)
    for scheme in SCHEMES:
        unsupported("no public patterns and no mu", scheme.patterns_of_record)
    refuses("rate", CyclicPoisson, 4, 3, 1.0)


PATTERN_SCHEMES = (EveryStep(2), Single(2), Explicit([[1]], 2), Cyclic(1, 2), Cyclic(2, 1))


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
    return (np.array(rational(B)) @ np.array(rational(C))).tolist()


def truth(A, B, patterns, n):
    """The largest sensitivity of any node, squared: gradients of two steps are best along one line."""
    X = exact_view_gram(A, B)
    return max(
        largest_signed_sum([[X[s * n + u][t * n + u] for t in pattern] for s in pattern])
        for u in range(n)
        for pattern in patterns
    )


@given(600, case=factors(), scheme=st.sampled_from(PATTERN_SCHEMES), small=st.booleans())
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


@given(100, case=factors())
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


@given(100, case=factors(), data=st.data())
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


def test_nodes_with_participation_of_their_own():
    """Anti-PGD with all noise seen, k = T = 6 at the second node: the sum of the squares to 36."""
    by_node = ParticipationByNode([Single(6), EveryStep(6), Single(6)])
    many = np.kron(np.tril(np.ones((6, 6))), np.eye(3))
    answer = mfdl.privacy.general_sensitivity(many, np.eye(18), by_node, num_nodes=3)
    assert (answer.node, answer.squared) == (1, pytest.approx(91, rel=1e-6))
    assert mfdl.privacy.general_sensitivity(many, np.zeros((2, 18)), EveryStep(6), num_nodes=3).squared == 0  # unseen


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


@each(
    "C, B, options, text",
    (np.eye(3), np.eye(3), {}, r"C must have shape \(p, 2\) for 2 steps of 1 nodes"),
    (np.eye(2), np.eye(3), {}, "B shape"),
    (np.eye(2), np.eye(2), {"num_nodes": 0}, "num_nodes"),
    (np.eye(2), [[np.nan, 1]], {}, "B must be finite"),
    (np.eye(2), np.ones(2), {}, "B must have 2 dimensions"),
    (np.eye(2) * 1e80, np.eye(2), {}, "C must have entries that are 0 or between 1e-60 and 1e"),
    (aslinearoperator(np.eye(2)), np.eye(2), {}, r"C must be an array or a sparse matrix"),
    (np.eye(2), np.eye(2), {"method": "fast"}, "method"),
    (np.eye(2), np.eye(2), {"workload": np.eye(3)}, "workload must have shape"),
)
def test_factors_that_do_not_fit(C, B, options, text):
    refuses(text, lambda: mfdl.privacy.general_sensitivity(C, B, EveryStep(2), **options))


def test_secret_batches_have_no_patterns():
    secret = (np.eye(2), np.eye(2), PoissonSampling(0.5, 2))
    unsupported("no public patterns", mfdl.privacy.general_sensitivity, *secret)
    refuses("participation", mfdl.privacy.general_sensitivity, np.eye(2), np.eye(2), None)
