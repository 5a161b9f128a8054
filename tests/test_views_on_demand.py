"""The maps of a view are made when they are asked for: what a closed form answers needs none of them."""

import numpy as np
import pytest

import mfdl
from mfdl.privacy.forms import view_grams
from mfdl.trust.view import Knowledge, View


def algorithm(nodes):
    ring = mfdl.gossip.metropolis_hastings(f"ring:n={nodes}")
    return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(ring), mfdl.Cyclic(epochs=2, period=2))


def test_all_messages_of_many_nodes_are_accounted_without_their_view():
    view = mfdl.trust.LDP().view(algorithm(2000))
    grams = view_grams(view, range(2000))
    assert len(set(map(id, grams))) == 1
    assert not {"gradients", "noise"} & vars(view).keys()
    masks = (view.knowledge.seen, view.knowledge.known_gradients, view.knowledge.known_noise)
    assert [mask.strides[0] for mask in masks] == [0, 0, 0]  # the same at all times, kept once


@pytest.mark.parametrize("release", ["none", "average", "all"])
def test_a_view_counts_the_rows_that_it_makes(release):
    rng, six = np.random.default_rng(0), algorithm(6)
    for combination in (None, six.rounds[0].message_from_state[:2]):
        seen = rng.random((len(six.rounds), six.messages_per_round)) < 0.5
        knowledge = Knowledge.of(six, seen=seen, combination=combination)
        view = View.of(six, knowledge, release=release, attacker="somebody")
        assert view.num_rows == view.gradients.shape[0] == view.noise.shape[0] > 0
