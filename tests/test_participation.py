"""Participation: the patterns of every scheme, lazily, the classes of disjoint ones, dictionaries, and refusals."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from refusals import refuses, unsupported

from mfdl import Cyclic, EveryStep, MinSeparation, archive
from mfdl.participation import Explicit, OncePerEpoch, Participation, Single
from mfdl.testing import ALL_SCHEMES, once_per_epoch_patterns, participations, separated_patterns


def lists(participation: Participation) -> list[list[int]]:
    return [pattern.tolist() for pattern in participation.patterns()]


def tuples(participation: Participation) -> list[tuple[int, ...]]:
    return [tuple(pattern) for pattern in lists(participation)]


@given(part=participations(schemes=ALL_SCHEMES))
def test_patterns_are_sorted_distinct_steps_and_counted(part):
    patterns = lists(part)
    assert part.num_patterns == len(patterns) > 0
    for steps in patterns:
        assert steps
        assert steps == sorted(set(steps))
        assert 0 <= steps[0] <= steps[-1] < part.num_steps


@given(part=participations(schemes=ALL_SCHEMES))
def test_classes_are_the_patterns_or_are_refused(part):
    patterns = lists(part)
    flat = [step for steps in patterns for step in steps]
    if len(flat) != len(set(flat)):
        unsupported("factorization needs disjoint participation", part.classes)
    elif len(flat) < part.num_steps:
        unsupported("factorization needs every step in a pattern", part.classes)
    else:
        labels = part.classes()
        assert labels.shape == (part.num_steps,)
        for label, steps in enumerate(patterns):
            assert np.flatnonzero(labels == label).tolist() == steps


@given(part=participations(disjoint=True))
def test_disjoint_strategy_partitions_the_steps(part):
    assert_array_equal(np.bincount(np.concatenate(list(part.patterns()))), np.ones(part.num_steps))


@given(part=participations(schemes=ALL_SCHEMES))
def test_dictionaries_are_plain_and_files_give_it_back(part):
    saved = part.to_dict()
    assert next(iter(saved)) == "scheme"
    assert json.loads(json.dumps(saved)) == saved
    assert archive.copied(part, "participation") == part
    assert part.describe()


@examples(60)
@given(T=st.integers(1, 9), k=st.integers(1, 5), b=st.integers(1, 10))
def test_min_separation_lists_the_maximal_sets_once_each(T, k, b):
    scheme = MinSeparation(T, k, b)
    assert sorted(tuples(scheme)) == separated_patterns(T, k, b)
    assert scheme.num_patterns == len(tuples(scheme))


@examples(20)
@given(k=st.integers(1, 3), b=st.integers(1, 4))
def test_once_per_epoch_lists_one_step_of_each_epoch(k, b):
    scheme = OncePerEpoch(k, b)
    assert tuples(scheme) == once_per_epoch_patterns(k, b)
    assert scheme.num_patterns == b**k == len(tuples(scheme))
    assert scheme.num_steps == k * b


def test_cyclic_patterns_are_epochs_apart():
    part = Cyclic(epochs=3, period=2)
    assert part.num_steps == part.steps == 6
    assert lists(part) == [[0, 2, 4], [1, 3, 5]]
    assert_array_equal(part.classes(), np.arange(6) % 2)
    assert Cyclic(3, 2, 6) == part


@pytest.mark.parametrize("T", [1, 4])
def test_special_cases_coincide(T):
    assert lists(Explicit([(2, 0), (1,)], 3)) == [[0, 2], [1]]
    assert lists(Cyclic(1, T)) == lists(Single(T)) == [[t] for t in range(T)]
    assert lists(Cyclic(T, 1)) == lists(EveryStep(T)) == [list(range(T))]
    assert lists(Explicit([range(T)], T)) == lists(EveryStep(T))


def test_numpy_integers_become_plain_ones():
    two = np.int64(2)
    for part in (Cyclic(two, two), Single(two), Explicit([[np.int64(1)]], two), MinSeparation(two, two, two)):
        json.dumps(part.to_dict())  # a numpy integer is no JSON


def test_astronomically_many_patterns_are_counted_and_enumerated_lazily():
    for scheme in (OncePerEpoch(40, 16), MinSeparation(640, 30, 16)):
        assert scheme.num_patterns > 10**12
        first = [tuple(p) for p in itertools.islice(scheme.patterns(), 5)]
        assert len(set(first)) == 5
    assert OncePerEpoch(40, 16).num_patterns == 16**40
    assert MinSeparation(100, 3, 1).num_patterns == 161700  # any three of a hundred


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
        (lambda: Cyclic(4, 16, 63), "got steps=63, epochs=4, period=16; use steps=64 or leave it out"),
        (lambda: OncePerEpoch(0, 3), "epochs must be an integer >= 1, got 0"),
        (lambda: OncePerEpoch(2, 1.5), "period must be an integer >= 1"),
        (lambda: MinSeparation(0, 1, 1), "steps must be"),
        (lambda: MinSeparation(4, 0, 1), "max_participations must be"),
        (lambda: MinSeparation(4, 1, 0), "separation must be an integer >= 1, got 0"),
        (lambda: MinSeparation(4, True, 1), "max_participations must be"),
    ],
)
def test_bad_schemes_are_refused(make, message):
    refuses(message, make)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            Explicit([[0, 1], [1, 2]], 3),
            r"disjoint .* explicit participation \(2 patterns, 3 steps\) has step 1 in two",
        ),
        (Explicit([[0], [2]], 3), "no record takes part in step 1 under"),
        (
            OncePerEpoch(2, 3),
            r"patterns, but participation once per epoch in any order \(epochs=2, period=3\) has step 0",
        ),
        (MinSeparation(9, 2, 4), r"but at most 2 participations, at least 4 steps apart \(9 steps\) has step 0 in two"),
        (MinSeparation(640, 30, 16), "disjoint participation patterns"),
    ],
)
def test_what_has_no_classes_is_refused_in_words(part, message):
    unsupported(message, part.classes)


@given(part=participations(schemes=ALL_SCHEMES))
def test_steps_are_allowed_together_if_and_only_if_a_pattern_holds_them(part):
    patterns = [set(pattern.tolist()) for pattern in part.patterns()]
    few = range(min(part.num_steps, 8) + 1)  # the last of which may be no step
    for steps in itertools.chain.from_iterable(itertools.combinations(few, size) for size in range(4)):
        assert part.allows(steps) == any(set(steps) <= pattern for pattern in patterns)
