"""A solver that stops early raises, and what it hands over is feasible, with a loss and a bound that hold."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from mfdl import algorithms, gossip
from mfdl.dynamics import Dynamics
from mfdl.factorization import (
    NotConverged,
    factorize,
    factorize_nodes,
    optimal_covariance,
    prefix_sum_encoder,
    problem,
)
from mfdl.participation import Cyclic
from mfdl.testing.oracles import optimal_loss_reference

DYN = Dynamics(gossip.metropolis_hastings("path:n=4"))
PART = Cyclic(2, 2)
SEEDS_OF_EDGES = [(0, 1), (1, 2), (2, 3)]


@examples(10)
@given(iterations=st.integers(1, 4), solver=st.sampled_from(["dense", "autodiff"]))
def test_an_unfinished_encoder_is_feasible_and_brackets_the_optimum(iterations, solver):
    with pytest.raises(NotConverged, match=r"stopped at gap .* > tolerance 1e-14 after .* raise max_iter") as caught:
        factorize(DYN, PART, solver=solver, tolerance=1e-14, max_iterations=iterations)
    found, posed = caught.value.factorization, problem(DYN, PART)
    assert found.status == "stopped"
    assert found.loss.__class__ is float
    assert found.encoder.dtype == np.float64
    assert posed.sensitivity_squared(found.encoder.T @ found.encoder) <= 1 + 1e-12
    assert_allclose(np.trace(posed.error_gram @ np.linalg.inv(found.encoder.T @ found.encoder)), found.loss, rtol=1e-9)
    best = optimal_loss_reference(posed)
    assert found.lower_bound <= best * (1 + 1e-6)
    assert found.loss >= best * (1 - 1e-6)
    assert found.gap == found.loss / found.lower_bound - 1 > 1e-14


@pytest.mark.parametrize(
    "solve",
    [
        lambda: prefix_sum_encoder(PART, max_iterations=1),
        lambda: factorize_nodes(DYN, PART, max_iterations=1),
        lambda: optimal_covariance(DYN, max_iterations=1, tolerance=1e-15).require_converged(1e-15),
        lambda: algorithms.corn(DYN, PART, tolerance=1e-16),
        lambda: algorithms.corn(DYN, PART, groups=SEEDS_OF_EDGES, coalition_size=1, tolerance=1e-16),
    ],
    ids=["prefix sums", "per node", "covariance", "corn", "corn with seeds of edges"],
)
def test_every_door_to_a_solver_raises_when_it_did_not_finish(solve):
    with pytest.raises(NotConverged, match="its loss and lower bound are valid") as caught:
        solve()
    found = caught.value.factorization
    assert found.status == "stopped"
    assert 0 < found.lower_bound <= found.loss < np.inf
