"""The gossip workload, its inverse and transpose, against block matrices written out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from mfdl import gossip
from mfdl.errors import InvalidInput
from mfdl.gossip import GossipMatrix
from mfdl.operators import GossipRecursion, InverseGossipRecursion
from mfdl.testing import dense_gossip_workload, gossip_matrices, gossip_sequences

STEPS = st.integers(1, 5)


def weights_of(W, num_steps):
    return W.weights if isinstance(W, GossipMatrix) else [W.at(t).weights for t in range(num_steps)]


@st.composite
def cases(draw):
    if draw(st.booleans()):
        return draw(gossip_matrices(max_nodes=5)), draw(STEPS)
    W = draw(gossip_sequences(max_nodes=5, max_length=5))
    return W, draw(st.integers(1, 5 if W.repeat else len(W.matrices)))


@settings(deadline=None)
@given(case=cases())
def test_workload_transpose_and_inverse_match_dense(case):
    W, T = case
    dense = dense_gossip_workload(W, T)
    workload = GossipRecursion(weights_of(W, T), T)
    inverse = InverseGossipRecursion(weights_of(W, T), T)
    eye = np.eye(len(dense))
    # products of at most four stochastic matrices: entries at most 1
    assert_allclose(workload.to_dense(), dense, atol=1e-14)
    assert_allclose(workload.T @ eye, dense.T, atol=1e-14)
    assert_allclose(inverse @ dense, eye, atol=1e-14)
    assert_allclose(workload @ (inverse @ eye), eye, atol=1e-14)
    assert_allclose(inverse.T @ dense.T, eye, atol=1e-14)


def test_subdiagonal_i_carries_the_ith_power():
    # the main diagonal is number 0: theta_2 = W (W theta_0 - eta W g_0 - eta g_1)
    W = gossip.uniform("florentine")
    n, T = W.num_nodes, 5
    dense = GossipRecursion(W.weights, T).to_dense()
    for t in range(T):
        for s in range(T):
            expected = np.linalg.matrix_power(W.dense(), t - s) if s <= t else np.zeros((n, n))
            assert_allclose(dense[t * n : (t + 1) * n, s * n : (s + 1) * n], expected, atol=1e-15)


def test_the_averaging_between_two_steps_uses_the_earlier_weights():
    first, second = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.5, 0.5]])
    per_step = [sp.csr_array(first), sp.csr_array(second), sp.csr_array(np.eye(2))]
    dense = GossipRecursion(per_step, 3).to_dense()
    assert_allclose(dense[2:4, 0:2], first)
    assert_allclose(dense[4:6, 2:4], second)
    assert_allclose(dense[4:6, 0:2], second @ first)  # not first @ second


@settings(deadline=None)
@given(case=cases())
def test_smallest_singular_value_bound(case):
    W, T = case
    per_step = [W.at(t).dense() for t in range(T)]
    singular = np.linalg.svd(GossipRecursion(weights_of(W, T), T).to_dense(), compute_uv=False)
    assert singular.min() >= 1 / (1 + max(np.linalg.norm(w, 2) for w in per_step)) - 1e-12


def test_too_few_matrices_are_refused():
    per_step = [sp.csr_array(np.eye(2))] * 2
    for operator in (GossipRecursion, InverseGossipRecursion):
        with pytest.raises(InvalidInput, match="one matrix per step, got 2 for num_steps=3"):
            operator(per_step, 3)


def test_large_sparse_workload_needs_no_dense_block():
    W = gossip.metropolis_hastings("ring:n=2000")
    x = np.random.default_rng(0).standard_normal((2000 * 50, 1))  # dense: 80 GB
    there = GossipRecursion(W.weights, 50) @ x
    assert_allclose(InverseGossipRecursion(W.weights, 50) @ there, x, atol=1e-12)
