"""Dynamics and error weights: where step sizes live."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_array_equal

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


def test_dynamics_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Dynamics(RING).learning_rate = 2.0


def test_error_weights_count_every_model_alike():
    assert_array_equal(ErrorWeights().step_weights(4), np.ones(4))
