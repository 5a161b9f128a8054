"""Patterns of a record of several owners against all combinations of the owners' patterns, listed here."""

import itertools
from fractions import Fraction

import numpy as np
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from mfdl.participation import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, Single
from mfdl_solvers.joint_patterns import CommonPatterns, ProductPatterns


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
        return CommonPatterns.of(chosen[0], count), joint
    parts = [[tuple(pattern.tolist()) for pattern in part.patterns()] for part in chosen]
    joint = [tuple(t + i * T for i in range(count) for t in each[i]) for each in itertools.product(*parts)]
    return ProductPatterns.of(tuple(chosen)), joint


@examples(80)
@given(case=joint_sets(), data=st.data())
def test_the_heaviest_joint_pattern_is_never_too_light(case, data):
    record, patterns = case
    size = record.num_steps
    weights = np.array(data.draw(st.lists(st.floats(0, 1e6), min_size=size, max_size=size)))
    value, pattern = record.heaviest(weights)
    heaviest = max(sum(Fraction(float(weights[p])) for p in each) for each in patterns)
    assert heaviest <= Fraction(value) <= heaviest * (1 + Fraction(1, 10**12))
    assert any(set(pattern) <= set(each) for each in patterns)
    assert record.log_sum(weights / 1e6)[0] >= record.heaviest(weights / 1e6)[0] * (1 - 1e-12)


@examples(80)
@given(case=joint_sets(), data=st.data())
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
