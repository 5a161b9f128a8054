"""Chains above M, balls-in-bins over nodes and structured encoders: never below quadrature, samples and the dense M."""

import dataclasses
import json
import math
import tracemalloc

import numpy as np
import pytest
import scipy.linalg
from _privacy import applied
from drawn_encoders import banded, buffered, inverse, toeplitz
from numpy.testing import assert_allclose
from vocabulary import dynamics_on, each, given, refuses, st, unsupported

from mfdl import BallsInBins, Dynamics, account, algorithms, gossip, trust
from mfdl.factorization.encoders import Banded, Inverse, Toeplitz, bins
from mfdl.noise import CausalNoise, JointNoise, SpatioTemporalNoise
from mfdl.privacy import BallsInBinsGaussian
from mfdl.privacy.bin_gram import streamed, structured_gram, time_gram
from mfdl.privacy.curves import BinChain, chain_above, correlations, curve_from_dict, curve_to_dict, monte_carlo
from mfdl.privacy.curves.bin_chain import COARSE, FINE, _Walk
from mfdl.testing.oracles.curve_oracles import two_bin_delta

WAYS = ["kept", "lost", "replaced"]


def dense_gram(C, num_bins):
    V = np.abs(C).reshape(len(C), -1, num_bins).sum(axis=1)
    return V.T @ V


def encoder_gram(steps, bins, decay):
    """M of an encoder with coefficients (j + 1)^-decay."""
    return dense_gram(np.tril(scipy.linalg.toeplitz(np.arange(1.0, steps + 1) ** -decay)), bins)


@st.composite
def chains(draw, least=2, most=5):
    bins, rng = draw(st.integers(least, most)), np.random.default_rng(draw(st.integers(0, 10**6)))
    weights = rng.choice([0.01, 0.05, 0.3, 0.9], bins) * rng.uniform(0.5, 1, bins)
    spread = rng.uniform(0.1, 0.9, bins) * rng.choice([0.3, 1])
    shared = rng.uniform(0, 0.8, bins) * rng.choice([0, 1])
    carried = rng.uniform(0, 1.5, bins - 1) * rng.choice([0, 1], bins - 1) * rng.choice([0, 1])
    return BinChain(
        tuple(shared), tuple(spread), tuple(rng.uniform(0.01, 0.99, bins - 1)), tuple(weights),
        tuple(carried),
    )  # fmt: skip


def sampled(M, way, epsilon, count, seed):
    """Mean and standard error of the hockey stick."""
    pair, rng = monte_carlo.Pair.from_gram(M), np.random.default_rng(seed)
    moments = pair.draws(way, pair.mixture(way, epsilon, count, 1e-3, rng), count, rng).moments(epsilon)
    return moments[0], math.sqrt(max(moments[1] - moments[0] ** 2, 0.0) / count)


@given(
    30, chain=chains(2, 6), multiplier=st.floats(0.4, 4), epsilon=st.floats(0, 3), way=st.sampled_from(WAYS),
    points=st.sampled_from([COARSE, FINE])
)  # fmt: skip
def test_a_chain_loses_no_less_than_quadrature_and_samples_say(chain, multiplier, epsilon, way, points):
    claimed, M = chain.hockey_stick(multiplier, way, epsilon, points), chain.gram / multiplier**2
    if chain.bins == 2:
        true, error = two_bin_delta(M, epsilon, way, 801), 0.0
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
@each(
    "chain, epsilons",
    (BinChain((0.0, 0.0), (0.8, 0.6), (1e-3,), (0.2, 0.1), (0.7,)), (0.0, 0.5, 1.5)),  # two bands
    (BinChain((0.3, 0.0), (0.9, 0.9), (0.1,), (0.01, 0.02)), np.linspace(0.0, 3.0, 13)),  # lattices of narrow bins
)
def test_a_chain_loses_no_less_than_quadrature_and_little_more(chain, epsilons, way):
    for epsilon in map(float, epsilons):
        true = two_bin_delta(chain.gram, epsilon, way, 801)
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


@given(
    40, bins=st.integers(2, 12), epochs=st.integers(1, 4), decay=st.floats(0.2, 2), seed=st.integers(0, 1000),
    random=st.booleans()
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
    for count, rho in ((16, 0.0), (16, 0.3), (1, 0.0), (64, 0.5)):
        assert chain_above(np.eye(count) * (1 - rho) + rho) is None
    assert chain_above(encoder_gram(64, 64, 0.5)) is None  # too many bins


@pytest.mark.slow
@each("multiplier, adjacency", (0.4, "zero-out"), (1.2, "zero-out"), (3.0, "zero-out"), (1.2, "replace-one"))
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
        ("links", (1.5,)), ("links", ()), ("alone", (0.0, 0.1)), ("shared", (-0.1, 0.1)), ("carried", (-0.1,))
    ):  # fmt: skip
        refuses(field, dataclasses.replace, good, **{field: wrong})
    refuses("chain", BallsInBinsGaussian, 1.0, 3, ((3, 0.1),), "zero-out", good)


def test_sums_over_lattices_are_never_below_integrals():
    walk = _Walk(BinChain((0.3, 0.2), (0.8, 0.6), (0.4,), (0.05, 0.1), (0.5,)), "kept", 0.0, COARSE)
    before, width = walk.inflation, walk.widths[0]
    lattice = walk._lattice(0.8, np.zeros(1), width)
    step, raised = lattice[1] - lattice[0], walk.inflation / before
    sums = [np.exp(-(((lattice - centre) / width) ** 2) / 2).sum() * step for centre in np.linspace(0, step, 41)]
    integral = width * math.sqrt(2 * math.pi)
    assert min(sums) < integral
    assert min(sums) * raised >= integral * (1 - 1e-12)
    assert max(sums) <= integral * walk.most_ripple * (1 + 1e-12)


@given(20, chain=chains(2, 6), way=st.sampled_from(["kept", "lost"]), points=st.sampled_from([COARSE, FINE]))
def test_the_mean_of_a_sum_grows_by_one_with_each_bin(chain, way, points):
    walk = _Walk(chain, way, 0.0, points)
    for r in range(chain.bins):
        walk.move(r)
        walk.add(r)
        mean = walk.mass.sum(axis=0) @ walk.grid
        assert mean == pytest.approx(r + 1, rel=0.02) if way == "kept" else mean <= (r + 1) * 1.2


KINDS = ("joint", "block", "per-mode", "kronecker")


def drawn(kind, n, T, seed):
    """A noise over both of seeds that all nodes hold; signs mixed."""
    rng = np.random.default_rng(seed)

    def encoder(size):
        return np.tril(rng.uniform(-1, 1, (size, size)), -1) / 2 + np.diag(rng.uniform(0.5, 2.0, size))

    F = rng.uniform(-1, 1, (n, n)) + 2 * np.eye(n)
    if kind == "joint":
        return JointNoise(encoder(T * n), T, n)
    if kind == "block":
        return JointNoise(np.kron(np.eye(T), F) @ encoder(T * n), T, n)
    C = np.stack([encoder(T) for _ in range(n)]) if kind == "per-mode" else encoder(T)
    return SpatioTemporalNoise(C, F, np.ones((n, n), dtype=bool), n)


def guarantee_of(noise, epochs, bins, model=None, **options):
    W = gossip.metropolis_hastings(f"complete:n={noise.num_nodes}" if noise.num_nodes > 2 else "path:n=2")
    algorithm = algorithms.dp_dsgd(Dynamics(W, 0.5), BallsInBins(epochs, bins))
    defaults = {"trust": model or trust.Eavesdropper(), "adjacency": "zero-out", "clip_norm": 1.0, "noise_std": 1.0}
    return applied(account, dataclasses.replace(algorithm, noise=noise), defaults | options)


def blocks_of(noise):
    """C[t, ., s, u] of the dense inverse of N, shape (T, n, T, n)."""
    T, n = noise.num_steps, noise.num_nodes
    return np.linalg.inv(noise.to_dense()).reshape(T, n, T, n)


def brute_force(noise, bins):
    """(largest M_rr, largest M_rq) over the nodes, by the sums of the definition."""
    C, largest, apart = blocks_of(noise), 0.0, 0.0
    for u in range(noise.num_nodes):
        M = np.zeros((bins, bins))
        for t in range(noise.num_steps):
            v = [sum(math.hypot(*C[t, :, s, u]) for s in range(r, t + 1, bins)) for r in range(bins)]
            M += np.outer(v, v)
        largest = max(largest, M.diagonal().max())
        apart = max(apart, (M - np.diag(M.diagonal())).max())
    return largest, apart


@given(
    120, kind=st.sampled_from(KINDS), n=st.integers(2, 3), epochs=st.integers(1, 3), bins=st.integers(2, 3),
    seed=st.integers(0, 9999)
)  # fmt: skip
def test_what_counts_of_the_noise_is_its_definition(kind, n, epochs, bins, seed):
    noise = drawn(kind, n, epochs * bins, seed)
    guarantee = guarantee_of(noise, epochs, bins)
    largest, apart = brute_force(noise, bins)
    assert guarantee.sensitivity >= math.sqrt(largest) * (1 - 1e-12)
    assert guarantee.sensitivity == pytest.approx(math.sqrt(largest), rel=1e-8)
    correlation, rho = guarantee.curve.correlations[0]
    assert correlation == bins
    assert rho * guarantee.sensitivity**2 >= apart * (1 - 1e-9)
    assert rho == pytest.approx(apart / largest, rel=1e-8)
    hidden = guarantee_of(noise, epochs, bins, trust.ReleasedOnly())
    assert hidden.sensitivity == guarantee.sensitivity
    assert "assumed to be seen" in hidden.why


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("seed", range(12))
def test_no_gradients_lose_more_than_is_certified(kind, seed):
    n, epochs, std = 2, 2, 2.5
    noise, rng = drawn(kind, n, 2 * epochs, seed), np.random.default_rng(seed)
    guarantee, C = guarantee_of(noise, epochs, 2, noise_std=std), blocks_of(noise)
    certified = {epsilon: guarantee.delta(epsilon) for epsilon in (0.2, 1.0)}
    for u in range(n):
        for _ in range(3):
            g = rng.choice([-1.0, 1.0], 2 * epochs)
            shifts = np.stack([sum(C[:, :, s, u] * g[s] for s in range(r, 2 * epochs, 2)).ravel() for r in range(2)])
            for epsilon, delta in certified.items():
                true = max(two_bin_delta(shifts @ shifts.T / std**2, epsilon, way) for way in ("kept", "lost"))
                assert true <= delta * (1 + 1e-3)


def test_equal_encoders_for_all_columns_are_one_encoder():
    shared = drawn("kronecker", 3, 6, 0)
    alike = SpatioTemporalNoise(np.stack([shared.encoder.array] * 3), shared.factor, np.ones((3, 3), dtype=bool), 3)
    shared_curve, other = (guarantee_of(noise, 2, 3) for noise in (shared, alike))
    assert other.sensitivity == pytest.approx(shared_curve.sensitivity, rel=1e-9)
    assert other.epsilon(1e-5) == pytest.approx(shared_curve.epsilon(1e-5), rel=1e-6)
    assert guarantee_of(alike, 2, 3, trust.LDP()).epsilon(1e-5) == math.inf


@given(
    80, data=st.data(), num_bins=st.integers(1, 4), epochs=st.integers(1, 3),
    kind=st.sampled_from([toeplitz, banded, buffered, inverse])
)  # fmt: skip
def test_it_is_never_below_the_dense_M_and_equal_where_no_signs_are_lost(data, num_bins, epochs, kind):
    encoder, C = data.draw(kind(num_bins * epochs))
    M, true = structured_gram(encoder, num_bins), dense_gram(C, num_bins)
    assert (true * (1 - 1e-12) <= M).all()
    if not (isinstance(encoder, Inverse) and isinstance(encoder.noising, Banded)) or encoder.nonnegative:
        assert_allclose(M, true, rtol=1e-9, atol=1e-9 * true.max())


@given(30, seed=st.integers(0, 9999), num_bins=st.integers(1, 3), epochs=st.integers(1, 3), off=st.floats(1e-3, 0.9))
def test_noise_that_is_off_by_rounding_of_any_kind_is_covered(seed, num_bins, epochs, off):
    rng, T = np.random.default_rng(seed), num_bins * epochs
    C, wrong = np.tril(rng.standard_normal((T, T))), np.tril(rng.standard_normal((T, T)))
    wrong *= off / np.linalg.norm(wrong)
    added = np.linalg.solve(np.eye(T) + wrong, C)
    assert (dense_gram(added, num_bins) <= streamed(dense_gram(C, num_bins), (1 - off) ** -2) * (1 + 1e-12)).all()


def algorithm(encoder, bins):
    T, dynamics = encoder.size, dynamics_on("ring:n=3", 0.1)
    return algorithms.mf_dsgd(dynamics, BallsInBins(epochs=T // bins, bins=bins), encoder)


def test_an_algorithm_has_the_M_of_its_encoder_written_out():
    encoder = Toeplitz([1.0, 0.5, 0.25], 12)
    built = algorithm(encoder, 4)
    written = CausalNoise(encoder.dense(), num_steps=12, num_nodes=3)
    assert_allclose(time_gram(built, [0, 1], 4), dense_gram(encoder.dense(), 4), rtol=1e-9)
    assert_allclose(structured_gram(encoder, 4), dense_gram(written.column_encoder(0), 4), rtol=1e-9)


def test_what_is_singular_or_too_large_is_refused(monkeypatch):
    unsupported("singular to working precision", lambda: structured_gram(Inverse(Toeplitz([1.0, -1e5], 64)), 4))
    unsupported("up to 4096 bins, got 8,192", lambda: time_gram(algorithm(Toeplitz([1.0, 0.5], 12), 4), [0], 8192))
    monkeypatch.setattr(bins, "MAX_PRODUCTS", 10)
    for encoder in (Toeplitz([1.0, 0.5], 12), Banded(np.ones((12, 1))), Inverse(Banded(np.ones((12, 1))))):
        unsupported("products, allowed are 1e", structured_gram, encoder, 4)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [Toeplitz(0.5 ** np.arange(8), 10_000), Banded(np.tri(10_000, 3))])
def test_ten_thousand_steps_take_no_array_of_steps_times_steps(encoder):
    tracemalloc.start()
    M, peak = time_gram(algorithm(encoder, 50), [0], 50), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000**2 / 4  # bytes: a thirty-second part of one such array
    assert np.isfinite(M).all()
