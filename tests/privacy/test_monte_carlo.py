"""Balls-in-bins by samples: unbiased, in range, covered as often as promised, and what calibrates by them."""

import dataclasses
import json
import math

import numpy as np
import pytest
from vocabulary import dynamics_on, given, refuses, st

from mfdl import BallsInBins, Cyclic, PoissonSampling, Privacy, account, algorithms, calibrate, trust
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.privacy import BallsInBinsGaussian, MonteCarlo, gaussian
from mfdl.privacy.curves import MonteCarloCurve, correlations, monte_carlo, normalized
from mfdl.testing.oracles.curve_oracles import two_bin_delta

FEW = MonteCarlo(samples=2**14, failure=1e-6)
WAYS = {"kept": "zero-out", "lost": "zero-out", "replaced": "replace-one"}
DECAYING = np.array([[0.8 ** min(abs(i - j), 5 - abs(i - j)) for i in range(5)] for j in range(5)])


def by_samples(M, sigma, adjacency, options=FEW):
    M = np.asarray(M, float)
    multiplier = sigma / math.sqrt(M.diagonal().max())
    return MonteCarloCurve(BallsInBinsGaussian(multiplier, len(M), correlations(M), adjacency), normalized(M), options)


@given(
    60, d=st.tuples(st.floats(0.1, 1.5), st.floats(0.1, 1.5)), rho=st.floats(0, 1), epsilon=st.floats(0, 2.5),
    way=st.sampled_from(list(WAYS))
)  # fmt: skip
def test_samples_of_two_bins_have_the_mean_of_quadrature_and_stay_in_range(d, rho, epsilon, way):
    c = rho * math.sqrt(d[0] * d[1])
    M = np.array([[d[0], c], [c, d[1]]])
    pair = monte_carlo.Pair.from_gram(M)
    mixture = pair.mixture(way, epsilon, 2**14, 1e-6, np.random.default_rng(3))
    assert sum(mixture.weights) == pytest.approx(1)
    draws, range_ = pair.draws(way, mixture, 2**14, np.random.default_rng(4)), pair.largest_value(way, mixture, epsilon)
    mean, second = draws.moments(epsilon)
    true = two_bin_delta(M, epsilon, way, points=801)
    assert mean == pytest.approx(true, abs=6 * math.sqrt(second / 2**14) + 1e-4 * true + 1e-12)
    X = np.clip(draws.a - math.exp(epsilon) * draws.b, 0, None) / draws.density
    assert X.max() <= range_ * (1 + 1e-9)
    assert draws.upper(epsilon, range_, 1e-6) >= true * (1 - 1e-4)


@given(100, data=st.data(), bins=st.integers(1, 5), epsilon=st.floats(0, 4), way=st.sampled_from(list(WAYS)))
def test_no_point_is_beyond_the_range(data, bins, epsilon, way):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    V = rng.uniform(size=(bins, bins))
    pair = monte_carlo.Pair.from_gram(V @ V.T)
    for part in (pair.bounded(way, epsilon), (-1.5, 1.0) if way == "lost" else (2.5, 0.0)):
        x = (rng.normal(size=(300, bins)) * rng.uniform(0, 12, (300, 1))) @ pair.means.T
        x[:100] = x[:100].mean(axis=1, keepdims=True)  # where Jensen is an equality
        a, b = pair._sides(way, x)
        gain = a - math.exp(epsilon) * b
        positive = gain > 0  # elsewhere X is 0, and the density may be too faint for float64
        with np.errstate(over="ignore"):
            X = gain[positive] / pair.density(x[positive], part)
        assert X.max(initial=0.0) <= math.exp(pair.log_range(way, part, epsilon)) * (1 + 1e-9)


@pytest.mark.slow
def test_the_bound_falls_in_epsilon_and_fails_no_more_often_than_stated():
    pair = monte_carlo.Pair.from_gram(DECAYING / 1.5)
    mixture = pair.mixture("kept", 1.0, 2**14, 1e-6, np.random.default_rng(0))
    true = pair.draws("kept", mixture, 2**18, np.random.default_rng(1)).moments(1.0)[0]
    range_, below = pair.largest_value("kept", mixture, 1.0), 0
    for seed in range(400):
        below += pair.draws("kept", mixture, 300, np.random.default_rng(100 + seed)).upper(1.0, range_, 0.5) < true
    assert below <= 200
    curve = by_samples(DECAYING, 1.3, "zero-out")
    deltas = [curve.delta(epsilon) for epsilon in (0.5, 1.0, 1.5, 2.0)]
    assert deltas == sorted(deltas, reverse=True)


@pytest.mark.parametrize("adjacency", ["zero-out", pytest.param("replace-one", marks=pytest.mark.slow)])
def test_an_epsilon_is_where_the_bound_at_fresh_samples_meets_delta(adjacency):
    curve = by_samples(DECAYING, 1.5, adjacency)
    epsilon = curve.epsilon(1e-4)
    assert epsilon <= curve.certified.epsilon(1e-4)
    assert epsilon == by_samples(DECAYING, 1.5, adjacency).epsilon(1e-4)
    other = by_samples(DECAYING, 1.5, adjacency, dataclasses.replace(FEW, seed=1)).epsilon(1e-4)
    assert other != epsilon
    assert other == pytest.approx(epsilon, rel=0.1)
    assert curve.retried().epsilon(1e-4) != epsilon


@given(60, count=st.integers(2, 10**6), failure=st.floats(1e-9, 0.5), range_=st.floats(0.1, 100))
def test_samples_that_see_nothing_bound_what_they_may_have_missed(count, failure, range_):
    nothing = monte_carlo.Draws(np.zeros(2), np.ones(2), np.ones(2))
    assert nothing.upper(0.0, range_, failure, count) >= range_ * -math.expm1(math.log(failure) / count)


def test_what_is_stated_is_by_samples_that_nothing_was_chosen_by(monkeypatch):
    used = []

    def watch(name):
        plain = getattr(monte_carlo.Pair, name)

        def watched(self, *arguments):
            used.append((name, tuple(arguments[-1].bit_generator.state["state"]["key"])))
            return plain(self, *arguments)

        monkeypatch.setattr(monte_carlo.Pair, name, watched)

    watch("mixture")
    watch("draws")
    first = by_samples(DECAYING, 1.4, "zero-out", MonteCarlo(samples=2**12, seed=11))
    before = set()
    for curve in (first, first.retried()):
        curve.searched(1.0, 1e-3)
        before |= {key for _, key in used}
        used.clear()
        curve.delta(1.0)
        before |= {key for name, key in used if name == "mixture"}
        drawn = {key for name, key in used if name == "draws"}
        assert drawn
        assert not drawn & before
        before |= drawn
        used.clear()


@given(
    100, entries=st.lists(st.sampled_from([0.0, 1e-12, 0.3, 1.0]), min_size=2, max_size=2),
    size=st.floats(-40, 5), epsilon=st.sampled_from([0.0, 1e-300, 0.1, 5.0, 100.0, 700.0, 1e5]),
    way=st.sampled_from(list(WAYS))
)  # fmt: skip
def test_what_float64_cannot_hold_is_refused_or_infinite_never_nan(entries, size, epsilon, way):
    V = np.array([[1.0, 0.0], entries])
    M, scale = V @ V.T / (V @ V.T).max(), 10.0**size
    if epsilon > monte_carlo.MOST_EPSILON or not monte_carlo.FAINTEST <= scale <= monte_carlo.STRONGEST:
        with pytest.raises(InvalidInput, match=r"must (be|have)"):
            monte_carlo.Pair.from_gram(M * scale).mixture(way, epsilon, 2**12, 1e-6, np.random.default_rng(1))
        return
    pair = monte_carlo.Pair.from_gram(M * scale)
    mixture = pair.mixture(way, epsilon, 2**12, 1e-6, np.random.default_rng(1))
    assert all(math.isfinite(number) for number in (*mixture.weights, *np.ravel(mixture.shifts)))
    assert sum(mixture.weights) == pytest.approx(1)
    draws = pair.draws(way, mixture, 2**9, np.random.default_rng(2))
    assert draws.upper(epsilon, pair.largest_value(way, mixture, epsilon), 1e-6) >= 0  # nan is not


def test_what_samples_say_is_never_above_what_is_certified():
    curve = by_samples(np.eye(4), 0.9, "zero-out", MonteCarlo(samples=2**12))
    assert curve.epsilon(1e-6) == curve.certified.epsilon(1e-6)
    nothing = curve.at(0.0)
    assert (nothing.epsilon(1e-5), nothing.delta(2.0)) == (math.inf, 1.0)


def test_a_matrix_that_no_vectors_have_is_raised_on_its_diagonal():
    M = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.9], [0.0, 0.9, 1.0]])
    assert np.linalg.eigvalsh(M)[0] < 0
    assert (monte_carlo.Pair.from_gram(M).gram >= M).all()


RING = dynamics_on("ring:n=3", 0.5)
ASKED = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}


def encoded():
    return dataclasses.replace(algorithms.mafalda(RING, Cyclic(4, 4)), participation=BallsInBins(4, 4))


def test_what_is_found_by_samples_says_so():
    options = MonteCarlo(samples=2**13, failure=1e-3, seed=5)
    calibrated = calibrate(encoded(), Privacy(method=options, **ASKED), noise_std=3.0)
    assert calibrated.guarantee.bound == "monte-carlo"
    for phrase in ("Monte Carlo", "8192 samples", "seed 5", "probability at most 0.001", "certified is"):
        assert phrase in str(calibrated.guarantee)
    content = json.loads(json.dumps(calibrated.guarantee.to_dict()))
    assert content["method"] == "monte-carlo"
    assert content["curve"]["sampling"] == {"kind": "samples", "samples": 8192, "failure": 1e-3, "seed": 5}
    silent = calibrate(encoded(), Privacy(**ASKED), noise_std=3.0).guarantee
    assert silent.bound == "upper"
    assert "Monte Carlo" not in str(silent)
    assert calibrated.guarantee.epsilon(1e-5) <= silent.epsilon(1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_mechanism_is_calibrated_by_samples(adjacency):
    options = {**ASKED, "adjacency": adjacency}
    sure = calibrate(encoded(), Privacy(**options), epsilon=2.0, delta=0.0001)
    calibrated = calibrate(
        encoded(), Privacy(method=MonteCarlo(samples=2**17, failure=1e-3, seed=5), **options), epsilon=2.0, delta=0.0001
    )
    assert calibrated.noise_std <= sure.noise_std  # equal where the certified curve is the tighter one
    assert 1.9 < calibrated.guarantee.epsilon(1e-4) <= 2.0
    again = calibrate(
        encoded(), Privacy(method=MonteCarlo(samples=2**17, failure=1e-3, seed=5), **options), epsilon=2.0, delta=0.0001
    )
    assert (again.noise_std, again.guarantee.curve.trial) == (calibrated.noise_std, calibrated.guarantee.curve.trial)


def test_samples_are_for_secret_bins():
    with pytest.raises(UnsupportedMechanism, match="leave out method, got 'monte-carlo'"):
        account(
            algorithms.dp_dsgd(RING, PoissonSampling(0.5, 4)), Privacy(method="monte-carlo", **ASKED), noise_std=1.0
        )
    with pytest.raises(UnsupportedMechanism, match="leave out method, got 'fast'"):
        account(algorithms.dp_dsgd(RING, BallsInBins(2, 2)), Privacy(method="fast", **ASKED), noise_std=1.0)
    for wrong in ({"samples": 10}, {"samples": 2**40}, {"failure": 0.0}, {"seed": -1}):
        refuses(".", MonteCarlo, **wrong)


# ---- long ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "hull", "stride", "samples"), [(0.7, 3.61, 2.01, 1.90), (2.0, 1.40, 1.10, 1.00)])
def test_the_figures_of_neighbouring_bins(epsilon, hull, stride, samples):
    M = np.eye(16) + 0.45 * (np.eye(16, k=1) + np.eye(16, k=-1))
    M[0, -1] = M[-1, 0] = 0.45
    by_pairs = [BallsInBinsGaussian(1.0, 16, pairs, "zero-out") for pairs in (correlations(M)[:1], correlations(M))]
    assert [each.least_multiplier(epsilon, 1e-5) for each in by_pairs] == pytest.approx([hull, stride], rel=0.01)
    multiplier = by_samples(M, 1.0, "zero-out", MonteCarlo(samples=2**22)).least_multiplier(epsilon, 1e-5)
    assert samples * 0.995 <= multiplier <= samples * 1.02


@pytest.mark.peer
@pytest.mark.slow
def test_without_correlation_bins_are_the_random_allocation_of_others():
    pld = pytest.importorskip("PLD_accounting", reason="PLD-accounting is not installed")
    for sigma, bins, delta in ((4.269 / math.sqrt(20), 16, 1e-5), (0.8, 8, 1e-5)):
        epsilon = BallsInBinsGaussian(sigma, bins, ((bins, 0.0),), "add-remove").epsilon(delta)
        theirs = pld.gaussian_allocation_epsilon_range(delta=delta, sigma=sigma, num_steps=bins, epsilon_accuracy=0.02)
        low, high = sorted(theirs)
        assert low <= epsilon <= high * (1 + 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("seed", range(4))
def test_certified_is_above_many_samples_of_more_bins(adjacency, seed):
    rng = np.random.default_rng(seed)
    bins = int(rng.integers(3, 13))
    T, count = 3 * bins, 2**18
    C = np.tril(rng.normal(size=(T, T)) * rng.uniform(0.3, 0.95) ** np.arange(T)[::-1]) + np.eye(T)
    V = np.abs(C).reshape(T, -1, bins).sum(axis=1)
    M = V.T @ V
    curve = by_samples(M, math.sqrt(M.diagonal().max()) * rng.uniform(0.8, 2.5), adjacency)
    for epsilon in (0.0, 0.5, 1.5, 3.0):
        bound = curve.certified.delta(epsilon)
        if bound < 1e-9:
            continue
        pair = monte_carlo.Pair.from_gram(np.array(curve.gram) / curve.noise_multiplier**2)
        for way in curve._ways:
            mixture = pair.mixture(way, epsilon, count, 1e-6, np.random.default_rng(7))
            mean, second = pair.draws(way, mixture, count, np.random.default_rng(8)).moments(epsilon)
            assert bound >= mean - 6 * math.sqrt(second / count)


@pytest.mark.slow
def test_one_bin_is_a_gaussian():
    curve = by_samples(np.eye(1), 1.0, "zero-out", MonteCarlo(samples=2**20))
    pair = monte_carlo.Pair.from_gram(np.eye(1))
    for way in ("kept", "lost"):
        mixture = pair.mixture(way, 2.0, 2**20, 1e-6, np.random.default_rng(0))
        mean, second = pair.draws(way, mixture, 2**20, np.random.default_rng(1)).moments(2.0)
        assert mean == pytest.approx(gaussian.delta_from_mu(1.0, 2.0), abs=6 * math.sqrt(second / 2**20))
    assert curve.epsilon(1e-5) == pytest.approx(gaussian.epsilon_from_mu(1.0, 1e-5), rel=1e-9)
