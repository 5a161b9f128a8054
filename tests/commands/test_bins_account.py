"""Balls-in-bins where options name them: the scheme, and the algorithms that are built for it."""

import numpy as np
import pytest
from refusals import refuses

import mfdl
from mfdl import BallsInBins, Cyclic
from mfdl.algorithms import registry
from mfdl.commands.account import AccountConfig

BINS = BallsInBins(epochs=2, bins=3)


def test_balls_in_bins_are_k_epochs_of_b_bins():
    config = AccountConfig(participation="balls-in-bins", epochs=2, period=3)
    assert (config.scheme(), config.scheme().public) == (BINS, Cyclic(epochs=2, period=3))
    refuses("steps must be epochs", AccountConfig, participation="balls-in-bins", epochs=2, period=3, steps=5)
    refuses("balls-in-bins", AccountConfig, participation="balls-in-bins", epochs=2, period=3, unit="user")


@pytest.mark.parametrize("name", ["mafalda", "mafalda@last:2", "bsr", "dp-dsgd"])
def test_an_algorithm_of_secret_bins_is_that_of_public_ones_but_for_who_knows_the_map(name):
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("path:n=3"))
    public, secret = (registry.build(name, dynamics, scheme) for scheme in (BINS.public, BINS))
    assert (secret.participation, secret.name) == (BINS, public.name)
    assert registry.build_tuned(name, dynamics, BINS).content_hash == secret.content_hash != public.content_hash
    encoders = [algorithm.noise.causal.inverse_of(0) for algorithm in (public, secret)]
    assert np.array_equal(*encoders)
