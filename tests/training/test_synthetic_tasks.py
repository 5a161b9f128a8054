"""Generated tasks: gradients, losses, minimisers against closed forms; the spectrum and classes of logistic records."""

import dataclasses
import functools

import networkx as nx
import numpy as np
import pytest
import scipy.stats
import torch
from vocabulary import each, given, refuses, st

from mfdl import partition, tasks

torch.set_num_threads(1)  # workers of the test run share the cores


def parts(task):
    records = task.features.astype(np.float64)
    return records[..., :-1], records[..., -1]


def minimiser(A, b):
    """Oracle: least squares on all rows stacked."""
    return np.linalg.lstsq(A.reshape(-1, A.shape[2]), b.reshape(-1), rcond=None)[0]


def mean_loss(A, b, x):
    """Oracle: f(x) = mean_i 1/2 ||A_i x - b_i||^2."""
    return np.mean([0.5 * np.sum((a @ x - c) ** 2) for a, c in zip(A, b, strict=True)])


@st.composite
def problems(draw):
    n, d = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    m = d + draw(st.integers(0, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # The identity on top keeps the sum of A_i^T A_i well away from singular.
    return rng.standard_normal((n, m, d)) + 3 * np.eye(m, d), rng.standard_normal((n, m)), rng.standard_normal((n, d))


excess = functools.partial(tasks.quadratic, "own", metric="excess-loss")


def at(task, points, dtype=torch.float64):
    instance = task.instance(seed=0, period=1, dtype=dtype)
    return instance, torch.tensor(points, dtype=dtype)


@given(40, problem=problems(), clip_norm=st.sampled_from([0.1, 1.0, 1e6]))
def test_gradients_are_those_of_the_closed_form(problem, clip_norm):
    A, b, points = problem
    task = excess(A, b)
    instance, models = at(task, points)
    A, b = parts(task)
    expected = np.einsum("nki,nk->ni", A, np.einsum("nki,ni->nk", A, points) - b)
    norms = np.linalg.norm(expected, axis=1, keepdims=True)
    expected *= np.minimum(1, clip_norm / np.maximum(norms, 1e-300))
    for step in (0, 5):
        got = instance.clipped_gradient_sums(models, step, clip_norm)
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@given(40, problem=problems())
def test_losses_are_those_of_the_closed_form(problem):
    A, b, points = problem
    task = excess(A, b)
    A, b = parts(task)
    x = minimiser(A, b)
    values = np.array([mean_loss(A, b, point) for point in points]) - mean_loss(A, b, x)
    instance, models = at(task, points)
    # float32 of the test record, 6e-8 of terms of the size of f.
    scale = 1 + mean_loss(A, b, np.zeros_like(x)) + np.abs(values).max()
    np.testing.assert_allclose(instance.evaluate(models).loss, values, rtol=1e-6, atol=1e-6 * scale)
    distance = tasks.quadratic("own", problem[0], problem[1], metric="squared-distance")
    instance, models = at(distance, points)
    expected = np.sum((points - x) ** 2, axis=1)
    np.testing.assert_allclose(instance.evaluate(models).loss, expected, rtol=1e-6, atol=1e-6 * (1 + x @ x))


@given(40, problem=problems())
def test_the_optimum_is_the_minimiser(problem):
    A, b, points = problem
    task = tasks.quadratic("own", A, b, metric="squared-distance", start="optimum")
    A, b = parts(task)
    start = task.instance(seed=0, period=1, dtype=torch.float64).initial_parameters[0].numpy()
    np.testing.assert_allclose(start, minimiser(A, b), rtol=1e-5, atol=1e-6)
    for point in points:
        assert mean_loss(A, b, start) <= mean_loss(A, b, start + 1e-2 * point) + 1e-9
    instance, models = at(task, np.tile(start, (len(A), 1)))
    np.testing.assert_array_equal(instance.evaluate(models).loss, 0)


def test_least_squares_is_the_problem_of_the_paper():
    task = tasks.least_squares(nx.cycle_graph(16))
    A, b = parts(task)
    assert (task.name, task.num_nodes, len(task.targets)) == ("least-squares", 16, 16)
    for i in range(1, 17):
        np.testing.assert_allclose(A[i - 1], i / 4 * np.eye(10), rtol=1e-7)
    x = sum(i * b[i - 1] / 4 for i in range(1, 17)) / sum(i**2 / 16 for i in range(1, 17))
    instance = task.instance(seed=3, period=1, dtype=torch.float64)
    assert instance.dimension == 10
    assert (instance.initial_parameters == 1).all()
    models = torch.tensor(np.random.default_rng(0).standard_normal((16, 10)))
    got = instance.evaluate(models)
    assert got.accuracy is None
    np.testing.assert_allclose(got.loss, np.sum((models.numpy() - x) ** 2, axis=1), rtol=1e-6)
    optimum = tasks.least_squares(16, start="optimum").instance(0, 1)
    np.testing.assert_allclose(optimum.initial_parameters[4], x, rtol=1e-5, atol=1e-7)


def test_least_squares_data_are_normal_and_follow_the_data_seed_alone():
    _, b = parts(tasks.least_squares(8, dimension=500))
    scaled = b * np.arange(1, 9)[:, None]
    assert scipy.stats.kstest(scaled.ravel(), "norm").pvalue > 1e-4
    for i in range(8):
        assert scaled[i].std() == pytest.approx(1, abs=0.2)  # 6 standard deviations of 500 draws: 0.19
    task, other = tasks.least_squares(8), tasks.least_squares(8, data_seed=1)
    assert task.content_hash == tasks.least_squares(8).content_hash
    assert task.content_hash != other.content_hash
    assert np.abs(parts(task)[1] - parts(other)[1]).max() > 0.1
    assert torch.equal(task.instance(0, 1).features, task.instance(9, 1).features)


def f_by_hand(i, n, x):
    """f_i with the rotation written out: the point is turned back around (i, 0) by -15 degrees."""
    if i <= n / 2:
        return 15 * (x[0] + i) ** 2 + x[1] ** 2
    c, s = np.cos(np.pi / 12), np.sin(np.pi / 12)
    u = c * (x[0] - i) + s * x[1]
    v = -s * (x[0] - i) + c * x[1]
    return 15 * u**2 + v**2


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_rotated_quadratics_are_the_functions_of_the_paper(n):
    task = tasks.rotated_quadratics(n)
    A, b = parts(task)
    rng = np.random.default_rng(n)
    for x in rng.standard_normal((5, 2)) * 20:
        for i in range(1, n + 1):
            assert mean_loss(A[[i - 1]], b[[i - 1]], x) == pytest.approx(f_by_hand(i, n, x), rel=1e-5)
            center = np.array([-i if i <= n / 2 else i, 0.0])
            assert f_by_hand(i, n, center) == 0
            # The flat axis (curvature 2, not 30) of a rotated function points 15 degrees left of straight up.
            tilt = np.array([0.0, 1.0]) if i <= n / 2 else np.array([-np.sin(np.pi / 12), np.cos(np.pi / 12)])
            assert mean_loss(A[[i - 1]], b[[i - 1]], center + tilt) == pytest.approx(1, rel=1e-5)


def test_rotated_quadratics_measure_the_excess_of_the_mean():
    task = tasks.rotated_quadratics(20)
    instance = task.instance(0, 1, dtype=torch.float64)
    x = instance.initial_parameters[0].numpy()
    np.testing.assert_allclose(x, [2.8455, 15.0760], atol=1e-4)
    assert (instance.initial_parameters == instance.initial_parameters[0]).all()
    # About 1e-14 of the 601.67 at 0 is the rounding of records.
    np.testing.assert_allclose(instance.evaluate(instance.initial_parameters).loss, 0, atol=1e-10)
    models = np.random.default_rng(0).standard_normal((20, 2)) * 10
    least = np.mean([f_by_hand(i, 20, x) for i in range(1, 21)])
    expected = [np.mean([f_by_hand(i, 20, model) for i in range(1, 21)]) - least for model in models]
    np.testing.assert_allclose(instance.evaluate(torch.tensor(models)).loss, expected, rtol=1e-5)


def test_from_zero_the_clipped_steps_of_the_paper_go_nowhere():
    """Why the default start is the optimum: clipped to 0.1, no 5,000 steps leave the neighbourhood of 0."""
    instance = tasks.rotated_quadratics(20, start="zero").instance(0, 1, dtype=torch.float64)
    optimum = tasks.rotated_quadratics(20).instance(0, 1, dtype=torch.float64).initial_parameters
    np.testing.assert_allclose(instance.evaluate(instance.initial_parameters).loss, 601.67, atol=0.01)
    way = 0.1 * np.sum(0.01 / np.sqrt(np.arange(1, 5001)))
    assert way < 0.14
    nearer = optimum * (way / optimum[0].norm())  # all of it in the best direction
    assert instance.evaluate(nearer).loss.min() > 580


@pytest.mark.parametrize("name", ["least-squares", "rotated-quadratics"])
def test_a_node_holds_its_own_record_in_every_seed(name):
    task = tasks.load(name, nx.cycle_graph(6))
    assert isinstance(task.partition, partition.Fixed)
    for seed in (0, 5):
        instance = task.instance(seed, 1)
        np.testing.assert_array_equal(instance.record_index.flatten(), np.arange(6))
        np.testing.assert_array_equal(instance.public_batch_sizes, np.ones(6))
    np.testing.assert_array_equal(task.public_batch_sizes(1), np.ones(6))
    refuses(r"at least period=2 records .* use period <= 1", task.instance, 0, 2)
    refuses(f"task {name}: unknown parameter 'partition'", tasks.load, name, 6, partition="uniform")


def test_starts():
    for start, expected in (("zero", [0, 0]), ("ones", [1, 1]), ([3, -2.5], [3, -2.5]), (np.array([0.5, 1]), [0.5, 1])):
        task = tasks.rotated_quadratics(4, start=start)
        assert task.instance(8, 1).initial_parameters.tolist() == [expected] * 4
    hashes = {tasks.rotated_quadratics(4, start=start).content_hash for start in ("zero", "ones", "optimum")}
    assert len(hashes) == 3
    assert dataclasses.replace(tasks.rotated_quadratics(4)).content_hash in hashes


@each(
    "make, message",
    (lambda: tasks.least_squares(4, dimension=0), "dimension must be an integer >= 1, got 0"),
    (lambda: tasks.least_squares(4, data_seed=-1), "data_seed must be an integer >= 0, got -1"),
    (lambda: tasks.least_squares(4, start="one"), "unknown start 'one'; did you mean 'ones'"),
    (lambda: tasks.rotated_quadratics(4, start=[1.0]), "zero, ones, optimum or 2 numbers, got 1"),
    (lambda: tasks.rotated_quadratics(4, start=[1.0, np.nan]), "start must be finite, got nan"),
    (lambda: tasks.rotated_quadratics(0), "must be an integer >= 1, got 0"),
    (lambda: excess(np.ones((3, 2, 2)), np.ones((3, 2))), "got a singular"),
    (lambda: excess(np.ones((3, 1, 2)), np.ones((3, 1))), "with m >= d >="),
    (lambda: excess(np.ones((3, 2, 1)), np.ones(3)), "values must have 2"),
    (lambda: tasks.quadratic("own", np.ones((3, 1, 1)), np.ones((3, 1)), metric="loss"), "unknown metric 'loss'"),
    (lambda: excess(np.full((3, 1, 1), np.inf), np.ones((3, 1))), "matrices must be finite"),
    (lambda: excess(np.ones((3, 1, 1)), np.full((3, 1), 1e39)), r"at most 1e\+15, got 1e\+39; rescale"),
)
def test_problems_that_cannot_be_used(make, message):
    refuses(message, make)


def whole(task):
    records = (task.features, task.test_features), (task.targets, task.test_targets)
    return map(np.concatenate, records)


@pytest.mark.parametrize("decay", [0.0, 1.5])
def test_features_have_the_spectrum_that_was_asked_for(decay):
    X, _ = whole(tasks.logistic(3, dimension=5, train_records=15_000, test_records=5_000, decay=decay))
    expected = np.diag(np.arange(1.0, 6) ** -decay)
    assert np.abs(np.cov(X.T) - expected).max() < 5 * np.sqrt(2 / 20_000)  # five standard errors of a variance
    assert np.abs(X).max() <= 5


def test_classes_follow_the_logistic_model():
    """Records in order of their score: as many of class 1 in each tenth as the model says, to five deviations."""
    X, y = whole(tasks.logistic(3, dimension=4, train_records=15_000, test_records=5_000, margin=3.0))
    spectrum = 1 / np.arange(1.0, 5)
    probability = 1 / (1 + np.exp(-X.sum(axis=1) * 3 / np.sqrt(spectrum.sum())))
    for rows in np.array_split(np.argsort(probability), 10):
        p = probability[rows]
        assert abs(y[rows].sum() - p.sum()) < 5 * np.sqrt((p * (1 - p)).sum())


def test_without_a_margin_there_is_nothing_to_learn():
    X, y = whole(tasks.logistic(3, dimension=2, margin=0.0))
    assert scipy.stats.ttest_ind(X[y == 1], X[y == 0]).pvalue.min() > 1e-4


def test_records_are_drawn_once_for_all_runs_and_clipped():
    text = "logistic:train_records=200,test_records=10,clip=0.5"
    task, again = (tasks.load(text, 5, partition="dirichlet:alpha=2") for _ in range(2))
    other = tasks.load(f"{text},data_seed=1", 5)
    assert task.content_hash == again.content_hash
    assert (task.features != other.features).any()
    assert np.abs(task.features).max() == 0.5
    assert task.instance(seed=0, period=1).dimension == 2 * 20 + 2
    assert not torch.any(task.instance(seed=3, period=1).initial_parameters)


@pytest.mark.parametrize("given", ["dimension=0", "train_records=0", "decay=-1", "margin=-1", "clip=0", "data_seed=-1"])
def test_refusals(given):
    refuses(given.split("=")[0], tasks.load, f"logistic:{given}", 3)
