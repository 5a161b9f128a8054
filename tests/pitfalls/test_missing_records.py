"""A record that is not there, or is no number, changes one summand: no divisor, no noise and no step follow it."""

import dataclasses

import numpy as np
import pytest
import torch

from mfdl import algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.noise_scale import calibrate
from mfdl.participation import Cyclic, EveryStep
from mfdl.testing.tasks import linear_task
from mfdl.training.replay import replay
from mfdl.training.tasks import Task

torch.set_num_threads(1)
NODES, ETA, CLIP = 3, 0.3, 0.5


def dot_task(per_node: int) -> Task:
    return linear_task(NODES, np.ones((NODES * per_node, 2)))


def messages(participation, per_node, monkeypatch, *, change, unit="record"):
    """What is sent, (T, n, 2), with the same noise every time; `change` edits features and mask in place."""
    one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=3"), ETA), participation)
    made = calibrate(one, trust=trust.LDP(), adjacency="zero-out", clip_norm=CLIP, mu=1.0, unit=unit)
    plain = Task.instance

    def changed(self, *args, **kwargs):
        instance = plain(self, *args, **kwargs)
        features, mask = instance.features.clone(), instance.mask.clone()
        change(features, mask)
        return dataclasses.replace(instance, features=features, mask=mask)

    with monkeypatch.context() as patch:
        patch.setattr(Task, "instance", changed)
        return replay(made, dot_task(per_node), seeds=[0], keep_messages=True, dtype=torch.float64).seeds[0].messages


def opposed(features, mask):
    """Node 1 holds records that pull one way, and one that pulls the other way."""
    features[1, 0] = 10.0
    features[1, 0, 0] = -10.0


@pytest.mark.parametrize("per_node", [2, 4, 9])
def test_leaving_out_a_record_moves_its_message_by_its_own_share_alone(per_node, monkeypatch):
    """eta C / m with the public m.

    Divided by the records present, the mean would go from (m - 2) C / m to C: twice as far.
    """

    def without(features, mask):
        opposed(features, mask)
        mask[1, 0, 0] = False

    part = EveryStep(2)
    moved = messages(part, per_node, monkeypatch, change=opposed) - messages(
        part, per_node, monkeypatch, change=without
    )
    reach = ETA * CLIP / per_node
    np.testing.assert_allclose(np.linalg.norm(moved[0], axis=1), [0, reach, 0], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_node_without_records_sends_its_noise_all_the_same(unit, monkeypatch):
    """Both batches of node 1 empty: a normal step with gradient zero. Silence, or no noise, would show who is there."""
    participation = Cyclic(2, 2) if unit == "record" else EveryStep(4)

    def empty(features, mask):
        mask[1] = False

    def zero(features, mask):
        features[1] = 0.0

    sent = messages(participation, 4, monkeypatch, change=empty, unit=unit)
    np.testing.assert_array_equal(sent, messages(participation, 4, monkeypatch, change=zero, unit=unit))
    one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=3"), ETA), participation)
    W = one.dynamics.gossip.dense()
    injected = np.concatenate([sent[:1], sent[1:] - np.einsum("uv,tvd->tud", W, sent[:-1])])
    assert (np.abs(injected[:, 1]) > 1e-3).all()  # noise of std ETA CLIP / m or so; zero would be 1e-16


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e308])
def test_a_record_that_is_no_number_counts_as_not_there(bad, monkeypatch):
    """1e308: finite, with a gradient whose norm overflows in float64."""

    def broken(features, mask):
        features[1, 0, 0] = bad

    def absent(features, mask):
        mask[1, 0, 0] = False

    sent = messages(Cyclic(2, 2), 4, monkeypatch, change=broken)
    assert np.isfinite(sent).all()
    np.testing.assert_array_equal(sent, messages(Cyclic(2, 2), 4, monkeypatch, change=absent))
