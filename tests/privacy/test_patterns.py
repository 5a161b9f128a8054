"""Secret patterns: the product is at least the pair of all patterns, against patterns written out and attackers."""

import dataclasses
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses, unsupported

import mfdl
from mfdl import BallsInBins, Dynamics, PoissonSampling, UnsupportedMechanism, algorithms, gossip, trust
from mfdl.noise import LocalNoise
from mfdl.participation import CyclicPoisson, MinSeparationSampling, RandomAllocation
from mfdl.privacy import BallsInBinsGaussian, Gaussian, PoissonGaussian, ProductGaussian, bin_gram
from mfdl.testing.oracles.curve_oracles import attacked, pattern_laws

DYNAMICS = Dynamics(gossip.metropolis_hastings("ring:n=3"), 0.1)
ASKED = {"trust": trust.LDP(), "clip_norm": 1.0}


def with_encoder(scheme, C=None):
    algorithm = algorithms.dp_dsgd(DYNAMICS, scheme)
    return algorithm if C is None else dataclasses.replace(algorithm, noise=LocalNoise(C, num_nodes=3))


def curve_of(scheme, C=None, noise_std=1.0, adjacency="zero-out"):
    return mfdl.account(with_encoder(scheme, C), mfdl.Privacy(adjacency=adjacency, **ASKED), noise_std=noise_std).curve


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
    CyclicPoisson: bin_gram.of_cyclic_poisson,
    RandomAllocation: bin_gram.of_random_allocation,
    MinSeparationSampling: bin_gram.of_min_separation,
}


@examples(200)
@given(case=cases(8))
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
@examples(12)
@given(case=cases(4), noise_std=st.floats(0.5, 3))
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


@examples(20)
@given(rate=st.floats(0.05, 0.9), bands=st.integers(1, 3), seed=st.integers(0, 99))
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
    assert curve.at(0.0).epsilon(1e-5) == math.inf
    assert curve.at(0.0).delta(1.0) == 1.0
    both = curve.composed_with(BallsInBinsGaussian(2.0, 4, ((4, 0.0),), "zero-out"))
    assert both.epsilon(1e-5) > curve.epsilon(1e-5)
    refuses("same adjacency", ProductGaussian, 1.0, 1.0, (faint,), (1,), 2.0, "replace-one")
    refuses("at least one", ProductGaussian, 1.0, 1.0, (), (), 2.0, "zero-out")


SCHEMES = [CyclicPoisson(4, 3, 0.3), RandomAllocation(4, 3), MinSeparationSampling(12, 3, 0.3)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.scheme)
def test_calibrated_noise_meets_its_target_and_little_more(scheme):
    C = np.tril(np.full((12, 12), 0.2), -1) * np.tri(12, 12, 1).T + np.eye(12)
    mechanism = mfdl.calibrate(
        with_encoder(scheme, C), mfdl.Privacy(adjacency="zero-out", **ASKED), epsilon=1.0, delta=1e-5
    )
    assert 0.995 < mechanism.guarantee.epsilon(1e-5) <= 1.0
    assert mechanism.guarantee.participation == scheme.describe()
    hidden = mfdl.account(
        with_encoder(scheme, C),
        mfdl.Privacy(trust.PNDP(attackers=[0]), adjacency="zero-out", clip_norm=1.0),
        noise_std=2.0,
    )
    assert hidden.epsilon(1e-5) >= mfdl.account(
        with_encoder(scheme, C), mfdl.Privacy(adjacency="zero-out", **ASKED), noise_std=2.0
    ).epsilon(1e-5) * (1 - 1e-9)


def test_what_only_public_patterns_have_is_refused():
    algorithm = with_encoder(CyclicPoisson(4, 3, 0.3))
    unsupported("no mu", lambda: mfdl.calibrate(algorithm, mfdl.Privacy(adjacency="zero-out", **ASKED), mu=1.0))
    with pytest.raises(UnsupportedMechanism, match="leave out method"):
        mfdl.account(algorithm, mfdl.Privacy(adjacency="zero-out", method="monte-carlo", **ASKED), noise_std=1.0)
    for scheme in SCHEMES:
        unsupported("no public patterns and no mu", scheme.patterns_of_record)
    refuses("rate", CyclicPoisson, 4, 3, 1.0)
