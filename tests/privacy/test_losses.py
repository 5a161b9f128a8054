"""One question and its losses: whatever is stated of an algorithm is read off the same two numbers a victim."""

import math

import pytest
from _guarantees import guarantees
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from mfdl import Cyclic, Dynamics, EveryStep, Losses, Privacy, account, algorithms, calibrate, gossip, trust
from mfdl.privacy.gaussian import ADJACENCIES
from mfdl.testing import linear_algorithms, trust_models

PATH = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("path:n=3")), Cyclic(2, 2))


@examples(40)
@given(data=st.data(), adjacency=st.sampled_from(ADJACENCIES), noise_std=st.sampled_from([0.0, 0.5, 3.0]))
def test_every_statement_is_of_the_same_losses(data, adjacency, noise_std):
    algorithm = data.draw(linear_algorithms(max_epochs=2, max_period=2))
    model = data.draw(trust_models(algorithm))
    release = data.draw(st.sampled_from([None, "none", "average", "all"]))  # more than a view need hold
    options = {"trust": model, "adjacency": adjacency, "clip_norm": 0.7, "release": release}
    losses = Losses.of(algorithm, Privacy(**options))
    guarantee = losses.guarantee(noise_std)
    assert guarantee == account(algorithm, Privacy(**options), noise_std=noise_std)
    each = losses.by_victim(noise_std)
    assert each == guarantees(algorithm, losses.of_victims, noise_std=noise_std, **(options | {"release": None}))
    assert guarantee.mu == max(g.mu for g in each)
    shift = losses.privacy.record_shift
    assert [g.mu for g in each] == [x.mu(record_shift=shift, noise_std=noise_std) for x in losses.of_victims]
    rows = losses.table()
    assert [row["sensitivity_squared"] for row in rows] == [
        x.non_adaptive_sensitivity.squared for x in losses.of_victims
    ]
    assert all(row["adaptive_sensitivity_squared"] <= losses.worst.squared for row in rows)
    if 0 < losses.worst.squared < math.inf:
        mechanism = calibrate(algorithm, Privacy(**options), mu=1.0)
        assert mechanism.guarantee == losses.calibrate(mu=1.0)
        assert mechanism.guarantee.mu <= 1.0
        assert mechanism.guarantee.sensitivity == losses.worst.value


def test_a_multiple_of_the_sensitivity():
    losses = Losses.of(PATH, Privacy(trust.LDP(), adjacency="replace-one", clip_norm=0.5))
    assert losses.noise_std(noise_multiplier=2.0) == pytest.approx(2 * losses.worst.value)  # record shift 1
    for both in ({}, {"noise_std": 1.0, "noise_multiplier": 1.0}):
        refuses("exactly one of noise_std", losses.noise_std, **both)
    silent = Losses.of(
        algorithms.dsgd(PATH.dynamics, EveryStep(2)), Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0)
    )
    refuses("finite sensitivity; give noise_std", silent.noise_std, noise_multiplier=1.0)
