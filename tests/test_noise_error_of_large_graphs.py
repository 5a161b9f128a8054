"""Noise in the models of graphs too large for arrays over nodes: unbiased, within its error bars, and without them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from test_estimated_error_gram import Every

import mfdl
from mfdl import algorithms, gossip, graphs, noise_error
from mfdl.dynamics import Dynamics
from mfdl.error_gram import OBJECTIVES, Probes, estimated, fresh_noise_cost, spatial_error_gram
from mfdl.error_weights import ErrorWeights
from mfdl.errors import UnsupportedMechanism
from mfdl.gossip.matrix import GossipMatrix
from mfdl.graphs import SparseGraph
from mfdl.participation import Cyclic
from mfdl.reporting.compare import run_comparison
from mfdl.reporting.comparison_config import ComparisonConfig
from mfdl.testing import gossip_matrices

SYMMETRIC = gossip_matrices(max_nodes=5).filter(lambda W: W.is_symmetric)


def cost_by_nodes(dynamics, F, T, **how):
    return float(np.sum(F.toarray() * (spatial_error_gram(dynamics, num_steps=T, **how) @ F.toarray())))


@examples(60)
@given(data=st.data(), W=SYMMETRIC, T=st.integers(1, 6), objective=st.sampled_from(OBJECTIVES))
def test_the_average_over_all_probes_is_the_cost(data, W, T, objective):
    columns = data.draw(st.integers(1, 4))
    entries = st.lists(st.integers(-2, 2), min_size=W.num_nodes * columns, max_size=W.num_nodes * columns)
    F = sp.csr_array(np.array(data.draw(entries), dtype=float).reshape(-1, columns))
    rates = data.draw(st.sampled_from([1.0, [1.0, *[0.5] * (T - 1)]]))
    dynamics = Dynamics(W, rates, gossip_rounds=data.draw(st.integers(1, 2)), momentum=0.5, weight_decay=0.1)
    how = {"weights": ErrorWeights(data.draw(st.sampled_from(["all", "exponential:2"]))), "objective": objective}
    found = fresh_noise_cost(dynamics, F, T, probes=Every(2**columns), **how)
    assert_allclose(found.value, cost_by_nodes(dynamics, F, T, **how), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", ["ring:n=12", "torus:rows=3,cols=5", "hypercube:dim=3", "complete:n=6"])
def test_noise_of_one_size_has_it_in_closed_form(spec):
    dynamics = Dynamics(gossip.metropolis_hastings(spec), [1.0, 0.5, 0.25], gossip_rounds=2, momentum=0.5)
    F = sp.csr_array(3.0 * sp.eye_array(dynamics.num_nodes))
    found = fresh_noise_cost(dynamics, F, 3, probes=Probes(2, seed=9))
    assert found.error == 0.0
    assert_allclose(found.value, cost_by_nodes(dynamics, F, 3), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp-dsgd", "decor"])
@pytest.mark.parametrize("spec", ["regular:n=1000,degree=8", "star:n=300", "path:n=1000", "erdos-renyi:n=1000,p=0.01"])
def test_intervals_hold_the_exact_cost_as_often_as_they_say(name, spec):
    # 95 % of 40: fewer than 34 have a chance of one in 100 if the intervals are honest
    dynamics = Dynamics(gossip.metropolis_hastings(spec))
    F = algorithms.build(name, dynamics, Cyclic(16, 1)).noise.causal.mixing
    exact = cost_by_nodes(dynamics, F, 16)
    found = [fresh_noise_cost(dynamics, F, 16, probes=Probes(8, seed)) for seed in range(40)]
    assert sum(abs(one.value - exact) <= one.error for one in found) >= 34


@pytest.mark.parametrize("name", ["dp-dsgd", "decor", "anti-pgd", "bisr", "none"])
@pytest.mark.parametrize("divisor", [1.0, 3.0])
def test_an_estimate_holds_the_exact_error(name, divisor, monkeypatch):
    dynamics, part = Dynamics(gossip.metropolis_hastings("regular:n=200,degree=6")), Cyclic(3, 2)
    one = algorithms.build(name, dynamics, part).with_divisors(np.full(200, divisor))
    exact = noise_error.noise_error(one)
    assert noise_error.estimated_noise_error(one) == (exact, 0.0)
    monkeypatch.setattr(noise_error, "MAX_DENSE", 100)
    monkeypatch.setattr(estimated, "EXACT_WORK", 0)  # what probes are spared, which small graphs have
    found = noise_error.estimated_noise_error(one)
    assert abs(found.value - exact) <= found.error or found.value == pytest.approx(exact, rel=1e-9)


def test_what_has_no_estimate_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(noise_error, "MAX_DENSE", 3)
    ring, star, part = gossip.metropolis_hastings("ring:n=4"), gossip.uniform("star:n=4"), Cyclic(2, 2)
    with pytest.raises(UnsupportedMechanism, match="constant symmetric gossip"):
        noise_error.estimated_noise_error(algorithms.dp_dsgd(Dynamics(star), part))
    own = algorithms.mf_dsgd(Dynamics(ring), part, np.stack([np.eye(4) + np.tri(4)] * 4))
    with pytest.raises(UnsupportedMechanism, match="alike at all nodes"):
        noise_error.estimated_noise_error(own)
    with pytest.raises(UnsupportedMechanism, match="plain gossip with noise on gradients"):
        noise_error.estimated_noise_error(algorithms.zip_dl(Dynamics(ring), part))


def test_memory_grows_with_the_edges():
    peaks = []
    for n in (2_000, 8_000):
        dynamics = Dynamics(gossip.metropolis_hastings(graphs.load_sparse(f"regular:n={n},degree=4")))
        F = sp.csr_array(sp.diags_array(np.arange(1.0, n + 1)))
        tracemalloc.start()
        try:
            fresh_noise_cost(dynamics, F, 8)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0] < 5 * 2_000 * 8 * 100  # n x n would be 32 MB and 512 MB


def test_a_comparison_makes_no_graph_of_networkx_and_no_array_over_nodes(tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("not on a graph of 100,000 nodes")

    monkeypatch.setattr(noise_error, "MAX_DENSE", 10)
    for made in (SparseGraph, "networkx"), (GossipMatrix, "graph"), (GossipMatrix, "dense"), (graphs, "load"):
        monkeypatch.setattr(*made, refuse)
    config = ComparisonConfig(
        graph="regular:n=40,degree=4", task="logistic:train_records=80", mechanisms=("dp-dsgd",), epochs=1, period=2,
        seeds=1,
    )  # fmt: skip
    (row,) = run_comparison(config, tmp_path, progress=False)["mechanisms"]
    assert 0 < row["objective_error"] < row["objective"]


def test_a_mechanism_says_how_far_its_objective_may_be_off(monkeypatch):
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("regular:n=40,degree=4")), Cyclic(1, 2))
    how = {"trust": mfdl.trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0, "mu": 1.0}
    exact = mfdl.calibrate(algorithm, **how)
    assert exact.objective_error == 0.0
    monkeypatch.setattr(noise_error, "MAX_DENSE", 10)
    estimate = mfdl.calibrate(algorithm, **how)
    assert 0 < abs(estimate.objective - exact.objective) <= estimate.objective_error
