"""Tasks that compute different things have different hashes; unseeded runs share no noise whatever the hash says."""

import functools

import numpy as np
import pytest
import torch
from small_tasks import regression

from mfdl import Cyclic, Dynamics, NoiseKey, Privacy, algorithms, calibrate, gossip, replay, trust
from mfdl.training.tasks import code_fingerprint


def huber(output, target, width=1.0):
    return torch.nn.functional.huber_loss(output.squeeze(-1), target, delta=width)


def closed_over(factor):
    return lambda output, target: factor * (output.squeeze(-1) - target).square()


class Weighted:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, output, target):
        return self.factor * (output.squeeze(-1) - target).square()


def by_constant(output, target):
    return 1.0 * (output.squeeze(-1) - target).square()


def by_other_constant(output, target):
    return 3.0 * (output.squeeze(-1) - target).square()


by_other_constant.__qualname__ = by_constant.__qualname__
PAIRS = {
    "partial": (functools.partial(huber, width=1.0), functools.partial(huber, width=2.0)),
    "closure": (closed_over(1.0), closed_over(3.0)),
    "object": (Weighted(1.0), Weighted(3.0)),
    "constant": (by_constant, by_other_constant),
    "tensor": (closed_over(torch.ones(())), closed_over(torch.full((), 3.0))),
}


LINEAR = functools.partial(torch.nn.Linear, 3, 1)


def task(loss, build=LINEAR):
    return regression(12, 3, build=build, loss=loss)


@pytest.mark.parametrize("kind", PAIRS)
def test_losses_that_differ_have_other_hashes(kind):
    first, second = PAIRS[kind]
    assert task(first).content_hash == task(first).content_hash
    assert task(first).content_hash != task(second).content_hash


class Bend(torch.nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.slope = slope

    def forward(self, x):
        return self.slope * self.linear(x)


class OtherBend(Bend):
    def forward(self, x):
        return torch.tanh(self.linear(x))


OtherBend.__qualname__ = "Bend"


def test_models_that_differ_have_other_hashes():
    hashes = {task(by_constant, functools.partial(kind, slope)).content_hash for kind, slope in
              ((Bend, 1.0), (Bend, 2.0), (OtherBend, 1.0))}  # fmt: skip
    assert len(hashes) == 3
    assert code_fingerprint.of_module(Bend(1.0)) == code_fingerprint.of_module(
        Bend(1.0)
    )  # values of parameters do not count


def mechanism():
    dynamics = Dynamics(gossip.metropolis_hastings("path:n=3"), learning_rate=0.1)
    return calibrate(
        algorithms.dp_dsgd(dynamics, Cyclic(2, 2)), Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0
    )


def test_one_secret_key_serves_many_runs_without_sharing_noise():
    key, calibrated = NoiseKey.from_entropy(), mechanism()
    runs = [replay(calibrated, task(by_constant), seeds=[0], key=key).seeds[0] for _ in range(2)]
    assert runs[0].key_id != runs[1].key_id
    assert not np.isclose(runs[0].models, runs[1].models).any()
    seeded = [replay(calibrated, task(by_constant), seeds=[0]).seeds[0] for _ in range(2)]
    assert seeded[0].key_id == seeded[1].key_id
    np.testing.assert_array_equal(seeded[0].models, seeded[1].models)
