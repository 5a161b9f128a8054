"""A guarantee as an event of dp-accounting: its accountants give no smaller epsilon, under any relation."""

import math
from fractions import Fraction

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from refusals import unsupported

import mfdl
from mfdl.privacy import Gaussian

DYNAMICS = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=4"))
DELTA = 1e-5


def guarantee(participation, adjacency, noise=2.0):
    algorithm = mfdl.algorithms.dp_dsgd(DYNAMICS, participation)
    question = {"trust": mfdl.trust.LDP(), "adjacency": adjacency, "clip_norm": 1.0}
    return mfdl.account(algorithm, mfdl.Privacy(**question), noise_std=noise)


def epsilon(event, relation="ADD_OR_REMOVE_ONE"):
    accountant = PLDAccountant(dp_accounting.NeighboringRelation[relation], value_discretization_interval=1e-3)
    return accountant.compose(event).get_epsilon(DELTA)


@given(st.floats(1e-300, 1e300))
def test_the_noise_multiplier_is_one_over_mu_rounded_down(mu):
    multiplier = Gaussian(mu, "replace-one").dp_event().noise_multiplier
    assert Fraction(multiplier) * Fraction(mu) <= 1
    assert Fraction(math.nextafter(multiplier, math.inf)) * Fraction(mu) > 1


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
@pytest.mark.parametrize("relation", ["ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL", "REPLACE_ONE"])
def test_an_accountant_gives_at_least_the_epsilon_of_the_guarantee(adjacency, relation):
    accounted = guarantee(mfdl.Cyclic(2, 4), adjacency)
    event = accounted.dp_event().event
    assert epsilon(event, relation) >= accounted.epsilon(DELTA)
    if relation != "REPLACE_ONE":
        assert epsilon(event, relation) == pytest.approx(accounted.epsilon(DELTA), rel=1e-3)
        twice = accounted.compose_with(accounted).epsilon(DELTA)
        assert epsilon(dp_accounting.SelfComposedDpEvent(event, 2), relation) == pytest.approx(twice, rel=1e-3)


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
def test_poisson_sampled_steps_are_sampled_events(adjacency):
    accounted = guarantee(mfdl.PoissonSampling(0.1, 20), adjacency)
    event = accounted.dp_event().event
    assert event.count == 20
    assert epsilon(event) == pytest.approx(accounted.epsilon(DELTA), rel=1e-2)


@pytest.mark.parametrize(
    ("participation", "adjacency"),
    [(mfdl.PoissonSampling(0.1, 20), "replace-one"), (mfdl.BallsInBins(2, 4), "zero-out")],
)
def test_other_sampling_is_refused_and_bounded_by_public_batches(participation, adjacency):
    accounted = guarantee(participation, adjacency)
    unsupported("public_batches=True", accounted.dp_event)
    bound = accounted.dp_event(public_batches=True)
    assert epsilon(bound.event) >= accounted.epsilon(DELTA)
    assert "an upper bound: the event is that of the same noise with public batches" in bound.conditions


def test_no_noise_is_no_privacy_and_no_loss_is_no_event():
    assert epsilon(guarantee(mfdl.Cyclic(2, 4), "zero-out", noise=0.0).dp_event().event) == math.inf
    assert epsilon(guarantee(mfdl.PoissonSampling(0.1, 20), "zero-out", noise=0.0).dp_event().event) == math.inf
    assert Gaussian(0.0, "zero-out").dp_event() == dp_accounting.NoOpDpEvent()


def test_the_conditions_that_no_event_carries_stand_beside_it():
    accounted = guarantee(mfdl.Cyclic(2, 4), "replace-one")
    event = accounted.dp_event()
    for condition in ("trust model: ldp", "adjacency: replace-one", "every node", "ADD_OR_REMOVE_ONE"):
        assert condition in event.conditions
    assert str(event).startswith("GaussianDpEvent(noise_multiplier=0.7071067")


def test_a_number_for_gradients_that_do_not_react_composes_with_nothing():
    algorithm = mfdl.algorithms.dp_dsgd(DYNAMICS, mfdl.Cyclic(2, 4))
    question = mfdl.Privacy(mfdl.trust.PNDP([0]), adjacency="zero-out", clip_norm=1.0)
    losses = mfdl.losses(algorithm, question)
    guarantee = next(each for each in losses.by_victim(2.0, adaptive=False) if not each.adaptive)
    unsupported("composed adaptively", guarantee.dp_event)
