"""Generated logistic data: their spectrum, their classes, and that the same arguments give the same records."""

import numpy as np
import pytest
import torch
from scipy import stats

import mfdl
from mfdl import tasks


def whole(task):
    return (
        np.concatenate([task.features, task.test_features]).astype(float),
        np.concatenate([task.targets, task.test_targets]),
    )


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
    assert stats.ttest_ind(X[y == 1], X[y == 0]).pvalue.min() > 1e-4


def test_records_are_drawn_once_for_all_runs_and_clipped():
    task = tasks.load("logistic:train_records=200,test_records=10,clip=0.5", 5, partition="dirichlet:alpha=2")
    again = tasks.load("logistic:train_records=200,test_records=10,clip=0.5", 5, partition="dirichlet:alpha=2")
    other = tasks.load("logistic:train_records=200,test_records=10,clip=0.5,data_seed=1", 5)
    assert task.content_hash == again.content_hash
    assert (task.features != other.features).any()
    assert np.abs(task.features).max() == 0.5
    assert task.instance(seed=0, period=1).dimension == 2 * 20 + 2
    assert not torch.any(task.instance(seed=3, period=1).initial_parameters)


@pytest.mark.parametrize("given", ["dimension=0", "train_records=0", "decay=-1", "margin=-1", "clip=0", "data_seed=-1"])
def test_refusals(given):
    with pytest.raises(mfdl.InvalidInput, match=given.split("=")[0]):
        tasks.load(f"logistic:{given}", 3)
