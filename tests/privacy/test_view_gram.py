"""View Grams under LDP against the dense definition A_u^T (B B^T)^+ A_u, gossip included."""

import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from numpy.testing import assert_allclose

from mfdl import algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.participation import Cyclic
from mfdl.privacy.forms import view_gram
from mfdl.testing.oracles import dense_gossip_workload, dense_noising
from mfdl.testing.strategies import NAMES, build_algorithm, linear_algorithms

LDP = trust.LDP()
STAR = Dynamics(gossip.uniform("star:n=4"), 0.3)
VARYING = Dynamics(gossip.sequence([gossip.uniform("star:n=4"), gossip.metropolis_hastings("complete:n=4")]), 0.3)


def dense_view_gram(one, node):
    """From scratch: all messages are seen, A = -eta W_T D, B = A N, whatever drops out."""
    T, n = one.num_steps, one.num_nodes
    A = -one.dynamics.learning_rate * dense_gossip_workload(one.dynamics.gossip, T) / np.tile(one.divisors, T)
    B = A @ dense_noising(one)
    A_u = A[:, np.arange(T) * n + node]
    return A_u.T @ np.linalg.pinv(B @ B.T, hermitian=True) @ A_u


def check(one):
    for node in range(one.num_nodes):
        found = view_gram(one, LDP, node)
        # cond(B B^T) stays below 1e6 at these sizes, so the oracle is right to about 1e-9.
        assert_allclose(found.matrix, dense_view_gram(one, node), rtol=1e-7, atol=1e-7)
        assert (found.entry_error >= 0).all()
        assert 1 <= found.inflation < 1 + 1e-10


@pytest.mark.parametrize("dynamics", [STAR, VARYING], ids=["constant", "varying"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_the_gossip_drops_out(name, dynamics):
    one = build_algorithm(name, dynamics, Cyclic(2, 2))
    check(one)
    check(one.with_divisors([1, 2, 3, 5]))  # and so do public batch sizes


@examples(60)
@given(one=linear_algorithms(names=("dp-dsgd", "anti-pgd", "bsr", "mf-shared", "mf-per-node"), max_epochs=2))
def test_it_does_so_for_any_gossip(one):
    check(one)


def test_nodes_with_their_own_encoders_have_their_own_gram():
    one = build_algorithm("mafalda-l", STAR, Cyclic(2, 2))
    hub, leaf = view_gram(one, LDP, 0).matrix, view_gram(one, LDP, 1).matrix
    assert np.abs(hub - leaf).max() > 1e-3
    assert_allclose(leaf, view_gram(one, LDP, 3).matrix)


@pytest.mark.parametrize("T", [1, 2, 5])
def test_anti_pgd_in_closed_form(T):
    """X_st = T - max(s, t)."""
    X = view_gram(algorithms.anti_pgd(STAR, Cyclic(1, T)), LDP, 0).matrix
    assert X.tolist() == [[T - max(s, t) for t in range(T)] for s in range(T)]


def test_without_noise_the_loss_is_infinite():
    found = view_gram(algorithms.dsgd(STAR, Cyclic(2, 2)), LDP, 0)
    assert found.inflation == math.inf
    assert found.matrix.shape == (4, 4)
