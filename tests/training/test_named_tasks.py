"""The tasks of the library by name: digits, housing, a9a."""

import dataclasses
import hashlib
import math
import os
import pickle
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from small_tasks import slow_sums, some_models
from vocabulary import each, refuses

from mfdl import data, partition, tasks


@pytest.mark.parametrize(("model", "dimension", "name"), [("softmax", 650, "digits"), ("mlp", 2410, "digits-mlp")])
def test_digits(model, dimension, name):
    task = tasks.digits(nx.cycle_graph(15), model=model)
    assert (task.name, task.num_nodes) == (name, 15)
    assert (len(task.targets), len(task.test_targets)) == (1198, 599)
    assert (task.features.min(), task.features.max()) == (0, 1)
    instance = task.instance(seed=0, period=4)
    assert instance.dimension == dimension
    models = instance.initial_parameters
    start = instance.evaluate(models)
    if model == "softmax":
        np.testing.assert_allclose(start.loss, np.log(10), rtol=1e-6)
    got = instance.clipped_gradient_sums(some_models(instance), 1, 0.5)
    np.testing.assert_allclose(got, slow_sums(instance, some_models(instance), 1, 0.5), rtol=1e-3, atol=1e-5)
    for step in range(60):  # averaged over nodes, without noise: it learns
        mean = instance.clipped_gradient_sums(models, step, 1e3) / instance.public_batch_sizes[:, None].float()
        models = (models - 0.5 * mean).mean(0, keepdim=True).repeat(15, 1)
    assert instance.evaluate(models).accuracy.min() > 0.85


def test_the_digits_split_is_one_for_all_and_a_partition():
    first, other = tasks.digits(3), tasks.digits(5, test_fraction=0.5)
    assert len(other.test_targets) == 898
    records = (np.concatenate([task.features, task.test_features]) for task in (first, other))
    assert len({len(np.unique(rows, axis=0)) for rows in records}) == 1
    np.testing.assert_array_equal(first.test_features, other.test_features[:599])
    refuses("unknown digits model 'sotfmax'; did you mean", tasks.digits, 3, model="sotfmax")
    refuses("test_fraction must be a number strictly", tasks.digits, 3, test_fraction=1.0)


@pytest.fixture
def housing_stub(monkeypatch):
    rng, requested = np.random.default_rng(0), []
    features, targets = rng.standard_normal((20640, 8)) * np.arange(1, 9) + 50, rng.uniform(0.15, 5, 20640)

    def california_housing(data_home=None):
        requested.append(data_home)
        return features, targets, tuple("abcdefgh")

    monkeypatch.setattr(data, "california_housing", california_housing)
    return features, targets, requested


def test_housing(housing_stub):
    _, targets, folders = housing_stub
    task = tasks.load("housing", nx.cycle_graph(148), data_home="somewhere")
    assert folders == ["somewhere"]
    assert (len(task.targets), len(task.test_targets), task.num_nodes) == (16512, 4128, 148)
    np.testing.assert_allclose(task.features.mean(axis=0, dtype=float), 0, atol=1e-5)
    np.testing.assert_allclose(task.features.std(axis=0, dtype=float), 1, atol=1e-5)
    assert np.abs(task.test_features.mean(axis=0)).max() > 1e-4  # scaled by the train records only
    np.testing.assert_allclose(np.sort(np.concatenate([task.targets, task.test_targets])), np.sort(targets), rtol=1e-6)
    instance = task.instance(seed=0, period=16)
    assert instance.dimension == 641
    assert instance.features.shape == (148, 16, 7, 8)  # 111 or 112 records
    assert set(instance.public_batch_sizes.tolist()) == {7.0}
    models = some_models(instance)
    got = instance.clipped_gradient_sums(models, 15, 1.0)
    np.testing.assert_allclose(got, slow_sums(instance, models, 15, 1.0), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("name", "dimension"), [("housing-mlp", 641), ("housing-linear", 9)])
def test_clipped_housing_is_housing_with_every_feature_bounded_by_five(housing_stub, name, dimension):
    features, _, _ = housing_stub
    features[:40] += 300 * np.where(np.arange(40) % 2, 1, -1)[:, None]
    task, whole = tasks.load(name, 5), tasks.load("housing", 5)
    assert np.abs(whole.features).max() > 6
    for part in ("features", "test_features"):
        np.testing.assert_array_equal(getattr(task, part), np.clip(getattr(whole, part), -5, 5))
    assert (task.name, task.instance(0, 2).dimension, whole.name) == (name, dimension, "housing")
    assert tasks.load("housing:model=linear,clip=2", 5).name == "housing-linear-2"
    assert tasks.load("housing:model=linear", 5).name == "housing-linear-unclipped"
    for clip in ("0", "-1", "nan"):
        refuses("clip must be", tasks.load, f"housing:clip={clip}", 5)


def test_the_loss_of_linear_housing_is_hubers(housing_stub):
    task = tasks.load("housing-linear", 3)
    outputs, targets = torch.linspace(-3, 3, 25)[:, None], torch.full((25,), 0.25)
    got = torch.stack([task.loss(output, target) for output, target in zip(outputs, targets, strict=True)])
    expected = torch.nn.functional.huber_loss(outputs[:, 0], targets, reduction="none")
    torch.testing.assert_close(got, expected)


def test_registry(housing_stub):
    assert tasks.names() == [
        "a9a", "digits", "digits-mlp", "femnist", "housing", "housing-linear", "housing-mlp", "least-squares",
        "logistic", "mnist", "mnist-mlp", "rotated-quadratics",
    ]  # fmt: skip


@each(
    "text, expected",
    ("digits:model=mlp, test_fraction=0.2", lambda: tasks.digits(3, "mlp", 0.2)),
    ("digits:partition=dirichlet:alpha=2", lambda: tasks.digits(3, partition="dirichlet:alpha=2")),
    ("digits-mlp:test_fraction=0.5", lambda: tasks.digits(3, "mlp", 0.5)),
    ("least-squares:dimension=3,data_seed=7,start=zero", lambda: tasks.least_squares(3, 3, 7, "zero")),
    ("rotated-quadratics:start=ones", lambda: tasks.rotated_quadratics(3, "ones")),
    ("rotated-quadratics:", lambda: tasks.rotated_quadratics(3)),
)
def test_a_text_names_the_task_of_its_parameters(text, expected):
    assert tasks.load(text, 3).content_hash == expected().content_hash


@each(
    "text, message",
    ("digits-mlp:model=softmax", "task digits-mlp: unknown parameter 'model'"),
    ("housing-mlp:clip=1", "task housing-mlp: unknown parameter 'clip'"),
    ("housing:data_home=/tmp", "task housing: unknown parameter 'data_home'"),
    ("least-squares:start=1", "unknown start '1'"),
)
def test_a_text_that_names_no_task_is_refused(text, message):
    refuses(message, tasks.load, text, 3)


@each(
    "name, period",
    *(("digits", 2), ("digits-mlp", 2), ("housing", 2), ("housing-linear", 2)),
    *(("logistic:train_records=9", 2), ("least-squares", 1), ("rotated-quadratics", 1)),
)
def test_tasks_and_instances_go_to_worker_processes(housing_stub, name, period):
    instance = tasks.load(name, 3).instance(seed=0, period=period)
    copy = pickle.loads(pickle.dumps(instance))
    models = instance.initial_parameters
    assert torch.equal(copy.clipped_gradient_sums(models, 0, 1.0), instance.clipped_gradient_sums(models, 0, 1.0))


NAMES = ("libsvm/a9a", "libsvm/a9a.t")


def small_data(num_records, last_feature, seed):
    rng = np.random.default_rng(seed)
    features = (rng.random((num_records, 123)) < 0.1).astype(float)
    features[:, last_feature:] = 0
    labels = np.where(rng.random(num_records) < 0.3, 1, -1)
    return features, labels


# As in the real files, the highest feature occurs in the training file only.
TRAIN, TEST = small_data(50, 123, 0), small_data(30, 122, 1)


def libsvm(features, labels) -> bytes:
    lines = [
        " ".join([f"{label:+d}", *(f"{j + 1}:1" for j in np.flatnonzero(row))])
        for row, label in zip(features, labels, strict=True)
    ]
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture
def put(monkeypatch, tmp_path):
    def put(name, content):
        file = dataclasses.replace(data.REGISTRY[name], sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(data.REGISTRY, name, file)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)

    return put


@pytest.fixture
def home(put, tmp_path):
    for name, records in zip(NAMES, (TRAIN, TEST), strict=True):
        put(name, libsvm(*records))
    return tmp_path


def test_the_files_are_read(home):
    for part, (features, labels) in (("train", TRAIN), ("test", TEST)):
        got_features, got_labels = data.a9a(part, home)
        assert got_features.shape == features.shape  # 123 columns, also where the last one does not occur
        np.testing.assert_array_equal(got_features, features)
        np.testing.assert_array_equal(got_labels, labels)


def test_a_file_of_another_format_is_refused(home, put):
    put("libsvm/a9a", b"+1 1:1 x\n")
    refuses("is not in LIBSVM's format", tasks.a9a, 3, home)
    refuses("unknown part of a9a 'tests'; did you mean", data.a9a, "tests", home)


def test_the_task(home):
    task = tasks.load("a9a", 4, home)
    assert (task.name, task.kind, task.partition) == ("a9a", "classification", partition.Dirichlet(10.0))
    np.testing.assert_array_equal(task.features, TRAIN[0])
    np.testing.assert_array_equal(task.targets, TRAIN[1] == 1)
    np.testing.assert_array_equal(task.test_targets, TEST[1] == 1)
    instance = pickle.loads(pickle.dumps(task.instance(0, 2)))
    assert instance.dimension == 123
    assert (instance.initial_parameters == 0).all()
    start = instance.evaluate(instance.initial_parameters)
    np.testing.assert_allclose(start.loss, math.log(2), rtol=1e-6)
    np.testing.assert_allclose(start.accuracy, np.mean(TEST[1] == -1))  # a tie counts as the negative class


def test_losses_gradients_and_hits_are_those_of_logistic_regression(home):
    task = tasks.load("a9a", 4, home, partition="uniform")
    instance = task.instance(0, 2, dtype=torch.float64)
    x = np.random.default_rng(0).standard_normal((4, 123))
    features, labels = TEST
    evaluation = instance.evaluate(torch.tensor(x))
    losses = [np.mean(np.log1p(np.exp(-labels * (features @ model)))) for model in x]
    np.testing.assert_allclose(evaluation.loss, losses, rtol=1e-10)
    np.testing.assert_allclose(evaluation.accuracy, [np.mean(np.sign(features @ model) == labels) for model in x])
    features, labels = TRAIN
    got = instance.clipped_gradient_sums(torch.tensor(x), 1, 0.7)
    for u in range(4):
        expected = np.zeros(123)
        for row in instance.record_index[u, 1][instance.mask[u, 1]].tolist():
            a, b = features[row], labels[row]
            gradient = -b * a / (1 + np.exp(b * (a @ x[u])))
            expected += gradient * min(1, 0.7 / np.linalg.norm(gradient))
        np.testing.assert_allclose(got[u], expected, rtol=1e-9, atol=1e-12)


def test_the_pool_is_split_once(home):
    task = tasks.load("a9a", 4, home, split="pool")
    assert (task.name, len(task.targets), len(task.test_targets)) == ("a9a-pool", 64, 16)
    pool = np.concatenate([np.column_stack(TRAIN), np.column_stack(TEST)])
    parts = (task.features, task.targets), (task.test_features, task.test_targets)
    got = np.concatenate([np.column_stack([features, 2 * classes - 1]) for features, classes in parts])
    np.testing.assert_array_equal(np.array(sorted(map(tuple, got))), np.array(sorted(map(tuple, pool))))
    assert not np.array_equal(got, pool)
    np.testing.assert_array_equal(tasks.load("a9a", 5, home, split="pool").test_features, task.test_features)
    refuses("unknown a9a split 'libsvn'; did you mean", tasks.load, "a9a", 4, home, split="libsvn")


@pytest.mark.slow
def test_the_real_data():
    real = os.environ.get("MFDL_DATA")
    if real is None or not all((Path(real) / name).is_file() for name in NAMES):
        pytest.skip("MFDL_DATA holds no a9a")
    task = tasks.load("a9a", 20)
    assert (task.features.shape, task.test_features.shape) == ((32561, 123), (16281, 123))
    assert (task.targets.sum(), task.test_targets.sum()) == (7841, 3846)
    assert set(np.unique(task.features)) == {0, 1}
    sizes = np.bincount(task.owners(0))
    assert sizes.sum() == 32561
    assert sizes.max() > 1.5 * sizes.min()
    instance = task.instance(0, 32)
    models = instance.initial_parameters
    for step in range(64):
        mean = instance.clipped_gradient_sums(models, step, 1e3) / instance.public_batch_sizes[:, None].float()
        models = (models - 0.5 * mean).mean(0, keepdim=True).repeat(20, 1)
    evaluation = instance.evaluate(models)
    assert evaluation.loss.max() < 0.37
    assert evaluation.accuracy.min() > 0.82
