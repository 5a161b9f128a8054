"""Recorded gradients are those of torch.func, and modules that cannot be recorded are not."""

import dataclasses

import pytest
import torch
from torch.func import functional_call, grad, vmap

import mfdl
from mfdl.training.tasks import modules


def by_torch(model, rows, features, targets, weights):
    def total(row, records, wanted, weight):
        return (vmap(model.loss)(functional_call(model.module, row, (records,)), wanted) * weight).sum()

    return list(vmap(grad(total))(model.unflatten(rows), features, targets, weights).values())


def drawn(model, seed, nodes=3, records=5):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(nodes, model.dimension, generator=generator)
    features = torch.randn(nodes, records, 4, generator=generator)
    targets = torch.randint(0, 2, (nodes, records), generator=generator)
    return rows, features, targets, torch.rand(nodes, records, generator=generator)


class Counting(torch.nn.Module):
    """Its slope grows with the calls: what no module may do, and what a record must not be trusted with."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = torch.nn.Linear(4, 2), 0

    def forward(self, records):
        self.calls += 1
        return self.linear(records) * self.calls


MODULES = {
    "linear": lambda: torch.nn.Linear(4, 2),
    "network": lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)),
    "normed": lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)),
}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_recorded_gradients_are_those_of_torch_bit_for_bit(name, monkeypatch):
    monkeypatch.setattr(modules, "CALLS_BEFORE", 2)
    model = modules.PerRecordModel(modules.build(MODULES[name], 0), torch.nn.functional.cross_entropy)
    gradients = modules.node_gradients(model)
    for seed in range(5):
        arguments = drawn(model, seed, records=5 + seed % 2)
        for got, wanted in zip(gradients(*arguments), by_torch(model, *arguments), strict=True):
            assert torch.equal(got, wanted)
    assert len(gradients._recorded) == 2
    assert all(recorded is not gradients._eager for recorded in gradients._recorded.values())
    assert modules.node_gradients(model) is gradients


def test_a_module_that_changes_with_the_call_is_not_played_back(monkeypatch):
    monkeypatch.setattr(modules, "CALLS_BEFORE", 1)
    module = Counting()
    model = modules.PerRecordModel(module, torch.nn.functional.cross_entropy)
    gradients, arguments = modules.NodeGradients(model), drawn(model, 0)
    gradients(*arguments)
    module.calls = 6
    got = gradients(*arguments)
    module.calls = 6
    assert all(torch.equal(a, b) for a, b in zip(got, by_torch(model, *arguments), strict=True))


def test_a_long_run_has_the_bits_of_one_that_records_nothing(monkeypatch):
    task = mfdl.tasks.load("rotated-quadratics", 4)
    models = {}
    for calls in (3, 10**9):
        monkeypatch.setattr(modules, "CALLS_BEFORE", calls)
        instance = task.instance(0, 1)
        state = instance.initial_parameters
        for step in range(12):
            state = state - 0.1 * instance.clipped_gradient_means(state + 1.0, step, 0.5)
        models[calls] = state
    assert torch.equal(models[3], models[10**9])


def test_kept_batches_have_the_bits_of_gathered_ones_and_are_of_one_instance(monkeypatch):
    """With records absent, over several passes, of whole nodes at once and of parts that are gathered in every step."""
    task = mfdl.tasks.load("digits", 6)
    instance = task.instance(0, 3)
    mask = instance.mask.clone()
    mask[2, 1], mask[4, 0, ::2] = False, False
    zeroed = dataclasses.replace(instance, mask=mask)
    models = instance.initial_parameters + torch.randn(6, 650, generator=torch.Generator().manual_seed(0))
    kept = [one.clipped_gradient_means(models, t, 0.7) for one in (instance, zeroed) for t in range(7)]
    assert len(zeroed._kept) == 3
    assert not torch.equal(kept[1], kept[8])
    assert (kept[8][2] == 0).all()
    monkeypatch.setattr(mfdl.training.tasks.instance, "KEPT_BYTES", 0)
    fresh = [dataclasses.replace(one) for one in (instance, zeroed)]
    gathered = [one.clipped_gradient_means(models, t, 0.7) for one in fresh for t in range(7)]
    assert all(torch.equal(a, b) for a, b in zip(kept, gathered, strict=True))
    assert not fresh[0]._kept
