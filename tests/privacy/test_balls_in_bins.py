"""Secret bins: the certified curve is an upper bound by quadrature and by Monte Carlo."""

import itertools
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from mfdl.errors import InvalidInput
from mfdl.privacy import bin_gram, gaussian
from mfdl.privacy.curves import BallsInBinsGaussian, correlations, random_allocation
from mfdl.privacy.curves.balls_in_bins import WEAKEST

EPSILONS = np.array([0.0, 0.3, 1.0, 2.0])
ADJACENCIES = ["zero-out", "replace-one"]


def bound(M, sigma, adjacency):
    top = float(np.max(np.diag(M)))
    return BallsInBinsGaussian(sigma / math.sqrt(top), len(M), correlations(np.asarray(M, float)), adjacency)


def gram_of(C, bins):
    V = np.abs(C).reshape(len(C), -1, bins).sum(axis=1)
    return V.T @ V


def hockey_sticks(M, sigma, epsilons, adjacency):
    """delta of the pair of two bins, both directions: over one normal in closed form, over the other by a sum.

    Both densities are monotone in the normal y, so the event that decides is a half line of it. A grid in the plane is
    wrong by 4e-5 of delta where both bins are one; here the kink costs 1e-7.
    """
    (p, _), (q, r) = np.linalg.cholesky(np.asarray(M) / sigma**2 + 1e-14 * np.eye(2))
    x = np.linspace(-10, 10, 100_001)
    weight, lift = norm.pdf(x) * (x[1] - x[0]), math.exp(r**2 / 2)
    a, b = np.exp(p * x - p**2 / 2), np.exp(q * x - (q**2 + r**2) / 2)  # P = (a + b exp(r y)) / 2
    c, d = np.exp(-p * x - p**2 / 2), np.exp(-q * x - (q**2 + r**2) / 2)  # Q = (c + d exp(-r y)) / 2, or 1

    def below(t):
        return (a * norm.cdf(t) + b * lift * norm.cdf(t - r)) / 2

    def above(t):
        return (a * norm.cdf(-t) + b * lift * norm.cdf(r - t)) / 2

    def where(z):
        """The y at which exp(r y) = z."""
        return np.log(z, out=np.full_like(z, -np.inf), where=z > 0) / r

    for E in map(math.exp, epsilons):
        if adjacency == "replace-one":  # both directions mirror each other
            B = a - E * c
            root = np.sqrt(B**2 + 4 * b * E * d)
            t = where(np.where(B > 0, 2 * E * d / (np.abs(B) + root), (np.abs(B) + root) / (2 * b)))
            other = (c * norm.cdf(-t) + d * lift * norm.cdf(-t - r)) / 2
            yield float(weight @ (above(t) - E * other))
        else:
            t, s = where((2 * E - a) / b), where((2 / E - a) / b)
            yield float(max(weight @ (above(t) - E * norm.cdf(-t)), weight @ (norm.cdf(s) - E * below(s))))


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(("c", "sigma"), [(0.0, 0.9), (0.3, 1.3), (0.8, 2.0)])
def test_two_equal_bins_are_what_quadrature_says(adjacency, c, sigma):
    M = np.array([[1.0, c], [c, 1.0]])
    stated = bound(M, sigma, adjacency)
    for epsilon, true in zip(EPSILONS, hockey_sticks(M, sigma, EPSILONS, adjacency), strict=True):
        assert true * (1 - 1e-6) <= stated.delta(epsilon) <= true * 1.02 + 1e-7
    if adjacency == "replace-one":  # exactly Gaussian
        assert stated.epsilon(1e-4) == pytest.approx(
            gaussian.epsilon_from_mu(math.sqrt(2 * (1 + c)) / sigma, 1e-4), rel=5e-3
        )


@examples(60)
@given(
    d=st.tuples(st.floats(0.2, 2), st.floats(0.2, 2)), rho=st.floats(0, 1), sigma=st.floats(0.7, 3),
    adjacency=st.sampled_from(ADJACENCIES),
)  # fmt: skip
@pytest.mark.slow
def test_any_two_bins_lose_at_most_what_is_stated(d, rho, sigma, adjacency):
    c = rho * math.sqrt(d[0] * d[1])
    M = np.array([[d[0], c], [c, d[1]]])
    stated = bound(M, sigma, adjacency)
    for epsilon, true in zip((0.0, 1.0), hockey_sticks(M, sigma, (0.0, 1.0), adjacency), strict=True):
        assert stated.delta(epsilon) >= true * (1 - 1e-6)


def sampled_deltas(M, sigma, epsilons, adjacency, count, seed):
    """(mean, standard error) of delta of P against the other side, by sampling P; and of the other way."""
    b, rng = len(M), np.random.default_rng(seed)
    scaled = M / sigma**2
    L = np.linalg.cholesky(scaled + 1e-12 * np.eye(b))
    noise = rng.standard_normal((count, b)) @ L.T
    half = np.diag(scaled) / 2

    def ratio(x, sign):
        return np.exp(sign * x - half).mean(axis=1)

    here = noise + scaled[rng.integers(b, size=count)]
    S, other = ratio(here, 1), ratio(here, -1) if adjacency == "replace-one" else 1.0
    back = 1.0 if adjacency == "replace-one" else ratio(noise, 1)
    for epsilon in epsilons:
        ways = [np.clip(1 - math.exp(epsilon) * other / S, 0, None)]
        if adjacency == "zero-out":
            ways.append(np.clip(1 - math.exp(epsilon) * back, 0, None))
        yield max((way.mean(), way.std() / math.sqrt(count)) for way in ways)


@examples(30)
@given(
    data=st.data(), bins=st.integers(1, 6), epochs=st.integers(1, 3), sigma=st.floats(1, 4),
    adjacency=st.sampled_from(ADJACENCIES),
)  # fmt: skip
@pytest.mark.slow
def test_the_certificate_is_above_monte_carlo(data, bins, epochs, sigma, adjacency):
    T = bins * epochs
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    C = np.tril(rng.normal(size=(T, T)) * 0.5 ** np.arange(T)[::-1]) + np.eye(T)
    M = gram_of(C, bins)
    sigma *= math.sqrt(np.diag(M).max())
    stated = bound(M, sigma, adjacency)
    for epsilon, (mean, error) in zip(
        (0.0, 0.5), sampled_deltas(M, sigma, (0.0, 0.5), adjacency, 20000, 1), strict=True
    ):
        assert stated.delta(epsilon) >= mean - 5 * error


def test_signs_do_not_help_the_encoder():
    """C in place of |C|: two steps of one bin, g = (1, -1): the shift is 5, the formula with signs says 1."""
    C = np.array([[1.0, 0.0], [-1.0, 1.0]])
    E = np.ones((2, 1))
    assert float((E.T @ C.T @ C @ E)[0, 0]) == 1.0
    assert float(np.sum((C @ [1, -1]) ** 2)) == 5.0 == gram_of(C, 1)[0, 0]


@pytest.mark.parametrize(("sigma", "d", "rho", "epsilon"), [
    (4.269, 20.0, 0.0, 1.9939), (2.041, 1.6, 0.62, 1.987), (6.856, 20.0, 0.0, 0.718),
])  # fmt: skip
def test_figures_of_sixteen_bins(sigma, d, rho, epsilon):
    stated = BallsInBinsGaussian(sigma / math.sqrt(d), 16, ((16, rho),), "zero-out")
    assert epsilon * 0.995 <= stated.epsilon(1e-5) <= epsilon * 1.003


TABLE = {
    0.726: (0.2, [0.305, 0.352, 0.406, 0.505, 0.590, 0.665, 0.733, 0.851, 0.956]),
    1.993: (0.5, [0.477, 0.483, 0.492, 0.534, 0.600, 0.668, 0.733, 0.850, 0.954]),
}
RHO = [0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9]
QUICK = {(0.726, 0.1), (1.993, 0.0), (1.993, 0.5)}


@pytest.mark.parametrize(
    ("epsilon", "rho"),
    [pytest.param(e, r, marks=() if (e, r) in QUICK else pytest.mark.slow) for e in TABLE for r in RHO],
)
def test_noise_by_correlation_is_the_table(epsilon, rho):
    mu, row = TABLE[epsilon]
    exact = gaussian.epsilon_from_mu(mu, 1e-5)
    least = BallsInBinsGaussian(1.0, 16, ((16, rho),), "zero-out").least_multiplier(exact, 1e-5)
    assert least * mu == pytest.approx(row[RHO.index(rho)], rel=0.01)
    assert BallsInBinsGaussian(least, 16, ((16, rho),), "zero-out").epsilon(1e-5) <= exact
    assert BallsInBinsGaussian(least * 0.998, 16, ((16, rho),), "zero-out").epsilon(1e-5) > exact


def test_strides_help_where_neighbours_alone_are_correlated():
    M = np.eye(16) + 0.45 * (np.eye(16, k=1) + np.eye(16, k=-1))
    M[0, -1] = M[-1, 0] = 0.45
    pairs = correlations(M)
    assert pairs[0] == (16, pytest.approx(0.45))
    assert pairs[1] == (8, 0.0)
    assert BallsInBinsGaussian(2.01, 16, pairs, "zero-out").epsilon(1e-5) == pytest.approx(0.7, rel=0.02)
    assert BallsInBinsGaussian(3.61, 16, pairs[:1], "zero-out").epsilon(1e-5) == pytest.approx(0.7, rel=0.02)


@examples(100)
@given(bins=st.integers(1, 12), seed=st.integers(0, 100))
def test_correlations_hold_for_every_shift_of_their_bins(bins, seed):
    """Some arithmetic progression of that many bins is as little correlated as said, wherever it starts."""
    rng = np.random.default_rng(seed)
    M = rng.uniform(size=(bins, bins))
    M = np.maximum(M, M.T)
    M[np.diag_indices(bins)] = rng.uniform(1, 2, bins)
    top = M.diagonal().max()

    def worst(stride, kept):
        A = np.arange(kept) * stride
        return max(
            (M[(a + tau) % bins, (b + tau) % bins] for tau in range(bins) for a, b in itertools.combinations(A, 2)),
            default=0.0,
        )

    for kept, rho in correlations(M):
        strides = [s for s in range(1, bins + 1) if len(set(np.arange(kept) * s % bins)) == kept]
        assert min(worst(s, kept) for s in strides) <= rho * top


@examples(40)
@given(shift=st.floats(0.05, 1.5), bins=st.integers(2, 8), tail=st.sampled_from([1e-7, 1e-9]))
def test_allocation_loses_no_more_than_public_bins_and_less_with_more_bins(shift, bins, tail):
    """Of several bins: one is public, and its law 36 % above at shift 1.5, epsilon 2; the accountant takes the less."""
    kept = random_allocation.kept_curve(shift, bins, EPSILONS, tail)
    public = np.array([gaussian.delta_from_mu(shift, e) for e in EPSILONS])
    assert (kept <= public * 1.1 + 1e-5).all()
    fewer = random_allocation.kept_curve(shift, bins // 2, EPSILONS, tail)
    assert (kept <= fewer * 1.1 + 1e-5).all()


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("rho", [0.0, 1e-9, 0.3])
def test_next_to_no_noise_is_accounted_as_public_bins(adjacency, rho):
    for multiplier in (1e-9, 0.028, 0.03):
        stated = BallsInBinsGaussian(multiplier, 2, ((2, rho),), adjacency)
        assert stated.epsilon(1e-5) == stated.public_epsilon(1e-5) < math.inf
        assert 0 < stated.delta(1.0) <= 1
        with pytest.raises(InvalidInput, match="noise_multiplier"):
            stated.losses(1e-5)
    assert BallsInBinsGaussian(1.0, 2, ((2, rho),), adjacency).least_multiplier(2000.0, 1e-5) < 0.05


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("multiplier", [1e9, 1e17, 1e160, 1e300])
def test_noise_that_leaves_nothing_to_see_is_accounted_as_public_bins(adjacency, multiplier):
    weak = BallsInBinsGaussian(multiplier, 4, ((4, 0.3),), adjacency)
    assert 0 <= weak.epsilon(1e-5) == gaussian.epsilon_from_mu(weak.public_mu, 1e-5)
    assert 0 <= weak.delta(0.0) == gaussian.delta_from_mu(weak.public_mu, 0.0) < 1e-8
    assert 0 < BallsInBinsGaussian(WEAKEST, 4, ((4, 0.3),), "zero-out").delta(0.0) < 1e-8


def test_what_is_out_of_range_is_refused():
    for wrong in ((4, ((3, 0.0),)), (4, ()), (4, ((4, 1.5),)), (0, ((0, 0.0),))):
        with pytest.raises(InvalidInput):
            BallsInBinsGaussian(1.0, *wrong, "zero-out")
    assert BallsInBinsGaussian(0.0, 4, ((4, 0.0),), "zero-out").epsilon(1e-5) == math.inf
    assert BallsInBinsGaussian(0.0, 4, ((4, 0.0),), "zero-out").delta(3.0) == 1.0
    exact = gaussian.epsilon_from_mu(0.5, 1e-13)  # a delta that floating point of the hull cannot tell
    assert exact <= BallsInBinsGaussian(2.0, 4, ((4, 0.1),), "zero-out").epsilon(1e-13) <= exact * (1 + 1e-12)


@examples(50)
@given(size=st.integers(1, 8), seed=st.integers(0, 50))
def test_the_encoder_that_counts_is_the_inverse_of_what_the_executor_uses(size, seed):
    rng = np.random.default_rng(seed)
    C = np.tril(rng.normal(size=(size, size)))
    C[np.diag_indices(size)] = rng.uniform(0.5, 2, size)
    inverse = np.linalg.inv(C) * (1 + 1e-9 * rng.uniform(-1, 1, (size, size)))
    true = np.abs(np.tril(np.linalg.inv(np.tril(inverse))))
    assert (bin_gram._absolute_encoder(C, np.tril(inverse)) >= true * (1 - 1e-13)).all()
