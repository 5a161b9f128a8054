"""The tasks of the library by name and parameters: digits, housing, and the texts that name them."""

import pickle

import networkx as nx
import numpy as np
import pytest
import torch
from refusals import refuses
from small_tasks import slow_sums, some_models

from mfdl import data, tasks

torch.set_num_threads(1)  # workers of the test run share the cores; spinning threads cost seconds


@pytest.mark.parametrize(("model", "dimension", "name"), [("softmax", 650, "digits"), ("mlp", 2410, "digits-mlp")])
def test_digits(model, dimension, name):
    task = tasks.digits(nx.cycle_graph(15), model=model)
    assert task.name == name
    assert task.num_nodes == 15
    assert (len(task.targets), len(task.test_targets)) == (1198, 599)
    assert task.features.min() == 0
    assert task.features.max() == 1
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
    together = np.concatenate([first.features, first.test_features])
    assert len(np.unique(together, axis=0)) == len(
        np.unique(np.concatenate([other.features, other.test_features]), axis=0)
    )
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
        "a9a",
        "digits",
        "digits-mlp",
        "femnist",
        "housing",
        "housing-linear",
        "housing-mlp",
        "least-squares",
        "logistic",
        "mnist",
        "mnist-mlp",
        "rotated-quadratics",
    ]
    assert tasks.load("digits", 3, test_fraction=0.5).num_nodes == 3
    assert tasks.load("digits-mlp", 3).name == "digits-mlp"
    refuses("unknown task 'digit'; did you mean 'digits'", tasks.load, "digit", 3)
    refuses("task housing-mlp: unknown parameter 'clip", tasks.load, "housing-mlp", 3, clip=1.0)
    refuses("task digits-mlp: unknown parameter 'model", tasks.load, "digits-mlp", 3, model="softmax")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("digits:model=mlp, test_fraction=0.2", lambda: tasks.digits(3, "mlp", 0.2)),
        ("digits:partition=dirichlet:alpha=2", lambda: tasks.digits(3, partition="dirichlet:alpha=2")),
        ("digits-mlp:test_fraction=0.5", lambda: tasks.digits(3, "mlp", 0.5)),
        ("least-squares:dimension=3,data_seed=7,start=zero", lambda: tasks.least_squares(3, 3, 7, "zero")),
        ("rotated-quadratics:start=ones", lambda: tasks.rotated_quadratics(3, "ones")),
        ("rotated-quadratics:", lambda: tasks.rotated_quadratics(3)),
    ],
)
def test_a_text_names_the_task_of_its_parameters(text, expected):
    assert tasks.load(text, 3).content_hash == expected().content_hash


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digit:model=mlp", "unknown task 'digit'; did you mean 'digits'"),
        ("digits:modell=mlp", "task digits: unknown parameter 'modell'; did you mean 'model'. Known: model"),
        ("digits-mlp:model=softmax", "task digits-mlp: unknown parameter 'model'"),
        ("digits:model", "task digits: parameters are written key=value, got 'model'"),
        ("digits:model=mlp,model=mlp", "task digits: parameter 'model' is given twice; give it once"),
        ("housing:data_home=/tmp", "task housing: unknown parameter 'data_home'"),
        ("digits:test_fraction=half", "task digits: test_fraction must be a number, got 'half'"),
        (
            "least-squares:dimension=2.5",
            "task least-squares: dimension must be an integer of at most 18 digits, got '2.5'",
        ),
        ("least-squares:start=1", "unknown start '1'"),
    ],
)
def test_a_text_that_names_no_task_is_refused(text, message):
    refuses(message, tasks.load, text, 3)


@pytest.mark.parametrize(
    ("name", "period"),
    [
        *(("digits", 2), ("digits-mlp", 2), ("housing", 2), ("housing-linear", 2)),
        *(("logistic:train_records=9", 2), ("least-squares", 1), ("rotated-quadratics", 1)),
    ],
)
def test_tasks_and_instances_go_to_worker_processes(housing_stub, name, period):
    instance = tasks.load(name, 3).instance(seed=0, period=period)
    copy = pickle.loads(pickle.dumps(instance))
    models = instance.initial_parameters
    assert torch.equal(copy.clipped_gradient_sums(models, 0, 1.0), instance.clipped_gradient_sums(models, 0, 1.0))
