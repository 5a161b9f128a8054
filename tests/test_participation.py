"""Participation: the patterns of every scheme, the classes of disjoint ones, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_array_equal

from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.participation import Cyclic, EveryStep, Explicit, Participation, Single
from mfdl.testing import participations


def lists(participation: Participation) -> list[list[int]]:
    return [pattern.tolist() for pattern in participation.patterns()]


@given(part=participations())
def test_patterns_are_sorted_distinct_steps(part):
    patterns = lists(part)
    assert patterns
    for steps in patterns:
        assert steps
        assert steps == sorted(set(steps))
        assert 0 <= steps[0] <= steps[-1] < part.num_steps


@given(part=participations())
def test_classes_are_the_patterns_or_are_refused(part):
    patterns = lists(part)
    flat = [step for steps in patterns for step in steps]
    if len(flat) != len(set(flat)):
        with pytest.raises(UnsupportedMechanism, match="factorization needs disjoint participation patterns"):
            part.classes()
    elif len(flat) < part.num_steps:
        with pytest.raises(UnsupportedMechanism, match="factorization needs every step in a pattern"):
            part.classes()
    else:
        labels = part.classes()
        assert labels.shape == (part.num_steps,)
        for label, steps in enumerate(patterns):
            assert np.flatnonzero(labels == label).tolist() == steps


@given(part=participations(disjoint=True))
def test_disjoint_strategy_partitions_the_steps(part):
    assert_array_equal(np.bincount(np.concatenate(list(part.patterns()))), np.ones(part.num_steps))


@given(part=participations())
def test_description_and_dict_are_plain(part):
    assert next(iter(part.to_dict())) == "scheme"
    assert json.loads(json.dumps(part.to_dict())) == part.to_dict()
    assert part.describe()


def test_cyclic_patterns_are_epochs_apart():
    part = Cyclic(epochs=3, period=2)
    assert part.num_steps == part.steps == 6
    assert lists(part) == [[0, 2, 4], [1, 3, 5]]
    assert_array_equal(part.classes(), np.arange(6) % 2)
    assert Cyclic(3, 2, 6) == part


@pytest.mark.parametrize("T", [1, 4])
def test_special_cases_coincide(T):
    assert lists(Cyclic(1, T)) == lists(Single(T)) == [[t] for t in range(T)]
    assert lists(Cyclic(T, 1)) == lists(EveryStep(T)) == [list(range(T))]
    assert lists(Explicit([range(T)], T)) == lists(EveryStep(T))


def test_explicit_patterns_are_sorted():
    assert lists(Explicit([(2, 0), (1,)], 3)) == [[0, 2], [1]]
    assert Explicit([(2, 0)], 3) == Explicit([(0, 2)], 3)


def test_numpy_integers_become_plain_ones():
    two = np.int64(2)
    for part in (Cyclic(two, two), Single(two), EveryStep(two), Explicit([[np.int64(1)]], two)):
        json.dumps(part.to_dict())  # a numpy integer is no JSON


def test_cyclic_with_other_steps_is_refused_with_the_number_to_use():
    with pytest.raises(InvalidInput, match="got steps=63, epochs=4, period=16; use steps=64 or leave it out"):
        Cyclic(epochs=4, period=16, steps=63)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cyclic(0, 3), "epochs must be an integer >= 1, got 0"),
        (lambda: Cyclic(2, -1), "period must be an integer >= 1, got -1"),
        (lambda: Cyclic(2.0, 3), "epochs must be an integer >= 1, got 2.0"),
        (lambda: Cyclic(True, 3), "epochs must be an integer >= 1, got True"),
        (lambda: Single(0), "steps must be an integer >= 1, got 0"),
        (lambda: EveryStep(0), "steps must be an integer >= 1, got 0"),
        (lambda: Explicit([], 3), "at least one pattern, got none"),
        (lambda: Explicit([[0], []], 3), r"patterns\[1\] must be distinct steps in \[0, 3\)"),
        (lambda: Explicit([[0, 3]], 3), r"patterns\[0\] must be distinct steps in \[0, 3\).*got \[0, 3\]"),
        (lambda: Explicit([[1, 1]], 3), r"patterns\[0\] must be distinct steps"),
        (lambda: Explicit([[-1]], 3), "step must be an integer >= 0, got -1"),
        (lambda: Explicit([[0]], 0), "steps must be an integer >= 1, got 0"),
    ],
)
def test_bad_schemes_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_refusals_name_the_step():
    with pytest.raises(UnsupportedMechanism, match=r"explicit participation \(2 patterns, 3 steps\) has step 1 in two"):
        Explicit([[0, 1], [1, 2]], 3).classes()
    with pytest.raises(UnsupportedMechanism, match="no record takes part in step 1 under"):
        Explicit([[0], [2]], 3).classes()
