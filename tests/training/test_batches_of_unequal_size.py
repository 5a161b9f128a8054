"""Batches of unequal size: nodes are put together by public size, and nothing but the time changes."""

import dataclasses

import pytest
import torch
from small_tasks import classes, some_models

from mfdl.training.drawn_batches import BinBatches
from mfdl.training.keys import NoiseKey
from mfdl.training.tasks import instance as instances
from mfdl.training.tasks import partition


@pytest.fixture
def uneven(monkeypatch):
    """Six nodes, some with many times the records of others, sorted by size whatever that saves."""
    monkeypatch.setattr(instances, "WORTH_A_CALL", 0)
    monkeypatch.setattr(instances, "WORTH_SORTING", 1.0)
    task = classes(200, 6, partition=partition.Dirichlet(0.2, min_records=2))
    return lambda period: task.instance(0, period, dtype=torch.float64)


@pytest.mark.parametrize("period", [1, 2])
def test_sums_are_those_of_all_nodes_at_once(uneven, period, monkeypatch):
    instance = uneven(period)
    models = some_models(instance)
    width = instance.mask.shape[2]
    sizes = [slots for _, slots in instance._alike(width)]
    assert len(sizes) > 2
    assert max(sizes) == width
    there = instance.mask.clone()
    there[:, :, 0] = False  # a record that takes no part moves nobody: sizes are public
    without = dataclasses.replace(instance, mask=there)
    assert [slots for _, slots in without._alike(width)] == sizes
    apart = [one.clipped_gradient_sums(models, step, 0.1) for one in (instance, without) for step in range(period)]
    monkeypatch.setattr(instances, "WORTH_SORTING", -1.0)
    whole = [dataclasses.replace(one) for one in (instance, without)]
    together = [one.clipped_gradient_sums(models, step, 0.1) for one in whole for step in range(period)]
    assert len(whole[0]._alike(width)) == 1
    for x, y in zip(apart, together, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)
    assert not torch.equal(apart[0], apart[period])


def test_batches_that_are_drawn_are_sorted_by_what_is_public(uneven):
    """Two keys draw other batches of the same nodes; what is put together follows from the slots and public sizes."""
    instance = uneven(1)
    for seed in range(3):
        drawn = BinBatches(instance, NoiseKey.from_seed(seed), 3).of_step(0)
        alike = drawn._alike(drawn.mask.shape[2])
        assert [nodes.tolist() for nodes, _ in alike] == [
            nodes.tolist() for nodes, _ in dataclasses.replace(instance)._alike(drawn.mask.shape[2])
        ]
