"""Sets of patterns and joint patterns against their lists; choices among floats do not depend on their last bits."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from last_bits import nudged
from vocabulary import given, refuses, st

from mfdl.participation import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, Single
from mfdl.testing import ALL_SCHEMES, participations
from mfdl_solvers.pattern_sets import (
    LISTED,
    ONE_PER_BLOCK,
    PERIODIC,
    SEPARATED,
    CommonPatterns,
    Listed,
    OnePerBlock,
    Periodic,
    ProductPatterns,
    Separated,
)
from mfdl_solvers.ties import equal_to_largest, first_largest, first_maximum, first_minimum, first_smallest, ranking

SETS = participations(max_steps=7, schemes=ALL_SCHEMES).map(lambda scheme: scheme.patterns_of_record())


def listed(record):
    return [tuple(pattern.tolist()) for pattern in record.patterns()]


@given(80, record=SETS, data=st.data())
def test_the_heaviest_pattern_is_never_too_light(record, data):
    T, patterns = record.num_steps, listed(record)
    weights = np.array(data.draw(st.lists(st.floats(0, 1e6), min_size=T, max_size=T)))
    value, pattern = record.heaviest(weights)
    heaviest = max(sum(Fraction(float(weights[t])) for t in each) for each in patterns)
    assert heaviest <= Fraction(value) <= heaviest * (1 + Fraction(1, 10**12))
    assert record.allows(pattern)
    assert sum(weights[list(pattern)]) >= value * (1 - 1e-8)


@given(80, record=SETS, data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_of_equally_heavy_patterns_the_last_bits_choose_none(record, data, seed):
    T = record.num_steps
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=T, max_size=T)), dtype=float)
    assert record.heaviest(nudged(weights, seed, 1e-14))[1] == record.heaviest(weights)[1]


@given(80, record=SETS, data=st.data())
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
    sets = [Periodic(6, 2, 3), Separated(6, 2, 3), OnePerBlock(6, 2, 1), Listed.from_patterns([(0, 3), (1,)], 6)]
    assert [record.kind for record in sets] == [PERIODIC, SEPARATED, ONE_PER_BLOCK, LISTED]
    assert len(set(sets)) == 4
    assert Separated(6, 9, 3) == Separated(6, 2, 3)  # no more uses than fit
    assert (sets[3].uses, sets[3].gap) == (2, 3)
    assert Listed.from_patterns([(0,), (1,)], 6).gap == 6


@pytest.mark.parametrize("steps", [[-1], [6], [0, 6]])
def test_steps_beyond_the_run_are_never_allowed(steps):
    for record in (Periodic(6, 2, 3), Separated(6, 2, 3), OnePerBlock(6, 2, 1), Listed.from_patterns([(0, 3)], 6)):
        assert not record.allows(steps)


@st.composite
def joint_sets(draw):
    """(the set, its patterns as tuples of i T + t): of two or three owners, of any schemes or of one in common."""
    T = draw(st.sampled_from([1, 2, 3, 4]))
    schemes = [EveryStep(T), Single(T), MinSeparation(T, 2, 2)]
    schemes += [Explicit([[0], list(range(1, T))], T)] if T > 1 else []
    schemes += [Cyclic(2, 2), OncePerEpoch(2, 2)] if T == 4 else []
    count = draw(st.integers(2, 3))
    chosen = [draw(st.sampled_from(schemes)).patterns_of_record() for _ in range(count)]
    if draw(st.booleans()):
        steps = [tuple(pattern.tolist()) for pattern in chosen[0].patterns()]
        joint = [tuple(t + i * T for i in range(count) for t in pattern) for pattern in steps]
        return CommonPatterns.from_part(chosen[0], count), joint
    parts = [[tuple(pattern.tolist()) for pattern in part.patterns()] for part in chosen]
    joint = [tuple(t + i * T for i in range(count) for t in each[i]) for each in itertools.product(*parts)]
    return ProductPatterns.from_parts(tuple(chosen)), joint


@given(80, case=joint_sets(), data=st.data())
def test_the_heaviest_joint_pattern_is_never_too_light(case, data):
    record, patterns = case
    size = record.num_steps
    weights = np.array(data.draw(st.lists(st.floats(0, 1e6), min_size=size, max_size=size)))
    value, pattern = record.heaviest(weights)
    heaviest = max(sum(Fraction(float(weights[p])) for p in each) for each in patterns)
    assert heaviest <= Fraction(value) <= heaviest * (1 + Fraction(1, 10**12))
    assert any(set(pattern) <= set(each) for each in patterns)
    assert record.log_sum(weights / 1e6)[0] >= record.heaviest(weights / 1e6)[0] * (1 - 1e-12)


@given(80, case=joint_sets(), data=st.data())
def test_joint_patterns_are_all_combinations_and_no_others(case, data):
    record, patterns = case
    assert sorted(tuple(pattern.tolist()) for pattern in record.patterns()) == sorted(patterns)
    assert record.num_patterns == len(patterns)
    assert record.uses >= max(map(len, patterns))
    assert record.in_every_step == (set(patterns) == {tuple(range(record.num_steps))})
    together = {(p, q) for pattern in patterns for p in pattern for q in pattern}
    free = record.free()
    assert not any(free[pair] for pair in together)
    assert all(free[p, q] for p, q in np.ndindex(free.shape) if p != q and (p, q) not in together)
    for near in record.neighbours(data.draw(st.sampled_from(patterns))):
        assert any(set(near) <= set(each) for each in patterns)


levels = st.lists(st.integers(-5, 5), min_size=1, max_size=12)
noise = st.integers(0, 2**32 - 1)


def rounded(values, seed):
    """The values as another BLAS gives them: off by a few units in the last place."""
    return np.array(values, dtype=float) * (1 + np.random.default_rng(seed).integers(-40, 41, len(values)) * 2.0**-52)


@given(200, levels, noise)
def test_the_last_bits_decide_nothing(values, seed):
    exact = np.array(values, dtype=float)
    near = rounded(values, seed)
    assert first_largest(near) == int(exact.argmax())
    assert first_smallest(near) == int(exact.argmin())
    assert equal_to_largest(near).tolist() == (exact == exact.max()).tolist()
    assert ranking(near).tolist() == sorted(range(len(values)), key=lambda i: (values[i], i))
    assert ranking(near, descending=True).tolist() == sorted(range(len(values)), key=lambda i: (-values[i], i))
    assert first_maximum(values, lambda v: float(v)) == max(values)
    assert first_minimum(values, lambda v: float(v)) == min(values)


@given(100, st.lists(st.floats(allow_nan=False), min_size=1, max_size=12))
def test_a_choice_is_within_the_tolerance_of_the_best_and_an_order_is_a_permutation(values):
    chosen = values[first_largest(values)]
    assert chosen == max(values) or math.isclose(chosen, max(values), rel_tol=1.1e-9)
    assert sorted(ranking(values).tolist()) == list(range(len(values)))


def test_rows_are_compared_apart_and_infinities_with_one_another():
    mask = equal_to_largest([[1.0, 1.0 - 1e-15, 0.0], [math.inf, 5.0, math.inf]], axis=1)
    assert mask.tolist() == [[True, True, False], [True, False, True]]
    assert ranking([math.inf, 1.0, math.inf, -math.inf]).tolist() == [3, 1, 0, 2]
    assert ranking([]).tolist() == []


@pytest.mark.parametrize("choose", [first_largest, first_smallest, ranking])
def test_nan_is_refused(choose):
    refuses("nan", choose, [1.0, math.nan], error=ValueError)
