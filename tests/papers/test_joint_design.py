"""Weights designed for a covariance: allowed on the graph, bounded from below, and less noise in every turn."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import mfdl
from mfdl.testing.strategies.graphs import connected_graphs
from mfdl_papers.whisper.whisper_figures import joint_design, least_noise_weights


def random_weights(graph, rng):
    """Symmetric, on the graph, rows that sum to one."""
    n = len(graph)
    W = np.zeros((n, n))
    for i, j in graph.edges:
        W[i, j] = W[j, i] = rng.random()
    W /= max(1.0, W.sum(axis=1).max())
    return W + np.diag(1 - W.sum(axis=1))


@examples(30)
@given(graph=connected_graphs(2, 6), seed=st.integers(0, 2**16))
def test_no_weights_leave_less_noise_than_the_bound(graph, seed):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((len(graph), len(graph)))
    R = root @ root.T
    start = mfdl.gossip.metropolis_hastings(graph).weights.toarray()
    weights = least_noise_weights(graph, R, start)
    W = weights.gossip.weights.toarray()
    assert weights.gossip.is_doubly_stochastic
    assert weights.gossip.is_symmetric
    assert weights.objective == pytest.approx(np.trace(W @ R @ W.T))
    for other in [start, *(random_weights(graph, rng) for _ in range(20))]:
        assert np.trace(other @ R @ other.T) >= weights.lower_bound
    assert weights.lower_bound <= weights.objective
    assert weights.objective - weights.lower_bound <= 1e-3 * np.trace(R)


def test_designs_decrease_and_are_certified():
    design = joint_design("erdos-renyi:n=8,p=0.6,seed=1")
    assert all(after <= before for before, after in zip(design.objectives, design.objectives[1:], strict=False))
    assert design.objectives[-1] < 0.95 * design.objectives[0]
    assert max(design.gaps) < 2e-3
    assert np.linalg.inv(design.covariance.covariance).diagonal().max() <= 1 + 1e-9
