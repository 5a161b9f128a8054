"""Once-per-epoch and min-separation participation: the patterns are the right ones, lazily; dictionaries round-trip."""

import itertools

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.participation import (
    Cyclic,
    EveryStep,
    Explicit,
    MinSeparation,
    OncePerEpoch,
    Participation,
    Single,
    participation_from_dict,
)
from mfdl.testing.oracles import once_per_epoch_patterns, separated_patterns

ALL = [
    Cyclic(3, 2),
    Single(4),
    EveryStep(5),
    Explicit([[0, 2], [1]], 4),
    OncePerEpoch(2, 3),
    MinSeparation(7, 3, 2),
]


def listed(participation):
    return [tuple(p.tolist()) for p in participation.patterns()]


@examples(60)
@given(T=st.integers(1, 9), k=st.integers(1, 5), b=st.integers(1, 10))
def test_min_separation_lists_the_maximal_sets_once_each(T, k, b):
    scheme = MinSeparation(T, k, b)
    assert sorted(listed(scheme)) == separated_patterns(T, k, b)
    assert scheme.num_patterns == len(listed(scheme))


@examples(20)
@given(k=st.integers(1, 3), b=st.integers(1, 4))
def test_once_per_epoch_lists_one_step_of_each_epoch(k, b):
    scheme = OncePerEpoch(k, b)
    assert listed(scheme) == once_per_epoch_patterns(k, b)
    assert scheme.num_patterns == b**k == len(listed(scheme))
    assert scheme.num_steps == k * b


@pytest.mark.parametrize("scheme", ALL, ids=lambda s: s.scheme)
def test_num_patterns_counts_what_patterns_yields(scheme):
    assert scheme.num_patterns == len(listed(scheme)) == Participation.num_patterns.fget(scheme)


@pytest.mark.parametrize("scheme", ALL, ids=lambda s: s.scheme)
def test_dictionaries_round_trip(scheme):
    saved = scheme.to_dict()
    assert next(iter(saved)) == "scheme"
    assert participation_from_dict(saved) == scheme


def test_astronomically_many_patterns_are_counted_and_enumerated_lazily():
    for scheme in (OncePerEpoch(40, 16), MinSeparation(640, 30, 16)):
        assert scheme.num_patterns > 10**12
        first = [tuple(p.tolist()) for p in itertools.islice(scheme.patterns(), 5)]
        assert len(set(first)) == 5
    assert OncePerEpoch(40, 16).num_patterns == 16**40
    assert MinSeparation(100, 3, 1).num_patterns == 161700  # any three of a hundred


@pytest.mark.parametrize("scheme", [OncePerEpoch(2, 3), MinSeparation(6, 2, 2), MinSeparation(640, 30, 16)])
def test_classes_refuses_overlapping_patterns(scheme):
    with pytest.raises(UnsupportedMechanism, match="disjoint participation patterns"):
        scheme.classes()


def test_every_cyclic_pattern_is_inside_a_pattern_of_the_wider_schemes():
    cyclic = Cyclic(3, 4)
    once, apart = listed(OncePerEpoch(3, 4)), listed(MinSeparation(12, 3, 4))
    for pattern in listed(cyclic):
        assert pattern in once
        assert any(set(pattern) <= set(other) for other in apart)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OncePerEpoch(0, 3), "epochs must be an integer >= 1, got 0"),
        (lambda: OncePerEpoch(2, 1.5), "period must be an integer >= 1"),
        (lambda: MinSeparation(0, 1, 1), "steps must be"),
        (lambda: MinSeparation(4, 0, 1), "max_participations must be"),
        (lambda: MinSeparation(4, 1, 0), "separation must be an integer >= 1, got 0"),
        (lambda: MinSeparation(4, True, 1), "max_participations must be"),
        (lambda: participation_from_dict({"epochs": 2}), "must be a mapping with a scheme"),
        (lambda: participation_from_dict({"scheme": "cyclc"}), "did you mean 'cyclic'"),
        (lambda: participation_from_dict({"scheme": "single"}), "missing a required argument: 'steps'"),
        (lambda: participation_from_dict({"scheme": "single", "steps": 3, "x": 1}), "unexpected keyword argument 'x'"),
        (lambda: participation_from_dict({"scheme": "single", "steps": "3"}), "steps must be an integer >= 1"),
        (lambda: participation_from_dict({"scheme": "explicit", "steps": 3, "patterns": 1}), "lists of steps"),
        (lambda: participation_from_dict({"scheme": "explicit", "steps": 3, "patterns": "01"}), "lists of steps"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_descriptions_name_their_numbers():
    assert OncePerEpoch(2, 3).describe() == "participation once per epoch in any order (epochs=2, period=3)"
    assert MinSeparation(9, 2, 4).describe() == "at most 2 participations, at least 4 steps apart (9 steps)"
