"""The limit of one release: below the noise of every one-release mechanism of a trust model, and attained."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import ZERO_OUT, assume, each, given, st

import mfdl
from mfdl import trust
from mfdl.objective import Curvature
from mfdl.planning.run_plan import ReleaseLimit
from mfdl.testing.strategies import gossip_matrices

ONCE = mfdl.EveryStep(1)


def limit_of(model, num_nodes, records=1, **options):
    curved = options.get("curvature"), options.get("distance", 1.0)
    return ReleaseLimit.at_budget(mfdl.Privacy(model, **ZERO_OUT), 1.0, num_nodes, records, *curved)


def std_of_the_mean(algorithm, model):
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(model, **ZERO_OUT), mu=1.0)
    noise = np.asarray(algorithm.noise.matmat(np.eye(algorithm.noise.shape[1])))
    return mechanism.noise_std * np.linalg.norm(noise.sum(axis=0)) / algorithm.num_nodes


@given(80, W=gossip_matrices(min_nodes=2, max_nodes=5), data=st.data())
def test_no_noise_over_nodes_beats_the_limit(W, data):
    n = W.num_nodes
    size = data.draw(st.integers(0, n - 1))
    model = data.draw(st.sampled_from([trust.Coalitions(size), trust.Eavesdropper(), trust.LDP()]))
    holders = data.draw(st.lists(st.sets(st.integers(0, n - 1), min_size=1), max_size=4))
    groups = [sorted(group) for group in holders]
    draws = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    parts = [(A := draws.normal(size=(len(group), len(group)))) @ A.T for group in groups]
    cancelling = [np.eye(len(group)) - 1 / len(group) for group in groups]  # adds nothing to the sum
    weight = data.draw(st.sampled_from([0.0, 0.1, 1.0]))
    parts = [weight * part + 10 * other for part, other in zip(parts, cancelling, strict=True)]
    kept = [k for k, part in enumerate(parts) if np.abs(part).max() > 0]
    shared = {"groups": [groups[k] for k in kept], "private_variance": 1.0}
    algorithm = mfdl.algorithms.spatial_covariance(mfdl.Dynamics(W), ONCE, [parts[k] for k in kept], **shared)
    assert std_of_the_mean(algorithm, model) >= limit_of(model, n).noise_std * (1 - 1e-9)


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_noise_that_cancels_over_edges_attains_the_limit_against_coalitions(size):
    dynamics, model = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("complete:n=5")), trust.Coalitions(size)
    algorithm = mfdl.algorithms.decor(dynamics, ONCE, sigma_ldp=1.0, sigma_cor=100.0)
    assert std_of_the_mean(algorithm, model) == pytest.approx(limit_of(model, 5).noise_std, rel=1e-3)


def test_independent_noise_attains_the_limit_under_ldp():
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=5")), ONCE)
    assert std_of_the_mean(algorithm, trust.LDP()) == pytest.approx(limit_of(trust.LDP(), 5).noise_std)


def test_noise_that_is_optimal_against_each_receiver_is_above_the_limit():
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=5"), gossip_rounds=4)
    privacy = mfdl.Privacy(trust.AnyReceiver(), **ZERO_OUT)
    optimal = mfdl.optimize(dynamics, ONCE, privacy, mu=1.0, progress=False).algorithm
    assert optimal.name == "trust-optimal"
    limit, ldp = (limit_of(model, 5).noise_std for model in (trust.AnyReceiver(), trust.LDP()))
    assert limit < std_of_the_mean(optimal, trust.AnyReceiver()) < ldp


@given(st.lists(st.just(0.0) | st.floats(1e-6, 10), min_size=1, max_size=4), st.floats(0.1, 3))
def test_a_direction_costs_at_most_its_noise_and_at_most_the_loss_at_the_start(eigenvalues, distance):
    assume(any(eigenvalues))
    limit = limit_of(trust.LDP(), 4, 10, curvature=Curvature(eigenvalues), distance=distance)
    curved = np.array(eigenvalues)[np.array(eigenvalues) > 0]
    shares = np.linspace(0, 1, 101)[:, None]  # of a direction that is learned: bias and noise of the estimate
    bias, noise = curved / 2 * ((1 - shares) * distance) ** 2, (shares * limit.noise_std) ** 2 / (2 * curved)
    assert (bias + noise).min(axis=0).sum() >= limit.loss * (1 - 1e-9)
    assert np.minimum(bias[0], noise[-1]).sum() <= 2 * limit.loss * (1 + 1e-9)


@each(
    "model, mechanisms",
    (trust.LDP(), ["dp-dsgd", "mafalda"]), (trust.Eavesdropper(), ["corn", "kronecker"]),
    (trust.Coalitions(2), ["decor"]), (trust.AnyReceiver(), ["mafalda"]), (trust.Central(), ["cdp"]),
    ids=lambda value: getattr(value, "name", None),
)  # fmt: skip
def test_no_plan_of_public_batches_is_below_the_limit(model, mechanisms):
    small = {"batches": [1, 2], "epochs": [4], "gossip_rounds": [1, 6], "max_steps": 8, "curvature": "power:2:6"}
    plan = mfdl.plan("ring:n=4", 20, mfdl.Privacy(model, **ZERO_OUT), mu=1.0, mechanisms=mechanisms, **small)
    assert plan.limit == limit_of(model, 4, 20, curvature=Curvature.parse("power:2:6"))
    assert 0 < plan.limit.loss <= plan.designs[0].loss
    assert f"{plan.limit.loss:.3g}" in str(plan)
    assert math.isclose(plan.to_dict()["limit"]["predicted_excess_loss"], plan.limit.loss)
    assert all(line.get_ydata()[0] == plan.limit.loss for axes in plan.plot().axes for line in axes.lines[-1:])


def test_the_limit_falls_with_the_square_of_what_is_known():
    stds = [limit_of(trust.Coalitions(q), 8).noise_std for q in range(8)]
    assert_allclose(stds, [1 / math.sqrt(8 * (8 - q)) for q in range(8)])
    assert stds[-1] == limit_of(trust.LDP(), 8).noise_std == limit_of(trust.FullCollusion(), 8).noise_std
    assert stds[0] == limit_of(trust.Central(), 8).noise_std == limit_of(trust.SecureSum(), 8).noise_std
