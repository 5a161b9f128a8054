"""Tasks: splits, record-to-step maps, refusals, and clipped gradients against a loop of torch.autograd."""

import functools

import networkx as nx
import numpy as np
import pytest
import torch
from small_tasks import classes, mlp, module_at, regression, slow_sums, some_models
from torch import nn
from vocabulary import each, given, refuses, st

from mfdl import partition
from mfdl.training.tasks import instance as instances
from mfdl.training.tasks.record_clipping import RecordClipping


def uniform_index(num_records: int, num_nodes: int, seed: int, period: int) -> np.ndarray:
    rows = partition.Uniform().rows_of_nodes(np.zeros(num_records), num_nodes, seed)
    return partition.record_index(rows, seed=seed, periods=[period] * num_nodes)


@given(60, num_nodes=st.integers(1, 7), period=st.integers(1, 5), extra=st.integers(0, 30), seed=st.integers(0, 2**70))
def test_every_record_is_at_one_node_in_one_step_class(num_nodes, period, extra, seed):
    num_records = num_nodes * period + extra
    index = uniform_index(num_records, num_nodes, seed=seed, period=period)
    present = index >= 0
    assert sorted(index[present].tolist()) == list(range(num_records))
    records = present.sum(axis=(1, 2))
    assert records.max() - records.min() <= 1
    batches = present.sum(axis=2)
    assert batches.min() >= 1
    assert (batches.max(axis=1) == -(-records // period)).all()
    assert index.shape[2] == batches.max()
    # Position j is class j mod period, slot j // period: the classes fill from the left.
    for u in range(num_nodes):
        filled = present[u].T.reshape(-1)
        assert filled[: records[u]].all()
        assert not filled[records[u] :].any()


def test_the_split_is_uniform_and_its_seeds_are_separate():
    splits = np.array([partition.permutation(seed, partition.NODE_SPLIT, 6) for seed in range(6000)])
    for position in range(6):
        counts = np.bincount(splits[:, position], minlength=6)
        # Binomial(6000, 1/6), standard deviation 28.9: 6 of them, 36 counts, false-alarm rate 7e-8.
        assert np.abs(counts - 1000).max() < 173
    purposes = [tuple(partition.permutation(3, purpose, 50)) for purpose in range(6)]
    assert len(set(purposes)) == 6
    assert len({partition.torch_seed(seed, purpose) for seed in range(50) for purpose in range(6)}) == 300


def test_an_instance_holds_the_records_of_the_task():
    task = regression(num_records=41)
    instance = task.instance(seed=3, period=4)
    index, mask = instance.record_index.numpy(), instance.mask.numpy()
    assert instance.features.shape == (4, 4, 3, 3)
    np.testing.assert_array_equal(instance.features.numpy()[mask], task.features[index[mask]])
    np.testing.assert_array_equal(instance.targets.numpy()[mask], task.targets[index[mask]])
    assert (instance.features.numpy()[~mask] == 0).all()
    assert (instance.targets.numpy()[~mask] == 0).all()
    np.testing.assert_array_equal(instance.public_batch_sizes, [3, 3, 3, 3])  # ceil(11/4), ceil(10/4)
    assert instance.public_batch_sizes.dtype == torch.float64
    again, other = task.instance(seed=3, period=4), task.instance(seed=4, period=4)
    for name in ("record_index", "initial_parameters"):
        assert torch.equal(getattr(again, name), getattr(instance, name))
        assert not torch.equal(getattr(other, name), getattr(instance, name))


def test_the_period_changes_neither_who_holds_a_record_nor_the_first_model():
    task = regression()
    instance, other = task.instance(seed=0, period=2), task.instance(seed=0, period=5)
    for u in range(4):
        records = [sorted(set(i.record_index[u].flatten().tolist()) - {-1}) for i in (instance, other)]
        assert records[0] == records[1]
    assert torch.equal(instance.initial_parameters, other.initial_parameters)


def test_too_few_records_for_the_period():
    refuses("at least period=11 records .* got 10 at node", lambda: regression().instance(seed=0, period=11))
    assert regression().instance(seed=0, period=10).mask.all()


def test_initial_parameters_are_equal_rows_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    instance = regression().instance(seed=0, period=2)
    assert torch.equal(torch.get_rng_state(), state)
    rows = instance.initial_parameters
    assert rows.shape == (4, instance.dimension) == (4, 3 * 4 + 4 + 4 + 1)
    assert (rows == rows[0]).all()
    assert rows.std() > 0.1
    torch.manual_seed(6)
    assert torch.equal(regression().instance(seed=0, period=2).initial_parameters, rows)
    assert not rows.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip_norm", [0.3, 1e6])
def test_clipped_gradient_sums_are_those_of_a_loop_over_records(dtype, clip_norm):
    task = regression(43)  # ragged: 11, 11, 11, 10 records
    instance = task.instance(seed=2, period=4, dtype=dtype)
    models = some_models(instance)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-12}
    for step in range(5):
        got = instance.clipped_gradient_sums(models, step, clip_norm)
        assert got.dtype == dtype
        assert not got.requires_grad
        np.testing.assert_allclose(got, slow_sums(instance, models, step, clip_norm), **tolerance)
        assert torch.equal(got, instance.clipped_gradient_sums(models, step + instance.period, clip_norm))


class Uneven(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x * self.frozen + self.shift))
        return self.scale * self.second(hidden).sum(-1, keepdim=True)


def seeded_uneven() -> nn.Module:
    torch.manual_seed(0)  # inside the fork: the frozen part is the same in every call
    return Uneven()


def test_scalar_shared_and_frozen_parameters():
    instance = regression(build=seeded_uneven).instance(seed=0, period=3, dtype=torch.float64)
    assert instance.dimension == 1 + 9 + 3 + 3
    models = some_models(instance)
    with torch.random.fork_rng():
        expected = slow_sums(instance, models, 1, 0.5)
    np.testing.assert_allclose(instance.clipped_gradient_sums(models, 1, 0.5), expected, rtol=1e-9, atol=1e-12)


def test_images_and_classes():
    rng = np.random.default_rng(0)

    def build():
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))

    images = {"features": rng.standard_normal((20, 1, 4, 4)), "test_features": rng.standard_normal((11, 1, 4, 4))}
    task = classes(20, nx.path_graph(3), build_module=build, **images)
    instance = task.instance(seed=0, period=2, dtype=torch.float64)
    models = some_models(instance)
    got = instance.clipped_gradient_sums(models, 0, 0.5)
    np.testing.assert_allclose(got, slow_sums(instance, models, 0, 0.5), rtol=1e-9, atol=1e-12)
    evaluation = instance.evaluate(models)
    for u, row in enumerate(models):
        outputs = module_at(task, row)(torch.tensor(task.test_features).double())
        targets = torch.tensor(task.test_targets)
        assert evaluation.loss[u] == pytest.approx(nn.functional.cross_entropy(outputs, targets).item(), rel=1e-9)
        assert evaluation.accuracy[u] == (outputs.argmax(1) == targets).double().mean()


@pytest.mark.parametrize("budget", [1, 4000, 10**9])
def test_chunks_do_not_change_the_answer(monkeypatch, budget):
    task = regression(num_records=43)
    instance = task.instance(seed=2, period=2, dtype=torch.float64)
    models = some_models(instance)
    sums, evaluation = instance.clipped_gradient_sums(models, 1, 0.5), instance.evaluate(models)
    sizes, inner = [], RecordClipping.sums

    def spy(self, rows, features, targets, *more):
        sizes.append(targets.numel())
        return inner(self, rows, features, targets, *more)

    monkeypatch.setattr(RecordClipping, "sums", spy)
    monkeypatch.setattr(instances, "CHUNK_BYTES", budget)
    np.testing.assert_allclose(instance.clipped_gradient_sums(models, 1, 0.5), sums, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(instance.evaluate(models).loss, evaluation.loss, rtol=1e-12)
    record_bytes = 4 * instance.activations * 8  # and factors
    assert max(sizes) <= max(1, budget / record_bytes)
    assert sum(sizes) == 4 * 6


def test_regression_has_no_accuracy_and_losses_are_means():
    task = regression()
    instance = task.instance(seed=0, period=2)
    models = some_models(instance)
    evaluation = instance.evaluate(models)
    assert evaluation.accuracy is None
    assert evaluation.loss.dtype == torch.float64
    for u, row in enumerate(models):
        outputs = module_at(task, row)(torch.tensor(task.test_features)).squeeze(1)
        expected = (outputs - torch.tensor(task.test_targets)).square().mean().item()
        assert evaluation.loss[u] == pytest.approx(expected, rel=1e-5)
    assert "not private" in type(instance).evaluate.__doc__.lower()


def _of(unit, models=lambda start: start, step=0, clip_norm=1.0):
    return lambda instance: instance.clipped_gradients(models(instance.initial_parameters), step, clip_norm, unit)


@each(
    "call, message",
    (_of("users"), "unknown unit 'users'; did you mean 'user'"),
    *((_of(unit, step=-1), "step must be an integer >= 0, got -1") for unit in ("record", "user")),
    *((_of(unit, clip_norm=0.0), "clip_norm must be") for unit in ("record", "user")),
    (_of("user", lambda m: m[:2]), "models must be a tensor of shape"),
    (_of("record", lambda m: m[0]), r"models must be a tensor of .* and device \(\(4, 21\), torch.float32"),
    (_of("record", lambda m: m.double()), "torch.float64"),
    (lambda instance: instance.evaluate(instance.initial_parameters.numpy()), "got ndarray"),
    (lambda instance: instance.task.instance(-1, 1), "seed must be an integer >= 0"),
    (lambda instance: instance.task.instance(0, 0), "period must be an integer >= 1"),
    (lambda instance: instance.task.instance(0, 1, torch.float16), "dtype must be torch.float32 or torch.float64"),
)
def test_arguments_that_do_not_fit(call, message):
    refuses(message, lambda: call(regression().instance(seed=0, period=2)))


def with_nan(rows: int = 40) -> np.ndarray:
    features = np.zeros((rows, 3))
    features[12, 1], features[20, 2] = np.nan, np.inf
    return features


CLASSES = {"kind": "classification", "loss": nn.functional.cross_entropy, "build": functools.partial(mlp, outputs=3)}


@each(
    "changes, message",
    ({"features": with_nan()}, r"features must be finite in float32, got nan in row 12 \(2 of 40 rows"),
    ({"features": np.full((40, 3), 1e39)}, r"features must be finite in float32, got 1e\+39 in row 0"),
    ({"targets": np.full(40, np.inf)}, "targets must be finite in float32, got inf in row 0"),
    ({"test_features": with_nan()[10:21]}, r"test_features must be finite in float32, got nan in row 2"),
    ({"targets": np.zeros(39)}, "one row per record, got 40 and 39 rows"),
    ({"test_targets": np.zeros(3)}, "one row per record, got 11 and 3 rows"),
    ({"test_features": np.zeros((11, 2))}, "the same kind of record"),
    ({"test_features": np.zeros((11, 3), dtype=int)}, "the same kind of record"),
    ({"features": np.zeros((0, 3))}, "features must be a numeric array with at least one record"),
    ({"num_nodes": 41}, "got 40 train records for 41 nodes; use a smaller graph"),
    ({"num_nodes": 0}, "must be an integer >= 1, got 0"),
    ({"num_nodes": "ring"}, "graph ring needs the parameter 'n'"),
    ({"kind": "ranking"}, "kind must be 'classification' or 'regression', got 'ranking'"),
    (CLASSES | {"targets": np.zeros(40, int), "test_targets": np.full(11, 3)}, "test_targets must be classes 0"),
)
def test_data_that_cannot_be_used(changes, message):
    refuses(message, regression, **changes)


def test_test_features_of_a_table_are_taken_by_name():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    train = pandas.DataFrame(rng.standard_normal((40, 3)), columns=["age", "income", "rooms"])
    test = pandas.DataFrame(rng.standard_normal((11, 3)), columns=["age", "income", "rooms"])
    task = regression(features=train, test_features=test)
    assert task.content_hash == regression(features=train, test_features=test[["rooms", "age", "income"]]).content_hash
    for other in (test.rename(columns={"age": "Age"}), test.assign(more=1.0), test[["age", "income", "income"]]):
        refuses("test_features must have the columns", regression, features=train, test_features=other)
    prices = pandas.Series(rng.standard_normal(40))
    refuses("features and targets must have", regression, features=train, targets=prices[::-1], test_features=test)


def test_a_task_keeps_its_own_read_only_data():
    features = np.zeros((40, 3))
    task = regression(features=features)
    features[:] = 1
    assert (task.features == 0).all()
    assert (task.features.dtype, task.features.flags.writeable) == (np.float32, False)
    task.instance(seed=0, period=1).features[:] = 2
    assert (task.features == 0).all()


def test_content_hash_follows_data_and_model():
    base = regression().content_hash
    assert base == regression().content_hash
    others = [regression(**{name: np.zeros(size)}) for name, size in (("targets", 40), ("test_targets", 11))]
    others += [regression(num_nodes=5), regression(build=functools.partial(mlp, hidden=5))]
    assert len({base, *(task.content_hash for task in others)}) == 5
