"""Choices among floats do not depend on their last bits."""

import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from mfdl_solvers.ties import equal_to_largest, first_largest, first_maximum, first_minimum, first_smallest, ranking

levels = st.lists(st.integers(-5, 5), min_size=1, max_size=12)
noise = st.integers(0, 2**32 - 1)


def rounded(values, seed):
    """The values as another BLAS gives them: off by a few units in the last place."""
    return np.array(values, dtype=float) * (1 + np.random.default_rng(seed).integers(-40, 41, len(values)) * 2.0**-52)


@examples(200)
@given(levels, noise)
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


@examples(100)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=12))
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
