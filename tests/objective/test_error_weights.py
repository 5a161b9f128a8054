"""Which models count, by steps and by nodes, and which are released: by name and by number, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses

from mfdl import ErrorWeights
from mfdl.released import ReleasedModel


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("all", [1, 1, 1, 1]),
        ("last", [0, 0, 0, 1]),
        ("last:3", [0, 1, 1, 1]),
        ("last:2:0.25", [0.25, 0.25, 1, 1]),
        ("exponential:2", [2**-1.5, 0.5, 2**-0.5, 1]),
        ("released:average:2", [0, 0, 0.5, 0.5]),
    ],
)
def test_step_weights_by_name(text, weights):
    parsed = ErrorWeights.parse(text)
    assert_allclose(parsed.of_steps(4), weights)
    assert (parsed.describe(), parsed.uniform_target, parsed.of_average) == (text, True, False)


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("last", [0, 0, 0, 1]),
        ("average:3", [0, 1 / 3, 1 / 3, 1 / 3]),
        ("exponential:1", np.array([1, 2, 4, 8]) / 15),
        ("exponential:1e-9", [0, 0, 0, 1]),
    ],
)
def test_released_models_by_name(model, weights):
    assert_allclose(ReleasedModel(model).of_steps(4), weights, rtol=1e-15)
    assert ReleasedModel(f"{model}+2") == ReleasedModel(model, rounds_of_gossip=2)
    assert ReleasedModel(ReleasedModel(model, 3).describe()) == ReleasedModel(model, 3)
    assert ErrorWeights(f"released:{model}+3").released == ReleasedModel(model, 3)


def test_targets():
    assert ErrorWeights("last", [0, 1, 0]).of_nodes(3).tolist() == [0, 1, 0]
    average = ErrorWeights("last", "average")
    assert (average.of_nodes(3), average.of_average, average.uniform_target) == (None, True, False)
    F = ErrorWeights("all", [0, 4, 1]).node_factor(3).toarray()
    assert_array_equal(F.T @ F, np.diag([0, 4, 1]))
    assert_allclose(average.node_factor(4).toarray(), np.full((1, 4), 0.5))
    given, other = ErrorWeights([1, 2]).describe(), ErrorWeights([1, 3]).describe()
    assert given.startswith("given:")
    assert given != other


def test_weights_proposed_for_training():
    assert_array_equal(ErrorWeights.for_training(12, 3).of_steps(12), [0.01] * 9 + [1] * 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ErrorWeights("lats"), "did you mean"),
        (lambda: ErrorWeights("last:0"), "a whole number of steps >= 1"),
        (lambda: ErrorWeights("last:2.5"), "a whole number of steps >= 1"),
        (lambda: ErrorWeights("last:2:-1"), "floor >= 0"),
        (lambda: ErrorWeights("last:2:1:1"), r"is written last\[:STEPS\[:FLOOR\]\], got '2:1:1'"),
        (lambda: ErrorWeights("all:3"), "is written all, got '3'"),
        (lambda: ErrorWeights("exponential"), "is written exponential:HALF_LIFE"),
        (lambda: ErrorWeights("exponential:0"), "half_life must be a finite number > 0"),
        (lambda: ErrorWeights("exponential:x"), "half_life must be a number, got 'x'"),
        (lambda: ErrorWeights("released"), r"is written released:MODEL, .* e.g. released:average:48"),
        (lambda: ErrorWeights([1, -1]), "step_weights must be numbers >= 0"),
        (lambda: ErrorWeights([0, 0]), "not all zero"),
        (lambda: ErrorWeights([]), "not all zero"),
        (lambda: ErrorWeights([np.nan]), "must be finite"),
        (lambda: ErrorWeights("all", "averag"), "did you mean"),
        (lambda: ErrorWeights("all", [0, 0]), "target must be numbers >= 0"),
        (lambda: ErrorWeights([1, 2]).of_steps(3), "one weight for each of 3 steps, got 2"),
        (lambda: ErrorWeights("last:4").of_steps(3), "counts the last 4 of 3 steps"),
        (lambda: ErrorWeights("all", [1, 2]).of_nodes(3), "each of 3 nodes, got 2"),
        (lambda: ErrorWeights.for_training(3, 4), "at most num_steps=3, got 4"),
        (lambda: ReleasedModel("averages:2"), "did you mean 'average'"),
        (lambda: ReleasedModel("average"), "is written average:MODELS, .* e.g. average:48"),
        (lambda: ReleasedModel("average:0"), "models must be an integer >= 1, got 0"),
        (lambda: ReleasedModel("average:1.5"), "models must be an integer of at most 18 digits, got '1.5'"),
        (lambda: ReleasedModel("average:5").of_steps(4), "averages the last 5 of 4 models"),
        (lambda: ReleasedModel("exponential:-1"), "half_life must be a finite number > 0, got -1"),
        (lambda: ReleasedModel("exponential:inf"), "half_life must be a finite number > 0, got inf"),
        (lambda: ReleasedModel("last:2"), "is written last, got '2'"),
        (lambda: ReleasedModel("last+x"), "G whole averaging rounds"),
        (lambda: ReleasedModel(3), "must be a text"),
    ],
)
def test_weights_that_mean_nothing_or_do_not_fit_are_refused(call, message):
    refuses(message, call)
