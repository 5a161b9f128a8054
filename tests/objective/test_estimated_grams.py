"""Estimates by probes: unbiased, positive semidefinite, and within their error bars as often as they say."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import dynamics_on, each, given, refuses, st

from mfdl import Cyclic, Dynamics, ErrorWeights, InvalidInput, Privacy, UnsupportedMechanism, algorithms, gossip, graphs
from mfdl.factorization import evaluate, factorize, problem, square_root_encoder
from mfdl.factorization.temporal import EstimatedFactorization, EstimatedProblem
from mfdl.objective import NoiseObjective, Probes, estimated_grams, time_grams
from mfdl.objective.counted_models import COUNTED_MODELS
from mfdl.objective.estimated_grams import EstimatedGram
from mfdl.testing import gossip_matrices


class Every(Probes):
    """All sign vectors there are, so that the average over probes is the expectation."""

    def signs(self, num_nodes):
        return 1.0 - 2.0 * (np.arange(2**num_nodes) >> np.arange(num_nodes)[:, None] & 1)


@given(
    60, data=st.data(), T=st.integers(1, 5), momentum=st.sampled_from([0.0, 0.5]),
    counted_models=st.sampled_from(COUNTED_MODELS),
)  # fmt: skip
def test_the_average_over_all_probes_is_the_gram(data, T, momentum, counted_models):
    W = data.draw(gossip_matrices(max_nodes=5))
    n, rates = W.num_nodes, data.draw(st.sampled_from([1.0, [1.0, *[0.5] * (T - 1)]]))
    dynamics = Dynamics(W, rates, gossip_rounds=data.draw(st.integers(1, 2)), momentum=momentum)
    targets = ["nodes", data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n).filter(any))]
    released = data.draw(st.booleans())
    target = data.draw(st.sampled_from([*targets, "average"] if released or W.is_symmetric else targets))
    if released:
        steps, counted_models = f"released:exponential:1+{data.draw(st.integers(0, 2))}", "post-average"
    else:
        steps = "exponential:2"
    counted = NoiseObjective(dynamics, T, ErrorWeights(steps, target), counted_models)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimated_grams, "MIN_COUNTED", 1)
        H = counted.estimated(Every(2**n))
    assert_allclose(H.gram, counted.over_steps(), rtol=1e-8, atol=1e-9)
    for of_probe in H.of_probes:
        assert_array_equal(of_probe, of_probe.T)
        assert np.linalg.eigvalsh(of_probe)[0] >= -1e-12 * np.trace(of_probe)


def coverage(exact, estimates):
    """Share of intervals that hold the exact value, and the mean of their relative half widths."""
    inside = np.mean([abs(estimate.value - exact) <= estimate.error for estimate in estimates])
    return inside, np.mean([estimate.relative_error for estimate in estimates])


def coverage_of_losses(counted, seeds):
    C = square_root_encoder(counted.num_steps)
    N = np.linalg.inv(C)
    exact = float(np.sum(N * (counted.over_steps() @ N)))
    return coverage(exact, [counted.estimated(Probes(8, seed)).objective(C) for seed in range(seeds)])


MH, UNIFORM = gossip.metropolis_hastings, gossip.uniform
LONG = ["regular:n=1000,degree=8", "erdos-renyi:n=1000,p=0.012", "path:n=1000", "star:n=1000", "torus:rows=25,cols=40"]


@pytest.mark.slow
@each(
    "build, spec, T, widest",
    *((MH, spec, 16, 0.2) for spec in ("ring:n=3000", "torus:rows=50,cols=60", "hypercube:dim=11", "star:n=300")),
    (UNIFORM, "star:n=1000", 16, 0.2),
    *((build, spec, 48, 0.1) for build in (MH, UNIFORM) for spec in LONG),
)
def test_intervals_hold_the_exact_loss_as_often_as_they_say(build, spec, T, widest):
    # 95 % of 40: fewer than 34 have a chance of one in 100 if the intervals are honest
    inside, width = coverage_of_losses(NoiseObjective(Dynamics(build(spec)), T), 40)
    assert inside >= 34 / 40
    assert width < widest


@each("weights", ErrorWeights("all", (np.arange(600) % 20 == 0).astype(float)), ErrorWeights("last:2"))
def test_intervals_hold_where_few_models_count(weights):
    dynamics = dynamics_on("regular:n=600,degree=4", momentum=0.5)
    assert coverage_of_losses(NoiseObjective(dynamics, 8, weights), 40)[0] >= 34 / 40


@pytest.mark.slow
def test_responses_at_some_nodes_only_widen_the_interval(monkeypatch):
    counted = NoiseObjective(Dynamics(gossip.uniform("erdos-renyi:n=1500,p=0.01")), 16)
    _, all_nodes = coverage_of_losses(counted, 20)
    monkeypatch.setattr(estimated_grams, "BLOCK_BYTES", 1)  # the fewest, 1000
    inside, some_nodes = coverage_of_losses(counted, 40)
    assert inside >= 34 / 40
    assert all_nodes < some_nodes < 3 * all_nodes


def test_a_seed_gives_one_estimate_and_more_probes_a_narrower_one():
    path = NoiseObjective(dynamics_on("path:n=200"), 8)
    first, again, other = (path.estimated(Probes(3, seed)).gram for seed in (1, 1, 2))
    assert_array_equal(first, again)
    assert (first != other).any()
    regular = NoiseObjective(dynamics_on("regular:n=2000,degree=4"), 16)
    few, many = (regular.estimated(Probes(count)).trace.error for count in (8, 128))
    assert many < few / 2.5


@pytest.fixture
def nothing_in_reach(monkeypatch):
    monkeypatch.setattr(estimated_grams, "EXACT_WORK", 0)
    monkeypatch.setattr(time_grams, "MAX_DENSE", 0)


def test_a_factorization_of_an_estimate_says_so(nothing_in_reach):
    dynamics, scheme = dynamics_on("regular:n=400,degree=4"), Cyclic(epochs=3, period=4)
    posed = problem(dynamics, scheme, probes=Probes(8, 3))
    assert isinstance(posed, EstimatedProblem)
    solved = factorize(dynamics, scheme, probes=Probes(8, 3))
    assert isinstance(solved, EstimatedFactorization)
    assert "H is estimated from 8 random probes" in solved.notes[-1]
    exact = float(np.trace(NoiseObjective(dynamics, 12).over_steps() @ np.linalg.inv(solved.gram)))
    assert abs(solved.objective - exact) <= 2 * solved.objective_error
    assert 0 < solved.objective_error < 0.2 * solved.objective
    assert solved.gap <= 1e-4
    assert solved.objective == pytest.approx(float(np.trace(posed.error_gram @ np.linalg.inv(solved.gram))), rel=1e-9)
    fixed = evaluate(posed, square_root_encoder(12), lower_bound=solved.lower_bound)
    assert fixed.objective_error > 0
    assert len(fixed.notes) == 1


def test_an_exact_gram_in_reach_is_taken(nothing_in_reach):
    star, ring = (dynamics_on(spec) for spec in ("star:n=30", "ring:n=30"))
    assert isinstance(NoiseObjective(star, 4).exact_or_estimated(), EstimatedGram)
    for counted in (NoiseObjective(ring, 4), NoiseObjective(star, 4, ErrorWeights("all", "average"))):
        assert_array_equal(counted.exact_or_estimated(), counted.over_steps())


def test_privacy_takes_nothing_of_the_estimate(nothing_in_reach):
    # whatever the probes say, the encoder has the sensitivity that its own Gram has
    from mfdl import trust
    from mfdl.noise_scale import calibrate

    dynamics, scheme = dynamics_on("star:n=30"), Cyclic(epochs=3, period=2)
    for seed in range(3):
        encoder = factorize(dynamics, scheme, probes=Probes(2, seed)).encoder
        built = algorithms.mf_dsgd(dynamics, scheme, encoder)
        mechanism = calibrate(built, Privacy(trust.LDP(), adjacency="replace-one", clip_norm=1.0), mu=1.0)
        X = encoder.T @ encoder
        largest = max(np.abs(X[np.ix_(at, at)]).sum() for at in (range(c, 6, 2) for c in range(2)))
        assert mechanism.noise_std == pytest.approx(2 * largest**0.5, rel=1e-9)


SYMMETRIC = gossip_matrices(max_nodes=5).filter(lambda W: W.is_symmetric)


def cost_by_nodes(counted, F):
    return float(np.sum(F.toarray() * (counted.over_nodes() @ F.toarray())))


@given(60, data=st.data(), W=SYMMETRIC, T=st.integers(1, 6), counted_models=st.sampled_from(COUNTED_MODELS))
def test_the_average_over_all_probes_is_the_cost_of_fresh_noise(data, W, T, counted_models):
    columns = data.draw(st.integers(1, 4))
    entries = st.lists(st.integers(-2, 2), min_size=W.num_nodes * columns, max_size=W.num_nodes * columns)
    F = sp.csr_array(np.array(data.draw(entries), dtype=float).reshape(-1, columns))
    rates = data.draw(st.sampled_from([1.0, [1.0, *[0.5] * (T - 1)]]))
    dynamics = Dynamics(W, rates, gossip_rounds=data.draw(st.integers(1, 2)), momentum=0.5, weight_decay=0.1)
    weights = ErrorWeights(data.draw(st.sampled_from(["all", "exponential:2"])))
    counted = NoiseObjective(dynamics, T, weights, counted_models)
    estimate = counted.fresh_noise(F, Every(2**columns))
    assert_allclose(estimate.value, cost_by_nodes(counted, F), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", ["ring:n=12", "torus:rows=3,cols=5", "hypercube:dim=3", "complete:n=6"])
def test_noise_of_one_size_has_its_cost_in_closed_form(spec):
    dynamics = dynamics_on(spec, [1.0, 0.5, 0.25], gossip_rounds=2, momentum=0.5)
    counted, F = NoiseObjective(dynamics, 3), sp.csr_array(3.0 * sp.eye_array(dynamics.num_nodes))
    estimate = counted.fresh_noise(F, Probes(2, seed=9))
    assert estimate.error == 0.0
    assert_allclose(estimate.value, cost_by_nodes(counted, F), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp-dsgd", "decor"])
@pytest.mark.parametrize("spec", ["regular:n=1000,degree=8", "star:n=300", "path:n=1000", "erdos-renyi:n=1000,p=0.01"])
def test_intervals_hold_the_exact_cost_as_often_as_they_say(name, spec):
    dynamics = dynamics_on(spec)
    F = algorithms.build(name, dynamics, Cyclic(16, 1)).noise.causal.mixing
    counted = NoiseObjective(dynamics, 16)
    estimates = [counted.fresh_noise(F, Probes(8, seed)) for seed in range(40)]
    assert coverage(cost_by_nodes(counted, F), estimates)[0] >= 34 / 40


def test_memory_of_fresh_noise_grows_with_the_edges():
    peaks = []
    for n in (2_000, 8_000):
        dynamics = dynamics_on(graphs.load_sparse(f"regular:n={n},degree=4"))
        F = sp.csr_array(sp.diags_array(np.arange(1.0, n + 1)))
        tracemalloc.start()
        try:
            NoiseObjective(dynamics, 8).fresh_noise(F)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0] < 5 * 2_000 * 8 * 100  # n x n would be 32 MB and 512 MB


DIRECTED = Dynamics(gossip.uniform("star:n=30"))


def counted_at(target):
    return NoiseObjective(DIRECTED, 4, ErrorWeights("all", target))


@each(
    "call, message",
    (lambda: counted_at("average").estimated(), "1000 nodes or more count, got their average"),
    (lambda: counted_at([1, *[0] * 29]).estimated(), "1000 nodes or more count, got 1"),
    (lambda: NoiseObjective(DIRECTED, 4).over_steps(), "30 nodes over 4 steps"),
    (lambda: NoiseObjective(DIRECTED, 4).fresh_noise(np.eye(29)), "a row for each of 30 nodes"),
    (lambda: Probes(1), "count"),
)
def test_refusals(call, message, monkeypatch):
    monkeypatch.setattr(time_grams, "MAX_WORK", 0)
    monkeypatch.setattr(time_grams, "MAX_DENSE", 0)
    refuses(message, call, error=(InvalidInput, UnsupportedMechanism))


@pytest.mark.slow
@pytest.mark.parametrize("build", [gossip.metropolis_hastings, gossip.uniform])
@pytest.mark.parametrize(
    "spec",
    ["regular:n=1000,degree=8", "erdos-renyi:n=1000,p=0.012", "path:n=1000", "star:n=1000", "torus:rows=25,cols=40"],
)
def test_intervals_hold_over_many_steps(build, spec):
    inside, width = coverage_of_losses(NoiseObjective(Dynamics(build(spec)), 48), 40)
    assert inside >= 34 / 40
    assert width < 0.1
