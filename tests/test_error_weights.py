"""Which models count: weights by name and by number, targets, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from mfdl import gossip
from mfdl.dynamics import Dynamics
from mfdl.error_gram import error_gram
from mfdl.error_weights import ErrorWeights
from mfdl.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("all", [1, 1, 1, 1]),
        ("last", [0, 0, 0, 1]),
        ("last:3", [0, 1, 1, 1]),
        ("last:2:0.25", [0.25, 0.25, 1, 1]),
        ("exponential:2", [2**-1.5, 0.5, 2**-0.5, 1]),
    ],
)
def test_step_weights_by_name(text, weights):
    found = ErrorWeights.parse(text)
    assert_allclose(found.of_steps(4), weights)
    assert found.describe() == text
    assert found.uniform_target


def test_targets():
    assert ErrorWeights("last", [0, 1, 0]).of_nodes(3).tolist() == [0, 1, 0]
    assert ErrorWeights("last", "average").of_nodes(3) is None
    F = ErrorWeights("all", [0, 4, 1]).node_factor(3).toarray()
    assert_array_equal(F.T @ F, np.diag([0, 4, 1]))
    assert_allclose(ErrorWeights("all", "average").node_factor(4).toarray(), np.full((1, 4), 0.5))
    one, other = ErrorWeights([1, 2]).describe(), ErrorWeights([1, 3]).describe()
    assert one.startswith("given:")
    assert one != other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lats",), "did you mean"),
        (("last:0",), "a whole number of steps >= 1"),
        (("last:2.5",), "a whole number of steps >= 1"),
        (("last:2:-1",), "floor >= 0"),
        (("last:2:1:1",), r"is written last\[:STEPS\[:FLOOR\]\], got '2:1:1'"),
        (("all:3",), "is written all, got '3'"),
        (("exponential",), "is written exponential:HALF_LIFE"),
        (("exponential:0",), "half_life must be a finite number > 0"),
        (("exponential:x",), "half_life must be a number, got 'x'"),
        (([1, -1],), "step_weights must be numbers >= 0"),
        (([0, 0],), "not all zero"),
        (([],), "not all zero"),
        (([np.nan],), "must be finite"),
        (("all", "averag"), "did you mean"),
        (("all", [0, 0]), "target must be numbers >= 0"),
    ],
)
def test_weights_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        ErrorWeights(*arguments)


def test_weights_of_another_size_are_refused():
    with pytest.raises(InvalidInput, match="one weight for each of 3 steps, got 2"):
        ErrorWeights([1, 2]).of_steps(3)
    with pytest.raises(InvalidInput, match="counts the last 4 of 3 steps"):
        ErrorWeights("last:4").of_steps(3)
    with pytest.raises(InvalidInput, match="each of 3 nodes, got 2"):
        ErrorWeights("all", [1, 2]).of_nodes(3)


def test_the_proposed_weights_keep_the_gram_regular():
    weights = ErrorWeights.for_training(12, 3)
    assert_array_equal(weights.of_steps(12), [0.01] * 9 + [1] * 3)
    H = error_gram(Dynamics(gossip.metropolis_hastings("ring:n=5")), 12, weights=weights)
    assert np.linalg.eigvalsh(H)[0] > 1e-8 * np.linalg.eigvalsh(H)[-1]
    with pytest.raises(InvalidInput, match="at most num_steps=3, got 4"):
        ErrorWeights.for_training(3, 4)
