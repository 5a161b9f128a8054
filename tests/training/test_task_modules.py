"""Modules and losses of a task: what mixes records or draws at random is refused; tasks have hashes."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from small_tasks import mlp, regression
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import Cyclic, NoiseKey, Privacy, algorithms, calibrate, replay, tasks, trust
from mfdl.training.tasks import records


class Wrapped(nn.Module):
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


@each(
    "build, message",
    (batch_norm_in_training(nn.BatchNorm1d(4)), r"layer '1' \(BatchNorm1d\) .*mixes the records"),
    (batch_norm_in_training(nn.SyncBatchNorm(4)), r"layer '1' \(SyncBatchNorm\) .*mixes the records"),
    (batch_norm_in_training(nn.InstanceNorm1d(4, track_running_stats=True)), r"\(InstanceNorm1d\) keeps running"),
    (batch_norm_in_training(nn.Dropout(0.5)), r"layer '1' \(Dropout\) draws at random in training mode"),
    (batch_norm_in_training(nn.AlphaDropout(0.1)), r"\(AlphaDropout\) draws at random"),
    (batch_norm_in_training(nn.RReLU()), r"\(RReLU\) draws at random"),
    (batch_norm_in_training(nn.MultiheadAttention(4, 1, dropout=0.1)), r"\(MultiheadAttention\) draws at random"),
    (lambda: Wrapped(lambda _, x: x - x.mean(0)), "Wrapped mixes the records of a batch: the output of one"),
    (lambda: Wrapped(lambda _, x: x + 0.001 * x.sum()), "mixes the records"),
    (lambda: Wrapped(lambda _, x: x + torch.rand(1)), "gives two outputs for the same records"),
    (lambda: Wrapped(counting), "buffer 'count' of Wrapped changes in the forward pass"),
    (lambda: Wrapped(lambda _, x: x if x.sum().item() > 0 else -x), "cannot take per-record gradients|mixes"),
)
def test_modules_that_cannot_be_clipped_per_record(build, message):
    unsupported(message, regression, build=build)


@each(
    "build",
    batch_norm_in_training(nn.Dropout(0.0)), batch_norm_in_training(nn.Dropout(0.5).eval()),
    batch_norm_in_training(nn.LayerNorm(4)), batch_norm_in_training(nn.BatchNorm1d(4).eval()),
    batch_norm_in_training(nn.GroupNorm(2, 4)), lambda: nn.Linear(3, 1),
)  # fmt: skip
def test_modules_that_can(build):
    task = regression(build=build)
    instance = task.instance(seed=0, period=2)
    assert instance.clipped_gradient_sums(instance.initial_parameters, 0, 1.0).isfinite().all()


@each(
    "changes, message",
    ({"build": lambda: 3}, "build_module must return a torch.nn.Module, got int"),
    ({"build": nn.Identity}, "Identity without a trainable parameter"),
    ({"build": functools.partial(mlp, inputs=2)}, r"Sequential fails on a batch of 4 records of shape \(3,\)"),
    ({"build": lambda: Wrapped(lambda _, x: (x, x))}, "must return one tensor with one row per record .* got"),
    ({"build": lambda: Wrapped(lambda _, x: x.sum())}, r"must return one tensor .* got \(\)"),
    ({"loss": lambda output, target: (output - target).square()}, r"scalar tensor for one record \(output \(1,\)"),
    ({"loss": lambda output, target: 1.0}, "scalar tensor for one record .* got float"),
    ({"loss": nn.functional.cross_entropy}, "loss fails on|scalar tensor"),
)
def test_modules_and_losses_that_do_not_fit(changes, message):
    refuses(message, regression, **changes)


def test_a_refused_random_module_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    unsupported(".", regression, build=lambda: Wrapped(lambda _, x: x + torch.rand(1)))
    assert torch.equal(torch.get_rng_state(), state)


def test_kept_batches_have_the_bits_of_gathered_ones_and_are_of_one_instance(monkeypatch):
    instance = mfdl.tasks.load("digits", 6).instance(0, 3)
    mask = instance.mask.clone()
    mask[2, 1], mask[4, 0, ::2] = False, False
    zeroed = dataclasses.replace(instance, mask=mask)
    models = instance.initial_parameters + torch.randn(6, 650, generator=torch.Generator().manual_seed(0))
    means = [of_task.clipped_gradient_means(models, t, 0.7) for of_task in (instance, zeroed) for t in range(7)]
    assert len(zeroed._batches_of_class) == 3
    assert not torch.equal(means[1], means[8])
    assert (means[8][2] == 0).all()
    monkeypatch.setattr(mfdl.training.tasks.instance, "KEPT_BYTES", 0)
    fresh = [dataclasses.replace(of_task) for of_task in (instance, zeroed)]
    gathered = [of_task.clipped_gradient_means(models, t, 0.7) for of_task in fresh for t in range(7)]
    assert all(torch.equal(a, b) for a, b in zip(means, gathered, strict=True))
    assert not fresh[0]._batches_of_class


@dataclasses.dataclass
class Rows(Dataset):
    features: object
    targets: object

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, row):
        return self.features[row], self.targets[row]


def flat_linear(size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 2))


def squared_sum(output, target):
    return (output.sum() - target) ** 2


@given(
    30, shape=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple), num_records=st.integers(3, 9),
    dtype=st.sampled_from([np.float32, np.float64]), classes=st.booleans(), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_a_task_of_a_dataset_is_that_of_its_arrays(shape, num_records, dtype, classes, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_records, *shape)).astype(dtype)
    y = rng.integers(0, 2, num_records) if classes else rng.standard_normal(num_records)
    loss = nn.functional.cross_entropy if classes else squared_sum
    kind = "classification" if classes else "regression"

    def build(**records):
        size = int(np.prod(shape))
        return tasks.from_module("same", 3, kind=kind, build_module=lambda: flat_linear(size), loss=loss, **records)

    tensors = torch.tensor(x), torch.tensor(y)
    some = rng.permutation(num_records)[:3]
    of_arrays = build(features=x, targets=y, test_features=x[some], test_targets=y[some])
    for whole in (TensorDataset(*tensors), Rows(x, y), Rows(*tensors), Rows(x.tolist(), y.tolist())):
        task = build(train=whole, test=Subset(whole, some.tolist()))
        assert task.content_hash == of_arrays.content_hash
        assert all(np.array_equal(task.owners(s), of_arrays.owners(s)) for s in range(2))


def test_a_dataset_is_read_once_so_what_it_draws_stays():
    class Drawn(Rows):
        def __getitem__(self, row):
            return self.features[row] + np.random.default_rng().standard_normal(3), self.targets[row]

    noisy = Drawn(np.zeros((6, 3)), np.arange(6) % 2)
    given = {"kind": "classification", "build_module": lambda: flat_linear(3), "loss": nn.functional.cross_entropy}
    task = tasks.from_module("drawn", 2, train=noisy, test=noisy, **given)
    first, second = (task.instance(seed=0, period=3) for _ in range(2))
    assert torch.equal(first.features, second.features)


def huber(output, target, width=1.0):
    return torch.nn.functional.huber_loss(output.squeeze(-1), target, delta=width)


def closed_over(factor):
    return lambda output, target: factor * (output.squeeze(-1) - target).square()


@dataclasses.dataclass
class Weighted:
    factor: float

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
    builds = (functools.partial(Bend, 1.0), functools.partial(Bend, 2.0), functools.partial(OtherBend, 1.0))
    hashes = {task(by_constant, build).content_hash for build in builds}
    assert len(hashes) == 3
    assert records.module_digest(Bend(1.0)) == records.module_digest(Bend(1.0))  # values of parameters do not count


def mechanism():
    dynamics = dynamics_on("path:n=3", learning_rate=0.1)
    return calibrate(algorithms.dp_dsgd(dynamics, Cyclic(2, 2)), Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)


def test_one_secret_key_serves_many_runs_without_sharing_noise():
    key, calibrated = NoiseKey.from_entropy(), mechanism()
    runs = [replay(calibrated, task(by_constant), seeds=[0], key=key).seeds[0] for _ in range(2)]
    assert runs[0].key_id != runs[1].key_id
    assert not np.isclose(runs[0].models, runs[1].models).any()
    seeded = [replay(calibrated, task(by_constant), seeds=[0]).seeds[0] for _ in range(2)]
    assert seeded[0].key_id == seeded[1].key_id
    np.testing.assert_array_equal(seeded[0].models, seeded[1].models)
