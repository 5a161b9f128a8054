"""The flat index and the commutation: one order, checked against index arithmetic written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import given, refuses, st

from mfdl.operators import TimeNodeAxis

AXES = st.builds(TimeNodeAxis, num_steps=st.integers(1, 6), num_nodes=st.integers(1, 6))


@given(axis=AXES)
def test_flat_index_is_time_major_and_a_bijection(axis):
    T, n = axis.num_steps, axis.num_nodes
    by_node = [[axis.flat(t, u) for t in range(T)] for u in range(n)]
    assert [axis.flat(t, u) for t in range(T) for u in range(n)] == list(range(axis.size))
    assert [axis.node_columns(u).tolist() for u in range(n)] == by_node
    assert axis.node_major().tolist() == np.concatenate(by_node).tolist()


@given(axis=AXES)
def test_commutation_entries_and_indexing(axis):
    T, n = axis.num_steps, axis.num_nodes
    K = axis.commutation().toarray()
    assert K.sum() == axis.size
    for t in range(T):
        for u in range(n):
            assert K[t * n + u, u * T + t] == 1
    A = np.arange(axis.size**2, dtype=float).reshape(axis.size, axis.size)
    assert_array_equal(A @ K, A[:, axis.node_major()])
    assert_array_equal(K.T @ A, A[axis.node_major()])


@pytest.mark.parametrize(("steps", "nodes", "name"), [(0, 2, "num_steps"), (2, 0, "num_nodes"), (2.0, 2, "num_steps")])
def test_sizes_below_one_are_refused(steps, nodes, name):
    refuses(f"{name} must be an integer >= 1", TimeNodeAxis, num_steps=steps, num_nodes=nodes)


@given(axis=AXES, seed=st.integers(0, 99))
def test_commutation_identity(axis, seed):
    # K (X (x) Y) = (Y (x) X) K for X over nodes and Y over time, the same K on both sides
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((axis.num_nodes, axis.num_nodes))
    Y = rng.standard_normal((axis.num_steps, axis.num_steps))
    K = axis.commutation().toarray()
    assert_allclose(K @ np.kron(X, Y), np.kron(Y, X) @ K, atol=1e-14)  # products of single entries
