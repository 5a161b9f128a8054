"""Sets of patterns of every kind against their patterns in turn: what they answer is what the list says."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from last_bits import nudged

from mfdl.testing import ALL_SCHEMES, participations
from mfdl_solvers.pattern_sets import (
    LISTED,
    ONE_PER_BLOCK,
    PERIODIC,
    SEPARATED,
    Listed,
    OnePerBlock,
    Periodic,
    Separated,
)

SETS = participations(max_steps=7, schemes=ALL_SCHEMES).map(lambda scheme: scheme.patterns_of_record())


def listed(record):
    return [tuple(pattern.tolist()) for pattern in record.patterns()]


@examples(80)
@given(record=SETS, data=st.data())
def test_the_heaviest_pattern_is_never_too_light(record, data):
    T, patterns = record.num_steps, listed(record)
    weights = np.array(data.draw(st.lists(st.floats(0, 1e6), min_size=T, max_size=T)))
    value, pattern = record.heaviest(weights)
    heaviest = max(sum(Fraction(float(weights[t])) for t in each) for each in patterns)
    assert heaviest <= Fraction(value) <= heaviest * (1 + Fraction(1, 10**12))
    assert record.allows(pattern)
    assert sum(weights[list(pattern)]) >= value * (1 - 1e-8)


@examples(80)
@given(record=SETS, data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_of_equally_heavy_patterns_the_last_bits_choose_none(record, data, seed):
    T = record.num_steps
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=T, max_size=T)), dtype=float)
    assert record.heaviest(nudged(weights, seed, 1e-14))[1] == record.heaviest(weights)[1]


@examples(80)
@given(record=SETS, data=st.data())
def test_uses_gaps_and_steps_are_those_of_the_patterns(record, data):
    T, patterns = record.num_steps, listed(record)
    assert record.uses == max(map(len, patterns))
    gaps = [t - s for pattern in patterns for s, t in itertools.pairwise(pattern)]
    assert record.gap <= min(gaps, default=T)
    assert record.num_patterns == len(patterns)
    assert not record.few or len(patterns) <= max(T, 4)  # no more than steps, or than were given
    assert record.in_every_step == (patterns == [tuple(range(T))])
    marked = np.array(data.draw(st.lists(st.booleans(), min_size=T, max_size=T)))
    assert record.reaches(marked) == any(marked[list(pattern)].any() for pattern in patterns)
    together = {(s, t) for pattern in patterns for s in pattern for t in pattern}
    assert not any(record.free()[s, t] for s, t in together)
    lam = marked.astype(float) / 4
    assert record.log_sum(lam)[0] >= record.heaviest(lam)[0] * (1 - 1e-12)


def test_kinds_are_told_apart_and_equal_sets_are_equal():
    sets = [Periodic(6, 2, 3), Separated(6, 2, 3), OnePerBlock(6, 2, 1), Listed.of([(0, 3), (1,)], 6)]
    assert [record.kind for record in sets] == [PERIODIC, SEPARATED, ONE_PER_BLOCK, LISTED]
    assert len(set(sets)) == 4
    assert Separated(6, 9, 3) == Separated(6, 2, 3)  # no more uses than fit
    assert (sets[3].uses, sets[3].gap) == (2, 3)
    assert Listed.of([(0,), (1,)], 6).gap == 6


@pytest.mark.parametrize("steps", [[-1], [6], [0, 6]])
def test_steps_beyond_the_run_are_never_allowed(steps):
    for record in (Periodic(6, 2, 3), Separated(6, 2, 3), OnePerBlock(6, 2, 1), Listed.of([(0, 3)], 6)):
        assert not record.allows(steps)
