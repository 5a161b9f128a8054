"""a9a: fetching and reading, logistic loss with labels +-1, the two splits."""

import dataclasses
import hashlib
import math
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refuses

from mfdl import data, partition, tasks

torch.set_num_threads(1)  # workers of the test run share the cores
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
    """Puts a file's content into the data folder and registers its checksum."""

    def put(name, content):
        file = dataclasses.replace(data.registered_files.REGISTRY[name], sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(data.registered_files.REGISTRY, name, file)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)

    return put


@pytest.fixture
def home(put, tmp_path):
    """A data folder with small files of the same format."""
    for name, records in zip(NAMES, (TRAIN, TEST), strict=True):
        put(name, libsvm(*records))
    return tmp_path


def test_the_registry_names_the_published_files():
    checksums = {
        "libsvm/a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
        "libsvm/a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    }
    for name, checksum in checksums.items():
        assert data.registered_files.REGISTRY[name].sha256 == checksum
        (url,) = data.registered_files.REGISTRY[name].urls
        assert url == f"https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/{Path(name).name}"


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
    np.testing.assert_allclose(
        evaluation.loss, [np.mean(np.log1p(np.exp(-labels * (features @ model)))) for model in x], rtol=1e-10
    )
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
    got = np.concatenate(
        [
            np.column_stack([task.features, 2 * task.targets - 1]),
            np.column_stack([task.test_features, 2 * task.test_targets - 1]),
        ]
    )
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
    assert task.features.shape == (32561, 123)
    assert task.test_features.shape == (16281, 123)
    assert task.targets.sum() == 7841
    assert task.test_targets.sum() == 3846
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
