"""Modules and losses of a task: what mixes records, draws at random or fits no record is refused."""

import functools

import pytest
import torch
from small_tasks import mlp, regression
from torch import nn

from mfdl.errors import InvalidInput, UnsupportedMechanism

torch.set_num_threads(1)


class Wrapped(nn.Module):
    """A linear model with something between."""

    def __init__(self, between):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.between = between
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.between(self, self.linear(x))


def counting(module, x):
    module.count += 1
    return x


def batch_norm_in_training(layer, *rest):
    return lambda: nn.Sequential(nn.Linear(3, 4), layer, *rest, nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (batch_norm_in_training(nn.BatchNorm1d(4)), r"layer '1' \(BatchNorm1d\) mixes the records"),
        (batch_norm_in_training(nn.BatchNorm1d(4).eval()), r"BatchNorm1d\) mixes the records"),
        (batch_norm_in_training(nn.SyncBatchNorm(4)), r"layer '1' \(SyncBatchNorm\) mixes the records"),
        (
            batch_norm_in_training(nn.InstanceNorm1d(4, track_running_stats=True)),
            r"\(InstanceNorm1d\) keeps running statistics",
        ),
        (batch_norm_in_training(nn.Dropout(0.5)), r"layer '1' \(Dropout\) draws at random in training mode"),
        (batch_norm_in_training(nn.AlphaDropout(0.1)), r"\(AlphaDropout\) draws at random"),
        (batch_norm_in_training(nn.RReLU()), r"\(RReLU\) draws at random"),
        (
            batch_norm_in_training(nn.MultiheadAttention(4, 1, dropout=0.1)),
            r"\(MultiheadAttention\) draws at random",
        ),
        (
            lambda: Wrapped(lambda _, x: x - x.mean(0)),
            "Wrapped mixes the records of a batch: the output of one",
        ),
        (lambda: Wrapped(lambda _, x: x + 0.001 * x.sum()), "mixes the records"),
        (lambda: Wrapped(lambda _, x: x + torch.rand(1)), "gives two outputs for the same records"),
        (lambda: Wrapped(counting), "buffer 'count' of Wrapped changes in the forward pass"),
        (
            lambda: Wrapped(lambda _, x: x if x.sum().item() > 0 else -x),
            "cannot take per-record gradients|mixes",
        ),
    ],
)
def test_modules_that_cannot_be_clipped_per_record(build, message):
    with pytest.raises(UnsupportedMechanism, match=message):
        regression(build=build)


@pytest.mark.parametrize(
    "build",
    [
        batch_norm_in_training(nn.Dropout(0.0)),
        batch_norm_in_training(nn.Dropout(0.5).eval()),
        batch_norm_in_training(nn.LayerNorm(4)),
        batch_norm_in_training(nn.GroupNorm(2, 4)),
        lambda: nn.Linear(3, 1),
    ],
)
def test_modules_that_can(build):
    task = regression(build=build)
    instance = task.instance(seed=0, period=2)
    assert instance.clipped_gradient_sums(instance.initial_parameters, 0, 1.0).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"build": lambda: 3}, "build_module must return a torch.nn.Module, got int"),
        ({"build": nn.Identity}, "Identity without a trainable parameter"),
        (
            {"build": functools.partial(mlp, inputs=2)},
            r"Sequential fails on a batch of 4 records of shape \(3,\)",
        ),
        (
            {"build": lambda: Wrapped(lambda _, x: (x, x))},
            "must return one tensor with one row per record .* got tuple",
        ),
        ({"build": lambda: Wrapped(lambda _, x: x.sum())}, r"must return one tensor .* got \(\)"),
        (
            {"loss": lambda output, target: (output - target).square()},
            r"scalar tensor for one record \(output \(1,\), target \(\)\), got shape \(1,\)",
        ),
        ({"loss": lambda output, target: 1.0}, "scalar tensor for one record .* got float"),
        ({"loss": nn.functional.cross_entropy}, "loss fails on|scalar tensor"),
    ],
)
def test_modules_and_losses_that_do_not_fit(changes, message):
    with pytest.raises(InvalidInput, match=message):
        regression(**changes)


def test_a_refused_random_module_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    with pytest.raises(UnsupportedMechanism):
        regression(build=lambda: Wrapped(lambda _, x: x + torch.rand(1)))
    assert torch.equal(torch.get_rng_state(), state)
