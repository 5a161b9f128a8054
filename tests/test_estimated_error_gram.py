"""Estimated error Grams: unbiased, positive semidefinite, and within their error bars as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mfdl import gossip
from mfdl.dynamics import Dynamics
from mfdl.error_gram import (
    OBJECTIVES,
    EstimatedGram,
    Probes,
    error_gram,
    estimated,
    estimated_error_gram,
    exact_or_estimated,
    temporal,
)
from mfdl.error_weights import ErrorWeights
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.factorization import (
    EstimatedFactorization,
    EstimatedProblem,
    evaluate,
    factorize,
    problem,
    square_root_encoder,
)
from mfdl.participation import Cyclic
from mfdl.testing import gossip_matrices


class Every(Probes):
    """All sign vectors there are, so that the average over probes is the expectation."""

    def signs(self, num_nodes):
        return 1.0 - 2.0 * (np.arange(2**num_nodes) >> np.arange(num_nodes)[:, None] & 1)


@examples(60)
@given(data=st.data(), T=st.integers(1, 5), momentum=st.sampled_from([0.0, 0.5]), objective=st.sampled_from(OBJECTIVES))
def test_the_average_over_all_probes_is_the_gram(data, T, momentum, objective):
    W = data.draw(gossip_matrices(max_nodes=5))
    n, rates = W.num_nodes, data.draw(st.sampled_from([1.0, [1.0, *[0.5] * (T - 1)]]))
    dynamics = Dynamics(W, rates, gossip_rounds=data.draw(st.integers(1, 2)), momentum=momentum)
    targets = ["nodes", data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n).filter(any))]
    target = data.draw(st.sampled_from([*targets, "average"] if W.is_symmetric else targets))
    how = {"weights": ErrorWeights("exponential:2", target), "objective": objective}
    if data.draw(st.booleans()):
        target = data.draw(st.sampled_from([*targets, "average"]))
        rounds = data.draw(st.integers(0, 2))
        how = {"weights": ErrorWeights(f"released:exponential:1+{rounds}", target), "objective": "post-average"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimated, "MIN_COUNTED", 1)
        H = estimated_error_gram(dynamics, T, probes=Every(2**n), **how)
    assert_allclose(H.gram, error_gram(dynamics, T, **how), rtol=1e-8, atol=1e-9)
    for of_probe in H.of_probes:
        assert_array_equal(of_probe, of_probe.T)
        assert np.linalg.eigvalsh(of_probe)[0] >= -1e-12 * np.trace(of_probe)


def coverage(dynamics, T, seeds, **how):
    """Share of intervals that hold the exact loss of an encoder, and the mean of their relative half widths."""
    C = square_root_encoder(T)
    N = np.linalg.inv(C)
    exact = float(np.sum(N * (error_gram(dynamics, T, **how) @ N)))
    found = [estimated_error_gram(dynamics, T, probes=Probes(8, seed), **how).loss(C) for seed in range(seeds)]
    held = np.mean([abs(estimate.value - exact) <= estimate.error for estimate in found])
    return held, np.mean([estimate.relative_error for estimate in found])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "spec"),
    [
        (gossip.metropolis_hastings, "ring:n=3000"),
        (gossip.metropolis_hastings, "torus:rows=50,cols=60"),
        (gossip.metropolis_hastings, "hypercube:dim=11"),
        (gossip.metropolis_hastings, "star:n=300"),
        (gossip.uniform, "star:n=1000"),
    ],
)
def test_intervals_hold_the_exact_loss_as_often_as_they_say(build, spec):
    # 95 % of 40: fewer than 34 have a chance of one in 100 if the intervals are honest
    held, width = coverage(Dynamics(build(spec)), 16, 40)
    assert held >= 34 / 40
    assert width < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("build", [gossip.metropolis_hastings, gossip.uniform])
@pytest.mark.parametrize(
    "spec",
    ["regular:n=3000,degree=8", "erdos-renyi:n=3000,p=0.004", "path:n=3000", "star:n=3000", "torus:rows=50,cols=60"],
)
def test_intervals_hold_at_three_thousand_nodes_over_a_hundred_seeds(build, spec):
    held, width = coverage(Dynamics(build(spec)), 48, 100)
    assert held >= 0.89  # one in 100 below, if they are honest
    assert width < 0.1


@pytest.mark.parametrize("target", ["some", "last"])
def test_intervals_hold_where_few_models_count(target):
    W = gossip.metropolis_hastings("regular:n=600,degree=4")
    some = (np.arange(600) % 20 == 0).astype(float)
    weights = ErrorWeights("last:2", "nodes") if target == "last" else ErrorWeights("all", some)
    held, _ = coverage(Dynamics(W, momentum=0.5), 8, 40, weights=weights)
    assert held >= 34 / 40


@pytest.mark.slow
def test_responses_at_some_nodes_only_widen_the_interval(monkeypatch):
    dynamics = Dynamics(gossip.uniform("erdos-renyi:n=1500,p=0.01"))
    _, all_nodes = coverage(dynamics, 16, 20)
    monkeypatch.setattr(estimated, "BLOCK_BYTES", 1)  # the fewest, 1000
    held, some_nodes = coverage(dynamics, 16, 40)
    assert held >= 34 / 40
    assert all_nodes < some_nodes < 3 * all_nodes


def test_a_seed_gives_one_estimate():
    dynamics = Dynamics(gossip.metropolis_hastings("path:n=200"))
    first, again, other = (estimated_error_gram(dynamics, 8, probes=Probes(3, seed)).gram for seed in (1, 1, 2))
    assert_array_equal(first, again)
    assert (first != other).any()


def test_more_probes_narrow_the_interval():
    dynamics = Dynamics(gossip.metropolis_hastings("regular:n=2000,degree=4"))
    few, many = (estimated_error_gram(dynamics, 16, probes=Probes(count)).trace.error for count in (8, 128))
    assert many < few / 2.5


@pytest.fixture
def nothing_in_reach(monkeypatch):
    monkeypatch.setattr(estimated, "EXACT_WORK", 0)
    monkeypatch.setattr(temporal, "MAX_DENSE", 0)


def test_a_factorization_of_an_estimate_says_so(nothing_in_reach):
    dynamics, scheme = Dynamics(gossip.metropolis_hastings("regular:n=400,degree=4")), Cyclic(epochs=3, period=4)
    posed = problem(dynamics, scheme, probes=Probes(8, 3))
    assert isinstance(posed, EstimatedProblem)
    solved = factorize(dynamics, scheme, probes=Probes(8, 3))
    assert isinstance(solved, EstimatedFactorization)
    assert "H is estimated from 8 random probes: loss, lower bound and gap refer to this estimate" in solved.notes[-1]
    exact = float(np.trace(error_gram(dynamics, 12) @ np.linalg.inv(solved.gram)))
    assert abs(solved.loss - exact) <= 2 * solved.loss_error
    assert 0 < solved.loss_error < 0.2 * solved.loss
    assert solved.gap <= 1e-4
    assert solved.loss == pytest.approx(float(np.trace(posed.error_gram @ np.linalg.inv(solved.gram))), rel=1e-9)
    fixed = evaluate(posed, square_root_encoder(12), lower_bound=solved.lower_bound)
    assert fixed.loss_error > 0
    assert len(fixed.notes) == 1


def test_what_is_in_reach_is_exact(nothing_in_reach):
    star, ring = (Dynamics(gossip.metropolis_hastings(spec)) for spec in ("star:n=30", "ring:n=30"))
    assert isinstance(exact_or_estimated(star, 4), EstimatedGram)
    assert_array_equal(exact_or_estimated(ring, 4), error_gram(ring, 4))
    average = ErrorWeights("all", "average")
    assert_allclose(exact_or_estimated(star, 4, weights=average), error_gram(star, 4, weights=average), rtol=1e-12)


def test_privacy_takes_nothing_of_the_estimate(nothing_in_reach):
    # whatever the probes say, the encoder has the sensitivity that its own Gram has
    from mfdl import algorithms, trust
    from mfdl.noise_scale import calibrate

    dynamics, scheme = Dynamics(gossip.metropolis_hastings("star:n=30")), Cyclic(epochs=3, period=2)
    for seed in range(3):
        encoder = factorize(dynamics, scheme, probes=Probes(2, seed)).encoder
        built = algorithms.mf_dsgd(dynamics, scheme, encoder)
        stated = calibrate(built, trust=trust.LDP(), adjacency="replace-one", clip_norm=1.0, mu=1.0)
        X = encoder.T @ encoder
        largest = max(np.abs(X[np.ix_(at, at)]).sum() for at in (range(c, 6, 2) for c in range(2)))
        assert stated.noise_std == pytest.approx(2 * largest**0.5, rel=1e-9)


def test_refusals(monkeypatch):
    directed = Dynamics(gossip.uniform("star:n=30"))
    with pytest.raises(UnsupportedMechanism, match="1000 nodes or more count, got their average"):
        estimated_error_gram(directed, 4, weights=ErrorWeights("all", "average"))
    with pytest.raises(UnsupportedMechanism, match="1000 nodes or more count, got 1"):
        estimated_error_gram(directed, 4, weights=ErrorWeights("all", [1, *[0] * 29]))
    with pytest.raises(InvalidInput, match="count"):
        Probes(1)
    monkeypatch.setattr(temporal, "MAX_WORK", 0)
    monkeypatch.setattr(temporal, "MAX_DENSE", 0)
    monkeypatch.setattr(temporal.in_reach, "__defaults__", (0,))
    with pytest.raises(UnsupportedMechanism, match=r"30 nodes over 4 steps .* estimated_error_gram"):
        error_gram(directed, 4)
