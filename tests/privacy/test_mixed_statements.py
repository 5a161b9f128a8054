"""Losses and guarantees are of the question that they were computed for, whatever objects are put together."""

import dataclasses

import networkx as nx
import numpy as np
import pytest
from refusals import refuses, unsupported

import mfdl
from mfdl import BallsInBins, EveryStep, Losses, Privacy, View, algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.privacy import Gaussian, Target
from mfdl.privacy.exposures import AsGiven

RING = Dynamics(gossip.metropolis_hastings("ring:n=4"), 0.5)
CLIP = {"adjacency": "zero-out", "clip_norm": 1.0}
BINS = algorithms.dp_dsgd(RING, BallsInBins(2, 4))


@pytest.mark.parametrize(
    "change",
    [{"unit": "user"}, {"adjacency": "replace-one"}, {"participation": EveryStep(8)}, {"method": "monte-carlo"}],
)
def test_losses_of_secret_batches_take_no_other_question(change):
    losses = Losses.of(BINS, Privacy(trust.LDP(), **CLIP))
    with pytest.raises((InvalidInput, UnsupportedMechanism)):
        dataclasses.replace(losses, privacy=dataclasses.replace(losses.privacy, **change))


def test_matrices_have_no_trust_model_by_name():
    view = View(np.eye(4), np.eye(4), num_nodes=2)
    for model in (
        trust.Central(),
        trust.ReleasedOnly(),
        trust.LDP(),
        AsGiven(View(np.eye(4), 2 * np.eye(4), num_nodes=2)),
    ):
        with pytest.raises(InvalidInput, match="trust must be left out with a View"):
            Losses.of(view, Privacy(model, **CLIP, participation=EveryStep(2)))


def test_the_view_of_a_trust_model_is_accounted_with_its_algorithm():
    view = trust.FullCollusion().view(algorithms.dp_dsgd(RING, EveryStep(2)), 0)
    with pytest.raises(InvalidInput, match="give the algorithm and the trust model"):
        mfdl.account(view, mfdl.Privacy(participation=EveryStep(2), **CLIP), noise_std=1.0)


def test_views_of_one_word_do_not_compose_unsealed():
    views = [View(np.eye(1), scale * np.eye(1)) for scale in (1.0, 2.0)]
    first, second = (
        mfdl.account(view, mfdl.Privacy(participation=EveryStep(1), **CLIP), noise_std=1.0) for view in views
    )
    refuses("compose only against the same attackers", first.compose_with, second)
    refuses("unnamed trust models cannot", lambda: first.compose_with(dataclasses.replace(second, notes=("x",))))


def test_nodes_whose_labels_read_alike_are_not_merged():
    W = gossip.metropolis_hastings(nx.relabel_nodes(nx.path_graph(3), {0: 1, 1: "1", 2: 2}))
    guarantee = mfdl.account(
        algorithms.dp_dsgd(Dynamics(W), EveryStep(2)), mfdl.Privacy(trust.LDP(), **CLIP), noise_std=1.0
    )
    refuses("read alike", guarantee.by_victim)


def test_no_node_passes_for_all():
    W = gossip.metropolis_hastings(nx.relabel_nodes(nx.path_graph(3), {0: "every node"}))
    losses = Losses.of(algorithms.dp_dsgd(Dynamics(W), EveryStep(2)), Privacy(trust.LDP(), **CLIP))
    refuses("no node may be called 'every node'", losses.by_victim, 1.0)


def test_calibrated_guarantees_know_every_victim():
    for algorithm in (BINS, algorithms.dp_dsgd(RING, EveryStep(2))):
        guarantee = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), **CLIP), epsilon=1.0, delta=1e-5).guarantee
        assert guarantee.by_victim().keys() == {"0", "1", "2", "3"}
        assert all(curve.epsilon(1e-5) <= 1.0 for curve in guarantee.by_victim().values())


def test_a_mu_is_met_by_no_curve_without_one():
    curve = mfdl.account(BINS, mfdl.Privacy(trust.LDP(), **CLIP), noise_std=1.0).curve
    unsupported("has no mu", lambda: Target(mu=1.0).missed_by(curve))
    assert not Target(mu=1.0).missed_by(Gaussian(1.0, "zero-out"))


def test_victims_of_secret_batches_are_nodes():
    for victims in ([100], [], [-1]):
        with pytest.raises(InvalidInput, match="victim"):
            Losses.of(BINS, Privacy(trust.LDP(), **CLIP), victims=victims)
    single = Losses.of(BINS, Privacy(trust.LDP(), **CLIP), victims=[2])
    assert [loss.victim for loss in single.of_victims] == [2]
