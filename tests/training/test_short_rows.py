"""Rows of normals made together beside the library's generator, one at a time: the same bits, whatever is asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from mfdl.training import short_rows
from mfdl.training.keys import ColumnNormals, NoiseKey

WORDS = st.integers(0, 2**64 - 1)


def generator(key, counter):
    """Oracle: numpy's own constructor."""
    return np.random.Philox(key=np.array(key, dtype=np.uint64), counter=np.array(counter, dtype=np.uint64))


@given(st.lists(st.tuples(*[WORDS] * 6), min_size=1, max_size=5))
@settings(deadline=None)
def test_philox_gives_the_words_of_the_library(cases):
    *counter, left, right = np.array(cases, dtype=np.uint64).T
    with np.errstate(over="ignore"):
        made = np.array(short_rows.philox(tuple(counter), (left, right))).T
    for case, words in zip(cases, made, strict=True):
        number = sum(word << 64 * place for place, word in enumerate(case[:4]))
        before = [(number - 1) % 2**256 >> 64 * place & (2**64 - 1) for place in range(4)]  # it counts, then draws
        assert_array_equal(words, generator(case[4:], before).random_raw(4))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, short_rows.LONGEST + 2),
    st.integers(0, 2**63),
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
    st.integers(1, 3),
)
@settings(deadline=None)
def test_many_columns_are_those_that_are_made_alone(seed, dim, step, shard, tensor, num_steps):
    rng = np.random.default_rng(seed)
    count = -(-short_rows.FEWEST // num_steps) + int(rng.integers(3))
    keys = [NoiseKey.from_seed(int(k)) for k in rng.integers(0, 5, count)]
    indices, steps = (
        rng.integers(0, 2**64, count, dtype=np.uint64),
        np.uint64(step) + np.arange(num_steps, dtype=np.uint64),
    )
    many = ColumnNormals(keys, indices, shard=shard).block(steps, dim, tensor=tensor)
    for column in {0, count - 1, *rng.integers(0, count, 20).tolist()}:
        alone = ColumnNormals(keys[column : column + 1], indices[column : column + 1], shard=shard)
        assert_array_equal(many[:, column], alone.block(steps, dim, tensor=tensor)[:, 0])


@pytest.mark.parametrize("dim", [1, 4, 10])
def test_rows_are_those_of_the_library_or_left_to_it(dim):
    rows = 3 * short_rows.BLOCKS // 10
    keys, index = np.arange(2 * rows, dtype=np.uint64).reshape(-1, 2), np.arange(rows, dtype=np.uint64)
    out = np.full((rows, dim), np.nan)
    left = short_rows.fill(out, keys, (np.uint64(0), np.uint64(1), index, index[::-1].copy()))
    assert (0.98**dim - 0.05) < 1 - len(left) / rows < 0.99**dim + 0.02  # nearly all of short rows
    for row in np.setdiff1d(np.arange(rows), left)[::3]:
        oracle = np.random.Generator(generator(keys[row], [0, 1, row, rows - 1 - row]))
        assert_array_equal(out[row], oracle.standard_normal(dim))


def test_a_generator_that_takes_its_words_otherwise_makes_all_rows(monkeypatch):
    keys, indices = [NoiseKey.from_seed(0)] * short_rows.FEWEST, np.arange(short_rows.FEWEST)
    known = ColumnNormals(keys, indices).step(3, 4)
    monkeypatch.setattr(short_rows, "ziggurat", lambda: None)
    assert_array_equal(ColumnNormals(keys, indices).step(3, 4), known)


def test_a_ziggurat_of_other_widths_is_not_trusted(monkeypatch):
    class Wider(np.random.Generator):
        def standard_normal(self):
            return super().standard_normal() * 1.5 ** (super().bit_generator.state["buffer_pos"] - 1)

    assert short_rows.ziggurat.__wrapped__() is not None
    monkeypatch.setattr(np.random, "Generator", Wider)
    assert short_rows.ziggurat.__wrapped__() is None
