"""Chains above M: never below quadrature, samples and M itself, and close to Monte Carlo where correlation decays."""

import dataclasses
import json
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from mfdl.errors import InvalidInput
from mfdl.privacy.curves import (
    BallsInBinsGaussian,
    BinChain,
    chain_above,
    correlations,
    curve_from_dict,
    curve_to_dict,
    importance,
)
from mfdl.privacy.curves.bin_chain import COARSE, FINE, _Walk
from mfdl.testing.oracles.curve_oracles import of_two_bins

WAYS = ["kept", "lost", "replaced"]


def encoder_gram(steps, bins, decay):
    """M of an encoder with coefficients (j + 1)^-decay."""
    C = np.zeros((steps, steps))
    for j in range(steps):
        C += (j + 1.0) ** -decay * np.eye(steps, k=-j)
    V = C.reshape(steps, -1, bins).sum(axis=1)
    return V.T @ V


@st.composite
def chains(draw, least=2, most=5):
    bins, rng = draw(st.integers(least, most)), np.random.default_rng(draw(st.integers(0, 10**6)))
    weights = rng.choice([0.01, 0.05, 0.3, 0.9], bins) * rng.uniform(0.5, 1, bins)
    spread = rng.uniform(0.1, 0.9, bins) * rng.choice([0.3, 1])
    shared = rng.uniform(0, 0.8, bins) * rng.choice([0, 1])
    carried = rng.uniform(0, 1.5, bins - 1) * rng.choice([0, 1], bins - 1) * rng.choice([0, 1])
    return BinChain(
        tuple(shared),
        tuple(spread),
        tuple(rng.uniform(0.01, 0.99, bins - 1)),
        tuple(weights),
        tuple(carried),
    )


def sampled(M, way, epsilon, count, seed):
    """Mean and standard error of the hockey stick."""
    pair, rng = importance.Pair.of(M), np.random.default_rng(seed)
    moments = pair.draws(way, pair.mixture(way, epsilon, count, 1e-3, rng), count, rng).moments(epsilon)
    return moments[0], math.sqrt(max(moments[1] - moments[0] ** 2, 0.0) / count)


@examples(30)
@given(
    chain=chains(2, 6), multiplier=st.floats(0.4, 4), epsilon=st.floats(0, 3), way=st.sampled_from(WAYS),
    points=st.sampled_from([COARSE, FINE]),
)  # fmt: skip
def test_a_chain_loses_no_less_than_quadrature_and_samples_say(chain, multiplier, epsilon, way, points):
    """Of two bins by quadrature, of more by samples, to five standard errors; and not much more."""
    claimed, M = chain.hockey_stick(multiplier, way, epsilon, points), chain.gram / multiplier**2
    if chain.bins == 2:
        true, error = of_two_bins(M, epsilon, way, 801), 0.0
        assert claimed >= true * (1 - 5e-3)
    else:
        true, error = sampled(M, way, epsilon, 20000, 1)
        assert claimed >= true - 5 * error
    if true > 1e-6:
        assert claimed <= (true + 5 * error) * (1.6 if points is FINE else 3.0) + 1e-9


def neighbours(bins, rho, *, cyclic=False):
    """M of bins that correlate with their neighbours only."""
    M = np.eye(bins) + rho * (np.eye(bins, k=1) + np.eye(bins, k=-1))
    if cyclic:
        M[0, -1] = M[-1, 0] = rho
    return M


@pytest.mark.parametrize(("cyclic", "most"), [(False, 1e-3), (True, 2e-3)])
def test_states_are_carried_where_correlation_ends_at_neighbours(cyclic, most):
    for rho in (0.2, 0.4, 0.45):
        M = neighbours(8, rho, cyclic=cyclic)
        chain = chain_above(M)
        assert (chain.gram >= M).all()
        assert chain.gram.sum() <= M.sum() * (1 + most)
        assert np.median(chain.carried) > 0.1


@pytest.mark.parametrize("way", WAYS)
def test_of_two_bands_a_chain_loses_no_less_than_quadrature(way):
    chain = BinChain((0.0, 0.0), (0.8, 0.6), (1e-3,), (0.2, 0.1), (0.7,))
    for epsilon in (0.0, 0.5, 1.5):
        true = of_two_bins(chain.gram, epsilon, way, 801)
        assert true * (1 - 5e-3) - 1e-9 <= chain.hockey_stick(1.0, way, epsilon, FINE) <= true * 1.1 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kept", "lost"])
def test_of_two_bands_epsilon_is_within_two_percent_of_samples(way):
    M = neighbours(10, 0.4)
    claimed = chain_above(M).epsilon(1.5, "zero-out", 1e-5, 3.0)
    mean, error = sampled(M / 1.5**2, way, claimed, 2**17, 4)
    assert mean - 4 * error <= 1e-5
    if way == "kept":  # the worse direction
        mean, error = sampled(M / 1.5**2, way, claimed / 1.02, 2**17, 3)
        assert mean - 3 * error > 1e-5


@pytest.mark.parametrize("way", WAYS)
def test_the_lattice_is_as_fine_as_the_logs_of_narrow_bins_need(way):
    """Each bin has little of its own, so its log tells its state, and a lattice of the chain's steps misses it."""
    chain = BinChain((0.3, 0.0), (0.9, 0.9), (0.1,), (0.01, 0.02))
    for epsilon in np.linspace(0.0, 3.0, 13):
        true = of_two_bins(chain.gram, float(epsilon), way, 801)
        assert true * (1 - 5e-3) - 1e-9 <= chain.hockey_stick(1.0, way, float(epsilon), FINE) <= true * 1.1 + 1e-6


@examples(40)
@given(
    bins=st.integers(2, 12), epochs=st.integers(1, 4), decay=st.floats(0.2, 2), seed=st.integers(0, 1000),
    random=st.booleans(),
)  # fmt: skip
def test_a_chain_is_above_its_matrix_in_every_entry(bins, epochs, decay, seed, random):
    M = encoder_gram(bins * epochs, bins, decay)
    if random:
        rng = np.random.default_rng(seed)
        V = np.abs(np.tril(rng.normal(size=(bins, bins)))) ** rng.uniform(0.5, 3)
        M = V.T @ V + 1e-3 * np.eye(bins)
    chain = chain_above(M)
    if chain is not None:
        assert (chain.gram >= M / M.diagonal().max()).all()


def test_no_chain_is_sought_where_the_hull_is_as_close():
    for bins, rho in ((16, 0.0), (16, 0.3), (1, 0.0), (64, 0.5)):
        assert chain_above(np.eye(bins) * (1 - rho) + rho) is None
    assert chain_above(encoder_gram(64, 64, 0.5)) is None  # too many bins


@pytest.mark.slow
@pytest.mark.parametrize(
    ("multiplier", "adjacency"), [(0.4, "zero-out"), (1.2, "zero-out"), (3.0, "zero-out"), (1.2, "replace-one")]
)
def test_of_decaying_correlation_epsilon_is_within_two_percent_of_samples(multiplier, adjacency):
    M = encoder_gram(64, 16, 0.5)
    M /= M.diagonal().max()
    curve = BallsInBinsGaussian(multiplier, 16, correlations(M), adjacency, chain_above(M)).epsilon(1e-5)
    worst = []
    for way in ("replaced",) if adjacency == "replace-one" else ("kept", "lost"):
        mean, error = sampled(M / multiplier**2, way, curve / 1.02, 2**17, 3)
        worst.append(mean - 3 * error)
        above, error = sampled(M / multiplier**2, way, curve, 2**17, 4)
        assert above - 4 * error <= 1e-5
    assert max(worst) > 1e-5


def test_a_curve_takes_the_chain_where_it_is_less_and_calibrates_by_it():
    M = encoder_gram(6, 3, 0.6)
    chain = chain_above(M)
    hull = BallsInBinsGaussian(1.0, 3, correlations(M), "zero-out")
    curve = dataclasses.replace(hull, chain=chain)
    assert curve.epsilon(1e-5) < hull.epsilon(1e-5) * 0.99
    assert curve.delta(1.0) < hull.delta(1.0)
    least = curve.least_multiplier(1.0, 1e-5)
    assert least < hull.least_multiplier(1.0, 1e-5) * 0.99
    assert curve.at(least).epsilon(1e-5) <= 1.0 < curve.at(least * 0.99).epsilon(1e-5)
    again = curve_from_dict(json.loads(json.dumps(curve_to_dict(curve))))
    assert again == curve


def test_numbers_out_of_range_are_refused():
    good = BinChain((0.1, 0.1), (0.5, 0.5), (0.5,), (0.2, 0.2))
    for field, wrong in (
        ("links", (1.5,)),
        ("links", ()),
        ("alone", (0.0, 0.1)),
        ("shared", (-0.1, 0.1)),
        ("carried", (-0.1,)),
    ):
        with pytest.raises(InvalidInput, match=field):
            dataclasses.replace(good, **{field: wrong})
    with pytest.raises(InvalidInput, match="chain"):
        BallsInBinsGaussian(1.0, 3, ((3, 0.1),), "zero-out", good)


def test_sums_over_lattices_are_never_below_integrals():
    """Of Gaussians of the widths that lattices are made for, wherever they lie; what is beyond is in the tail."""
    walk = _Walk(BinChain((0.3, 0.2), (0.8, 0.6), (0.4,), (0.05, 0.1), (0.5,)), "kept", 0.0, COARSE)
    before, width = walk.inflation, walk.widths[0]
    lattice = walk._lattice(0.8, np.zeros(1), width)
    step, raised = lattice[1] - lattice[0], walk.inflation / before
    sums = [np.exp(-(((lattice - centre) / width) ** 2) / 2).sum() * step for centre in np.linspace(0, step, 41)]
    integral = width * math.sqrt(2 * math.pi)
    assert min(sums) < integral
    assert min(sums) * raised >= integral * (1 - 1e-12)
    assert max(sums) <= integral * walk.most_ripple * (1 + 1e-12)


@examples(20)
@given(chain=chains(2, 6), way=st.sampled_from(["kept", "lost"]), points=st.sampled_from([COARSE, FINE]))
def test_the_mean_of_a_sum_grows_by_one_with_each_bin(chain, way, points):
    """Under Q each L_r has mean 1: spreads keep it, and lattices raise it by little."""
    walk = _Walk(chain, way, 0.0, points)
    for r in range(chain.bins):
        walk.move(r)
        walk.add(r)
        assert walk.mass.sum(axis=0) @ walk.grid == pytest.approx(r + 1, rel=0.02 if way == "kept" else 0.2)
