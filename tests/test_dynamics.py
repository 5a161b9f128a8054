"""Dynamics and error weights: where step sizes live."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from mfdl import gossip
from mfdl.dynamics import Dynamics, ErrorWeights
from mfdl.errors import InvalidInput

RING = gossip.metropolis_hastings("ring:n=5")


def test_learning_rate_is_constant_and_one_by_default():
    assert_array_equal(Dynamics(RING).learning_rates(3), np.ones(3))
    assert_array_equal(Dynamics(RING, 0.25).learning_rates(2), [0.25, 0.25])
    assert Dynamics(RING, 0.25).num_nodes == 5


@pytest.mark.parametrize("rate", [0, -0.1, np.inf, np.nan, "0.1", True])
def test_learning_rates_that_are_no_finite_positive_number_are_refused(rate):
    with pytest.raises(InvalidInput, match="learning_rate must be a finite number > 0"):
        Dynamics(RING, rate)


@pytest.mark.parametrize("rounds", [0, -1, 1.5, True])
def test_gossip_rounds_below_one_are_refused(rounds):
    with pytest.raises(InvalidInput, match="gossip_rounds must be an integer >= 1"):
        Dynamics(RING, gossip_rounds=rounds)


def test_step_weights_apply_the_first_round_first():
    first, second = gossip.uniform("star:n=4"), gossip.metropolis_hastings("ring:n=4")
    dynamics = Dynamics(gossip.sequence([first, second, second]), gossip_rounds=2)
    assert_allclose(dynamics.step_weights(0).toarray(), second.dense() @ first.dense())
    assert_allclose(dynamics.step_weights(1).toarray(), first.dense() @ second.dense())


def test_dynamics_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Dynamics(RING).learning_rate = 2.0


def test_error_weights_count_every_model_alike():
    assert_array_equal(ErrorWeights().step_weights(4), np.ones(4))
